"""Bets against boxes are e-values, and the familiar tests say what they should."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linprog

from auditor.cases import simplices
from auditor.evidence import (
    LOCAL_FRACTIONS,
    binomial_interval,
    chi_square,
    clipped,
    dot,
    local_bets,
    log_bets,
    log_bets_bernoulli,
    log_dirichlet_mixture,
    log_mean,
    mean_interval,
    total_variation,
)

SLACK = 1e-9


@st.composite
def boxes_and_laws(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A law R, a box (lo, up), and a law within the box."""
    vocab = draw(st.integers(2, 6))
    inside, law = draw(simplices(vocab)), draw(simplices(vocab))
    scale = draw(st.sampled_from([1e-12, 1e-6, 1e-3, 0.05, 0.4]))
    below = np.array([draw(st.integers(0, 4)) for _ in range(vocab)]) * scale
    above = np.array([draw(st.integers(0, 4)) for _ in range(vocab)]) * scale
    return law, np.clip(inside - below, 0, 1), np.clip(inside + above, 0, 1), inside


def largest_mean(pay: np.ndarray, lo: np.ndarray, up: np.ndarray) -> float:
    """The largest mean of pay-offs [V] over the laws of a box, by filling the best outcomes first (a fractional knapsack)."""
    law, left = lo.copy(), 1 - lo.sum()
    for y in np.argsort(-pay):
        step = min(left, up[y] - lo[y])
        law[y] += step
        left -= step
    return float(law[law > 0] @ pay[law > 0])


@given(boxes_and_laws())
@settings(max_examples=300, deadline=None)
def test_a_bet_has_mean_at_most_one_under_every_law_of_the_box(drawn: tuple[np.ndarray, ...]) -> None:
    law, lo, up, inside = drawn
    pay = np.exp(log_bets(law, lo, up))
    assert largest_mean(pay, lo, up) <= 1 + SLACK
    assert inside[inside > 0] @ pay[inside > 0] <= 1 + SLACK


@given(boxes_and_laws())
@settings(max_examples=60, deadline=None)
def test_a_linear_programme_finds_no_better_law_either(drawn: tuple[np.ndarray, ...]) -> None:
    law, lo, up, _ = drawn
    pay = np.exp(log_bets(law, lo, up))
    assume((up - lo).max() >= 1e-3 and pay.max() < 1e3)  # the solver meets its constraints to 1e-7 only
    best = linprog(-pay, A_eq=np.ones((1, len(pay))), b_eq=[1.0], bounds=np.stack([lo, up], -1))
    assert best.status == 0
    assert -best.fun <= 1 + 1e-6 * max(1.0, pay.max())
    assert -best.fun == pytest.approx(largest_mean(pay, lo, up), abs=1e-6 * max(1.0, pay.max()))


@given(boxes_and_laws())
@settings(max_examples=200, deadline=None)
def test_a_bet_on_a_law_of_the_box_is_no_bet(drawn: tuple[np.ndarray, ...]) -> None:
    _, lo, up, inside = drawn
    assert (log_bets(inside, lo, up) == 0).all()


@given(boxes_and_laws())
@settings(max_examples=200, deadline=None)
def test_the_clipped_law_has_the_form_that_the_proof_needs(drawn: tuple[np.ndarray, ...]) -> None:
    law, lo, up, _ = drawn
    star, divisor = clipped(law, lo, up)
    assert (star >= lo).all()
    assert (star <= up).all()
    assert divisor >= 1
    # R / P* is at least 1/c where P* = up, at most 1/c where P* = lo, and 1/c in between.
    some = law > 0
    at_up, at_lo = some & (star >= up), some & (star <= lo)
    between = some & ~at_up & ~at_lo
    share = law / np.where(star > 0, star, 1e-300)
    if between.any():
        assert np.ptp(share[between]) <= 1e-9 * share[between].max()
    lowest = share[at_up & ~at_lo].min(initial=np.inf)
    highest = share[at_lo & ~at_up].max(initial=0)
    middle = share[between]
    assert highest <= min(lowest, middle.min(initial=np.inf)) * (1 + 1e-9)
    assert middle.max(initial=highest) <= lowest * (1 + 1e-9)


