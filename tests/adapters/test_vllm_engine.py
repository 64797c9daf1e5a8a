"""The adapter of vLLM's engine. What needs vLLM runs in the interpreter that has it: this one, or AUDIT_PYTHON_VLLM_ENGINE or
AUDIT_PYTHON_VLLM."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from auditor.adapter import Generation, Model, Settings
from auditor.engines.checks import counters
from auditor.errors import CallFailed
from auditor.oracle import softmax, table_pair, write_pair
from auditor.process.interpreter import python_for
from auditor.worker import RemoteAdapter, start

_FILE = Path(__file__).parents[2] / "adapters" / "vllm_engine.py"
_SPEC = importlib.util.spec_from_file_location("adapter_file_vllm_engine", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
adapter = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = adapter
_SPEC.loader.exec_module(adapter)

PYTHON = (
    python_for("vllm_engine", None)
    or python_for("vllm", None)
    or (sys.executable if importlib.util.find_spec("vllm") else None)
)
needs_vllm = pytest.mark.skipif(
    PYTHON is None, reason="needs vLLM, here or in the interpreter that AUDIT_PYTHON_VLLM names (docs/auditing-vllm.md)"
)
MODES = [mode.name for mode in adapter.VLLMEngine.modes]
IMPOSSIBLE = 1e-9
"""A p-value that a right engine shows in one test of a thousand million."""
PROMPT = (1, 2, 0, 1, 2)
CAP = 8


# -------------------------------------------------------------------------------------------------- without the engine


def test_what_it_does_not_take_is_refused_before_anything_is_imported() -> None:
    for wrong in ({"mode": "telepathy"}, {"repair": "expand,all"}, {"without": "min_p"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values())).split(",")[-1]):
            adapter.VLLMEngine(**wrong)


def step(*drafts: int, laws: int = 0) -> object:
    ids = np.array(drafts, np.int64)
    return adapter._Step(ids, np.full((len(ids), laws), 1 / laws) if laws else None)


def test_rounds_are_the_counts_of_the_engine_with_the_passes_without_drafts_between_them() -> None:
    made = adapter._with_rounds(Generation(np.arange(6)), [step(), step(1, 2), step(), step(4, 0, 1)], [(2, 1), (3, 1)])
    assert made.drafted.tolist() == [0, 2, 0, 3]
    assert made.accepted.tolist() == [0, 1, 0, 1]
    assert made.drafts.tolist() == [[-1, -1, -1], [1, 2, -1], [-1, -1, -1], [4, 0, 1]]
    assert made.draft_probs is None
    assert list(counters([made])) == []


def test_accepted_drafts_that_the_end_of_the_sequence_cut_are_not_counted() -> None:
    made = adapter._with_rounds(Generation(np.arange(3)), [step(), step(1, 2, 3, laws=4)], [(3, 3)])
    assert made.accepted.tolist() == [0, 2]
    assert made.draft_probs.shape == (2, 3, 4)
    assert not made.draft_probs[0].any()
    assert list(counters([made])) == []


def test_counts_that_contradict_the_tokens_reach_the_audit() -> None:
    more = adapter._with_rounds(Generation(np.arange(5)), [step(), step(1)], [(1, 2)])
    assert [breach.kind for breach in counters([more])] == ["more-than-drafted"]
    unseen = adapter._with_rounds(Generation(np.arange(2)), [step(), step(1)], [(1, 0), (1, 0)])
    assert [breach.kind for breach in counters([unseen])] == ["past-the-end"]


# ----------------------------------------------------------------------------------------------------- with the engine


class Engines:
    """The adapter in its modes, each in a process that lives as long as the module."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], RemoteAdapter] = {}

    def get(self, mode: str, repair: str = "expand,top-k") -> RemoteAdapter:
        if (mode, repair) not in self._made:
            options = {"repair": repair} if repair and self.get("draft-model", "").engine["device"] == "cpu" else {}
            self._made[mode, repair] = start(str(_FILE), mode, options, python=PYTHON)
        return self._made[mode, repair]

    def stock(self) -> RemoteAdapter:
        """The CPU wheel whose faults are known, as it is; skips the test where another is installed."""
        stock = self.get("draft-model", "")
        if (stock.engine["vllm"], stock.engine["device"]) != ("0.32.0", "cpu"):
            pytest.skip(f"the fault is known of vLLM 0.32.0 on a CPU, this is {stock.engine}")
        return stock

    def close(self) -> None:
        for made in self._made.values():
            made.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    made = Engines()
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return write_pair(table_pair(8, 4, closeness=0.25), tmp_path_factory.mktemp("pair"))


def last(generation: Generation, t: int) -> int:
    """The token before place t."""
    return int(generation.tokens[t - 1]) if t else PROMPT[-1]


@needs_vllm
@pytest.mark.parametrize("mode", MODES)
def test_rounds_and_log_probabilities_are_consistent_and_tokens_follow_the_law(
    engines: Engines, model: Model, mode: str
) -> None:
    made = engines.get(mode).generate(model, [PROMPT] * 1500, CAP, Settings(), 1)
    law = model.arrays["target"]
    assert list(counters(made)) == []
    seen = np.zeros_like(law)
    for one in made:
        assert len(one.tokens) == CAP
        before = np.array([last(one, t) for t in range(CAP)])
        np.testing.assert_allclose(one.logprobs, np.log(law[before, one.tokens]), atol=1e-4)
        np.add.at(seen, (before, one.tokens), 1)
        assert (one.draft_probs is not None) == (mode == "draft-model")
    for row, counts in zip(law, seen, strict=True):
        thick = row * counts.sum() >= 5
        observed = np.append(counts[thick], counts[~thick].sum())
        due = np.append(row[thick], row[~thick].sum()) * counts.sum()
        value = ((observed - due)[due > 0] ** 2 / due[due > 0]).sum()
        assert chi2.sf(value, max(1, (due > 0).sum() - 1)) > IMPOSSIBLE


