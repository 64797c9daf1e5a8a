"""The catalogue's laws: they are laws, the correct rules keep the target, and the numbers that are known come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from auditor.cases import Case, cases
from auditor.rules import (
    FAULTS,
    MATCH,
    ONEHOT,
    REJECTION,
    RULES,
    DraftResidual,
    Laws,
    Rule,
    argmax,
    cut_size,
    laws,
    ratio,
    temper,
    top_k,
    top_p,
    under,
)

EVERY = {**RULES, **FAULTS}

# The pair of the proof by counting, and what is known of it.
TARGET = np.array([0.40, 0.25, 0.15, 0.10, 0.06, 0.04])
DRAFT = np.array([0.35, 0.30, 0.20, 0.10, 0.03, 0.02])


def assert_laws(law: np.ndarray) -> None:
    assert (law >= 0).all()
    np.testing.assert_allclose(law.sum(-1), 1, atol=1e-9)


def residuals(of: Laws, position: int, vocab: int) -> np.ndarray:
    return of.given(position, np.arange(vocab))


def emitted(of: Laws, case: Case, position: int) -> np.ndarray:
    """The emitted token's law [V] at a reached position: accepted drafts and residual draws together, draft by draft."""
    q, a = case.q[position], of.accept[position]
    return q * a + (q * (1 - a)) @ residuals(of, position, case.vocab)


@pytest.mark.parametrize("name", EVERY)
@given(case=cases(max_vocab=10, max_gamma=3))
@settings(max_examples=25, deadline=None)
def test_every_rule_states_laws(name: str, case: Case) -> None:
    for base in RULES.values():
        of = laws(EVERY[name], case.p, case.q, base)
        assert of.accept.shape == case.q.shape
        assert (of.accept >= 0).all()
        assert (of.accept <= 1).all()
        assert_laws(of.bonus)
        for i in range(case.gamma):
            assert_laws(residuals(of, i, case.vocab))


@pytest.mark.parametrize("name", [n for n, r in EVERY.items() if isinstance(r.residual, DraftResidual)])
@given(case=cases(max_vocab=12, max_gamma=1))
@settings(max_examples=80, deadline=None)
def test_the_mean_of_a_residual_by_draft_is_the_sum(name: str, case: Case) -> None:
    residual = EVERY[name].residual
    assert isinstance(residual, DraftResidual)
    p, q = case.p[0], case.q[0]
    every = np.arange(case.vocab)
    table = residual.given(np.tile(p, (case.vocab, 1)), np.tile(q, (case.vocab, 1)), every)
    refused = q * (1 - laws(EVERY[name], case.p, case.q).accept[0])
    for weights in (q, refused, np.ones(case.vocab)):
        np.testing.assert_allclose(residual.mean(p, q, weights), weights @ table, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_a_mixed_batch_has_the_laws_of_its_rows(name: str) -> None:
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(5), (3, 4)), rng.dirichlet(np.ones(5), (3, 3))
    together = laws(EVERY[name], p, q)
    for b in range(3):
        alone = laws(EVERY[name], p[b], q[b])
        np.testing.assert_allclose(together.accept[b], alone.accept)
        np.testing.assert_allclose(together.bonus[b], alone.bonus)
        if together.residual is not None:
            np.testing.assert_allclose(together.residual[b], alone.residual)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.name)
@given(case=cases(max_vocab=12, max_gamma=3))
@settings(max_examples=100, deadline=None)
def test_the_correct_rules_keep_the_target(rule: Rule, case: Case) -> None:
    of = laws(rule, case.p, case.q, rule)
    for i in range(case.gamma):
        np.testing.assert_allclose(emitted(of, case, i), case.p[i], atol=1e-9)
    np.testing.assert_array_equal(of.bonus, case.p[-1])


@given(case=cases(max_vocab=12, max_gamma=3))
@settings(max_examples=100, deadline=None)
def test_the_acceptance_rates_of_the_rules(case: Case) -> None:
    p, q = case.p[:-1], case.q
    np.testing.assert_allclose((q * laws(REJECTION, case.p, q).accept).sum(-1), 1 - case.tv, atol=1e-9)
    for rule in (ONEHOT, MATCH):
        np.testing.assert_allclose((q * laws(rule, case.p, q, rule).accept).sum(-1), (p * q).sum(-1), atol=1e-12)


