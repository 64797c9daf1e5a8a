"""Wrong on purpose, in ways that no catalogue of faults lists, or that only rows, calls, seeds or sizes show."""

from __future__ import annotations

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray

from .correct import AliasTable, CounterBased
from .skeleton import Verifies, at, inverse_cdf, mapped, normalised, rows_of, shared

# ------------------------------------------------------------------------------------------------ the laws of a row


class NeverLastToken(Verifies):
    """The last entry of the vocabulary is cut off (an exclusive bound taken for an inclusive one)."""

    expected_claims = ("acceptance-law", "residual-law", "bonus-token", "output-law")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        cut = mapped(lambda law: normalised(np.where(np.arange(law.shape[-1]) < law.shape[-1] - 1, law, 0.0)), p)
        return self.rounds(cut, q, drafts, seed)[0]


class TurnsIntoMode(Verifies):
    """0.5 % of the tokens turn into the mode of their law, which ends the round."""

    expected_claims = ("output-law", "acceptance-law", "residual-law", "bonus-token", "round-length")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        tokens = self.rounds(p, q, drafts, seed)[0]
        hit = (np.random.default_rng((seed, 1)).random(tokens.shape) < 0.005) & (tokens >= 0)
        position = np.arange(tokens.shape[1])
        first = np.where(hit.any(1), hit.argmax(1), tokens.shape[1])
        tokens[position > first[:, None]] = -1
        for i in position:
            rows = np.flatnonzero(first == i)
            if len(rows):
                tokens[rows, i] = rows_of(p, i, rows).argmax(1)
        return tokens


class QuantisedLogits(Verifies):
    """The target's logits are rounded to quarters."""

    expected_claims = ("output-law", "acceptance-law", "residual-law", "bonus-token")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        with np.errstate(divide="ignore"):
            rounded = mapped(lambda law: normalised(np.exp(np.round(np.log(law) * 4) / 4)), p)
        return self.rounds(rounded, q, drafts, seed)[0]


class EightBitUniforms(Verifies):
    """Only the top 8 bits of every uniform are used."""

    expected_claims = ("acceptance-law", "residual-law", "bonus-token", "output-law")

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        return np.floor(256 * rng.random((batch, gamma))) / 256

    def spare(self, rng: np.random.Generator, batch: int) -> FloatArray:
        return np.floor(256 * rng.random(batch)) / 256


class TruncatedTail(Verifies):
    """A float32 CDF is left as soon as it reaches .999: the tokens behind that are never emitted."""

    expected_claims = ("residual-law", "bonus-token", "output-law")

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        cdf = np.cumsum(weights, axis=1, dtype=np.float32)
        enough = np.where(cdf >= 0.999 * cdf[:, -1:], cdf, np.inf).min(1, keepdims=True)
        before = np.concatenate([np.zeros_like(cdf[:, :1]), cdf[:, :-1]], 1)
        return inverse_cdf(np.where(before < enough, weights, 0.0), u)


class AliasOffByOne(AliasTable):
    """The alias column of Vose's table points one token too far."""

    expected_claims = ("output-law", "residual-law", "support")

    def _alias(self, other: IntArray) -> IntArray:
        return (other + 1) % len(other)


class FallsThrough(Verifies):
    """The residual is not normalised: a uniform beyond its sum falls through to the last token."""

    expected_claims = ("residual-law", "output-law", "support")

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
        weights = np.maximum(rows_of(p, i, rows) - rows_of(q, i, rows), 0.0)
        cdf = np.cumsum(weights, axis=1)
        found = np.searchsorted(cdf[0], u, side="right") if len(cdf) == 1 else (cdf <= u[:, None]).sum(1)
        return np.minimum(found, weights.shape[1] - 1)


class AcceptsWhereTargetIsLarger(Verifies):
    """A comparison in place of a coin: accepted exactly where p(x) >= q(x)."""

    expected_claims = ("acceptance-law", "acceptance-rate", "output-law")

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        return at(p, drafts) >= at(q, drafts)


class CoarseAcceptance(Verifies):
    """The acceptance probability is looked up in a table of sixteenths, rounded down."""

    expected_claims = ("acceptance-law", "acceptance-rate", "round-length", "output-law")

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return np.floor(16 * np.minimum(1.0, super().ratio(p, q, drafts))) / 16


# ------------------------------------------------------------------------------------------------------- positions


class NeverLastDraft(Verifies):
    """The last draft of a round is never accepted (a loop that ends one too early)."""

    expected_claims = ("acceptance-law", "acceptance-rate", "round-length", "output-law")

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        accepted = super().accepts(p, q, drafts, coins)
        accepted[:, -1] = False
        return accepted


