"""How few rounds could do: the nats that one round's events carry against a claim, when the rounds follow a known law.

No test of level `alpha` needs fewer rounds on average than about `log(1/alpha) / KL` (Wald 1945), KL in nats per round. Here KL
is that of the law which the rounds follow to the nearest law that the claim allows (`auditor.evidence`), exactly, over the events
that the claim is judged by. What a tally does not show is counted as if it did, so that ratios to this limit include its price:
which of its two readings an ambiguous ending has, and which token of a class was seen, where a vocabulary is looked at in classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook
from auditor.bets.tally import LEVELS, level_value
from auditor.evidence import log_bets, log_bets_bernoulli
from auditor.rules import FAULTS

FloatArray = npt.NDArray[np.float64]

DRAFTS = 256
"""Residuals that depend on the draft are averaged over all drafts, or over so many drawn ones."""


@dataclass(frozen=True)
class RoundLaw:
    """The laws that rounds follow: accept [gamma, V]; residual [gamma, V] after a rejection of whatever draft; bonus [V].

    missing: probability that a full round lacks its bonus token; visible: share of such rounds that cannot be anything else.
    """

    accept: FloatArray
    residual: FloatArray
    bonus: FloatArray
    missing: float = 0.0
    visible: float = 1.0


def law_of(book: RoundBook, fault: str, severity: float) -> RoundLaw:
    """The law of rounds on the book's case, every event following the fault with probability `severity`."""
    right, wrong, q, s = book.right, book.wrong[fault], book.case.q, severity
    accept = (1 - s) * right.accept + s * wrong.accept
    residual = []
    for i in range(book.case.gamma):
        refused = q[i] * (1 - accept[i])
        total = max(float(refused.sum()), 1e-300)
        residual.append((1 - s) * right.mean(i, refused / total) + s * wrong.mean(i, refused / total))
    bonus = right.bonus if wrong.drop else (1 - s) * right.bonus + s * wrong.bonus
    last = q[-1] * accept[-1]
    visible = float(last[book.sure].sum() / max(last.sum(), 1e-300))
    return RoundLaw(accept, np.stack(residual), bonus, s if wrong.drop else 0.0, visible)


def _gain(law: FloatArray, pay: FloatArray) -> FloatArray:
    """Expected log pay-off [...] of bets that follow the law [..., V] itself."""
    return np.asarray(np.where(law > 0, law * np.where(law > 0, pay, 0.0), 0.0).sum(-1))


def _acceptance_gain(accept: FloatArray, low: FloatArray, up: FloatArray) -> FloatArray:
    yes, no = log_bets_bernoulli(accept, low, up)
    return _gain(np.stack([accept, 1 - accept], -1), np.stack([yes, no], -1))


def nats_per_round(book: RoundBook, law: RoundLaw) -> dict[str, float]:
    """Nats per round against `acceptance-law`, `residual-law` and `bonus-token`, drafts drawn from q."""
    q, gamma, box = book.case.q, book.case.gamma, book.box
    rates = (q * law.accept).sum(-1)
    reach = np.concatenate([[1.0], np.cumprod(rates)])
    acceptance = float(reach[:-1] @ (q * _acceptance_gain(law.accept, box.accept_low, box.accept_up)).sum(-1))
    residual = 0.0
    if not book.by_draft:
        for i in range(gamma):
            total = float(law.residual[i].sum())
            if total > 0:
                drawn = law.residual[i] / total
                residual += reach[i] * (1 - rates[i]) * float(_gain(drawn, log_bets(drawn, *box.residual(i))))
    low, up = box.bonus()
    allowed = 4 * book.precision.resolution
    low, up = np.append(low * (1 - allowed), 0.0), np.append(up, allowed)
    bonus = np.append((1 - law.missing) * law.bonus, law.missing * law.visible)
    shown = float(bonus.sum())
    bonus = bonus / max(shown, 1e-300)
    return {
        "acceptance-law": acceptance,
        "residual-law": residual,
        "bonus-token": float(reach[-1] * shown * _gain(bonus, log_bets(bonus, low, up))),
    }


def fault_nats(book: RoundBook, fault: str, severity: float) -> dict[str, float]:
    """Nats per round of a catalogued fault at a severity, by claim: `nats_per_round`, and what only drafts or rounds show.

    A residual that depends on the draft is judged draft by draft; a uniform shared by positions by the smallest acceptance
    probability so far, at the levels that a tally keeps.
    """
    out = nats_per_round(book, law_of(book, fault, severity))
    wrong = book.wrong[fault]
    if book.by_draft or wrong.residual is None:
        out["residual-law"] = _residual_by_draft(book, fault, severity)
    if FAULTS[fault].shares_uniform:
        out["acceptance-law"] = _shared(book, severity)
    return out


def _residual_by_draft(book: RoundBook, fault: str, s: float) -> float:
    case, right, wrong = book.case, book.right, book.wrong[fault]
    accept = (1 - s) * right.accept + s * wrong.accept
    reach = np.concatenate([[1.0], np.cumprod((case.q * accept).sum(-1))])
    rng, total = np.random.default_rng(0), 0.0
    for i in range(case.gamma):
        weights = case.q[i] * (1 - accept[i])
        drafts = np.flatnonzero(weights)
        if len(drafts) > DRAFTS:
            drafts = rng.choice(case.vocab, DRAFTS, p=weights / weights.sum())
            weight = np.full(DRAFTS, weights.sum() / DRAFTS)
        else:
            weight = weights[drafts]
        for x, w in zip(drafts, weight, strict=True):
            one = np.array([x])
            drawn = ((1 - s) * right.given(i, one) + s * wrong.given(i, one))[0]
            bounds = book.box.residual_after(i, int(x)) if book.by_draft else book.box.residual(i)
            total += reach[i] * w * float(_gain(drawn, log_bets(drawn, *bounds)))
    return total


def _shared(book: RoundBook, s: float) -> float:
    case, right = book.case, book.right.accept
    values, state, total = level_value(np.arange(LEVELS)), np.zeros(LEVELS), 0.0
    state[0] = 1.0  # the mass of rounds still going, by the level of their smallest acceptance probability
    for i in range(case.gamma):
        after = np.zeros(LEVELS)
        for level in np.flatnonzero(state):
            accept = (1 - s) * right[i] + s * np.minimum(1.0, right[i] / values[level])
            gain = _acceptance_gain(accept, book.box.accept_low[i], book.box.accept_up[i])
            total += state[level] * float(case.q[i] @ gain)
            lower = np.maximum(level, book.reading.level[i])
            after += state[level] * np.bincount(lower, case.q[i] * accept, LEVELS)
        state = after
    return total
