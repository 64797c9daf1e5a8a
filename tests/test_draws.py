"""Draws follow the laws that they are said to follow, and sampled rounds of every fault agree with its exact laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from auditor.bets.books import RoundBook
from auditor.bets.boxes import Precision
from auditor.cases import Case
from auditor.draws import drafts_from, inverse_cdf, inverse_cdf_rows, rounds, shares_rows
from auditor.findings.fit import expected, group_rounds, pearson
from auditor.rules import FAULTS, ONEHOT, RULES, DraftResidual

FLOOR = 1e-9
"""p-values of correct draws at fixed seeds; a wrong law of any size gives less."""
ROUNDS = 60_000

CASE = Case(
    np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.35, 0.1, 0.3]]),
    np.array([[0.2, 0.3, 0.1, 0.4], [0.35, 0.3, 0.2, 0.15]]),
    "four tokens",
    "simplex",
)
OTHER = Case(CASE.p[::-1], CASE.q[::-1], "the same, backwards", "simplex")


def assert_follow(tokens: np.ndarray, law: np.ndarray) -> None:
    counts = np.bincount(tokens, minlength=len(law))
    assert not counts[law == 0].any()
    if (law > 0).sum() > 1:
        assert stats.chisquare(counts[law > 0], counts.sum() * law[law > 0] / law.sum()).pvalue > FLOOR


@pytest.mark.parametrize("n", [3000, 40_000], ids=["searched", "by a guide table"])
@pytest.mark.parametrize(
    "law", [[0.5, 0.3, 0.2], [0.0, 0.4, 0.0, 0.6, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.7, 0.3]], ids=str
)
def test_inverse_cdf(law: list[float], n: int) -> None:
    assert_follow(inverse_cdf(np.array(law), n, np.random.default_rng(1)), np.array(law))


def test_inverse_cdf_of_many_tokens() -> None:
    law = np.random.default_rng(2).dirichlet(np.ones(500))
    law[::7] = 0
    law /= law.sum()
    tokens = inverse_cdf(law, 200_000, np.random.default_rng(3))
    assert_follow(tokens, law)


def test_inverse_cdf_of_rows() -> None:
    law = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.3, 0.7, 0.0]])
    tokens = inverse_cdf_rows(np.repeat(law, 20_000, 0), np.random.default_rng(4)).reshape(3, -1)
    for row, one in zip(tokens, law, strict=True):
        assert_follow(row, one)


def test_a_law_that_sums_to_less_than_one_stays_on_its_support() -> None:
    law = np.array([0.25, 0.75 - 1e-9, 0.0])

    class Ones:
        def random(self, n: int) -> np.ndarray:
            return np.full(n, 1 - 2.0**-53)

    assert (inverse_cdf(law, 5, Ones()) == 1).all()  # type: ignore[arg-type]
    assert (inverse_cdf_rows(np.tile(law, (5, 1)), Ones()) == 1).all()  # type: ignore[arg-type]


def test_drafts_follow_q_position_by_position() -> None:
    drafts = drafts_from(CASE.q, 50_000, np.random.default_rng(5))
    for i, law in enumerate(CASE.q):
        assert_follow(drafts[:, i], law)
    joint = np.bincount(drafts @ [4, 1], minlength=16)
    assert stats.chisquare(joint, 50_000 * np.outer(*CASE.q).ravel()).pvalue > FLOOR


def test_broadcast_rows_are_known_for_what_they_are() -> None:
    p, q = (np.broadcast_to(law, (9, *law.shape)) for law in (CASE.p, CASE.q))
    assert shares_rows(p, q)
    assert shares_rows(p[:1], q[:1])
    assert not shares_rows(np.array(p), np.array(q))
    assert not shares_rows(p, np.array(q))


BY_DRAFT = [n for n, r in {**RULES, **FAULTS}.items() if isinstance(r.residual, DraftResidual)]


@pytest.mark.parametrize("name", BY_DRAFT)
@pytest.mark.parametrize("row", [0, 1])
def test_a_residual_by_draft_is_drawn_as_it_is_given(name: str, row: int) -> None:
    residual = {**RULES, **FAULTS}[name].residual
    assert isinstance(residual, DraftResidual)
    p, q = CASE.p[row], CASE.q[row]
    rng = np.random.default_rng(6)
    for x in range(4):
        law = residual.given(p[None], q[None], np.array([x]))[0]
        assert_follow(residual.draw(p, q, np.full(40_000, x), rng.random(40_000)), np.where(law > 1e-12, law, 0))


def p_value(case: Case, drafts: np.ndarray, tokens: np.ndarray, name: str, severity: float, base: str) -> float:
    """Pearson's test of rounds against the fault's exact laws, group by group."""
    book = RoundBook(case, RULES[base], Precision())
    fault = FAULTS[name]
    groups = group_rounds(book, drafts, tokens, by_lowest=fault.shares_uniform)
    laws = [expected(book, fault, np.array([severity]), g)[0] for g in groups]
    for law in laws:
        assert law.sum() == pytest.approx(1)
    return pearson(laws, groups)


SOUND = [name for name in FAULTS if not FAULTS[name].keeps]


@pytest.mark.parametrize("severity", [1.0, 0.3])
@pytest.mark.parametrize("base", RULES)
@pytest.mark.parametrize("name", SOUND)
def test_rounds_of_a_fault_follow_its_exact_laws(name: str, base: str, severity: float) -> None:
    rng = np.random.default_rng(8)
    n = ROUNDS // 2
    drafts = drafts_from(CASE.q, n, rng)
    p, q = (np.broadcast_to(law, (n, *law.shape)) for law in (CASE.p, CASE.q))
    tokens = rounds(FAULTS[name], p, q, drafts, rng, severity=severity, base=RULES[base])
    assert p_value(CASE, drafts, tokens, name, severity, base) > FLOOR


@pytest.mark.parametrize("severity", [1.0, 0.3])
@pytest.mark.parametrize("name", SOUND)
def test_rows_of_a_mixed_batch_follow_their_own(name: str, severity: float) -> None:
    rng = np.random.default_rng(9)
    turn = np.arange(ROUNDS) % 2
    p, q = np.stack([CASE.p, OTHER.p])[turn], np.stack([CASE.q, OTHER.q])[turn]
    drafts = np.empty((ROUNDS, 2), np.int64)
    for k, case in enumerate((CASE, OTHER)):
        drafts[turn == k] = drafts_from(case.q, ROUNDS // 2, rng)
    tokens = rounds(FAULTS[name], p, q, drafts, rng, severity=severity)
    for k, case in enumerate((CASE, OTHER)):
        assert p_value(case, drafts[turn == k], tokens[turn == k], name, severity, "rejection") > FLOOR


def test_the_test_of_rounds_has_teeth() -> None:
    """The rounds of one fault do not pass for another's, nor for the rule's own at a third of the severity."""
    rng = np.random.default_rng(10)
    drafts = drafts_from(CASE.q, ROUNDS, rng)
    tokens = rounds(FAULTS["residual-p"], CASE.p[None], CASE.q[None], drafts, rng)
    assert p_value(CASE, drafts, tokens, "residual-p", 0.9, "rejection") < 1e-3
    assert p_value(CASE, drafts, tokens, "residual-abs", 1.0, "rejection") < 1e-6


@pytest.mark.parametrize("base", RULES)
def test_severity_zero_is_the_rule(base: str) -> None:
    rng = np.random.default_rng(11)
    drafts = drafts_from(CASE.q, ROUNDS, rng)
    tokens = rounds(FAULTS["accept-always"], CASE.p[None], CASE.q[None], drafts, rng, severity=0.0, base=RULES[base])
    assert p_value(CASE, drafts, tokens, "accept-always", 0.0, base) > FLOOR
    assert_follow(tokens[:, 0], CASE.p[0])
    ends = (tokens >= 0).sum(1)
    assert_follow(tokens[ends == 3, 2], CASE.p[2])


def test_drafts_behind_a_rejection_are_kept_as_often_as_the_severity_says() -> None:
    rng = np.random.default_rng(12)
    drafts = drafts_from(CASE.q, ROUNDS, rng)
    tokens = rounds(FAULTS["keeps-after-rejection"], CASE.p[None], CASE.q[None], drafts, rng, severity=0.3)
    rejected = tokens[:, 0] != drafts[:, 0]
    kept = rejected & (tokens[:, 1] >= 0)
    assert (tokens[kept, 1] == drafts[kept, 1]).all()
    assert (tokens[kept, 2] == -1).all()
    assert stats.binomtest(int(kept.sum()), int(rejected.sum()), 0.3).pvalue > FLOOR


def test_one_hot_rounds_of_a_point_draft() -> None:
    q = np.eye(4)[[3, 3]]
    rng = np.random.default_rng(13)
    drafts = drafts_from(q, ROUNDS, rng)
    tokens = rounds(ONEHOT, CASE.p[None], q[None], drafts, rng, base=ONEHOT)
    assert_follow(tokens[:, 0], CASE.p[0])
    assert_follow(tokens[(tokens[:, 1] >= 0), 1], CASE.p[1])
