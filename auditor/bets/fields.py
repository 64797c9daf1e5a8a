"""Bets on one kind of event: a few independent laws over the same outcomes, their boxes, and the laws that the bets follow.

Directed bets follow a catalogued fault at a severity. Tilts follow the null's law bent along a feature of the outcomes
(`R ~ P exp(theta h)`), for faults that nobody has catalogued. The omnibus bet is a Dirichlet mixture over all laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.evidence import dot, log_bets, log_bets_bernoulli, log_dirichlet_mixture, log_mean

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SEVERITIES = (1.0, 0.1, 0.01)
STRENGTHS = (1.5, 0.5, 0.17, 0.055, 0.018, 0.006)
"""Tilts in standard deviations of the feature: one of strength theta gains about theta^2 / 2 nats a draw where it fits, and a
neighbour on this grid, a factor 3 away, still four fifths of it at the worst point between two."""
MIXED = (0.1, 0.01, 0.001)
"""How much mass a mixture with one outcome moves."""
CONCENTRATIONS = (10.0, 100.0, 1000.0, 10000.0)

MANY = 1024
"""Vocabularies above this are looked at in classes of tokens."""


@dataclass(frozen=True)
class Score:
    """Log pay-offs of one visit: one number per bet, and the omnibus e-value. All e-values with mean at most 1."""

    bets: FloatArray
    omnibus: float
    directed: int
    events: int

    @property
    def local(self) -> float:
        """log e-value of this visit on its own: a third each for directed bets, tilts and the omnibus."""
        parts = [self.omnibus]
        if self.directed:
            parts.append(log_mean(self.bets[: self.directed]))
        if len(self.bets) > self.directed:
            parts.append(log_mean(self.bets[self.directed :]))
        return log_mean(np.array(parts))


@dataclass(frozen=True)
class Categorical:
    """M independent laws over C outcomes: null and box [M, C], directed [K, M, C] and tilted laws [T, M, C]."""

    null: FloatArray
    low: FloatArray
    up: FloatArray
    directed: FloatArray
    tilted: FloatArray

    @cached_property
    def logs(self) -> FloatArray:
        """Log pay-offs [K + T, M, C]."""
        laws = np.concatenate([self.directed, self.tilted])
        steps = 60 if laws.size < 2**22 else 12
        return log_bets(laws, self.low, self.up, steps)

    def score(self, counts: npt.NDArray[np.generic]) -> Score:
        """Pay-offs on counts [M, C]."""
        n = int(counts.sum())
        if not n:
            return Score(np.zeros(len(self.directed) + len(self.tilted)), 0.0, len(self.directed), 0)
        mixture = log_dirichlet_mixture(counts.astype(np.float64), self.null, self.low, self.up, CONCENTRATIONS)
        return Score(dot(counts, self.logs), log_mean(mixture), len(self.directed), n)


@dataclass(frozen=True)
class Bernoulli:
    """M events that happen or not: null and box [M], directed [K, M] and tilted rates [T, M]."""

    null: FloatArray
    low: FloatArray
    up: FloatArray
    directed: FloatArray
    tilted: FloatArray

    @cached_property
    def logs(self) -> FloatArray:
        """Log pay-offs [K + T, M, 2]: when it does not happen, and when it does."""
        yes, no = log_bets_bernoulli(np.concatenate([self.directed, self.tilted]), self.low, self.up)
        return np.stack([no, yes], -1)

    def score(self, counts: npt.NDArray[np.generic]) -> Score:
        """Pay-offs on counts [M, 2] of not happened and happened."""
        n = int(counts.sum())
        if not n:
            return Score(np.zeros(len(self.directed) + len(self.tilted)), 0.0, len(self.directed), 0)
        low, up = np.stack([1 - self.up, self.low], -1), np.stack([1 - self.low, self.up], -1)
        center = np.stack([1 - self.null, self.null], -1)
        mixture = log_dirichlet_mixture(counts.astype(np.float64), center, low, up, CONCENTRATIONS)
        return Score(dot(counts, self.logs), log_mean(mixture), len(self.directed), n)


# ----------------------------------------------------------------------------------------------------- tilts


@dataclass(frozen=True)
class Features:
    """Features h [F, M, C] of outcomes, for tilts; `never` and `always` are outcomes [M] that a law may lose or gain."""

    values: FloatArray
    never: IntArray
    always: IntArray


def tilted_laws(null: FloatArray, features: Features) -> FloatArray:
    """Laws [T, M, C] around null [M, C]: every feature, both signs, every strength; one outcome lost; one gained."""
    h = features.values
    mean = (h * null).sum(-1, keepdims=True)
    sd = np.sqrt(np.maximum(((h - mean) ** 2 * null).sum(-1, keepdims=True), 0.0))
    h = np.where(sd > 1e-12, (h - mean) / np.where(sd > 1e-12, sd, 1.0), 0.0)
    theta = np.array([sign * s for s in STRENGTHS for sign in (1.0, -1.0)])
    weights = null * np.exp(np.clip(theta[:, None, None, None] * h[None], -30, 30))
    tilts = (weights / weights.sum(-1, keepdims=True)).reshape(len(theta) * len(h), *null.shape)
    lost = null.copy()
    rows = np.arange(len(null))
    lost[rows, features.never] = 0.0
    left = lost.sum(-1, keepdims=True)
    lost = np.where(left > 0, lost / np.where(left > 0, left, 1.0), null)
    point = np.zeros_like(null)
    point[rows, features.always] = 1.0
    gained = np.stack([(1 - s) * null + s * point for s in MIXED])
    return np.concatenate([tilts, lost[None], gained])


def tilts_per(features: int) -> int:
    """How many laws `tilted_laws` makes of so many features."""
    return 2 * len(STRENGTHS) * features + 1 + len(MIXED)


def tilted_rates(null: FloatArray, values: FloatArray, weight: FloatArray, refused: FloatArray) -> FloatArray:
    """Rates [T, M] around null [M]: log-odds bent along features values [F, M], and refusals of some events.

    Features are standardised under `weight` [M]. `refused` [R, M] marks events that a sampler may refuse outright at each of
    the `SEVERITIES`: the rate falls to (1 - s) of itself.
    """
    total = max(weight.sum(), 1e-300)
    mean = (values @ weight / total)[:, None]
    sd = np.sqrt(((values - mean) ** 2 @ weight / total)[:, None])
    varies = sd > 1e-9
    h = np.where(varies, (values - mean) / np.where(varies, sd, 1.0), np.where(values != 0, 1.0, 0.0))
    theta = np.array([sign * s for s in STRENGTHS for sign in (1.0, -1.0)])
    bent = np.exp(np.clip(theta[:, None, None] * h[None], -30, 30))
    rates = bent * null / np.maximum(bent * null + (1 - null), 1e-300)
    rates = rates.reshape(len(theta) * len(values), len(null))
    refusals = [null * (1 - s * row) for row in refused for s in SEVERITIES]
    return np.concatenate([rates, np.array(refusals).reshape(len(refusals), len(null))])


# --------------------------------------------------------------------------------------------- token classes


@dataclass(frozen=True)
class Classes:
    """A map from tokens to classes, fixed by p and q; the identity for vocabularies of at most `MANY`.

    Grouping outcomes is a coarser event: its box has the sums of the bounds, and bets on it are as valid. Tokens whose
    p and p/q are alike go together, so that a fault whose law depends on these loses little; the likeliest tokens, the last
    one and the first stay alone.
    """

    size: int
    of: IntArray | None
    order: IntArray | None = None
    starts: IntArray | None = None

    def group(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums over classes: [..., V] -> [..., size]."""
        if self.order is None or self.starts is None:
            return values
        return np.add.reduceat(values[..., self.order], self.starts, axis=-1)


def classes(p: FloatArray, q: FloatArray, alone: int = 128) -> Classes:
    """Classes of tokens for target p [V] and draft q [V]."""
    vocab = len(p)
    if vocab <= MANY:
        return Classes(vocab, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.where(p > 0, np.log(p), -99.0)
        log_ratio = np.where((p > 0) & (q > 0), log_p - np.log(np.where(q > 0, q, 1.0)), np.where(p > 0, 40.0, -40.0))
    cell = np.clip(np.round(4 * log_ratio), -40, 40) * 64 + np.clip(np.round(log_p), -60, 0)
    cell += np.where((p == 0) & (q == 0), 1e7, 0)
    single = np.union1d(np.argpartition(-p, alone)[:alone], np.argpartition(-q, alone)[:alone])
    single = np.union1d(single, [0, vocab - 1])
    cell[single] = 1e9 + single
    _, of = np.unique(cell, return_inverse=True)
    of = of.astype(np.int64)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(of.max() + 1))
    return Classes(int(of.max()) + 1, of, order, starts)
