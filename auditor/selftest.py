"""The auditor audited: how many rounds it takes to find each catalogued fault, against the fewest that could do; false alarms.

Each fault is drawn from its own exact law, at the severities that directed bets use, on the case of a small pool that shows
it best (as an audit chooses its cases). Detection is the crossing of the claim's own threshold by its own wealth, with every
weight that an audit of `verify` has. Correct samplers go through the same judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook
from auditor.bets.boxes import Precision
from auditor.bets.fields import SEVERITIES
from auditor.bets.tally import Endings, Tally, read_rounds
from auditor.bets.wealth import Wealth
from auditor.cases import Case, family_case
from auditor.claims import CLAIMS, Offer, choose
from auditor.draws import drafts_from, rounds
from auditor.rules import FAULTS, REJECTION, RULES, Rule
from auditor.wald import fault_nats

IntArray = npt.NDArray[np.int64]
Verify = Callable[[Case, IntArray, int], IntArray]
"""(case, drafts [n, gamma], seed) -> tokens [n, gamma+1]."""

PRECISION = Precision(1e-6, 2.0**-40)
WARM_UP = 2048
FINE = 0.02
"""Wealth is looked at in steps of this share of the Wald limit (a round at least)."""
COARSE = (0.4, 0.7, 0.9, 1.1, 1.3, 1.5, 1.75, 2.0, 2.4, 2.9, 3.5, 4.3, 5.5, 7.0, 9.0, 12.0, 16.0, 22.0, 30.0)
"""Multiples of the Wald limit at which it is looked at first; where it has crossed, the fine steps before are searched."""
_BLOCK = 262_144


@cache
def round_claims() -> tuple[str, ...]:
    """The claims that share the error rate when an adapter has `verify` alone."""
    checked, _ = choose(Offer(frozenset({"verify"})))
    return tuple(c for c in checked if not CLAIMS[c].exact)


def faulty(fault: str, severity: float, base: Rule = REJECTION) -> Verify:
    """A sampler with a catalogued fault."""

    def verify(case: Case, drafts: IntArray, seed: int) -> IntArray:
        rng = np.random.Generator(np.random.SFC64(seed))
        return rounds(FAULTS[fault], case.p[None], case.q[None], drafts, rng, severity=severity, base=base)

    return verify


def correct(rule: str) -> Verify:
    """A correct sampler of a rule."""

    def verify(case: Case, drafts: IntArray, seed: int) -> IntArray:
        rng = np.random.Generator(np.random.SFC64(seed))
        return rounds(RULES[rule], case.p[None], case.q[None], drafts, rng, severity=0.0, base=RULES[rule])

    return verify


def adapter_verify(adapter: object) -> Verify:
    """`verify` of an adapter, its input without a copy per row."""

    def verify(case: Case, drafts: IntArray, seed: int) -> IntArray:
        n = len(drafts)
        p, q = np.broadcast_to(case.p, (n, *case.p.shape)), np.broadcast_to(case.q, (n, *case.q.shape))
        return np.asarray(adapter.verify(p, q, drafts, seed))  # type: ignore[attr-defined]

    return verify


@dataclass(frozen=True)
class Detection:
    """Rounds until a claim was violated, in one stretch of rounds on one case; None: not within `cap` rounds."""

    claim: str
    wald: float
    """log(1/alpha) / KL, rounds."""
    rounds: int | None
    cap: int

    @property
    def ratio(self) -> float | None:
        """Rounds over the Wald limit, or over one round where the limit is less: nothing is decided before the first."""
        return None if self.rounds is None or not self.wald else self.rounds / max(self.wald, 1.0)


def _pieces(book: RoundBook, verify: Verify, step: int, seed: int) -> Iterator[Tally]:
    """Tallies of `step` rounds each, without end; several small ones come out of one call."""
    case, call = book.case, 0
    calls = max(1, min(512, 8192 // step))
    while True:
        call += 1
        drafts = drafts_from(case.q, step * calls, np.random.default_rng([seed, call, 1]))
        tokens = verify(case, drafts, int(np.random.default_rng([seed, call, 2]).integers(2**31)))
        for k in range(calls):
            rows = slice(k * step, (k + 1) * step)
            yield read_rounds(book.reading, drafts[rows], tokens[rows])


def _total(pieces: Iterable[Tally]) -> Tally:
    parts = list(pieces)
    while len(parts) > 1:
        parts = [parts[k] if k + 1 == len(parts) else parts[k] + parts[k + 1] for k in range(0, len(parts), 2)]
    return parts[0]


def warm_up(book: RoundBook, verify: Verify, seed: int) -> Endings:
    """How ambiguous endings are to be taken, from rounds that feed no evidence."""
    drafts = drafts_from(book.case.q, WARM_UP, np.random.default_rng([seed, 0, 1]))
    return book.endings(read_rounds(book.reading, drafts, verify(book.case, drafts, seed)))


def violated(book: RoundBook, tally: Tally, endings: Endings, alpha: float) -> list[str]:
    """The claims whose wealth is at or above its threshold."""
    if tally.broken:
        return ["structure"]
    wealth = Wealth(round_claims(), ("verify",), alpha)
    now = wealth.preview(book.evidence(tally, endings).scores, "verify", False)
    return [claim for claim, nats in now.items() if nats >= wealth.threshold]


def detect(book: RoundBook, verify: Verify, claim: str, wald: float, cap: int, alpha: float, seed: int) -> Detection:
    """Rounds until `claim` is violated, to `FINE` of the Wald limit.

    Wealth is looked at after multiples of the limit; in the first stretch at whose end it has crossed, the crossing is found by
    bisection over the fine steps of this stretch.
    """
    endings = warm_up(book, verify, seed)
    step = max(1, min(int(FINE * wald), _BLOCK))
    source = _pieces(book, verify, step, seed)
    total: Tally | None = None
    for multiple in COARSE:
        goal = min(int(np.ceil(multiple * wald)), cap)
        have = total.rounds if total else 0
        fine = [next(source) for _ in range(-(-max(goal - have, 1) // step))]

        def upto(k: int, before: Tally | None = total, parts: list[Tally] = fine) -> Tally:
            return _total(([before] if before else []) + parts[:k])

        whole = upto(len(fine))
        if claim in violated(book, whole, endings, alpha):
            at = _bisect(lambda k: claim in violated(book, upto(k), endings, alpha), len(fine))
            return Detection(claim, wald, have + at * step, cap)
        total = whole
        if total.rounds >= cap:
            break
    return Detection(claim, wald, None, cap)


def _bisect(crossed: Callable[[int], bool], high: int) -> int:
    """A k in 1..high that has crossed while k - 1 has not; `high` has, 0 has not."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if crossed(middle) else (middle, high)
    return high


