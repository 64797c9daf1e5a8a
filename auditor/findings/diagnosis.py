"""Naming the fault: joint evidence over the whole run proposes, fresh rounds of one case decide.

The joint likelihood of all events ranks the catalogue. The best faults are then fitted to fresh rounds, each with its own
severity, and the winner's law is tested on rounds that were not fitted. A name is given only if that law fits them; otherwise the fault
is "unlisted". Nothing here decides whether there is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.bets.books import JOINT, RoundBook
from auditor.cases import Case
from auditor.errors import BadAnswer, CallFailed
from auditor.findings import fit
from auditor.results import Diagnosis, Explanation
from auditor.rules import FAULTS, Rule
from auditor.visits import ModeAudit, first_position

FloatArray = npt.NDArray[np.float64]

FITS = 1e-3
"""A named law is dropped when its p-value on fresh rounds is below this: a true name is lost in one of a thousand."""
UNLISTED = "unlisted"
RUNNERS_UP = 3


def leading(joint: FloatArray) -> tuple[str, float]:
    """The fault and severity with the largest joint evidence [fault, severity]."""
    from auditor.bets.fields import SEVERITIES

    k, j = np.unravel_index(int(np.argmax(joint)), joint.shape)
    return JOINT[int(k)], SEVERITIES[int(j)]


def equal_faults(name: str, books: list[RoundBook], alone: bool) -> list[str]:
    """Listed faults with the same laws as `name` on every one of the cases; `alone` looks at first positions only."""
    out = []
    for other in FAULTS:
        if other != name and all(_same(book, name, other, alone) for book in books):
            out.append(other)
    return out


def _same(book: RoundBook, a: str, b: str, alone: bool) -> bool:
    x, y = book.wrong[a], book.wrong[b]
    if x.drop != y.drop or FAULTS[a].shares_uniform != FAULTS[b].shares_uniform or FAULTS[a].keeps != FAULTS[b].keeps:
        return False
    last = 1 if alone else book.case.gamma
    if not np.allclose(x.accept[:last], y.accept[:last], atol=1e-9):
        return False
    if not alone and not np.allclose(x.bonus, y.bonus, atol=1e-9):
        return False
    for i in range(last):
        refused = book.case.q[i] * (1 - x.accept[i])
        if not np.allclose(x.mean(i, refused), y.mean(i, refused), atol=1e-9):
            return False
        if x.residual is None or y.residual is None:
            drafts = np.flatnonzero(refused > 0)[:16]
            if len(drafts) and not np.allclose(x.given(i, drafts), y.given(i, drafts), atol=1e-9):
                return False
    return True


@dataclass(frozen=True)
class Fresh:
    """Fresh rounds of a case in two halves, one to fit and one to test: each (drafts, tokens), or (tokens, accepted)."""

    book: RoundBook
    method: str
    halves: tuple[tuple[Any, Any], tuple[Any, Any]]

    @cached_property
    def _plain(self) -> list[list[fit.Group]]:
        return [self._grouped(half, by_lowest=False) for half in self.halves]

    @cached_property
    def _shared(self) -> list[list[fit.Group]]:
        return [self._grouped(half, by_lowest=True) for half in self.halves]

    def _grouped(self, half: tuple[Any, Any], by_lowest: bool) -> list[fit.Group]:
        if self.method == "verify":
            return fit.group_rounds(self.book, *half, by_lowest=by_lowest)
        return fit.first_groups(*half, self.book.case.vocab)

    def groups(self, fault: Rule | None, half: int) -> list[fit.Group]:
        """The groups as this fault needs them."""
        return (self._shared if fault is not None and fault.shares_uniform else self._plain)[half]

    def laws(self, fault: Rule | None, severities: FloatArray, group: fit.Group) -> FloatArray:
        """The laws of a group's outcomes at severities."""
        of = fit.expected if self.method == "verify" else fit.expected_first
        return of(self.book, fault, severities, group)

    def p_value(self, fault: Rule | None, severity: float) -> float:
        """Pearson's test of a law on the second half: draft by draft, position by position, and on the bonus token (Bonferroni)."""
        groups = self.groups(fault, 1)
        laws = [self.laws(fault, np.array([severity]), g)[0] for g in groups]
        by_position = fit.merged(laws, groups)
        views = [(laws, groups), by_position, (by_position[0][-1:], by_position[1][-1:])]
        return min(1.0, len(views) * min(fit.pearson(*view) for view in views))

    def fitted(self, fault: Rule) -> fit.Fit:
        """The fault at its most likely severity on the first half."""
        groups = self.groups(fault, 0)
        table = [self.laws(fault, fit.SEVERITY_GRID, g) for g in groups]
        return fit.best_severity(table, groups, self.book.precision.resolution)


