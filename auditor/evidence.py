r"""How strongly observations speak against a claim: boxes of allowed laws, bets against them, wealth; the familiar tests.

**Bets against a box.** The null is that a categorical event follows *some* law in a box `lo <= P' <= up`. A bet on the law R
pays `R(y) / P*(y)` with `P* = clip(c R, lo, up)` and `c` such that `P*` sums to 1. Its mean is at most 1 under every law of
the box: where `P* = up` the pay-off R/P* is at least 1/c, where `P* = lo` it is at most 1/c, in between it is 1/c, so

    sum_y (P'(y) - P*(y)) (R(y)/P*(y) - 1/c) <= 0    for every P' in the box,

and `sum P' = sum P*` leaves `sum P' R/P* <= sum P* R/P* = 1`. When R lies in the box, c = 1 and the bet is 1: a tolerance
costs nothing until it is exceeded. When `P*` sums to S != 1 (the root is only bracketed), the same line gives
`sum P' R/P* <= 1 + (1 - S)/c`, and the pay-off is divided by that; where every token with R > 0 sits at `up`,
`sum P' R/up <= sum R = 1` and nothing needs to be divided.

**Wealth.** A claim's wealth is a weighted mean of products of bets that were fixed before the events they judge; its mean
stays at most 1 under the null, and by Ville's inequality it ever reaches 1/(alpha w) with probability at most alpha w.

Sources: Ville 1939; Ramdas, Grunwald, Vovk and Shafer 2023 (arXiv 2210.01948); Lindon and Malek 2022 (2011.03567) for the
Dirichlet mixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SUM_ERROR = 1e-11
_TINY = 1e-300
_PROMISING = 2.0


def clipped(law: FloatArray, lo: FloatArray, up: FloatArray, steps: int = 60) -> tuple[FloatArray, FloatArray]:
    """The nearest law of a box in the sense of the bet: P* = clip(c R, lo, up) and the divisor that keeps the bet valid.

    Parameters
    ----------
    law : [..., V], the laws R (each sums to 1; they need not lie in the box).
    lo, up : [..., V], broadcast against `law`; a law lies between them.
    steps : evaluations of the sum at most; what is left of the error goes into the divisor.

    Returns
    -------
    P* [..., V] and the divisor [...], at least 1: the bet on y pays law[y] / (P*[y] * divisor).

    Examples
    --------
    >>> import numpy as np
    >>> star, divisor = clipped(np.array([0.7, 0.3]), np.array([0.49, 0.49]), np.array([0.51, 0.51]))
    >>> star.round(6), float(divisor.round(6))
    (array([0.51, 0.49]), 1.0)
    """
    shape, vocab = law.shape[:-1], law.shape[-1]
    lo = np.broadcast_to(lo, law.shape).reshape(-1, vocab)
    up = np.broadcast_to(up, law.shape).reshape(-1, vocab)
    law = law.reshape(-1, vocab)
    star = np.clip(law, lo, up)
    error = star.sum(-1) - 1.0
    divisor = np.ones(len(law))
    # The sum grows with c; at the top every token with R > 0 sits at `up`. Where even that is short of 1, the rest may go
    # to tokens that R excludes, and no pay-off depends on where.
    off = np.flatnonzero(np.abs(error) > _SUM_ERROR)
    if len(off):
        top = np.where(law[off] > 0, up[off], lo[off])
        flat = top.sum(-1) <= 1.0
        star[off[flat]] = top[flat]
        roots = off[~flat]
        if len(roots):
            c, rest = _solve(law[roots], lo[roots], up[roots], error[roots], steps)
            star[roots] = np.clip(c[:, None] * law[roots], lo[roots], up[roots])
            divisor[roots] = np.maximum(1.0, 1.0 - rest / c)
    return star.reshape(*shape, vocab), divisor.reshape(shape)


def _solve(
    law: FloatArray, lo: FloatArray, up: FloatArray, error: FloatArray, steps: int
) -> tuple[FloatArray, FloatArray]:
    """The root c [N] of sum clip(c R, lo, up) = 1 and the error of the sum there, by regula falsi (Illinois), every third step a bisection.

    `error` is the error at c = 1. While a root has no upper bracket c is doubled.
    """
    c = np.ones(len(law))
    low, low_error = np.zeros_like(c), lo.sum(-1) - 1.0
    high, high_error = np.full_like(c, np.inf), np.full_like(c, np.inf)
    side = np.zeros(len(c), np.int8)
    active = np.arange(len(c))
    for turn in range(steps):
        i, f = active, error[active]
        above = f > 0
        now = np.where(above, 1, -1).astype(np.int8)
        repeated = now == side[i]
        side[i] = now
        high[i] = np.where(above, c[i], high[i])
        high_error[i] = np.where(above, f, np.where(repeated, high_error[i] / 2, high_error[i]))
        low[i] = np.where(above, low[i], c[i])
        low_error[i] = np.where(above, np.where(repeated, low_error[i] / 2, low_error[i]), f)
        a, b = low[i], high[i]
        with np.errstate(invalid="ignore"):
            step = (a * high_error[i] - b * low_error[i]) / (high_error[i] - low_error[i])
            middle = np.where(np.isinf(b), 2 * a, (a + b) / 2)
            step = np.where((step > a) & (step < b) & (turn % 3 < 2), step, middle)
        c[i] = step
        error[i] = np.clip(step[:, None] * law[i], lo[i], up[i]).sum(-1) - 1.0
        active = i[(np.abs(error[i]) > _SUM_ERROR) & ~((b - a <= 1e-15 * b) & np.isfinite(b))]
        if not len(active):
            break
    return c, error


def log_bets(law: FloatArray, lo: FloatArray, up: FloatArray, steps: int = 60) -> FloatArray:
    """log of the pay-off of a bet on `law` for every outcome [..., V]; -inf where the law says "impossible"."""
    star, divisor = clipped(law, lo, up, steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        pay = np.log(law) - np.log(np.maximum(star, _TINY)) - np.log(divisor)[..., None]
    # A law whose sum passes 1 by rounding must not pay for it.
    pay = pay - np.log(np.maximum(law.sum(-1, keepdims=True), 1.0))
    # A law inside the box is no bet: it pays 1 on everything, on outcomes that it calls impossible too.
    return np.where((star == law).all(-1, keepdims=True), 0.0, pay)


def log_bets_bernoulli(rate: FloatArray, lo: FloatArray, up: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same for an event of probability within [lo, up]: log pay-offs (when it happens, when it does not)."""
    rate = np.clip(rate, 0.0, 1.0)  # sums of products may pass 1 by rounding
    star = np.clip(rate, lo, up)
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.log(rate) - np.log(np.maximum(star, _TINY))
        no = np.log1p(-rate) - np.log(np.maximum(1.0 - star, _TINY))
    inside = star == rate
    return np.where(inside, 0.0, yes), np.where(inside, 0.0, no)


