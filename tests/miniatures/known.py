"""Wrong on purpose: a sampler for each public bug that a call with given drafts can show."""

from __future__ import annotations

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray, Settings

from .correct import HonoursSettings
from .skeleton import Core, Verifies, inverse_cdf, mapped, rows_of, taken


class AcceptsEverything(Verifies):
    """The test of the number of matches always holds: the output follows q."""

    origin = "transformers 28508"
    fault = "accept-always"
    expected_claims = ("acceptance-law", "acceptance-rate", "round-length", "output-law", "support")

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        return np.ones(drafts.shape, bool)


class SoftmaxResidual(Verifies):
    """The residual goes through a softmax, as if it were logits."""

    origin = "transformers 28508"
    fault = "residual-softmax"
    expected_claims = ("residual-law", "output-law", "support")

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return np.exp(np.maximum(rows_of(p, i, rows) - rows_of(q, i, rows), 0.0))


class ResamplesFromTarget(Verifies):
    """After a rejection it draws from p."""

    origin = "Spec-RL 14"
    fault = "residual-p"
    expected_claims = ("residual-law", "output-law")

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        return rows_of(p, i, rows)


class ReusesCoin(Verifies):
    """The coin that rejected the draft, as it is, inverts the residual's CDF."""

    origin = "SGLang 7207"
    fault = "residual-reuses-uniform"
    expected_claims = ("residual-law", "output-law")

    def last_uniform(self, spare: FloatArray, coins: FloatArray, kept: IntArray) -> FloatArray:
        coin = coins[np.arange(len(kept)), np.minimum(kept, coins.shape[1] - 1)]
        return np.where(kept < coins.shape[1], coin, spare)


class ZeroUniform(Verifies):
    """The acceptance uniform is 0, and `u <= ratio` lets even a draft of p = 0 pass."""

    origin = "vllm-ascend 13730"
    fault = "accept-always"
    expected_claims = ("acceptance-law", "acceptance-rate", "round-length", "output-law", "support")

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        return 0.0 * coins <= self.ratio(p, q, drafts)


class UninitialisedTemperature(Verifies):
    """The temperature of a row is whatever the memory held: every fourth row has the same one, and none has 1."""

    origin = "vLLM 55005"
    fault = "target-temperature"
    expected_claims = (
        "acceptance-law",
        "acceptance-rate",
        "residual-law",
        "bonus-token",
        "output-law",
        "row-independence",
    )
    garbage = (1e-3, 30.0, 0.3, 3.0)

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        tokens = np.empty((len(drafts), drafts.shape[1] + 1), np.int64)
        for k, temperature in enumerate(self.garbage):
            rows = np.arange(k, len(drafts), len(self.garbage))
            if not len(rows):
                continue
            wanted = Settings(temperature=temperature)
            target = mapped(lambda law, wanted=wanted: HonoursSettings().applied(law, wanted), taken(p, rows))
            tokens[rows] = self.rounds(target, taken(q, rows), drafts[rows], 4 * seed + k)[0]
        return tokens


class EmptyWhenGreedy(Verifies):
    """A target that is greedy (one-hot) is divided by temperature 0: the round is empty."""

    origin = "vLLM 27077"
    expected_claims = ("structure", "edge-cases")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        tokens = self.rounds(p, q, drafts, seed)[0]
        certain = np.broadcast_to((rows_of(p, 0, np.arange(len(drafts))) == 1.0).any(1), len(drafts))
        return np.where(certain[:, None], -1, tokens)


class EmptyAtTemperatureZero(HonoursSettings):
    """The same where the setting is temperature 0."""

    origin = "vLLM 27077"
    expected_claims = ("structure", "greedy")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int, settings: list[Settings]) -> IntArray:
        tokens = super().verify(p, q, drafts, seed, settings)
        return np.where(np.array([wanted.temperature == 0 for wanted in settings])[:, None], -1, tokens)


class MinPOnBonusOnly(HonoursSettings):
    """min-p is applied to the bonus row alone."""

    origin = "vLLM 42802"
    expected_claims = ("settings-law",)

    def target(self, p: FloatArray, wanted: Settings) -> FloatArray:
        without = Settings(temperature=wanted.temperature)
        return mapped(
            lambda law: np.concatenate([self.applied(law[:, :-1], without), self.applied(law[:, -1:], wanted)], 1), p
        )


