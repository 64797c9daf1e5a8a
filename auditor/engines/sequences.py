"""Evidence of generated sequences: laws at the visited prefixes, and what is known of the round behind each token.

The promise about a sequence is a promise about each next token given the prefix, so its evidence is a product of conditional
bets R(y_t | past) / P*(y_t | past): only visited prefixes are evaluated. The past may hold more than the tokens. Where an engine
reports its rounds, the place of the next token in its round (behind how many accepted drafts, with a draft before it or
none) is known before the token is, and under a token-by-token rule the token follows the target's law given that place too;
a bet that uses it is many times stronger. Where nothing is reported the place is filtered forward from the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from auditor.adapter import BoolArray, FloatArray, Generation, IntArray, Settings
from auditor.oracle import softmax
from auditor.settings import ENDINGS, apply, changed, ending

LogitsOf = Callable[[IntArray, IntArray | None], FloatArray]
"""(tokens [N, T], positions [N, T] or None) -> logits [N, T, V] after each token, from the whole sequence."""

UNKNOWN = -1


@dataclass(frozen=True)
class Places:
    """Where each token [N, T] stands in its round, as the engine reports it; UNKNOWN where it does not.

    slot: accepted drafts of the round before the token. drafted: 1 where a draft stood there, 0 for a bonus token or a round
    without drafts. accepted: 1 where the draft was kept. draft: the draft itself. round: index of the round.
    """

    slot: IntArray
    drafted: IntArray
    accepted: IntArray
    draft: IntArray
    round: IntArray

    @property
    def known(self) -> bool:
        """Whether the engine reported its rounds."""
        return bool(np.any(self.drafted != UNKNOWN))


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences of one prompt and one setting. T is the longest; padding has `live` False."""

    prompt: IntArray
    settings: Settings
    cap: int
    tokens: IntArray
    """[N, T], 0 where padded."""
    lengths: IntArray
    """[N]: tokens that belong to the sequence; what an engine returned beyond them is not in `live`."""
    live: BoolArray
    """[N, T]: evidence may be taken: the token belongs to the sequence and the law there is sure."""
    p: FloatArray
    """[N, T, V]: the target's law under the settings."""
    bare: FloatArray
    """[N, T, V]: the target's law without them."""
    q: FloatArray | None
    """[N, T, V]: the draft model's law under the settings, at the emitted prefix."""
    bare_q: FloatArray | None
    places: Places

    @property
    def before(self) -> IntArray:
        """[N, T]: the token before each token."""
        first = np.full((len(self.tokens), 1), self.prompt[-1])
        return np.concatenate([first, self.tokens[:, :-1]], 1)


def pad(generations: Sequence[Generation], length: int) -> IntArray:
    """Tokens [N, length], 0 where a sequence is shorter."""
    out = np.zeros((len(generations), length), np.int64)
    for row, generation in enumerate(generations):
        kept = generation.tokens[:length]
        out[row, : len(kept)] = kept
    return out


def whole(prompt: IntArray, tokens: IntArray) -> IntArray:
    """Prompt and tokens together [N, L + T]."""
    return np.concatenate([np.broadcast_to(prompt, (len(tokens), len(prompt))), tokens], 1)


