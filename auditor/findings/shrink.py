"""The smallest case that still shows a finding: a second search, over small round laws, with fresh draws.

Candidates are pairs of laws in tenths, fewest tokens and drafts first. Where the fault has a name they are ordered by the
evidence that it is expected to give on them, which needs no draws; each candidate then has to show the violation on draws of its own.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auditor.bets.books import JOINT
from auditor.bets.first_tokens import FirstBook
from auditor.bets.predict import nats_per_round
from auditor.bets.tally import read_first, read_rounds
from auditor.cases import Case
from auditor.errors import BadAnswer, CallFailed
from auditor.findings.diagnosis import UNLISTED
from auditor.results import Diagnosis
from auditor.visits import ModeAudit

FloatArray = npt.NDArray[np.float64]

SHOWN = 12.0
"""Nats of one visit's own evidence that count as "it shows": a conforming sampler does that once in exp(12) = 160,000 tries."""
SIZES = ((2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (3, 3))
"""(V, gamma) in the order in which they are tried."""
TRIES = 4
AMPLE = 8.0
LISTED = 64


@dataclass(frozen=True)
class Smallest:
    """A small case and the evidence that a visit to it gave."""

    case: Case
    evidence: float


def shrink(audit: ModeAudit, claim: str, method: str, diagnosis: Diagnosis, seconds: float) -> Smallest | None:
    """The first small case on which fresh draws speak against `claim` by at least `SHOWN` nats; None if none does in time."""
    end = time.monotonic() + seconds
    speed = audit.speed.get(method, 1e4)
    rounds = int(np.clip(speed * seconds / 24, 200, 60_000))
    for vocab, gamma in SIZES if method == "verify" else ((2, 1), (3, 1), (4, 1)):
        listed = small_pairs(vocab, gamma)
        worth = _worth(audit, diagnosis, listed)
        # The roundest of those that are expected to show it well; where none is, the best of what there is.
        enough = np.flatnonzero(worth * rounds >= AMPLE * SHOWN)
        best = np.argsort(-worth, kind="stable")
        order = enough if len(enough) else best[worth[best] * rounds >= SHOWN / 4]
        for k in order[:TRIES]:
            if time.monotonic() > end:
                return None
            evidence = fresh_evidence(audit, listed[int(k)], claim, method, rounds)
            if evidence is not None and evidence >= SHOWN:
                return Smallest(listed[int(k)], evidence)
    return None


def fresh_evidence(audit: ModeAudit, case: Case, claim: str, method: str, rounds: int) -> float | None:
    """Nats against `claim` on fresh rounds of a case, fed to no wealth; None where the adapter fails."""
    try:
        if method == "verify":
            book = audit.book(case)
            drafts, tokens = audit.draw_rounds(case, rounds)
            tally = read_rounds(book.reading, drafts, tokens)
            scores = book.evidence(tally, audit.endings).scores
        else:
            first = FirstBook(audit.book(case))
            scores = first.evidence(
                read_first(case, *audit.subject.sample(case.p[0], case.q[0], rounds, audit.seeds.next()))
            ).scores
    except (CallFailed, BadAnswer):
        return None
    return scores[claim].local if claim in scores else 0.0


def _worth(audit: ModeAudit, diagnosis: Diagnosis, listed: list[Case]) -> FloatArray:
    """Expected nats a round of each case under the named fault; for an unlisted one the order is kept."""
    if diagnosis.fault == UNLISTED or diagnosis.fault not in JOINT:
        return np.linspace(2.0, 1.0, len(listed))
    k = JOINT.index(diagnosis.fault)
    s = diagnosis.severity or 1.0
    # Full severity is looked at a little below, where no outcome is impossible and every nat is finite.
    key = (listed[0].digest, s)
    if key not in audit.worth:
        audit.worth[key] = np.stack([nats_per_round(audit.book(case), min(s, 0.95)).sum(-1) for case in listed])
    return audit.worth[key][:, k]


@lru_cache(maxsize=16)
def small_pairs(vocab: int, gamma: int) -> list[Case]:
    """Cases of laws in tenths with so many tokens and drafts, different at every position; the roundest first."""
    laws = [np.array(w) / 10 for w in _compositions(10, vocab)]
    # Laws without zeros, of few distinct numbers and none of them small, read best.
    laws.sort(key=lambda law: (law.min() == 0, len(set(law.tolist())), -law.min()))
    laws = laws[: 24 if vocab == 2 else 20]
    pairs = [(p, q) for p, q in itertools.product(laws, laws) if np.abs(p - q).sum() >= 0.39]
    pairs.sort(key=lambda pair: laws_rank(pair, laws))
    rng = np.random.default_rng([vocab, gamma])
    out = []
    for first, draft in pairs[:LISTED]:
        p, q = [first], [draft]
        while len(p) < gamma + 1:
            more = laws[int(rng.integers(len(laws)))]
            if not np.allclose(more, p[-1]):
                p.append(more)
        while len(q) < gamma:
            more = laws[int(rng.integers(len(laws)))]
            if np.abs(more - p[len(q)]).sum() >= 0.39:
                q.append(more)
        out.append(Case(np.array(p), np.array(q), f"tenths, V={vocab} gamma={gamma}", "simplex"))
    return out


def laws_rank(pair: tuple[FloatArray, FloatArray], laws: list[FloatArray]) -> int:
    """How far down the list of round laws the two of a pair stand together."""
    return sum(next(k for k, law in enumerate(laws) if law is one) for one in pair)


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    return [(k, *rest) for k in range(total + 1) for rest in _compositions(total - k, parts - 1)]
