"""The laws that the benchmark's Wald limits come from, against the draws of the samplers themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from auditor.bets.books import RoundBook
from auditor.cases import family_case
from auditor.draws import drafts_from
from auditor.rules import REJECTION
from auditor.selftest import PRECISION, adapter_verify
from benchmarks.unlisted import UNLISTED

ROUNDS = 60_000
BOOK = RoundBook(family_case("dirichlet", 6, 2, 1), REJECTION, PRECISION)


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's, thin cells pooled; 0 where something impossible was seen."""
    n = counts.sum()
    if counts[law <= 0].any():
        return 0.0
    mean = n * law / law.sum()
    thin = mean < 10
    seen = np.append(counts[~thin], counts[thin].sum())
    mean = np.append(mean[~thin], mean[thin].sum())
    seen, mean = seen[mean > 0], mean[mean > 0]
    return float(chi2.sf(((seen - mean) ** 2 / mean).sum(), max(1, len(seen) - 1)))


@pytest.mark.parametrize("name", UNLISTED)
def test_the_law_is_the_samplers_own(name: str) -> None:
    sampler, law_of = UNLISTED[name]
    law, case = law_of(BOOK), BOOK.case
    drafts = drafts_from(case.q, ROUNDS, np.random.default_rng(3))
    tokens = adapter_verify(sampler())(case, drafts, 7)
    # At the first position a rejection is never mistaken for a missing bonus token.
    accepted = (tokens[:, 0] == drafts[:, 0]) & (tokens[:, 1] >= 0)
    cells = np.stack([np.bincount(drafts[accepted == kind, 0], minlength=case.vocab) for kind in (False, True)])
    accept = case.q[0] * law.accept[0]
    assert p_value(cells.ravel(), np.concatenate([case.q[0] - accept, accept])) > 1e-7
    residual = law.residual[0]
    if (~accepted).any() and residual.sum() > 0:
        assert p_value(np.bincount(tokens[~accepted, 0], minlength=case.vocab), residual) > 1e-7
    full = tokens[:, -1] >= 0
    if full.any():
        assert p_value(np.bincount(tokens[full, -1], minlength=case.vocab), law.bonus) > 1e-7
