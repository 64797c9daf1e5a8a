# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""Speculative sampling by the book, in NumPy: correct, vectorised, and a worked example of every call-level method.

Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023 (2302.01318), Algorithm 2. It shares no
code with the auditor's own laws, so that each is a check of the other.
"""

from __future__ import annotations

import numpy as np

from auditor.adapter import PAD, BoolArray, FloatArray, IntArray, Law

_DTYPES = ("float64", "float32")
_BLOCK = 2**21
"""Elements of p that a mixed batch works on at a time."""
_GUIDED = 4096
"""Draws from one law from which on a guide table pays."""


class Reference:
    """Accept x with min(1, p(x)/q(x)); else draw from max(p - q, 0); all accepted: one more token from p[gamma].

    Parameters
    ----------
    dtype : "float64" or "float32". Laws are rounded as in an engine that computes its logits in this type.

    Raises ValueError for another dtype.
    """

    rule = "rejection"
    ragged = True
    tolerance = 1e-6
    resolution = 2.0**-40
    max_elements = 2**40

    def __init__(self, dtype: str = "float64") -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
        self.dtype = np.dtype(dtype)

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray]:
        """First tokens [n] and whether each was the accepted draft [n], for p, q [V]."""
        rng = _generator(seed)
        p, q = self._rounded(p), self._rounded(q)
        tokens = _draw(q, n, rng)
        accepted = rng.random(n) < _acceptance(p, q)[tokens]
        tokens[~accepted] = _draw(_residual(p, q), n - int(accepted.sum()), rng)
        return tokens, accepted

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        """Tokens [B, gamma+1] for p [B, gamma+1, V], q [B, gamma, V], drafts [B, gamma]; rows may have fewer drafts, then -1."""
        rng = _generator(seed)
        if _shares_rows(p, q):
            return self._verify(p[:1], q[:1], drafts, True, rng)
        # Rows of their own are rounded, and after a rejection summed up, row by row: a block at a time bounds the memory.
        batch = len(drafts)
        step = max(1, _BLOCK // (p.shape[1] * p.shape[2]))
        tokens = np.empty((batch, p.shape[1]), np.int64)
        for start in range(0, batch, step):
            rows = slice(start, start + step)
            tokens[rows] = self._verify(p[rows], q[rows], drafts[rows], False, rng)
        return tokens

    def _verify(
        self, p: FloatArray, q: FloatArray, drafts: IntArray, shared: bool, rng: np.random.Generator
    ) -> IntArray:
        """Tokens [B, gamma+1]; where `shared`, p and q have one row, which is every row's."""
        batch, gamma = drafts.shape
        p, q = self._rounded(p), self._rounded(q)
        tokens = np.full((batch, gamma + 1), PAD, np.int64)
        lengths = (drafts >= 0).sum(1) if (drafts < 0).any() else None

        alive = np.arange(batch)
        for i in range(gamma + 1):
            if lengths is not None or i == gamma:
                full = alive if lengths is None else alive[lengths[alive] == i]
                tokens[full, i] = _draw(p[0, i], len(full), rng) if shared else _draw_rows(p[full, i], rng)
                alive = alive[:0] if lengths is None else alive[lengths[alive] > i]
            if not len(alive):
                break
            x = drafts[alive, i]
            if shared:
                accept = _acceptance(p[0, i], q[0, i]).take(x)
            else:
                accept = _acceptance(p[alive, i, x], q[alive, i, x])
            accepted = rng.random(len(alive)) < accept
            rejected, alive = alive[~accepted], alive[accepted]
            tokens[alive, i] = x[accepted]
            if not len(rejected):
                continue
            if shared:
                tokens[rejected, i] = _draw(_residual(p[0, i], q[0, i]), len(rejected), rng)
            else:
                tokens[rejected, i] = _draw_rows(_residual(p[rejected, i], q[rejected, i]), rng)
        return tokens

    def law(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> Law:
        """What `verify` draws from: acceptance probabilities, residuals and bonus laws. Padded positions are zero."""
        batch, gamma = drafts.shape
        if _shares_rows(p, q):
            p, q = p[:1], q[:1]
        p, q = self._rounded(p), self._rounded(q)
        row = np.arange(batch) % len(p)
        position = np.arange(gamma)
        drafted = drafts >= 0
        x = np.maximum(drafts, 0)
        accept = _acceptance(p[row[:, None], position, x], q[row[:, None], position, x])
        residual = np.broadcast_to(_residual(p[:, :gamma], q), (batch, *q.shape[1:]))
        if not drafted.all():
            residual = residual * drafted[..., None]
        return Law(accept * drafted, residual, p[row, drafted.sum(1)])

    def _rounded(self, law: FloatArray) -> FloatArray:
        """Laws [..., V] as a softmax gives them back from logits of the adapter's type."""
        if self.dtype == np.float64:
            return law
        with np.errstate(divide="ignore"):
            logits = np.log(law).astype(self.dtype).astype(np.float64)
        weights = np.exp(logits)
        return np.asarray(weights / weights.sum(-1, keepdims=True))


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


def _shares_rows(p: FloatArray, q: FloatArray) -> bool:
    """Whether a batch is a view of one case, its rows all the same memory: then each law is worked out once."""
    return len(p) == 1 or (p.strides[0] == 0 and (q.strides[0] == 0 or not q.shape[1]))


def _acceptance(p: FloatArray, q: FloatArray) -> FloatArray:
    """min(1, p/q), elementwise. Where q = 0 nothing is drafted; should it be, p > 0 accepts and p = 0 rejects."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(p < q, p / q, np.where(p > 0, 1.0, 0.0))


def _residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """max(p - q, 0) [..., V], normalised; p itself where p = q, where no rejection can lead to it."""
    excess = np.maximum(p - q, 0.0)
    total = excess.sum(-1, keepdims=True)
    return np.where(total > 0, excess / np.where(total > 0, total, 1.0), p)


def _draw(law: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """`n` tokens from one law [V], by its inverse CDF; through a guide table (Chen and Asau 1974) where n is large."""
    cdf = np.cumsum(law)
    last = int(np.flatnonzero(law)[-1])
    u = rng.random(n)
    if n < _GUIDED or n < len(law):
        # side="right" and the cap: a token of probability 0 is drawn neither at a step of the CDF nor beyond its end.
        return np.asarray(np.minimum(np.searchsorted(cdf, u * cdf[-1], side="right"), last), np.int64)
    cells = 1 << (8 * len(law) - 1).bit_length()
    edges = np.searchsorted(cdf, np.arange(cells + 1) * (cdf[-1] / cells), side="right")
    # A power of two: the cell of u is exact, and so are the edges, in units of the total.
    cell = (u * cells).astype(np.int32)
    tokens = edges[:-1].take(cell)
    split = np.flatnonzero((edges[1:] != edges[:-1]).take(cell))
    tokens[split] = np.searchsorted(cdf, u[split] * cdf[-1], side="right")
    return np.asarray(np.minimum(tokens, last), np.int64)


def _draw_rows(laws: FloatArray, rng: np.random.Generator) -> IntArray:
    """One token from each law [n, V]."""
    cdf = np.cumsum(laws, -1)
    tokens = (cdf <= rng.random((len(laws), 1)) * cdf[:, -1:]).sum(-1)
    last = laws.shape[-1] - 1 - np.argmax(laws[:, ::-1] > 0, axis=-1)
    return np.asarray(np.minimum(tokens, last), np.int64)
