"""A Llama in float64: the next-token law of a small checkpoint, from a forward pass of our own.

The pass has no cache and no state: every position is computed from the whole sequence. It agrees with float32 engines
to about 2e-6 in log-probability. Architecture: Touvron et al. 2023 (arXiv 2302.13971), with grouped queries
(2305.13245) and rotary positions (Su et al. 2021, 2104.09864) in the half-split layout of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

HEAD_DIM = 32
"""The smallest head size that the common engines' attention kernels all take."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: what its `config.json` says."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    theta: float = 10.0
    """Base of the rotary frequencies. Small, so that one position more or less turns most of the dimensions."""
    eps: float = 1e-6
    max_positions: int = 512


@dataclass(frozen=True)
class Llama:
    """Sizes and weights: names and layouts of a Hugging Face checkpoint, values exactly representable in float32."""

    shape: Shape
    weights: Mapping[str, FloatArray]

    def logits(self, tokens: IntArray, positions: IntArray | None = None) -> FloatArray:
        """Logits [N, T, V] after each position of `tokens` [N, T]. `positions` [N, T] replaces 0, 1, 2, ..."""
        shape, w = self.shape, self.weights
        count, length = tokens.shape
        if positions is None:
            positions = np.broadcast_to(np.arange(length), (count, length))
        cos, sin = _rotary(positions, shape.theta)
        future = np.triu(np.full((length, length), -np.inf), 1)
        group = shape.heads // shape.kv_heads
        x = w["model.embed_tokens.weight"][tokens]
        for layer in range(shape.layers):
            name = f"model.layers.{layer}."
            h = _rms(x, w[name + "input_layernorm.weight"], shape.eps)
            query = _heads(h @ w[name + "self_attn.q_proj.weight"].T, shape.heads)
            key = _heads(h @ w[name + "self_attn.k_proj.weight"].T, shape.kv_heads)
            value = _heads(h @ w[name + "self_attn.v_proj.weight"].T, shape.kv_heads)
            query, key = _turn(query, cos, sin), _turn(key, cos, sin)
            key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
            score = query @ key.swapaxes(-1, -2) / np.sqrt(HEAD_DIM) + future
            score = np.exp(score - score.max(-1, keepdims=True))
            mixed = (score / score.sum(-1, keepdims=True)) @ value
            mixed = mixed.swapaxes(1, 2).reshape(count, length, shape.heads * HEAD_DIM)
            x = x + mixed @ w[name + "self_attn.o_proj.weight"].T
            h = _rms(x, w[name + "post_attention_layernorm.weight"], shape.eps)
            gate = h @ w[name + "mlp.gate_proj.weight"].T
            gate = gate / (1.0 + np.exp(-gate)) * (h @ w[name + "mlp.up_proj.weight"].T)
            x = x + gate @ w[name + "mlp.down_proj.weight"].T
        h = _rms(x, w["model.norm.weight"], shape.eps)
        return np.asarray(h @ w["lm_head.weight"].T)


def _rms(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def _heads(x: FloatArray, heads: int) -> FloatArray:
    count, length, _ = x.shape
    return x.reshape(count, length, heads, HEAD_DIM).swapaxes(1, 2)


def _rotary(positions: IntArray, theta: float) -> tuple[FloatArray, FloatArray]:
    frequency = theta ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = positions[:, None, :, None] * frequency
    angle = np.concatenate([angle, angle], -1)
    return np.cos(angle), np.sin(angle)


def _turn(x: FloatArray, cos: FloatArray, sin: FloatArray) -> FloatArray:
    half = HEAD_DIM // 2
    return np.asarray(x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin)


def shaped(shape: Shape, rng: np.random.Generator | None) -> dict[str, FloatArray]:
    """Every weight by its name: normal with variance 1 / fan-in, or zero where `rng` is None; norms are 1."""

    def matrix(rows: int, columns: int) -> FloatArray:
        return np.zeros((rows, columns)) if rng is None else rng.standard_normal((rows, columns)) / np.sqrt(columns)

    hidden, inner = shape.hidden, shape.intermediate
    weights = {"model.embed_tokens.weight": matrix(shape.vocab, hidden) * np.sqrt(hidden)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        weights[name + "self_attn.q_proj.weight"] = matrix(shape.heads * HEAD_DIM, hidden)
        weights[name + "self_attn.k_proj.weight"] = matrix(shape.kv_heads * HEAD_DIM, hidden)
        weights[name + "self_attn.v_proj.weight"] = matrix(shape.kv_heads * HEAD_DIM, hidden)
        weights[name + "self_attn.o_proj.weight"] = matrix(hidden, shape.heads * HEAD_DIM)
        weights[name + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[name + "mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[name + "mlp.down_proj.weight"] = matrix(hidden, inner)
        weights[name + "input_layernorm.weight"] = np.ones(hidden)
        weights[name + "post_attention_layernorm.weight"] = np.ones(hidden)
    weights["model.norm.weight"] = np.ones(hidden)
    weights["lm_head.weight"] = matrix(shape.vocab, hidden)
    return weights


def rounded(weights: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Every weight rounded to float32, so that the checkpoint on disk has exactly these values."""
    return {name: np.asarray(value.astype(np.float32), np.float64) for name, value in weights.items()}