class DropsBonusSometimes(Verifies):
    """One full round in a hundred has no bonus token."""

    fault = "bonus-dropped"
    expected_claims = ("bonus-token", "round-length")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        tokens, kept = self.rounds(p, q, drafts, seed)
        lost = (kept == drafts.shape[1]) & (np.random.default_rng((seed, 1)).random(len(drafts)) < 0.01)
        tokens[lost, -1] = -1
        return tokens


class SwapsOddPositions(Verifies):
    """p and q are exchanged at odd positions."""

    expected_claims = ("acceptance-law", "residual-law", "output-law")

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        ratio = super().ratio(p, q, drafts)
        ratio[:, 1::2] = 1 / ratio[:, 1::2]
        return ratio

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return super().residual(q, p, i, rows) if i % 2 else super().residual(p, q, i, rows)


class FirstTargetEverywhere(Verifies):
    """Position 0 is right; the later ones use the target of position 0."""

    expected_claims = ("position-alignment", "acceptance-law", "residual-law", "output-law")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        return self.rounds(np.broadcast_to(p[:, :1], p.shape), q, drafts, seed)[0]


class BonusFromFirst(Verifies):
    """The bonus token comes from p[0]."""

    expected_claims = ("bonus-token", "position-alignment", "output-law")

    def bonus(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return rows_of(p, 0, rows)


class BonusOfLongestRow(Verifies):
    """Rows may be ragged, but the bonus token always comes from p[gamma], also in a row with fewer drafts."""

    ragged = True
    expected_claims = ("row-independence", "bonus-token", "position-alignment", "output-law")

    def bonus(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return rows_of(p, p.shape[1] - 1, rows)


class OneCoinPerRound(Verifies):
    """One uniform decides every position of a round."""

    fault = "shared-uniform"
    expected_claims = ("acceptance-law", "round-length", "output-law")

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        return np.broadcast_to(rng.random((batch, 1)), (batch, gamma))


class CoinAlsoDrawsBonus(Verifies):
    """The coin of the last position, known to be small, inverts the CDF of the bonus token."""

    expected_claims = ("bonus-token", "output-law")

    def last_uniform(self, spare: FloatArray, coins: FloatArray, kept: IntArray) -> FloatArray:
        return np.where(kept == coins.shape[1], coins[:, -1], spare)


# -------------------------------------------------------------------------------------------- rows, calls and seeds


class RowsShareCoins(Verifies):
    """One coin per position for the whole batch."""

    expected_claims = ("row-independence",)

    def coins(self, rng: np.random.Generator, batch: int, gamma: int) -> FloatArray:
        return np.broadcast_to(rng.random((1, gamma)), (batch, gamma))


class RowsShareResidualNoise(Verifies):
    """One uniform for the last token of every row."""

    expected_claims = ("row-independence",)

    def spare(self, rng: np.random.Generator, batch: int) -> FloatArray:
        return np.full(batch, rng.random())


class NeighbourTarget(Verifies):
    """Row b is verified against the target of row b - 1."""

    expected_claims = ("row-independence", "acceptance-law", "residual-law", "bonus-token", "output-law")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        return self.rounds(p if shared(p) else np.roll(p, 1, axis=0), q, drafts, seed)[0]


class NeighbourDraftLaw(Verifies):
    """Row b is verified with the draft law of row b - 1."""

    expected_claims = ("row-independence", "acceptance-law", "residual-law", "output-law")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        return self.rounds(p, q if shared(q) else np.roll(q, 1, axis=0), drafts, seed)[0]


class StaleResidual(Verifies):
    """The residual is the one that the row before left in the buffer."""

    expected_claims = ("row-independence", "residual-law", "output-law")

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return super().residual(p, q, i, np.maximum(rows - 1, 0))


class SeedsOverlap(CounterBased):
    """The random numbers are a hash of seed + row: row b of seed s is row b - 1 of seed s + 1."""

    expected_claims = ("seed-independence",)

    def key(self, seed: int, batch: int) -> IntArray:
        return seed + np.arange(batch)


class SeedMod16(Verifies):
    """Only four bits of the seed arrive: sixteen streams in all."""

    expected_claims = ("seed-independence",)

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed % 16)


UNLISTED: tuple[type, ...] = (
    NeverLastToken,
    TurnsIntoMode,
    QuantisedLogits,
    EightBitUniforms,
    TruncatedTail,
    AliasOffByOne,
    FallsThrough,
    AcceptsWhereTargetIsLarger,
    CoarseAcceptance,
    NeverLastDraft,
    DropsBonusSometimes,
    SwapsOddPositions,
    FirstTargetEverywhere,
    BonusFromFirst,
    BonusOfLongestRow,
    OneCoinPerRound,
    CoinAlsoDrawsBonus,
    RowsShareCoins,
    RowsShareResidualNoise,
    NeighbourTarget,
    NeighbourDraftLaw,
    StaleResidual,
    SeedsOverlap,
    SeedMod16,
)
