"""What speculation gains: tokens per target pass, speed-up, and the draft length that is best.

The model is that of Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), sections 3.1 and 3.3: every drafted position
is accepted with the same probability `a`, independently, and one pass of the target over `gamma + 1` positions costs as
much as over one. `expected_tokens_exact` drops the first assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@overload
def expected_tokens(acceptance: float, gamma: int) -> float: ...
@overload
def expected_tokens(acceptance: FloatArray, gamma: int) -> FloatArray: ...
@overload
def expected_tokens(acceptance: float | FloatArray, gamma: IntArray) -> FloatArray: ...
def expected_tokens(acceptance: float | FloatArray, gamma: int | IntArray) -> float | FloatArray:
    """Mean tokens of a round, `(1 - a^(gamma+1)) / (1 - a)`: Leviathan et al. 2023, equation 1.

    Exact at acceptance 0 (one token) and 1 (`gamma + 1` tokens), and accurate close to 1, where the formula as it is
    written loses every digit. Arrays broadcast. Raises `ValueError` for an acceptance outside [0, 1] and for a gamma
    below 0.
    """
    rate, length = np.broadcast_arrays(np.asarray(acceptance, dtype=np.float64), np.asarray(gamma))
    if not np.all((rate >= 0.0) & (rate <= 1.0)):
        raise ValueError("an acceptance lies between 0 and 1")
    if np.any(length < 0):
        raise ValueError("gamma is 0 or more")
    known = (rate == 1.0) | (length == 0)
    with np.errstate(divide="ignore"):  # log(0) is -inf, and expm1(-inf) is the -1 that is wanted
        partial = -np.expm1((length + 1) * np.log(rate)) / np.where(known, 1.0, 1.0 - rate)
    tokens: FloatArray = np.where(known, length + 1.0, partial)
    return float(tokens) if tokens.ndim == 0 else tokens


@overload
def expected_tokens_exact(per_position_rates: Sequence[float]) -> float: ...
@overload
def expected_tokens_exact(per_position_rates: FloatArray) -> Any: ...
def expected_tokens_exact(per_position_rates: Sequence[float] | FloatArray) -> Any:
    """Mean tokens of a round whose position `i` is accepted, once reached, with rate `r[i]`: `1 + sum_i r[0] ... r[i]`.

    `per_position_rates` is [..., gamma]; the last axis is summed away, so a single round gives a float. This is exact
    whenever the acceptance of a position does not depend on which tokens were accepted before it. Raises `ValueError`
    for a rate outside [0, 1].
    """
    rates = np.asarray(per_position_rates, dtype=np.float64)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise ValueError("an acceptance lies between 0 and 1")
    tokens = 1.0 + np.cumprod(rates, axis=-1).sum(axis=-1)
    return float(tokens) if np.ndim(tokens) == 0 else tokens


@overload
def speedup(acceptance: float, gamma: int, cost_ratio: float) -> float: ...
@overload
def speedup(acceptance: FloatArray, gamma: int, cost_ratio: float) -> FloatArray: ...
@overload
def speedup(acceptance: float | FloatArray, gamma: IntArray, cost_ratio: float) -> FloatArray: ...
def speedup(acceptance: float | FloatArray, gamma: int | IntArray, cost_ratio: float) -> float | FloatArray:
    """How many times faster than plain decoding: `expected_tokens / (gamma / cost_ratio + 1)`.

    `cost_ratio` is the time of a target pass over that of a draft pass: 1 / c in Leviathan et al. 2023, theorem 3.8.
    Raises `ValueError` where it is not positive, and as `expected_tokens` does.
    """
    if not cost_ratio > 0.0:
        raise ValueError("a cost ratio is positive")
    tokens: float | FloatArray = expected_tokens(acceptance, gamma)
    return tokens / (gamma / cost_ratio + 1.0)


def best_draft_length(acceptance: float, cost_ratio: float, max_gamma: int = 128) -> int:
    """The draft length in 0 ... `max_gamma` with the largest `speedup`; 0 where speculation does not pay.

    Raises `ValueError` as `speedup` does.
    """
    return int(np.argmax(speedup(acceptance, np.arange(max_gamma + 1), cost_ratio)))