def dot(counts: npt.NDArray[np.generic], logs: FloatArray) -> FloatArray:
    """sum over the trailing axes of counts * logs with 0 * -inf = 0: logs [K, *counts.shape] -> [K]."""
    flat = np.asarray(counts, np.float64).reshape(-1)
    seen = np.flatnonzero(flat)
    table = logs.reshape(len(logs), -1)
    if len(seen) < flat.size:
        table = table[:, seen]
    return np.asarray(table @ flat[seen]) if len(seen) else np.zeros(len(logs))


def log_dirichlet_mixture(
    counts: FloatArray, center: FloatArray, lo: FloatArray, up: FloatArray, concentrations: tuple[float, ...]
) -> FloatArray:
    """log e-values [len(concentrations)] of counts [M, V] against boxes, M independent laws.

    For each concentration k the likelihood under a Dirichlet(k * center) mixture over laws, divided by the largest
    likelihood of a law in the box, which is at `clip(c counts, lo, up)` (the KKT conditions of maximising
    sum n log P' on the box and the simplex). The mean is at most 1 when the draws of a law share one law of the box.
    Lindon and Malek 2022, Theorem 1, with the point null replaced by the box.
    """
    from scipy.special import gammaln

    n = counts.sum(-1)
    used = n > 0
    if not used.any():
        return np.zeros(len(concentrations))
    counts, center, n = counts[used], center[used], n[used]
    lo, up = np.broadcast_to(lo, (len(used), lo.shape[-1]))[used], np.broadcast_to(up, (len(used), up.shape[-1]))[used]
    seen = counts > 0
    with np.errstate(divide="ignore"):
        # The null's own law lies in the box and the upper ends lie above it: two bounds on the best likelihood. Where even
        # against the null's law the mixture has gained nothing, the cheap upper bound will do.
        least = float((counts[seen] * np.log(np.maximum(center[seen], _TINY))).sum())
        best = float((counts[seen] * np.log(np.maximum(up[seen], _TINY))).sum())
    # Tokens that the center excludes but the data show would cost infinity: mix in a little of the uniform.
    center = 0.999 * center + 0.001 / center.shape[-1]
    likelihood = np.empty(len(concentrations))
    for j, k in enumerate(concentrations):
        a = k * center[seen]
        likelihood[j] = (gammaln(counts[seen] + a) - gammaln(a)).sum() + (gammaln(k) - gammaln(n + k)).sum()
    if likelihood.max() - least > _PROMISING:
        star, _ = clipped(counts / n[:, None], lo, up)
        best = float((counts[seen] * np.log(np.maximum(star[seen], _TINY))).sum())
    return likelihood - best


