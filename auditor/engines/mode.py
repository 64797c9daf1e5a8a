"""One mode of an adapter with `generate`, from the first generation to the mode's part of the report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from auditor.adapter import Settings
from auditor.claims import CLAIMS
from auditor.engines.audit import ENGINE_CLAIMS, EXACT_CLAIMS, WEALTH_CLAIMS, EngineAudit, Limits, Visit, said
from auditor.engines.calls import EngineSubject
from auditor.engines.draft_wagers import judged
from auditor.engines.findings import build, case_data
from auditor.engines.requests import Request, prompt
from auditor.errors import AdapterUnsuitable, BadAnswer, CallFailed
from auditor.events import CaseDone, ClaimViolated, Emit, FindingReady, IncidentSeen, Phase
from auditor.evidence import binomial_interval, chi_square, total_variation
from auditor.results import CaseResult, ClaimResult, Finding, Incident, Metrics, ModeResult, Proof
from auditor.settings import ENDINGS, TRANSFORMS

PROOF_SHARE, FINDING_SHARE = 0.03, 0.04
"""Parts of the budget that the proof by counting and each finding take."""


@dataclass(frozen=True)
class EngineConfig:
    """How to audit one mode. `alpha` is the mode's own share of the error rate; `claims` empty means all."""

    alpha: float = 1e-6
    seed: int = 0
    max_seconds: float = 150.0
    max_generations: int = 1_000_000
    claims: tuple[str, ...] = ()
    replay: str = ""


def run_engine_mode(
    adapter: object, name: str, config: EngineConfig, emit: Emit, rule: str = "", summary: str = ""
) -> ModeResult:
    """Audit `adapter.generate`. Never raises for what the adapter does: that becomes findings and incidents.

    Raises AdapterUnsuitable where it has no `generate`, or none of the wanted claims can be shown by it, and EngineInterrupted,
    with the partial result, after Ctrl-C.
    """
    subject = EngineSubject(adapter)
    if "generate" not in subject.methods:
        raise AdapterUnsuitable(f"{type(adapter).__name__} has no generate")
    subject.rule = rule or subject.rule
    wanted = [c for c in ENGINE_CLAIMS if not config.claims or c in config.claims]
    if not wanted:
        raise AdapterUnsuitable(f"generate can show {', '.join(ENGINE_CLAIMS)}; none of these is asked for")
    wealth = [c for c in WEALTH_CLAIMS if c in wanted]
    threshold = float(np.log(max(1, len(wealth)) / config.alpha))
    limits = Limits(dict.fromkeys(wealth, threshold), config.seed, config.max_seconds, config.max_generations)
    running = _Running(subject, limits, name, wanted, config, emit)
    try:
        running.all()
    except KeyboardInterrupt:
        raise EngineInterrupted(running.result(summary, interrupted=True)) from None
    finally:
        running.audit.close()
    return running.result(summary)


class EngineInterrupted(Exception):
    """Ctrl-C ended a mode; `result` is what there is of it, with no claim called holding."""

    def __init__(self, result: ModeResult) -> None:
        super().__init__("interrupted")
        self.result = result


