"""The interface between the auditor and an implementation of speculative sampling.

An adapter is any object with one or more of the methods `sample`, `verify`, `speculate`, `law` and `generate`; the audit
runs every claim that they make checkable. It need not inherit from anything: `Adapter` below is the interface written
down, with the default of every class attribute, for editors, type checkers and readers.

This module imports the standard library and NumPy only, so that an adapter file can be loaded in an environment that has
its engine and little else.

Arrays are NumPy. Probabilities are float64 and each row sums to 1; token ids are int64. `seed` is an int in [0, 2**31);
different seeds must give independent draws. `p` and `q` may be read-only broadcast views (axes of stride 0): read them,
gather from them, do not write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

METHODS = ("sample", "verify", "speculate", "law", "generate")
PAD = -1


@dataclass(frozen=True)
class Mode:
    """One way in which an implementation can be run; it is built as `cls(mode=name, **options)` and audited on its own."""

    name: str
    rule: str = "rejection"
    tolerance: float = 1e-6
    summary: str = ""


@dataclass(frozen=True)
class Settings:
    """Sampling settings of one request. The defaults are neutral; temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    eos: int | None = None
    min_new_tokens: int = 0
    stop: tuple[tuple[int, ...], ...] = ()
    guidance_scale: float = 1.0


@dataclass(frozen=True)
class Round:
    """Whole rounds: tokens [n, gamma+1] and drafts [n, gamma], padded with -1; draft_probs [n, gamma, V] or None."""

    tokens: IntArray
    drafts: IntArray
    draft_probs: FloatArray | None = None


@dataclass(frozen=True)
class Law:
    """The exact law of a verification, measured without sampling noise.

    accept: [B, gamma], the probability that the draft of each position is accepted, given that it is reached.
    residual: [B, gamma, V], the law of the token after a rejection there; a zero row says that rejection is impossible.
    bonus: [B, V], the law of the extra token once every draft was accepted.
    """

    accept: FloatArray
    residual: FloatArray
    bonus: FloatArray


@dataclass(frozen=True)
class Generation:
    """One generated sequence: new tokens [T]; per round the numbers of drafted and accepted tokens, where reported."""

    tokens: IntArray
    drafted: IntArray | None = None
    accepted: IntArray | None = None
    logprobs: FloatArray | None = None
    finish: str = ""
    drafts: IntArray | None = None
    """[rounds, longest draft]: the drafted tokens, padded with -1, where the engine shows them."""
    draft_probs: FloatArray | None = None
    """[rounds, longest draft, V]: the law that each draft is said to come from."""


@dataclass(frozen=True)
class Model:
    """A model of known law for `generate`: checkpoint folders of target and draft. Cache the engine on `key`."""

    key: str
    vocab: int
    target: str
    draft: str
    arrays: Mapping[str, FloatArray] = field(default_factory=dict)


@runtime_checkable
class Adapter(Protocol):
    """The interface, written down. Every attribute is optional and has the default shown; so is every method.

    Examples
    --------
    >>> import numpy as np
    >>> class Mine:
    ...     tolerance = 1e-6
    ...     def sample(self, p, q, n, seed):
    ...         rng = np.random.default_rng(seed)
    ...         return rng.choice(len(p), size=n, p=p)      # not speculative, but its output law is right
    >>> Mine().sample(np.array([0.5, 0.5]), np.array([0.9, 0.1]), 3, 0).shape
    (3,)
    """

    rule: str = "rejection"
    """The rule it claims to follow: `rejection`, `onehot` or `match`."""
    tolerance: float = 1e-6
    """Relative error of its arithmetic: 1e-6 for float32, 1e-2 for bfloat16."""
    resolution: float = 2.0**-21
    """Absolute resolution of its random draws."""
    settings: Sequence[str] = ()
    """Names of the `Settings` that `verify` honours, in the order in which it applies them."""
    ragged: bool = False
    """Rows of one batch may have different draft lengths."""
    reproducible: bool = True
    """The same seed gives the same draws."""
    max_batch: int | None = None
    """Rows a call, where the engine has a limit (1: not batched)."""
    max_elements: int = 2**24
    """B * (gamma+1) * V that a call may hold if it copies its input."""
    modes: Sequence[Mode] = ()

    def sample(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> Any:
        """One draft from `q` [V] and its verification against `p` [V], `n` times, independently.

        Returns tokens [n] (the first emitted token) and accepted [n] (bool), or just tokens [n].
        """

    def verify(self, p: FloatArray, q: FloatArray, drafts: IntArray, seed: int) -> Any:
        """Verify drafts [B, gamma], which the caller drew from q [B, gamma, V], against p [B, gamma+1, V].

        Row b of `p` may differ from row b' (a mixed batch). Returns tokens [B, gamma+1]: the emitted tokens of the round,
        then -1. Where `ragged`, row b has g_b drafts and then -1; its bonus row is p[b, g_b] and later rows are to be ignored.
        Where `settings` is not empty it also takes `settings: list[Settings]`, one per row; `p` is then the target's
        law before settings and `q` the law that the drafts came from. Under the rules `onehot` and `match`, q is for
        information only.
        """

    def speculate(self, p: FloatArray, q: FloatArray, n: int, seed: int) -> Round:
        """A whole round, `n` times, with the implementation's own drafter: p [gamma+1, V], q [gamma, V]."""

    def law(self, p: FloatArray, q: FloatArray, drafts: IntArray) -> Law:
        """The exact law for p [B, gamma+1, V], q [B, gamma, V], drafts [B, gamma], by replacing the random numbers."""

    def generate(
        self, model: Model, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings, seed: int
    ) -> list[Generation]:
        """A whole engine on a model of known law: one `Generation` per prompt."""
