"""From a violated claim of a whole engine to a finding: where the law is left, by which fault, under which settings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace

import numpy as np

from auditor.adapter import FloatArray, IntArray, Settings
from auditor.claims import CLAIMS
from auditor.engines.audit import EngineAudit, said
from auditor.engines.checks import Breach
from auditor.engines.draft_wagers import (
    FAULTY_DRAFTS,
    AcceptBook,
    DraftBook,
    Drawn,
    Judged,
    SharedBook,
    drafts_view,
    drawn,
    judged,
)
from auditor.engines.requests import Request
from auditor.engines.wagers import ENGINE_FAULTS, PHASES, Book, View, Wager, allowance, log_payoff
from auditor.evidence import chi_square, total_variation
from auditor.results import CaseData, Confirmation, Diagnosis, Explanation, Finding, LawTable
from auditor.rules import FAULTS
from auditor.settings import NEUTRAL, changed

UNLISTED = "unlisted"
FITS = 1e-3
"""A named law is dropped when its p-value on fresh generations is below this."""

DRAFT_PLACES = ("first draft of a round", "later draft of a round")
_DRAFT_WORDS = {
    "argmax": ("drafts-argmax", "takes the most probable token of q as its draft"),
    "colder": ("drafts-colder", "draws its drafts at a lower temperature than it reports"),
    "hotter": ("drafts-hotter", "draws its drafts at a higher temperature than it reports"),
    "uniform": ("drafts-uniform", "draws its drafts uniformly"),
}
_BREACH_WORDS = {
    "beyond-cap": "emits more tokens than the cap allows",
    "after-eos": "goes on after EOS",
    "after-stop": "goes on after a stop sequence",
    "stops-early": "stops before anything ends the sequence",
    "more-than-drafted": "counts more accepted tokens than it drafted",
    "bonus-dropped": "emits no bonus token when every draft was accepted",
    "past-the-end": "counts drafts that it did not emit",
    "uncounted": "emits tokens that its counts do not account for",
    "not-the-drafts": "counts drafts as accepted that are not the emitted tokens",
    "wrong-logprob": "returns log-probabilities that are not the target's",
    "not-the-argmax": "does not take the target's most probable token at temperature 0",
}


@dataclass(frozen=True)
class Fresh:
    """Outcomes of fresh generations beside the laws they were promised: M events of one kind."""

    y: IntArray
    p: FloatArray
    place: IntArray
    places: tuple[str, ...]
    view: View | None = None


def describe(settings: Settings) -> str:
    """The settings that are not neutral, as a user would write them."""
    parts = [f"{f.name}={getattr(settings, f.name)!r}" for f in fields(Settings) if f.name in changed(settings)]
    return ", ".join(parts) or "no settings"


def case_data(audit: EngineAudit, request: Request) -> CaseData:
    """A request as a case of the report."""
    known = audit.known[request.model]
    label = f"{known.model.key}, prompt {list(request.prompt)}, {request.cap} tokens, {describe(request.settings)}"
    digest = hashlib.sha256(label.encode()).hexdigest()[:12]
    return CaseData(label, known.model.vocab, audit.subject.draft_length, digest, known.kind, "engine")


def build(audit: EngineAudit, claim: str, mode: str, number: int, replay: str, seconds: float) -> Finding:
    """The finding of a violated claim."""
    breaches = audit.state.breaches.get(claim, [])
    book = audit.state.books.get(claim)
    wealth = 0.0 if book is None else book.evidence
    if breaches and (book is None or wealth < audit.threshold(claim)):
        return _of_breach(audit, claim, mode, number, replay, [b for b, _ in breaches], breaches[0][1])
    assert book is not None
    return _of_bets(audit, claim, book, mode, number, replay, seconds)


def _of_breach(
    audit: EngineAudit, claim: str, mode: str, number: int, replay: str, breaches: list[Breach], request: Request
) -> Finding:
    kind = max({b.kind for b in breaches}, key=lambda k: sum(b.kind == k for b in breaches))
    first = next(b for b in breaches if b.kind == kind)
    words = _BREACH_WORDS.get(kind, "gives an answer that is not one")
    generations, at = audit.state.violated[claim]
    text = (
        f"The promise is: {CLAIMS[claim].promise}. Seen {len(breaches):,} times in {audit.state.events[claim]:,} looks. "
        f"With {describe(request.settings)} it {first.words}."
    )
    return Finding(
        id=f"F{number}",
        claim=claim,
        title=f"{claim}: it {words} [{kind}]",
        text=text,
        mode=mode,
        method="generate",
        evidence=min(audit.evidence(claim), 1e9),
        threshold=audit.threshold(claim),
        rounds=generations,
        seconds=round(at, 2),
        case=case_data(audit, request),
        diagnosis=Diagnosis(kind, words),
        seed=audit.limits.seed,
        replay=replay,
    )


def _of_bets(
    audit: EngineAudit, claim: str, book: Book, mode: str, number: int, replay: str, seconds: float
) -> Finding:
    request = audit.state.loudest[claim][1]
    leaders = book.leaders("fault")
    others = [*book.leaders("tilt"), *book.leaders("learned")]
    small = request
    if claim == "settings-law" and len(changed(request.settings)) > 1:
        small = _fewer_settings(audit, request, leaders[0][0], 0.5 * seconds)
    count = audit.size(0.5 * seconds)
    fresh, evidence = _fresh(audit, claim, small, count, leaders[0][0])
    # A fault is a name when it explains more than what was merely learned, and its law fits fresh generations.
    named = leaders[0][1] >= max((value for _, value in others), default=0.0)
    p_fit = _fit(fresh, leaders[0][0]) if named and fresh is not None else None
    fits = named and (p_fit is None or p_fit >= FITS)
    diagnosis = _diagnosis(claim, leaders, fits, p_fit)
    table, confirmation = _compare(audit, fresh, evidence, count)
    generations, at = audit.state.violated[claim]
    log = sorted(audit.state.log.get(claim, []), key=lambda item: -item[1])[:8]
    return Finding(
        id=f"F{number}",
        claim=claim,
        title=_title(claim, diagnosis, small),
        text=_text(audit, claim, diagnosis, table, confirmation, small, generations),
        mode=mode,
        method="generate",
        evidence=float(min(audit.evidence(claim), 1e9)),
        threshold=audit.threshold(claim),
        rounds=generations,
        seconds=round(at, 2),
        case=case_data(audit, request),
        smallest=case_data(audit, small) if small != request else None,
        laws=[table] if table else [],
        diagnosis=diagnosis,
        confirmation=confirmation,
        log=[(index, round(nats, 1)) for index, nats in log],
        seed=audit.limits.seed,
        replay=replay,
    )


# ----------------------------------------------------------------------------------------------------- the fault


def words_of(claim: str, name: str) -> tuple[str, str]:
    """Stable name and words of the fault behind a bet."""
    if claim == "draft-law":
        return _DRAFT_WORDS[name]
    if claim == "draft-independence":
        return "shared-randomness", f"decides about a draft with the uniform that drew it ({name})"
    if claim == "acceptance-law":
        return name, FAULTS[name].words
    return name, ENGINE_FAULTS[name].words


def _diagnosis(claim: str, leaders: list[tuple[Wager, float]], named: bool, p_fit: float | None) -> Diagnosis:
    best = leaders[0][1]
    told = [
        Explanation(*words_of(claim, wager.name), wager.severity, round(best - value, 1))
        for wager, value in leaders[0 if not named else 1 :][:3]
        if value > 0
    ]
    if not named:
        return Diagnosis(UNLISTED, "departs from the law in a way that no listed fault explains", runners_up=told)
    name, words = words_of(claim, leaders[0][0].name)
    decided = best - max(leaders[1][1], 0.0) if len(leaders) > 1 else best
    return Diagnosis(name, words, leaders[0][0].severity, round(decided, 1), p_fit, told)


def _fit(fresh: Fresh, wager: Wager) -> float | None:
    """The p-value of the fault's law on fresh tokens, pooled over places; None where the law has no view to stand on.

    Pearson's statistic of a sum of independent tokens with different laws, against the mean law, errs toward large p-values.
    """
    law: FloatArray | None = None
    if fresh.view is not None and wager.name in ENGINE_FAULTS:
        law = ENGINE_FAULTS[wager.name].law(fresh.view)
    elif wager.name in FAULTY_DRAFTS and fresh.places == DRAFT_PLACES:
        law = FAULTY_DRAFTS[wager.name](fresh.p)
    if law is None:
        return None
    mixed = wager.severity * law + (1.0 - wager.severity) * fresh.p
    worst = 1.0
    present = np.unique(fresh.place)
    for place in present:
        here = fresh.place == place
        counts = np.bincount(fresh.y[here], minlength=fresh.p.shape[-1])
        expected = mixed[here].mean(0)
        test = chi_square(counts, expected / expected.sum(), np.random.default_rng(0), 2000)
        worst = min(worst, test.p_value * len(present))
    return float(min(1.0, worst))


# ------------------------------------------------------------------------------------------------------- settings


def _fewer_settings(audit: EngineAudit, request: Request, wager: Wager, seconds: float) -> Request:
    """Settings dropped one by one as long as fresh generations still speak loudly against the law."""
    names = list(changed(request.settings))
    count = audit.size(seconds / max(1, len(names)))
    for name in names:
        if len(changed(request.settings)) == 1:
            break
        fewer = replace(request.settings, **{name: getattr(NEUTRAL, name)})
        if name == "eos":
            fewer = replace(fewer, min_new_tokens=0)
        trial = replace(request, settings=fewer)
        if not changed(fewer):
            continue
        _, evidence = _fresh(audit, "settings-law", trial, count, wager)
        if evidence > float(np.log(1e4)):
            request = trial
    return request


# ----------------------------------------------------------------------------------------------------- fresh draws


def _fresh(audit: EngineAudit, claim: str, request: Request, count: int, wager: Wager) -> tuple[Fresh | None, float]:
    """Outcomes of fresh generations for a claim, and what the leading bet alone makes of them (nats). It feeds no wealth."""
    made = audit.ask(request, count)
    batch, views = audit.look(made, request)
    precision = audit.subject.precision
    stated = said(batch, made)
    if claim == "draft-law":
        offered = drawn(batch, made)
        return (None, 0.0) if offered is None else (_of_drafts(offered), _nats(audit, claim, wager, offered))
    if claim in ("acceptance-law", "draft-independence"):
        events = judged(batch, audit.subject.rule, stated, precision.tolerance, precision.resolution)
        return (None, 0.0) if events is None else (_of_judged(events), _nats(audit, claim, wager, events))
    view = views[0]
    law = ENGINE_FAULTS[wager.name].law(view)
    fresh = Fresh(view.y, view.p, view.phase, PHASES, view)
    if law is None or not len(view.y):
        return fresh, 0.0
    mixed = 0.999 * (wager.severity * law + (1.0 - wager.severity) * view.p) + 0.001 * view.p
    wide = allowance(view.p, precision.tolerance, precision.resolution)
    return fresh, float(log_payoff(mixed, view.p, view.y, wide).sum())


def _of_drafts(events: Drawn) -> Fresh:
    view = drafts_view(events)
    return Fresh(view.y, view.p, view.phase, DRAFT_PLACES)


def _of_judged(events: Judged) -> Fresh:
    law = np.stack([1.0 - events.rate, events.rate], -1)
    return Fresh(events.kept.astype(np.int64), law, np.zeros(len(law), np.int64), ("reached draft",))


def _nats(audit: EngineAudit, claim: str, wager: Wager, events: Drawn | Judged) -> float:
    """The leading bet of a book of drafts on fresh events, by settling a fresh book."""
    precision = audit.subject.precision
    book: AcceptBook | DraftBook | SharedBook
    if isinstance(events, Drawn):
        book = DraftBook()
        book.judge(events, "", precision.tolerance, precision.resolution)
    elif claim == "acceptance-law":
        book = AcceptBook(32)
        book.judge(events, audit.subject.rule)
    else:
        book = SharedBook()
        book.judge(events)
    return float(
        max(
            v
            for w, v in zip(book.wagers, book.log_wealth, strict=True)
            if (w.name, w.severity) == (wager.name, wager.severity)
        )
    )


def _compare(
    audit: EngineAudit, fresh: Fresh | None, evidence: float, count: int
) -> tuple[LawTable | None, Confirmation | None]:
    """The place where the law is left furthest: its law beside what was seen, and the familiar tests there."""
    if fresh is None or not len(fresh.y):
        return None, None
    vocab = fresh.p.shape[-1]
    best: tuple[float, int, FloatArray, IntArray] | None = None
    for place in np.unique(fresh.place):
        here = fresh.place == place
        counts = np.bincount(fresh.y[here], minlength=vocab)
        law = fresh.p[here].mean(0)
        gap = float(np.abs(counts / counts.sum() - law).sum() * np.sqrt(counts.sum()))
        if best is None or gap > best[0]:
            best = (gap, int(place), law, counts)
    assert best is not None
    _, place, law, counts = best
    law = law / law.sum()
    n = int(counts.sum())
    outcomes = ["rejected", "accepted"] if fresh.places == ("reached draft",) else [f"token {k}" for k in range(vocab)]
    table = LawTable(f"law at the {fresh.places[place]}", outcomes, law.tolist(), (counts / n).tolist(), n)
    test = chi_square(counts, law, audit.seeds.generator(), 2000)
    tv = total_variation(counts, law)
    return table, Confirmation(
        count, round(evidence, 2), test.p_value, tv.value, tv.low, confirmed=evidence > 5.0 or test.p_value < 1e-6
    )


# ---------------------------------------------------------------------------------------------------------- words


def _title(claim: str, diagnosis: Diagnosis, request: Request) -> str:
    under = f" under {describe(request.settings)}" if changed(request.settings) else ""
    if diagnosis.fault == UNLISTED:
        return f"{claim}: the law is left{under}, by a fault that is not in the catalogue"
    return f"{claim}: it {diagnosis.words} [{diagnosis.fault}]"


def _text(
    audit: EngineAudit,
    claim: str,
    diagnosis: Diagnosis,
    table: LawTable | None,
    confirmation: Confirmation | None,
    request: Request,
    generations: int,
) -> str:
    parts = [
        f"The promise is: {CLAIMS[claim].promise}.",
        f"After {generations:,} generations the evidence against it was {min(audit.evidence(claim), 1e9):,.1f} nats "
        f"(threshold {audit.threshold(claim):.1f}).",
        f"It speaks loudest with {describe(request.settings)} on {audit.known[request.model].model.key}.",
    ]
    if table:
        k = int(np.argmax(np.abs(np.array(table.expected) - np.array(table.observed))))
        parts.append(
            f"The law is left furthest at the {table.what.removeprefix('law at the ')}: {table.outcomes[k]} has "
            f"{table.expected[k]:.3f} by the law and {table.observed[k]:.3f} in {table.draws:,} fresh draws."
        )
    if confirmation:
        parts.append(f"Fresh generations add {confirmation.evidence:,.1f} nats.")
    if diagnosis.fault != UNLISTED:
        parts.append(f"It {diagnosis.words}.")
    elif diagnosis.runners_up:
        parts.append(f"The nearest listed fault is {diagnosis.runners_up[0].fault}, which does not explain it all.")
    if audit.state.skipped:
        parts.append("Left out: " + "; ".join(f"{name}: {why}" for name, why in audit.state.skipped.items()) + ".")
    return " ".join(parts)