# ---------------------------------------------------------------------------------------------------- the matrix


@cache
def pool(vocab: int = 6) -> tuple[RoundBook, ...]:
    """Books of the cases that faults are shown on: different pairs of full support, and two with zeros."""
    cases = [family_case("dirichlet", vocab, 2 + k % 2, k) for k in range(8)]
    cases += [family_case("sparse", vocab, 3, k) for k in range(2)]
    return tuple(RoundBook(case, REJECTION, PRECISION) for case in cases)


@dataclass(frozen=True)
class Cell:
    """One fault at one severity: the claim that speaks most, and the detections of several seeds."""

    fault: str
    severity: float
    claim: str
    detections: tuple[Detection, ...]

    @property
    def found(self) -> int:
        """Detections within the cap."""
        return sum(d.rounds is not None for d in self.detections)

    @property
    def rounds(self) -> float | None:
        """Median rounds to detection; None where most were not found."""
        at = float(np.median([np.inf if d.rounds is None else d.rounds for d in self.detections]))
        return at if np.isfinite(at) else None

    @property
    def wald(self) -> float:
        """The Wald limit in rounds."""
        return self.detections[0].wald

    @property
    def ratio(self) -> float | None:
        """Median rounds over the Wald limit, or over one round where the limit is less."""
        return None if self.rounds is None or not self.wald else self.rounds / max(self.wald, 1.0)