@needs_vllm
def test_drafts_and_their_laws_are_the_draft_model_s(engines: Engines, model: Model) -> None:
    law = model.arrays["draft"]
    for one in engines.get("draft-model").generate(model, [PROMPT] * 20, CAP, Settings(temperature=0.5), 2):
        at = 0
        for drafts, laws, kept in zip(one.drafts, one.draft_probs, one.accepted, strict=True):
            before = last(one, at)
            for token, stated in zip(drafts, laws, strict=True):
                if token < 0:
                    break
                np.testing.assert_allclose(stated, softmax(2 * np.log(law[before])), atol=1e-5)
                before = int(token)
            at += int(kept) + 1
    greedy = engines.get("greedy-draft").generate(model, [PROMPT] * 20, CAP, Settings(), 2)
    assert all(one.drafts[1, 0] == law[one.tokens[0]].argmax() for one in greedy)


@needs_vllm
@pytest.mark.parametrize("mode", MODES)
def test_greedy_generations_are_the_plain_ones(engines: Engines, model: Model, mode: str) -> None:
    greedy = Settings(temperature=0.0)
    expected = [int(model.arrays["target"][PROMPT[-1]].argmax())]
    while len(expected) < CAP:
        expected.append(int(model.arrays["target"][expected[-1]].argmax()))
    made = engines.get(mode).generate(model, [PROMPT] * 3, CAP, greedy, 1)
    plain = engines.get(mode).plain(model, [PROMPT], CAP, greedy, 1)
    assert [one.tokens.tolist() for one in (*made, *plain)] == [expected] * 4
    assert plain[0].accepted is None


@needs_vllm
def test_a_seed_gives_its_generations_again(engines: Engines, model: Model) -> None:
    first, again, other = (
        [
            one.tokens.tolist()
            for one in engines.get("draft-model").generate(model, [PROMPT] * 30, CAP, Settings(), seed)
        ]
        for seed in (5, 5, 6)
    )
    assert first == again != other


@needs_vllm
def test_settings_reach_the_engine(engines: Engines, model: Model) -> None:
    engine, law = engines.get("draft-model"), model.arrays["target"]
    best = np.argsort(-law, -1)
    for one in engine.generate(model, [PROMPT] * 200, CAP, Settings(top_k=2), 3):
        assert all(one.tokens[t] in best[last(one, t), :2] for t in range(CAP))
    stopped = engine.generate(model, [PROMPT] * 200, CAP, Settings(eos=3), 3)
    assert any(len(one.tokens) < CAP for one in stopped)
    assert all(3 not in one.tokens[:-1] for one in stopped)
    assert all(one.finish == ("stop" if one.tokens[-1] == 3 else "length") for one in stopped)
    words = ((int(best[PROMPT[-1], 0]),), (4, 5))
    for one in engine.generate(model, [PROMPT] * 200, CAP, Settings(bad_words=words), 3):
        shown = one.tokens.tolist()
        assert words[0][0] not in shown
        assert (4, 5) not in pairwise(shown)


@needs_vllm
def test_a_named_model_is_scored_without_speculation(model: Model) -> None:
    own = start(str(_FILE), "draft-model", {"model": model.target, "draft": model.draft}, python=PYTHON)
    with own:
        (named,) = own.models(0)
        assert (named.vocab, named.target, named.draft) == (8, model.target, model.draft)
        tokens = np.array([[1, 2, 0, 5], [7, 7, 3, 1]])
        for which in ("target", "draft"):
            law = softmax(own.logits(named, which, tokens))
            np.testing.assert_allclose(law, model.arrays[which][tokens], atol=1e-5)


@needs_vllm
def test_top_k_alone_is_known_to_raise_on_the_cpu_and_the_engine_goes_on_afterwards(
    engines: Engines, model: Model
) -> None:
    stock = engines.stock()
    with pytest.raises(CallFailed, match="numel"):
        stock.generate(model, [PROMPT] * 4, CAP, Settings(top_k=2), 1)
    greedy = stock.generate(model, [PROMPT] * 2, CAP, Settings(temperature=0.0), 1)
    assert [len(one.tokens) for one in greedy] == [CAP, CAP]


@needs_vllm
def test_an_end_is_known_to_be_missed_as_a_bonus_token_once_there_are_enough_tokens(
    engines: Engines, model: Model
) -> None:
    engines.stock()
    settings = Settings(eos=int(model.arrays["target"].sum(0).argmax()), min_new_tokens=3)
    bonus = missed = 0
    due = 0.0
    for one in engines.get("draft-model").generate(model, [PROMPT] * 4000, CAP, settings, 1):
        # The first pass emits one token, the second three drafts and a bonus: the fifth token, behind four.
        if one.accepted[1] == 3 and len(one.tokens) > 4:
            bonus += 1
            missed += one.tokens[4] != settings.eos
            due += model.arrays["target"][one.tokens[3], settings.eos]
    assert due > 50
    assert missed == bonus
