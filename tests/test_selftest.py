"""The auditor audited, in its quick form; the full one is in benchmarks/."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from auditor.bets.tally import read_rounds
from auditor.cases import Case
from auditor.commands.selftest import selftest
from auditor.draws import drafts_from, rounds
from auditor.rules import FAULTS
from auditor.selftest import (
    Alarms,
    Cell,
    Detection,
    Outcome,
    detect,
    false_alarms,
    faulty,
    line_of,
    loudest,
    matrix,
    measure,
    pool,
    round_claims,
    run_selftest,
)
from auditor.wald import fault_nats, law_of, nats_per_round

ALPHA = 1e-6


def test_every_fault_is_found_and_no_correct_sampler_is_accused() -> None:
    outcome = run_selftest(severities=(1.0, 0.1), seeds=1, cap=20_000, audits=4)
    assert outcome.ok
    assert not outcome.missed
    assert {c.fault for c in outcome.cells} == set(FAULTS)
    assert all(c.found for c in outcome.cells if c.severity == 1)
    assert {a.sampler for a in outcome.alarms} > {"rejection", "onehot", "match", "reference float32"}
    text = matrix(outcome)
    assert all(fault in text for fault in FAULTS)


def test_a_fault_at_severity_one_percent() -> None:
    cell = measure("residual-p", 0.01, pool(), 5, 50_000, ALPHA)
    assert cell.claim == "residual-law"
    assert cell.found == 5
    assert cell.ratio is not None


def test_nats_are_the_mean_log_likelihood_ratio_of_drawn_rounds() -> None:
    """Exact nats against the directed bet's own mean pay-off on rounds that follow the fault."""
    book = pool()[1]
    rng = np.random.default_rng(5)
    for fault, claim in (
        ("residual-squared", "residual-law"),
        ("accept-strict", "acceptance-law"),
        ("bonus-q", "bonus-token"),
    ):
        n = 200_000
        drafts = drafts_from(book.case.q, n, rng)
        tokens = rounds(FAULTS[fault], book.case.p[None], book.case.q[None], drafts, rng)
        tally = read_rounds(book.reading, drafts, tokens)
        score = book.evidence(tally, book.endings(tally)).scores[claim]
        best = score.bets[: score.directed].max() / n
        assert best == pytest.approx(fault_nats(book, fault, 1.0)[claim], rel=0.05)


def test_a_correct_law_has_no_nats() -> None:
    for book in pool():
        assert max(nats_per_round(book, law_of(book, "residual-p", 0.0)).values()) == pytest.approx(0, abs=1e-9)
        for fault in FAULTS:
            assert min(fault_nats(book, fault, 0.1).values()) >= -1e-12


def test_detection_is_the_same_for_the_same_seed() -> None:
    book, claim, nats = loudest(pool(), "bonus-greedy", 1.0)
    wald = float(np.log(1 / ALPHA) / nats)
    one, two = (detect(book, faulty("bonus-greedy", 1.0), claim, wald, 10_000, ALPHA, 3) for _ in range(2))
    assert one == two
    assert one.rounds is not None


def test_what_the_cap_hides_is_said_and_not_counted_as_missed() -> None:
    cell = measure("residual-squared", 0.01, pool(), 2, 1000, ALPHA)
    assert cell.rounds is None
    assert "even the limit" in line_of(cell)
    assert not Outcome((cell,), (), ALPHA, 1000).missed
    room = Cell("residual-p", 1.0, "residual-law", (Detection("residual-law", 10.0, None, 1000),))
    assert Outcome((room,), (), ALPHA, 1000).missed == [room]


def test_false_alarms_are_counted() -> None:
    alarms, audits = false_alarms(faulty("residual-q", 1.0), pool()[:1], (256,), 0.01, range(4))
    assert (alarms, audits) == (4, 4)
    assert not Outcome((), (Alarms("x", 4, 4, 0.01),), ALPHA, 1).ok
    assert Outcome((), (Alarms("x", 1, 100, 0.01),), ALPHA, 1).ok


def test_claims_of_verify_alone() -> None:
    assert {"acceptance-law", "residual-law", "bonus-token", "output-law", "row-independence"} <= set(round_claims())
    assert "sequence-law" not in round_claims()


def test_the_pool_has_full_and_sparse_cases() -> None:
    cases: list[Case] = [book.case for book in pool()]
    assert any((c.p > 0).all() for c in cases)
    assert any((c.p == 0).any() for c in cases)


def test_the_command_says_what_it_found() -> None:
    help_text = CliRunner().invoke(selftest, ["--help"])
    assert help_text.exit_code == 0
    assert "--quick" in help_text.output