@given(boxes_and_laws(), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_few_steps_cost_evidence_and_not_validity(drawn: tuple[np.ndarray, ...], steps: int) -> None:
    """A root that is only bracketed is paid for by the divisor."""
    law, lo, up, _ = drawn
    assert largest_mean(np.exp(log_bets(law, lo, up, steps)), lo, up) <= 1 + SLACK


def test_bets_on_many_laws_at_once_are_the_bets_one_by_one() -> None:
    rng = np.random.default_rng(3)
    laws, inside = rng.dirichlet(np.ones(5), (7, 3)), rng.dirichlet(np.ones(5), 3)
    lo, up = inside * 0.9, inside * 1.1
    together = log_bets(laws, lo, up)
    alone = np.array([[log_bets(laws[k, m], lo[m], up[m]) for m in range(3)] for k in range(7)])
    np.testing.assert_allclose(together, alone, atol=1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=300, deadline=None)
def test_a_bet_on_a_coin_has_mean_at_most_one(rate: float, a: float, b: float) -> None:
    lo, up = min(a, b), max(a, b)
    yes, no = (float(np.exp(v)) for v in log_bets_bernoulli(np.array(rate), np.array(lo), np.array(up)))
    for true in (lo, up, (lo + up) / 2):
        mean = (true * yes if true > 0 else 0) + ((1 - true) * no if true < 1 else 0)
        assert mean <= 1 + SLACK
    if lo <= rate <= up:
        assert yes == no == 1


def test_a_coin_is_a_law_over_two_outcomes() -> None:
    yes, no = log_bets_bernoulli(np.array(0.8), np.array(0.4), np.array(0.5))
    np.testing.assert_allclose(
        [no, yes], log_bets(np.array([0.2, 0.8]), np.array([0.5, 0.4]), np.array([0.6, 0.5])), atol=1e-9
    )
    assert float(np.exp(yes)) == pytest.approx(0.8 / 0.5)


def counts_of(n: int, vocab: int) -> list[tuple[int, ...]]:
    return [c for c in product(range(n + 1), repeat=vocab) if sum(c) == n]


CENTERS = ([0.5, 0.5], [0.9, 0.1], [1.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.4, 0.6], [1 - 1e-9, 1e-9])
MIX = (0.3, 1.0, 10.0, 1000.0)


@pytest.mark.parametrize("center", CENTERS, ids=str)
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.05, 0.3])
@pytest.mark.parametrize("n", [1, 2, 6, 15])
def test_the_dirichlet_mixture_has_mean_at_most_one(center: list[float], width: float, n: int) -> None:
    null = np.array(center)
    lo, up = np.clip(null - width, 0, 1), np.clip(null + width, 0, 1)
    table = np.array(counts_of(n, len(null)), float)
    logs = np.array([log_dirichlet_mixture(c[None], null[None], lo[None], up[None], MIX) for c in table])
    corners = [null]
    for order in product(range(len(null)), repeat=2):
        if order[0] != order[1]:
            law = null.copy()
            step = min(up[order[0]] - law[order[0]], law[order[1]] - lo[order[1]])
            law[order[0]] += step
            law[order[1]] -= step
            corners.append(law)
    for law in corners:
        mass = stats.multinomial.pmf(table, n, law / law.sum())
        assert (mass[mass > 0] @ np.exp(logs[mass > 0])).max() <= 1 + SLACK


def test_the_dirichlet_mixture_of_independent_laws_has_mean_at_most_one() -> None:
    null = np.array([[0.3, 0.7], [0.6, 0.4]])
    table = np.array(counts_of(4, 2), float)
    total = np.zeros(len(MIX))
    for a, b in product(table, repeat=2):
        logs = log_dirichlet_mixture(np.stack([a, b]), null, null - 0.01, null + 0.01, MIX)
        total += stats.multinomial.pmf(a, 4, null[0]) * stats.multinomial.pmf(b, 4, null[1]) * np.exp(logs)
    assert total.max() <= 1 + SLACK


