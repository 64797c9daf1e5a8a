"""The adapter of Transformers' verification step, on the real library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.stats import chi2

from auditor.bets.boxes import Precision, boxes
from auditor.cases import Case, cases, explicit_cases, family_case
from auditor.draws import drafts_from
from auditor.rules import REJECTION

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'speculative-audit[transformers]'")
utils = pytest.importorskip(
    "transformers.generation.utils", reason="needs Transformers: pip install 'speculative-audit[transformers]'"
)

_FILE = Path(__file__).parents[2] / "adapters" / "transformers.py"
_SPEC = importlib.util.spec_from_file_location("adapter_file_transformers", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
adapter = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(adapter)

DTYPES = ("float32", "float16", "bfloat16")
SAMPLERS = {dtype: adapter.SpeculativeSampling(dtype) for dtype in DTYPES}
FLOAT32 = SAMPLERS["float32"]


def batch(case: Case, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.broadcast_to(case.p, (n, *case.p.shape)), np.broadcast_to(case.q, (n, *case.q.shape))


def assert_in_boxes(sampler: Any, case: Case) -> None:
    rows = min(case.vocab, 6)
    drafts = (np.arange(rows)[:, None] * (case.vocab // rows) + np.arange(case.gamma)) % case.vocab
    law = sampler.law(*batch(case, rows), drafts)
    box = boxes(REJECTION, Precision(sampler.tolerance, sampler.resolution), case.p, case.q)
    for b, i in np.ndindex(drafts.shape):
        x = drafts[b, i]
        if case.q[i, x] > 0:
            assert box.accept_low[i, x] - 1e-12 <= law.accept[b, i] <= box.accept_up[i, x] + 1e-12
            # An empty residual, from which the library cannot draw, only where the draft may be accepted always, or where p - q
            # may vanish in its arithmetic (the box then allows any fallback).
            assert law.residual[b, i].any() or box.accept_up[i, x] == 1 or not box.residual(i)[0].any()
        if law.residual[b, i].any():
            low, up = box.residual(i)
            assert (law.residual[b, i] >= low - 1e-12).all()
            assert (law.residual[b, i] <= up + 1e-12).all()
    low, up = box.bonus()
    assert ((law.bonus >= low - 1e-12) & (law.bonus <= up + 1e-12)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases(max_vocab=40, max_gamma=3))
def test_the_librarys_law_lies_in_the_boxes(dtype: str, case: Case) -> None:
    assert_in_boxes(SAMPLERS[dtype], case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", explicit_cases(), ids=lambda case: case.label)
def test_edges(dtype: str, case: Case) -> None:
    assert_in_boxes(SAMPLERS[dtype], case)


def test_law_by_hand() -> None:
    p, q = np.array([[[0.6, 0.1, 0.3], [0.2, 0.2, 0.6]]]), np.array([[[0.2, 0.5, 0.3]]])
    law = FLOAT32.law(p, q, np.array([[1]]))
    np.testing.assert_allclose(law.accept, [[0.2]], atol=1e-6)
    np.testing.assert_allclose(law.residual, [[[1, 0, 0]]], atol=1e-6)
    np.testing.assert_allclose(law.bonus, [[0.2, 0.2, 0.6]], atol=1e-6)


def test_law_of_an_empty_residual_is_a_row_of_zeros() -> None:
    law = FLOAT32.law(np.full((1, 2, 2), 0.5), np.full((1, 1, 2), 0.5), np.array([[0]]))
    assert law.accept.tolist() == [[1.0]]
    assert not law.residual.any()


def test_drafts_that_no_law_allows_hide_nothing_behind_them() -> None:
    """0/0 at the first position accepts nothing; the laws behind it are measured all the same."""
    p = np.array([[[0.5, 0.5, 0], [0.2, 0.8, 0], [0.9, 0.1, 0]]])
    q = np.array([[[0.5, 0.5, 0], [0.8, 0.2, 0]]])
    law = FLOAT32.law(p, q, np.array([[2, 0]]))
    np.testing.assert_allclose(law.accept, [[0, 0.25]], atol=1e-6)
    np.testing.assert_allclose(law.residual[0, 1], [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(law.bonus[0], [0.9, 0.1, 0], atol=1e-6)


def test_law_undoes_its_patches_when_the_library_raises() -> None:
    before = torch.rand_like, torch.multinomial
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the library makes of a token id out of range
        FLOAT32.law(np.full((1, 2, 2), 0.5), np.full((1, 1, 2), 0.5), np.array([[7]]))
    assert (torch.rand_like, torch.multinomial) == before


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    assert not counts[law <= 0].any()
    expected = law[law > 0] * counts.sum()
    return float(chi2.sf(((counts[law > 0] - expected) ** 2 / expected).sum(), max(1, (law > 0).sum() - 1)))


def test_verify_and_sample_follow_the_target() -> None:
    case = family_case("dirichlet", 5, 2, 3, concentration=1.0)
    n = 4000
    drafts = drafts_from(case.q, n, np.random.default_rng(2))
    tokens = FLOAT32.verify(*batch(case, n), drafts, 3)
    assert chi_square(np.bincount(tokens[:, 0], minlength=5), case.p[0]) > 1e-4
    full = tokens[tokens[:, 2] >= 0]
    assert chi_square(np.bincount(full[:, 2], minlength=5), case.p[2]) > 1e-4
    first, accepted = FLOAT32.sample(case.p[0], case.q[0], n, 4)
    assert chi_square(np.bincount(first, minlength=5), case.p[0]) > 1e-4
    rate = 1 - case.tv[0]
    assert abs(accepted.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_rows_use_their_own_laws(dtype: str) -> None:
    vocab, gamma, n = 5, 2, 100
    rng = np.random.default_rng(6)
    due = rng.integers(vocab, size=(n, gamma + 1))
    # Drafts are right or of another token, which p excludes: r is never exactly 0 in so few draws of float32. In the
    # short types it may be (1 in 512 for bfloat16), so there every draft is the target's own.
    wrong = (due[:, :gamma] + 1) % vocab
    drafts = np.where((rng.random((n, gamma)) < 0.5) | (dtype != "float32"), due[:, :gamma], wrong)
    tokens = SAMPLERS[dtype].verify(np.eye(vocab)[due], np.full((n, gamma, vocab), 1 / vocab), drafts, 8)
    matches = np.cumprod(drafts == due[:, :gamma], 1).sum(1)
    assert (tokens == np.where(np.arange(gamma + 1) <= matches[:, None], due, -1)).all()


def test_state_outside_is_left_alone() -> None:
    case = family_case("dirichlet", 5, 2, 3)
    drafts = drafts_from(case.q, 20, np.random.default_rng(0))
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    one = FLOAT32.verify(*batch(case, 20), drafts, 5)
    FLOAT32.law(*batch(case, 2), drafts[:2])
    assert (one == FLOAT32.verify(*batch(case, 20), drafts, 5)).all()
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()


def test_unknown_dtype() -> None:
    with pytest.raises(ValueError, match="float32, float16, bfloat16"):
        adapter.SpeculativeSampling("float8")
