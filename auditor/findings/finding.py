"""From a violated claim to a finding: the worst case, the smallest one, laws side by side, the words, the replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditor.bets.books import RoundBook
from auditor.bets.first_tokens import FirstBook
from auditor.bets.tally import FirstTokens, Tally, read_first, read_rounds
from auditor.cases import Case
from auditor.claims import CLAIMS
from auditor.draws import drafts_from
from auditor.errors import BadAnswer, CallFailed
from auditor.evidence import chi_square, total_variation
from auditor.findings.diagnosis import UNLISTED
from auditor.findings.shrink import shrink
from auditor.results import Confirmation, Diagnosis, Finding, LawTable
from auditor.visits import Malformed, ModeAudit, Violation, first_position

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SHOWN_OUTCOMES = 24


@dataclass(frozen=True)
class Comparison:
    """One law against its counts: the raw material of a table and of the confirming tests."""

    what: str
    outcomes: list[str]
    law: FloatArray
    counts: IntArray
    target: FloatArray | None = None
    draft: FloatArray | None = None


def build(
    audit: ModeAudit, violation: Violation, diagnosis: Diagnosis, number: int, seconds: float, rounds: int, replay: str
) -> Finding:
    """The finding of a violated claim that evidence decided; `seconds` is what shrinking may take,
    `rounds` the fresh sample of the confirmation; 0 where nothing more may be drawn."""
    claim, method = violation.claim, violation.method
    log = sorted(
        (
            (r.index, r.evidence[_source(claim)])
            for r in audit.results
            if _source(claim) in r.evidence and r.method == method
        ),
        key=lambda pair: -pair[1],
    )[:8]
    # The visit that was under way when the wealth crossed may be the loudest one.
    worst = audit.cases[log[0][0]] if log else next(iter(audit.cases.values()))
    small = shrink(audit, _source(claim), method, diagnosis, seconds) if rounds else None
    case = small.case if small else (worst if method == "verify" else first_position(worst))
    tables, confirmation = confirm(audit, case, _source(claim), method, rounds) if rounds else ([], None)
    return Finding(
        id=f"F{number}",
        claim=claim,
        title=title(claim, diagnosis),
        text=_text(claim, diagnosis, tables, confirmation, violation),
        mode=audit.mode,
        method=method,
        evidence=float(min(violation.evidence, 1e9)),
        threshold=audit.wealth.threshold,
        rounds=violation.rounds,
        seconds=round(violation.seconds, 2),
        case=worst.data(),
        smallest=small.case.data() if small else None,
        laws=tables,
        diagnosis=diagnosis,
        confirmation=confirmation,
        log=[(index, round(nats, 1)) for index, nats in log],
        seed=audit.seeds.seed,
        replay=replay,
    )


def from_malformed(
    audit: ModeAudit, claim: str, seen: Malformed, diagnosis: Diagnosis | None, number: int, replay: str
) -> Finding:
    """The finding of a claim that one sighting decided: an answer that is none, or an exception."""
    told = diagnosis if seen.kind == "prefix" else None
    headline = {
        "prefix": "rounds go on behind a rejection",
        "exception": "an exception on a legitimate case",
    }.get(seen.kind, f"{seen.method} gives an answer that is not one ({seen.kind})")
    if told and told.fault != UNLISTED:
        headline = f"it {told.words}"
    violation = audit.violations[claim]
    return Finding(
        id=f"F{number}",
        claim=claim,
        title=f"{claim}: {headline}",
        text=f"{seen.text}. The promise is: {CLAIMS[claim].promise}.",
        mode=audit.mode,
        method=seen.method,
        rounds=violation.rounds,
        seconds=round(violation.seconds, 2),
        case=seen.case.data(),
        smallest=seen.case.data() if seen.case.vocab <= 6 else None,
        diagnosis=told,
        seed=audit.seeds.seed,
        replay=replay,
    )


def from_rows(audit: ModeAudit, claim: str, reason: str, number: int, replay: str) -> Finding:
    """The finding of a claim about calls or rows: what fair coins or mixed batches showed."""
    violation = audit.violations[claim]
    words = reason or "rows of a mixed batch do not follow their own laws, though each case is right on its own"
    return Finding(
        id=f"F{number}",
        claim=claim,
        title=f"{claim}: {words.split(' (')[0]}",
        text=f"The promise is: {CLAIMS[claim].promise}. What was seen: {words}. "
        f"The evidence is {min(violation.evidence, 1e9):,.1f} nats, odds of {_odds(violation.evidence)} to 1.",
        mode=audit.mode,
        method=violation.method,
        evidence=float(min(violation.evidence, 1e9)),
        threshold=audit.wealth.threshold,
        rounds=violation.rounds,
        seconds=round(violation.seconds, 2),
        diagnosis=Diagnosis("shared-randomness" if "share" in words else "mixed-batch", words),
        seed=audit.seeds.seed,
        replay=replay,
    )


def _source(claim: str) -> str:
    """The claim whose events show it: the joint claims borrow those of the emitted tokens."""
    return {"edge-cases": "output-law"}.get(claim, claim)


def title(claim: str, diagnosis: Diagnosis) -> str:
    """One line that names the fault."""
    if diagnosis.fault == UNLISTED:
        return f"{claim}: violated by a fault that is not in the catalogue"
    mild = diagnosis.severity is not None and diagnosis.severity < 0.9
    often = f" (in about {100 * diagnosis.severity:.3g} % of events)" if mild and diagnosis.severity else ""
    return f"{claim}: it {diagnosis.words}{often} [{diagnosis.fault}]"


def _text(
    claim: str, diagnosis: Diagnosis, tables: list[LawTable], confirmation: Confirmation | None, violation: Violation
) -> str:
    parts = [f"The promise is: {CLAIMS[claim].promise}."]
    parts.append(
        f"After {violation.rounds:,} rounds the evidence against it was {min(violation.evidence, 1e9):,.1f} nats, "
        f"odds of {_odds(violation.evidence)} to 1."
    )
    if tables:
        table = tables[0]
        k = int(np.argmax(np.abs(np.array(table.expected) - np.array(table.observed))))
        parts.append(
            f"Largest gap in the {table.what}: {table.outcomes[k]} has {table.expected[k]:.4f} by the rule "
            f"and {table.observed[k]:.4f} in {table.draws:,} draws."
        )
    if confirmation and confirmation.p_value is not None:
        parts.append(f"On fresh draws the chi-square p-value is {confirmation.p_value:.1e}.")
    if diagnosis.fault == UNLISTED:
        if diagnosis.runners_up:
            parts.append(
                f"The nearest listed fault is {diagnosis.runners_up[0].fault}, but it does not explain what was seen."
            )
    else:
        fits = diagnosis.fit_p_value
        tested = (
            "that law was not tested on fresh draws" if fits is None else f"that law fits fresh draws (p = {fits:.2g})"
        )
        parts.append(f"It {diagnosis.words}; {tested}.")
        if diagnosis.equal_to:
            parts.append(f"On the cases of this run that is the same as {', '.join(diagnosis.equal_to)}.")
        elif diagnosis.runners_up:
            other = diagnosis.runners_up[0]
            parts.append(f"The next explanation, {other.fault}, is {other.behind:,.0f} nats behind.")
    return " ".join(parts)


def _odds(nats: float) -> str:
    return f"10^{nats / np.log(10):.0f}" if nats > 25 else f"{np.exp(nats):,.0f}"


# ------------------------------------------------------------------------------------------------- confirmation


def confirm(
    audit: ModeAudit, case: Case, claim: str, method: str, rounds: int
) -> tuple[list[LawTable], Confirmation | None]:
    """A fresh sample of a fixed size on one case: the laws side by side, and the familiar tests. It feeds no wealth."""
    try:
        if method == "verify":
            book = audit.book(case)
            drafts = drafts_from(case.q, rounds, audit.seeds.generator())
            tokens = audit.subject.verify_case(case.p, case.q, drafts, audit.seeds)
            tally = read_rounds(book.reading, drafts, tokens)
            score = book.evidence(tally, audit.endings).scores.get(claim)
            compared = round_comparisons(book, tally, claim, audit)
        else:
            book = audit.book(first_position(case))
            first = read_first(book.case, *audit.subject.sample(case.p[0], case.q[0], rounds, audit.seeds.next()))
            score = FirstBook(book).evidence(first).scores.get(claim)
            compared = first_comparisons(book, first, claim)
    except (CallFailed, BadAnswer):
        return [], None
    if not compared:
        return [], None
    rng = audit.seeds.generator()
    worst = max(compared, key=lambda c: _distance(c))
    tables = [table(worst), *(table(c) for c in compared if c is not worst)][:4]
    test, tv = chi_square(worst.counts, worst.law, rng), total_variation(worst.counts, worst.law)
    evidence = float(np.clip(score.local, -1e9, 1e9)) if score else 0.0
    return tables, Confirmation(
        rounds, round(evidence, 2), test.p_value, tv.value, tv.low, confirmed=evidence > 5.0 or test.p_value < 1e-6
    )  # fmt: skip


def _distance(c: Comparison) -> float:
    n = c.counts.sum()
    return float(np.abs(c.counts / n - c.law).sum() * np.sqrt(n)) if n else 0.0


def table(c: Comparison) -> LawTable:
    """A comparison as the report shows it: at most `SHOWN_OUTCOMES`, those with the largest gaps."""
    n = max(1, int(c.counts.sum()))
    seen = c.counts / n
    keep = np.arange(len(c.law))
    if len(keep) > SHOWN_OUTCOMES:
        keep = np.sort(np.argsort(-np.abs(seen - c.law), kind="stable")[:SHOWN_OUTCOMES])

    def pick(values: FloatArray | None) -> list[float] | None:
        return None if values is None else [float(v) for v in values[keep]]

    return LawTable(
        c.what, [c.outcomes[int(k)] for k in keep], [float(v) for v in c.law[keep]], [float(v) for v in seen[keep]], n,
        pick(c.target), pick(c.draft), float(max(0.0, 1 - c.law[keep].sum())),
    )  # fmt: skip


def _tokens(vocab: int) -> list[str]:
    return [f"token {k}" for k in range(vocab)]


def round_comparisons(book: RoundBook, tally: Tally, claim: str, audit: ModeAudit) -> list[Comparison]:
    """The laws that a claim is about, with the counts of rounds."""
    case, gamma = book.case, book.case.gamma
    names = _tokens(case.vocab)
    out: list[Comparison] = []
    if claim in ("output-law", "support", "position-alignment"):
        for i in range(gamma + 1):
            draft = case.q[i] if i < gamma else None
            what = f"law of the emitted token at position {i}"
            out.append(Comparison(what, names, case.p[i], tally.emitted[i], case.p[i], draft))
    elif claim == "residual-law":
        for i in range(gamma):
            refused = case.q[i] * (1 - book.right.accept[i])
            if refused.sum() > 0 and tally.residual[i].sum():
                law = book.right.mean(i, refused) / refused.sum()
                counts = tally.residual[i].copy()
                if i == gamma - 1 and gamma == 1:
                    counts += np.where(book.sure, 0, tally.repeats)
                out.append(
                    Comparison(
                        f"law of the token after a rejection at position {i}", names, law, counts, case.p[i], case.q[i]
                    )
                )
    elif claim == "bonus-token":
        missing = int(tally.repeats[book.sure].sum()) if audit.endings.missing else 0
        law, counts = np.append(book.right.bonus, 0.0), np.append(tally.bonus, missing)
        out.append(Comparison("law of the bonus token", [*names, "missing"], law, counts, np.append(case.p[-1], 0.0)))
    elif claim == "round-length":
        rates = (case.q * book.right.accept).sum(-1)
        reach = np.concatenate([[1.0], np.cumprod(rates)])
        law = np.append(reach[:-1] - reach[1:], reach[-1])
        out.append(
            Comparison("law of the round's length", [f"{k} tokens" for k in range(1, gamma + 2)], law, tally.length[1:])
        )
    elif claim in ("acceptance-law", "acceptance-rate"):
        for i in range(gamma):
            counts = tally.accept[i].copy()
            if i == gamma - 1:
                counts[:, 0] += tally.repeats
            n = int(counts.sum())
            # Accepted drafts by token, and rejections: a law, with the acceptance of each draft in it.
            accepted = case.q[i] * book.right.accept[i]
            law = np.append(accepted, max(0.0, 1 - accepted.sum()))
            seen = np.append(counts[:, 1], counts[:, 0].sum())
            if claim == "acceptance-rate":
                law, seen = np.array([accepted.sum(), 1 - accepted.sum()]), np.array([seen[:-1].sum(), seen[-1]])
                outcomes = ["accepted", "rejected"]
            else:
                outcomes = [*(f"draft {k} accepted" for k in range(case.vocab)), "rejected"]
            if n:
                out.append(Comparison(f"law of the acceptance at position {i}", outcomes, law, seen))
    return out


def first_comparisons(book: RoundBook, tally: FirstTokens, claim: str) -> list[Comparison]:
    """The laws that a claim is about, with the counts of first tokens."""
    case = book.case
    p, q, names = case.p[0], case.q[0], _tokens(case.vocab)
    emitted = Comparison("law of the emitted token", names, p, tally.tokens, p, q)
    if tally.accepted is None or claim in ("output-law", "support"):
        return [emitted]
    accept = book.right.accept[0]
    refused = q * (1 - accept)
    if claim == "residual-law" and refused.sum() > 0:
        law = book.right.mean(0, refused) / refused.sum()
        counts = tally.tokens - tally.accepted
        return [Comparison("law of the token after a rejection", names, law, counts, p, q), emitted]
    law = np.append(q * accept, refused.sum())
    counts = np.append(tally.accepted, tally.rounds - tally.accepted.sum())
    return [
        Comparison(
            "law of the acceptance", [*(f"draft {k} accepted" for k in range(case.vocab)), "rejected"], law, counts
        )
    ]
