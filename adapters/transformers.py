# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers>=5.23", "torch>=2.6", "numpy"]
# ///
"""The verification step of Hugging Face Transformers: the installed library's own `_speculative_sampling`, one round a call.

The function lives in `transformers.generation.utils` and is what assisted generation calls after each draft. It takes one
sequence at a time and draws two things, `torch.rand_like` and `torch.multinomial`, looked up on `torch` when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from auditor.adapter import PAD, BoolArray, FloatArray, IntArray, Law

# With unit roundoff u (float32 2^-24, float16 2^-11, bfloat16 2^-8) a logit log x rounds by u |log x|; the logits' errors move
# the normaliser by at most u H <= u log V, relatively; the softmax rounds its result once more, u. All together
# u (|log x| + log V + 1), which is at most u (log V + 2) max(1, |log x|), and log V + 2 < 14 for V = 128k. Two more u for the
# quotient and the residual's share: 16 u, which is 1e-6 for float32. (How a long float32 sum errs is in the auditor's own box.)
# Float16: below 6e-5 its numbers lie 6e-8 apart. Half of that must be within x t(x) down to x = 6.2e-8, where the box lets x
# vanish: 3e-8 / (6.2e-8 * 16.6) = 0.03.
_TOLERANCES = {"float32": 1e-6, "float16": 3e-2, "bfloat16": 16 * 2.0**-8}

# The uniforms of `rand_like` in a short type are multiples of u, and `r <= ratio` accepts up to u too often; `multinomial`
# compares quotients by exponential draws of the same type, where ties go to the first token, another u.
_RESOLUTIONS = {"float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class SpeculativeSampling:
    """`_speculative_sampling` of the installed Transformers, with its own random numbers; `law` replaces those.

    Parameters
    ----------
    dtype : "float32", "float16" or "bfloat16", the type of the logits that the function is given.

    Raises ValueError for another dtype, ImportError where Transformers or PyTorch is missing. The function itself raises
    RuntimeError where p and q differ by rounding alone and a draft is rejected all the same: its residual is empty then.
    """

    rule = "rejection"
    max_elements = 2**22

    def __init__(self, dtype: str = "float32") -> None:
        if dtype not in _TOLERANCES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_TOLERANCES)}")
        import torch
        from transformers.generation import utils

        self._torch: Any = torch
        self._utils: Any = utils
        self._dtype = getattr(torch, dtype)
        self.tolerance = _TOLERANCES[dtype]
        self.resolution = _RESOLUTIONS[dtype]

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> tuple[IntArray, BoolArray]:
        """First tokens [n] and whether each was the accepted draft [n], for p, q [V]: rounds of one draft."""
        # The drafts are the adapter's part, so their randomness is of another kind than the library's.
        cdf = np.cumsum(q)
        uniforms = np.random.default_rng([seed, 1]).random(n) * cdf[-1]
        drafts = np.minimum(np.searchsorted(cdf, uniforms, side="right"), np.flatnonzero(q)[-1])
        p, q = np.broadcast_to(p, (n, 2, len(p))), np.broadcast_to(q, (n, 1, len(q)))
        tokens = self.verify(p, q, drafts[:, None], seed)
        return tokens[:, 0], tokens[:, 1] != PAD

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> IntArray:
        """Tokens [B, gamma+1] for p [B, gamma+1, V], q [B, gamma, V], drafts [B, gamma]: one call of the library a row."""
        batch, gamma = drafts.shape
        tokens = np.full((batch, gamma + 1), PAD, np.int64)
        rows = self._rows(p, q, drafts)
        with self._one_thread(), self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed)
            for b, (ids, q_logits, p_logits) in enumerate(rows):
                valid, _ = self._utils._speculative_sampling(ids, q_logits, gamma, p_logits)
                emitted = valid[0].numpy()
                tokens[b, : len(emitted)] = emitted
        return tokens

    def law(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> Law:
        """What the function computes with: the ratio it compares with a uniform, the laws it draws the last token from.

        Each row is run once with every draft accepted, then once with a rejection at each position. The residual is a row of
        zeros where the function's own is empty, and drawing from it would raise.
        """
        batch, gamma = drafts.shape
        law = Law(np.empty((batch, gamma)), np.empty(q.shape), np.empty((batch, p.shape[-1])))
        with self._one_thread():
            for b, (ids, q_logits, p_logits) in enumerate(self._rows(p, q, drafts)):
                for stop in range(gamma + 1):
                    ratio, drawn_from = self._replaced(ids, q_logits, p_logits, stop)
                    if stop == gamma:
                        # An accepting comparison with a uniform; a ratio of 0/0 accepts nothing.
                        law.accept[b] = np.clip(np.nan_to_num(ratio, nan=0.0, posinf=1.0), 0.0, 1.0)
                        law.bonus[b] = drawn_from
                    else:
                        law.residual[b, stop] = drawn_from if np.isfinite(drawn_from).all() else 0.0
        return law

    def _replaced(self, ids: Any, q_logits: Any, p_logits: Any, stop: int) -> tuple[FloatArray, FloatArray]:
        """One call that accepts up to position `stop`: its ratios [gamma], and the law [V] of its last token."""
        torch = self._torch
        seen: dict[str, FloatArray] = {}

        def rand_like(ratio: Any) -> _Forced:
            seen["ratio"] = ratio.double().numpy()
            return _Forced(torch.arange(len(ratio)) < stop)

        def multinomial(law: Any, num_samples: int) -> Any:
            seen["law"] = law.double().numpy()[0]
            return torch.zeros((1, num_samples), dtype=torch.long)

        kept = torch.rand_like, torch.multinomial
        torch.rand_like, torch.multinomial = rand_like, multinomial
        try:
            self._utils._speculative_sampling(ids, q_logits, q_logits.shape[1], p_logits)
        finally:
            torch.rand_like, torch.multinomial = kept
        return seen["ratio"], seen["law"]

    def _rows(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> Iterator[tuple[Any, Any, Any]]:
        """Per row the arguments of a call: ids [1, gamma], logits of q [1, gamma, V], logits of p [1, gamma+1, V]."""
        ids = self._torch.from_numpy(np.array(drafts, np.int64))
        # A batch of one case is a view whose rows are the same memory; it is converted once.
        p_logits = self._logits(p[:1] if p.strides[0] == 0 else p)
        q_logits = self._logits(q[:1] if q.strides[0] == 0 else q)
        for b in range(len(drafts)):
            i, j = b % len(q_logits), b % len(p_logits)
            yield ids[b : b + 1], q_logits[i : i + 1], p_logits[j : j + 1]

    def _logits(self, law: FloatArray) -> Any:
        with np.errstate(divide="ignore"):
            return self._torch.from_numpy(np.log(law)).to(self._dtype)

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Calls this small spend their time handing work to threads; and nothing here needs a gradient."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            with self._torch.inference_mode():
                yield
        finally:
            self._torch.set_num_threads(threads)


class _Forced:
    """Stands for the uniforms: however the function compares them with its ratios, the answer is settled [gamma]."""

    def __init__(self, accepted: Any) -> None:
        self.accepted = accepted

    def __le__(self, ratio: Any) -> Any:
        return self.accepted

    __lt__ = __le__