def test_the_dirichlet_mixture_sees_another_law() -> None:
    null = np.array([[0.5, 0.3, 0.2]])
    logs = log_dirichlet_mixture(np.array([[300.0, 300.0, 400.0]]), null, null - 1e-6, null + 1e-6, (1.0, 10.0))
    assert logs.min() > 80
    assert not log_dirichlet_mixture(np.zeros((1, 3)), null, null, null, (1.0, 10.0)).any()


def test_local_bets_are_mixtures_of_one_and_the_e_value() -> None:
    np.testing.assert_allclose(np.exp(local_bets(np.log(7.0))), [1 - f + 7 * f for f in LOCAL_FRACTIONS])
    np.testing.assert_allclose(np.exp(local_bets(-np.inf)), [1 - f for f in LOCAL_FRACTIONS])


def test_log_mean() -> None:
    assert log_mean(np.log([1.0, 3.0])) == pytest.approx(np.log(2))
    assert log_mean(np.log([1.0, 3.0]), np.log([0.25, 0.75])) == pytest.approx(np.log(2.5))
    assert log_mean(np.array([-np.inf, -np.inf])) == -np.inf
    assert log_mean(np.array([1e5, 0.0])) == pytest.approx(1e5 - np.log(2))


def test_dot_knows_that_nothing_times_impossible_is_nothing() -> None:
    logs = np.array([[[0.5, -np.inf]], [[-np.inf, 1.0]]])
    np.testing.assert_array_equal(dot(np.array([[2, 0]]), logs), [1.0, -np.inf])
    np.testing.assert_array_equal(dot(np.array([[0, 0]]), logs), [0.0, 0.0])


# ------------------------------------------------------------------------------------------- the familiar tests


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 17), (500, 1000)])
def test_the_binomial_interval_is_clopper_and_pearson(k: int, n: int) -> None:
    ours, theirs = binomial_interval(k, n), stats.binomtest(k, n).proportion_ci(method="exact")
    assert (ours.value, ours.low, ours.high) == pytest.approx((k / n, theirs.low, theirs.high))


def test_nothing_seen_says_nothing() -> None:
    assert (binomial_interval(0, 0).low, binomial_interval(0, 0).high) == (0.0, 1.0)
    assert total_variation(np.zeros(3, int), np.full(3, 1 / 3)).high == 1.0
    assert chi_square(np.zeros(3, int), np.full(3, 1 / 3), np.random.default_rng(0)).p_value == 1.0


def test_the_mean_interval() -> None:
    interval = mean_interval(np.array([0, 25, 75]), np.arange(3.0))
    assert interval.value == 1.75
    assert interval.high - interval.value == pytest.approx(1.959964 * np.sqrt(0.25 * 0.75 / 99))


def test_chi_square_is_pearsons_where_cells_are_filled() -> None:
    counts, law = np.array([30, 50, 20]), np.array([0.4, 0.4, 0.2])
    ours, theirs = chi_square(counts, law, np.random.default_rng(0)), stats.chisquare(counts, 100 * law)
    assert (ours.statistic, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert ours.degrees_of_freedom == 2


def test_chi_square_of_thin_cells_has_a_uniform_p_value() -> None:
    """At most; and an exact binomial bound on how often 200 of them fall below 0.1, that never fires."""
    rng = np.random.default_rng(11)
    law = np.array([0.9, 0.06, 0.03, 0.01])
    small = sum(chi_square(rng.multinomial(30, law), law, rng, 400).p_value <= 0.1 for _ in range(200))
    assert small <= stats.binom.isf(1e-9, 200, 0.1)


def test_a_count_outside_the_support_has_p_value_zero() -> None:
    assert chi_square(np.array([5, 1]), np.array([1.0, 0.0]), np.random.default_rng(0)).p_value == 0.0


def test_total_variation_covers_the_truth() -> None:
    rng = np.random.default_rng(8)
    law, other = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.3, 0.3, 0.2, 0.2])
    covered = 0
    for _ in range(300):
        interval = total_variation(rng.multinomial(500, other), law)
        covered += interval.low <= 0.1 <= interval.high
    assert covered >= stats.binom.ppf(1e-9, 300, 0.95)
