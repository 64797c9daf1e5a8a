"""The null as a box: the laws that an implementation within its tolerance may have.

With `t(x) = tolerance * max(1, |log x|, V / 256)` and `d` the resolution of the random draws, the probabilities that the
implementation computes with lie in `p-, p+ = p (1 - t), p (1 + t)`, likewise for q, and every event's probability is off by at
most `d` more. Where a probability may underflow in the implementation's arithmetic its lower end is 0, and a draft whose q may
underflow may be accepted with any probability.

`|log x|` is how a log-softmax errs. `V / 256` is how its normaliser does: a float32 sum of V terms in 8 lanes adds V/8 terms to
partial sums of half the total on average, each rounding by up to u = 2^-24 of the sum, so it may be off by u V / 16, which is
V / 256 in units of 1e-6. (PyTorch 2.13 on a CPU, half of the mass on the last of 128,000 tokens, is off by 6e-5.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.rules import DraftResidual, Rule

FloatArray = npt.NDArray[np.float64]
Bounds = tuple[FloatArray, FloatArray]

# Below these a probability may be flushed to zero: the smallest normal float32 is 1.2e-38, and float16 ends at 6e-8. A declared
# tolerance of 1e-4 or more says that the arithmetic may be of the short kind.
_UNDERFLOW_FLOAT32 = 1.2e-38
_UNDERFLOW_FLOAT16 = 6.2e-8


@dataclass(frozen=True)
class Precision:
    """What an implementation's arithmetic may do: relative tolerance and absolute resolution of its draws."""

    tolerance: float = 1e-6
    resolution: float = 2.0**-21

    @property
    def underflow(self) -> float:
        """Probabilities below this may be computed as 0."""
        return _UNDERFLOW_FLOAT16 if self.tolerance >= 1e-4 else _UNDERFLOW_FLOAT32

    def relative(self, law: FloatArray) -> FloatArray:
        """t(x) [...], the relative error of each probability."""
        with np.errstate(divide="ignore"):
            size = np.maximum(np.where(law > 0, np.abs(np.log(law)), 1.0), max(1.0, law.shape[-1] / 256))
            return np.asarray(self.tolerance * size)

    def around(self, law: FloatArray) -> Bounds:
        """p- and p+ [...], without the resolution of the draws. What is exactly 0 stays 0."""
        t = self.relative(law)
        # The last digit of a subnormal is absolute: float16 has 6e-8 from 6e-5 down, where half of it counts for much.
        digit = _UNDERFLOW_FLOAT16 if self.underflow == _UNDERFLOW_FLOAT16 else 0.0
        low = np.where(law < self.underflow, 0.0, np.maximum(0.0, law * (1.0 - t) - digit))
        up = np.where((law > 0) & (law < self.underflow), 2 * self.underflow, np.minimum(1.0, law * (1.0 + t) + digit))
        up = np.where(law > 0, up, 0.0)
        return low, up