class _Running:
    def __init__(
        self, subject: EngineSubject, limits: Limits, name: str, wanted: list[str], config: EngineConfig, emit: Emit
    ) -> None:
        self.audit = EngineAudit(subject, limits, self._seen)
        self.subject, self.limits, self.name, self.wanted, self.emit = subject, limits, name, wanted, emit
        self.config = config
        self.cases: list[CaseResult] = []
        self.incidents: list[Incident] = []
        self.findings: list[Finding] = []
        self.proof: Proof | None = None
        self.follows: dict[str, str] = {}
        """Violated claims that follow from another, which has the finding."""
        self._announced: set[str] = set()

    def all(self) -> None:
        """Every phase."""
        self.emit(Phase(self.name, "generated sequences"))
        broken = self._guard(self.audit.run)
        violated = [c for c in ENGINE_CLAIMS if c in self.audit.state.violated and c in self.wanted]
        if violated:
            self.emit(Phase(self.name, "diagnosis"))
        # Where the target's law is left, acceptances computed from that law are off as a matter of course.
        cause = next((c for c in ("sequence-law", "settings-law") if c in violated), None)
        self.follows = {c: cause for c in ("acceptance-law", "draft-independence") if cause and c in violated}
        for claim in [c for c in violated if c not in self.follows]:
            self._guard(lambda claim=claim: self._find(claim))  # type: ignore[misc]
        if not broken:
            self.emit(Phase(self.name, "proof by counting"))
            self._guard(self._count)

    def _guard(self, step: Callable[[], object]) -> bool:
        """Whether the engine failed in a step; its failure is an incident, a false answer a finding already noted."""
        try:
            step()
        except CallFailed as failure:
            incident = Incident(
                failure.kind, str(failure), self.name, failure.method, None, self.limits.seed, failure.traceback
            )
            self.incidents.append(incident)
            self.emit(IncidentSeen(incident))
            return True
        except BadAnswer:
            return True
        return False

    # ------------------------------------------------------------------------------------------------------ events

    def _seen(self, visit: Visit) -> None:
        audit = self.audit
        result = self._case(visit)
        self.cases.append(result)
        strongest = max(self.wanted, key=lambda c: audit.evidence(c) / max(audit.threshold(c), 1.0))
        self.emit(
            CaseDone(
                self.name, result, audit.state.generations, audit.seconds,
                (strongest, float(audit.evidence(strongest)), audit.threshold(strongest)),
            )
        )  # fmt: skip
        for claim in audit.state.violated.keys() - self._announced:
            self._announced.add(claim)
            generations, seconds = audit.state.violated[claim]
            self.emit(
                ClaimViolated(
                    self.name, claim, float(audit.evidence(claim)), audit.threshold(claim), generations, seconds,
                    self._guess(claim),
                )
            )  # fmt: skip

    def _guess(self, claim: str) -> str:
        breaches = self.audit.state.breaches.get(claim)
        if breaches:
            return breaches[0][0].words
        book = self.audit.state.books.get(claim)
        return book.leaders("fault")[0][0].name if book is not None else ""

    def _case(self, visit: Visit) -> CaseResult:
        audit, batch = self.audit, visit.batch
        rounds = sum(len(g.drafted) for g in visit.generations if g.drafted is not None)
        kept = expected = acceptance = None
        interval = None
        precision = self.subject.precision
        events = None
        if visit.request.settings.temperature > 0 and not audit.state.untrusted:
            stated = said(batch, visit.generations)
            events = judged(batch, self.subject.rule, stated, precision.tolerance, precision.resolution)
        if events is not None and events.shown:
            kept = int(events.kept.sum())
            seen = binomial_interval(kept, len(events.rate))
            acceptance, interval, expected = seen.value, (seen.low, seen.high), float(events.rate.mean())
        tv = 0.0 if batch.q is None else float(0.5 * np.abs(batch.p - batch.q).sum(-1)[batch.live].mean())
        per_pass = float(batch.lengths.sum()) / rounds if rounds else None
        return CaseResult(
            visit.index, case_data(audit, visit.request), "generate", len(visit.generations), acceptance, interval,
            expected, tv=tv if np.isfinite(tv) else 0.0, tokens_per_pass=per_pass,
            evidence={c: round(v, 3) for c, v in visit.evidence.items() if c in self.wanted and v},
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------- conclusions

    def _find(self, claim: str) -> None:
        seconds = FINDING_SHARE * self.limits.max_seconds
        finding = build(self.audit, claim, self.name, len(self.findings) + 1, self.config.replay, seconds)
        self.findings.append(finding)
        self.emit(FindingReady(finding))

    def _count(self) -> None:
        """First tokens of fresh generations of a fixed number, where speculation is at work behind them."""
        audit = self.audit
        index = next((k for k, known in enumerate(audit.known) if known.kind == "table"), 0)
        known = audit.known[index]
        request = Request(index, prompt(known.model.vocab, np.random.default_rng(1)), 4, Settings())
        count = audit.size(PROOF_SHARE * self.limits.max_seconds)
        made = audit.ask(request, count)
        batch, _ = audit.look(made, request)
        law = batch.p[0, 0] / batch.p[0, 0].sum()
        draft = law if batch.q is None else batch.q[0, 0]
        counts = np.bincount(batch.tokens[:, 0], minlength=known.model.vocab)
        test, tv = chi_square(counts, law, audit.seeds.generator()), total_variation(counts, law)
        gap = np.abs(counts / count - law)
        fields: dict[str, object] = {}
        places = batch.places
        if places.known and not audit.state.untrusted:
            rounds = sum(len(g.drafted) for g in made if g.drafted is not None)
            stated = said(batch, made)
            precision = self.subject.precision
            events = judged(batch, self.subject.rule, stated, precision.tolerance, precision.resolution)
            if events is not None and events.shown:
                seen = binomial_interval(int(events.kept.sum()), len(events.kept))
                fields = {
                    "acceptance": seen.value,
                    "acceptance_interval": (seen.low, seen.high),
                    "acceptance_expected": float(events.rate.mean()),
                    "tokens_per_pass": float(batch.lengths.sum()) / rounds,
                }
        note = ""
        if test.p_value < 1e-3 and "sequence-law" not in audit.state.violated:
            note = f"The chi-square p-value is {test.p_value:.1e} although no evidence reached its threshold."
        self.proof = Proof(
            "generate", count, law.tolist(), draft.tolist(), (counts / count).tolist(), float(gap.max()),
            int(gap.argmax()), min(test.statistic, 1e9), test.degrees_of_freedom, test.p_value, tv.value, tv.low, tv.high,
            gamma=self.subject.draft_length, note=note, **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    def result(self, summary: str, interrupted: bool = False) -> ModeResult:
        """The mode's part of the report."""
        audit = self.audit
        totals = list(audit.state.totals.values())
        reached = sum(t.reached for t in totals)
        return ModeResult(
            self.name,
            self.subject.rule,
            self.subject.precision.tolerance,
            self.subject.precision.resolution,
            list(self.subject.methods),
            [self._claim(c, interrupted) for c in CLAIMS],
            self.findings,
            self.incidents,
            self.cases,
            self.proof,
            [],
            Metrics(
                audit.state.generations,
                self.subject.calls,
                len({c.case.digest for c in self.cases}),
                round(self.subject.seconds, 3),
                round(max(0.0, audit.seconds - self.subject.seconds), 3),
                sum(t.kept for t in totals) / reached if reached else None,
                sum(t.rate for t in totals) / reached if reached else None,
            ),
            summary,
        )

    def _claim(self, claim: str, interrupted: bool) -> ClaimResult:
        audit, promise = self.audit, CLAIMS[claim].promise
        if claim not in ENGINE_CLAIMS:
            return ClaimResult(claim, promise, "skipped", f"needs {' or '.join(CLAIMS[claim].needs)}")
        if claim not in self.wanted:
            return ClaimResult(claim, promise, "skipped", "not asked for")
        events = audit.state.events[claim]
        threshold = 0.0 if claim in EXACT_CLAIMS else audit.threshold(claim)
        evidence = float(np.clip(audit.evidence(claim), -1e9, 1e9))
        source = self.follows.get(claim, claim)
        finding = next((f for f in self.findings if f.claim == source), None)
        if claim in audit.state.violated:
            told = finding.title if finding else "violated; the audit ended before it could be diagnosed"
            if finding and source != claim:
                told = f"follows from {source}: {finding.title}"
            return ClaimResult(
                claim, promise, "violated", told, evidence, threshold, events, finding.id if finding else None
            )
        if interrupted:
            reason = f"interrupted after {events:,} events"
            return ClaimResult(claim, promise, "undecided", reason, evidence, threshold, events)
        if not events:
            if claim == "sequence-law" and audit.state.plain_fault:
                return ClaimResult(claim, promise, "undecided", audit.state.plain_fault)
            return ClaimResult(claim, promise, "skipped", _unseen(claim))
        return ClaimResult(claim, promise, "holds", "", evidence, threshold, events, detail=self._detail(claim))

    def _detail(self, claim: str) -> str:
        if claim != "settings-law":
            return ""
        taken = [n for n in (*TRANSFORMS, *ENDINGS) if n in self.subject.settings]
        missing = [n for n in (*TRANSFORMS, *ENDINGS) if n not in self.subject.settings]
        parts = [f"judged: {', '.join(taken)}"]
        if missing:
            parts.append(f"not taken by the engine: {', '.join(missing)}")
        parts += [f"left out: {name} ({why})" for name, why in self.audit.state.skipped.items()]
        return "; ".join(parts)


def _unseen(claim: str) -> str:
    """Why a claim had nothing to be judged by."""
    return {
        "counters": "the engine reports no counts of its rounds",
        "logprobs": "the engine returns no log-probabilities",
        "acceptance-law": "the engine shows neither its drafts nor counts of its rounds",
        "draft-law": "the engine does not show the law of its drafts, or does not sample them",
        "draft-independence": "the engine does not show its drafts, or does not sample them",
        "settings-law": "the engine takes none of the settings",
    }.get(claim, "no generation spoke to it")


def engine_claims(wanted: Collection[str]) -> list[str]:
    """The claims that `generate` can show, of those wanted (all where none is named)."""
    return [c for c in ENGINE_CLAIMS if not wanted or c in wanted]
