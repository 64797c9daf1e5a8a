"""One audit, from the first case to the verdict."""

from __future__ import annotations

import datetime
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from auditor import __version__, checks, proof
from auditor.adapter import Mode
from auditor.assurance import assure
from auditor.bets import mixed
from auditor.bets.books import ALIGNMENT, JOINT
from auditor.bets.fields import MANY
from auditor.bets.predict import PARTS, nats_per_round
from auditor.bets.wealth import Wealth, packed, unpack
from auditor.calls import Seeds, Subject
from auditor.cases import Case, explicit_cases
from auditor.claims import CLAIMS, Offer, choose
from auditor.corpus import corpus_cases
from auditor.engines.mode import EngineConfig, EngineInterrupted, engine_claims, run_engine_mode
from auditor.errors import AdapterUnsuitable, AuditError, BadAnswer, CallFailed
from auditor.events import (
    CaseDone,
    ClaimViolated,
    Emit,
    FindingReady,
    Finished,
    IncidentSeen,
    Phase,
    Started,
)
from auditor.findings import finding as findings
from auditor.findings.diagnosis import UNLISTED, diagnose, leading, without_draws
from auditor.results import (
    AdapterInfo,
    ClaimResult,
    Diagnosis,
    Finding,
    Journal,
    Metrics,
    ModeResult,
    Proof,
    Report,
    Run,
    Verdict,
)
from auditor.rules import FAULTS, RULES, DraftResidual
from auditor.search import propose
from auditor.visits import CONTROL, Budget, ModeAudit, Violation, first_position

EXPLICIT_SHARE, GENERATED_SHARE, PROOF_SHARE, MIXED_SHARE = 0.2, 0.3, 0.05, 0.05
GENERATED = 48
FOCUS_SEVERITY = 0.01
CALL_SECONDS, ENGINE_SECONDS, GRACE_SECONDS = 60.0, 150.0, 60.0
SAMPLE_SHARE = 0.2
"""Rounds of `sample` beside those of `verify`, where an adapter has both."""


