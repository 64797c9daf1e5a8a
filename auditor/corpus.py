"""Bugs that real implementations had, from their public reports, as data: facts, and the smallest input that shows each.

The inputs are constructed here, not taken from the reports. Their cases run before the generated ones of every audit; the
bugs that the call level can show have a faulty sampler of their own in the tests, which an audit must catch. A reference
is a repository's short name and the number of an issue or a pull request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from auditor.cases import Case, normalise

Level = Literal["call", "verify", "call with settings", "drafter and verifier", "engine", "counters"]
"""Where the bug can be seen: in one call with given drafts, also with sampling settings; only where the implementation
draws its own drafts; only in a whole engine; only in the numbers that it reports."""


@dataclass(frozen=True)
class KnownBug:
    """One public report; `kinds` are the faults of `auditor.rules` that it is an instance of, where one fits."""

    id: str
    reference: str
    symptom: str
    cause: str
    level: Level
    kinds: tuple[str, ...] = ()
    case: Case | None = None


def _case(reference: str, p: npt.ArrayLike, q: npt.ArrayLike, words: str) -> Case:
    """A case named after its bug; laws [V] stand for gamma = 1, the bonus token from p too."""
    p, q = np.atleast_2d(np.asarray(p, np.float64)), np.atleast_2d(np.asarray(q, np.float64))
    if len(p) == len(q):
        p = np.concatenate([p, p[-1:]])
    return Case(p, q, f"{reference}: {words}", "corpus", f"known bug: {reference}")


def _last_tile() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """V = 32 * 1,024: q is even but for the last 1,024 tokens, p has half of its mass there."""
    vocab, tile = 32 * 1024, 1024
    early = np.arange(vocab) < vocab - tile
    return 0.5 * normalise(early) + 0.5 * normalise(~early), normalise(early)


def known_bugs() -> tuple[KnownBug, ...]:
    """Every entry of the corpus, those that one call can show first."""
    hot = np.eye(4)
    block_p = np.array([[0.6, 0.4], [0.2, 0.8], [0.7, 0.3], [0.5, 0.5]])
    block_q = np.array([[0.3, 0.7], [0.6, 0.4], [0.4, 0.6]])
    return (
        KnownBug(
            "transformers-28508",
            "transformers 28508",
            "the output follows the draft model",
            "a faulty test of the number of matches accepts every draft; the residual goes through a softmax",
            "call",
            ("accept-always", "residual-softmax"),
            _case("transformers 28508", [0.2, 0.3, 0.5], [0.5, 0.3, 0.2], "the residual is token 2 alone"),
        ),
        KnownBug(
            "vllm-55005",
            "vLLM 55005",
            "sampling at any temperature above 0 is far off the target on the CPU",
            "the temperature of each token is memory that nothing was written to",
            "call",
            ("target-temperature",),
            _case(
                "vLLM 55005",
                [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2]],
                [[0.2, 0.5, 0.3], [0.3, 0.3, 0.4]],
                "temperature 1, three tokens",
            ),
        ),
        KnownBug(
            "vllm-27077",
            "vLLM 27077",
            "greedy requests give no tokens, and an acceptance of -1 is reported",
            "the sentinel for greedy became temperature 0, and the logits are divided by it",
            "call with settings",
            (),
            _case("vLLM 27077", hot[[2, 0, 1]], np.full((2, 4), 0.25), "a one-hot target, the limit of temperature 0"),
        ),
        KnownBug(
            "tensorrt-llm-15098",
            "TensorRT-LLM 15098",
            "drafts are verified against the target of another position",
            "the wrong slice of the logits is used in verification",
            "verify",
            ("position-next", "accept-next-target"),
            _case("TensorRT-LLM 15098", hot, hot[:3], "one-hot p[i], distinct for each i, and the right drafts"),
        ),
        KnownBug(
            "sglang-7207",
            "SGLang 7207",
            "tokens early in the vocabulary are too rare after a rejection",
            "the coin that rejected the draft is used again to invert the residual's CDF",
            "verify",
            ("residual-reuses-uniform",),
            _case("SGLang 7207", [0.5, 0.3, 0.2], [1.0, 0.0, 0.0], "one-hot draft 0: P(1) becomes .1"),
        ),
        KnownBug(
            "vllm-ascend-13730",
            "vllm-ascend 13730",
            "every draft is accepted",
            "the uniform of the acceptance test is constantly 0",
            "call",
            ("accept-always",),
            _case("vllm-ascend 13730", [0.5, 0.5], [1.0, 0.0], "half of the drafts are to be rejected"),
        ),
        KnownBug(
            "vllm-ascend-7807",
            "vllm-ascend 7807",
            "block verification leaves the target's joint law",
            "block verification is combined with the acceptance and the residual of the token-wise rule",
            "verify",
            (),
            _case("vllm-ascend 7807", block_p, block_q, "three positions, the joint law"),
        ),
        KnownBug(
            "flashinfer-424",
            "FlashInfer 424",
            "tokens of later tiles of a large vocabulary follow another law",
            "a barrier is missing between the tiles of a reduction, and uniforms are used more than once",
            "call",
            ("residual-reuses-uniform",),
            _case("FlashInfer 424", *_last_tile(), "large vocabulary, residual mass in the last tile"),
        ),
        KnownBug(
            "jaymody-5",
            "jaymody/speculative-sampling 5",
            "NaN where the residual has no mass",
            "the residual is divided by its sum, which is 0 where p = q",
            "call",
            (),
            _case("jaymody/speculative-sampling 5", [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], "p = q = one-hot"),
        ),
        KnownBug(
            "mistral.rs-2424",
            "mistral.rs 2424",
            "the output is greedy although sampling was asked for",
            "the speculative path always takes the argmax of the target",
            "call",
            ("target-argmax",),
            _case("mistral.rs 2424", [0.4, 0.35, 0.25], [0.25, 0.35, 0.4], "three tokens of similar mass"),
        ),
        KnownBug(
            "spec-rl-14",
            "Spec-RL 14",
            "tokens that the draft likes come out too often",
            "after a rejection the token is drawn from p instead of the residual",
            "call",
            ("residual-p",),
            _case("Spec-RL 14", [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], "p and q differ"),
        ),
        KnownBug(
            "vllm-42802",
            "vLLM 42802",
            "tokens below the min-p cut are emitted at verified positions",
            "min-p is applied to the bonus token only",
            "call with settings",
            ("bonus-temperature",),
            _case("vLLM 42802", [0.9, 0.1], [0.5, 0.5], "with min-p .2 token 1 must not appear"),
        ),
        KnownBug(
            "sglang-22643",
            "SGLang 22643",
            "the last token of the vocabulary is emitted although it has no mass",
            "where a coin close to 1 lies beyond the rounded sum of the law, the last id is taken instead of the last with mass",
            "call",
            (),
            _case("SGLang 22643", [0.4, 0.6, 0.0], [0.8, 0.2, 0.0], "the last token has no mass"),
        ),
        KnownBug(
            "flashinfer-3624",
            "FlashInfer 3624",
            "a token id beyond the vocabulary is returned now and then",
            "a race in a reduction over a large vocabulary, and padding lanes that keep their id",
            "call",
            (),
            _case(
                "FlashInfer 3624",
                normalise(np.ones(32_000)),
                normalise(np.arange(32_000) % 2 + 1),
                "a vocabulary that is not a whole number of tiles",
            ),
        ),
        KnownBug(
            "vllm-2658",
            "vLLM 2658",
            "the reported number of accepted drafts is too high",
            "acceptances behind the first rejection are counted",
            "counters",
            ("keeps-after-rejection",),
            _case("vLLM 2658", hot[[0, 1, 2, 3, 0]], hot[[0, 0, 2, 3]], "accept mask 1, 0, 1, 1 counts 1"),
        ),
        KnownBug(
            "vllm-14464",
            "vLLM 14464, 26191",
            "the mean round length fell from one version to the next",
            "not one cause; only the exact law of the round length, or a stored baseline, shows it",
            "call",
            (),
            _case(
                "vLLM 14464",
                [[0.6, 0.4], [0.3, 0.7], [0.8, 0.2], [0.5, 0.5], [0.9, 0.1]],
                [[0.5, 0.5], [0.4, 0.6], [0.7, 0.3], [0.6, 0.4]],
                "close laws, long rounds",
            ),
        ),
        KnownBug(
            "transformers-32867",
            "transformers 32867",
            "the draft's favourite token comes out too often",
            "drafts are taken by argmax while the softmax is reported as q",
            "drafter and verifier",
            (),
            _case("transformers 32867", [0.5, 0.5], [0.6, 0.4], "P(0) becomes .833"),
        ),
        KnownBug(
            "transformers-47932",
            "transformers 47932",
            "a small bias and a raised acceptance with top-k sampling of the draft",
            "drafts are drawn after top-k, q is reported from the raw logits",
            "drafter and verifier",
            (),
            _case("transformers 47932", [0.3, 0.3, 0.4], [0.4, 0.35, 0.25], "a draft cut to two of three tokens"),
        ),
        KnownBug(
            "vllm-47386",
            "vLLM 47386, 54282",
            "the residual token depends on the draft in a way that no given draft shows",
            "the draft and the residual token are drawn with the same Gumbel noise",
            "drafter and verifier",
            (),
            _case("vLLM 47386", [0.1, 0.6, 0.3], [0.8, 0.1, 0.1], "P(2) becomes .27"),
        ),
        KnownBug(
            "openvino-genai-2331",
            "OpenVINO GenAI 2331",
            "the output repeats the prompt",
            "drafts of prompt lookup are always accepted",
            "drafter and verifier",
            ("accept-always",),
            _case("OpenVINO GenAI 2331", [0.5, 0.5], [0.0, 1.0], "a certain draft of mass .5"),
        ),
        KnownBug(
            "ml-recurrent-drafter-6",
            "apple/ml-recurrent-drafter 6",
            "the drafter's best candidates come out too often",
            "candidates of a beam search are judged as if they had been sampled from q",
            "drafter and verifier",
            (),
            _case("apple/ml-recurrent-drafter 6", [0.4, 0.3, 0.3], [0.5, 0.3, 0.2], "drafts are the best of q"),
        ),
        KnownBug(
            "vllm-9834",
            "vLLM 9834",
            "the output ignores top-k where drafts are verified",
            "the target verifies without the request's sampling settings",
            "engine",
        ),
        KnownBug(
            "tensorrt-llm-17701",
            "TensorRT-LLM 17701",
            "penalties have no effect",
            "the speculative path does not apply them, and does not say so",
            "engine",
        ),
        KnownBug(
            "vllm-6034",
            "vLLM 6034, TensorRT-LLM 17599",
            "the same seed twice gives different text",
            "the request's seed does not reach the speculative sampler",
            "engine",
            (),
            _case(
                "vLLM 6034", np.full((3, 8), 0.125), np.full((2, 8), 0.125), "the same seed twice, eight even tokens"
            ),
        ),
        KnownBug(
            "vllm-44292",
            "vLLM 44292",
            "the bonus token breaks the grammar",
            "the grammar's mask is not applied to the row of the bonus token",
            "engine",
        ),
        KnownBug(
            "mlx-lm-1423",
            "mlx-lm 1423",
            "greedy text changes after a rejection in a long context",
            "the cache is not rewound past its window",
            "engine",
        ),
        KnownBug(
            "sglang-11572",
            "SGLang 11572",
            "the reported acceptance rate exceeds 1",
            "the counters of accepted and of drafted tokens do not belong together",
            "counters",
        ),
    )


def corpus_cases() -> list[Case]:
    """The cases of the known bugs, in order."""
    return [bug.case for bug in known_bugs() if bug.case is not None]
