"""The assurance: its moments are exact, and what it promises to catch is caught."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.assurance import GRID, THETAS, log_miss, moment
from auditor.bets.books import DIRECTED, JOINT, RoundBook
from auditor.bets.boxes import Precision
from auditor.bets.fields import SEVERITIES
from auditor.bets.tally import Endings, read_rounds
from auditor.cases import family_case
from auditor.draws import drafts_from, rounds
from auditor.rules import FAULTS, REJECTION

CASE = family_case("dirichlet", 5, 2, 11)
BOOK = RoundBook(CASE, REJECTION, Precision())
ENDINGS = Endings()
PAIRS = [
    ("residual-p", "residual-law"),
    ("accept-lenient", "acceptance-law"),
    ("accept-strict", "acceptance-law"),
    ("bonus-q", "bonus-token"),
    ("bonus-dropped", "bonus-token"),
]


def pays(fault: str, claim: str, severity: float, bet: float, n: int, runs: int, seed: int) -> np.ndarray:
    """Log pay-offs of the directed bet over `runs` visits of `n` rounds that follow the fault at `severity`."""
    rng = np.random.default_rng(seed)
    k = DIRECTED[claim].index(fault) * len(SEVERITIES) + SEVERITIES.index(bet)
    out = np.empty(runs)
    for r in range(runs):
        drafts = drafts_from(CASE.q, n, rng)
        p, q = np.broadcast_to(CASE.p, (n, *CASE.p.shape)), np.broadcast_to(CASE.q, (n, *CASE.q.shape))
        tokens = rounds(FAULTS[fault], p, q, drafts, rng, severity=severity)
        tally = read_rounds(BOOK.reading, drafts, tokens)
        # Faults that reject what cannot be rejected are read as rejections, as the warm-up of an audit finds.
        endings = Endings(missing=False, rejections=True) if fault == "accept-strict" else ENDINGS
        out[r] = BOOK.evidence(tally, endings).scores[claim].bets[k]
    return out


@pytest.mark.parametrize(("fault", "claim"), PAIRS)
def test_the_moment_of_a_round_is_what_rounds_show(fault: str, claim: str) -> None:
    seen = np.exp(-THETAS[:, None] * pays(fault, claim, 0.3, 0.1, 1, 4000, 5))
    exact = moment(BOOK, fault, claim, 0.3, 0.1)
    error = seen.std(-1) / np.sqrt(seen.shape[1])
    assert (np.abs(seen.mean(-1) - exact) < 6 * error + 1e-9).all()


@pytest.mark.parametrize(("fault", "claim"), PAIRS)
def test_what_is_promised_to_be_caught_is_caught(fault: str, claim: str) -> None:
    need = 22.0
    severity = 0.1
    n = next(
        n
        for n in (2**k for k in range(4, 22))
        if log_miss([(BOOK, n)], fault, claim, severity, 0.1, need) <= np.log(0.01)
    )
    runs = 200
    missed = int((pays(fault, claim, severity, 0.1, n, runs, 7) < need).sum())
    # At most 1 % of the runs miss: more than 9 of 200 would happen with probability 6e-5, and the seed is fixed.
    assert missed <= 9, (n, missed)


def test_the_bound_is_no_use_where_the_fault_does_nothing() -> None:
    assert log_miss([(BOOK, 1000)], "bonus-q", "bonus-token", GRID[-1], 0.01, 22.0) > np.log(0.01)
    assert set(DIRECTED["residual-law"]) <= set(JOINT)
