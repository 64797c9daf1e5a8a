"""Sampling settings as laws: what a setting makes of the target's next-token logits, in float64.

One function a setting, each `(logits [N, V], Step) -> logits [N, V]`, -inf for what is forbidden; `apply` runs those that are
not neutral in the order in which the engine applies them. A cut (top-k, top-p, min-p) decides by comparing numbers, so
an engine whose arithmetic differs in the last digits may cut elsewhere: rows where the comparison is closer than `slack` are
reported as not `sure`, and no evidence is taken from them.

Sources: top-p: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1; min-p: Nguyen et al. 2024 (2407.01082); repetition
penalty: Keskar et al. 2019 (1909.05858), section 4.1; presence and frequency penalties as in the OpenAI API reference;
classifier-free guidance: Sanchez et al. 2023 (2306.17806), equation 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from auditor.adapter import BoolArray, FloatArray, IntArray, Settings

NEUTRAL = Settings()
SLACK = 1e-3
"""Relative distance from a cut below which an engine's arithmetic may decide the other way."""


@dataclass
class Step:
    """What a setting may look at, for one position of N sequences."""

    context: IntArray
    """[N, S]: prompt and generated tokens so far."""
    start: int
    """Length of the prompt."""
    settings: Settings
    unconditional: FloatArray | None
    """[N, V]: the target's logits without the prompt but for its last token, for guidance."""
    gap: FloatArray
    """[N]: the closest comparison so far, relative."""


Transform = Callable[[FloatArray, Step], FloatArray]


def log_softmax(logits: FloatArray) -> FloatArray:
    """Log-probabilities over the last axis; -inf stays."""
    top = logits.max(-1, keepdims=True)
    return np.asarray(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))


def _counts(tokens: IntArray, vocab: int) -> FloatArray:
    """How often each row of tokens [N, S] has each id: [N, V]."""
    counts = np.zeros((len(tokens), vocab))
    for column in tokens.T:
        counts[np.arange(len(tokens)), column] += 1
    return counts


def _guidance(logits: FloatArray, step: Step) -> FloatArray:
    if step.unconditional is None:
        raise ValueError("guidance needs the unconditional logits")
    free = log_softmax(step.unconditional)
    return free + step.settings.guidance_scale * (log_softmax(logits) - free)


def _logit_bias(logits: FloatArray, step: Step) -> FloatArray:
    out = logits.copy()
    for token, bias in step.settings.logit_bias:
        out[:, token] += bias
    return out


def _repetition_penalty(logits: FloatArray, step: Step) -> FloatArray:
    penalty = step.settings.repetition_penalty
    seen = _counts(step.context, logits.shape[-1]) > 0
    return np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits)


def _presence_penalty(logits: FloatArray, step: Step) -> FloatArray:
    seen = _counts(step.context[:, step.start :], logits.shape[-1]) > 0
    return logits - step.settings.presence_penalty * seen


def _frequency_penalty(logits: FloatArray, step: Step) -> FloatArray:
    return logits - step.settings.frequency_penalty * _counts(step.context[:, step.start :], logits.shape[-1])


def _no_repeat_ngram(logits: FloatArray, step: Step) -> FloatArray:
    size = step.settings.no_repeat_ngram
    context, out = step.context, logits.copy()
    length = context.shape[1]
    if length + 1 < size:
        return out
    ending = context[:, length - size + 1 :]
    rows = np.arange(len(context))
    for begin in range(length - size + 1):
        same = (context[:, begin : begin + size - 1] == ending).all(-1)
        out[rows[same], context[same, begin + size - 1]] = -np.inf
    return out


def _bad_words(logits: FloatArray, step: Step) -> FloatArray:
    context, out = step.context, logits.copy()
    for word in step.settings.bad_words:
        head = np.array(word[:-1], np.int64)
        if len(head) > context.shape[1]:
            continue
        same = (context[:, context.shape[1] - len(head) :] == head).all(-1)
        out[same, word[-1]] = -np.inf
    return out


def _min_new_tokens(logits: FloatArray, step: Step) -> FloatArray:
    out = logits.copy()
    if step.settings.eos is not None and step.context.shape[1] - step.start < step.settings.min_new_tokens:
        out[:, step.settings.eos] = -np.inf
    return out


def _temperature(logits: FloatArray, step: Step) -> FloatArray:
    return logits / step.settings.temperature


