"""Calls of a whole engine: generations that are checked before they are believed, and the models it is asked to run.

Beside `generate` an adapter may have `plain(model, prompts, max_new_tokens, settings, seed)`, its generation without
speculation, and, where it brings its own architectures, `models(seed) -> list[Model]` with
`logits(model, "target" or "draft", tokens [N, T]) -> [N, T, V]`, their law from a pass over whole sequences. Its attributes
`settings` (names, in the order of application), `draft_length`, `drafts_from_model` and `focus` (settings that the mode is
about, which get half of the visits with settings) say what to expect of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from auditor.adapter import FloatArray, Generation, IntArray, Model, Settings
from auditor.calls import Subject
from auditor.engines.sequences import LogitsOf
from auditor.errors import BadAnswer
from auditor.oracle import Llama, Pair, attentive_pair, table_pair, write_pair


class EngineSubject(Subject):
    """An adapter with `generate`."""

    def __init__(self, adapter: object) -> None:
        super().__init__(adapter)
        self.draft_length: int = self._attribute("draft_length", 0, int)
        self.drafts_from_model: bool = self._attribute("drafts_from_model", True, bool)
        self.focus: tuple[str, ...] = tuple(self._attribute("focus", (), tuple))
        self.has_plain = callable(getattr(adapter, "plain", None))
        self.has_models = callable(getattr(adapter, "models", None)) and callable(getattr(adapter, "logits", None))

    def generate(
        self, model: Model, prompts: Sequence[Sequence[int]], cap: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """One checked generation for each prompt. Raises CallFailed, BadAnswer."""
        return _checked(
            self._call("generate", model, prompts, cap, settings, seed), len(prompts), model.vocab, "generate"
        )

    def plain(
        self, model: Model, prompts: Sequence[Sequence[int]], cap: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """The same without speculation."""
        return _checked(self._call("plain", model, prompts, cap, settings, seed), len(prompts), model.vocab, "plain")

    def models(self, seed: int) -> list[Model]:
        """The adapter's own models."""
        return list(self._call("models", seed)) if self.has_models else []

    def logits(self, model: Model, which: str, tokens: IntArray, positions: IntArray | None) -> FloatArray:
        """Logits of an own model; the adapter has no say over positions, so asking for them is an error of ours."""
        assert positions is None
        return np.asarray(self._call("logits", model, which, tokens), np.float64)


@dataclass(frozen=True)
class Known:
    """A model of known law, ready for an engine."""

    model: Model
    kind: str
    """"table", "attentive", or "own" for an architecture of the adapter's."""
    target: LogitsOf
    draft: LogitsOf | None


def known_models(subject: EngineSubject, directory: Path, seed: int) -> list[Known]:
    """The models that an engine is audited on: its own where it brings some, else two attentive pairs and a table."""
    own = subject.models(seed)
    if own:
        return [
            Known(
                model,
                "own",
                partial(subject.logits, model, "target"),
                partial(subject.logits, model, "draft") if subject.drafts_from_model else None,
            )
            for model in own
        ]
    pairs = (
        attentive_pair(8, seed, closeness=0.3),
        table_pair(8, seed, closeness=0.35),
        attentive_pair(8, seed + 1, closeness=0.15),
    )
    return [_known(pair, write_pair(pair, directory / pair.key), subject.drafts_from_model) for pair in pairs]


def _known(pair: Pair, model: Model, drafts: bool) -> Known:
    laws = [_looked_up(one) if pair.kind == "table" else one.logits for one in (pair.target, pair.draft)]
    return Known(model, pair.kind, laws[0], laws[1] if drafts else None)


def _looked_up(model: Llama) -> LogitsOf:
    """The logits of a Markov chain, from its table instead of a forward pass."""
    table = model.logits(np.arange(model.shape.vocab)[:, None])[:, 0]
    return lambda tokens, positions: np.asarray(table[tokens])


def _checked(answer: Any, count: int, vocab: int, method: str) -> list[Generation]:
    if not isinstance(answer, list | tuple) or len(answer) != count:
        found = f"{len(answer)}" if isinstance(answer, list | tuple) else type(answer).__name__
        raise BadAnswer("shape", f"{method} returned {found}, expected a list of {count} generations")
    return [_generation(one, vocab, method) for one in answer]


def _generation(one: Any, vocab: int, method: str) -> Generation:
    tokens = _whole(getattr(one, "tokens", None), "tokens", method, 1)
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab):
        worst = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
        raise BadAnswer("range", f"{method} returned the token id {worst}; the vocabulary has {vocab}")
    drafted, accepted = (_optional(getattr(one, name, None), name, method, 1) for name in ("drafted", "accepted"))
    if (drafted is None) != (accepted is None) or (
        drafted is not None and accepted is not None and drafted.shape != accepted.shape
    ):
        raise BadAnswer("shape", f"{method} returned counts of drafted and accepted tokens that do not pair up")
    drafts = _optional(getattr(one, "drafts", None), "drafts", method, 2)
    laws = getattr(one, "draft_probs", None)
    if drafts is not None and (drafted is None or len(drafts) != len(drafted)):
        raise BadAnswer("shape", f"{method} returned drafts of {len(drafts)} rounds, counts of another number")
    if laws is not None:
        laws = np.asarray(laws, np.float64)
        if drafts is None or laws.shape != (*drafts.shape, vocab):
            raise BadAnswer(
                "shape", f"{method} returned draft_probs of shape {laws.shape}, which do not fit its drafts"
            )
        if not np.isfinite(laws).all():
            raise BadAnswer("nan", f"{method} returned draft_probs that are not finite")
    logprobs = getattr(one, "logprobs", None)
    if logprobs is not None:
        logprobs = np.asarray(logprobs, np.float64)
        if logprobs.shape != tokens.shape:
            raise BadAnswer("shape", f"{method} returned {logprobs.shape} logprobs for {tokens.shape} tokens")
    return Generation(tokens, drafted, accepted, logprobs, str(getattr(one, "finish", "")), drafts, laws)


def _optional(value: Any, name: str, method: str, dimensions: int) -> IntArray | None:
    return None if value is None else _whole(value, name, method, dimensions)


def _whole(value: Any, name: str, method: str, dimensions: int) -> IntArray:
    if value is None:
        raise BadAnswer("nothing", f"{method} returned a generation without {name}")
    array = np.asarray(value)
    if array.size == 0 and array.ndim <= dimensions:
        return np.zeros((0,) * dimensions if array.ndim < dimensions else array.shape, np.int64)
    if array.ndim != dimensions:
        raise BadAnswer("shape", f"{method} returned {name} of shape {array.shape}, expected {dimensions} dimensions")
    if array.dtype.kind not in "iu":
        raise BadAnswer("type", f"{method} returned {array.dtype} {name}, expected integers")
    return array.astype(np.int64)
