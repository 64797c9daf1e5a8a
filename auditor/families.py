"""Parametrised families of target and draft laws, each built from a few small parameters and a seed.

A family turns (seed, V, gamma, knobs) into p [gamma+1, V] and q [gamma, V], float64, rows summing to 1, with another p
and another q at every position. It costs microseconds at V = 100 and milliseconds at V = 128,000, because all elements
come from NumPy and none is drawn through Hypothesis; what shrinks is the handful of parameters, whose first value is
the simplest.

The drafts are as close to the target as drafts are in practice (TV between 0.1 and 0.7 for most), and most families
have parameters that leave this range; `near-equal`, `disjoint` and `one-hot` are mostly extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.adapter import FloatArray

Knob = float | int | str
Laws = tuple[FloatArray, FloatArray]


def normalise(weights: npt.ArrayLike) -> FloatArray:
    """Weights [..., V] divided by the sum of their row, as float64.

    Raises ValueError where a weight is negative, infinite or NaN, or where a row sums to 0.

    Examples
    --------
    >>> normalise([[1, 1], [3, 1]])
    array([[0.5 , 0.5 ],
           [0.75, 0.25]])
    """
    array = np.asarray(weights, np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError("probabilities must be finite and not negative")
    total = array.sum(-1, keepdims=True)
    if not (total > 0).all():
        raise ValueError("a row of probabilities sums to 0")
    return np.asarray(array / total)


@dataclass(frozen=True)
class Family:
    """`build(rng, vocab, gamma, **knobs)` -> (p, q); `knobs` are the values of each parameter, the simplest first."""

    name: str
    words: str
    build: Callable[..., Laws]
    knobs: Mapping[str, tuple[Knob, ...]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------ building blocks


def _dirichlet(rng: np.random.Generator, rows: int, vocab: int, concentration: float = 1.0) -> FloatArray:
    """Rows [rows, V] from the symmetric Dirichlet law."""
    # A small concentration can underflow to a row of zeros; the floor is far below every mass that matters.
    return normalise(np.maximum(rng.standard_gamma(concentration, (rows, vocab)), 1e-290))


def _noisy(rng: np.random.Generator, p: FloatArray, noise: float) -> FloatArray:
    """p with normal noise of this standard deviation on the logits."""
    return normalise(p * np.exp(noise * rng.standard_normal(p.shape)))


def _subset(rng: np.random.Generator, rows: int, vocab: int, size: int) -> npt.NDArray[np.bool_]:
    """Masks [rows, V] with `size` random tokens each."""
    return rng.permuted(np.tile(np.arange(vocab) < size, (rows, 1)), axis=1)


def _distinct_tokens(rng: np.random.Generator, rows: int, vocab: int) -> npt.NDArray[np.int64]:
    """`rows` token ids, distinct as far as the vocabulary allows."""
    return np.resize(rng.permutation(vocab), rows)


# ----------------------------------------------------------------------------------------------------- families


def _dirichlet_laws(rng: np.random.Generator, vocab: int, gamma: int, concentration: float, share: float) -> Laws:
    p = _dirichlet(rng, gamma + 1, vocab, concentration)
    other = _dirichlet(rng, gamma, vocab, concentration)
    return p, normalise((1 - share) * p[:-1] + share * other)


def _zipf_laws(rng: np.random.Generator, vocab: int, gamma: int, exponent: float, noise: float) -> Laws:
    base = np.arange(1, vocab + 1) ** -exponent
    p = normalise(rng.permuted(np.tile(base, (gamma + 1, 1)), axis=1))
    return p, _noisy(rng, p[:-1], noise)


def _one_hot_laws(rng: np.random.Generator, vocab: int, gamma: int, where: str) -> Laws:
    hot = np.eye(vocab)[_distinct_tokens(rng, gamma + 1, vocab)]
    # Half of the other law's mass is on the same token: otherwise a large vocabulary would accept next to nothing.
    soft = normalise(hot + _dirichlet(rng, gamma + 1, vocab))
    odd = np.arange(gamma + 1)[:, None] % 2 == 1
    p = {"q": soft, "alternating": np.where(odd, soft, hot)}.get(where, hot)
    q = {
        "p": soft,
        "distinct": np.roll(hot, 1, axis=1),
        "alternating": np.where(odd, hot, soft),
    }.get(where, hot)
    return p, q[:-1]


def _near_equal_laws(rng: np.random.Generator, vocab: int, gamma: int, distance: float) -> Laws:
    p = _dirichlet(rng, gamma + 1, vocab)
    # Half of the tokens up and half down, so that the distance does not vanish when the row is normalised.
    sign = np.where(_subset(rng, gamma, vocab, vocab // 2), 1.0, -1.0)
    return p, normalise(p[:-1] * (1 + distance * sign))


def _disjoint_laws(rng: np.random.Generator, vocab: int, gamma: int, positions: str) -> Laws:
    p, q = _dirichlet(rng, gamma + 1, vocab), _dirichlet(rng, gamma, vocab)
    side = _subset(rng, gamma, vocab, max(1, vocab // 2))
    hit = np.ones(gamma, bool) if positions == "all" else np.arange(gamma) == rng.integers(gamma)
    p[:-1] = np.where(side | ~hit[:, None], p[:-1], 0.0)
    q = np.where(hit[:, None], np.where(side, 0.0, q), 0.5 * (p[:-1] + q))
    return normalise(p), normalise(q)


def _sparse_laws(rng: np.random.Generator, vocab: int, gamma: int, kept: float, share: float) -> Laws:
    size = max(1, round(kept * vocab))
    p = _dirichlet(rng, gamma + 1, vocab) * _subset(rng, gamma + 1, vocab, size)
    other = normalise(_dirichlet(rng, gamma, vocab) * _subset(rng, gamma, vocab, size))
    p = normalise(p)
    # The draft misses part of the target's support as well as reaching beyond it.
    missed = _subset(rng, gamma, vocab, max(1, vocab // 4))
    return p, normalise((1 - share) * np.where(missed, 0.0, p[:-1]) + share * other)


def _tempered_laws(rng: np.random.Generator, vocab: int, gamma: int, temperature: float) -> Laws:
    p = _dirichlet(rng, gamma + 1, vocab, 0.5)
    return p, normalise(p[:-1] ** (1 / temperature))


def _permuted_laws(rng: np.random.Generator, vocab: int, gamma: int, moved: float) -> Laws:
    p = _dirichlet(rng, gamma + 1, vocab)
    q = p[:-1].copy()
    for row in q:
        tokens = rng.permutation(vocab)[: max(2, round(moved * vocab))]
        row[tokens] = row[np.roll(tokens, 1)]
    return p, q


def _ties_laws(rng: np.random.Generator, vocab: int, gamma: int, levels: int) -> Laws:
    weights = rng.integers(1, levels + 1, (gamma + 1, vocab)).astype(np.float64)
    # The draft has the same weights in another order: the sums agree, so that many tokens have p = q to the last bit.
    return normalise(weights), normalise(rng.permuted(weights[:-1], axis=1))


def _last_token_laws(rng: np.random.Generator, vocab: int, gamma: int, mass: float, whose: str) -> Laws:
    p = _dirichlet(rng, gamma + 1, vocab)
    q = normalise(0.5 * p[:-1] + 0.5 * _dirichlet(rng, gamma, vocab))
    for law in {"target": (p,), "draft": (q,), "both": (p, q)}[whose]:
        law[:, -1] = 0.0
        law *= (1 - mass) / law.sum(1, keepdims=True)
        law[:, -1] = mass
    return normalise(p), normalise(q)


def _tiny_laws(rng: np.random.Generator, vocab: int, gamma: int, decades: int) -> Laws:
    rows = 2 * gamma + 1
    # About half of the tokens share nearly all of the mass; the others have 1 down to 10 ** -decades of it.
    head = _subset(rng, rows, vocab, max(1, vocab // 2))
    weights = np.where(head, _dirichlet(rng, rows, vocab), 10.0 ** (-decades * rng.random((rows, vocab))))
    # At least one token at the very bottom, in the target and in the draft.
    weights[np.arange(rows), np.where(head, np.inf, weights).argmin(1)] = 10.0**-decades
    law = normalise(weights)
    p, other = law[: gamma + 1], law[gamma + 1 :]
    # Geometric mixture: closer to the target than an independent law, and as small where both are small.
    return p, normalise(np.sqrt(p[:-1] * other))


@lru_cache(maxsize=8)
def _scattered_zipf(vocab: int, exponent: float) -> FloatArray:
    """Zipf weights [V] spread over the vocabulary by an affine permutation (a shuffle of 128,000 costs more)."""
    step = next(prime for prime in (7919, 104729, 1299709) if vocab % prime)
    weights: FloatArray = ((np.arange(vocab) * step) % vocab + 1.0).astype(np.float64) ** -exponent
    weights.setflags(write=False)
    return weights


def _large_laws(rng: np.random.Generator, vocab: int, gamma: int, exponent: float, noise: float) -> Laws:
    base = _scattered_zipf(vocab, exponent)
    # Steps that never go once around: every position has another shift.
    steps = rng.integers(1, max(2, vocab // (gamma + 1)), size=gamma + 1)
    shifts = rng.integers(vocab) + np.cumsum(steps)
    p = normalise(np.stack([np.roll(base, shift) for shift in shifts]))
    block = min(vocab, 4096)
    factors = np.exp(noise * rng.standard_normal((gamma, block)))
    repeats = -(-vocab // block)
    return p, normalise(p[:-1] * np.tile(factors, (1, repeats))[:, :vocab])


SHARES = (0.5, 1.0, 0.25, 0.1)
NOISES = (0.5, 1.0, 2.0, 0.1)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "dirichlet",
            "p from a Dirichlet law, q a mixture of p and another draw from it",
            _dirichlet_laws,
            {"concentration": (1.0, 0.3, 0.1, 3.0, 0.03), "share": SHARES},
        ),
        Family(
            "zipf",
            "p falls as a power of the rank, in a random order; q is p with noise on the logits",
            _zipf_laws,
            {"exponent": (1.0, 1.5, 0.7, 2.0), "noise": NOISES},
        ),
        Family(
            "one-hot",
            "p, q or both have all mass on one token, another at each position",
            _one_hot_laws,
            {"where": ("p", "q", "equal", "distinct", "alternating")},
        ),
        Family(
            "near-equal",
            "q is p times 1 + distance or 1 - distance",
            _near_equal_laws,
            {"distance": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)},
        ),
        Family(
            "disjoint",
            "no token has mass under both p and q, at all positions or at one",
            _disjoint_laws,
            {"positions": ("all", "one")},
        ),
        Family(
            "sparse",
            "p and q have many zeros, in different places",
            _sparse_laws,
            {"kept": (0.5, 0.25, 0.75), "share": (0.25, 0.5, 1.0)},
        ),
        Family(
            "tempered",
            "q is p at another temperature",
            _tempered_laws,
            {"temperature": (2.0, 0.5, 1.5, 0.7, 4.0)},
        ),
        Family(
            "permuted",
            "q is p with the masses of some tokens exchanged",
            _permuted_laws,
            {"moved": (0.25, 0.5, 1.0)},
        ),
        Family(
            "ties",
            "few levels of mass: ties between tokens, and between p and q",
            _ties_laws,
            {"levels": (2, 3, 5)},
        ),
        Family(
            "last-token",
            "the last token id holds a given mass",
            _last_token_laws,
            {"mass": (0.5, 0.9, 0.1, 0.01), "whose": ("target", "draft", "both")},
        ),
        Family(
            "tiny",
            "half of the tokens have masses down to 1e-30",
            _tiny_laws,
            {"decades": (30, 20, 8)},
        ),
        Family(
            "large-vocabulary",
            "Zipf over a whole vocabulary; q is p with noise on the logits",
            _large_laws,
            {"exponent": (1.0, 1.5, 0.7), "noise": NOISES},
        ),
    )
}


def family_laws(name: str, vocab: int, gamma: int, seed: int, knobs: Mapping[str, Any]) -> Laws:
    """p [gamma+1, V], q [gamma, V] of a family; knobs left out take their first value.

    Raises KeyError for an unknown family, TypeError for an unknown knob.
    """
    family = FAMILIES[name]
    chosen = {knob: values[0] for knob, values in family.knobs.items()} | dict(knobs)
    return family.build(np.random.default_rng(seed), vocab, gamma, **chosen)
