"""Every bet of the audit is an e-value: its mean pay-off is at most 1 whatever a conforming sampler does, by exact
enumeration of all rounds of small cases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from auditor.bets.books import DIRECTED, JOINT, RoundBook, directed_bets, joint_pay
from auditor.bets.boxes import Precision
from auditor.bets.fields import (
    SEVERITIES,
    STRENGTHS,
    Classes,
    Features,
    Score,
    classes,
    tilted_laws,
    tilted_rates,
    tilts_per,
)
from auditor.bets.first_tokens import FirstBook
from auditor.bets.tally import Endings, FirstTokens, Tally, level_of, level_value, read_first, read_rounds
from auditor.bets.wealth import log_weights
from auditor.cases import Case, cases, family_case
from auditor.draws import drafts_from, rounds
from auditor.rules import FAULTS, MATCH, ONEHOT, REJECTION, Rule

SLACK = 1e-9
RULES = (REJECTION, ONEHOT, MATCH)
ENDINGS = [Endings(missing, rejections) for missing in (True, False) for rejections in (True, False)]

COARSE = Precision(0.02, 1e-3)
FINE = Precision()


def case(p: list[list[float]], q: list[list[float]], label: str) -> Case:
    return Case(np.array(p), np.array(q), label, "simplex")


CASES = (
    case([[0.7, 0.3], [0.4, 0.6]], [[0.4, 0.6]], "two tokens"),
    case([[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5]], "p = q"),
    case([[0.51, 0.49], [0.9, 0.1]], [[0.5, 0.5]], "p nearly q"),
    case([[1.0, 0.0], [0.0, 1.0]], [[0.3, 0.7]], "one-hot targets"),
    case([[0.6, 0.1, 0.3], [0.2, 0.0, 0.8]], [[0.2, 0.5, 0.3]], "a tie, and a zero behind it"),
    case([[0.0, 0.6, 0.4], [0.3, 0.3, 0.4]], [[0.5, 0.0, 0.5]], "zeros in both"),
    case([[1 - 2e-30, 1e-30, 1e-30], [0.3, 0.3, 0.4]], [[0.5, 0.5 - 1e-30, 1e-30]], "masses of 1e-30"),
    case([[0.7, 0.3], [0.2, 0.8], [0.55, 0.45]], [[0.4, 0.6], [0.5, 0.5]], "two drafts"),
    case([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], [[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]], "two of three"),
    case([[0.5, 0.2, 0.3], [0.3, 0.4, 0.3], [0.0, 0.5, 0.5]], [[0.5, 0.2, 0.3], [0.0, 0.4, 0.6]], "equal, then zeros"),
)


@dataclass(frozen=True)
class Sampler:
    """What a sampler computes: acceptance [gamma, V], residual [gamma, V, V] after each draft, bonus [V]."""

    accept: np.ndarray
    residual: np.ndarray
    bonus: np.ndarray


def sampler(rule: Rule, p: np.ndarray, q: np.ndarray) -> Sampler:
    """The rule written out by hand, from the laws that an implementation has after its own rounding errors."""
    vocab = q.shape[1]
    if rule is REJECTION:
        accept = np.where(q > 0, np.minimum(1, p[:-1] / np.where(q > 0, q, 1)), 1.0)
        excess = np.maximum(p[:-1] - q, 0)
        weights = np.repeat(excess[:, None, :], vocab, 1)
    else:
        accept = np.array(p[:-1])
        weights = p[:-1][:, None, :] * (1 - np.eye(vocab))
    total = weights.sum(-1, keepdims=True)
    fallback = np.broadcast_to(p[:-1][:, None, :], weights.shape)
    residual = np.where(total > 0, weights / np.where(total > 0, total, 1), fallback)
    return Sampler(accept, residual / residual.sum(-1, keepdims=True), p[-1] / p[-1].sum())


def every_round(of: Sampler, q: np.ndarray) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """(probability, drafts [1, gamma], tokens [1, gamma+1]) of every round, drafts drawn from q."""
    gamma, vocab = q.shape
    out = []
    for drafts in product(range(vocab), repeat=gamma):
        reach = float(np.prod([q[i, x] for i, x in enumerate(drafts)]))
        for i, x in enumerate(drafts):
            for y in range(vocab):
                mass = reach * (1 - of.accept[i, x]) * of.residual[i, x, y]
                out.append((mass, drafts, (*drafts[:i], y)))
            reach *= of.accept[i, x]
        out += [(reach * of.bonus[y], drafts, (*drafts, y)) for y in range(vocab)]
    padded = [(m, np.array([d]), np.array([[*t, *[-1] * (gamma + 1 - len(t))]])) for m, d, t in out if m > 0]
    assert sum(m for m, _, _ in padded) == pytest.approx(1, abs=1e-12)
    return padded


def bent(law: np.ndarray, sign: np.ndarray | float, precision: Precision) -> np.ndarray:
    """Laws as far from `law` [..., V] as the tolerance allows, bent by `sign` and normalised."""
    t = precision.relative(law)
    moved = law * (1 + sign * t)
    moved /= moved.sum(-1, keepdims=True)
    error = np.abs(moved / np.where(law > 0, law, 1) - 1) * (law > 0)
    share = np.where(error > 0, t / np.where(error > 0, error, 1), np.inf).min(-1, keepdims=True)
    return law + np.minimum(share, 1.0) * (moved - law)


def samplers(rule: Rule, of: Case, precision: Precision) -> list[Sampler]:
    """Conforming samplers: the exact one, and ones whose probabilities err by as much as the tolerance, each its own way."""
    rng = np.random.default_rng(5)
    out = [sampler(rule, of.p, of.q)]
    last = np.where(np.arange(of.vocab) == of.vocab - 1, 1.0, -1.0)
    for k in range(6):
        p_sign, q_sign = (
            ((last, -last), (-last, last))[k] if k < 2 else (rng.choice([-1, 1], law.shape) for law in (of.p, of.q))
        )
        out.append(sampler(rule, bent(of.p, p_sign, precision), bent(of.q, q_sign, precision)))
    return out


def pays(score: Score) -> np.ndarray:
    """Every e-value of a score: its bets, the omnibus, and the visit's own."""
    return np.exp(np.append(score.bets, [score.omnibus, score.local]))


