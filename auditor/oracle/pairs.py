"""Target and draft in pairs whose next-token laws are known exactly.

A *table* pair is a Markov chain: the law of the next token depends on the last one alone, so one pair carries `vocab`
cases at once, and every prefix is visited often. Stale cache entries and wrong positions do not show in it. An
*attentive* pair has real attention, scaled until one stale entry, or positions off by one, move the law by a total
variation of at least 0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditor.oracle.llama import HEAD_DIM, FloatArray, IntArray, Llama, Shape, rounded, shaped

SENSITIVITY = 0.1
"""The least total variation by which one stale cache entry, or positions off by one, must move an attentive law."""


@dataclass(frozen=True)
class Pair:
    """Target and draft of one vocabulary; `key` names the pair and all that it was made from."""

    key: str
    kind: str
    """"table" or "attentive"."""
    target: Llama
    draft: Llama
    closeness: float
    """Mean total variation between the target's and the draft's laws, over random contexts."""

    @property
    def vocab(self) -> int:
        """The number of token ids."""
        return self.target.shape.vocab


@dataclass(frozen=True)
class Sensitivity:
    """Mean total variation by which a fault of an engine's bookkeeping moves the target's law."""

    stale: float
    """One stale entry before the last token of the cache."""
    position: float
    """The last token's position one too high."""


def softmax(logits: FloatArray) -> FloatArray:
    """The law of logits, over the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def tv(p: FloatArray, q: FloatArray) -> FloatArray:
    """Total variation over the last axis."""
    return np.asarray(0.5 * np.abs(p - q).sum(-1))


def contexts(vocab: int, count: int, length: int, rng: np.random.Generator) -> IntArray:
    """Random token sequences [count, length]."""
    return rng.integers(0, vocab, (count, length))


def table_pair(vocab: int, seed: int, *, closeness: float = 0.3, concentration: float = 0.7) -> Pair:
    """A Markov chain with rows from a symmetric Dirichlet, and a draft at mean total variation `closeness`."""
    rng = np.random.default_rng((seed, 1))
    rows = rng.dirichlet(np.full(vocab, concentration), vocab)
    log_target = np.log((1 - 1e-4) * rows + 1e-4 / vocab)
    noise = rng.standard_normal((vocab, vocab))
    scale = _scale(lambda s: tv(softmax(log_target), softmax(log_target + s * noise)).mean(), closeness)
    log_draft = np.log(softmax(log_target + scale * noise))
    target, draft = table_model(log_target), table_model(log_draft)
    reached = tv(softmax(log_target), softmax(log_draft)).mean()
    return Pair(f"table-{vocab}-{seed}-{closeness:g}-{concentration:g}", "table", target, draft, float(reached))


def table_model(log_law: FloatArray) -> Llama:
    """A Llama that is a Markov chain: logits `log_law` [V, V] after each last token.

    Embeddings are one-hot and `o_proj` and `down_proj` zero, so the last norm gives sqrt(hidden) times the one-hot
    vector.
    """
    vocab = len(log_law)
    hidden = 2 * HEAD_DIM * -(-vocab // (2 * HEAD_DIM))
    heads = hidden // HEAD_DIM
    shape = Shape(vocab, hidden, 2 * HEAD_DIM, 1, heads, heads, theta=10_000.0)
    weights = shaped(shape, None)
    # Long enough for the norm's epsilon to vanish beside it: the relative error is eps * hidden / 2^20 / 2.
    weights["model.embed_tokens.weight"][np.arange(vocab), np.arange(vocab)] = 1024.0
    weights["lm_head.weight"][:, :vocab] = log_law.T / np.sqrt(hidden)
    return Llama(shape, rounded(weights))


def attentive_pair(vocab: int, seed: int, *, closeness: float = 0.3, layers: int = 2, spread: float = 1.5) -> Pair:
    """A random Llama with real attention, and a draft that shares its layers and has another head.

    `spread` is the standard deviation of the logits over the vocabulary. Raises ValueError where the vocabulary is too
    small to reach `closeness`, or where no scale reaches `SENSITIVITY`.
    """
    rng = np.random.default_rng((seed, 2))
    shape = Shape(vocab, 2 * HEAD_DIM, 2 * HEAD_DIM, layers, 2, 1)
    start = shaped(shape, rng)
    noise = rng.standard_normal(start["lm_head.weight"].shape) / np.sqrt(shape.hidden)
    for gain in (1.0, 1.5, 2.0, 3.0, 4.0):
        target = Llama(shape, rounded(_scaled(start, gain, spread, shape, seed)))
        moved = sensitivity(target, seed)
        if min(moved.stale, moved.position) >= SENSITIVITY:
            break
    else:
        raise ValueError(f"no scale makes the model of seed {seed} sensitive to its cache")
    sample = contexts(vocab, 256, 8, np.random.default_rng((seed, 3)))
    law = softmax(target.logits(sample))
    head = target.weights["lm_head.weight"]

    def made(scale: float) -> Llama:
        return Llama(shape, rounded({**target.weights, "lm_head.weight": head + scale * spread * noise}))

    scale = _scale(lambda s: tv(law, softmax(made(s).logits(sample))).mean(), closeness)
    draft = made(scale)
    reached = tv(law, softmax(draft.logits(sample))).mean()
    return Pair(
        f"attentive-{vocab}-{seed}-{closeness:g}-{layers}-{spread:g}", "attentive", target, draft, float(reached)
    )


def _scaled(start: dict[str, FloatArray], gain: float, spread: float, shape: Shape, seed: int) -> dict[str, FloatArray]:
    """Attention made sharp and loud by `gain`, then the head scaled so that the logits spread by `spread`."""
    weights = dict(start)
    for name, value in start.items():
        if "q_proj" in name or "k_proj" in name:
            weights[name] = value * np.sqrt(2.0 * gain)
        elif "o_proj" in name:
            weights[name] = value * 2.0 * gain
    sample = contexts(shape.vocab, 256, 8, np.random.default_rng((seed, 4)))
    logits = Llama(shape, weights).logits(sample)
    weights["lm_head.weight"] = weights["lm_head.weight"] * (spread / logits.std(-1).mean())
    return weights


def sensitivity(model: Llama, seed: int, *, count: int = 256, length: int = 6) -> Sensitivity:
    """How far one stale entry, or the last position off by one, moves the law: means over random contexts."""
    rng = np.random.default_rng((seed, 5))
    right = contexts(model.shape.vocab, count, length, rng)
    law = softmax(model.logits(right)[:, -1])
    extra = rng.integers(0, model.shape.vocab, count)
    # A rejected draft that stayed in the cache: it stands before the last token, which the engine puts behind it.
    kept = np.concatenate([right[:, :-1], extra[:, None], right[:, -1:]], 1)
    stale = softmax(model.logits(kept)[:, -1])
    positions = np.broadcast_to(np.arange(length), right.shape).copy()
    positions[:, -1] += 1
    moved = softmax(model.logits(right, positions)[:, -1])
    return Sensitivity(float(tv(law, stale).mean()), float(tv(law, moved).mean()))


def _scale(distance: Callable[[float], float], wanted: float) -> float:
    """The scale at which `distance`, which grows from 0, is `wanted`. Raises ValueError where it does not get there."""
    if wanted == 0:
        return 0.0
    low, high = 0.0, 0.125
    while distance(high) < wanted:
        low, high = high, 2 * high
        if high > 1e3:
            raise ValueError(f"the draft cannot be at a mean total variation of {wanted:g} from this target")
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if distance(middle) < wanted else (low, middle)
    return high
