"""The audit of whole engines, on a miniature engine that is right or has one planted fault."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from auditor.adapter import Generation, Settings
from auditor.engines.audit import ENGINE_CLAIMS, WEALTH_CLAIMS, EngineAudit, Limits
from auditor.engines.calls import EngineSubject, Known
from auditor.engines.findings import build
from auditor.engines.mode import EngineConfig, run_engine_mode
from auditor.engines.requests import Request
from auditor.errors import BadAnswer
from auditor.oracle import attentive_pair, table_pair, write_pair


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MiniatureEngine = _load("miniature_engines").MiniatureEngine

PROMPT = (1, 2, 3, 1, 2)
NEUTRAL = Settings()
GREEDY = Settings(temperature=0.0)
THRESHOLD = float(np.log(5 / 1e-6))


def _models(kind: str) -> object:
    def make(subject: EngineSubject, directory: Path, seed: int) -> list[Known]:
        pair = attentive_pair(8, 0, layers=1) if kind == "attentive" else table_pair(8, 0)
        return [Known(write_pair(pair, directory / pair.key), kind, pair.target.logits, pair.draft.logits)]

    return make


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    # Sized by the clock, fresh draws would differ from run to run.
    monkeypatch.setattr(EngineAudit, "size", lambda audit, seconds: 300)
    made: list[EngineAudit] = []

    def make(fault: str = "", shows: str = "drafts", kind: str = "table", seed: int = 0) -> EngineAudit:
        limits = Limits(dict.fromkeys(WEALTH_CLAIMS, THRESHOLD), seed)
        audit = EngineAudit(EngineSubject(MiniatureEngine(fault, shows)), limits, models=_models(kind))
        audit.prepare()
        made.append(audit)
        return audit

    yield make
    for audit in made:
        audit.close()


def _visit(audit: EngineAudit, settings: Settings, count: int, visits: int, cap: int = 8) -> None:
    for _ in range(visits):
        audit.visit(Request(0, PROMPT, cap, settings), count)


@pytest.mark.parametrize("shows", ["drafts", "counts", "nothing"])
@pytest.mark.parametrize("kind", ["table", "attentive"])
def test_a_right_engine_is_never_accused(audits, shows: str, kind: str) -> None:
    audit = audits("", shows, kind)
    _visit(audit, GREEDY, 4, 1)
    _visit(audit, NEUTRAL, 120, 3)
    _visit(audit, Settings(temperature=0.7, top_p=0.8), 120, 1)
    _visit(audit, Settings(eos=3, min_new_tokens=2, repetition_penalty=1.3), 120, 1)
    _visit(audit, Settings(stop=((2, 1), (5,))), 120, 1)
    assert audit.state.violated == {}
    assert audit.state.breaches == {}
    for claim in WEALTH_CLAIMS:
        assert audit.evidence(claim) < 8


EVERY_FAULT = [
    ("cache-not-rolled-back", "attentive", NEUTRAL, 150, 2, "sequence-law", "stale-cache"),
    ("position-off-by-one", "attentive", NEUTRAL, 450, 3, "sequence-law", "positions-shifted"),
    (
        "temperature-on-target-only",
        "table",
        Settings(temperature=0.5),
        200,
        3,
        "settings-law",
        "drafts-without-settings",
    ),
    ("temperature-on-draft-only", "table", Settings(temperature=0.5), 200, 3, "settings-law", "settings-ignored"),
    ("top-p-on-bonus-only", "table", Settings(top_p=0.5), 200, 3, "settings-law", "settings-on-bonus-only"),
    ("eos-in-draft-ignored", "table", Settings(eos=3), 200, 1, "settings-law", "after-eos"),
    ("beyond-cap", "table", NEUTRAL, 50, 1, "sequence-law", "beyond-cap"),
    ("bonus-never-emitted", "table", NEUTRAL, 50, 1, "counters", "bonus-dropped"),
    ("argmax-drafts", "table", NEUTRAL, 100, 3, "sequence-law", "drafts-argmax"),
    ("argmax-drafts", "table", NEUTRAL, 100, 3, "draft-law", "drafts-argmax"),
    ("shared-randomness", "table", NEUTRAL, 200, 3, "draft-independence", "shared-randomness"),
    ("counts-past-eos", "table", Settings(eos=3), 200, 1, "counters", "past-the-end"),
]


@pytest.mark.parametrize(("fault", "kind", "settings", "count", "visits", "claim", "name"), EVERY_FAULT)
def test_a_planted_fault_is_caught_by_name(
    audits, fault: str, kind: str, settings: Settings, count: int, visits: int, claim: str, name: str
) -> None:
    audit = audits(fault, kind=kind)
    _visit(audit, settings, count, visits)
    assert claim in audit.state.violated
    finding = build(audit, claim, "", 1, "", 1.0)
    assert finding.diagnosis is not None
    assert finding.diagnosis.fault == name
    assert finding.diagnosis.words in finding.title


@pytest.mark.parametrize("fault", ["cache-not-rolled-back", "position-off-by-one"])
def test_greedy_shows_wrong_bookkeeping_in_a_few_generations(audits, fault: str) -> None:
    audit = audits(fault, "nothing", "attentive")
    for k in range(6):
        audit.visit(Request(0, (k, 2, 3, k, 2), 12, GREEDY), 1)
    assert "greedy" in audit.state.violated


@pytest.mark.parametrize("shows", ["counts", "nothing"])
@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("argmax-drafts", NEUTRAL),
        ("shared-randomness", NEUTRAL),
        ("temperature-on-target-only", Settings(temperature=0.5)),
        ("top-p-on-bonus-only", Settings(top_p=0.5)),
    ],
)
def test_tokens_alone_show_a_wrong_law(audits, shows: str, fault: str, settings: Settings) -> None:
    audit = audits(fault, shows)
    _visit(audit, settings, 300, 3)
    assert {"sequence-law", "settings-law"} & set(audit.state.violated)


def test_counts_that_contradict_the_tokens_are_no_longer_believed(audits) -> None:
    audit = audits("bonus-never-emitted")
    _visit(audit, NEUTRAL, 200, 4)
    assert set(audit.state.violated) == {"counters"}
    assert audit.state.untrusted


def test_a_law_that_plain_sampling_does_not_follow_is_not_held_against_speculation() -> None:
    class Colder(MiniatureEngine):  # type: ignore[misc, valid-type]
        """Its model answers at another temperature than the checkpoint says, speculating or not."""

        def generate(self, model, prompts, cap, settings, seed):
            return super().generate(model, prompts, cap, Settings(temperature=0.6), seed)

        def plain(self, model, prompts, cap, settings, seed):
            return super().plain(model, prompts, cap, Settings(temperature=0.6), seed)

    limits = Limits(dict.fromkeys(WEALTH_CLAIMS, THRESHOLD), 0, max_seconds=3600.0, max_generations=500)
    audit = EngineAudit(EngineSubject(Colder()), limits, models=_models("table"))
    state = audit.run()
    audit.close()
    assert not {"sequence-law", "settings-law"} & set(state.violated)
    assert "plain sampling" in state.plain_fault


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [None],
        [Generation(np.array([0.5, 1.0]))],
        [Generation(np.array([0, 8]))],
        [Generation(np.array([[0, 1]]))],
        [Generation(np.array([0, 1]), drafted=np.array([1]))],
        [Generation(np.array([0, 1]), drafts=np.array([[1]]))],
        [Generation(np.array([0, 1]), logprobs=np.array([0.1]))],
    ],
)
def test_an_answer_that_is_none_is_a_finding(answer: object) -> None:
    class Broken:
        def generate(self, model, prompts, max_new_tokens, settings, seed):
            return answer

    audit = EngineAudit(
        EngineSubject(Broken()), Limits(dict.fromkeys(WEALTH_CLAIMS, THRESHOLD)), models=_models("table")
    )
    audit.prepare()
    with pytest.raises(BadAnswer):
        audit.visit(Request(0, PROMPT, 4, NEUTRAL), 1)
    audit.close()
    assert "structure" in audit.state.violated


def test_a_mode_from_the_first_generation_to_the_report() -> None:
    events: list[object] = []
    config = EngineConfig(max_seconds=3600.0, max_generations=600)
    result = run_engine_mode(MiniatureEngine("argmax-drafts"), "mini", config, events.append)
    status = {claim.id: claim.status for claim in result.claims}
    assert status["draft-law"] == "violated"
    assert status["output-law"] == "skipped"
    assert set(ENGINE_CLAIMS) <= set(status)
    assert {finding.claim for finding in result.findings} == {c for c, s in status.items() if s == "violated"}
    assert result.metrics.rounds > 0
    assert any(type(event).__name__ == "FindingReady" for event in events)


def test_an_engine_that_raises_is_an_incident() -> None:
    class Raising:
        def generate(self, model, prompts, max_new_tokens, settings, seed):
            raise RuntimeError("out of cache")

    result = run_engine_mode(Raising(), "", EngineConfig(), lambda event: None)
    assert len(result.incidents) == 1
    assert "RuntimeError: out of cache" in result.incidents[0].text
    assert {claim.status for claim in result.claims} == {"skipped"}