def assert_fair(visits: list[tuple[float, dict[str, Score]]], label: str) -> None:
    for claim in visits[0][1]:
        mean = sum(mass * pays(scores[claim]) for mass, scores in visits)
        assert mean.max() <= 1 + SLACK, f"{label}: {claim}, bet {int(mean.argmax())} has mean {mean.max():.12f}"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@pytest.mark.parametrize("precision", [FINE, COARSE], ids=["fine", "coarse"])
@pytest.mark.parametrize("of", CASES, ids=lambda c: c.label)
def test_no_bet_on_a_round_gains_against_a_conforming_sampler(of: Case, precision: Precision, rule: Rule) -> None:
    book = RoundBook(of, rule, precision)
    many = of.gamma == 2 and of.vocab == 3
    for number, conforming in enumerate(samplers(rule, of, precision)[: 2 if many else None]):
        tallies = [(m, read_rounds(book.reading, d, t)) for m, d, t in every_round(conforming, of.q)]
        for endings in ENDINGS:
            visits = [(m, book.evidence(tally, endings).scores) for m, tally in tallies]
            assert_fair(visits, f"{of.label}, sampler {number}, {endings}")


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@pytest.mark.parametrize("precision", [FINE, COARSE], ids=["fine", "coarse"])
@pytest.mark.parametrize("of", CASES[:8], ids=lambda c: c.label)
def test_no_bet_on_two_rounds_gains_either(of: Case, precision: Precision, rule: Rule) -> None:
    """Two rounds meet what one does not: counts of 2, which the Dirichlet mixture learns from."""
    book = RoundBook(of, rule, precision)
    for number, conforming in enumerate(samplers(rule, of, precision)[:3]):
        tallies = [(m, read_rounds(book.reading, d, t)) for m, d, t in every_round(conforming, of.q)]
        pairs = [(a * b, s + t) for a, s in tallies for b, t in tallies if a * b > 1e-14]
        if len(pairs) > 300:
            continue
        visits = [(m, book.evidence(tally, Endings()).scores) for m, tally in pairs]
        assert_fair(visits, f"{of.label}, sampler {number}")


