"""Samplers with faults that no bet knows (`tests.miniatures`), each with the exact law of its rounds on one case.

The draws are the miniatures' own; the law gives the Wald limit alone. Those that only a batch, a seed or the joint law of several
events shows are not here: one case on its own does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook
from auditor.rules import REJECTION, Laws, argmax, laws
from auditor.wald import RoundLaw
from tests.miniatures import UNLISTED as MINIATURES

FloatArray = npt.NDArray[np.float64]
LawOf = Callable[[RoundBook], RoundLaw]


def _plain(of: Laws) -> RoundLaw:
    assert of.residual is not None
    return RoundLaw(of.accept, of.residual, of.bonus)


def _of_target(change: Callable[[FloatArray], FloatArray]) -> LawOf:
    """The right rule on another target."""
    return lambda book: _plain(laws(REJECTION, change(book.case.p), book.case.q))


def _normal(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _no_last(p: FloatArray) -> FloatArray:
    cut = p.copy()
    cut[..., -1] = 0.0
    return _normal(cut)


def _quarters(p: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return _normal(np.exp(np.round(np.log(p) * 4) / 4))


def _modes(book: RoundBook) -> RoundLaw:
    h, right, case = 0.005, book.right, book.case
    mode = argmax(case.p)
    accept = (1 - h) * right.accept
    assert right.residual is not None
    refused = (case.q * (1 - right.accept)).sum(-1, keepdims=True)
    residual = ((1 - h) * refused * right.residual + h * mode[:-1]) / ((1 - h) * refused + h)
    return RoundLaw(accept, residual, (1 - h) * right.bonus + h * mode[-1])


def _eight_bits(book: RoundBook) -> RoundLaw:
    right = book.right
    assert right.residual is not None

    def drawn(law: FloatArray) -> FloatArray:
        upper = np.cumsum(law, -1) / law.sum(-1, keepdims=True)
        steps = np.minimum(np.ceil(256 * upper), 256) / 256
        return np.diff(steps, axis=-1, prepend=0.0)

    return RoundLaw(np.ceil(256 * right.accept) / 256, drawn(right.residual), drawn(right.bonus))


def _truncated(book: RoundBook) -> RoundLaw:
    right = book.right
    assert right.residual is not None

    def drawn(law: FloatArray) -> FloatArray:
        upper = np.cumsum(law, -1, dtype=np.float32)
        before = np.concatenate([np.zeros_like(upper[..., :1]), upper[..., :-1]], -1)
        return _normal(np.where(before < 0.999 * upper[..., -1:], law, 0.0))

    return RoundLaw(right.accept, drawn(right.residual), drawn(right.bonus))


def _falls(book: RoundBook) -> RoundLaw:
    weights = np.maximum(book.case.p[:-1] - book.case.q, 0.0)
    weights[:, -1] += 1 - weights.sum(-1)
    return RoundLaw(book.right.accept, weights, book.right.bonus)


def _accepting(change: Callable[[RoundBook], FloatArray]) -> LawOf:
    """The right residual and bonus with another acceptance."""

    def law(book: RoundBook) -> RoundLaw:
        assert book.right.residual is not None
        return RoundLaw(change(book), book.right.residual, book.right.bonus)

    return law


def _never_last(book: RoundBook) -> FloatArray:
    accept = book.right.accept.copy()
    accept[-1] = 0.0
    return accept


def _odd_swapped(book: RoundBook) -> RoundLaw:
    p, q = book.case.p.copy(), book.case.q.copy()
    p[1:-1:2], q[1::2] = book.case.q[1::2], book.case.p[1:-1:2]
    return _plain(laws(REJECTION, p, q))


def _bonus_of_first(book: RoundBook) -> RoundLaw:
    assert book.right.residual is not None
    return RoundLaw(book.right.accept, book.right.residual, book.case.p[0])


def _sometimes_no_bonus(book: RoundBook) -> RoundLaw:
    assert book.right.residual is not None
    last = book.case.q[-1] * book.right.accept[-1]
    visible = float(last[book.sure].sum() / last.sum())
    return RoundLaw(book.right.accept, book.right.residual, book.right.bonus, 0.01, visible)


_LAWS: dict[str, LawOf] = {
    "NeverLastToken": _of_target(_no_last),
    "TurnsIntoMode": _modes,
    "QuantisedLogits": _of_target(_quarters),
    "EightBitUniforms": _eight_bits,
    "TruncatedTail": _truncated,
    "FallsThrough": _falls,
    "AcceptsWhereTargetIsLarger": _accepting(lambda book: (book.case.p[:-1] >= book.case.q).astype(float)),
    "CoarseAcceptance": _accepting(lambda book: np.floor(16 * book.right.accept) / 16),
    "NeverLastDraft": _accepting(_never_last),
    "DropsBonusSometimes": _sometimes_no_bonus,
    "SwapsOddPositions": _odd_swapped,
    "FirstTargetEverywhere": _of_target(lambda p: np.broadcast_to(p[:1], p.shape)),
    "BonusFromFirst": _bonus_of_first,
}

UNLISTED: dict[str, tuple[type[Any], LawOf]] = {
    m.__name__: (m, _LAWS[m.__name__]) for m in MINIATURES if m.__name__ in _LAWS
}
"""Name -> (sampler, law of its rounds)."""
