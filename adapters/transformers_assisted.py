# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers>=5.23", "torch>=2.6", "numpy"]
# ///
"""Assisted generation of Hugging Face Transformers, whole: `model.generate` with a draft of every kind that the library has.

Each mode is one way to draft. The library's own loop runs unchanged; its candidate generator is watched from outside, so that
drafts, their reported law, and the counts of every round are what the library itself computed with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.adapter import FloatArray, Generation, IntArray, Mode, Model, Settings

_COMMON = (
    "logit_bias",
    "repetition_penalty",
    "no_repeat_ngram",
    "bad_words",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "eos",
)
"""In the order of `GenerationMixin._get_logits_processor`."""

TOLERANCE = 1e-4
"""Whole float32 models: the tolerance that the adapter declares, for each of its modes too."""
_MODES = (
    Mode("draft-model", "rejection", TOLERANCE, "a smaller model drafts; constant schedule"),
    Mode("draft-equals-target", "rejection", TOLERANCE, "the draft model is the target"),
    Mode("heuristic-schedule", "rejection", TOLERANCE, "draft lengths follow the library's heuristic"),
    Mode("confidence-threshold", "rejection", TOLERANCE, "drafting stops where the draft model is unsure"),
    Mode("prompt-lookup", "match", TOLERANCE, "drafts are looked up in the text"),
    Mode("early-exit", "rejection", TOLERANCE, "the target drafts with its first layer"),
    Mode("different-tokenizers", "rejection", TOLERANCE, "universal assisted generation between two tokenizers"),
    Mode("gemma4-assistant", "rejection", TOLERANCE, "a Gemma-4-style assistant drafts from the target's own states"),
    Mode("mtp", "rejection", TOLERANCE, "multi-token prediction layers of GLM-4-MoE draft"),
    Mode("dflash", "rejection", TOLERANCE, "a block-diffusion assistant drafts a block at once"),
    Mode("guidance", "rejection", TOLERANCE, "classifier-free guidance on top of a draft model"),
    Mode("stopping-criterion", "rejection", TOLERANCE, "a custom stopping criterion on top of a draft model"),
    Mode("llama", "rejection", TOLERANCE, "Llama with random weights, its draft one of the same kind"),
    Mode("mistral", "rejection", TOLERANCE, "Mistral with a sliding window of 4"),
    Mode("gpt2", "rejection", TOLERANCE, "GPT-2 with learned positions"),
    Mode("qwen2", "rejection", TOLERANCE, "Qwen2 with biases in its attention"),
)
_OWN_MODELS = ("gemma4-assistant", "mtp", "dflash", "llama", "mistral", "gpt2", "qwen2")
_DRAFTING_OTHERWISE = ("prompt-lookup", "early-exit", "different-tokenizers", "gemma4-assistant", "mtp", "dflash")
"""Modes whose drafts do not come from a draft model of known law."""


@dataclass
class _Watched:
    """One generation as the library went through it."""

    drafts: list[IntArray]
    laws: list[FloatArray | None]
    accepted: list[int]


class AssistedGeneration:
    """`generate` of Transformers with a draft, on models of known law.

    Parameters
    ----------
    mode : one of `modes`.
    draft_length : drafted tokens a round, where the mode does not choose.
    """

    modes = _MODES
    tolerance = TOLERANCE
    max_batch = 1
    draft_length = 3

    def __init__(self, mode: str = "draft-model", draft_length: int = 3) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        logging.getLogger("transformers").setLevel(logging.ERROR)
        torch.set_grad_enabled(False)
        # Models this small lose more to handing work around than they gain from a second thread.
        torch.set_num_threads(1)
        self._torch = torch
        self._transformers = transformers
        chosen = {m.name: m for m in _MODES}
        if mode not in chosen:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(chosen)}")
        self.mode = mode
        self.rule = chosen[mode].rule
        self.draft_length = int(draft_length)
        self.settings = {
            "guidance": ("guidance_scale", *_COMMON),
            "stopping-criterion": (*_COMMON, "stop"),
        }.get(mode, _COMMON)
        self.focus = {"guidance": ("guidance_scale",), "stopping-criterion": ("stop",)}.get(mode, ())
        self.drafts_from_model = mode not in _DRAFTING_OTHERWISE
        self._loaded: dict[str, tuple[Any, Any]] = {}
        self._double: dict[tuple[str, str], Any] = {}
        self._tokenizers: dict[str, tuple[Any, Any]] = {}

    @property
    def engine(self) -> dict[str, str]:
        """Versions of the libraries."""
        return {"transformers": self._transformers.__version__, "torch": self._torch.__version__}

    # ------------------------------------------------------------------------------------------ models

    def models(self, seed: int) -> list[Model]:
        """The mode's own models, where it needs an architecture of its own; else none, and any Llama pair will do."""
        if self.mode not in _OWN_MODELS:
            return []
        key = f"{self.mode}-{seed}"
        if key not in self._loaded:
            self._loaded[key] = _BUILDERS[self.mode](self._torch, self._transformers, seed)
        return [Model(key, self._loaded[key][0].config.vocab_size, "", "")]

    def logits(self, model: Model, which: str, tokens: IntArray) -> FloatArray:
        """Logits [N, T, V] of "target" or "draft" from a float64 pass over whole sequences, without a cache."""
        slot = (model.key, which)
        if slot not in self._double:
            import copy

            self._double[slot] = copy.deepcopy(self._load(model)[0 if which == "target" else 1]).double()
        out = self._double[slot](input_ids=self._torch.tensor(tokens), use_cache=False).logits
        return np.asarray(out.double().numpy())

    def _load(self, model: Model, greedy: bool = False) -> tuple[Any, Any]:
        key = model.key
        if self.mode == "different-tokenizers" and greedy:
            # Sampling prunes the head of the draft in place; greedy drafting needs one that has never sampled.
            key += "-greedy"
        if key not in self._loaded:
            auto, kind = self._transformers.AutoModelForCausalLM, self._torch.float32
            target = auto.from_pretrained(model.target, dtype=kind).eval()
            if self.mode == "draft-equals-target":
                draft = target
            elif self.mode == "different-tokenizers":
                draft = self._other_tokenizer(model, key, auto.from_pretrained(model.draft, dtype=kind).eval())
            else:
                draft = auto.from_pretrained(model.draft, dtype=kind).eval()
            self._loaded[key] = (target, draft)
        return self._loaded[key]

    def _other_tokenizer(self, model: Model, key: str, draft: Any) -> Any:
        """The draft with its vocabulary in another order, and one word that the target does not have."""
        target_tokenizer = self._transformers.AutoTokenizer.from_pretrained(model.target)
        order = np.random.default_rng(model.vocab).permutation(model.vocab + 1)
        words = [str(target_tokenizer.convert_ids_to_tokens(i)) for i in range(model.vocab)]
        names = [words[i] if i < model.vocab else "unknown" for i in order]
        rows = self._torch.tensor(np.where(order < model.vocab, order, 0))
        inputs, outputs = draft.get_input_embeddings(), draft.get_output_embeddings()
        for layer in (inputs, outputs):
            layer.weight.data = layer.weight.data[rows].clone()
        inputs.num_embeddings = outputs.out_features = draft.config.vocab_size = draft.vocab_size = len(names)
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit

        inner = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
        inner.pre_tokenizer = WhitespaceSplit()
        draft_tokenizer = self._transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
        self._tokenizers[key] = (target_tokenizer, draft_tokenizer)
        return draft

    # ---------------------------------------------------------------------------------------- generation

    def generate(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """One assisted generation for each prompt; the library takes one sequence at a time."""
        greedy = settings.temperature == 0
        target, draft = self._load(model, greedy)
        self._torch.manual_seed(seed)
        how = self._drafting(model.key + ("-greedy" if greedy else ""), target, draft)
        return [self._one(target, draft, prompt, max_new_tokens, settings, how) for prompt in prompts]

    def plain(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """The same without a draft, in one batch; the prompts must have one length."""
        target, _ = self._load(model)
        self._torch.manual_seed(seed)
        ids = self._torch.tensor([list(prompt) for prompt in prompts])
        mask = self._torch.ones_like(ids)
        out = target.generate(ids, attention_mask=mask, **self._arguments(settings, max_new_tokens, ids.shape[1]))
        made = out[:, ids.shape[1] :].numpy().astype(np.int64)
        return [Generation(_until(row, settings)) for row in made]

    def _drafting(self, key: str, target: Any, draft: Any) -> dict[str, Any]:
        """The arguments of `generate` that make the mode."""
        length = self.draft_length
        if self.mode == "prompt-lookup":
            return {"prompt_lookup_num_tokens": length}
        if self.mode == "mtp":
            return {"use_mtp": True}
        if self.mode == "dflash":
            return {"assistant_model": draft, "speculation_type": "dflash"}
        if self.mode == "early-exit":
            _assistant(target, length)
            return {"assistant_early_exit": 1}
        if self.mode == "different-tokenizers":
            _assistant(draft, length)
            target_tokenizer, draft_tokenizer = self._tokenizers[key]
            return {"assistant_model": draft, "tokenizer": target_tokenizer, "assistant_tokenizer": draft_tokenizer}
        if self.mode == "heuristic-schedule":
            _assistant(draft, length, schedule="heuristic_transient")
        elif self.mode == "confidence-threshold":
            _assistant(draft, length + 2, threshold=0.4)
        else:
            _assistant(draft, length)
        return {"assistant_model": draft}

    def _one(
        self, target: Any, draft: Any, prompt: Sequence[int], cap: int, settings: Settings, how: Mapping[str, Any]
    ) -> Generation:
        ids = self._torch.tensor([list(prompt)])
        arguments = {**self._arguments(settings, cap, len(prompt)), "attention_mask": self._torch.ones_like(ids)}
        with _watching(target) as watched, self._layers(draft):
            out = target.generate(ids, **arguments, **how, output_logits=True, return_dict_in_generate=True)
        tokens = out.sequences[0, len(prompt) :].numpy().astype(np.int64)
        rows = self._torch.cat(out.logits).double().log_softmax(-1).numpy()
        logprobs = rows[np.arange(len(tokens)), tokens]
        return _generation(tokens, watched, logprobs)

    @contextmanager
    def _layers(self, draft: Any) -> Iterator[None]:
        """In the mode "mtp" the library reads the drafting layers from a checkpoint; here it gets layers made in memory."""
        if self.mode != "mtp":
            yield
            return
        from transformers.modeling_layers import MtpModel

        MtpModel.from_pretrained = classmethod(lambda cls, main_model, **kwargs: draft)
        try:
            yield
        finally:
            del MtpModel.from_pretrained

    def _arguments(self, settings: Settings, cap: int, start: int) -> dict[str, Any]:
        """Settings as arguments of `generate`, none left to a default of the library."""
        out: dict[str, Any] = {
            "max_new_tokens": cap,
            "do_sample": settings.temperature > 0,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
        }
        if settings.temperature > 0:
            out["temperature"] = settings.temperature
        else:
            out.update(top_k=None, top_p=None)
        if settings.min_p > 0:
            out["min_p"] = settings.min_p
        if settings.repetition_penalty != 1.0:
            out["repetition_penalty"] = settings.repetition_penalty
        if settings.no_repeat_ngram:
            out["no_repeat_ngram_size"] = settings.no_repeat_ngram
        if settings.bad_words:
            out["bad_words_ids"] = [list(word) for word in settings.bad_words]
        if settings.logit_bias:
            out["sequence_bias"] = [[[token], float(bias)] for token, bias in settings.logit_bias]
        if settings.eos is not None:
            # Padding that is a token of its own would be taken for padding wherever it stands in a prompt.
            out["eos_token_id"] = out["pad_token_id"] = settings.eos
            if settings.min_new_tokens:
                out["min_new_tokens"] = settings.min_new_tokens
        if settings.guidance_scale != 1.0:
            out["guidance_scale"] = settings.guidance_scale
        if settings.stop:
            out["stopping_criteria"] = [self._stopping(settings.stop, start)]
        return out

    def _stopping(self, stops: tuple[tuple[int, ...], ...], start: int) -> Any:
        """A stopping criterion as a user would write it: true once a stop sequence is among the new tokens."""
        torch = self._torch

        class Stop(self._transformers.StoppingCriteria):  # type: ignore[misc, name-defined]
            def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
                done = torch.zeros(len(input_ids), dtype=torch.bool)
                for stop in stops:
                    for begin in range(start, input_ids.shape[1] - len(stop) + 1):
                        done |= (input_ids[:, begin : begin + len(stop)] == torch.tensor(stop)).all(-1)
                return done

        return Stop()


def _assistant(model: Any, length: int, schedule: str = "constant", threshold: float = 0.0) -> None:
    """The draft's settings are read from its own generation config, and the heuristic writes to it."""
    config = model.generation_config
    config.num_assistant_tokens = length
    config.num_assistant_tokens_schedule = schedule
    config.assistant_confidence_threshold = threshold


def _until(row: IntArray, settings: Settings) -> IntArray:
    """A row of a batch without the padding behind its end."""
    for count in range(1, len(row) + 1):
        if settings.eos is not None and row[count - 1] == settings.eos:
            return row[:count]
        for stop in settings.stop:
            if tuple(row[max(0, count - len(stop)) : count]) == stop:
                return row[:count]
    return row


@contextmanager
def _watching(target: Any) -> Iterator[_Watched]:
    """Record what the library's candidate generator offers and how much of it is kept, round by round."""
    watched = _Watched([], [], [])
    make = target._get_candidate_generator

    def made(*args: Any, **kwargs: Any) -> Any:
        generator = make(*args, **kwargs)
        get, update = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: Any, *rest: Any, **named: Any) -> Any:
            ids, logits = get(input_ids, *rest, **named)
            watched.drafts.append(ids[0, input_ids.shape[1] :].cpu().numpy().astype(np.int64))
            watched.laws.append(None if logits is None else logits[0].double().softmax(-1).cpu().numpy())
            return ids, logits

        def update_candidate_strategy(input_ids: Any, scores: Any, num_matches: Any) -> Any:
            watched.accepted.append(int(num_matches))
            return update(input_ids, scores, num_matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy
        return generator

    target._get_candidate_generator = made
    try:
        yield watched
    finally:
        del target._get_candidate_generator


def _generation(tokens: IntArray, watched: _Watched, logprobs: FloatArray) -> Generation:
    rounds = len(watched.accepted)
    drafts = watched.drafts[:rounds]
    longest = max((len(d) for d in drafts), default=0)
    shown = np.full((rounds, longest), -1)
    for k, row in enumerate(drafts):
        shown[k, : len(row)] = row
    laws = None
    stated = [law for law in watched.laws[:rounds] if law is not None]
    if stated:
        laws = np.zeros((rounds, longest, stated[0].shape[-1]))
        for k, law in enumerate(watched.laws[:rounds]):
            if law is not None:
                laws[k, : len(law)] = law[:longest]
    return Generation(
        tokens,
        drafted=np.array([len(d) for d in drafts], np.int64),
        accepted=np.array(watched.accepted, np.int64),
        logprobs=logprobs,
        drafts=shown,
        draft_probs=laws,
    )


# ------------------------------------------------------------------------------- small architectures, random weights

_SMALL = {
    "vocab_size": 8,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


def _scaled(torch: Any, model: Any, seed: int, spread: float = 1.5) -> Any:
    """Weights large enough for attention and position to matter, and a head whose logits spread by `spread`."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        if value.dim() >= 2:
            fan_in = value.shape[-1] if "wte" not in name and "embed" not in name and "wpe" not in name else 1
            value.data = torch.randn(value.shape, generator=generator) * 1.5 / fan_in**0.5
    head = model.get_output_embeddings()
    ids = torch.randint(0, model.config.vocab_size, (64, 8), generator=generator)
    head.weight.data *= spread / model(input_ids=ids).logits.std(-1).mean()
    return model.eval()


def _near(torch: Any, target: Any, seed: int) -> Any:
    """A draft that shares the target's layers and has another head."""
    import copy

    draft = copy.deepcopy(target)
    head = draft.get_output_embeddings()
    noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed + 1))
    head.weight.data = head.weight.data + 0.6 * head.weight.data.std() * noise
    return draft.eval()


def _architecture(config: str, model: str, **changes: Any) -> Callable[[Any, Any, int], tuple[Any, Any]]:
    def build(torch: Any, transformers: Any, seed: int) -> tuple[Any, Any]:
        target = getattr(transformers, model)(getattr(transformers, config)(**{**_SMALL, **changes}))
        target = _scaled(torch, target, seed)
        return target, _near(torch, target, seed)

    return build


def _gpt2(torch: Any, transformers: Any, seed: int) -> tuple[Any, Any]:
    config = transformers.GPT2Config(
        vocab_size=8,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )
    target = _scaled(torch, transformers.GPT2LMHeadModel(config), seed)
    return target, _near(torch, target, seed)


def _gemma4(torch: Any, transformers: Any, seed: int) -> tuple[Any, Any]:
    kinds = ["sliding_attention", "full_attention"]
    sizes = {
        **_SMALL,
        "global_head_dim": 16,
        "sliding_window": 64,
        "layer_types": kinds,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }
    target = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**sizes))
    target = _scaled(torch, target, seed)
    text = transformers.Gemma4TextConfig(**sizes, num_kv_shared_layers=2)
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32, tie_word_embeddings=False)
    draft = transformers.Gemma4AssistantForCausalLM(config)
    generator = torch.Generator().manual_seed(seed + 1)
    for value in draft.parameters():
        if value.dim() == 2:
            value.data = torch.randn(value.shape, generator=generator) / value.shape[1] ** 0.5
    draft.lm_head.weight.data *= 1.5
    return target, draft.eval()