class Loaded(Protocol):
    """An adapter as `auditor.catalog` loads it."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def options(self) -> dict[str, str]: ...
    @property
    def engine(self) -> dict[str, str]: ...
    @property
    def modes(self) -> tuple[Mode, ...]: ...
    @property
    def build(self) -> Callable[[str | None], object]: ...


@dataclass(frozen=True)
class AuditConfig:
    """How to run an audit. `claims` empty means all; `command` is recorded in the report; `journal` is where lines go."""

    claims: tuple[str, ...] = ()
    alpha: float = 1e-6
    seed: int = 0
    max_rounds: int = 3_000_000
    max_seconds: float | None = None
    """Cap on the time of all modes together; None: `CALL_SECONDS` for all calls, `ENGINE_SECONDS` for each engine mode."""
    command: str = ""
    journal: Path | None = None


def run_audit(loaded: Loaded, config: AuditConfig, emit: Emit) -> Report:
    """Audit every mode of an adapter and report.

    Never raises for what the adapter does: that becomes findings and incidents. Raises AuditError where nothing could be
    carried out (before the first call). Ctrl-C ends the run and gives a partial report with exit code 130; a second one is
    not caught.
    """
    started, begin = datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(), time.monotonic()
    journal = Journal(config.journal)
    seeds = Seeds(config.seed)
    results: list[ModeResult] = []
    stopped, error, rounds, seconds = "budget", "", 0, 0.0
    modes = loaded.modes or (None,)
    try:
        for mode in modes:
            part = _audit_mode(loaded, mode, config, seeds, journal, len(modes), emit, first=mode == modes[0])
            results += part.results
            rounds += part.rounds
            seconds += part.max_seconds
            stopped = part.stopped if part.stopped != "budget" else stopped
            error = error or part.error
            if part.stopped in ("interrupted", "error"):
                break
    finally:
        journal.close()
    verdict, code = _verdict(results, stopped)
    report = Report(
        Run(
            __version__, started, round(time.monotonic() - begin, 2), config.seed, config.alpha, config.max_rounds, seconds,
            rounds, stopped, config.command, platform.python_version(), f"{platform.system()} {platform.machine()}",
            list(config.claims),
        ),
        AdapterInfo(loaded.name, loaded.source, dict(loaded.options), dict(loaded.engine), loaded.summary),
        verdict, code, results, error,
    )  # fmt: skip
    emit(Finished(report))
    return report


@dataclass(frozen=True)
class _Part:
    """What came of one mode: a result for its calls, one for its engine, or both."""

    results: list[ModeResult]
    rounds: int = 0
    max_seconds: float = 0.0
    stopped: str = "budget"
    error: str = ""


def _audit_mode(
    loaded: Loaded,
    mode: Mode | None,
    config: AuditConfig,
    seeds: Seeds,
    journal: Journal,
    modes: int,
    emit: Emit,
    first: bool,
) -> _Part:
    adapter = loaded.build(mode.name if mode else None)
    offered = Subject(adapter)
    methods = offered.methods
    calls, engine = bool({"verify", "sample", "law"} & set(methods)), "generate" in methods
    parts = modes * (calls + engine)
    if not parts:
        raise AdapterUnsuitable(f"{loaded.name} has {', '.join(methods)}, which nothing can be checked with alone")
    total = config.max_seconds
    results: list[ModeResult] = []
    rounds, stopped, error, seconds = 0, "budget", "", 0.0
    if calls:
        share = Budget(config.max_rounds // modes, CALL_SECONDS / modes if total is None else total / parts)
        seconds += share.max_seconds
        audit, skipped = _prepare(loaded, adapter, mode, config, seeds, share, journal, parts, emit, first)
        run = _Running(audit, skipped, config, emit)
        try:
            run.all_phases()
        except KeyboardInterrupt:
            stopped = "interrupted"
        except AuditError:
            raise
        except Exception as broken:  # a bug of ours must not cost the user the report
            stopped, error = "error", _internal(broken, journal)
        if stopped == "budget" and share.seconds >= share.max_seconds and share.rounds < share.max_rounds:
            stopped = "time"
        results.append(run.result(mode, stopped))
        rounds += share.rounds
    if engine and stopped not in ("interrupted", "error"):
        limit = ENGINE_SECONDS if total is None else total / parts
        seconds += limit
        if first and not calls:
            emit(
                _started(
                    loaded,
                    methods,
                    mode.rule if mode else offered.rule,
                    offered.precision.tolerance,
                    config,
                    limit * modes,
                    engine_claims(config.claims),
                    (),
                )
            )
        own = EngineConfig(config.alpha / parts, config.seed, limit, config.max_rounds, config.claims, config.command)
        try:
            result = run_engine_mode(
                adapter, mode.name if mode else "", own, emit, mode.rule if mode else "", mode.summary if mode else ""
            )
            rounds += result.metrics.rounds
            results.append(result)
        except EngineInterrupted as cut:
            stopped = "interrupted"
            rounds += cut.result.metrics.rounds
            results.append(cut.result)
        except AuditError:
            raise
        except Exception as broken:
            stopped, error = "error", _internal(broken, journal)
    return _Part(results, rounds, seconds, stopped, error)


def _internal(broken: Exception, journal: Journal) -> str:
    """One line for a bug of ours, with its traceback in the journal; for an `except` block."""
    journal.write({"kind": "error", "text": traceback.format_exc()})
    return f"internal error: {type(broken).__name__}: {broken}"


def _started(
    loaded: Loaded,
    methods: tuple[str, ...],
    rule: str,
    tolerance: float,
    config: AuditConfig,
    seconds: float,
    checked: list[str],
    skipped: tuple[tuple[str, str], ...],
) -> Started:
    info = AdapterInfo(loaded.name, loaded.source, dict(loaded.options), dict(loaded.engine), loaded.summary)
    return Started(
        info, tuple(m.name for m in loaded.modes), methods, rule, tolerance, config.alpha, config.seed, config.max_rounds,
        seconds, tuple(checked), skipped,
    )  # fmt: skip


def _verdict(results: list[ModeResult], stopped: str) -> tuple[Verdict, int]:
    if any(claim.status == "violated" for mode in results for claim in mode.claims):
        return "violated", 1
    if stopped == "interrupted":
        return "inconclusive", 130
    if stopped == "error" or any(mode.incidents for mode in results):
        return "inconclusive", 2
    if any(claim.status == "undecided" for mode in results for claim in mode.claims):
        return "inconclusive", 2
    return "conforming", 0


def _prepare(
    loaded: Loaded,
    adapter: object,
    mode: Mode | None,
    config: AuditConfig,
    seeds: Seeds,
    budget: Budget,
    journal: Journal,
    parts: int,
    emit: Emit,
    first: bool,
) -> tuple[ModeAudit, dict[str, str]]:
    """Choose the claims of an adapter's calls, and warm it up."""
    subject = Subject(adapter)
    if hasattr(adapter, "deadline"):
        # An adapter in a process of its own gives up when the audit's time is up, its last parts included.
        adapter.deadline = time.monotonic() + budget.max_seconds + GRACE_SECONDS
    if mode is not None:
        subject.rule = mode.rule
    if subject.rule not in RULES:
        raise AdapterUnsuitable(
            f"the adapter declares the rule {subject.rule!r}; this version audits {', '.join(RULES)} (`--rule` overrides it)"
        )
    rule = RULES[subject.rule]
    wealth = Wealth((), (), config.alpha, 1 / parts)
    audit = ModeAudit(subject, rule, wealth, seeds, budget, journal, mode.name if mode else "")
    shows = checks.warm_up(audit)
    offer = Offer(
        frozenset(subject.methods) - {"generate", "speculate"}, shows, subject.reproducible, isinstance(rule.residual, DraftResidual)
    )  # fmt: skip
    checked, skipped = choose(offer, config.claims)
    if subject.max_batch == 1 and "row-independence" in checked:
        checked.remove("row-independence")
        skipped["row-independence"] = "the adapter takes one row a call (max_batch = 1)"
    if not checked:
        raise AdapterUnsuitable(f"nothing can be checked: {next(iter(skipped.values()), 'no claims')}")
    wealth.claims = tuple(c for c in checked if not CLAIMS[c].exact)
    audit.checked = frozenset(checked)
    wealth.methods = tuple(m for m in ("verify", "sample") if m in subject.methods)
    for claim in [c for c in audit.violations if c not in checked]:
        del audit.violations[claim]
    if first:
        emit(
            _started(
                loaded, subject.methods, subject.rule, subject.precision.tolerance, config, budget.max_seconds, checked,
                tuple(skipped.items()),
            )
        )  # fmt: skip
    return audit, skipped


