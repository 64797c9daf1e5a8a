"""Correct samplers of different construction. None of them may ever be accused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray, Settings

from .skeleton import Core, Drafts, Verifies, at, inverse_cdf, mapped, normalised, rows_of, taken


class InverseCdf(Verifies, Drafts):
    """float64, an inverse CDF for every draw, p = q safe; takes ragged batches and drafts by itself too."""

    ragged = True


class Float32(Verifies, Drafts):
    """Everything in float32: laws, ratio, residual, uniforms, CDF (summed in float64, as accumulators are)."""

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        return rng.random((batch, gamma), np.float32)

    def spare(self, rng: np.random.Generator, batch: int) -> FloatArray:
        return rng.random(batch, np.float32)

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return at(p, drafts).astype(np.float32) / at(q, drafts).astype(np.float32)

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        target = rows_of(p, i, rows).astype(np.float32)
        weights = np.maximum(target - rows_of(q, i, rows).astype(np.float32), 0)
        return np.where(weights.sum(1, keepdims=True) > 0, weights, target)

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        cdf = np.cumsum(weights.astype(np.float32), axis=1, dtype=np.float64)
        cdf = (cdf / cdf[:, -1:]).astype(np.float32)
        if len(cdf) == 1:
            return np.searchsorted(cdf[0], u, side="right").astype(np.int64)
        return (cdf <= u[:, None]).sum(1)


class Float16(Verifies):
    """Log-probabilities in float16, ratio and residual from them. Off by up to 2^-11 |log x|, and by as much in the sum."""

    tolerance = 1e-2

    @staticmethod
    def _logs(law: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.log(law).astype(np.float16)

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return np.exp((self._logs(at(p, drafts)) - self._logs(at(q, drafts))).astype(np.float64))

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        target, draft = (np.exp(self._logs(rows_of(law, i, rows)).astype(np.float64)) for law in (p, q))
        weights = np.maximum(target - draft, 0)
        return np.where(weights.sum(1, keepdims=True) > 0, weights, target)

    def bonus(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return np.exp(self._logs(rows_of(p, i, rows)).astype(np.float64))


class ExponentialRace(Verifies):
    """Residual and bonus by a race of exponential clocks (the Gumbel trick), a clock per token and row."""

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        n, vocab = len(u), weights.shape[1]
        step = max(1, 2**21 // vocab)
        winners = []
        for start in range(0, n, step):
            some = weights if len(weights) == 1 else weights[start : start + step]
            clocks = rng.standard_exponential((min(step, n - start), vocab))
            with np.errstate(divide="ignore", over="ignore"):
                winners.append((clocks / some).argmin(1))
        return np.concatenate(winners)


class SampleAndMatch(Verifies, Drafts):
    """Emits the target's own samples for as long as they equal the drafts."""

    rule = "match"

    def rounds(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> tuple[IntArray, IntArray]:
        rng = np.random.default_rng(seed)
        batch, gamma = drafts.shape
        rows = np.arange(batch)
        own = np.stack([inverse_cdf(rows_of(p, i, rows), rng.random(batch)) for i in range(gamma + 1)], axis=1)
        kept = self.kept(own[:, :gamma] == drafts)
        return np.where(np.arange(gamma + 1) <= kept[:, None], own, -1), kept


class OneHot(Verifies, Drafts):
    """Takes every draft for certain: accepts x with p(x), then draws from p without x."""

    rule = "onehot"

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return at(p, drafts)

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
        target, x = rows_of(p, i, rows), drafts[rows, i]
        cdf = np.cumsum(target, axis=1)
        row = np.zeros(len(x), np.int64) if len(cdf) == 1 else np.arange(len(x))
        total, above = cdf[row, -1], cdf[row, x]
        below = np.where(x > 0, cdf[row, x - 1], 0.0)
        # The stretch of x is left out of the CDF, instead of out of a copy of p for each row.
        height = u * (total - (above - below))
        height = np.where(height >= below, np.maximum(height + (above - below), above), height)
        height = np.minimum(height, np.nextafter(total, 0.0))
        return np.searchsorted(cdf[0], height, side="right") if len(cdf) == 1 else (cdf <= height[:, None]).sum(1)


class AcceptsAtEquality(InverseCdf):
    """`u <= ratio` instead of `u < ratio`: accepts a token without mass when u is exactly 0, which is as good as never."""

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        return coins <= self.ratio(p, q, drafts)


def hashed_uniforms(keys: IntArray, count: int) -> FloatArray:
    """Uniforms [n, count] as a function of integer keys [n] alone: the finaliser of SplitMix64, twice.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    bits = keys.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    for _ in range(2):
        bits = bits * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)) * 2.0**-53


class CounterBased(Verifies):
    """Random numbers that are a hash of (seed, row, use), as generators on accelerators have them."""

    def key(self, seed: int, batch: int) -> IntArray:
        return (np.int64(seed) << 31) + np.arange(batch)

    def rounds(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> tuple[IntArray, IntArray]:
        self._uniforms = hashed_uniforms(self.key(seed, len(drafts)), drafts.shape[1] + 1)
        return super().rounds(p, q, drafts, seed)

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        return self._uniforms[:, :gamma]

    def spare(self, rng: np.random.Generator, batch: int) -> FloatArray:
        return self._uniforms[:, -1]


@lru_cache(maxsize=8)
def _alias_table(law: bytes) -> tuple[FloatArray, IntArray]:
    """Vose's tables: with probability keep[j] column j gives j, otherwise other[j]."""
    scaled = np.frombuffer(law)
    scaled = scaled / scaled.sum() * len(scaled)
    keep, other = scaled.tolist(), list(range(len(scaled)))
    small = [j for j, mass in enumerate(keep) if mass < 1]
    large = [j for j, mass in enumerate(keep) if mass >= 1]
    while small and large:
        j, k = small.pop(), large[-1]
        other[j] = k
        keep[k] -= 1 - keep[j]
        if keep[k] < 1:
            small.append(large.pop())
    for j in small + large:
        # Left over by rounding: its mass is 1 in exact arithmetic, or it has none and its neighbour takes the column.
        keep[j] = 1.0 if scaled[j] > 0 else 0.0
        other[j] = j if scaled[j] > 0 else int(scaled.argmax())
    return np.array(keep), np.array(other)


class AliasTable:
    """`sample` alone, every draw from Vose's alias tables."""

    rule = "rejection"
    expected_claims: tuple[str, ...] = ()
    origin = ""
    fault = ""

    def _alias(self, other: IntArray) -> IntArray:
        return other

    def _draw(self, law: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
        keep, other = _alias_table(np.ascontiguousarray(law).tobytes())
        column = rng.integers(len(law), size=n)
        return np.where(rng.random(n) < keep[column], column, self._alias(other)[column])

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray]:
        rng = np.random.default_rng(seed)
        keep, other = _alias_table(np.ascontiguousarray(q).tobytes())
        column = rng.integers(len(q), size=n)
        x = np.where(rng.random(n) < keep[column], column, other[column])
        accepted = rng.random(n) * q[x] < p[x]
        tokens = x.copy()
        if not accepted.all():
            weights = np.maximum(p - q, 0.0)
            tokens[~accepted] = self._draw(weights if weights.sum() > 0 else p, int((~accepted).sum()), rng)
        return tokens, accepted


class TargetOnly:
    """Not speculative at all: draws from p, and returns tokens alone."""

    rule = "rejection"
    expected_claims: tuple[str, ...] = ()
    origin = ""
    fault = ""

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> IntArray:
        return inverse_cdf(p[None], np.random.default_rng(seed).random(n))


class HonoursSettings(Core):
    """Applies temperature, then min-p, to the target of every position of each row."""

    settings = ("temperature", "min_p")

    def applied(self, law: FloatArray, wanted: Settings) -> FloatArray:
        """The target [B, positions, V] under the settings."""
        if wanted.temperature == 0:
            return (np.arange(law.shape[-1]) == law.argmax(-1)[..., None]).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(law) / wanted.temperature
        weights = np.exp(logs - logs.max(-1, keepdims=True))
        return normalised(np.where(weights >= wanted.min_p, weights, 0.0))

    def target(self, p: FloatArray, wanted: Settings) -> FloatArray:
        return mapped(lambda law: self.applied(law, wanted), p)

    def verify(
        self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int, settings: Sequence[Settings]
    ) -> IntArray:
        tokens = np.full((drafts.shape[0], drafts.shape[1] + 1), -1, np.int64)
        distinct = list(dict.fromkeys(settings))
        which = np.array([distinct.index(wanted) for wanted in settings])
        for index, wanted in enumerate(distinct):
            rows = np.flatnonzero(which == index)
            target = self.target(taken(p, rows), wanted)
            # One stream for each group of rows.
            tokens[rows] = self.rounds(target, taken(q, rows), drafts[rows], (seed << 8) + index)[0]
        return tokens


CORRECT: tuple[type, ...] = (
    InverseCdf,
    Float32,
    Float16,
    ExponentialRace,
    SampleAndMatch,
    OneHot,
    AcceptsAtEquality,
    CounterBased,
    AliasTable,
    TargetOnly,
    HonoursSettings,
)