def _top_k(logits: FloatArray, step: Step) -> FloatArray:
    k = step.settings.top_k
    if k >= logits.shape[-1]:
        return logits
    ranked = -np.sort(-logits, -1)
    step.gap = np.minimum(step.gap, _apart(ranked[:, k - 1], ranked[:, k]))
    return np.where(logits >= ranked[:, k - 1 : k], logits, -np.inf)


def _top_p(logits: FloatArray, step: Step) -> FloatArray:
    law = np.exp(log_softmax(logits))
    order = np.argsort(-law, -1, kind="stable")
    ranked = np.take_along_axis(law, order, -1)
    above = np.cumsum(ranked, -1) - ranked
    kept = above < step.settings.top_p
    kept[:, 0] = True
    # Two things may go the other way: a cumulative mass near the cut, and which of two near-equal tokens is the last kept.
    step.gap = np.minimum(step.gap, np.abs(above[:, 1:] - step.settings.top_p).min(-1) / step.settings.top_p)
    edge = kept.sum(-1)
    inner = np.flatnonzero(edge < law.shape[-1])
    with np.errstate(divide="ignore"):
        near = _apart(np.log(ranked[inner, edge[inner] - 1]), np.log(ranked[inner, edge[inner]]))
    step.gap[inner] = np.minimum(step.gap[inner], near)
    keep = np.zeros_like(kept)
    np.put_along_axis(keep, order, kept, -1)
    return np.where(keep, logits, -np.inf)


def _min_p(logits: FloatArray, step: Step) -> FloatArray:
    relative = logits - logits.max(-1, keepdims=True)
    cut = np.log(step.settings.min_p)
    step.gap = np.minimum(step.gap, np.abs(relative - cut).min(-1))
    return np.where(relative >= cut, logits, -np.inf)


def _apart(high: FloatArray, low: FloatArray) -> FloatArray:
    """high - low for log values of which `low` may be -inf, and infinite where both are."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(low), high - low, np.inf)


TRANSFORMS: dict[str, Transform] = {
    "guidance_scale": _guidance,
    "logit_bias": _logit_bias,
    "repetition_penalty": _repetition_penalty,
    "presence_penalty": _presence_penalty,
    "frequency_penalty": _frequency_penalty,
    "no_repeat_ngram": _no_repeat_ngram,
    "bad_words": _bad_words,
    "min_new_tokens": _min_new_tokens,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
}
ENDINGS = ("eos", "stop")
"""Settings that end a sequence instead of changing a law."""


def changed(settings: Settings) -> tuple[str, ...]:
    """Names of the settings that differ from their neutral values."""
    return tuple(f.name for f in fields(Settings) if getattr(settings, f.name) != getattr(NEUTRAL, f.name))


def apply(
    logits: FloatArray,
    context: IntArray,
    start: int,
    settings: Settings,
    order: Sequence[str] = tuple(TRANSFORMS),
    unconditional: FloatArray | None = None,
) -> tuple[FloatArray, BoolArray]:
    """The logits [N, V] of the next token after `context` [N, S] under `settings`, and which rows [N] are sure.

    `start` is the length of the prompt, `order` the names of the settings in the engine's order of application; settings
    that it does not list are not applied. At temperature 0 the temperature is left out: take the argmax.
    """
    step = Step(context, start, settings, unconditional, np.full(len(logits), np.inf))
    active = set(changed(settings))
    if settings.temperature == 0:
        active.discard("temperature")
    out = logits
    for name in order:
        if name in active and name in TRANSFORMS:
            out = TRANSFORMS[name](out, step)
    return out, step.gap > SLACK


def gain(settings: Settings) -> float:
    """By how much the settings can enlarge a relative error of the law."""
    colder = 1.0 / settings.temperature if settings.temperature > 0 else 1.0
    penalty = max(settings.repetition_penalty, 1.0 / settings.repetition_penalty)
    guided = 2.0 * abs(settings.guidance_scale) - 1.0 if settings.guidance_scale > 1 else 1.0
    return max(1.0, colder) * penalty * max(1.0, guided)


def ending(tokens: IntArray, settings: Settings, cap: int) -> tuple[int, str]:
    """How many of the generated tokens [T] belong to the sequence, and what ends it: "eos", "stop", "length" or ""."""
    listed = tokens.tolist()
    for count in range(1, min(len(listed), cap) + 1):
        if settings.eos is not None and listed[count - 1] == settings.eos:
            return count, "eos"
        for stop in settings.stop:
            if count >= len(stop) and tuple(listed[count - len(stop) : count]) == tuple(stop):
                return count, "stop"
        if count == cap:
            return count, "length"
    return len(listed), ""
