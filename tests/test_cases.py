"""Cases: every law is a law, every family is reached, content decides equality, and shrinking ends at round numbers."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from auditor.cases import (
    FAMILIES,
    FAMILY_NAMES,
    KL_CAP,
    Case,
    cases,
    distributions,
    explicit_cases,
    family_case,
    normalise,
    pairs,
    simplices,
    small_cases,
)
from auditor.results import CaseData

quick = settings(max_examples=150, database=None, deadline=None)


def assert_laws(case: Case) -> None:
    for law, rows in ((case.p, case.gamma + 1), (case.q, case.gamma)):
        assert law.shape == (rows, case.vocab)
        assert law.dtype == np.float64
        assert not law.flags.writeable
        assert (law >= 0).all()
        assert np.abs(law.sum(1) - 1).max() <= 1e-12
    assert ((case.tv >= 0) & (case.tv <= 1 + 1e-12)).all()
    assert ((case.kl >= 0) & (case.kl <= KL_CAP)).all()


# ------------------------------------------------------------------------------------------------- the value


def test_a_case_knows_its_divergences() -> None:
    case = Case(np.array([[0.5, 0.5], [1, 0]]), np.array([[0.75, 0.25]]), "by hand", "simplex")
    assert (case.vocab, case.gamma) == (2, 1)
    assert case.tv == pytest.approx([0.25])
    assert case.kl == pytest.approx([0.5 * np.log(2 / 3) + 0.5 * np.log(2)])


def test_divergence_where_the_draft_misses_part_of_the_target() -> None:
    case = Case(np.array([[0.5, 0.5], [1, 0]]), np.array([[1.0, 0.0]]), "by hand", "simplex")
    assert case.kl == [KL_CAP]


@quick
@given(cases())
def test_round_trip_through_json(case: Case) -> None:
    text = msgspec.json.encode(case.data())
    back = Case.from_data(msgspec.json.decode(text, type=CaseData))
    assert back == case
    assert hash(back) == hash(case)
    assert (back.label, back.family, back.source) == (case.label, case.family, case.source)
    assert np.array_equal(back.p, case.p)
    json.loads(text)


@quick
@given(cases(), cases())
def test_equality_is_by_content(a: Case, b: Case) -> None:
    same = a.p.shape == b.p.shape and np.array_equal(a.p, b.p) and np.array_equal(a.q, b.q)
    assert (a == b) == same
    assert a == Case(a.p.copy(), a.q.copy(), "another label", "edge")
    assert a != "not a case"


def test_the_digest_is_the_same_everywhere() -> None:
    case = Case(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([[1.0, 0.0]]), "", "simplex")
    assert case.digest == "3c3e3ddf289eb262"
    assert Case(case.p[:, ::-1], case.q[:, ::-1], "", "simplex").digest != case.digest
    assert Case(case.p, np.array([[1.0, -0.0]]), "", "simplex").digest == case.digest


def test_a_case_does_not_change_with_the_arrays_it_was_made_from() -> None:
    p = np.array([[0.5, 0.5], [0.5, 0.5]])
    case = Case(p, p[:1], "", "simplex")
    p[0] = [1, 0]
    assert case.p[0].tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        case.p[0, 0] = 1.0


def test_a_large_case_is_not_written_out() -> None:
    case = family_case("large-vocabulary", 32_000, 1, 0)
    data = case.data()
    assert data.p is None
    assert data.q is None
    assert (data.vocab, data.gamma, data.digest) == (32_000, 1, case.digest)
    assert len(repr(case)) < 200
    with pytest.raises(ValueError, match="too large"):
        Case.from_data(data)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([[0.5, 0.5]], [[0.5, 0.5]]),
        ([[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.25, 0.25]]),
        ([[0.5, 0.6], [0.5, 0.5]], [[0.5, 0.5]]),
        ([[1.5, -0.5], [0.5, 0.5]], [[0.5, 0.5]]),
        ([[0.5, 0.5], [0.5, 0.5]], [[np.nan, 0.5]]),
        ([[1.0], [1.0]], [[1.0]]),
        ([[0.5, 0.5]], np.zeros((0, 2))),
        (np.full((2, 2, 2), 0.5), [[0.5, 0.5]]),
    ],
)
def test_what_is_not_a_case_is_refused(p: object, q: object) -> None:
    with pytest.raises(ValueError, match="must"):
        Case(np.array(p), np.array(q), "", "simplex")


@given(st.lists(st.lists(st.floats(1e-30, 1e30), min_size=3, max_size=3), min_size=1, max_size=4))
def test_normalise(weights: list[list[float]]) -> None:
    law = normalise(weights)
    assert np.abs(law.sum(-1) - 1).max() <= 1e-12
    assert np.allclose(law / law[:, :1], np.array(weights) / np.array(weights)[:, :1], rtol=1e-12)


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [np.inf, 1], [np.nan, 1]])
def test_normalise_refuses_what_has_no_law(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        normalise(weights)


# ------------------------------------------------------------------------------------------------ the families


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("vocab", "gamma"), [(2, 1), (3, 2), (12, 5), (1000, 3)])
def test_every_family_at_every_size(name: str, vocab: int, gamma: int) -> None:
    for seed in range(3):
        for knob, values in FAMILIES[name].knobs.items():
            for value in values:
                case = family_case(name, vocab, gamma, seed, **{knob: value})
                assert_laws(case)
                assert case.family == name
                assert case.label == f"{name}({knob}={value}) V={vocab} gamma={gamma} seed={seed}"


@pytest.mark.parametrize("name", FAMILIES)
def test_laws_differ_from_position_to_position(name: str) -> None:
    for seed in range(20):
        case = family_case(name, 12, 4, seed)
        assert len({row.tobytes() for row in case.p}) == 5
        assert len({row.tobytes() for row in case.q}) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_a_function_of_its_parameters(name: str) -> None:
    assert family_case(name, 9, 2, 5) == family_case(name, 9, 2, 5)
    assert family_case(name, 9, 2, 5) != family_case(name, 9, 2, 6)


def test_families_are_what_they_say() -> None:
    """Properties that the names promise, over a few seeds."""
    for seed in range(10):

        def build(name: str, vocab: int = 40, seed: int = seed, **knobs: float | str) -> Case:
            return family_case(name, vocab, 3, seed, **knobs)

        assert build("disjoint").tv == pytest.approx([1, 1, 1])
        assert (build("disjoint", positions="one").tv > 0.999).sum() == 1
        for distance in (1e-3, 1e-6, 1e-9):
            tv = build("near-equal", distance=distance).tv
            assert ((tv > 0.01 * distance) & (tv < distance)).all()
        assert (build("one-hot", where="equal").tv == 0).all()
        assert (build("one-hot", where="distinct").tv == 1).all()
        assert (build("one-hot", where="q").q.max(1) == 1).all()
        assert build("last-token", mass=0.9, whose="both").p[:, -1] == pytest.approx(0.9)
        assert build("last-token", mass=0.9, whose="both").q[:, -1] == pytest.approx(0.9)
        assert build("tiny", decades=30).p.min(1) == pytest.approx(1e-30, rel=1)
        assert ((build("sparse", kept=0.5).p > 0).sum(1) == 20).all()
        permuted = build("permuted")
        assert np.array_equal(np.sort(permuted.p[:-1], 1), np.sort(permuted.q, 1))
        ties = build("ties", levels=2)
        assert (ties.p[:-1] == ties.q).any(1).all()
        assert len(np.unique(ties.p[0])) == 2
        tempered = build("tempered", temperature=2.0)
        assert np.allclose(tempered.q**2 / (tempered.q**2).sum(1, keepdims=True), tempered.p[:-1])


def test_most_drafts_are_as_close_as_drafts_are() -> None:
    """Over all families and parameters, most pairs have a TV between 0.1 and 0.7, and some are at the extremes."""
    rng = np.random.default_rng(0)
    tv = []
    for name, family in FAMILIES.items():
        for seed in range(60):
            knobs = {knob: values[rng.integers(len(values))] for knob, values in family.knobs.items()}
            tv += list(family_case(name, 20, 3, seed, **knobs).tv)
    share = np.mean((np.array(tv) > 0.1) & (np.array(tv) < 0.7))
    assert share > 0.5
    assert min(tv) < 1e-6
    assert max(tv) > 0.999


def test_unknown_families_and_parameters() -> None:
    with pytest.raises(KeyError):
        family_case("no-such", 4, 1, 0)
    with pytest.raises(TypeError):
        family_case("zipf", 4, 1, 0, colour=3)
    with pytest.raises(ValueError, match="unknown family 'no-such'"):
        find(cases(families=["no-such"]), lambda case: True)
    with pytest.raises(ValueError, match="no family is left"):
        find(cases(min_vocab=9, families=["simplex"]), lambda case: True)


# ---------------------------------------------------------------------------------------------- the strategies


@quick
@given(cases(large_vocab=True))
def test_generated_cases(case: Case) -> None:
    assert_laws(case)
    assert 1 <= case.gamma <= 5
    assert case.vocab <= 64 or case.family == "large-vocabulary"
    assert case.family in FAMILY_NAMES


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_family_can_be_asked_for(name: str) -> None:
    case = find(cases(families=[name]), lambda case: case.gamma > 1, settings=quick)
    assert case.family == name


def test_every_family_is_reached_without_asking() -> None:
    seen: set[str] = set()

    @settings(max_examples=600, database=None, deadline=None, derandomize=True)
    @given(cases(large_vocab=True))
    def collect(case: Case) -> None:
        seen.add(case.family)

    collect()
    assert seen == set(FAMILY_NAMES)


@pytest.mark.parametrize("vocab", [1000, 32_000, 128_000])
def test_large_vocabularies(vocab: int) -> None:
    case = find(cases(max_vocab=4, families=["large-vocabulary"]), lambda case: case.vocab == vocab, settings=quick)
    assert_laws(case)


@quick
@given(cases(min_vocab=5, max_vocab=7, max_gamma=2))
def test_limits_are_kept(case: Case) -> None:
    assert 5 <= case.vocab <= 7
    assert case.gamma <= 2


@quick
@given(pairs(max_vocab=10))
def test_pairs(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pair
    assert p.shape == q.shape
    assert p.ndim == 1
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)


@quick
@given(st.data(), st.integers(2, 30))
def test_distributions(data: st.DataObject, vocab: int) -> None:
    law = data.draw(distributions(vocab))
    assert law.shape == (vocab,)
    assert abs(law.sum() - 1) <= 1e-12
    assert (law >= 0).all()


@quick
@given(st.data(), st.integers(1, 15), st.booleans())
def test_simplices_are_whole_units(data: st.DataObject, vocab: int, zeros: bool) -> None:
    units = data.draw(st.sampled_from([None, 20, 100]))
    law = data.draw(simplices(vocab, units, zeros=zeros))
    weights = law * (units or (10 if vocab <= 10 else 20))
    assert np.allclose(weights, weights.round())
    assert law.sum() == pytest.approx(1)
    assert zeros or (law > 0).all()


def test_simplices_need_units() -> None:
    with pytest.raises(ValueError, match="too few"):
        simplices(5, 4, zeros=False)


# -------------------------------------------------------------------------------------------------- shrinking


@pytest.mark.parametrize("seed", range(5))
def test_simplices_shrink_to_the_even_law(seed: int) -> None:
    dice = random.Random(seed)
    assert find(simplices(2), lambda law: True, random=dice).tolist() == [0.5, 0.5]
    assert find(simplices(2), lambda law: law[0] > 0.5, random=dice).tolist() == [0.6, 0.4]
    assert find(simplices(5), lambda law: True, random=dice).tolist() == [0.2] * 5


@pytest.mark.parametrize("seed", range(5))
def test_small_cases_shrink_to_round_numbers(seed: int) -> None:
    """What a finding looks like: conditions on p and q that stand for a bias end at V = 2, gamma = 1."""
    dice = random.Random(seed)
    even = [0.5, 0.5]
    for wrong, p, q in (
        (lambda case: case.tv.max() > 0.05, [even, even], [[0.6, 0.4]]),
        (lambda case: case.tv.max() > 0.25, [even, even], [[0.8, 0.2]]),
        (lambda case: case.q.max() == 1, [even, even], [[1, 0]]),
        (lambda case: case.kl.max() > 1, [even, even], [[1, 0]]),
        (lambda case: np.abs(case.p[-1] - case.p[-2]).max() > 0.05, [even, [0.6, 0.4]], [even]),
    ):
        found = find(small_cases(), wrong, random=dice)
        assert (found.vocab, found.gamma) == (2, 1)
        assert np.allclose(found.p, p)
        assert np.allclose(found.q, q)


@quick
@given(small_cases(max_vocab=5, max_gamma=3))
def test_small_cases_are_small(case: Case) -> None:
    assert_laws(case)
    assert 2 <= case.vocab <= 5
    assert 1 <= case.gamma <= 3
    assert np.allclose(case.p * 10, (case.p * 10).round())


def test_small_cases_reach_their_limits() -> None:
    case = find(small_cases(), lambda case: case.vocab == 4 and case.gamma == 2)
    assert case.p.shape == (3, 4)


# ---------------------------------------------------------------------------------------------- explicit cases


def test_explicit_cases() -> None:
    found = explicit_cases()
    for case in found:
        assert_laws(case)
        assert case.source.startswith("edge: ")
        assert case.family == "edge"
    assert len(set(found)) == len(found)
    assert len({case.label for case in found}) == len(found)
    assert found == explicit_cases()


def test_explicit_cases_cover_the_edges() -> None:
    found = explicit_cases()
    equal = [case for case in found if (case.tv == 0).all()]
    nearly = [case for case in found if (case.tv > 0).all() and (case.tv < 1e-6).all()]
    masses = np.concatenate([np.concatenate([case.p.ravel(), case.q.ravel()]) for case in found if case.vocab < 100])
    assert len(equal) >= 4
    assert any((case.tv < 1e-15).all() for case in nearly)
    assert any((case.tv > 1e-9).all() for case in nearly)
    assert any((case.tv == 1).all() for case in found)
    assert {2, 128_000} <= {case.vocab for case in found}
    assert max(case.gamma for case in found) == 5
    for mass in (1e-8, 1e-20, 1e-30):
        assert np.isclose(masses, mass, rtol=1e-6, atol=0).any()
    assert any(((case.p[:-1] == 0) & (case.q > 0)).any() for case in found)
    assert any(((case.p[:-1] > 0) & (case.q == 0)).any() for case in found)
