"""Fair coins: exactly fair under independence whatever the law, and not fair at all where draws are shared."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from auditor.independence import Coins, across_calls, along_rows, compare, verdict


@pytest.mark.parametrize("n", [0, 1, 2, 7, 40])
def test_a_coins_e_value_has_mean_one_under_fairness(n: int) -> None:
    from math import comb

    mean = sum(comb(n, k) / 2**n * np.exp(Coins(k, n - k, "").log_e) for k in range(n + 1))
    assert mean == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("law", [[0.5, 0.5], [0.9, 0.1], [0.2, 0.3, 0.5]], ids=str)
def test_the_coin_is_fair_whatever_the_law_of_rows(law: list[float]) -> None:
    """Each of the four draws has the law of its row: by enumeration, aligned and crosswise have the same mass."""
    mass = {"aligned": 0.0, "crossed": 0.0}
    for a0, a1, b0, b1 in product(range(len(law)), repeat=4):
        coins = compare(*(np.array([v]) for v in (a0, a1, b0, b1)), "")
        weight = law[a0] * law[a1] * law[b0] * law[b1]
        mass["aligned"] += weight * coins.aligned
        mass["crossed"] += weight * coins.crossed
    assert mass["aligned"] == pytest.approx(mass["crossed"])
    assert mass["aligned"] > 0


def test_only_a_pair_that_differs_is_told() -> None:
    coins = compare(np.array([0, 1, 1, 1]), np.array([0, 0, 0, 0]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), "")
    assert (coins.aligned, coins.crossed) == (1, 1)


@pytest.mark.parametrize("offset", [0, 1, -1])
def test_an_ignored_seed_is_found_and_a_stream_moved_by_one_row(offset: int) -> None:
    stream = np.random.default_rng(1).integers(0, 3, 300)
    first, second = stream[10:138], stream[10 + offset : 138 + offset]
    log_e, coins, worst = verdict(across_calls(first, second, "coin"))
    assert log_e > 20
    assert coins > 0
    assert worst is not None
    assert worst.crossed == 0
    assert ("same rows" in worst.what) == (offset == 0)


def test_rows_that_share_a_coin_are_found() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(8):
        one, other = (np.full(64, rng.integers(0, 2)) for _ in range(2))
        found += along_rows(one, other, "coin")
    pairs = along_rows(np.repeat(rng.integers(0, 2, 32), 2), np.repeat(rng.integers(0, 2, 32), 2), "coin")
    log_e, _, worst = verdict([*found, *pairs])
    assert log_e > 14
    assert worst is not None
    assert worst.crossed == 0


def test_independent_draws_stay_poor() -> None:
    """250 comparisons of independent, biased draws: each e-value has mean at most 1, so none comes near its threshold."""
    rng = np.random.default_rng(3)
    logs = []
    for _ in range(250):
        a, b = rng.choice(3, (2, 64), p=[0.6, 0.3, 0.1])
        logs.append(verdict([*across_calls(a, b, ""), *along_rows(a, b, "")])[0])
    assert np.mean(np.exp(logs)) < 10
    assert max(logs) < np.log(250 * 1e3)


def test_nothing_to_compare() -> None:
    assert verdict([]) == (0.0, 0, None)
    assert verdict([Coins(0, 0, "none")])[0] == 0.0