def loudest(books: Iterable[RoundBook], fault: str, severity: float) -> tuple[RoundBook, str, float]:
    """The book and the claim with the largest KL per round, and that KL."""
    best: tuple[float, RoundBook, str] | None = None
    for book in books:
        for claim, nats in fault_nats(book, fault, severity).items():
            if best is None or nats > best[0]:
                best = (nats, book, claim)
    assert best is not None
    return best[1], best[2], best[0]


def measure(fault: str, severity: float, books: Iterable[RoundBook], seeds: int, cap: int, alpha: float) -> Cell:
    """Detections of one fault at one severity, each with its own seed."""
    sampler = faulty(fault, severity)
    if FAULTS[fault].keeps:
        book = next(iter(books))
        # One round that cannot be is enough: there is no likelihood ratio to speak of, and no limit.
        found = tuple(_until_broken(book, sampler, cap, seed) for seed in range(seeds))
        return Cell(fault, severity, "structure", found)
    book, claim, nats = loudest(books, fault, severity)
    wald = float(np.log(1 / alpha) / max(nats, 1e-300))
    if wald > cap:
        return Cell(fault, severity, claim, (Detection(claim, wald, None, cap),) * seeds)
    found = tuple(detect(book, sampler, claim, wald, cap, alpha, seed) for seed in range(seeds))
    return Cell(fault, severity, claim, found)


def _until_broken(book: RoundBook, verify: Verify, cap: int, seed: int) -> Detection:
    for n, piece in enumerate(_pieces(book, verify, 1, seed), 1):
        if piece.broken or n >= cap:
            return Detection("structure", 0.0, n if piece.broken else None, cap)
    raise AssertionError("pieces never end")


def false_alarms(
    verify: Verify, books: Iterable[RoundBook], looks: tuple[int, ...], alpha: float, seeds: Iterable[int]
) -> tuple[int, int]:
    """(alarms, audits) of a correct sampler: each audit visits every book and looks at `looks` rounds of each visit."""
    from auditor.bets.wealth import entries

    books = list(books)
    alarms = audits = 0
    for seed in seeds:
        audits += 1
        wealth = Wealth(round_claims(), ("verify",), alpha)
        endings = warm_up(books[0], verify, seed)
        alarm = False
        for k, book in enumerate(books):
            tally: Tally | None = None
            for j, goal in enumerate(looks):
                n = goal - (tally.rounds if tally else 0)
                drafts = drafts_from(book.case.q, n, np.random.default_rng([seed, k, j, 1]))
                part = read_rounds(book.reading, drafts, verify(book.case, drafts, (seed * 64 + k) * 64 + j))
                tally = part if tally is None else tally + part
                evidence = book.evidence(tally, endings)
                alarm |= bool(tally.broken)
                alarm |= max(wealth.preview(evidence.scores, "verify", True).values()) >= wealth.threshold
            wealth.add({"kind": "visit", "method": "verify", **entries(evidence, True)})
        alarms += alarm
    return alarms, audits


@dataclass(frozen=True)
class Alarms:
    """False alarms of one correct sampler."""

    sampler: str
    alarms: int
    audits: int
    alpha: float


