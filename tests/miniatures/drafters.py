"""Wrong on purpose: drafters whose drafts do not belong to the q that their verifier is told.

No call with given drafts shows these bugs; `sample` and `speculate` do.
"""

from __future__ import annotations

import numpy as np

from auditor.adapter import FloatArray, IntArray

from .skeleton import Core, Drafts, inverse_cdf, normalised


class ArgmaxDrafts(Drafts):
    """Drafts by argmax, and the softmax is reported as q."""

    origin = "transformers 32867"
    expected_claims = ("output-law", "draft-law", "acceptance-rate", "acceptance-law")

    def propose(self, q: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
        return np.tile(q.argmax(1), (n, 1))


class BeamDrafts(Drafts):
    """Drafts one of the two best candidates, evenly, and they are judged as if drawn from q."""

    origin = "apple/ml-recurrent-drafter 6"
    expected_claims = ("output-law", "draft-law", "acceptance-rate")

    def propose(self, q: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
        best = np.argsort(-q, axis=1, kind="stable")[:, :2]
        return best[np.arange(len(q)), rng.integers(2, size=(n, len(q)))]


class TruncatedDrafts(Drafts):
    """Draws its drafts after a top-k cut (k = 2), and the uncut law is reported as q."""

    origin = "transformers 47932"
    expected_claims = ("output-law", "draft-law", "acceptance-rate")

    def propose(self, q: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
        rank = np.argsort(np.argsort(-q, axis=1, kind="stable"), axis=1)
        return super().propose(normalised(np.where(rank < 2, q, 0.0)), n, rng)


class SharedGumbel(Drafts):
    """The draft and the residual token of a position are drawn with the same Gumbel noise."""

    origin = "vLLM 47386, 54282"
    expected_claims = ("output-law", "draft-independence")

    def whole(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, IntArray, IntArray]:
        step = max(1, 2**21 // q.size)
        parts = [self._part(p, q, min(step, n - start), (seed, start)) for start in range(0, n, step)]
        return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _part(self, p: FloatArray, q: FloatArray, n: int, key: tuple[int, int]) -> tuple[IntArray, IntArray, IntArray]:
        rng = np.random.default_rng(key)
        gamma = len(q)
        noise = rng.gumbel(size=(n, *q.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            drafts = (np.log(q) + noise).argmax(2)
            weights = np.maximum(p[:-1] - q, 0.0)
            weights = np.where(weights.sum(1, keepdims=True) > 0, weights, p[:-1])
            second = (np.log(weights) + noise).argmax(2)
            ratio = (p[:-1] / q)[np.arange(gamma), drafts]
        kept = self.kept(rng.random((n, gamma)) < ratio)
        last = np.concatenate([second, inverse_cdf(p[-1:], rng.random(n))[:, None]], 1)
        position = np.arange(gamma + 1)
        tokens = np.where(position == kept[:, None], last, -1)
        tokens[:, :gamma] = np.where(position[:-1] < kept[:, None], drafts, tokens[:, :gamma])
        return drafts, tokens, kept


KNOWN_DRAFTERS: tuple[type[Core], ...] = (ArgmaxDrafts, BeamDrafts, TruncatedDrafts, SharedGumbel)