@given(case=cases(max_vocab=12, max_gamma=3))
@settings(max_examples=60, deadline=None)
def test_one_hot_verification_is_rejection_with_a_one_hot_draft(case: Case) -> None:
    of = laws(ONEHOT, case.p, case.q, ONEHOT)
    for i in range(case.gamma):
        for x in range(case.vocab):
            hot = np.eye(case.vocab)[x : x + 1]
            by_hand = laws(REJECTION, case.p[[i, i]], hot)
            assert of.accept[i, x] == pytest.approx(by_hand.accept[0, x])
            if of.accept[i, x] < 1:
                np.testing.assert_allclose(
                    of.given(i, np.array([x]))[0], by_hand.given(0, np.array([x]))[0], atol=1e-12
                )


KEEP_THE_TARGET = {"bonus-dropped", "shared-uniform", "keeps-after-rejection", "onehot-treatment"}
"""Faults of speed, of joint laws or of structure: the law of the token at a reached position is the target's all the same."""


@pytest.mark.parametrize("name", sorted(set(FAULTS) - KEEP_THE_TARGET))
def test_the_other_faults_bias_what_is_emitted(name: str) -> None:
    rng = np.random.default_rng(6)
    case = Case(rng.dirichlet(np.ones(6), 3), rng.dirichlet(np.ones(6), 2), "random", "dirichlet")
    of = laws(FAULTS[name], case.p, case.q)
    bias = [0.5 * np.abs(emitted(of, case, i) - case.p[i]).sum() for i in range(2)]
    assert max(*bias, 0.5 * np.abs(of.bonus - case.p[-1]).sum()) > 0.005


def test_one_hot_treatment_keeps_the_target_and_loses_speed() -> None:
    case = Case(np.stack([TARGET, TARGET]), DRAFT[None], "the pair", "proof")
    of = laws(FAULTS["onehot-treatment"], case.p, case.q)
    np.testing.assert_allclose(emitted(of, case, 0), TARGET, atol=1e-12)
    assert float(DRAFT @ of.accept[0]) == pytest.approx(float(TARGET @ DRAFT))


def test_the_known_values_of_the_pair() -> None:
    gamma = 4
    case = Case(np.tile(TARGET, (gamma + 1, 1)), np.tile(DRAFT, (gamma, 1)), "the pair", "proof")
    rates = (case.q * laws(REJECTION, case.p, case.q).accept).sum(-1)
    np.testing.assert_allclose(rates, 0.90, atol=1e-12)
    assert 1 + np.cumprod(rates).sum() == pytest.approx(4.0951, abs=1e-9)
    naive = emitted(laws(FAULTS["residual-p"], case.p, case.q), case, 0)
    # The mass 0.1 of the rejections goes to p in place of the residual.
    assert 0.5 * np.abs(naive - TARGET).sum() == pytest.approx(0.05, abs=1e-12)


def test_the_ratio_where_it_has_no_value() -> None:
    np.testing.assert_array_equal(ratio(np.array([0.0, 0.5, 0.2]), np.array([0.0, 0.0, 0.4])), [1.0, 1.0, 0.5])
    tiny = laws(REJECTION, np.array([[1e-300, 1.0], [0.5, 0.5]]), np.array([[1e-320, 1.0]]))
    assert np.isfinite(tiny.accept).all()


def test_the_building_blocks() -> None:
    law = np.array([0.4, 0.1, 0.4, 0.1])
    np.testing.assert_allclose(temper(law, 1.0), law)
    np.testing.assert_allclose(temper(law, 0.5), law**2 / (law**2).sum())
    np.testing.assert_array_equal(temper(np.array([0.0, 1.0]), 0.7), [0.0, 1.0])
    np.testing.assert_allclose(top_k(law, 1), [1.0, 0, 0, 0])  # the lower id of a tie
    np.testing.assert_allclose(top_k(law, 3), np.array([4, 1, 4, 0]) / 9)
    np.testing.assert_allclose(top_p(law, 0.7), [0.5, 0, 0.5, 0])
    np.testing.assert_allclose(top_p(law, 0.85), np.array([4, 1, 4, 0]) / 9)
    np.testing.assert_array_equal(argmax(law), [1.0, 0, 0, 0])
    assert [cut_size(v) for v in (2, 3, 64, 200)] == [1, 1, 32, 50]


def test_a_fault_is_completed_by_the_rule_that_it_breaks() -> None:
    whole = under(FAULTS["residual-p"], MATCH)
    assert whole.accept is MATCH.accept
    assert whole.bonus is MATCH.bonus
    assert whole.residual is FAULTS["residual-p"].residual


def test_names_and_words() -> None:
    assert all(name == rule.name for name, rule in EVERY.items())
    assert not set(FAULTS) & set(RULES)
    assert all(rule.words and rule.explanation.endswith((".", ")")) and rule.touches for rule in FAULTS.values())