def _mtp(torch: Any, transformers: Any, seed: int) -> tuple[Any, Any]:
    from transformers.modeling_layers import MtpModel

    config = transformers.Glm4MoeConfig(
        **_SMALL,
        moe_intermediate_size=16,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
        num_mtp_layers=2,
    )
    target = _scaled(torch, transformers.Glm4MoeForCausalLM(config), seed)
    head = target.get_output_embeddings().weight.data.clone()
    embedding = target.get_input_embeddings().weight.data.clone()
    draft = MtpModel(target, 2)
    generator = torch.Generator().manual_seed(seed + 1)
    for value in draft.parameters():
        if value.dim() >= 2:
            value.data = torch.randn(value.shape, generator=generator) / value.shape[-1] ** 0.5
    # Head and embeddings are shared with the target.
    target.get_output_embeddings().weight.data, target.get_input_embeddings().weight.data = head, embedding
    return target, draft.eval()


def _dflash(torch: Any, transformers: Any, seed: int) -> tuple[Any, Any]:
    from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel

    target = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_SMALL, "vocab_size": 9}))
    target = _scaled(torch, target, seed)
    sizes = {name: value for name, value in _SMALL.items() if name not in ("vocab_size", "tie_word_embeddings")}
    config = transformers.MuseGlimmerAssistantConfig(
        **{**sizes, "num_hidden_layers": 1}, sliding_window=64, block_size=4, mask_token_id=8, target_layer_ids=[0, 1]
    )
    draft = MuseGlimmerAssistantModel(config)
    generator = torch.Generator().manual_seed(seed + 1)
    for value in draft.parameters():
        if value.dim() >= 2:
            value.data = torch.randn(value.shape, generator=generator) / value.shape[-1] ** 0.5
    return target, draft.eval()


_BUILDERS: dict[str, Callable[[Any, Any, int], tuple[Any, Any]]] = {
    "llama": _architecture("LlamaConfig", "LlamaForCausalLM"),
    "mistral": _architecture("MistralConfig", "MistralForCausalLM", sliding_window=4),
    "qwen2": _architecture("Qwen2Config", "Qwen2ForCausalLM"),
    "gpt2": _gpt2,
    "gemma4-assistant": _gemma4,
    "mtp": _mtp,
    "dflash": _dflash,
}

__all__ = ["AssistedGeneration"]
