"""Numbers, cases and judgements in words, the same in every format.

Whatever an adapter says about itself (names, labels, tracebacks) may hold anything; `cleaned` makes a report safe to
print, and every renderer starts with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from auditor.results import Assurance, CaseData, Confirmation, Diagnosis, Finding, ModeResult, Report

STATUS_SIGNS = {"holds": "✓", "violated": "✗", "skipped": "–", "undecided": "?"}
VERDICT_SIGNS = {"conforming": "✓", "violated": "✗", "measured": "≈", "inconclusive": "?"}
UNLISTED = "unlisted"

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TERMINAL_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# Control characters but tab and newline, the overrides of writing direction, surrogates, and non-characters.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """The text without what a terminal, XML or a browser would trip over; colours are dropped, the rest becomes U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", _TERMINAL_SEQUENCES.sub("", text).replace("\r\n", "\n"))


def cleaned(report: Report) -> Report:
    """The report with every text in it `clean`."""
    return msgspec.convert(_clean_all(msgspec.to_builtins(report)), Report)


def _clean_all(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_clean_all(item) if not isinstance(item, float) else item for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean_all(item) for key, item in value.items()}
    return value


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters; a cut is marked."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"


def plural(count: int, noun: str) -> str:
    """ "1 round", "2,000 rounds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def number(value: float | None, digits: int = 4) -> str:
    """A number in so many significant digits, without trailing zeros; an en dash where there is none."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if 1e3 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def cell(value: float | None) -> str:
    """A probability in a column of such: four decimals, except where they would hide a small one."""
    if value is None:
        return "–"
    if value in (0, 1):
        return f"{value:.0f}"
    return f"{value:.4f}" if abs(value) >= 1e-4 else f"{value:.0e}"


def gap(value: float) -> str:
    """A difference of probabilities, with its sign."""
    return "0" if value == 0 else ("+" if value > 0 else "−") + cell(abs(value))


def p_value(value: float) -> str:
    """A p-value, "p = 0.43"; zero is what double precision leaves of a smaller one."""
    return "p < 1e-300" if value < 1e-300 else f"p = {value:.2g}"


def interval(value: float | None, bounds: tuple[float, float] | None, digits: int = 4) -> str:
    """A value with its interval: "0.9 (0.89 to 0.91)"."""
    if value is None or bounds is None:
        return number(value, digits)
    return f"{number(value, digits)} ({number(bounds[0], digits)} to {number(bounds[1], digits)})"


def seconds(value: float) -> str:
    """A duration: "0.4 s", "95 s", "12 min"."""
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:,.0f} s" if value < 600 else f"{value / 60:,.0f} min"


def power_of_ten(exponent: float) -> str:
    """A large number, rounded down to a digit: "1,000,000" below ten million, else "10¹⁷"."""
    if exponent < 7:
        whole = math.floor(10.0**exponent * (1 + 1e-9))
        unit = 10 ** (len(str(whole)) - 1)
        return f"{whole // unit * unit:,}"
    return "10" + f"{math.floor(exponent * (1 + 1e-12))}".translate(_SUPERSCRIPTS)


def law(row: Sequence[float], limit: int = 12) -> str:
    """A probability vector in round numbers: "(0.5, 0.3, 0.2)"; of a long one, the first entries."""
    shown = ", ".join(number(value) for value in row[:limit])
    return f"({shown})" if len(row) <= limit else f"({shown}, … {len(row) - limit:,} more)"


def case_title(case: CaseData) -> str:
    """The size of a case, and what it is called."""
    size = f"V = {case.vocab:,}, gamma = {case.gamma:,}"
    return f"{size} ({case.label})" if case.label else size


def case_rows(case: CaseData, limit: int = 9) -> list[tuple[str, list[float]]]:
    """The laws of a case in the order in which a round reads them: p[0], q[0], p[1], ... Of a long round, the first."""
    p, q = case.p or [], case.q or []
    one = len(p) <= 1 and len(q) <= 1
    rows: list[tuple[str, list[float]]] = []
    for i in range(max(len(p), len(q))):
        rows += [("p" if one else f"p[{i}]", p[i])] if i < len(p) else []
        rows += [("q" if one else f"q[{i}]", q[i])] if i < len(q) else []
    return rows[:limit]


def case_left_out(case: CaseData, limit: int = 9) -> str:
    """What `case_rows` does not show, in words; empty where it shows everything."""
    laws = len(case.p or []) + len(case.q or [])
    if not laws:
        return f"Too large to print; its digest is {case.digest}."
    return f"{plural(laws - limit, 'more law')} in report.json." if laws > limit else ""


def mode_title(mode: ModeResult) -> str:
    """The name of a mode; adapters without modes have one without a name."""
    return mode.name or "default mode"


def headline(report: Report) -> str:
    """The verdict in a sentence."""
    name = report.adapter.name
    claims = [claim for mode in report.modes for claim in mode.claims if claim.status != "skipped"]
    count = {status: sum(claim.status == status for claim in claims) for status in ("violated", "undecided")}
    where = f" in {len(report.modes)} modes" if len(report.modes) > 1 else ""
    if report.verdict == "violated":
        return f"{name} breaks {count['violated']} of {plural(len(claims), 'promise')}{where}"
    if report.verdict == "conforming":
        open_ = f", {count['undecided']} undecided" if count["undecided"] else ""
        checked = plural(len(claims) - count["undecided"], "claim")
        return f"{name} conforms: {checked} checked{where}, none violated{open_}"
    if report.verdict == "measured":
        return f"{name} is lossy on purpose: measured, not judged"
    return f"No verdict on {name}"