class _Running:
    """The phases of one mode, and what came of them."""

    def __init__(self, audit: ModeAudit, skipped: dict[str, str], config: AuditConfig, emit: Emit) -> None:
        self.audit, self.config, self.emit = audit, config, emit
        self.skipped = skipped
        self.checked = [c for c in CLAIMS if c not in self.skipped]
        self.findings: list[Finding] = []
        self.proof: Proof | None = None
        self.compared = {"exact-law": 0, "seed-reproducibility": 0}
        self.reasons: dict[str, str] = {}
        self.from_mixed = False
        self.generated: list[Case] = []
        audit.on_violation = self._announce
        audit.on_incident = lambda incident: emit(IncidentSeen(incident))

    def _announce(self, violation: Violation) -> None:
        joint = self.audit.wealth.joint.get(violation.method)
        guess = FAULTS[leading(joint)[0]].words if joint is not None and joint.max() > 3 else ""
        self.emit(
            ClaimViolated(
                self.audit.mode, violation.claim, violation.evidence, self.audit.wealth.threshold, violation.rounds,
                violation.seconds, guess,
            )
        )  # fmt: skip

    def phase(self, name: str) -> None:
        """Announce a phase."""
        self.emit(Phase(self.audit.mode, name))

    # ------------------------------------------------------------------------------------------------------- phases

    def all_phases(self) -> None:
        """From the first check to the findings."""
        audit = self.audit
        self.phase("calls and seeds")
        if "seed-reproducibility" in self.checked:
            self.compared["seed-reproducibility"] = checks.reproducibility(audit)
        self._exchange()
        self._mixed()
        methods = [m for m in ("verify", "sample") if audit.usable(m)]
        speed = max((audit.speed.get(m, 1.0) for m in methods), default=1.0)
        expected = min(audit.budget.left, int(0.7 * speed * max(1.0, audit.budget.max_seconds - audit.budget.seconds)))
        self.phase("explicit cases")
        explicit = [*corpus_cases(), *explicit_cases()]
        if "exact-law" in self.checked:
            self.compared["exact-law"] += checks.exact_law(audit, explicit)
        self._rounds_of(explicit, methods, int(EXPLICIT_SHARE * expected / len(explicit)), 2**15, edge=True)
        self.phase("generated cases")
        self.generated = propose(GENERATED, self.config.seed, self._worth)
        if "exact-law" in self.checked:
            self.compared["exact-law"] += checks.exact_law(audit, self.generated)
        self._rounds_of(
            self.generated, methods, int(GENERATED_SHARE * expected / len(self.generated)), 2**16, edge=False
        )
        if not audit.violations and methods:
            self.phase("focus")
            self._focus(methods[0])
        self._conclude(methods)

    def _exchange(self) -> None:
        """Independence of seeds and of rows, by exchange."""
        audit = self.audit
        for claim, (log_e, compared, worst) in checks.independence(audit).items():
            if claim not in self.checked:
                continue
            entry = {"kind": "coins", "mode": audit.mode, "claim": claim, "log_wealth": log_e, "events": compared}
            audit.journal.write(entry)
            audit.wealth.add(entry)
            log_wealth = audit.wealth.log_wealth(claim)
            if worst is not None and log_wealth >= audit.wealth.threshold:
                words = "calls with different seeds share draws" if claim == "seed-independence" else "rows share draws"
                self.reasons[claim] = f"{words} ({worst.words})"
                audit.violated(claim, "verify" if audit.usable("verify") else "sample", log_wealth)

    def _mixed(self) -> None:
        """Mixed batches, for `row-independence`."""
        audit = self.audit
        if "row-independence" not in self.checked or not audit.usable("verify"):
            return
        cases = mixed.cases_of(self.config.seed % 2**20, audit.subject.ragged)
        speed = audit.speed.get("verify", 1e4)
        rows = min(mixed.ROWS, audit.subject.rows(max(c.gamma for c in cases), mixed.VOCAB))
        # A twentieth of the budget at most: the cases on their own must have their say, or a fault of theirs is taken for one
        # of batches.
        share = int(MIXED_SHARE * audit.budget.max_rounds)
        rows = max(mixed.CASES, min(rows, share))
        batches = int(np.clip(min(0.5 * speed, share) / rows, 1, mixed.BATCHES))
        try:
            drawn = [mixed.draw(audit, cases, rows) for _ in range(batches)]
            evidence = mixed.judge(audit, cases, drawn)
        except CallFailed as failure:
            audit.failed(failure, cases[0])
            return
        except BadAnswer as bad:
            audit.bad_answer(bad, "verify", cases[0])
            return
        audit.budget.rounds += rows * batches
        entry = {"kind": "mixed", "mode": audit.mode, "rounds": rows * batches, "score": packed(evidence.score)}
        audit.journal.write(entry)
        audit.wealth.add(entry)
        log_wealth = audit.wealth.log_wealth("row-independence")
        if log_wealth >= audit.wealth.threshold and "row-independence" not in audit.violations:
            words, own, catalogued = evidence.leader
            self.from_mixed = True
            self.reasons["row-independence"] = words if own > catalogued else ""
            audit.violated("row-independence", "verify", log_wealth)

    def _rounds_of(self, cases: list[Case], methods: list[str], rounds: int, most: int, edge: bool) -> None:
        rounds = int(np.clip(rounds, 200, most))
        for case in cases:
            for method in methods:
                share = SAMPLE_SHARE if method == "sample" and len(methods) > 1 else 1.0
                self._visit(case, method, max(100, int(rounds * share)), edge)
            if not self.audit.budget.left:
                return

    def _visit(self, case: Case, method: str, rounds: int, edge: bool) -> None:
        audit = self.audit
        before = len(audit.results)
        audit.visit(case, method, rounds, edge)
        if len(audit.results) == before:
            return
        wealth = {c: audit.wealth.log_wealth(c) for c in audit.wealth.claims}
        claim = max(wealth, key=lambda c: wealth[c]) if wealth else ""
        self.emit(
            CaseDone(
                audit.mode, audit.results[-1], audit.budget.rounds, audit.budget.seconds,
                (claim, wealth.get(claim, 0.0), audit.wealth.threshold),
            )
        )  # fmt: skip

    def _worth(self, case: Case) -> float:
        """What Hypothesis climbs: the summed log of the expected evidence against each fault."""
        nats = nats_per_round(self.audit.book(case), FOCUS_SEVERITY).sum(-1)
        return float(np.log(nats + 1e-9).sum())

    def _focus(self, method: str) -> None:
        """The rest of the budget, on the cases that are worth most to the faults that are still open."""
        audit = self.audit
        pool = [c for c in {c.digest: c for c in [*audit.cases.values(), *self.generated]}.values() if c.vocab <= MANY]
        if method == "sample":
            pool = [first_position(c) for c in pool]
        if not pool:
            return
        table = np.stack([nats_per_round(audit.book(c), FOCUS_SEVERITY) for c in pool])
        if method == "sample":
            table[:, :, PARTS.index("bonus-token")] = 0.0
        worth = table.max(-1)
        gathered = np.zeros(len(JOINT))
        # A bet needs the threshold and its own share of the weight.
        need = audit.wealth.threshold + np.log(2 * 3 * len(JOINT))
        reserve = int(PROOF_SHARE * audit.budget.max_rounds)
        chunk = int(np.clip(audit.budget.left / 24, 500, 2**18))
        while audit.budget.left > reserve and not audit.violations:
            rounds = min(chunk, audit.budget.left - reserve)
            missing = np.maximum(need - gathered, 1.0)
            gain = np.minimum(worth * rounds / missing, 1.0).sum(-1)
            k = int(gain.argmax())
            before = audit.budget.rounds
            self._visit(pool[k], method, rounds, edge=False)
            if audit.budget.rounds == before:
                return
            gathered += worth[k] * (audit.budget.rounds - before)
            if (gathered >= 2 * need).all():
                gathered[:] = 0.0

    # -------------------------------------------------------------------------------------------------- conclusions

    def _conclude(self, methods: list[str]) -> None:
        audit = self.audit
        if audit.violations:
            self.phase("diagnosis")
            self._report_findings(fresh=True)
        self.phase("proof by counting")
        for method in methods:
            if audit.usable(method):
                try:
                    self.proof = proof.count(audit, method, int(np.clip(audit.speed[method] * 0.5, 1000, 200_000)))
                except CallFailed as failure:
                    audit.failed(failure, CONTROL)
                except BadAnswer as bad:
                    audit.bad_answer(bad, method, CONTROL)
                break

    def _report_findings(self, fresh: bool) -> None:
        audit = self.audit
        replay = self.config.command
        diagnoses: dict[str, Diagnosis] = {}
        seconds = min(2.0, 0.1 * audit.budget.max_seconds)
        others = set(audit.violations) - {"row-independence", "position-alignment"}
        for claim, violation in sorted(audit.violations.items(), key=_telling_first):
            if any(f.claim == claim for f in self.findings):
                continue
            method = violation.method
            seen = next((m for m in audit.malformed if _claim_of(m.kind) == claim), None)
            if method not in diagnoses and (claim in audit.wealth.claims or (seen and seen.kind == "prefix")):
                speed = audit.speed.get(method, 1e4)
                diagnoses[method] = (
                    diagnose(audit, self._telling_cases(method), method, int(np.clip(speed, 2000, 800_000)))
                    if fresh and audit.usable(method)
                    else without_draws(audit, method)
                )
            number = len(self.findings) + 1
            if seen:
                finding = findings.from_malformed(audit, claim, seen, diagnoses.get(method), number, replay)
            elif claim == "row-independence" and self.from_mixed and others:
                continue  # what is wrong with every case on its own shows in mixed batches too
            elif claim in self.reasons:
                finding = findings.from_rows(audit, claim, self.reasons[claim], number, replay)
            elif claim == "position-alignment" and diagnoses[method].fault not in ALIGNMENT:
                continue
            else:
                speed = audit.speed.get(method, 1e4)
                rounds = int(np.clip(0.3 * speed, 500, 200_000)) if fresh else 0
                finding = findings.build(audit, violation, diagnoses[method], number, seconds, rounds, replay)
            self.findings.append(finding)
            self.emit(FindingReady(finding))

    def _telling_cases(self, method: str) -> list[Case]:
        """Visited cases to test a name on: the one that tells the leading explanations apart best, and the loudest one.

        Both small enough to be looked at draft by draft.
        """
        audit = self.audit
        joint = audit.wealth.joint.get(method)
        if joint is None:
            return [CONTROL]
        peak = joint.max(1)
        best = int(peak.argmax())
        rivals = np.argsort(-peak)[1:4]
        margins, loud = {}, {}
        for entry in audit.journal:
            if entry["kind"] != "visit" or entry["mode"] != audit.mode or entry["method"] != method:
                continue
            index = entry["index"]
            if audit.cases[index].vocab <= 64:
                seen = unpack(entry["joint"]).reshape(joint.shape).max(1)
                margins[index] = float(np.minimum(seen[best] - seen[rivals], 1e6).min())
                if not entry["edge"]:
                    loud[index] = sum(max(v, 0.0) for v in audit.results[index].evidence.values())
        picked = [max(table, key=lambda k: table[k]) for table in (margins, loud) if table]
        return list({audit.cases[k].digest: audit.cases[k] for k in picked}.values()) or [CONTROL]

    def result(self, mode: Mode | None, stopped: str) -> ModeResult:
        """The mode's part of the report."""
        audit = self.audit
        if audit.violations and stopped in ("interrupted", "error"):
            self._report_findings(fresh=False)
        return ModeResult(
            audit.mode, audit.subject.rule, audit.subject.precision.tolerance, audit.subject.precision.resolution,
            list(audit.subject.methods), [self._claim(c, stopped) for c in CLAIMS], self.findings, audit.incidents,
            audit.results, self.proof, assure(audit) if not audit.violations and stopped != "error" else [],
            self._metrics(), mode.summary if mode else "",
        )  # fmt: skip

    def _claim(self, claim: str, stopped: str) -> ClaimResult:
        audit, promise = self.audit, CLAIMS[claim].promise
        if claim in self.skipped:
            return ClaimResult(claim, promise, "skipped", self.skipped[claim])
        exact = CLAIMS[claim].exact
        events = self.compared.get(claim, audit.budget.rounds) if exact else audit.wealth.events(claim)
        evidence = 0.0 if exact else float(np.clip(audit.wealth.log_wealth(claim), -1e9, 1e9))
        threshold = 0.0 if exact else audit.wealth.threshold
        finding = next((f for f in self.findings if f.claim == claim), None)
        if finding is not None:
            evidence = max(evidence, finding.evidence)
            return ClaimResult(claim, promise, "violated", finding.title, evidence, threshold, events, finding.id)
        if claim in audit.violations:
            named = next((f.diagnosis for f in self.findings if f.diagnosis), None)
            told = (
                f"explained by {named.fault}"
                if named and named.fault != UNLISTED
                else "explained by the other findings"
            )
            return ClaimResult(claim, promise, "holds", f"its evidence is {told}", evidence, threshold, events)
        if stopped in ("interrupted", "error"):
            return ClaimResult(
                claim, promise, "undecided", f"{stopped} after {events:,} events", evidence, threshold, events
            )
        if not events:
            return ClaimResult(claim, promise, "undecided", "no event spoke to it", evidence, threshold, events)
        return ClaimResult(claim, promise, "holds", "", evidence, threshold, events)

    def _metrics(self) -> Metrics:
        audit = self.audit
        shown = [r for r in audit.results if r.acceptance is not None and r.acceptance_expected is not None]
        weight = np.array([r.rounds for r in shown], float)

        def mean(values: list[float | None]) -> float | None:
            return float(weight @ np.array(values, float) / weight.sum()) if values else None

        seconds = audit.subject.seconds
        return Metrics(
            audit.budget.rounds, audit.subject.calls, len({c.digest for c in audit.cases.values()}), round(seconds, 3),
            round(max(0.0, audit.budget.seconds - seconds), 3), mean([r.acceptance for r in shown]),
            mean([r.acceptance_expected for r in shown]),
        )  # fmt: skip


def _telling_first(item: tuple[str, Violation]) -> tuple[int, float]:
    """Order of findings: what undoes the reading of everything else first, then the most specific, the joint ones last."""
    first = (
        "structure",
        "seed-independence",
        "row-independence",
        "exact-law",
        "residual-law",
        "bonus-token",
        "acceptance-law",
    )
    claim, violation = item
    if claim in first:
        return first.index(claim), 0.0
    return len(first) + (claim == "edge-cases"), -violation.evidence


def _claim_of(kind: str) -> str:
    return {"exception": "edge-cases", "seed": "seed-reproducibility", "law": "exact-law"}.get(kind, "structure")
