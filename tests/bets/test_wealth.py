"""Wealth is a fold with mean at most 1: its bookkeeping, and how often it cries wolf when it is allowed to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from auditor.bets.books import JOINT, Evidence, RoundBook
from auditor.bets.boxes import Precision
from auditor.bets.fields import SEVERITIES, Score
from auditor.bets.tally import Endings, read_rounds
from auditor.bets.wealth import Wealth, edge_score, entries, log_weights, pack, packed, unpack, unpacked
from auditor.cases import Case
from auditor.draws import drafts_from, rounds
from auditor.evidence import LOCAL_FRACTIONS, log_mean
from auditor.rules import FAULTS, RULES

PAIRS = (
    Case(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([[0.4, 0.6]]), "two tokens", "simplex"),
    Case(
        np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.5, 0.4]]),
        np.array([[0.2, 0.3, 0.5], [0.4, 0.3, 0.3]]),
        "three tokens",
        "simplex",
    ),
)
CLAIMS = ("support", "output-law", "acceptance-law", "acceptance-rate", "residual-law", "bonus-token", "round-length")


def visit(evidence: Evidence, edge: bool = False, method: str = "verify") -> dict[str, object]:
    """A journal line, after a trip through JSON."""
    return dict(json.loads(json.dumps({"kind": "visit", "method": method, **entries(evidence, edge)}, allow_nan=False)))


def evidence_of(of: Case, tokens_of: str, n: int, seed: int, rule: str = "rejection") -> Evidence:
    book = RoundBook(of, RULES[rule], Precision())
    rng = np.random.default_rng(seed)
    drafts = drafts_from(of.q, n, rng)
    tokens = rounds({**RULES, **FAULTS}[tokens_of], of.p[None], of.q[None], drafts, rng, base=RULES[rule])
    return book.evidence(read_rounds(book.reading, drafts, tokens), Endings())


@pytest.mark.parametrize(("directed", "tilts"), [(93, 30), (0, 5), (12, 0), (0, 0)])
def test_weights_sum_to_one(directed: int, tilts: int) -> None:
    weights = np.exp(log_weights(directed, tilts))
    assert len(weights) == directed + tilts + len(LOCAL_FRACTIONS)
    assert weights.sum() == pytest.approx(1)
    if directed and tilts:
        assert weights[:directed].sum() == pytest.approx(1 / 2)
        assert weights[directed : directed + tilts].sum() == pytest.approx(1 / 3)


def test_scores_survive_the_journal() -> None:
    values = np.array([0.1, -np.inf, 1e300, -3.5e-300])
    np.testing.assert_array_equal(unpack(pack(values)), values)
    score = Score(values, -0.25, 2, 17)
    again = unpacked(json.loads(json.dumps(packed(score))))
    np.testing.assert_array_equal(again.bets, score.bets)
    assert (again.omnibus, again.directed, again.events) == (-0.25, 2, 17)


def test_the_wealth_is_a_fold_whose_order_does_not_matter() -> None:
    lines = [visit(evidence_of(PAIRS[k % 2], "residual-p", 300, k)) for k in range(6)]
    forth, back = (Wealth(CLAIMS, ("verify",), 1e-6) for _ in range(2))
    for a, b in zip(lines, reversed(lines), strict=True):
        forth.add(a)
        back.add(b)
    for claim in CLAIMS:
        assert forth.log_wealth(claim) == pytest.approx(back.log_wealth(claim), abs=1e-9)
        assert forth.events(claim) == back.events(claim)
    np.testing.assert_allclose(forth.joint["verify"], back.joint["verify"])
    assert forth.joint["verify"].shape == (len(JOINT), len(SEVERITIES))
    assert JOINT[int(forth.joint["verify"].max(1).argmax())] == "residual-p"


def test_a_preview_is_what_the_fold_will_say() -> None:
    wealth = Wealth(CLAIMS, ("verify",), 1e-6)
    wealth.add(visit(evidence_of(PAIRS[0], "accept-lenient", 500, 1)))
    more = evidence_of(PAIRS[1], "accept-lenient", 500, 2)
    before = {claim: wealth.log_wealth(claim) for claim in CLAIMS}
    preview = wealth.preview(more.scores, "verify", False)
    assert {claim: wealth.log_wealth(claim) for claim in CLAIMS} == before
    wealth.add(visit(more))
    for claim, value in preview.items():
        assert wealth.log_wealth(claim) == pytest.approx(value, abs=1e-9)


def test_two_methods_share_a_claim_and_neither_hides_the_other() -> None:
    wealth = Wealth(("output-law", "bonus-token"), ("verify", "sample"), 1e-6)
    wealth.add(visit(evidence_of(PAIRS[0], "residual-p", 3000, 3), method="sample"))
    alone = wealth.stakes["output-law", "sample"]
    assert wealth.log_wealth("output-law") == pytest.approx(
        log_mean(np.array([0.0, log_mean(alone.sums, alone.weights)]), np.log([3 / 4, 1 / 4]))
    )


def test_the_threshold_shares_the_error_rate() -> None:
    assert Wealth(CLAIMS, ("verify",), 1e-6).threshold == pytest.approx(np.log(len(CLAIMS) / 1e-6))
    assert Wealth(CLAIMS, ("verify",), 1e-6, 0.25).threshold == pytest.approx(np.log(4 * len(CLAIMS) / 1e-6))


def test_coins_speak_for_their_claim() -> None:
    wealth = Wealth(("seed-independence", "row-independence"), ("verify",), 1e-6)
    assert wealth.log_wealth("seed-independence") == 0.0
    wealth.add({"kind": "coins", "claim": "seed-independence", "log_wealth": 40.0, "events": 90})
    assert wealth.log_wealth("seed-independence") == 40.0
    assert wealth.events("seed-independence") == 90
    assert wealth.log_wealth("row-independence") == 0.0


def test_an_edge_case_is_the_mean_of_its_claims() -> None:
    scores = evidence_of(PAIRS[0], "residual-p", 2000, 4).scores
    parts = ("acceptance-law", "residual-law", "bonus-token", "output-law", "support")
    edge = edge_score(scores)
    assert edge.omnibus == pytest.approx(log_mean(np.array([scores[c].local for c in parts])))
    wealth = Wealth(("edge-cases",), ("verify",), 1e-6)
    assert not wealth.preview(scores, "verify", False)
    assert wealth.preview(scores, "verify", True)["edge-cases"] > 5


@pytest.mark.parametrize("rule", RULES)
def test_the_wealth_cries_wolf_no_more_often_than_alpha(rule: str) -> None:
    """300 short audits of a conforming sampler at alpha = 0.5, looked at after every visit.

    The union bound over claims says at most one half; the bound on the count never fires at that rate.
    """
    alpha, audits, alarms = 0.5, 300, 0
    books = [RoundBook(of, RULES[rule], Precision()) for of in PAIRS]
    rng = np.random.default_rng(14)
    for _ in range(audits):
        wealth = Wealth(CLAIMS, ("verify",), alpha)
        alarm = False
        for k in range(6):
            book = books[k % 2]
            drafts = drafts_from(book.case.q, 40, rng)
            tokens = rounds(RULES[rule], book.case.p[None], book.case.q[None], drafts, rng, base=RULES[rule])
            evidence = book.evidence(read_rounds(book.reading, drafts, tokens), Endings())
            wealth.add({"kind": "visit", "method": "verify", **entries(evidence, False)})
            alarm |= any(wealth.log_wealth(claim) >= wealth.threshold for claim in CLAIMS)
        alarms += alarm
    assert alarms <= stats.binom.isf(1e-9, audits, alpha)
