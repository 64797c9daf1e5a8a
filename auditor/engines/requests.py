"""What a whole engine is asked: prompts, caps, and settings alone and combined.

The settings come from a Hypothesis strategy, alone first and then in combinations, limited to what the engine takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import hypothesis
import numpy as np
from hypothesis import strategies as st

from auditor.adapter import Settings
from auditor.settings import ENDINGS, TRANSFORMS

CAP = 8


@dataclass(frozen=True)
class Request:
    """One prompt with its settings: what a visit asks, many times over."""

    model: int
    """Index of the model of known law."""
    prompt: tuple[int, ...]
    cap: int
    settings: Settings


def _choices(vocab: int) -> dict[str, st.SearchStrategy[object]]:
    """A strategy for each setting, in ranges where it matters on a vocabulary of `vocab`."""
    token = st.integers(0, vocab - 1)
    return {
        "guidance_scale": st.sampled_from([1.5, 2.0]),
        "logit_bias": st.lists(
            st.tuples(token, st.sampled_from([-2.0, -1.0, 1.0, 2.0])), min_size=1, max_size=2, unique_by=lambda b: b[0]
        ).map(tuple),
        "repetition_penalty": st.sampled_from([1.2, 1.5, 0.8]),
        "presence_penalty": st.sampled_from([0.5, 1.0, -0.5]),
        "frequency_penalty": st.sampled_from([0.3, 0.8, -0.3]),
        "no_repeat_ngram": st.sampled_from([2, 3]),
        "bad_words": st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple),
        "temperature": st.sampled_from([0.5, 0.7, 1.3, 2.0]),
        "top_k": st.integers(2, max(2, vocab // 2)),
        "top_p": st.sampled_from([0.5, 0.7, 0.9]),
        "min_p": st.sampled_from([0.05, 0.15, 0.3]),
        "eos": token,
        "min_new_tokens": st.integers(1, 4),
        "stop": st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple),
    }


def settings_strategy(names: Sequence[str], vocab: int) -> st.SearchStrategy[Settings]:
    """Settings in which exactly `names` are not neutral; `min_new_tokens` brings an EOS with it."""
    choices = _choices(vocab)
    wanted = {name for name in names if name in choices}
    if "min_new_tokens" in wanted:
        wanted.add("eos")
    ordered = sorted(wanted)
    return st.tuples(*(choices[name] for name in ordered)).map(
        lambda values: replace(Settings(), **dict(zip(ordered, values, strict=True)))
    )


def pick_settings(names: Sequence[str], vocab: int, combinations: int, seed: int) -> list[Settings]:
    """Each setting of `names` alone, then `combinations` of two to four of them, as Hypothesis draws them."""
    known = [name for name in (*ENDINGS, *TRANSFORMS) if name in names]
    alone = [name for name in known if name != "min_new_tokens" or "eos" in known]
    groups: list[st.SearchStrategy[Settings]] = [settings_strategy([name], vocab) for name in alone]
    several = st.sets(st.sampled_from(known), min_size=2, max_size=4).flatmap(
        lambda chosen: settings_strategy(sorted(chosen), vocab)
    )
    if len(known) > 1:
        groups += [several] * combinations
    return [_draw(strategy, seed + k) for k, strategy in enumerate(groups)]


def draw_settings(names: Sequence[str], vocab: int, seed: int) -> Settings:
    """Settings in which exactly `names` are not neutral, the same for the same seed."""
    return _draw(settings_strategy(names, vocab), seed)


def _draw(strategy: st.SearchStrategy[Settings], seed: int) -> Settings:
    """One value of a strategy, the same for the same seed; not the first one, which is always the simplest."""
    drawn: list[Settings] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=5,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(value: Settings) -> None:
        drawn.append(value)

    collect()
    return drawn[-1]


def prompt(vocab: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A prompt of 5 tokens in which a pair comes twice, so that a lookup in the text finds something."""
    a, b, c = (int(x) for x in rng.integers(0, vocab, 3))
    return (a, b, c, a, b)
