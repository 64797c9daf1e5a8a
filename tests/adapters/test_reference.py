"""The reference sampler against the theory, by enumeration where that is possible."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from auditor.bets.boxes import Precision, boxes
from auditor.cases import Case, cases, explicit_cases, family_case, small_cases
from auditor.draws import drafts_from
from auditor.rules import REJECTION

_FILE = Path(__file__).parents[2] / "adapters" / "reference.py"
_SPEC = importlib.util.spec_from_file_location("adapter_file_reference", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)

SAMPLER = reference.Reference()
DTYPES = ("float64", "float32")


def batch(case: Case, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.broadcast_to(case.p, (n, *case.p.shape)), np.broadcast_to(case.q, (n, *case.q.shape))


def law_of_rounds(case: Case, sampler: Any) -> dict[tuple[int, ...], float]:
    """The exact law of a round's tokens: every draft, every way in which its round can end."""
    rounds: dict[tuple[int, ...], float] = {}
    drafts = np.array(list(itertools.product(range(case.vocab), repeat=case.gamma)), np.int64)
    law = sampler.law(*batch(case, len(drafts)), drafts)
    for b, draft in enumerate(drafts):
        reached = float(np.prod(case.q[np.arange(case.gamma), draft]))
        for i in range(case.gamma + 1):
            accept = law.accept[b, i] if i < case.gamma else 0.0
            ends = law.residual[b, i] if i < case.gamma else law.bonus[b]
            for token in range(case.vocab):
                key = (*map(int, draft[:i]), token)
                rounds[key] = rounds.get(key, 0.0) + reached * (1 - accept) * ends[token]
            reached *= accept
    return rounds


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(case=small_cases(max_vocab=4, max_gamma=3))
def test_emitted_tokens_follow_the_target(dtype: str, case: Case) -> None:
    """Leviathan et al. 2023, appendix A.1: whatever a round's length, its tokens so far follow p at each position."""
    rounds = law_of_rounds(case, reference.Reference(dtype))
    assert sum(rounds.values()) == pytest.approx(1.0, abs=1e-5)
    # A round that ends after k tokens says nothing about later ones: condition on reaching position i.
    for i in range(case.gamma + 1):
        reached: dict[tuple[int, ...], np.ndarray] = {}
        for tokens, mass in rounds.items():
            if len(tokens) > i:
                law = reached.setdefault(tokens[:i], np.zeros(case.vocab))
                law[tokens[i]] += mass
        for law in reached.values():
            if law.sum() > 1e-4:
                np.testing.assert_allclose(law / law.sum(), case.p[i], atol=1e-5 / law.sum() + 1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(case=cases(max_vocab=30, max_gamma=3))
def test_law_lies_in_the_boxes(dtype: str, case: Case) -> None:
    sampler = reference.Reference(dtype)
    box = boxes(REJECTION, Precision(sampler.tolerance, sampler.resolution), case.p, case.q)
    drafts = np.arange(case.vocab)[:, None].repeat(case.gamma, 1)
    law = sampler.law(*batch(case, case.vocab), drafts)
    for i in range(case.gamma):
        drawn = case.q[i] > 0
        assert (law.accept[drawn, i] >= box.accept_low[i, drawn] - 1e-12).all()
        assert (law.accept[drawn, i] <= box.accept_up[i, drawn] + 1e-12).all()
        low, up = box.residual(i)
        assert (law.residual[0, i] >= low - 1e-12).all()
        assert (law.residual[0, i] <= up + 1e-12).all()
    low, up = box.bonus()
    assert ((law.bonus >= low - 1e-12) & (law.bonus <= up + 1e-12)).all()


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """P-value of counts against a law; a token of probability 0 must not occur."""
    assert not counts[law <= 0].any()
    expected = law[law > 0] * counts.sum()
    statistic = float(((counts[law > 0] - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, max(1, len(expected) - 1)))


# Either side of the number of draws from which on a guide table is used, for the rarest of the events looked at.
@pytest.mark.parametrize("n", [2000, 200_000])
@pytest.mark.parametrize("shared", [True, False])
def test_verify_draws_from_its_law(n: int, shared: bool) -> None:
    case = family_case("dirichlet", 6, 2, 3, concentration=1.0)
    drafts = drafts_from(case.q, n, np.random.default_rng(5))
    p, q = batch(case, n)
    if not shared:
        p, q = p.copy(), q.copy()
    tokens = SAMPLER.verify(p, q, drafts, 11)
    law = SAMPLER.law(*batch(case, n), drafts)
    reached = np.arange(n)
    for i in range(2):
        accepted = tokens[reached, i + 1] >= 0
        assert (tokens[reached[accepted], i] == drafts[reached[accepted], i]).all()
        a = law.accept[reached, i]
        assert abs((accepted - a).sum()) < 5 * np.sqrt((a * (1 - a)).sum())
        ended = np.bincount(tokens[reached[~accepted], i], minlength=6)
        assert chi_square(ended, law.residual[0, i]) > 1e-4
        reached = reached[accepted]
    assert chi_square(np.bincount(tokens[reached, 2], minlength=6), case.p[2]) > 1e-4


def test_sample_draws_from_the_target_at_the_rules_rate() -> None:
    case = family_case("dirichlet", 12, 1, 4, concentration=0.5)
    tokens, accepted = SAMPLER.sample(case.p[0], case.q[0], 200_000, 9)
    assert chi_square(np.bincount(tokens, minlength=12), case.p[0]) > 1e-4
    rate = 1 - case.tv[0]
    assert abs(accepted.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / 200_000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", explicit_cases(), ids=lambda case: case.label)
def test_edges(dtype: str, case: Case) -> None:
    sampler = reference.Reference(dtype)
    n = 5000 if case.vocab < 1000 else 20
    drafts = drafts_from(case.q, n, np.random.default_rng(0))
    with np.errstate(all="raise", under="ignore"):
        tokens = sampler.verify(*batch(case, n), drafts, 1)
        first, _ = sampler.sample(case.p[0], case.q[0], n, 2)
        law = sampler.law(*batch(case, 2), drafts[:2])
    assert all(np.isfinite(part).all() for part in (law.accept, law.residual, law.bonus))
    np.testing.assert_allclose(law.residual.sum(-1), 1, atol=1e-9)
    assert (case.p[0, first] > 0).all()
    for i in range(case.gamma + 1):
        emitted = tokens[tokens[:, i] >= 0, i]
        assert (case.p[i, emitted] > 0).all()
    assert (tokens[:, 0] >= 0).all()


def test_ragged_rows_end_with_their_own_bonus_row() -> None:
    """Where p = q every draft is accepted, so each row shows its drafts and then the one-hot of its own bonus row."""
    vocab, gamma = 6, 3
    drafts = np.array([[0, 1, 2], [3, 4, -1], [5, -1, -1], [-1, -1, -1]])
    p = np.full((4, gamma + 1, vocab), 1 / vocab)
    for b, length in enumerate((3, 2, 1, 0)):
        p[b, length] = np.eye(vocab)[b]
    q = np.full((4, gamma, vocab), 1 / vocab)
    tokens = SAMPLER.verify(p, q, drafts, 3)
    assert tokens.tolist() == [[0, 1, 2, 0], [3, 4, 1, -1], [5, 2, -1, -1], [3, -1, -1, -1]]
    law = SAMPLER.law(p, q, drafts)
    assert law.bonus.argmax(1).tolist() == [0, 1, 2, 3]
    assert not law.residual[1, 2].any()
    assert not law.accept[3].any()


def test_ragged_rows_of_a_shared_case() -> None:
    case = family_case("dirichlet", 5, 3, 8, concentration=1.0)
    n = 120_000
    drafts = drafts_from(case.q, n, np.random.default_rng(1))
    lengths = np.arange(n) % 4
    drafts[np.arange(3) >= lengths[:, None]] = -1
    tokens = SAMPLER.verify(*batch(case, n), drafts, 4)
    assert ((tokens >= 0).sum(1) <= lengths + 1).all()
    for length in range(4):
        assert chi_square(np.bincount(tokens[lengths == length, 0], minlength=5), case.p[0]) > 1e-4
        full = (lengths == length) & ((tokens >= 0).sum(1) == length + 1)
        accepted = full & (tokens[:, :length] == drafts[:, :length]).all(1)
        assert accepted.sum() > 0.05 * n / 4


def test_mixed_rows_use_their_own_laws() -> None:
    """One-hot targets, another for each row and position: any row or position mistaken is seen at once."""
    vocab, gamma, n = 7, 2, 50_000
    rng = np.random.default_rng(6)
    due = rng.integers(vocab, size=(n, gamma + 1))
    drafts = np.where(rng.random((n, gamma)) < 0.5, due[:, :gamma], rng.integers(vocab, size=(n, gamma)))
    tokens = SAMPLER.verify(np.eye(vocab)[due], np.full((n, gamma, vocab), 1 / vocab), drafts, 8)
    matches = np.cumprod(drafts == due[:, :gamma], 1).sum(1)
    assert (tokens == np.where(np.arange(gamma + 1) <= matches[:, None], due, -1)).all()


@settings(max_examples=40, deadline=None)
@given(case=cases(max_vocab=20, max_gamma=3), seed=st.integers(0, 2**31 - 1))
def test_one_seed_gives_the_same_draws_and_inputs_stay_as_they_were(case: Case, seed: int) -> None:
    drafts = drafts_from(case.q, 50, np.random.default_rng(seed))
    before = drafts.copy()
    one = SAMPLER.verify(*batch(case, 50), drafts, seed)
    assert (one == SAMPLER.verify(*batch(case, 50), drafts, seed)).all()
    assert (drafts == before).all()


def test_a_vocabulary_of_128k_is_not_copied_per_row() -> None:
    """4000 rows of it would be 12 GB."""
    case = family_case("zipf", 128_000, 2, 1)
    drafts = drafts_from(case.q, 4000, np.random.default_rng(2))
    assert (SAMPLER.verify(*batch(case, 4000), drafts, 1)[:, 0] >= 0).all()


def test_unknown_dtype() -> None:
    with pytest.raises(ValueError, match="float64, float32"):
        reference.Reference("int8")
