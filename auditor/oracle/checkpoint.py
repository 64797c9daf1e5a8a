"""A model of known law as a checkpoint folder that any engine for Llama can load.

Config, safetensors weights in float32, a real tokenizer of as many words as the vocabulary has ids, and a generation
config without hidden defaults (no EOS, no top-k). Written with the standard library and NumPy alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from auditor.adapter import Model
from auditor.oracle.llama import HEAD_DIM, FloatArray, Llama, Shape
from auditor.oracle.pairs import Pair, attentive_pair, softmax, table_pair

_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def words(vocab: int) -> list[str]:
    """`vocab` different short words: ba, be, ..., zu, baba, babe, ..."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    made: list[str] = []
    number = 0
    while len(made) < vocab:
        rest, word = number, ""
        while True:
            word = syllables[rest % len(syllables)] + word
            rest = rest // len(syllables) - 1
            if rest < 0:
                break
        made.append(word)
        number += 1
    return made


def write_pair(pair: Pair, directory: Path, vocabulary: Sequence[str] | None = None) -> Model:
    """Write `target` and `draft` under `directory`, and return them as a `Model`; what is already there is kept."""
    target, draft = directory / "target", directory / "draft"
    for folder, model in ((target, pair.target), (draft, pair.draft)):
        if not (folder / "model.safetensors").exists():
            write_model(model, folder, vocabulary)
    arrays: dict[str, FloatArray] = {}
    if pair.kind == "table":
        arrays = {"target": table_law(pair.target), "draft": table_law(pair.draft)}
    return Model(pair.key, pair.vocab, str(target), str(draft), arrays)


def table_law(model: Llama) -> FloatArray:
    """The law [V, V] of the next token after each last token, of a table model."""
    return softmax(model.logits(np.arange(model.shape.vocab)[:, None])[:, 0])


def write_model(model: Llama, folder: Path, vocabulary: Sequence[str] | None = None) -> None:
    """Write one checkpoint folder. `vocabulary` names the token ids; the words must be distinct, without spaces."""
    shape = model.shape
    names = list(vocabulary) if vocabulary is not None else words(shape.vocab)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "max_position_embeddings": shape.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(names)}, "unk_token": names[0]},
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0})
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.max_positions,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_safetensors(folder / "model.safetensors", model.weights)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_safetensors(path: Path, tensors: Mapping[str, FloatArray]) -> None:
    """Write float32 tensors in the safetensors format: header length, JSON header, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + 4 * value.size]}
        offset += 4 * value.size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value, "<f4").tobytes())


def read_model(folder: Path) -> Llama:
    """The model of a checkpoint folder that `write_model` wrote, for engines that compute with NumPy."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        config["vocab_size"],
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["rope_theta"],
        config["rms_norm_eps"],
        config["max_position_embeddings"],
    )
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    weights: dict[str, FloatArray] = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            weights[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"]).astype(np.float64)
    return Llama(shape, weights)


def make_pair(kind: str, vocab: int, seed: int, closeness: float) -> Pair:
    """A pair by the name of its kind, "table" or "attentive"."""
    if kind == "table":
        return table_pair(vocab, seed, closeness=closeness)
    return attentive_pair(vocab, seed, closeness=closeness)


def write_checkpoint(
    directory: Path, *, kind: str = "attentive", vocab: int = 16, seed: int = 0, closeness: float = 0.3
) -> Model:
    """Write a pair of known law under `directory`: `target/`, `draft/`, and `law.json` to compare with.

    `law.json` has prompts (token ids and text) and, for each, the log-probabilities of every next token under target
    and draft, from our float64 pass.
    """
    pair = make_pair(kind, vocab, seed, closeness)
    model = write_pair(pair, directory)
    rng = np.random.default_rng((seed, 6))
    names = words(vocab)
    examples = []
    for length in (1, 2, 5, 9):
        prompt = rng.integers(0, vocab, (1, length))
        examples.append(
            {
                "tokens": prompt[0].tolist(),
                "text": " ".join(names[token] for token in prompt[0]),
                "target_logprobs": np.log(softmax(pair.target.logits(prompt)[0, -1])).tolist(),
                "draft_logprobs": np.log(softmax(pair.draft.logits(prompt)[0, -1])).tolist(),
            }
        )
    law = {
        "kind": kind,
        "vocab": vocab,
        "seed": seed,
        "mean_total_variation": pair.closeness,
        "mean_acceptance": 1.0 - pair.closeness,
        "examples": examples,
    }
    _write_json(directory / "law.json", law)
    return model
