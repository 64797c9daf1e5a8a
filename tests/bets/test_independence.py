"""The exchange test: mean 1 under independence whatever the law, and large where draws are shared."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.bets.independence import RHOS, across_calls, along_rows, compare, verdict


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    a=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    b=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_the_mean_over_all_orders_of_the_second_draws_is_one(a: list[int], b: list[int]) -> None:
    """Independent b come in every order alike: whatever they are, the e-value has mean 1 exactly."""
    b = b[: len(a)]
    values = [np.exp(compare([(np.array(a), np.array(order))], "").log_e) for order in permutations(b)]
    assert np.mean(values) == pytest.approx(1.0, abs=1e-12)


def test_the_mean_is_one_by_exchange_of_whole_draws_too() -> None:
    """Two biased, independent calls: the mean over their joint law, by enumeration."""
    law, total = np.array([0.7, 0.2, 0.1]), 0.0
    for code in np.ndindex(3, 3, 3, 3):
        a, b = np.array(code[:2]), np.array(code[2:])
        total += law[list(code)].prod() * np.exp(compare([(a, b)], "").log_e)
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("offset", [0, 1, -1])
def test_an_ignored_seed_is_found_and_a_stream_moved_by_one_row(offset: int) -> None:
    stream = np.random.default_rng(1).integers(0, 3, 300)
    first, second = stream[10:74], stream[10 + offset : 74 + offset]
    log_e, compared, worst = verdict(across_calls([(first, second)], "coin"))
    assert log_e > 20
    assert compared > 0
    assert worst is not None
    assert worst.equal == worst.compared
    assert ("same rows" in worst.what) == (offset == 0)
    assert "expected" in worst.words


def test_rows_that_share_a_coin_are_found_over_calls() -> None:
    coins = np.random.default_rng(2).integers(0, 2, 40)
    log_e, _, worst = verdict(along_rows(np.repeat(coins[:, None], 8, axis=1), "coin"))
    assert log_e > 18
    assert worst is not None


def test_independent_draws_are_not_accused() -> None:
    rng = np.random.default_rng(3)
    logs = []
    for _ in range(400):
        a, b = (rng.choice(3, size=30, p=[0.6, 0.3, 0.1]) for _ in range(2))
        logs += [m.log_e for m in across_calls([(a, b)], "")]
    # An e-value reaches exp(x) with probability at most exp(-x): 1,200 of them reach exp(16) with probability 1.4e-4.
    assert max(logs) < 16
    assert np.mean(np.exp(logs)) < 1.5


def test_nothing_compared_says_nothing() -> None:
    assert verdict([]) == (0.0, 0, None)
    assert compare([(np.array([1]), np.array([1]))], "").log_e == pytest.approx(0.0)
    assert all(0 < rho < 1 for rho in RHOS)