@dataclass(frozen=True)
class Outcome:
    """What a self-test measured."""

    cells: tuple[Cell, ...]
    alarms: tuple[Alarms, ...]
    alpha: float
    cap: int

    @property
    def missed(self) -> list[Cell]:
        """Cells whose Wald limit leaves room for twice as much below the cap, and that were not found by every seed."""
        return [c for c in self.cells if c.found < len(c.detections) and 3 * c.wald <= self.cap]

    @property
    def ok(self) -> bool:
        """Nothing missed, and no more false alarms than alpha allows in all but one run of a million."""
        return not self.missed and all(_allowed(a) for a in self.alarms)


def _allowed(a: Alarms) -> bool:
    from scipy.special import bdtrc

    return a.alarms == 0 or float(bdtrc(a.alarms - 1, a.audits, a.alpha)) > 1e-6


def run_selftest(
    *,
    faults: Iterable[str] = tuple(FAULTS),
    severities: Iterable[float] = SEVERITIES,
    seeds: int = 3,
    cap: int = 2_000_000,
    alpha: float = 1e-6,
    audits: int = 100,
    progress: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Measure every fault at every severity, and `audits` audits of each correct sampler at alpha = 0.01.

    cap: rounds after which a fault counts as not found. progress: called with a line for each cell.
    """
    from auditor.catalog import load

    severities = tuple(severities)
    cells, alarms = [], []
    for fault in faults:
        for severity in severities:
            cell = measure(fault, severity, pool(), seeds, cap, alpha)
            cells.append(cell)
            progress(line_of(cell))
    samplers: dict[str, tuple[Verify, Rule]] = {rule: (correct(rule), RULES[rule]) for rule in RULES}
    for dtype in ("float64", "float32"):
        loaded = load("reference", options={"dtype": dtype})
        samplers[f"reference {dtype}"] = (adapter_verify(loaded.build(None)), REJECTION)
    for name, (verify, rule) in samplers.items():
        books = [RoundBook(book.case, rule, PRECISION) for book in pool()[-3:]]
        count, done = false_alarms(verify, books, (64, 256, 1024), 0.01, range(audits))
        alarms.append(Alarms(name, count, done, 0.01))
        progress(f"{name}: {count} false alarms in {done} audits at alpha = 0.01")
    return Outcome(tuple(cells), tuple(alarms), alpha, cap)


def line_of(cell: Cell) -> str:
    """One cell as a line of text."""
    if cell.rounds is None:
        least = f"; even the limit is {cell.wald:,.0f}" if cell.wald > cell.detections[0].cap else ""
        what = f"not found within {cell.detections[0].cap:,} rounds{least}"
    else:
        what = f"{cell.rounds:,.0f} rounds"
        what += f", {cell.ratio:.2f} of the Wald limit" if cell.ratio else ""
    return f"{cell.fault} at {cell.severity:g}: {what} ({cell.claim})"


def matrix(outcome: Outcome) -> str:
    """The outcome as a table of text: a row per fault, a column per severity: median rounds and ratio to the Wald limit."""
    severities = sorted({c.severity for c in outcome.cells}, reverse=True)
    by = {(c.fault, c.severity): c for c in outcome.cells}
    names = list(dict.fromkeys(c.fault for c in outcome.cells))
    lines = [f"{'fault':26}" + "".join(f"{f'severity {s:g}':>22}" for s in severities)]
    for name in names:
        row = f"{name:26}"
        for s in severities:
            cell = by[name, s]
            if cell.rounds is None:
                text = "-"
            else:
                text = f"{cell.rounds:,.0f}" + (f"  x{cell.ratio:.2f}" if cell.ratio else "  (one)")
            row += f"{text:>22}"
        lines.append(row)
    lines += ["", f"Median rounds to detection at alpha = {outcome.alpha:g} and their ratio to log(1/alpha)/KL."]
    lines.append(f"-: not found within {outcome.cap:,} rounds; (one): the first round that cannot be decides.")
    lines += [""] + [
        f"{a.sampler}: {a.alarms} false alarms in {a.audits} audits at alpha = {a.alpha:g}" for a in outcome.alarms
    ]
    return "\n".join(lines)