class MaskMissingOnBonus(HonoursSettings):
    """The other way round: the cut is missing on the bonus row alone."""

    origin = "vLLM 44292"
    expected_claims = ("settings-law",)

    def target(self, p: FloatArray, wanted: Settings) -> FloatArray:
        without = Settings(temperature=wanted.temperature)
        return mapped(
            lambda law: np.concatenate([self.applied(law[:, :-1], wanted), self.applied(law[:, -1:], without)], 1), p
        )


class IgnoresSettings(HonoursSettings):
    """The target verifies without its sampling settings, and nobody is told."""

    origin = "vLLM 9834"
    expected_claims = ("settings-law", "greedy")

    def target(self, p: FloatArray, wanted: Settings) -> FloatArray:
        return p


class WrongSlice(Verifies):
    """The logits of a round are sliced one row too late: position i has the target of position i + 1."""

    origin = "TensorRT-LLM 15098"
    fault = "position-next"
    expected_claims = ("position-alignment", "acceptance-law", "residual-law", "output-law", "acceptance-rate")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        late = np.minimum(np.arange(p.shape[1]) + 1, p.shape[1] - 1)
        return self.rounds(mapped(lambda law: law[:, late], p), q, drafts, seed)[0]


class FlatSlice(Verifies):
    """The flattened batch has gamma + 1 rows a round and is read as if it had gamma: row 0 is right, the others drift."""

    origin = "TensorRT-LLM 15098"
    expected_claims = ("row-independence", "position-alignment", "acceptance-law", "residual-law", "output-law")

    @staticmethod
    def _where(gamma: int, rows: IntArray, i: int) -> tuple[IntArray, IntArray]:
        return np.divmod(rows * gamma + i, gamma + 1)

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        gamma, rows = drafts.shape[1], np.arange(len(drafts))
        # A broadcast view is indexed, not copied.
        wrong = [p[(*self._where(gamma, rows, i), drafts[:, i])] for i in range(gamma)]
        right = [q[rows, i, drafts[:, i]] for i in range(gamma)]
        return np.stack(wrong, 1) / np.stack(right, 1)

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
        row, position = self._where(drafts.shape[1], rows, i)
        tokens = np.empty(len(rows), np.int64)
        for j in np.unique(position):
            some = np.flatnonzero(position == j)
            target = rows_of(p, int(j), row[some])
            weights = np.maximum(target - rows_of(q, i, rows[some]), 0.0)
            weights = np.where(weights.sum(1, keepdims=True) > 0, weights, target)
            tokens[some] = inverse_cdf(weights, u[some])
        return tokens


class BlockWithTokenwiseParts(Verifies):
    """Block verification (keep up to the last position that passes, by the running product of ratios) with the coin of the
    token-wise rule, min(1, product), and the ordinary residual."""

    origin = "vllm-ascend 7807"
    expected_claims = ("output-law", "acceptance-law", "residual-law")

    def accepts(self, p: FloatArray, q: FloatArray, drafts: IntArray, coins: FloatArray) -> BoolArray:
        ratio, running = self.ratio(p, q, drafts), np.ones(len(drafts))
        passed = np.empty(drafts.shape, bool)
        for i in range(drafts.shape[1]):
            running = np.minimum(1.0, running * ratio[:, i])
            passed[:, i] = coins[:, i] < running
        return passed

    def kept(self, accepted: BoolArray) -> IntArray:
        last = accepted.shape[1] - accepted[:, ::-1].argmax(1)
        return np.where(accepted.any(1), last, 0)