@dataclass(frozen=True)
class Boxes:
    """The boxes of a round's events on one case: p [gamma+1, V], q [gamma, V], and the laws around them."""

    rule: Rule
    precision: Precision
    p: FloatArray
    q: FloatArray
    p_low: FloatArray
    p_up: FloatArray
    q_low: FloatArray
    q_up: FloatArray
    accept_low: FloatArray
    accept_up: FloatArray

    def residual(self, position: int) -> Bounds:
        """Box of the residual law [V] at `position`, for a rule whose residual does not depend on the draft.

        With N-(y), N+(y) = max(0, p- - q+), max(0, p+ - q-): the largest share that y can have is
        N+(y) / (N+(y) + sum of N- over the others), the smallest N-(y) / (N-(y) + sum of N+ over the others).
        """
        low = np.maximum(0.0, self.p_low[position] - self.q_up[position])
        up = np.maximum(0.0, self.p_up[position] - self.q_low[position])
        return _shares(low, up, self.p[position] > 0, self.precision.resolution)

    def residual_after(self, position: int, x: int) -> Bounds:
        """Box of the residual law [V] after rejecting draft `x`, for the rules whose residual is p without the draft."""
        low, up = self.p_low[position].copy(), self.p_up[position].copy()
        low[x] = up[x] = 0.0
        possible = self.p[position] > 0
        possible[x] = False
        return _shares(low, up, possible, self.precision.resolution)

    def bonus(self) -> Bounds:
        """Box of the bonus law [V]."""
        d = self.precision.resolution
        return np.clip(self.p_low[-1] - d, 0, 1), np.clip(self.p_up[-1] + d, 0, 1)

    def rejected(self, position: int) -> tuple[float, float]:
        """Bounds of the mean rejection probability at `position`, drafts drawn from q."""
        q = self.q[position]
        return float(q @ (1 - self.accept_up[position])), float(q @ (1 - self.accept_low[position]))

    def emitted(self, position: int) -> Bounds:
        """Box of the emitted token's law [V] at a reached `position`: accepted drafts and residual draws together."""
        if position == len(self.q):
            return self.bonus()
        q, d = self.q[position], self.precision.resolution
        low_accept, up_accept = q * self.accept_low[position], q * self.accept_up[position]
        if not isinstance(self.rule.residual, DraftResidual):
            low_reject, up_reject = self.rejected(position)
            low, up = self.residual(position)
            return np.clip(low_accept + low_reject * low, 0, 1), np.clip(up_accept + up_reject * up, 0, 1)
        # sum_x q(x) (1 - a(x)) p(y) / (1 - p(x)) is p(y) sum of q over the others. The residual's relative error is at most t(y)
        # plus the largest t; an acceptance that errs by e = p t + d moves q(x) e of the mass, a share p(y) / (1 - p(x)) to y.
        p = self.p[position]
        t = self.precision.relative(p)
        largest = float(t[p > 0].max(initial=0.0))
        moved = q * (p * t + d)
        share = np.minimum(moved.sum(), p * (moved / np.maximum(1.0 - p, 1e-12)).sum())
        slack = p * (2 * t + largest) + share + moved + 2 * d
        return np.clip(p - slack, 0, 1), np.where(p > 0, np.clip(p + slack, 0, 1), d)


def boxes(rule: Rule, precision: Precision, p: FloatArray, q: FloatArray) -> Boxes:
    """The boxes of a correct `rule` on one case."""
    p_low, p_up = precision.around(p)
    q_low, q_up = precision.around(q)
    d = precision.resolution
    if isinstance(rule.residual, DraftResidual):
        low, up = p_low[:-1], p_up[:-1]
    else:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            low = np.where(q_up > 0, np.minimum(1.0, p_low[:-1] / q_up), 1.0)
            up = np.where(q_low > 0, np.minimum(1.0, p_up[:-1] / q_low), 1.0)
        low = np.where((q > 0) & (q < precision.underflow), 0.0, low)
    return Boxes(
        rule, precision, p, q, p_low, p_up, q_low, q_up, np.clip(low - d, 0, 1), np.clip(up + d, 0, 1)
    )  # fmt: skip


def _shares(low: FloatArray, up: FloatArray, possible: npt.NDArray[np.bool_], d: float) -> Bounds:
    """Bounds on the shares of weights that lie between `low` and `up` [V], widened by the resolution."""
    low_sum, up_sum = low.sum(), up.sum()
    if low_sum <= 0:
        # The residual may be empty in the implementation's arithmetic, and then any fallback is legitimate.
        return np.zeros_like(low), np.where(possible | (not possible.any()), 1.0, d)
    with np.errstate(divide="ignore", invalid="ignore"):
        highest = np.where(up > 0, up / (up + np.maximum(low_sum - low, 0.0)), 0.0)
        lowest = np.where(low > 0, low / (low + np.maximum(up_sum - up, 0.0)), 0.0)
    return np.clip(lowest - d, 0, 1), np.clip(highest + d, 0, 1)
