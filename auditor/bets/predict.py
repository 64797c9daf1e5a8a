"""What a case is worth: the evidence that a round of it is expected to give against each fault, before any draw.

The expected log pay-off of a directed bet under its own fault is the KL divergence of the events' laws. It needs no draws, so
choosing cases by it keeps every bet predictable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from auditor.bets.books import JOINT, RoundBook
from auditor.rules import FAULTS

FloatArray = npt.NDArray[np.float64]

PARTS = ("acceptance-law", "residual-law", "bonus-token")


def nats_per_round(book: RoundBook, severity: float) -> FloatArray:
    """Expected nats a round [fault, part] against each fault at a severity, in the events of each of `PARTS`.

    The reach of a position is taken under the rule, which is the fault's own to first order in the severity.
    """
    case, right, d, s = book.case, book.right, book.precision.resolution, severity
    rates = (case.q * right.accept).sum(-1)
    reach = np.concatenate([[1.0], np.cumprod(rates)])
    before, full = reach[:-1], reach[-1]
    weight = before[:, None] * case.q
    own = [right.mean(i, case.q[i] * (1 - right.accept[i])) for i in range(case.gamma)]
    own = [law / max(law.sum(), 1e-300) for law in own]
    out = np.zeros((len(JOINT), len(PARTS)))
    for k, name in enumerate(JOINT):
        fault, wrong = FAULTS[name], book.wrong[name]
        touches = fault.touches
        if fault.shares_uniform:
            out[k, 0] = _shared(book, before, s)
        elif "accept" in touches:
            mixed = (1 - s) * right.accept + s * wrong.accept
            out[k, 0] = (weight * _kl_bernoulli(mixed, right.accept, d)).sum()
        if "residual" in touches:
            for i in range(case.gamma):
                refused = case.q[i] * (1 - right.accept[i])
                total = refused.sum()
                if total > 0:
                    law = (1 - s) * own[i] + s * wrong.mean(i, refused) / total
                    out[k, 1] += before[i] * total * _kl(law, own[i], d)
        if fault.drops_bonus:
            out[k, 2] = full * (s * np.log(max(s, 1e-300) / (4 * d)) + (1 - s) * np.log1p(-min(s, 1 - 1e-12)))
        elif "bonus" in touches:
            out[k, 2] = full * _kl((1 - s) * right.bonus + s * wrong.bonus, right.bonus, d)
        if fault.keeps:
            out[k, 0] = (
                30 * s * (1 - rates[:-1] @ before[:-1] / max(before[:-1].sum(), 1e-300)) if case.gamma > 1 else 0.0
            )
    return np.maximum(out, 0.0)


def _kl(law: FloatArray, base: FloatArray, floor: float) -> float:
    seen = law > 0
    return float((law[seen] * np.log(law[seen] / np.maximum(base[seen], floor))).sum())


def _kl_bernoulli(rate: FloatArray, base: FloatArray, floor: float) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.where(rate > 0, rate * np.log(rate / np.maximum(base, floor)), 0.0)
        no = np.where(rate < 1, (1 - rate) * np.log((1 - rate) / np.maximum(1 - base, floor)), 0.0)
    return np.asarray(yes + no)


def _shared(book: RoundBook, before: FloatArray, s: float) -> float:
    """A shared uniform, looked at in neighbouring positions alone and for small vocabularies."""
    case, accept, d = book.case, book.right.accept, book.precision.resolution
    if case.vocab > 64:
        return 0.0
    total = 0.0
    for i in range(1, case.gamma):
        first = case.q[i - 1] * accept[i - 1] * before[i - 1]
        shared = np.minimum(1.0, accept[i][None, :] / np.maximum(accept[i - 1][:, None], 1e-12))
        mixed = (1 - s) * accept[i] + s * shared
        total += float(first @ _kl_bernoulli(mixed, np.broadcast_to(accept[i], mixed.shape), d) @ case.q[i])
    return total