@pytest.mark.parametrize("shown", [True, False], ids=["accepted shown", "tokens alone"])
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@pytest.mark.parametrize("precision", [FINE, COARSE], ids=["fine", "coarse"])
@pytest.mark.parametrize("of", CASES[:7], ids=lambda c: c.label)
def test_no_bet_on_first_tokens_gains(of: Case, precision: Precision, rule: Rule, shown: bool) -> None:
    book = FirstBook(RoundBook(of, rule, precision))
    for number, conforming in enumerate(samplers(rule, of, precision)):
        tallies: list[tuple[float, FirstTokens]] = []
        for x, y in product(range(of.vocab), repeat=2):
            mass = of.q[0, x] * (1 - conforming.accept[0, x]) * conforming.residual[0, x, y]
            tallies.append((mass, read_first(of, np.array([y]), np.array([False]) if shown else None)))
        for x in range(of.vocab):
            tallies.append(
                (
                    of.q[0, x] * conforming.accept[0, x],
                    read_first(of, np.array([x]), np.array([True]) if shown else None),
                )
            )
        one = [(m, book.evidence(t).scores) for m, t in tallies if m > 0]
        assert_fair(one, f"{of.label}, sampler {number}, one round")
        two = [(a * b, book.evidence(s + t).scores) for a, s in tallies for b, t in tallies if a * b > 0]
        assert_fair(two, f"{of.label}, sampler {number}, two rounds")


# ------------------------------------------------------------------------------------- what the fields are made of


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@given(of=cases(max_vocab=10, max_gamma=3))
@settings(max_examples=25, deadline=None)
def test_what_is_bet_on_is_a_law_and_the_null_lies_in_its_box(rule: Rule, of: Case) -> None:
    """A bet on weights that sum to more than 1 would be no bet."""
    book = RoundBook(of, rule, FINE)
    first = FirstBook(book)
    fields = [book.bonus_field, book.emitted_field, book.first_emitted_field, book.length_field, first.accept_field]
    fields += (
        book.pair_fields if rule is not REJECTION else [book.residual_field, first.residual_field, *book.pair_fields]
    )
    for field in fields:
        laws = np.concatenate([field.directed, field.tilted, field.null[None]])
        assert laws.min() >= 0
        np.testing.assert_allclose(laws.sum(-1), 1, atol=1e-9)
        assert (field.low <= field.null + 1e-12).all()
        assert (field.null <= field.up + 1e-12).all()
    for field in (book.rate_field, first.rate_field):
        assert (field.low <= field.null + 1e-12).all()
        assert (field.null <= field.up + 1e-12).all()


def test_the_bets_of_a_claim_are_the_same_on_every_case() -> None:
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for of in (*CASES, family_case("dirichlet", 40, 3, 1), family_case("zipf", 2000, 2, 1)):
        for rule in RULES:
            book = RoundBook(of, rule, FINE)
            drafts = drafts_from(of.q, 50, np.random.default_rng(0))
            tally = read_rounds(
                book.reading, drafts, rounds(rule, of.p[None], of.q[None], drafts, np.random.default_rng(1), base=rule)
            )
            for claim, score in book.evidence(tally, Endings()).scores.items():
                shape = (len(score.bets), score.directed)
                assert seen.setdefault((rule.name, claim), shape) == shape
                assert score.directed == len(directed_bets(claim))
                assert np.exp(log_weights(score.directed, len(score.bets) - score.directed)).sum() == pytest.approx(1)


def test_classes_of_a_large_vocabulary_keep_every_token() -> None:
    of = family_case("zipf", 5000, 1, 3)
    groups = classes(of.p[0], of.q[0])
    assert groups.size < 1500
    np.testing.assert_allclose(groups.group(of.p[0]).sum(), 1)
    np.testing.assert_allclose(groups.group(np.ones(5000)), np.bincount(groups.of))
    assert (np.bincount(groups.of)[groups.of[[0, 4999]]] == 1).all()
    assert classes(of.p[0][:8], of.q[0][:8]) == Classes(8, None)


# ----------------------------------------------------------------------------------------------------- reading


def tally_of(drafts: list[list[int]], tokens: list[list[int]], of: Case = CASES[8]) -> Tally:
    return read_rounds(RoundBook(of, REJECTION, FINE).reading, np.array(drafts), np.array(tokens))


