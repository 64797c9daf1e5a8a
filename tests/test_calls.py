"""The one place that calls an adapter: seeds that differ, answers that are checked before they are believed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditor.adapter import Law
from auditor.calls import Seeds, Subject
from auditor.errors import AdapterUnsuitable, BadAnswer, CallFailed

P, Q = np.full((2, 3, 4), 0.25), np.full((2, 2, 4), 0.25)
DRAFTS = np.array([[0, 1], [2, 3]])


class Answers:
    """Answers what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def verify(self, p: np.ndarray, q: np.ndarray, drafts: np.ndarray, seed: int) -> Any:
        return self.answer

    def sample(self, p: np.ndarray, q: np.ndarray, n: int, seed: int) -> Any:
        return self.answer

    def law(self, p: np.ndarray, q: np.ndarray, drafts: np.ndarray) -> Any:
        return self.answer


def verify(answer: Any) -> np.ndarray:
    return Subject(Answers(answer)).verify(P, Q, DRAFTS, 1)


def sample(answer: Any) -> tuple[np.ndarray, np.ndarray | None]:
    return Subject(Answers(answer)).sample(P[0, 0], Q[0, 0], 2, 1)


def test_seeds_of_calls_are_distinct_and_in_range() -> None:
    seeds = Seeds(0)
    drawn = [seeds.next() for _ in range(200_000)]
    assert len(set(drawn)) == len(drawn)
    assert 0 <= min(drawn) < max(drawn) < 2**31


def test_one_seed_makes_one_audit_and_another_one_another() -> None:
    one, same, other = ([s.next() for _ in range(50)] for s in (Seeds(5), Seeds(5), Seeds(6)))
    assert one == same
    assert not set(one) & set(other)
    a, b = Seeds(5), Seeds(5)
    assert a.generator().integers(2**60) == b.generator().integers(2**60)
    assert a.generator().integers(2**60) != Seeds(5).generator().integers(2**60)


def test_the_audits_own_draws_are_not_those_of_a_calls_seed() -> None:
    """A sampler seeded with the call's seed must not see the noise that made its drafts."""
    seeds = Seeds(7)
    own = {float(seeds.generator().random()) for _ in range(200)}
    for make in (np.random.PCG64, np.random.SFC64, np.random.MT19937, np.random.Philox):
        again = Seeds(7)
        assert not own & {float(np.random.Generator(make(again.next())).random()) for _ in range(200)}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "nothing"),
        ([[0, 1, 2]], "shape"),
        ([[0, 1], [0, 1]], "shape"),
        ([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], "type"),
        ([[0.0, np.nan, 2.0], [0.0, 1.0, 2.0]], "nan"),
        ([[0, 1, 4], [0, 1, 2]], "range"),
        ([[0, 1, -2], [0, 1, 2]], "range"),
        ([[0, 1, 2], [-1, -1, -1]], "empty"),
        ([[0, -1, 2], [0, 1, 2]], "gap"),
        ([["a", "b", "c"], ["a", "b", "c"]], "type"),
        ([[True, True, True], [True, True, True]], "type"),
    ],
)
def test_rounds_that_are_none(answer: Any, kind: str) -> None:
    with pytest.raises(BadAnswer) as caught:
        verify(answer)
    assert caught.value.kind == kind


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64])
def test_integers_of_every_size_are_tokens(dtype: type) -> None:
    tokens = verify(np.array([[0, 1, 2], [3, 1, 0]], dtype))
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [[0, 1, 2], [3, 1, 0]]


def test_first_tokens_with_and_without_acceptances() -> None:
    tokens, accepted = sample(([0, 3], [1, 0]))
    assert tokens.tolist() == [0, 3]
    assert accepted is not None
    assert accepted.tolist() == [True, False]
    assert sample([0, 3])[1] is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (([0, 1], [True, False], 3), "shape"),
        (([0, 1], [True]), "shape"),
        (([0, 1], [0, 2]), "type"),
        (([0, 1], [0.0, 1.0]), "type"),
        ([0, -1], "range"),
        ([0, 4], "range"),
        ([0, 1, 2], "shape"),
        (None, "nothing"),
    ],
)
def test_first_tokens_that_are_none(answer: Any, kind: str) -> None:
    with pytest.raises(BadAnswer) as caught:
        sample(answer)
    assert caught.value.kind == kind


def test_laws_are_checked_too() -> None:
    good = Law(np.full((2, 2), 0.5), np.full((2, 2, 4), 0.25), np.full((2, 4), 0.25))
    assert Subject(Answers(good)).law(P, Q, DRAFTS).accept.shape == (2, 2)
    for bad, kind in (
        (None, "type"),
        (Law(good.accept[:1], good.residual, good.bonus), "shape"),
        (Law(good.accept * np.nan, good.residual, good.bonus), "nan"),
    ):
        with pytest.raises(BadAnswer) as caught:
            Subject(Answers(bad)).law(P, Q, DRAFTS)
        assert caught.value.kind == kind


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def verify(self, p: np.ndarray, q: np.ndarray, drafts: np.ndarray, seed: int) -> np.ndarray:
        raise self.error


class Panic(BaseException):
    """As bindings of other languages raise it."""


@pytest.mark.parametrize("error", [ValueError("no such\nthing"), SystemExit(3), Panic("panicked"), MemoryError()])
def test_whatever_an_adapter_raises_is_an_incident(error: BaseException) -> None:
    with pytest.raises(CallFailed) as caught:
        Subject(Raises(error)).verify(P, Q, DRAFTS, 1)
    assert type(error).__name__ in caught.value.summary
    assert "\n" not in caught.value.summary


def test_an_interruption_is_the_users() -> None:
    with pytest.raises(KeyboardInterrupt):
        Subject(Raises(KeyboardInterrupt())).verify(P, Q, DRAFTS, 1)


class Greedy:
    """Notes what it is called with, and writes into its drafts."""

    max_batch = 3

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def verify(self, p: np.ndarray, q: np.ndarray, drafts: np.ndarray, seed: int) -> np.ndarray:
        self.seen.append((len(drafts), seed))
        tokens = np.concatenate([drafts, np.zeros((len(drafts), 1), np.int64)], 1)
        drafts[:] = 0
        return tokens


def test_many_rows_are_cut_to_the_adapters_limit_each_with_its_own_seed() -> None:
    adapter = Greedy()
    drafts = np.arange(16).reshape(8, 2) % 4
    before = drafts.copy()
    tokens = Subject(adapter).verify_case(P[0], Q[0], drafts, Seeds(1))
    assert [n for n, _ in adapter.seen] == [3, 3, 2]
    assert len({seed for _, seed in adapter.seen}) == 3
    np.testing.assert_array_equal(tokens[:, :2], before)
    np.testing.assert_array_equal(drafts, before)


def test_what_is_no_adapter() -> None:
    with pytest.raises(AdapterUnsuitable, match="none of the methods"):
        Subject(object())
    for name, value in (("tolerance", "small"), ("tolerance", 1.5), ("resolution", -0.1)):
        adapter = Greedy()
        setattr(adapter, name, value)
        with pytest.raises(AdapterUnsuitable):
            Subject(adapter)
