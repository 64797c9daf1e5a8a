"""How well a fault, at the severity that fits best, explains fresh rounds: likelihood and goodness of fit.

Rounds are seen as groups: one for each reached position and draft (and, where a fault carries a uniform on, the smallest
acceptance probability so far), with the outcomes "accepted" and "ended here with token y". A full acceptance without a bonus
token ends with its own last draft; as an outcome it is that draft. Bonus tokens are one group more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook
from auditor.rules import Laws, Rule

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SEVERITY_GRID = np.geomspace(0.002, 1.0, 120)
_CELL = 5.0


@dataclass(frozen=True)
class Group:
    """Outcome counts of one kind of event; `position` is gamma for the bonus token, `draft` -1 there and for `sample`."""

    position: int
    draft: int
    lowest: float
    counts: IntArray


def group_rounds(book: RoundBook, drafts: IntArray, tokens: IntArray, by_lowest: bool) -> list[Group]:
    """Groups of fresh rounds: drafts [B, gamma], tokens [B, gamma+1]; counts [V + 1], "accepted" last."""
    vocab, gamma = book.case.vocab, book.case.gamma
    # Ranks of the rule's acceptance probabilities: 0 is 1, so that the smallest so far is the largest rank so far.
    values = np.unique(np.append(book.right.accept, 1.0))[::-1]
    rank = np.searchsorted(-values, -book.right.accept)
    rows = np.arange(len(drafts))
    lowest = np.zeros(len(drafts), np.int64)
    groups = []
    for i in range(gamma):
        x, y = drafts[rows, i], tokens[rows, i]
        accepted = (x == y) & (tokens[rows, i + 1] >= 0)
        key = (lowest[rows] if by_lowest else 0) * vocab + x
        size = (len(values) if by_lowest else 1) * vocab
        table = np.bincount(key * (vocab + 1) + np.where(accepted, vocab, y), minlength=size * (vocab + 1))
        table = table.reshape(size, vocab + 1)
        for k in np.flatnonzero(table.any(-1)):
            groups.append(Group(i, int(k % vocab), float(values[k // vocab]), table[k]))
        lowest[rows] = np.maximum(lowest[rows], rank[i, x])
        rows = rows[accepted]
    bonus = np.bincount(tokens[rows, gamma], minlength=vocab + 1)
    return [*groups, Group(gamma, -1, 1.0, bonus)]


def expected(book: RoundBook, fault: Rule | None, severities: FloatArray, group: Group) -> FloatArray:
    """Laws [S, V + 1] of a group's outcomes under a fault at severities [S]; under None they are the rule's own."""
    right, s = book.right, np.atleast_1d(severities)[:, None] if fault else np.zeros((1, 1))
    wrong = book.wrong[fault.name] if fault else right
    vocab, i = book.case.vocab, group.position
    law = np.zeros((len(s), vocab + 1))
    if i == book.case.gamma:
        law[:, :vocab] = right.bonus if wrong.drop else (1 - s) * right.bonus + s * wrong.bonus
        return law
    x = group.draft
    a_right, a_wrong = right.accept[i, x], wrong.accept[i, x]
    if fault and fault.shares_uniform:
        a_wrong = min(1.0, a_right / max(group.lowest, 1e-300))
    accept = (1 - s) * a_right + s * a_wrong
    law[:, :vocab] = (1 - accept) * ((1 - s) * _residual(right, i, x) + s * _residual(wrong, i, x))
    law[:, vocab] = accept[:, 0]
    if wrong.drop and i == book.case.gamma - 1:
        law[:, x] += (accept * s)[:, 0]
        law[:, vocab] -= (accept * s)[:, 0]
    return law


def _residual(of: Laws, i: int, x: int) -> FloatArray:
    return np.asarray(of.given(i, np.array([x]))[0])


def first_groups(tokens: IntArray, accepted: npt.NDArray[np.bool_] | None, vocab: int) -> list[Group]:
    """The one group of first tokens: counts [2 V], accepted as y and then rejected with y; [V] where that is not shown."""
    if accepted is None:
        return [Group(0, -1, 1.0, np.bincount(tokens, minlength=vocab))]
    return [Group(0, -1, 1.0, np.bincount(np.where(accepted, tokens, tokens + vocab), minlength=2 * vocab))]


def expected_first(book: RoundBook, fault: Rule | None, severities: FloatArray, group: Group) -> FloatArray:
    """Laws [S, ...] of a first token's outcomes (2 V of them, or V, as the group has them) under a fault at severities [S]."""
    right = book.right
    values = np.atleast_1d(severities) if fault else np.zeros(1)
    wrong = book.wrong[fault.name] if fault else right
    q = book.case.q[0]
    out = []
    for s in values:
        shared = fault is not None and fault.shares_uniform
        accept = right.accept[0] if shared else (1 - s) * right.accept[0] + s * wrong.accept[0]
        refused = q * (1 - accept)
        rejected = (1 - s) * right.mean(0, refused) + s * wrong.mean(0, refused)
        whole = len(group.counts) == book.case.vocab
        out.append(q * accept + rejected if whole else np.concatenate([q * accept, rejected]))
    return np.array(out)


@dataclass(frozen=True)
class Fit:
    """A fault at its most likely severity."""

    severity: float
    log_likelihood: float


def best_severity(laws_at: list[FloatArray], groups: list[Group], floor: float) -> Fit:
    """The most likely of the severities `SEVERITY_GRID`; laws_at[k] is [severities, outcomes] of group k."""
    total = np.zeros(len(SEVERITY_GRID))
    for law, group in zip(laws_at, groups, strict=True):
        total += np.log(np.maximum(law, floor)) @ group.counts
    best = int(total.argmax())
    return Fit(float(SEVERITY_GRID[best]), float(total[best]))


def merged(laws: list[FloatArray], groups: list[Group]) -> tuple[list[FloatArray], list[Group]]:
    """Groups of one position taken together over their drafts: fewer cells, more power against what all drafts share."""
    out_laws, out_groups = [], []
    for position in sorted({g.position for g in groups}):
        chosen = [k for k, g in enumerate(groups) if g.position == position]
        weights = np.array([groups[k].counts.sum() for k in chosen], float)
        if weights.sum():
            out_laws.append(weights @ np.stack([laws[k] for k in chosen]) / weights.sum())
            out_groups.append(Group(position, -1, 1.0, np.sum([groups[k].counts for k in chosen], axis=0)))
    return out_laws, out_groups


def pearson(laws: list[FloatArray], groups: list[Group]) -> float:
    """p-value of Pearson's chi-square of groups against their laws; cells under 5 expected are pooled within a group.

    An outcome that its law excludes gives 0.
    """
    from scipy.special import chdtrc

    statistic, degrees = 0.0, 0
    for law, group in zip(laws, groups, strict=True):
        n = int(group.counts.sum())
        if not n:
            continue
        means = n * law
        if group.counts[means <= 1e-6 * n].sum() > 1e-5 * n + 3:
            return 0.0
        thin = means < _CELL
        observed = np.append(group.counts[~thin], group.counts[thin].sum())
        means = np.append(means[~thin], means[thin].sum())
        if means[-1] < _CELL:
            # The pooled rest joins the largest cell, so that no observation is left out.
            if len(means) == 1:
                continue
            k = int(means[:-1].argmax())
            observed[k] += observed[-1]
            means[k] += means[-1]
            observed, means = observed[:-1], means[:-1]
        if len(means) < 2:
            continue
        statistic += float(((observed - means) ** 2 / means).sum())
        degrees += len(means) - 1
    return float(chdtrc(degrees, statistic)) if degrees else 1.0
