"""The formulas of speed, against known values, exact sums and simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.efficiency import best_draft_length, expected_tokens, expected_tokens_exact, speedup

KNOWN = {
    0.6: ((3, 1.67), (4, 1.92), (6, 2.17)),
    0.7: ((4, 1.98), (6, 2.35), (8, 2.76)),
    0.8: ((6, 2.47), (8, 3.09), (11, 3.82)),
    0.9: ((10, 3.43), (13, 4.67), (19, 6.37)),
}


@pytest.mark.parametrize("acceptance", KNOWN)
def test_the_known_best_draft_lengths_and_speedups(acceptance: float) -> None:
    for cost_ratio, (gamma, gain) in zip((10, 20, 50), KNOWN[acceptance], strict=True):
        assert best_draft_length(acceptance, cost_ratio) == gamma
        assert round(speedup(acceptance, gamma, cost_ratio), 2) == gain


def test_the_known_tokens_per_pass() -> None:
    assert round(expected_tokens(0.9, 4), 4) == 4.0951
    p, q = np.array([0.40, 0.25, 0.15, 0.10, 0.06, 0.04]), np.array([0.35, 0.30, 0.20, 0.10, 0.03, 0.02])
    assert round(expected_tokens(float(np.minimum(p, q).sum()), 4), 4) == 4.0951


@pytest.mark.parametrize("gamma", [0, 1, 4, 1000])
def test_the_ends_are_exact(gamma: int) -> None:
    assert expected_tokens(0.0, gamma) == 1.0
    assert expected_tokens(1.0, gamma) == gamma + 1
    assert expected_tokens(0.5, 0) == 1.0


def test_arrays_broadcast_and_include_the_ends() -> None:
    tokens = expected_tokens(np.array([[0.0], [0.5], [1.0]]), np.array([0, 1, 3]))
    assert tokens.tolist() == [[1, 1, 1], [1, 1.5, 1.875], [1, 2, 4]]
    gains = speedup(np.array([0.0, 1.0]), 4, 2.0)
    assert gains.tolist() == [1 / 3, 5 / 3]


@given(st.floats(0, 1), st.integers(0, 60))
def test_it_is_the_geometric_sum(acceptance: float, gamma: int) -> None:
    exact = sum(Fraction(acceptance) ** i for i in range(gamma + 1))
    assert math.isclose(expected_tokens(acceptance, gamma), float(exact), rel_tol=1e-13)
    assert math.isclose(expected_tokens_exact([acceptance] * gamma), float(exact), rel_tol=1e-13)


@given(st.floats(0, 1e-9), st.integers(0, 60))
def test_it_is_accurate_close_to_one(gap: float, gamma: int) -> None:
    exact = sum(Fraction(1 - gap) ** i for i in range(gamma + 1))
    assert math.isclose(expected_tokens(1 - gap, gamma), float(exact), rel_tol=1e-13)


def test_unequal_positions_agree_with_a_simulation() -> None:
    rates = np.array([0.9, 0.5, 0.7])
    accepted = np.random.default_rng(0).random((200_000, 3)) < rates
    tokens = 1 + np.logical_and.accumulate(accepted, axis=1).sum(axis=1)
    # Eight standard errors, on a fixed seed.
    assert abs(tokens.mean() - expected_tokens_exact(rates)) < 8 * tokens.std() / math.sqrt(len(tokens))
    assert expected_tokens_exact([]) == 1.0
    assert expected_tokens_exact(np.array([[1.0, 1.0], [0.0, 1.0]])).tolist() == [3.0, 1.0]


@given(st.floats(0, 1), st.floats(0.1, 1000), st.integers(0, 40))
def test_no_draft_length_beats_the_best(acceptance: float, cost_ratio: float, max_gamma: int) -> None:
    best = best_draft_length(acceptance, cost_ratio, max_gamma=max_gamma)
    gains = [speedup(acceptance, gamma, cost_ratio) for gamma in range(max_gamma + 1)]
    assert gains[best] >= max(gains) - 1e-12
    assert gains[best] >= 1.0


def test_speculation_that_does_not_pay_has_length_zero() -> None:
    assert best_draft_length(0.0, 10) == 0
    assert best_draft_length(0.3, 2) == 0
    assert best_draft_length(1.0, 10, max_gamma=7) == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens(1.1, 3),
        lambda: expected_tokens(-0.1, 3),
        lambda: expected_tokens(float("nan"), 3),
        lambda: expected_tokens(0.5, -1),
        lambda: expected_tokens_exact([0.5, 2.0]),
        lambda: speedup(0.5, 3, 0.0),
    ],
)
def test_numbers_out_of_range_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"acceptance|gamma|cost ratio"):
        call()  # type: ignore[operator]