def laws(
    logits_of: LogitsOf, prompt: IntArray, tokens: IntArray, settings: Settings, order: Sequence[str]
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Laws of every token of `tokens` [N, T]: under the settings, without them, and where the first is sure."""
    full = whole(prompt, tokens)
    start = len(prompt)
    logits = logits_of(full[:, :-1], None)[:, start - 1 :]
    free = None if settings.guidance_scale == 1.0 else logits_of(full[:, start - 1 : -1], None)
    law, sure = settled(logits, free, full, start, settings, order)
    return law, softmax(logits), sure


def settled(
    logits: FloatArray, free: FloatArray | None, full: IntArray, start: int, settings: Settings, order: Sequence[str]
) -> tuple[FloatArray, BoolArray]:
    """The law [N, T, V] of logits [N, T, V] under the settings, and where it is sure.

    Where the settings leave nothing to choose from it is not sure, and is the law without settings.
    """
    bare = softmax(logits)
    sure = np.ones(bare.shape[:2], np.bool_)
    if not settings_matter(settings, order):
        return bare, sure
    law = np.empty_like(bare)
    for t in range(bare.shape[1]):
        unconditional = None if free is None else free[:, t]
        out, certain = apply(logits[:, t], full[:, : start + t], start, settings, order, unconditional)
        possible: BoolArray = np.asarray(np.isfinite(out).any(-1), np.bool_)
        law[:, t] = np.where(possible[:, None], softmax(np.where(possible[:, None], out, 0.0)), bare[:, t])
        sure[:, t] = certain & possible
    return law, sure


def settings_matter(settings: Settings, order: Sequence[str]) -> bool:
    """Whether any setting that changes a law, among those that the engine takes, is not neutral."""
    return any(name in order for name in changed(settings) if name not in ENDINGS)


def read(
    generations: Sequence[Generation],
    prompt: IntArray,
    settings: Settings,
    cap: int,
    order: Sequence[str],
    target: LogitsOf,
    draft: LogitsOf | None,
) -> Sequences:
    """The sequences of one prompt with their laws and places."""
    ends = [ending(g.tokens, settings, cap)[0] for g in generations]
    lengths = np.array(ends, np.int64)
    longest = int(max(ends, default=0))
    tokens = pad(generations, longest)
    belongs: BoolArray = np.less(np.arange(longest), lengths[:, None])
    p, bare, sure = laws(target, prompt, tokens, settings, order)
    q = bare_q = None
    if draft is not None:
        q, bare_q, _ = laws(draft, prompt, tokens, settings, order)
    return Sequences(
        prompt, settings, cap, tokens, lengths, belongs & sure, p, bare, q, bare_q, places(generations, longest)
    )


def places(generations: Sequence[Generation], length: int) -> Places:
    """The place of each token from the reported rounds: round k has accepted[k] kept drafts and one token more."""
    slot, drafted, accepted, draft, number = (np.full((len(generations), length), UNKNOWN) for _ in range(5))
    for row, generation in enumerate(generations):
        if generation.drafted is None or generation.accepted is None:
            continue
        at = 0
        for k, (offered, kept) in enumerate(zip(generation.drafted, generation.accepted, strict=True)):
            width = min(int(kept) + 1, length - at)
            if width <= 0:
                break
            here = slice(at, at + width)
            index = np.arange(width)
            slot[row, here] = index
            drafted[row, here] = index < offered
            accepted[row, here] = (index < kept) & (index < offered)
            number[row, here] = k
            if generation.drafts is not None:
                shown = generation.drafts[k][:width]
                draft[row, at : at + len(shown)] = shown
            at += width
    return Places(slot, drafted, accepted, draft, number)


def bonus_weight(batch: Sequences, draft_length: int) -> FloatArray:
    """[N, T]: the probability that each token stands where no draft is, given the past.

    Reported places make it 0 or 1. Elsewhere it is filtered forward over the hidden place 0..draft_length in the round: a token y
    moves the place on with the probability min(p, q)(y) that a kept draft emits it, and back to 0 with max(p - q, 0)(y) or,
    behind the last draft, with p(y).
    """
    if batch.places.known:
        return np.asarray(batch.places.drafted == 0, np.float64)
    count, length = batch.tokens.shape
    weight = np.zeros((count, length))
    if batch.q is None:
        return weight
    state = np.zeros((count, draft_length + 1))
    state[:, 0] = 1.0
    rows = np.arange(count)
    for t in range(length):
        weight[:, t] = state[:, -1]
        y = batch.tokens[:, t]
        p, q = batch.p[rows, t, y], batch.q[rows, t, y]
        kept, replaced = np.minimum(p, q), np.maximum(p - q, 0.0)
        moved = np.zeros_like(state)
        moved[:, 1:] = state[:, :-1] * kept[:, None]
        moved[:, 0] = state[:, :-1].sum(-1) * replaced + state[:, -1] * p
        total = moved.sum(-1, keepdims=True)
        fresh = np.zeros_like(state)
        fresh[:, 0] = 1.0
        state = np.where(total > 0, moved / np.where(total > 0, total, 1.0), fresh)
    return weight


@dataclass(frozen=True)
class Disturbed:
    """Laws [N, T, V] of an engine whose bookkeeping is wrong after a rejection."""

    stale: FloatArray
    """Rejected drafts stay in the cache, and what follows them is behind them."""
    shifted: FloatArray
    """Positions are one too high from the token that replaced the first rejected draft."""


def disturbed(
    batch: Sequences, generations: Sequence[Generation], logits_of: LogitsOf, order: Sequence[str]
) -> Disturbed | None:
    """The laws of the two faults, where the engine shows its drafts; None where it does not, or nothing was rejected."""
    count, length = batch.tokens.shape
    start = len(batch.prompt)
    caches: list[list[int]] = []
    index = np.zeros((count, length), np.int64)
    positions = np.broadcast_to(np.arange(start + length), (count, start + length)).copy()
    left = False
    for row, generation in enumerate(generations):
        if generation.drafts is None or generation.accepted is None:
            return None
        cache, at = batch.prompt.tolist(), 0
        rejected = False
        for drafts, kept in zip(generation.drafts, generation.accepted, strict=True):
            for token in batch.tokens[row, at : at + int(kept)]:
                if at < length:
                    index[row, at] = len(cache) - 1
                cache.append(int(token))
                at += 1
            if at >= length:
                break
            index[row, at] = len(cache) - 1
            refused = [int(x) for x in drafts[int(kept) :] if x >= 0]
            if refused and not rejected:
                rejected = True
                positions[row, start + at :] += 1
            left |= bool(refused)
            cache += [*refused, int(batch.tokens[row, at])]
            at += 1
        caches.append(cache)
    if not left:
        return None
    wide = np.zeros((count, max(map(len, caches))), np.int64)
    for row, cache in enumerate(caches):
        wide[row, : len(cache)] = cache
    full = whole(batch.prompt, batch.tokens)
    free = None
    if batch.settings.guidance_scale != 1.0:
        free = logits_of(full[:, start - 1 : -1], None)
    seen = np.take_along_axis(logits_of(wide, None), index[..., None], 1)
    moved = logits_of(full[:, :-1], positions[:, :-1])[:, start - 1 :]
    return Disturbed(
        settled(seen, free, full, start, batch.settings, order)[0],
        settled(moved, free, full, start, batch.settings, order)[0],
    )
