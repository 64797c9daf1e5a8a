"""The corpus of known bugs: well formed, tied to the catalogue of faults, and its inputs show what they claim to show."""

from __future__ import annotations

import re

import numpy as np
import pytest

from auditor.cases import Case, explicit_cases
from auditor.corpus import KnownBug, corpus_cases, known_bugs
from auditor.rules import FAULTS

BUGS = {bug.id: bug for bug in known_bugs()}


def of(name: str) -> Case:
    case = BUGS[name].case
    assert case is not None
    return case


def test_ids_and_references() -> None:
    assert len(BUGS) == len(known_bugs())
    for bug in known_bugs():
        assert re.fullmatch(r"[a-z0-9.-]+-\d+", bug.id)
        assert re.fullmatch(r"\S.* \d+(, (\S+ )?\d+)*", bug.reference)
        number = bug.id.rsplit("-", 1)[1]
        assert number in bug.reference
        for words in (bug.symptom, bug.cause):
            assert words
            assert not words.endswith(".")


@pytest.mark.parametrize("bug", known_bugs(), ids=lambda bug: bug.id)
def test_kinds_are_catalogued_faults(bug: KnownBug) -> None:
    assert set(bug.kinds) <= set(FAULTS)


def test_what_a_call_can_show_has_an_input() -> None:
    for bug in known_bugs():
        if bug.level not in ("engine", "counters"):
            assert bug.case is not None, bug.id


def test_corpus_cases() -> None:
    found = corpus_cases()
    assert found == [bug.case for bug in known_bugs() if bug.case is not None]
    assert len(set(found)) == len(found)
    assert not set(found) & set(explicit_cases())
    for case in found:
        assert case.family == "corpus"
        assert case.source.startswith("known bug: ")
        assert np.abs(case.p.sum(1) - 1).max() <= 1e-12
        assert np.abs(case.q.sum(1) - 1).max() <= 1e-12


def test_the_residual_that_a_softmax_spoils_is_one_token() -> None:
    case = of("transformers-28508")
    assert np.maximum(case.p[0] - case.q[0], 0).nonzero()[0].tolist() == [2]


def test_a_coin_used_twice() -> None:
    """One-hot draft 0 against (.5, .3, .2): the coin lies in [.5, 1) and the residual's CDF steps at .6: P(1) = .1."""
    case = of("sglang-7207")
    residual = np.maximum(case.p[0] - case.q[0], 0)
    cdf = np.cumsum(residual / residual.sum())
    assert cdf[1] - case.p[0, 0] == pytest.approx(0.1)


def test_argmax_drafts_reported_as_softmax() -> None:
    """Token 0 is drafted always, accepted with .5/.6, and the residual has token 1 alone: P(0) = .833."""
    case = of("transformers-32867")
    assert case.q[0].argmax() == 0
    assert case.p[0, 0] / case.q[0, 0] == pytest.approx(0.833, abs=1e-3)


def test_shared_noise_biases_the_first_token() -> None:
    case = of("vllm-47386")
    rng = np.random.default_rng(0)
    noise, coin = rng.gumbel(size=(200_000, 3)), rng.random(200_000)
    p, q = case.p[0], case.q[0]
    draft = (np.log(q) + noise).argmax(1)
    with np.errstate(divide="ignore"):
        second = (np.log(np.maximum(p - q, 0)) + noise).argmax(1)
    emitted = np.where(coin < np.minimum(1, p / q)[draft], draft, second)
    # .0997, .6276, .2727: ten standard deviations of 200,000 draws from (.1, .6, .3) are .01.
    assert np.bincount(emitted)[1] / 200_000 > 0.615


def test_the_last_tile_holds_the_residual() -> None:
    case = of("flashinfer-424")
    residual = np.maximum(case.p[0] - case.q[0], 0)
    assert residual[:-1024].sum() == 0
    assert residual.sum() == pytest.approx(0.5)
