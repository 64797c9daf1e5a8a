"""Batches whose rows depend on each other, or borrow each other's laws: found within a thousand rounds, and named."""

from __future__ import annotations

import numpy as np
import pytest

from auditor import checks
from auditor.bets import mixed
from auditor.bets.wealth import Wealth
from auditor.calls import Seeds, Subject
from auditor.results import Journal
from auditor.rules import RULES
from auditor.visits import Budget, ModeAudit
from tests.miniatures import CORRECT, UNLISTED

FAULTY = {cls.__name__: cls for cls in UNLISTED}
CLAIMS = 11
"""As many claims as evidence decides for an adapter with `verify` and `sample`."""
THRESHOLD = float(np.log(CLAIMS / 1e-6))


def audit_of(adapter: object, speed: float = 100.0) -> ModeAudit:
    subject = Subject(adapter)
    audit = ModeAudit(
        subject,
        RULES[subject.rule],
        Wealth(("row-independence",), ("verify",), 1e-6),
        Seeds(7),
        Budget(10**6, 1e6),
        Journal(),
    )
    audit.speed = dict.fromkeys(subject.methods, speed)
    return audit


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NeighbourTarget", "uses the target of the"),
        ("NeighbourDraftLaw", "uses the draft law of the"),
        ("StaleResidual", "uses the residual of the"),
    ],
)
def test_a_neighbours_law_is_found_and_named_within_a_thousand_rounds(name: str, words: str) -> None:
    audit = audit_of(FAULTY[name]())
    cases = mixed.cases_of(3, ragged=False)
    evidence = mixed.judge(audit, cases, [mixed.draw(audit, cases, 960)])
    told, nats, catalogued = evidence.leader
    assert told.startswith(words)
    assert nats > max(catalogued, THRESHOLD + np.log(2 * len(mixed.BORROWED) * 3))


def test_a_bonus_row_beyond_a_short_rows_drafts_is_found() -> None:
    audit = audit_of(FAULTY["BonusOfLongestRow"]())
    assert audit.subject.ragged
    cases = mixed.cases_of(3, ragged=True)
    evidence = mixed.judge(audit, cases, [mixed.draw(audit, cases, 960)])
    assert evidence.score.local > THRESHOLD + np.log(2)


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("RowsShareCoins", "row-independence"),
        ("RowsShareResidualNoise", "row-independence"),
        ("IgnoresSeed", "seed-independence"),
        ("SeedsOverlap", "seed-independence"),
        ("SeedMod16", "seed-independence"),
    ],
)
def test_shared_randomness_is_found_within_a_thousand_rounds(name: str, claim: str) -> None:
    everything = {cls.__name__: cls for cls in _all()}
    audit = audit_of(everything[name]())
    log_e, _, worst = checks.independence(audit)[claim]
    assert checks.CALLS * checks.PROBE_ROWS[0] * len(checks.PROBES) <= 1000  # rounds that this took
    assert worst is not None
    # Half of the claim's wealth on rows is kept for mixed batches.
    assert log_e > THRESHOLD + (np.log(2) if claim == "row-independence" else 0.0)


def _all() -> list[type]:
    from tests.miniatures import KNOWN

    return [*UNLISTED, *KNOWN]


@pytest.mark.parametrize("cls", [c for c in CORRECT if hasattr(c, "verify")], ids=lambda c: c.__name__)
def test_correct_samplers_pass_in_mixed_batches_and_across_calls(cls: type) -> None:
    audit = audit_of(cls())
    cases = mixed.cases_of(5, audit.subject.ragged)
    evidence = mixed.judge(audit, cases, [mixed.draw(audit, cases, 960) for _ in range(4)])
    # An e-value passes exp(12) with probability exp(-12), 6e-6; the seeds are fixed.
    assert evidence.score.local < 12
    assert evidence.borrowed.max() < 12
    assert all(log_e < 12 for log_e, _, _ in checks.independence(audit).values())