def log_mean(logs: FloatArray, log_weights: FloatArray | None = None) -> float:
    """log of the (weighted) mean of exp(logs)."""
    x = logs - np.log(len(logs)) if log_weights is None else logs + log_weights
    top = x.max(initial=-np.inf)
    return float(top + np.log(np.exp(x - top).sum())) if np.isfinite(top) else float(top)


LOCAL_FRACTIONS = (0.5, 0.1, 0.03, 0.01, 0.001)


def local_bets(log_e: float) -> FloatArray:
    """log(1 - l + l E) for each fraction l: how an e-value of one visit enters a product over visits.

    A bare product of per-visit mixtures dies over clean cases; staking the fraction l of the wealth loses at most that.
    """
    fractions = np.array(LOCAL_FRACTIONS)
    return np.asarray(np.logaddexp(np.log1p(-fractions), np.log(fractions) + log_e))


# ------------------------------------------------------------------------------------------- the familiar tests


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    value: float
    low: float
    high: float


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson 1934: the exact two-sided interval for a proportion.

    Examples
    --------
    >>> i = binomial_interval(0, 10)
    >>> i.low, round(i.high, 4)
    (0.0, 0.3085)
    """
    from scipy.special import betaincinv

    if trials == 0:
        return Interval(0.0, 0.0, 1.0)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return Interval(successes / trials, low, high)


def mean_interval(counts: IntArray, values: FloatArray) -> Interval:
    """Mean of `values` weighted by `counts`, with its 95 % normal interval (the values are bounded, the counts large)."""
    n = int(counts.sum())
    if n == 0:
        return Interval(0.0, 0.0, 0.0)
    mean = float(counts @ values) / n
    spread = float(counts @ (values - mean) ** 2)
    error = 1.959964 * float(np.sqrt(spread / max(n - 1, 1) / n))
    return Interval(mean, mean - error, mean + error)


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's statistic with its p-value."""

    statistic: float
    degrees_of_freedom: int
    p_value: float


def chi_square(counts: IntArray, law: FloatArray, rng: np.random.Generator, simulations: int = 20_000) -> ChiSquare:
    """Pearson's chi-square of counts [V] against `law` [V], a fresh sample of a fixed size.

    The p-value is the asymptotic one where every expected count is at least 5, else by Monte Carlo:
    (1 + simulated statistics at least as large) / (1 + simulations). With more than `_SIMULATED` outcomes the thin ones are
    pooled instead. A count where the law has no mass gives p = 0.
    """
    from scipy.special import chdtrc

    n = int(counts.sum())
    support = law > 0
    df = int(support.sum()) - 1
    if counts[~support].any():
        return ChiSquare(float("inf"), df, 0.0)
    if n == 0 or df == 0:
        return ChiSquare(0.0, df, 1.0)
    observed, expected = counts[support], n * law[support] / law[support].sum()
    thin = expected < 5
    if thin.any() and df >= _SIMULATED:
        observed = np.append(observed[~thin], observed[thin].sum())
        expected = np.append(expected[~thin], expected[thin].sum())
        df, thin = len(expected) - 1, expected < 5
        if df == 0:
            return ChiSquare(0.0, 0, 1.0)

    def statistic(seen: npt.NDArray[np.generic]) -> FloatArray:
        return np.asarray(((seen - expected) ** 2 / expected).sum(-1))

    value = float(statistic(observed))
    if not thin.any():
        return ChiSquare(value, df, float(chdtrc(df, value)))
    larger = 0
    for start in range(0, simulations, 2000):
        block = rng.multinomial(n, expected / n, size=min(2000, simulations - start))
        larger += int((statistic(block) >= value * (1 - 1e-12)).sum())
    return ChiSquare(value, df, (1 + larger) / (1 + simulations))


_SIMULATED = 100


def total_variation(counts: IntArray, law: FloatArray, level: float = 0.95) -> Interval:
    """Total variation between the law of a sample with counts [V] and `law` [V].

    The plug-in value T moves by at most 1/n with one draw, so |T - E T| <= e with probability 1 - 2 exp(-2 n e^2)
    (McDiarmid 1989); TV <= E T by convexity, and E T <= TV + 1/2 sum_y sd(count_y / n) (Jensen), which Cauchy and Schwarz
    bound by sqrt((V - 1) / n) / 2.
    """
    n = int(counts.sum())
    if n == 0:
        return Interval(0.0, 0.0, 1.0)
    value = 0.5 * float(np.abs(counts / n - law).sum())
    error = float(np.sqrt(np.log(2 / (1 - level)) / (2 * n)))
    excess = 0.5 * float(np.sqrt((len(law) - 1) / n))
    return Interval(value, max(0.0, value - error - excess), min(1.0, value + error))
