"""The frame of a tiny sampler: a round in which every step is one small method, vectorised over the rows of a batch.

Written for the tests, and independent of the auditor's own rules and draws on purpose: what audits and what is audited must
not share a mistake. Only the interface's values come from the package.

Laws with an axis of stride 0 are never copied per row: `rows_of` gives one row where all rows are the same, and everything
after it works on one row or on n.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from auditor.adapter import BoolArray, FloatArray, IntArray, Round


def shared(law: FloatArray) -> bool:
    """Whether all rows of a batch are the same memory."""
    return len(law) == 1 or law.strides[0] == 0


def at(law: FloatArray, tokens: IntArray) -> FloatArray:
    """law [B, at least gamma, V] at tokens [B, gamma] -> [B, gamma]."""
    position = np.arange(tokens.shape[1])
    if shared(law):
        return law[0][position, tokens]
    return law[np.arange(len(tokens))[:, None], position, tokens]


def rows_of(law: FloatArray, position: int, rows: IntArray) -> FloatArray:
    """The law of a position for some rows: [n, V], or [1, V] where they are all the same."""
    return law[:1, position] if shared(law) else law[rows, position]


def mapped(function: Callable[[FloatArray], FloatArray], law: FloatArray) -> FloatArray:
    """function(law) [B, positions, V], computed once where all rows are the same."""
    if shared(law):
        one = function(np.array(law[:1]))
        return np.broadcast_to(one, (len(law), *one.shape[1:]))
    return function(law)


def taken(law: FloatArray, rows: npt.NDArray[np.intp]) -> FloatArray:
    """Some rows of a batch, still shared where they are."""
    return np.broadcast_to(law[:1], (len(rows), *law.shape[1:])) if shared(law) else law[rows]


def normalised(weights: FloatArray) -> FloatArray:
    """Rows [..., V] over their sums; a row without mass becomes the even law."""
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / weights.shape[-1])


def inverse_cdf(weights: FloatArray, u: FloatArray) -> IntArray:
    """One token per u [n] from weights [n, V] or [1, V], which need not sum to 1. Never a token without mass."""
    cdf = np.cumsum(weights, axis=1)
    total = cdf[:, -1]
    height = np.minimum(u * total, np.nextafter(total, 0.0))
    if len(cdf) == 1:
        return np.searchsorted(cdf[0], height, side="right").astype(np.int64)
    return (cdf <= height[:, None]).sum(1)


class Core:
    """The right sampler, step by step; the others change a step. It has none of the interface's methods itself.

    expected_claims: claims that are false of it; an audit is to find at least one of them violated.
    origin: the public report whose kind of bug it has; fault: the catalogued fault that it is an instance of, if any.
    """

    rule = "rejection"
    expected_claims: tuple[str, ...] = ()
    origin = ""
    fault = ""

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        """The uniforms of the acceptance tests [B, gamma]."""
        return rng.random((batch, gamma))

    def spare(self, rng: np.random.Generator, batch: int) -> FloatArray:
        """The uniforms of the last token of each round [B]."""
        return rng.random(batch)

    def last_uniform(self, spare: FloatArray, coins: FloatArray, kept: IntArray) -> FloatArray:
        return spare

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return at(p, drafts) / at(q, drafts)

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        return coins < self.ratio(p, q, drafts)

    def kept(self, accepted: BoolArray) -> IntArray:
        """How many drafts are kept [B]: those before the first rejection."""
        return np.where(accepted.all(1), accepted.shape[1], accepted.argmin(1))

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        """Weights of the token after a rejection at position i [n or 1, V]."""
        target = rows_of(p, i, rows)
        weights = np.maximum(target - rows_of(q, i, rows), 0.0)
        empty = weights.sum(1, keepdims=True) <= 0
        # Rejected by rounding where p = q: any fallback is right, and p is the natural one.
        return np.where(empty, target, weights) if empty.any() else weights

    def bonus(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        """Weights of the token after i accepted drafts out of i [n or 1, V]."""
        return rows_of(p, i, rows)

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        return inverse_cdf(weights, u)

    def rejected(
        self,
        p: FloatArray,
        q: FloatArray,
        drafts: IntArray,
        i: int,
        rows: IntArray,
        u: FloatArray,
        rng: np.random.Generator,
    ) -> IntArray:
        """The token after a rejection of drafts[rows, i] [n]."""
        return self.draw(self.residual(p, q, i, rows), u, rng)

    def rounds(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> tuple[IntArray, IntArray]:
        """Emitted tokens [B, gamma+1], padded with -1, and how many drafts were kept [B]. Drafts may end with -1."""
        rng = self.generator(seed)
        batch, gamma = drafts.shape
        there = drafts >= 0
        lengths = there.sum(1)
        coins, spare = self.coins(rng, batch, gamma), self.spare(rng, batch)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            accepted = self.accepts(p, q, np.maximum(drafts, 0), coins) & there
        kept = self.kept(accepted)
        u = self.last_uniform(spare, coins, kept)
        tokens = np.full((batch, gamma + 1), -1, np.int64)
        tokens[:, :gamma] = np.where(np.arange(gamma) < kept[:, None], drafts, -1)
        for i in range(gamma + 1):
            here = kept == i
            full = np.flatnonzero(here & (lengths == i))
            if len(full):
                tokens[full, i] = self.draw(self.bonus(p, q, i, full), u[full], rng)
            stopped = np.flatnonzero(here & (lengths > i))
            if len(stopped):
                tokens[stopped, i] = self.rejected(p, q, drafts, i, stopped, u[stopped], rng)
        return tokens, kept


class Verifies(Core):
    """A sampler that is given its drafts."""

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        return self.rounds(p, q, drafts, seed)[0]


class Drafts(Core):
    """A sampler with a drafter of its own."""

    def propose(self, q: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
        """Drafts [n, gamma] from q [gamma, V]."""
        return np.stack([inverse_cdf(law[None], rng.random(n)) for law in q], axis=1)

    def whole(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, IntArray, IntArray]:
        """Drafts [n, gamma], tokens [n, gamma+1] and how many drafts were kept [n], for p [gamma+1, V] and q [gamma, V]."""
        drafts = self.propose(q, n, np.random.default_rng((seed, 1)))
        p, q = np.broadcast_to(p, (n, *p.shape)), np.broadcast_to(q, (n, *q.shape))
        return drafts, *self.rounds(p, q, drafts, seed)

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray]:
        _, tokens, kept = self.whole(np.stack([p, p]), q[None], n, seed)
        return tokens[:, 0], kept == 1

    def speculate(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> Round:
        drafts, tokens, _ = self.whole(p, q, n, seed)
        return Round(tokens, drafts)
