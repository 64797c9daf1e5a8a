"""The adapter of Transformers' assisted generation: what it records is what the library did; what the audit makes of it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from auditor.adapter import Settings
from auditor.engines.audit import WEALTH_CLAIMS, EngineAudit, Limits
from auditor.engines.calls import EngineSubject
from auditor.engines.findings import build
from auditor.engines.requests import Request
from auditor.oracle import attentive_pair, softmax, write_pair

pytest.importorskip("torch")
pytest.importorskip("transformers")

_PATH = Path(__file__).parents[2] / "adapters" / "transformers_assisted.py"
_SPEC = importlib.util.spec_from_file_location("audited_transformers_assisted", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)
AssistedGeneration = _MODULE.AssistedGeneration

PROMPT = (1, 2, 0, 1, 2)
GREEDY = Settings(temperature=0.0)
MODES = [mode.name for mode in AssistedGeneration.modes]


@pytest.fixture
def audited() -> Iterator[object]:
    made: list[EngineAudit] = []

    def make(mode: str) -> EngineAudit:
        limits = Limits(dict.fromkeys(WEALTH_CLAIMS, float(np.log(5e6))))
        audit = EngineAudit(EngineSubject(AssistedGeneration(mode=mode)), limits)
        audit.prepare()
        made.append(audit)
        return audit

    yield make
    for audit in made:
        audit.close()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="draft-model"):
        AssistedGeneration(mode="telepathy")


def test_drafts_follow_the_draft_model_round_by_round(tmp_path: Path) -> None:
    pair = attentive_pair(8, 0)
    model = write_pair(pair, tmp_path)
    made = AssistedGeneration().generate(model, [PROMPT] * 5, 10, Settings(), 0)
    for one in made:
        assert one.drafted is not None
        assert one.accepted is not None
        assert one.drafts is not None
        assert one.draft_probs is not None
        assert int((one.accepted + 1).sum()) == len(one.tokens) == 10
        text = np.array([*PROMPT, *one.tokens])
        at = len(PROMPT)
        for k in range(len(one.drafted)):
            context = text[:at]
            for j in range(int(one.drafted[k])):
                law = softmax(pair.draft.logits(context[None]))[0, -1]
                assert np.allclose(one.draft_probs[k, j], law, atol=1e-5)
                context = np.append(context, one.drafts[k, j])
            kept = int(one.accepted[k])
            assert one.drafts[k, :kept].tolist() == text[at : at + kept].tolist()
            at += kept + 1


def test_one_seed_gives_one_answer(tmp_path: Path) -> None:
    model = write_pair(attentive_pair(8, 0), tmp_path)
    adapter = AssistedGeneration()
    one, two, three = (adapter.generate(model, [PROMPT] * 3, 8, Settings(), seed) for seed in (1, 1, 2))
    assert [g.tokens.tolist() for g in one] == [g.tokens.tolist() for g in two]
    assert [g.tokens.tolist() for g in one] != [g.tokens.tolist() for g in three]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_and_its_greedy_tokens_and_counters_are_right(audited, mode: str) -> None:
    audit = audited(mode)
    for settings in (GREEDY, Settings()):
        audit.visit(Request(0, PROMPT, 8, settings), 6)
    assert not {"structure", "greedy", "counters", "logprobs"} & set(audit.state.violated)


@pytest.mark.parametrize("mode", [m for m in MODES if m not in ("gemma4-assistant", "different-tokenizers")])
def test_plain_sampling_follows_the_law(audited, mode: str) -> None:
    audit = audited(mode)
    assert audit._follows(Request(0, PROMPT, 8, Settings(temperature=0.8, top_p=0.9, eos=3, min_new_tokens=2)))
    assert audit.state.skipped == {}


def test_the_gemma4_assistant_is_found_to_draft_by_argmax(audited) -> None:
    audit = audited("gemma4-assistant")
    for _ in range(3):
        audit.visit(Request(0, PROMPT, 8, Settings()), 50)
    assert {"sequence-law", "draft-law"} <= set(audit.state.violated)
    for claim in ("sequence-law", "draft-law"):
        finding = build(audit, claim, "", 1, "", 2.0)
        assert finding.diagnosis is not None
        assert finding.diagnosis.fault == "drafts-argmax"


def test_drafts_between_tokenizers_are_found_not_to_follow_their_law(audited) -> None:
    audit = audited("different-tokenizers")
    audit.visit(Request(0, PROMPT, 8, Settings()), 60)
    assert "draft-law" in audit.state.violated


def test_a_stopping_criterion_is_found_to_be_looked_at_between_rounds_only(audited) -> None:
    audit = audited("stopping-criterion")
    audit.visit(Request(0, PROMPT, 8, Settings(stop=((7,), (6,), (0,)))), 30)
    assert "settings-law" in audit.state.violated
    assert audit.state.breaches["settings-law"][0][0].kind == "after-stop"
