"""What a pass excludes: for each fault the smallest severity that this run would have caught with probability 0.99.

A claim is violated when the product of a directed bet's pay-offs reaches 1/(alpha w b), with w the claim's weight and b the
bet's. Under a fault at severity s' the run misses it only if that bet, the one of severity s, stays below, and for every theta > 0

    P(miss) <= P(prod of pay-offs ** -theta >= (alpha w b) ** theta) <= exp(sum_k n_k G_k(theta) - theta log(alpha w b)),

where G_k(theta) = log E[pay-off of one round of visit k ** -theta] under the fault (Markov's inequality; rounds are independent). The
expectation over a round is exact: a backward recursion over its positions,

    M_i = sum_x q_i(x) (a'(x) pay(accept) ** -theta M_{i+1} + (1 - a'(x)) pay(reject) ** -theta R_i),    M_gamma = B,

with R_i and B the same moments of the residual's and the bonus token's bets where the claim bets on them, else 1. Visits to
vocabularies above `MANY` are left out, which can only make the statement weaker. The schedule counts as fixed: which cases were
visited, and how long, was decided without looking at what was drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from auditor.bets.books import DIRECTED, JOINT, RoundBook, directed_bets
from auditor.bets.fields import MANY, SEVERITIES
from auditor.bets.predict import PARTS, nats_per_round
from auditor.bets.wealth import METHOD_SHARES
from auditor.evidence import log_bets, log_bets_bernoulli
from auditor.results import Assurance
from auditor.rules import FAULTS, Laws
from auditor.visits import ModeAudit

FloatArray = npt.NDArray[np.float64]

POWER = 0.99
GRID = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.007, 0.005)
THETAS = np.array([0.05, 0.15, 0.35, 0.6, 0.9])
CASES = 6
"""For each fault the visits that are expected to speak most; leaving out the others only weakens the statement."""
WIDEST = 64
"""Visits to wider vocabularies than this are left out too: they hold few of the rounds."""


def assure(audit: ModeAudit) -> list[Assurance]:
    """The assurance of a run of `verify`; empty where the adapter has no such method, or nothing was bet on."""
    visits = [r for r in audit.results if r.method == "verify" and r.case.vocab <= min(WIDEST, MANY)]
    if not visits or not audit.wealth.claims:
        return []
    rounds: dict[str, int] = {}
    cases = {}
    for r in visits:
        digest = r.case.digest
        rounds[digest] = rounds.get(digest, 0) + r.rounds
        cases[digest] = audit.cases[r.index]
    # The cases with most rounds carry the evidence; the rest is left out, which only weakens the statement.
    chosen = sorted(rounds, key=lambda d: -rounds[d])[:24]
    books = [(audit.book(cases[d]), rounds[d]) for d in chosen]
    share = METHOD_SHARES["verify"] / sum(METHOD_SHARES[m] for m in audit.wealth.methods)
    worth = np.stack([n * nats_per_round(book, 0.02) for book, n in books])
    out = []
    for name, fault in FAULTS.items():
        if fault.keeps or fault.shares_uniform or any(b.wrong[name].residual is None for b, _ in books):
            continue
        best: tuple[float | None, str] = (None, "")
        for k, claim in enumerate(PARTS):
            if claim not in audit.wealth.claims or name not in DIRECTED[claim]:
                continue
            weight = 0.5 * share / (len(DIRECTED[claim]) * len(SEVERITIES))
            need = audit.wealth.threshold - float(np.log(weight))
            loud = [books[int(j)] for j in np.argsort(-worth[:, JOINT.index(name), k])[:CASES]]
            found = _smallest(loud, name, claim, need)
            if found is not None and (best[0] is None or found < best[0]):
                best = (found, claim)
        out.append(Assurance(name, best[0], POWER, best[1]))
    return out


def _smallest(books: list[tuple[RoundBook, int]], fault: str, claim: str, need: float) -> float | None:
    """The smallest severity of `GRID` that is missed with probability at most 1 - POWER, found by bisection.

    The next larger severities are looked at on the way; the bet is the one whose severity is nearest.
    """
    low, high = 0, len(GRID)  # GRID[:low] are caught, GRID[high:] are not
    while low < high:
        middle = (low + high) // 2
        bet = min(SEVERITIES, key=lambda s: abs(np.log(s / GRID[middle])))
        if log_miss(books, fault, claim, GRID[middle], bet, need) <= np.log(1 - POWER):
            low = middle + 1
        else:
            high = middle
    return GRID[low - 1] if low else None


def log_miss(
    books: list[tuple[RoundBook, int]], fault: str, claim: str, severity: float, bet: float, need: float
) -> float:
    """log of the bound on the probability that the bet at severity `bet` stays below `need` nats."""
    total = np.zeros(len(THETAS))
    for book, n in books:
        total += n * np.log(np.maximum(moment(book, fault, claim, severity, bet), 1e-300))
    return float((total + THETAS * need).min())


def moment(book: RoundBook, fault: str, claim: str, severity: float, bet: float) -> FloatArray:
    """E[pay-off of one round ** -theta] for each of `THETAS`, the round following the fault at `severity`."""
    right, wrong = book.right, book.wrong[fault]
    case = book.case
    ones = np.ones(len(THETAS))
    after = ones
    if claim == "bonus-token":
        after = _bonus_moment(book, wrong, fault, severity, bet)
    for i in reversed(range(case.gamma)):
        accept = (1 - severity) * right.accept[i] + severity * wrong.accept[i]
        yes = no = np.zeros(case.vocab)
        if claim == "acceptance-law":
            rate = (1 - bet) * right.accept[i] + bet * wrong.accept[i]
            yes, no = log_bets_bernoulli(rate, book.box.accept_low[i], book.box.accept_up[i])
        rejected = ones
        if claim == "residual-law" and right.residual is not None and wrong.residual is not None:
            law = (1 - severity) * right.residual[i] + severity * wrong.residual[i]
            pay = log_bets((1 - bet) * right.residual[i] + bet * wrong.residual[i], *book.box.residual(i))
            # Once a round, at its last position, an echo of the draft is read as the residual draw that it is.
            rejected = _moment(law, pay)
        q = case.q[i]
        up = _power(yes) @ (q * accept)
        down = _power(no) @ (q * (1 - accept))
        after = np.minimum(up * after + down * rejected, 1e200)
    return after


def _bonus_moment(book: RoundBook, wrong: Laws, fault: str, severity: float, bet: float) -> FloatArray:
    right = book.right
    if wrong.drop:
        field = book.bonus_field
        k = directed_bets("bonus-token").index((fault, bet))
        missing = np.exp(-THETAS * field.logs[k, 0, -1])
        last = book.case.q[-1] * right.accept[-1]
        visible = float(last[book.sure].sum() / max(last.sum(), 1e-300))
        group = book.positions[book.case.gamma].groups.group
        there = _moment(group(right.bonus), field.logs[k, 0, :-1])
        return np.asarray((1 - severity) * there + severity * (visible * missing + (1 - visible)))
    law = (1 - severity) * right.bonus + severity * wrong.bonus
    return _moment(law, log_bets((1 - bet) * right.bonus + bet * wrong.bonus, *book.box.bonus()))


def _power(pay: FloatArray) -> FloatArray:
    """pay-off ** -theta, [thetas, outcomes]; an outcome that the bet excludes loses everything and counts as never caught."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.exp(np.minimum(-THETAS[:, None] * np.maximum(pay, -1e4), 200.0)))


def _moment(law: FloatArray, pay: FloatArray) -> FloatArray:
    return np.asarray(_power(np.where(law > 0, pay, 0.0)) @ law, np.float64)