class ReusesUniformPerTile(Verifies):
    """A vocabulary is drawn from tile by tile, and the uniform that chose the tile is used again inside it."""

    origin = "FlashInfer 424"
    expected_claims = ("residual-law", "bonus-token", "output-law")
    tile = 1024

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        rows, vocab = weights.shape
        if vocab <= self.tile:
            return inverse_cdf(weights, u)
        tiles = -(-vocab // self.tile)
        padded = np.zeros((rows, tiles * self.tile))
        padded[:, :vocab] = weights
        padded = padded.reshape(rows, tiles, self.tile)
        tile = inverse_cdf(padded.sum(2), u)
        if rows == 1:
            inside = np.empty(len(u), np.int64)
            for t in np.unique(tile):
                inside[tile == t] = inverse_cdf(padded[:, t], u[tile == t])
        else:
            inside = inverse_cdf(padded[np.arange(rows), tile], u)
        return tile * self.tile + inside


class NanResidual(Verifies):
    """Normalises every residual before it is needed; where p = q that is 0/0, and the draw from it raises."""

    origin = "jaymody/speculative-sampling 5"
    expected_claims = ("edge-cases",)

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        for i in range(drafts.shape[1]):
            every = np.arange(len(drafts))
            if (np.maximum(rows_of(p, i, every) - rows_of(q, i, every), 0.0).sum(1) == 0).any():
                raise ValueError("probabilities contain NaN")
        return self.rounds(p, q, drafts, seed)[0]


class AlwaysArgmax(Verifies):
    """The target's argmax, whatever was asked for."""

    origin = "mistral.rs 2424"
    fault = "target-argmax"
    expected_claims = ("output-law", "acceptance-law", "residual-law", "bonus-token", "acceptance-rate")

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        greedy = mapped(lambda law: (np.arange(law.shape[-1]) == law.argmax(-1)[..., None]).astype(float), p)
        return self.rounds(greedy, q, drafts, seed)[0]


class LastIdFallback(Verifies):
    """The CDF is not brought to 1 (here it ends at .999) and a uniform beyond it gives the last id, mass or not."""

    origin = "SGLang 22643"
    expected_claims = ("support", "residual-law", "bonus-token", "output-law")

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        beyond = u >= 0.999
        tokens = inverse_cdf(weights, np.minimum(u / 0.999, np.nextafter(1.0, 0.0)))
        return np.where(beyond, weights.shape[1] - 1, tokens)


class OutOfRange(Verifies):
    """One draw in 1,000 gives an id beyond the vocabulary."""

    origin = "FlashInfer 3624"
    expected_claims = ("structure",)

    def draw(self, weights: FloatArray, u: FloatArray, rng: np.random.Generator) -> IntArray:
        return np.where(rng.random(len(u)) < 0.001, weights.shape[1], inverse_cdf(weights, u))


class CountsAllAcceptances(Verifies):
    """The number of kept drafts is the sum of the accept mask, also behind the first rejection."""

    origin = "vLLM 2658"
    fault = "keeps-after-rejection"
    expected_claims = ("acceptance-law", "output-law", "round-length", "acceptance-rate")

    def kept(self, accepted: BoolArray) -> IntArray:
        return accepted.sum(1)


class IgnoresSeed(Verifies):
    """The request's seed does not arrive: every call has the same random numbers."""

    origin = "vLLM 6034"
    expected_claims = ("seed-independence",)

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(0)


class SeedFromTheSystem(Verifies):
    """The request's seed does not arrive: every call has fresh entropy."""

    origin = "TensorRT-LLM 17599"
    expected_claims = ("seed-reproducibility",)

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng()


class LookupAlwaysAccepted(AcceptsEverything):
    """Drafts of a prompt lookup are certain, and are kept without a look at p."""

    origin = "OpenVINO GenAI 2331"
    rule = "onehot"


class LowerAcceptance(Verifies):
    """Accepts a tenth less than it could, with the residual that this leaves: p - .9 min(p, q). The output is the target's;
    acceptance and round length fell, as between two versions."""

    origin = "vLLM 14464, 26191"
    expected_claims = ("acceptance-rate", "acceptance-law", "round-length", "residual-law")

    def ratio(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> FloatArray:
        return 0.9 * np.minimum(1.0, super().ratio(p, q, drafts))

    def residual(self, p: FloatArray, q: FloatArray, i: int, rows: IntArray) -> FloatArray:
        target = rows_of(p, i, rows)
        return target - 0.9 * np.minimum(target, rows_of(q, i, rows))


KNOWN_CALLS: tuple[type[Core], ...] = (
    AcceptsEverything,
    SoftmaxResidual,
    ResamplesFromTarget,
    ReusesCoin,
    ZeroUniform,
    UninitialisedTemperature,
    EmptyWhenGreedy,
    EmptyAtTemperatureZero,
    MinPOnBonusOnly,
    MaskMissingOnBonus,
    IgnoresSettings,
    WrongSlice,
    FlatSlice,
    BlockWithTokenwiseParts,
    ReusesUniformPerTile,
    NanResidual,
    AlwaysArgmax,
    LastIdFallback,
    OutOfRange,
    CountsAllAcceptances,
    IgnoresSeed,
    SeedFromTheSystem,
    LookupAlwaysAccepted,
    LowerAcceptance,
)
