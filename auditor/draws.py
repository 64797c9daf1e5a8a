"""Drawing from laws: drafts for the audit's own rounds, and whole rounds of a rule or a fault."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from auditor.rules import REJECTION, DraftResidual, Laws, Rule, laws

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def inverse_cdf(law: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """`n` token ids [n] from one law [V]. A token of probability 0 is never drawn."""
    cdf = np.cumsum(law)
    u = rng.random(n) * cdf[-1]
    if n < 4096 or len(law) < 3:
        return np.asarray(np.minimum(np.searchsorted(cdf, u, side="right"), _last(law)))
    # A guide table (Chen and Asau 1974) turns the binary search into one look-up for nearly every draw.
    size = 1 << int(np.ceil(np.log2(4 * len(law))))
    guide = np.searchsorted(cdf, np.arange(size + 1) * (cdf[-1] / size), side="right")
    cell = (u * (size / cdf[-1])).astype(np.int64)
    token = guide[cell]
    open_cells = np.flatnonzero(guide[cell + 1] != token)
    token[open_cells] = np.searchsorted(cdf, u[open_cells], side="right")
    return np.asarray(np.minimum(token, _last(law)))


def _last(law: FloatArray) -> int:
    """The last token with mass: where rounding sends a uniform beyond the end of the CDF."""
    return int(len(law) - 1 - np.argmax(law[::-1] > 0))


def inverse_cdf_rows(law: FloatArray, rng: np.random.Generator) -> IntArray:
    """One token id a row [n] from laws [n, V]."""
    cdf = np.cumsum(law, -1)
    u = rng.random(len(law)) * cdf[:, -1]
    token = (cdf <= u[:, None]).sum(-1)
    last = law.shape[-1] - 1 - np.argmax(law[:, ::-1] > 0, axis=-1)
    return np.asarray(np.minimum(token, last))


def drafts_from(q: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """Drafts [n, gamma], position i from q[i] [V], independently."""
    return np.stack([inverse_cdf(row, n, rng) for row in q], -1) if len(q) else np.zeros((n, 0), np.int64)


def shares_rows(p: FloatArray, q: FloatArray) -> bool:
    """Whether every row of a batch has the same p and q by construction (axes of stride 0)."""
    return len(p) == 1 or (p.strides[0] == 0 and (q.strides[0] == 0 or q.shape[1] == 0))


def rounds(
    rule: Rule,
    p: FloatArray,
    q: FloatArray,
    drafts: IntArray,
    rng: np.random.Generator,
    *,
    severity: float = 1.0,
    base: Rule = REJECTION,
) -> IntArray:
    """Verify drafts [B, gamma] by a rule or a fault: emitted tokens [B, gamma+1], padded with -1.

    p [B, gamma+1, V], q [B, gamma, V]; broadcast views are not copied. Each event follows `rule` with probability
    `severity`, else `base`.
    """
    batch, gamma = drafts.shape
    shared = shares_rows(p, q)
    if shared:
        p, q = p[:1], q[:1]
    right, wrong = laws(base, p, q), laws(rule, p, q, base)
    row = np.zeros(batch, np.int64) if shared else np.arange(batch)

    tokens = np.full((batch, gamma + 1), -1, np.int64)
    alive = np.ones(batch, bool)
    lowest = np.ones(batch)
    for i in range(gamma):
        x = drafts[:, i]
        a_right, a_wrong = right.accept[row, i, x], wrong.accept[row, i, x]
        if rule.shares_uniform:
            # One uniform u for all positions: given u < lowest, the next position accepts with min(1, a / lowest).
            a_wrong = np.minimum(1.0, a_wrong / np.maximum(lowest, 1e-300))
            lowest = np.minimum(lowest, a_right)
        accept = (1 - severity) * a_right + severity * a_wrong
        accepted = alive & (rng.random(batch) < accept)
        rejected = np.flatnonzero(alive & ~accepted)
        tokens[accepted, i] = x[accepted]
        follow = rng.random(len(rejected)) < severity
        for chosen, which in ((rejected[~follow], right), (rejected[follow], wrong)):
            tokens[chosen, i] = _residual_tokens(which, i, row[chosen], x[chosen], shared, rng)
        if rule.keeps:
            kept = rejected[rng.random(len(rejected)) < severity]
            tokens[kept, i + 1 : gamma] = drafts[kept, i + 1 :]
        alive = accepted
    full = np.flatnonzero(alive)
    follow = rng.random(len(full)) < severity
    for chosen, which in ((full[~follow], right), (full[follow], wrong)):
        if len(chosen) and not which.drop:
            law = which.bonus
            tokens[chosen, gamma] = (
                inverse_cdf(law[0], len(chosen), rng) if shared else inverse_cdf_rows(law[row[chosen]], rng)
            )
    return tokens


def _residual_tokens(
    which: Laws, i: int, row: IntArray, x: IntArray, shared: bool, rng: np.random.Generator
) -> IntArray:
    """One residual token for each rejected row [n]."""
    if not len(row):
        return np.zeros(0, np.int64)
    if which.residual is None:
        assert isinstance(which.rule.residual, DraftResidual)
        if shared:
            return which.rule.residual.draw(which.p[0, i], which.q[0, i], x, rng.random(len(x)))
        return inverse_cdf_rows(which.rule.residual.given(which.p[row, i], which.q[row, i], x), rng)
    if shared:
        return inverse_cdf(which.residual[0, i], len(row), rng)
    return inverse_cdf_rows(which.residual[row, i], rng)