def draw_fresh(audit: ModeAudit, case: Case, method: str, rounds: int) -> Fresh:
    """Fresh rounds of a case, which feed no wealth. Raises what the adapter's calls raise."""
    book = audit.book(case if method == "verify" else first_position(case))
    halves: list[tuple[Any, Any]] = []
    for _ in range(2):
        if method == "verify":
            halves.append(audit.draw_rounds(case, rounds // 2))
        else:
            halves.append(audit.subject.sample(book.case.p[0], book.case.q[0], rounds // 2, audit.seeds.next()))
    return Fresh(book, method, (halves[0], halves[1]))


def diagnose(audit: ModeAudit, cases: list[Case], method: str, rounds: int) -> Diagnosis:
    """Name the fault that the run's evidence and fresh rounds of the cases point to, or call it unlisted.

    Severities are fitted on the first case; the named law has to fit every case.
    """
    joint = audit.wealth.joint.get(method)
    if joint is None:
        return _unlisted("no rounds were read", None, [])
    peak = joint.max(1)
    order = np.argsort(-peak)
    if any(m.kind == "prefix" for m in audit.malformed):
        name = JOINT[int(order[0])]
        if FAULTS[name].keeps:
            return _named(FAULTS[name], leading(joint)[1], peak, order)
        return _unlisted("rounds go on behind a rejection", None, [])
    try:
        fresh, *more = [draw_fresh(audit, case, method, rounds // len(cases)) for case in cases]
    except (CallFailed, BadAnswer):
        return _unlisted("the adapter failed while fresh rounds were drawn", None, [])
    # The run's evidence is pooled over severities 1, 0.1, 0.01; on the fresh rounds each of the leaders has its own.
    pool = [JOINT[int(k)] for k in order[:8] if not FAULTS[JOINT[int(k)]].keeps]
    fits = {name: fresh.fitted(FAULTS[name]) for name in pool}
    total = {name: fits[name].log_likelihood for name in pool}
    ranked = sorted(pool, key=lambda name: -(total[name] + _prior(peak, name)))
    for name in ranked[:RUNNERS_UP]:
        p = min(f.p_value(FAULTS[name], fits[name].severity) for f in (fresh, *more)) * (1 + len(more))
        if p >= FITS and fits[name].severity > SEVERITY_FLOOR and not _unexplained(audit, FAULTS[name]):
            books = [audit.book(c) for c in list(audit.cases.values())[:24]]
            equal = equal_faults(name, books, method == "sample")
            others = [
                Explanation(other, FAULTS[other].words, fits[other].severity, round(total[name] - total[other], 1))
                for other in ranked
                if other != name and other not in equal
            ][:RUNNERS_UP]
            return Diagnosis(
                name,
                FAULTS[name].words,
                round(fits[name].severity, 3),
                others[0].behind if others else 0.0,
                min(p, 1.0),
                others,
                equal,
            )
    near = [
        Explanation(n, FAULTS[n].words, fits[n].severity, round(total[ranked[0]] - total[n], 1)) for n in ranked[:3]
    ]
    best = ranked[0] if ranked else ""
    p_best = fresh.p_value(FAULTS[best], fits[best].severity) if best else None
    return _unlisted("no listed fault fits fresh rounds", p_best, near)


def _unexplained(audit: ModeAudit, fault: Rule) -> list[str]:
    """Violated claims about events that the fault leaves as they are, by a wide margin."""
    parts = {"acceptance-law": "accept", "residual-law": "residual", "bonus-token": "bonus"}
    return [
        claim
        for claim, part in parts.items()
        if claim in audit.violations
        and part not in fault.touches
        and audit.wealth.log_wealth(claim) > WIDE * audit.wealth.threshold
    ]


WIDE = 3.0
SEVERITY_FLOOR = 0.0025
"""Fitted severities at the lower end of the grid are no explanation: the fault is absent."""


def _prior(peak: FloatArray, name: str) -> float:
    """The run's evidence for a fault, for the order of the candidates: it sees all cases, the fresh rounds one."""
    return float(np.clip(peak[JOINT.index(name)] - peak.max(), -1e6, 0.0))


def _named(fault: Rule, severity: float, peak: FloatArray, order: npt.NDArray[np.int64]) -> Diagnosis:
    others = [
        Explanation(JOINT[int(k)], FAULTS[JOINT[int(k)]].words, severity, round(float(peak[order[0]] - peak[k]), 1))
        for k in order[1 : 1 + RUNNERS_UP]
    ]
    return Diagnosis(fault.name, fault.words, severity, others[0].behind, None, others)


def without_draws(audit: ModeAudit, method: str) -> Diagnosis:
    """The explanation that leads in the run's own evidence, where no fresh rounds can be drawn (after an interruption)."""
    joint = audit.wealth.joint.get(method)
    if joint is None or joint.max() <= 0:
        return _unlisted("no rounds could be drawn to test an explanation", None, [])
    peak = joint.max(1)
    return _named(FAULTS[leading(joint)[0]], leading(joint)[1], peak, np.argsort(-peak))


def _unlisted(why: str, p: float | None, near: list[Explanation]) -> Diagnosis:
    return Diagnosis(UNLISTED, f"does something that is not in the catalogue ({why})", None, 0.0, p, near)