def reason(report: Report) -> str:
    """Why there is no verdict, or why the audit ended early; empty where it went through."""
    if report.error:
        return report.error
    if report.run.stopped == "interrupted":
        return "The audit was interrupted; this is what it had seen by then."
    if report.run.stopped == "error":
        return "The audit ended early with an error."
    if report.verdict == "inconclusive" and report.incidents:
        return f"{plural(len(report.incidents), 'incident')}: the adapter failed while it was called."
    if report.verdict == "inconclusive":
        return "Nothing that was checked could be decided within the budget."
    return ""


def error_rate(alpha: float) -> str:
    """What alpha promises."""
    exponent = -math.log10(alpha) if 0 < alpha < 1 else 0.0
    return f"An audit accuses a correct implementation with probability at most 1 in {power_of_ten(exponent)}."


def how_sure(finding: Finding, alpha: float) -> str:
    """The bound on the chance of a false finding, in a sentence.

    By Ville's inequality the wealth of a claim reaches `exp(evidence)` with probability at most `exp(-evidence)` where the
    claim holds; over all claims (whose weights sum to at most 1) that makes `alpha * exp(threshold - evidence)`.
    """
    if finding.threshold <= 0 or not 0 < alpha < 1:
        return "It was seen directly; no statistics are needed."
    exponent = (finding.evidence - finding.threshold) / math.log(10) - math.log10(alpha)
    return f"A correct implementation would show evidence this strong in at most 1 audit in {power_of_ten(max(0, exponent))}."


def confirmation(value: Confirmation) -> str:
    """What fresh draws said about a finding."""
    tests = [f"evidence {number(value.evidence, 3)} nats"]
    if value.p_value is not None:
        tests.append(f"chi-square {p_value(value.p_value)}")
    if value.tv is not None:
        low = f" (at least {number(value.tv_low, 3)})" if value.tv_low is not None else ""
        tests.append(f"total variation {number(value.tv, 3)}{low}")
    verb = "Confirmed" if value.confirmed else "Not confirmed"
    return f"{verb} on {plural(value.rounds, 'fresh round')}: {', '.join(tests)}."


def severity(value: float | None) -> str:
    """How often a fault is followed."""
    if value is None:
        return ""
    return "every time" if value >= 0.995 else f"in about {number(100 * value, 2)} % of events"


def diagnosis(value: Diagnosis) -> list[str]:
    """The diagnosis in sentences: what the implementation does, how decided that is, and whether fresh data fit it."""
    lines = []
    if value.fault == UNLISTED:
        lines.append(value.words or "No listed fault explains it.")
    else:
        often = severity(value.severity)
        lines.append(f"{value.words} [{value.fault}{', ' + often if often else ''}]")
        if value.decided > 0:
            factor = power_of_ten(value.decided / math.log(10))
            lines.append(f"It explains what was seen {factor} times better than any explanation that differs from it.")
    if value.fit_p_value is not None:
        verdict = "fits" if value.fit_p_value >= 1e-3 and value.fault != UNLISTED else "does not fit"
        subject = "The best listed fault" if value.fault == UNLISTED else "It"
        lines.append(f"{subject} {verdict} fresh data ({p_value(value.fit_p_value)}).")
    if value.equal_to:
        lines.append(f"No case of this run tells it apart from: {', '.join(value.equal_to)}.")
    return lines


def told_before(mode: ModeResult, finding: Finding, part: Literal["diagnosis", "snippet"]) -> Finding | None:
    """The earlier finding of the mode that has the same diagnosis or program, so that it is told once."""
    for other in mode.findings:
        if other is finding:
            return None
        if getattr(other, part) and getattr(other, part) == getattr(finding, part):
            return other
    return None


def assurance(entries: Sequence[Assurance]) -> list[tuple[str, int]]:
    """How many listed faults this run would have caught, by how often the fault strikes: (words, count)."""
    frequencies = (("1 in 1,000", 0.001), ("1 in 100", 0.01), ("1 in 10", 0.1), ("every event", 1.0))
    return [
        (label, sum(entry.severity is not None and entry.severity <= limit for entry in entries))
        for label, limit in frequencies
    ]


def missed(entries: Sequence[Assurance]) -> list[str]:
    """The listed faults that this run could have missed at every severity."""
    return [entry.fault for entry in entries if entry.severity is None]


def power(entries: Sequence[Assurance]) -> str:
    """The probability that an assurance is about."""
    return number(min((entry.power for entry in entries), default=0.99), 3)


def assurance_line(entries: Sequence[Assurance]) -> str:
    """The assurance in a line; empty where there is none."""
    if not entries:
        return ""
    counts = ", ".join(f"{count} at {label}" for label, count in assurance(entries))
    faults = missed(entries)
    rest = f"; could be missed: {', '.join(faults[:5])}{' and more' if len(faults) > 5 else ''}" if faults else ""
    return (
        f"Of {plural(len(entries), 'listed fault')}, by the share of events that they strike, this run would have caught "
        f"with probability {power(entries)}: {counts}{rest}."
    )
