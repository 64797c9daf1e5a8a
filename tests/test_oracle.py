"""Models of known law: their laws, their sensitivity, and the checkpoints that stock Transformers loads."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.oracle import attentive_pair, make_pair, sensitivity, softmax, table_pair, tv, words, write_checkpoint
from auditor.oracle.checkpoint import table_law, write_pair


@given(st.integers(3, 20), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_table_model_is_a_markov_chain(vocab: int, seed: int) -> None:
    pair = table_pair(vocab, seed, closeness=0.05)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, (5, 7))
    law = softmax(pair.target.logits(tokens))
    table = table_law(pair.target)
    assert np.allclose(law, table[tokens], atol=1e-12)
    assert np.allclose(table.sum(-1), 1)
    assert table.min() > 0


@pytest.mark.parametrize("kind", ["table", "attentive"])
@pytest.mark.parametrize("closeness", [0.0, 0.05, 0.3, 0.5])
def test_target_and_draft_are_as_close_as_asked(kind: str, closeness: float) -> None:
    pair = make_pair(kind, 8, 3, closeness)
    assert pair.closeness == pytest.approx(closeness, abs=1e-6)
    rng = np.random.default_rng(9)
    tokens = rng.integers(0, 8, (2000, 5))
    apart = tv(softmax(pair.target.logits(tokens)), softmax(pair.draft.logits(tokens))).mean()
    assert apart == pytest.approx(closeness, abs=0.06)


@pytest.mark.parametrize("vocab", [4, 8, 16])
@pytest.mark.parametrize("seed", range(4))
def test_an_attentive_model_shows_stale_entries_and_wrong_positions(vocab: int, seed: int) -> None:
    pair = attentive_pair(vocab, seed)
    for model in (pair.target, pair.draft):
        moved = sensitivity(model, seed + 100, length=8)
        assert moved.stale >= 0.1
        assert moved.position >= 0.1


def test_a_table_model_shows_neither() -> None:
    moved = sensitivity(table_pair(8, 0).target, 0)
    assert moved.stale < 1e-12
    assert moved.position < 1e-12


def test_an_unreachable_closeness_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be at"):
        table_pair(2, 0, closeness=0.99)


def test_words_are_distinct() -> None:
    made = words(6000)
    assert len(set(made)) == 6000
    assert made[:3] == ["ba", "be", "bi"]


def test_a_pair_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, two = write_checkpoint(tmp_path / "a", seed=5), write_checkpoint(tmp_path / "b", seed=5)
    assert one.key == two.key
    for part in ("target", "draft"):
        name = f"{part}/model.safetensors"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "law.json").read_text() == (tmp_path / "b" / "law.json").read_text()


@pytest.mark.parametrize("kind", ["table", "attentive"])
def test_stock_transformers_loads_the_checkpoint_and_gives_the_stated_law(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_checkpoint(tmp_path, kind=kind, vocab=12, seed=1)
    law = json.loads((tmp_path / "law.json").read_text())
    for part in ("target", "draft"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / part)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / part)
        assert model.generation_config.eos_token_id is None
        assert model.config.eos_token_id is None
        assert len(tokenizer) == 12
        for example in law["examples"]:
            ids = tokenizer(example["text"], return_tensors="pt", add_special_tokens=False)["input_ids"]
            assert ids[0].tolist() == example["tokens"]
            assert tokenizer.decode(ids[0]) == example["text"]
            with torch.no_grad():
                logprobs = model(ids).logits[0, -1].double().log_softmax(-1).numpy()
            assert np.abs(logprobs - example[f"{part}_logprobs"]).max() < 1e-5


def test_written_twice_is_written_once(tmp_path: Path) -> None:
    pair = table_pair(6, 0)
    first = write_pair(pair, tmp_path)
    stamp = (tmp_path / "target" / "model.safetensors").stat().st_mtime_ns
    assert write_pair(pair, tmp_path).key == first.key
    assert (tmp_path / "target" / "model.safetensors").stat().st_mtime_ns == stamp
    assert math.isclose(float(first.arrays["target"].sum()), 6.0)
