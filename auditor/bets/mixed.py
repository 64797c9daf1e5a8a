"""Mixed batches: every row has a p, a q and, where the adapter takes it, a draft length of its own.

A row must be judged by its own laws. The bets follow samplers that use a neighbouring row's target, draft law, residual or bonus
law; the evidence of each row's own case goes in as a local bet, for faults of batches that nobody has listed. All of it belongs to
`row-independence` alone, so that what is wrong with a case on its own is told apart from what is wrong with a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook, joint_pay
from auditor.bets.fields import Score
from auditor.bets.tally import Tally, read_rounds
from auditor.cases import Case, family_case
from auditor.draws import drafts_from
from auditor.errors import BadAnswer
from auditor.evidence import dot, log_bets, log_bets_bernoulli, log_mean
from auditor.rules import laws
from auditor.visits import ModeAudit, broken_rounds

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SEVERITIES = (0.95, 0.1, 0.01)
"""Not 1: a row at the end of a batch may have no neighbour to borrow from."""
CASES = 8
ROWS, BATCHES = 1024, 8
"""Rows of one batch, and batches at most."""
VOCAB = 8
GAMMAS = (3, 1, 2, 3, 2, 1, 3, 2)
"""Draft lengths of the rows of a ragged batch; without `ragged` every row has the first."""

BORROWED = tuple(
    (what, step, f"uses the {words} of the {'next' if step > 0 else 'previous'} row")
    for what, words in (("target", "target"), ("draft", "draft law"), ("residual", "residual"), ("bonus", "bonus law"))
    for step in (1, -1)
)
"""(what a row borrows, from which side, words)."""


@dataclass(frozen=True)
class MixedEvidence:
    """Evidence of mixed batches: the score of `row-independence`, and the joint pay-offs of the catalogue beside it."""

    score: Score
    borrowed: FloatArray
    catalogue: FloatArray

    @property
    def leader(self) -> tuple[str, float, float]:
        """The borrowing that explains most: its words, its nats, and those of the best catalogued fault."""
        peak = self.borrowed.reshape(len(BORROWED), len(SEVERITIES)).max(1)
        k = int(peak.argmax())
        return BORROWED[k][2], float(peak[k]), float(self.catalogue.max())


def cases_of(seed: int, ragged: bool) -> list[Case]:
    """The rows' cases, all different; their draft lengths too where the adapter is ragged."""
    gammas = GAMMAS if ragged else (GAMMAS[0],) * CASES
    return [family_case("dirichlet", VOCAB, gammas[k], seed * CASES + k) for k in range(CASES)]


def draw(audit: ModeAudit, cases: list[Case], rows: int) -> list[tuple[IntArray, IntArray]]:
    """One mixed batch: (drafts [n, gamma], tokens [n, gamma+1]) of each case. Raises what the adapter's calls raise."""
    longest = max(c.gamma for c in cases)
    order = np.arange(rows) % len(cases)
    # Rows behind a short one's bonus row are to be ignored: they hold another law, so that a row which reads them shows.
    p = np.stack([np.concatenate([c.p, np.repeat(c.p[-1:, ::-1], longest - c.gamma, 0)]) for c in cases])[order]
    q = np.stack([np.concatenate([c.q, np.repeat(c.q[-1:, ::-1], longest - c.gamma, 0)]) for c in cases])[order]
    drafts = np.full((rows, longest), -1, np.int64)
    for k, case in enumerate(cases):
        mine = np.flatnonzero(order == k)
        drafts[mine, : case.gamma] = drafts_from(case.q, len(mine), audit.seeds.generator())
    tokens = audit.subject.verify(p, q, drafts, audit.seeds.next())
    out = []
    for k, case in enumerate(cases):
        mine = order == k
        if (tokens[mine, case.gamma + 1 :] >= 0).any():
            raise BadAnswer(
                "length", f"verify returned more than {case.gamma + 1} tokens for a row of {case.gamma} drafts"
            )
        out.append((drafts[mine, : case.gamma], tokens[mine, : case.gamma + 1]))
    return out


def judge(audit: ModeAudit, cases: list[Case], drawn: list[list[tuple[IntArray, IntArray]]]) -> MixedEvidence:
    """The evidence of mixed batches `drawn` (a list of `draw`s of the same cases)."""
    borrowed = np.zeros(len(BORROWED) * len(SEVERITIES))
    catalogue, local, events = np.zeros((0, 0)), [], 0
    for k, case in enumerate(cases):
        book = audit.book(case)
        drafts, tokens = (np.concatenate([batch[k][part] for batch in drawn]) for part in (0, 1))
        if broken_rounds(drafts, tokens).any():
            raise BadAnswer("prefix", "verify returned accepted drafts that are no prefix, in a mixed batch")
        tally = read_rounds(book.reading, drafts, tokens)
        near = {step: cases[(k + step) % len(cases)] for step in (1, -1)}
        borrowed += np.concatenate([_borrowed(book, tally, what, near[step]) for what, step, _ in BORROWED])
        evidence = book.evidence(tally, audit.endings)
        judged = ("acceptance-law", "residual-law", "bonus-token", "output-law")
        local.append(log_mean(np.array([evidence.scores[c].local for c in judged])))
        joint = joint_pay(evidence.scores)
        catalogue = joint if not catalogue.size else catalogue + joint
        events += int(tally.accept.sum())
    # Rows of different cases are different events, yet one faulty kind of row must not be diluted by the others: a mean.
    return MixedEvidence(Score(borrowed, log_mean(np.array(local)), len(borrowed), events), borrowed, catalogue)


def _borrowed(book: RoundBook, tally: Tally, what: str, near: Case) -> FloatArray:
    """Log pay-offs [severity] of bets that the rows of a case borrow from those of another."""
    case, gamma = book.case, min(book.case.gamma, near.gamma)
    p, q = case.p.copy(), case.q.copy()
    whole = what in ("target", "draft")
    if what in ("target", "residual", "bonus"):
        p[:gamma] = near.p[:gamma]
        p[-1] = near.p[-1]
    if what in ("draft", "residual"):
        q[:gamma] = near.q[:gamma]
    wrong, right = laws(book.rule, p, q, book.rule), book.right
    out = np.zeros(len(SEVERITIES))
    for j, s in enumerate(SEVERITIES):
        if whole:
            rate = (1 - s) * right.accept + s * wrong.accept
            yes, no = log_bets_bernoulli(rate, book.box.accept_low, book.box.accept_up)
            out[j] += dot(tally.accept, np.stack([no, yes], -1)[None])[0]
            # A round that ends with its own last draft pays min(1, bet): valid under either of its readings.
            out[j] += dot(tally.repeats, np.minimum(no[-1], 0.0)[None])[0]
        if what != "bonus" and right.residual is not None and wrong.residual is not None:
            for i in range(case.gamma):
                mixed = (1 - s) * right.residual[i] + s * wrong.residual[i]
                pay = log_bets(mixed, *book.box.residual(i))
                out[j] += dot(tally.residual[i], pay[None])[0]
                if i == case.gamma - 1:
                    out[j] += dot(tally.repeats, np.minimum(pay, 0.0)[None])[0]
        if what in ("target", "bonus"):
            out[j] += dot(tally.bonus, log_bets((1 - s) * right.bonus + s * wrong.bonus, *book.box.bonus())[None])[0]
    return out