def test_rounds_are_read_from_their_lengths() -> None:
    drafts = [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]]
    tokens = [[1, 2, 0], [0, -1, -1], [1, 0, -1], [1, -1, -1], [1, 2, -1]]
    tally = tally_of(drafts, tokens)
    assert tally.rounds == 5
    assert tally.accept[0, 1].tolist() == [2, 3]  # an echo is a rejection that emitted the draft
    assert tally.accept[1, 2].tolist() == [1, 1]
    assert tally.repeats.tolist() == [0, 0, 1]
    assert tally.residual.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert tally.bonus.tolist() == [1, 0, 0]
    assert tally.emitted.tolist() == [[1, 4, 0], [1, 0, 2], [1, 0, 0]]
    assert tally.length.tolist() == [0, 2, 2, 1]
    assert (tally.echoes, tally.broken, tally.kept) == (1, 0, 0)


def test_drafts_behind_a_rejection_are_seen() -> None:
    tally = tally_of([[1, 2], [1, 2]], [[0, 2, -1], [0, 1, -1]])
    assert (tally.broken, tally.kept) == (2, 1)


def test_tallies_add_up() -> None:
    of = CASES[8]
    reading = RoundBook(of, REJECTION, FINE).reading
    rng = np.random.default_rng(2)
    drafts = drafts_from(of.q, 400, rng)
    tokens = rounds(REJECTION, of.p[None], of.q[None], drafts, rng)
    whole = read_rounds(reading, drafts, tokens)
    halves = read_rounds(reading, drafts[:170], tokens[:170]) + read_rounds(reading, drafts[170:], tokens[170:])
    for name in Tally.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(whole, name), getattr(halves, name))
    assert whole.length.sum() == 400
    assert whole.accept.sum() + whole.repeats.sum() == whole.emitted[:2].sum()


def test_levels_round_towards_one() -> None:
    probability = np.concatenate([np.linspace(0.001, 1, 999), [1.0, 0.0]])
    assert (level_value(level_of(probability)) >= probability - 1e-12).all()
    assert level_of(np.array([1.0]))[0] == 0


def test_first_tokens_add_up() -> None:
    of = CASES[4]
    a = read_first(of, np.array([0, 1, 1]), np.array([True, False, True]))
    b = read_first(of, np.array([2]), None)
    assert (a + a).accepted.tolist() == [2, 2, 0]
    assert (a + b).accepted is None
    assert (a + b).tokens.tolist() == [1, 2, 1]


# -------------------------------------------------------------------------------------------- what bets are worth


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("keeps-after-rejection",)])
def test_the_bet_on_a_fault_gains_against_the_fault(fault: str) -> None:
    """4,000 rounds of one case; a bet that never gains would be dead weight."""
    of = Case(
        np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.4, 0.1, 0.25]]),
        np.array([[0.2, 0.3, 0.1, 0.4], [0.3, 0.35, 0.25, 0.1]]),
        "four tokens", "simplex",
    )  # fmt: skip
    book = RoundBook(of, REJECTION, FINE)
    rng = np.random.default_rng(7)
    drafts = drafts_from(of.q, 4000, rng)
    tally = read_rounds(book.reading, drafts, rounds(FAULTS[fault], of.p[None], of.q[None], drafts, rng))
    scores = book.evidence(tally, Endings()).scores
    gain = joint_pay(scores)[JOINT.index(fault)].max()
    assert gain > 20
    # and some claim that bets on it says so by itself
    best = [
        scores[c].bets[[k for k, b in enumerate(directed_bets(c)) if b[0] == fault]].max()
        for c in DIRECTED
        if fault in DIRECTED[c]
    ]
    assert max(best) > 20


def test_tilts_have_the_numbers_that_are_promised() -> None:
    rng = np.random.default_rng(1)
    null = rng.dirichlet(np.ones(4), 2)
    values = rng.normal(size=(3, 2, 4))
    laws = tilted_laws(null, Features(values, np.array([0, 1]), np.array([2, 3])))
    assert laws.shape == (tilts_per(3), 2, 4)
    np.testing.assert_allclose(laws.sum(-1), 1)
    rates = tilted_rates(null[:, 0], rng.normal(size=(3, 2)), np.ones(2), np.ones((1, 2)))
    assert rates.shape == (2 * len(STRENGTHS) * 3 + len(SEVERITIES), 2)
    assert ((rates >= 0) & (rates < 1)).all()
