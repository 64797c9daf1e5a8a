"""One mode under audit: visits to cases, each a stretch of rounds whose evidence is folded into the wealth.

Order within a visit: the bets are fixed by the case; then rounds are drawn; then the pay-offs are looked at, at the end of each
batch. Nothing that was drawn decides which bets are made on the same visit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from auditor.bets.books import Evidence, RoundBook
from auditor.bets.fields import MANY
from auditor.bets.first_tokens import FirstBook
from auditor.bets.tally import Endings, FirstTokens, Tally, read_first, read_rounds
from auditor.bets.wealth import Wealth, entries
from auditor.calls import Seeds, Subject
from auditor.cases import Case
from auditor.draws import drafts_from
from auditor.efficiency import expected_tokens_exact
from auditor.errors import BadAnswer, CallFailed, WorkerFailed
from auditor.evidence import binomial_interval, mean_interval
from auditor.results import CaseResult, Incident, Journal
from auditor.rules import Rule, laws

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FIRST_BATCH = 4096
GROWTH = 16
CALL_SECONDS = 0.25
"""A batch is sized so that a call takes about this long: progress stays alive and Ctrl-C is prompt."""
BOOKS = 160
"""Books kept for cases that are visited again; each holds a few MB of tables at most."""
FAILURES = 5
"""After so many answers that are none, or calls that raise, a method is not called again."""
IN_A_ROW, IN_ALL = 3, 5
"""After so many deaths of its process an adapter is not called again."""


@dataclass(frozen=True)
class Violation:
    """A claim whose wealth reached its threshold, and when."""

    claim: str
    method: str
    evidence: float
    rounds: int
    seconds: float
    index: int


@dataclass(frozen=True)
class Malformed:
    """An answer that is not one, or a round that cannot be: the case and what was wrong."""

    kind: str
    text: str
    method: str
    case: Case
    seed: int


@dataclass
class Budget:
    """Rounds and time, of the whole audit."""

    max_rounds: int
    max_seconds: float
    start: float = field(default_factory=time.monotonic)
    rounds: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def left(self) -> int:
        """Rounds left; 0 when the time is up."""
        return 0 if self.seconds >= self.max_seconds else max(0, self.max_rounds - self.rounds)


@dataclass
class ModeAudit:
    """The state of one mode's audit."""

    subject: Subject
    rule: Rule
    wealth: Wealth
    seeds: Seeds
    budget: Budget
    journal: Journal
    mode: str = ""
    checked: frozenset[str] | None = None
    """The claims that are judged; None before they are chosen, when everything is noted."""
    on_violation: Callable[[Violation], None] = lambda violation: None
    on_incident: Callable[[Incident], None] = lambda incident: None
    endings: Endings = field(default_factory=Endings)
    results: list[CaseResult] = field(default_factory=list)
    cases: dict[int, Case] = field(default_factory=dict)
    """The case of each visit."""
    violations: dict[str, Violation] = field(default_factory=dict)
    malformed: list[Malformed] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)
    """Rounds a second, by method, at small vocabularies."""
    failures: dict[str, int] = field(default_factory=dict)
    books: dict[str, RoundBook] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    """For each death of the adapter's process, the number of visits before it."""
    worth: dict[tuple[str, float], FloatArray] = field(default_factory=dict)
    """Expected evidence of the small cases, by list and severity (`auditor.findings.shrink`)."""

    def book(self, case: Case) -> RoundBook:
        """The bets on rounds of a case."""
        if case.digest not in self.books:
            # Of large vocabularies the latest alone is kept: both methods visit it one after the other.
            large = [d for d, b in self.books.items() if b.case.vocab > MANY]
            for digest in large or (list(self.books)[:1] if len(self.books) >= BOOKS else []):
                del self.books[digest]
            self.books[case.digest] = RoundBook(case, self.rule, self.subject.precision)
        return self.books[case.digest]

    def usable(self, method: str) -> bool:
        """Whether a method is there and has not failed too often."""
        return method in self.subject.methods and self.failures.get(method, 0) < FAILURES

    # ----------------------------------------------------------------------------------------------------- drawing

    def draw_rounds(self, case: Case, n: int) -> tuple[IntArray, IntArray]:
        """Drafts [n, gamma] from q and the rounds [n, gamma+1] that `verify` makes of them."""
        drafts = drafts_from(case.q, n, self.seeds.generator())
        return drafts, self.subject.verify_case(case.p, case.q, drafts, self.seeds)

    def visit(self, case: Case, method: str, rounds: int, edge: bool = False) -> None:
        """Up to `rounds` rounds of a case by one method; failures become incidents and findings, not exceptions."""
        if not self.usable(method) or not self.budget.left:
            return
        try:
            if method == "verify":
                self._visit_rounds(case, rounds, edge)
            else:
                self._visit_first(first_position(case), rounds, edge)
        except CallFailed as failure:
            self.failed(failure, case)
        except BadAnswer as bad:
            self.bad_answer(bad, method, case)

    def _sizes(self, rounds: int, method: str, vocab: int) -> int:
        speed = self.speed.get(method, 1e4)
        most = max(16, int(speed * CALL_SECONDS * min(1.0, 2048 / vocab)))
        return min(rounds, most, self.budget.left)

    def _visit_rounds(self, case: Case, rounds: int, edge: bool) -> None:
        book = self.book(case)
        start, end = time.monotonic(), self._visit_end(rounds, "verify")
        tally: Tally | None = None
        evidence: Evidence | None = None
        batch, first_seed = FIRST_BATCH, self.seeds.count + 1
        looked = 0
        while self.budget.left and (tally is None or tally.rounds < rounds) and time.monotonic() < end:
            done = tally.rounds if tally else 0
            n = self._sizes(rounds - done if rounds - done <= 2 * batch else batch, "verify", case.vocab)
            drafts, tokens = self.draw_rounds(case, n)
            part = read_rounds(book.reading, drafts, tokens)
            tally = part if tally is None else tally + part
            self.budget.rounds += n
            if part.broken:
                self._broken(case, drafts, tokens)
            batch = n * GROWTH
            # Looking costs as much as some ten thousand rounds: look when the rounds have grown, and at the end.
            if case.vocab <= MANY and tally.rounds >= GROWTH * looked:
                looked = tally.rounds
                evidence = book.evidence(tally, self.endings)
                self._look(evidence, "verify", edge)
        if tally is None:
            return
        if evidence is None or looked != tally.rounds:
            evidence = book.evidence(tally, self.endings)
        self._finish(case, "verify", tally, evidence, edge, first_seed, time.monotonic() - start)

    def _visit_first(self, case: Case, rounds: int, edge: bool) -> None:
        book = FirstBook(self.book(case))
        start, end = time.monotonic(), self._visit_end(rounds, "sample")
        tally: FirstTokens | None = None
        batch, first_seed = FIRST_BATCH, self.seeds.count + 1
        while self.budget.left and (tally is None or tally.rounds < rounds) and time.monotonic() < end:
            done = tally.rounds if tally else 0
            n = self._sizes(rounds - done if rounds - done <= 2 * batch else batch, "sample", case.vocab)
            tokens, accepted = self.subject.sample(case.p[0], case.q[0], n, self.seeds.next())
            part = read_first(case, tokens, accepted)
            tally = part if tally is None else tally + part
            self.budget.rounds += n
            batch = n * GROWTH
        if tally is not None:
            evidence = book.evidence(tally)
            self._finish(case, "sample", tally, evidence, edge, first_seed, time.monotonic() - start)

    def _visit_end(self, rounds: int, method: str) -> float:
        # A case may be far slower than the average one (a large vocabulary): twice its share of time, not more.
        return time.monotonic() + 0.1 + 2 * rounds / self.speed.get(method, 1e4)

    # --------------------------------------------------------------------------------------------------- judgement

    def _look(self, evidence: Evidence, method: str, edge: bool) -> None:
        for claim, wealth in self.wealth.preview(evidence.scores, method, edge).items():
            if wealth >= self.wealth.threshold:
                self.violated(claim, method, wealth)

    def violated(self, claim: str, method: str, evidence: float) -> None:
        """Record that a claim's wealth reached its threshold; the first time counts."""
        if claim in self.violations or (self.checked is not None and claim not in self.checked):
            return
        violation = Violation(
            claim, method, evidence, self.budget.rounds, self.budget.seconds, len(self.results)
        )  # fmt: skip
        self.violations[claim] = violation
        self.journal.write(
            {"kind": "violation", "mode": self.mode, "claim": claim, "method": method, "log_wealth": min(evidence, 1e9),
             "rounds": violation.rounds, "visit": violation.index}
        )  # fmt: skip
        self.on_violation(violation)

    def _finish(
        self,
        case: Case,
        method: str,
        tally: Tally | FirstTokens,
        evidence: Evidence,
        edge: bool,
        first_seed: int,
        seconds: float,
    ) -> None:
        self._look(evidence, method, edge)
        index = len(self.results)
        result = _case_result(index, case, method, tally, evidence, self.rule)
        entry = {
            "kind": "visit", "mode": self.mode, "index": index, "case": case.digest, "label": case.label, "method": method,
            "rounds": tally.rounds, "seeds": [first_seed, self.seeds.count], "seconds": round(seconds, 4),
            **entries(evidence, edge),
        }  # fmt: skip
        self.journal.write(entry)
        self.wealth.add(entry)
        self.results.append(result)
        self.cases[index] = case

    def _broken(self, case: Case, drafts: IntArray, tokens: IntArray) -> None:
        wrong = np.flatnonzero(broken_rounds(drafts, tokens))
        row = int(wrong[0])
        text = (
            f"{len(wrong)} of {len(drafts)} rounds emit accepted drafts that are no prefix: "
            f"drafts {drafts[row].tolist()} became {tokens[row].tolist()}"
        )
        self.malformed.append(Malformed("prefix", text, "verify", case, self.seeds.count))
        self.violated("structure", "verify", 0.0)

    def bad_answer(self, bad: BadAnswer, method: str, case: Case) -> None:
        """An answer that is not one: a finding under `structure`; after a few the method is given up."""
        self.failures[method] = self.failures.get(method, 0) + 1
        self.malformed.append(Malformed(bad.kind, str(bad), method, case, self.seeds.count))
        self.journal.write(
            {"kind": "malformed", "mode": self.mode, "case": case.digest, "what": bad.kind, "text": str(bad)}
        )
        self.violated("structure", method, 0.0)

    def failed(self, failure: CallFailed, case: Case) -> None:
        """The adapter raised or its process died: try the case again, then an ordinary one, and record what it was."""
        if failure.audit_over:
            return
        again = self._fails(failure.method, case)
        control = self._fails(failure.method, CONTROL)
        repeated = again is not None
        incident = Incident(
            failure.kind, str(failure), self.mode, failure.method, case.data(), self.seeds.count, failure.traceback, repeated
        )  # fmt: skip
        self.incidents.append(incident)
        self.failures[failure.method] = self.failures.get(failure.method, 0) + (FAILURES if control is not None else 1)
        if isinstance(failure, WorkerFailed) and not failure.alive:
            self._died()
        self.journal.write(
            {"kind": "incident", "mode": self.mode, "case": case.digest, "text": failure.summary, "repeated": repeated}
        )
        self.on_incident(incident)
        if repeated and control is None:
            text = f"{failure}, on this case twice and not on an ordinary one"
            self.malformed.append(Malformed("exception", text, failure.method, case, self.seeds.count))
            self.violated("edge-cases", failure.method, 0.0)

    def _died(self) -> None:
        """Count deaths of the adapter's process; after `IN_A_ROW` without a visit between them, or `IN_ALL`, call it no more."""
        self.deaths.append(len(self.results))
        if len(self.deaths) >= IN_ALL or self.deaths[-IN_A_ROW:].count(self.deaths[-1]) == IN_A_ROW:
            self.failures = dict.fromkeys(self.subject.methods, FAILURES)

    def _fails(self, method: str, case: Case) -> CallFailed | BadAnswer | None:
        try:
            if method == "verify":
                self.draw_rounds(case, 64)
            elif method == "law":
                drafts = drafts_from(case.q, 4, self.seeds.generator())
                self.subject.law(np.repeat(case.p[None], 4, 0), np.repeat(case.q[None], 4, 0), drafts)
            else:
                first = first_position(case)
                self.subject.sample(first.p[0], first.q[0], 64, self.seeds.next())
        except (CallFailed, BadAnswer) as error:
            return error
        return None


