"""What an implementation computes in short arithmetic lies in the box of its tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from auditor.bets.boxes import Boxes, Precision, boxes
from auditor.cases import Case, cases, explicit_cases
from auditor.rules import MATCH, ONEHOT, REJECTION, RULES, laws

FLOAT32 = Precision()
FLOAT16 = Precision(1e-2)


def short_softmax(law: np.ndarray, dtype: type) -> np.ndarray:
    """A law [..., V] handed over as logits of a short type, and taken back by a log-softmax in that type."""
    with np.errstate(divide="ignore", under="ignore", over="ignore", invalid="ignore"):
        logits = np.log(law).astype(dtype)
        logits = logits - logits.max(-1, keepdims=True)
        total = np.exp(logits).sum(-1, keepdims=True, dtype=dtype)
        return np.exp(logits - np.log(total).astype(dtype))


def computed(case: Case, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Acceptance [gamma, V], residual [gamma, V], bonus [V] of the rejection rule in short arithmetic throughout."""
    p, q = short_softmax(case.p, dtype), short_softmax(case.q, dtype)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        accept = np.where(q > 0, np.minimum(p[:-1] / np.where(q > 0, q, dtype(1)), dtype(1)), dtype(1))
        excess = np.maximum(p[:-1] - q, dtype(0))
        total = excess.sum(-1, keepdims=True, dtype=dtype)
        residual = np.where(total > 0, excess / np.where(total > 0, total, dtype(1)), p[:-1])
    residual = residual.astype(np.float64)  # weights: a draw from them is in proportion, whatever they sum to
    return accept.astype(np.float64), residual / residual.sum(-1, keepdims=True), p[-1].astype(np.float64)


def inside(values: np.ndarray, low: np.ndarray, up: np.ndarray) -> bool:
    return bool(((values >= low - 1e-12) & (values <= up + 1e-12)).all())


def assert_inside(case: Case, dtype: type, precision: Precision) -> None:
    accept, residual, bonus = computed(case, dtype)
    box = boxes(REJECTION, precision, case.p, case.q)
    drafted = case.q > 0  # no other draft can come
    assert inside(accept[drafted], box.accept_low[drafted], box.accept_up[drafted])
    assert inside(bonus, *box.bonus())
    for i in range(case.gamma):
        assert inside(residual[i], *box.residual(i))
        rejected = case.q[i] @ (1 - np.where(drafted[i], accept[i], 1))
        low, up = box.rejected(i)
        assert low - 1e-12 <= rejected <= up + 1e-12
        emitted = case.q[i] * np.where(drafted[i], accept[i], 1) + rejected * residual[i]
        assert inside(emitted, *box.emitted(i))


@given(cases(max_vocab=24, max_gamma=2))
@settings(max_examples=150, deadline=None)
def test_float32_lies_in_its_box(case: Case) -> None:
    assert_inside(case, np.float32, FLOAT32)


@given(cases(max_vocab=24, max_gamma=2))
@settings(max_examples=150, deadline=None)
def test_float16_lies_in_its_box(case: Case) -> None:
    assert_inside(case, np.float16, FLOAT16)


@pytest.mark.parametrize("case", [c for c in explicit_cases() if c.vocab < 100], ids=lambda c: c.label)
@pytest.mark.parametrize(
    ("dtype", "precision"), [(np.float32, FLOAT32), (np.float16, FLOAT16)], ids=["float32", "float16"]
)
def test_the_edges_lie_in_their_boxes(case: Case, dtype: type, precision: Precision) -> None:
    assert_inside(case, dtype, precision)


def every_box(box: Boxes, case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    at = range(case.gamma)
    out = [(box.accept_low, box.accept_up), box.bonus(), *(box.emitted(i) for i in range(case.gamma + 1))]
    if box.rule is REJECTION:
        return out + [box.residual(i) for i in at]
    return out + [box.residual_after(i, x) for i in at for x in range(case.vocab)]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.name)
@given(case=cases(max_vocab=10, max_gamma=2))
@settings(max_examples=60, deadline=None)
def test_the_exact_laws_lie_in_their_boxes(rule: object, case: Case) -> None:
    assert rule in (REJECTION, ONEHOT, MATCH)
    of, box = laws(rule, case.p, case.q, rule), boxes(rule, FLOAT32, case.p, case.q)  # type: ignore[arg-type]
    assert inside(of.accept, box.accept_low, box.accept_up)
    assert inside(of.bonus, *box.bonus())
    for i in range(case.gamma):
        assert inside(case.p[i], *box.emitted(i))
        for x in range(case.vocab):
            bounds = box.residual(i) if rule is REJECTION else box.residual_after(i, x)
            assert inside(of.given(i, np.array([x]))[0], *bounds)
    for low, up in every_box(box, case):
        assert (low >= 0).all()
        assert (up <= 1).all()
        assert (low <= up).all()


def test_what_is_far_outside_is_not_allowed() -> None:
    """At 1e-6 the box of an ordinary law is as narrow as it looks."""
    p, q = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.4, 0.6]])
    box = boxes(REJECTION, FLOAT32, p, q)
    assert (box.accept_up - box.accept_low).max() < 1e-5
    low, up = box.residual(0)
    assert (up - low).max() < 1e-5
    assert up[1] < 1e-5


def test_an_empty_residual_may_fall_back_on_anything_that_is_possible() -> None:
    p = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    low, up = boxes(REJECTION, FLOAT32, p, p[:1]).residual(0)
    assert low.tolist() == [0, 0, 0]
    assert up.tolist() == [1, 1, FLOAT32.resolution]
    hot = np.array([[0.0, 1.0], [0.5, 0.5]])
    assert boxes(ONEHOT, FLOAT32, hot, hot[:1]).residual_after(0, 1)[1].tolist() == [1, 1]


def test_a_draft_that_may_underflow_may_be_accepted_with_any_probability() -> None:
    p, q = np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([[1e-8, 1 - 1e-8]])
    short, single = boxes(REJECTION, FLOAT16, p, q), boxes(REJECTION, FLOAT32, p, q)
    assert (short.accept_low[0, 0], short.accept_up[0, 0]) == (0, 1)
    assert single.accept_low[0, 0] > 0.99
