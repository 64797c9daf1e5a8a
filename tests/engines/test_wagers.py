"""Bets about sequences: what they may be worth under a conforming law, and what they see."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.adapter import Generation, Settings
from auditor.engines.draft_wagers import AcceptBook, DraftBook, Drawn, Judged, SharedBook
from auditor.engines.sequences import bonus_weight, disturbed, places, read
from auditor.engines.wagers import ENGINE_FAULTS, TokenBook, View, allowance, log_payoff, view
from auditor.oracle import softmax, table_pair
from auditor.settings import TRANSFORMS

ORDER = tuple(name for name in TRANSFORMS if name != "guidance_scale")
PROMPT = np.array([1, 2, 3])


def _law(data: st.DataObject, vocab: int) -> np.ndarray:
    parts = data.draw(st.lists(st.integers(0, 20), min_size=vocab, max_size=vocab).filter(any))
    return np.array(parts) / sum(parts)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_law_within_the_allowance_makes_a_bet_worth_more_than_one(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(2, 6))
    p, law = _law(data, vocab), _law(data, vocab)
    tolerance = data.draw(st.sampled_from([1e-6, 1e-3, 0.05]))
    wide = allowance(p[None], tolerance, 2.0**-21)[0]
    y = np.arange(vocab)
    rows = (np.broadcast_to(law, (vocab, vocab)), np.broadcast_to(p, (vocab, vocab)))
    pays = np.exp(log_payoff(*rows, y, np.broadcast_to(wide, (vocab, vocab))))
    # The worst law in the box: probability moved from the tokens that pay least to those that pay most.
    order = np.argsort(-pays)
    worst, taken = p.copy(), 0.0
    for k in order:
        worst[k] += wide[k]
        taken += wide[k]
    for k in order[::-1]:
        back = min(taken, worst[k], 2 * wide[k] if p[k] > 0 else wide[k])
        worst[k] -= back
        taken -= back
    if taken < 1e-12:
        assert worst @ pays <= 1 + 1e-9


def _engine(
    rng: np.random.Generator, pair, count: int, bonus: str = "p", length: int = 8, gamma: int = 3
) -> list[Generation]:
    p = softmax(pair.target.logits(np.arange(8)[:, None])[:, 0])
    q = softmax(pair.draft.logits(np.arange(8)[:, None])[:, 0])
    made = []
    for _ in range(count):
        tokens, drafted, accepted, drafts = [], [], [], []
        last = int(PROMPT[-1])
        while len(tokens) < length:
            width = min(gamma, length - len(tokens) - 1)
            row, at = [], last
            for _ in range(width):
                at = int(rng.choice(8, p=q[at]))
                row.append(at)
            kept = 0
            for x in row:
                if rng.random() >= min(1.0, p[last, x] / q[last, x]):
                    residual = np.maximum(p[last] - q[last], 0)
                    tokens.append(int(rng.choice(8, p=residual / residual.sum())))
                    break
                tokens.append(x)
                last, kept = x, kept + 1
            else:
                tokens.append(int(rng.choice(8, p=(q if bonus == "q" else p)[last])))
            last = tokens[-1]
            drafted.append(width)
            accepted.append(kept)
            drafts.append(row + [-1] * (gamma - width))
        made.append(Generation(np.array(tokens), np.array(drafted), np.array(accepted), drafts=np.array(drafts)))
    return made


def _hidden(generations: list[Generation]) -> list[Generation]:
    return [Generation(g.tokens) for g in generations]


def _read(generations: list[Generation], pair):
    return read(generations, PROMPT, Settings(), 8, ORDER, pair.target.logits, pair.draft.logits)


def _evidence(generations: list[Generation], pair) -> TokenBook:
    book = TokenBook((3,))
    for start in range(0, len(generations), 200):
        batch = _read(generations[start : start + 200], pair)
        book.judge([view(batch, 3)], pair.key, 1e-6, 2.0**-21)
    return book


def test_places_follow_the_reported_rounds() -> None:
    one = Generation(
        np.array([5, 6, 7, 1]), np.array([2, 1, 0]), np.array([1, 0, 0]), drafts=np.array([[5, 4], [3, -1], [-1, -1]])
    )
    found = places([one, Generation(np.array([5]))], 4)
    assert found.slot[0].tolist() == [0, 1, 0, 0]
    assert found.drafted[0].tolist() == [1, 1, 1, 0]
    assert found.accepted[0].tolist() == [1, 0, 0, 0]
    assert found.draft[0].tolist() == [5, 4, 3, -1]
    assert found.round[0].tolist() == [0, 0, 1, 2]
    assert (found.drafted[1] == -1).all()


def test_reported_counts_are_worth_more_than_the_filter_and_the_filter_more_than_nothing() -> None:
    pair = table_pair(8, 0)
    made = _engine(np.random.default_rng(0), pair, 1000, bonus="q")
    told, filtered = _evidence(made, pair), _evidence(_hidden(made), pair)
    by_name = {w.name: v for w, v in told.leaders("fault")}
    assert told.leaders("fault")[0][0].name == "bonus-q"
    assert filtered.leaders("fault")[0][0].name == "bonus-q"
    assert told.evidence > 1.5 * filtered.evidence > 20
    assert by_name["bonus-q"] / told.events > 0.015


def test_a_right_engine_makes_no_bet_rich() -> None:
    pair = table_pair(8, 0)
    made = _engine(np.random.default_rng(1), pair, 1000)
    assert _evidence(made, pair).evidence < 5
    assert _evidence(_hidden(made), pair).evidence < 5


def test_the_filter_agrees_with_the_rounds_on_average() -> None:
    pair = table_pair(8, 0)
    made = _engine(np.random.default_rng(2), pair, 1500)
    known, guessed = bonus_weight(_read(made, pair), 3), bonus_weight(_read(_hidden(made), pair), 3)
    # The end of a sequence drafts less, which the filter does not know; compare where it cannot matter.
    assert np.abs(known[:, :4].mean(0) - guessed[:, :4].mean(0)).max() < 0.04


def test_laws_of_wrong_bookkeeping_need_drafts_and_a_rejection() -> None:
    pair = table_pair(8, 0)
    made = _engine(np.random.default_rng(3), pair, 20)
    batch = _read(made, pair)
    found = disturbed(batch, made, pair.target.logits, ORDER)
    assert found is not None
    # A Markov chain shows neither: the laws are its own.
    assert np.allclose(found.stale[batch.live], batch.p[batch.live])
    assert np.allclose(found.shifted[batch.live], batch.p[batch.live])
    assert disturbed(batch, _hidden(made), pair.target.logits, ORDER) is None


def test_every_fault_states_a_law() -> None:
    pair = table_pair(8, 0)
    batch = _read(_engine(np.random.default_rng(4), pair, 50), pair)
    seen = view(batch, 3, batch.p, batch.p)
    for fault in ENGINE_FAULTS.values():
        law = fault.law(seen)
        assert law is not None, fault.name
        assert law.min() > -1e-12, fault.name
        assert np.allclose(law.sum(-1), 1), fault.name


@pytest.mark.parametrize(("severity", "caught"), [(1.0, True), (0.0, False)])
def test_drafts_that_do_not_follow_the_reported_law(severity: float, caught: bool) -> None:
    rng = np.random.default_rng(5)
    law = rng.dirichlet(np.ones(6), 400)
    x = np.array([rng.choice(6, p=row) for row in law])
    x = np.where(rng.random(400) < severity, law.argmax(-1), x)
    book = DraftBook()
    book.judge(Drawn(x, law, np.zeros(400, int), x), "model", 1e-6, 2.0**-21)
    assert (book.evidence > 20) == caught
    assert (book.leaders("fault")[0][0].name == "argmax") == caught or not caught


@pytest.mark.parametrize("shared", [False, True])
def test_a_uniform_used_twice(shared: bool) -> None:
    rng = np.random.default_rng(6)
    p, q = rng.dirichlet(np.ones(6), 600), rng.dirichlet(np.ones(6), 600)
    u = rng.random(600)
    x = np.minimum((np.cumsum(q, -1) <= u[:, None]).sum(-1), 5)
    rate = np.minimum(1, p[np.arange(600), x] / q[np.arange(600), x])
    kept = (u if shared else rng.random(600)) < rate
    events = Judged(kept, rate, np.full(600, 1e-6), p, q, x, True)
    book, accept = SharedBook(), AcceptBook(6)
    book.judge(events)
    accept.judge(events, "rejection")
    assert (book.evidence > 20) == shared
    assert shared or accept.evidence < 5


def test_a_large_vocabulary_keeps_no_table_of_pairs() -> None:
    rng = np.random.default_rng(7)
    vocab, count = 5000, 4
    law = rng.dirichlet(np.ones(vocab), count)
    y = rng.integers(0, vocab, count)
    nothing = np.zeros(count)
    seen = View(y, law, law, law, law, nothing, np.zeros(count, int), y, law)
    book, drafts, accept = TokenBook((3,)), DraftBook(), AcceptBook(32)
    book.judge([seen], "large", 1e-4, 2.0**-21)
    drafts.judge(Drawn(y, law, np.zeros(count, int), y), "large", 1e-4, 2.0**-21)
    accept.judge(Judged(np.ones(count, bool), np.ones(count), np.full(count, 1e-4), law, law, y, True), "rejection")
    assert max(book.evidence, drafts.evidence, accept.evidence) < 20