CONTROL = Case(
    np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.35, 0.25, 0.15]]),
    np.array([[0.3, 0.3, 0.2, 0.2], [0.2, 0.3, 0.2, 0.3]]),
    "an ordinary pair, V=4 gamma=2",
    "control",
)
"""An ordinary case, for the warm-up and as the control after a failure."""


def first_position(case: Case) -> Case:
    """The case's first position alone, as `sample` sees it."""
    if case.gamma == 1:
        return case
    return Case(case.p[:2], case.q[:1], case.label, case.family, case.source)


def broken_rounds(drafts: IntArray, tokens: IntArray) -> npt.NDArray[np.bool_]:
    """Rounds [B] in which a token that is not its draft is followed by another token."""
    follows = tokens[:, 1:] >= 0
    return np.asarray(((tokens[:, :-1] != drafts) & follows).any(-1))


def _case_result(
    index: int, case: Case, method: str, tally: Tally | FirstTokens, evidence: Evidence, rule: Rule
) -> CaseResult:
    """The figures of a visit: rates, lengths, and what its own draws say against each claim."""
    accept = laws(rule, case.p, case.q, rule).accept
    rates = (case.q * accept).sum(-1)
    result = CaseResult(
        index,
        case.data(),
        method,
        tally.rounds,
        tv=float(np.mean(case.tv)),
        kl=float(np.minimum(np.mean(case.kl), 50.0)),
        evidence={claim: round(float(np.clip(s.local, -1e6, 1e6)), 3) for claim, s in evidence.scores.items()},
    )
    if isinstance(tally, FirstTokens):
        if tally.accepted is None:
            return result
        rate = binomial_interval(int(tally.accepted.sum()), tally.rounds)
        return replace(
            result,
            acceptance=rate.value,
            acceptance_interval=(rate.low, rate.high),
            acceptance_expected=float(rates[0]),
            tv=float(case.tv[0]),
            kl=float(min(case.kl[0], 50.0)),
        )
    counts = tally.accept.sum(1)
    rate = binomial_interval(int(counts[:, 1].sum()), int(counts.sum()))
    reached = counts.sum(-1)
    expected = float(reached @ rates / reached.sum()) if reached.sum() else None
    length = mean_interval(tally.length, np.arange(case.gamma + 2, dtype=float))
    return replace(
        result,
        acceptance=rate.value if reached.sum() else None,
        acceptance_interval=(rate.low, rate.high) if reached.sum() else None,
        acceptance_expected=expected,
        tokens_per_pass=length.value,
        tokens_per_pass_interval=(length.low, length.high),
        tokens_per_pass_expected=expected_tokens_exact(np.clip(rates, 0.0, 1.0)),
    )
