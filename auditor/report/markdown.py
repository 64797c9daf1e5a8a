"""The report as Markdown, for a pull-request comment or a job summary."""

from __future__ import annotations

import re

from auditor.report import words
from auditor.results import CaseData, Finding, Incident, LawTable, ModeResult, Proof, Report

LIMIT = 65_000
"""Bytes of UTF-8. A comment on GitHub holds 65,536 characters."""
_SIGNS = {"holds": "✅", "violated": "❌", "skipped": "➖", "undecided": "❔"}
_VERDICTS = {"conforming": "✅", "violated": "❌", "measured": "📏", "inconclusive": "❔"}
_MOST_ROWS = 12


def render(report: Report, limit: int = LIMIT) -> str:
    """The text of `report.md`, at most `limit` bytes long; where something had to be left out, the last line says so."""
    report = words.cleaned(report)
    blocks = [_head(report)]
    for mode in report.modes:
        several = len(report.modes) > 1 or bool(mode.name)
        if several:
            blocks.append(f"## {_text(words.mode_title(mode))}\n\n_Rule `{_code(mode.rule)}`._ {_text(mode.summary)}")
        blocks.append(_claims(mode))
        blocks += [_finding(finding, mode, report.run.alpha) for finding in mode.findings]
        blocks += [_incident(incident) for incident in mode.incidents]
        blocks += [_proof(mode.proof)] if mode.proof else []
        blocks += [f"**What a pass excludes.** {_text(words.assurance_line(mode.assurance))}"] if mode.assurance else []
    blocks.append(_facts(report))
    return _fit([block for block in blocks if block], limit)


def _fit(blocks: list[str], limit: int) -> str:
    whole = "\n\n".join(blocks) + "\n"
    if len(whole.encode()) <= limit:
        return whole
    kept: list[str] = []
    left = limit - 200
    for block in blocks:
        size = len(block.encode()) + 2
        if size > left:
            break
        kept.append(block)
        left -= size
    out = words.plural(len(blocks) - len(kept), "section")
    return (
        "\n\n".join([*kept, f"_Cut to fit: {out} left out here; report.html and report.json have everything._"]) + "\n"
    )


def _head(report: Report) -> str:
    lines = [f"# {_VERDICTS[report.verdict]} {_text(words.headline(report))}"]
    if words.reason(report):
        lines.append(_text(words.reason(report)))
    if report.findings:
        first = report.findings[0]
        lines.append(f"**{_text(first.title)}.** {words.how_sure(first, report.run.alpha)}")
        if first.replay:
            lines.append(f"Reproduce it:\n\n{_fence(first.replay, 'sh', 1000)}")
    else:
        lines.append(words.error_rate(report.run.alpha))
    return "\n\n".join(lines)


def _claims(mode: ModeResult) -> str:
    if not mode.claims:
        return ""
    lines = ["| | claim | evidence / threshold (nats) | events | |", "|---|---|--:|--:|---|"]
    for claim in mode.claims:
        judged = claim.status != "skipped"
        evidence = (
            f"{words.number(claim.evidence, 3)} / {words.number(claim.threshold, 3)}" if claim.threshold > 0 else ""
        )
        said = " ".join(_text(part, 300) for part in (claim.finding, claim.reason or claim.detail) if part)
        lines.append(
            f"| {_SIGNS[claim.status]} {claim.status} | `{_code(claim.id)}` | {evidence} | "
            f"{f'{claim.events:,}' if judged else ''} | {said} |"
        )
    return "\n".join(lines)


def _finding(finding: Finding, mode: ModeResult, alpha: float) -> str:
    lines = [
        f"### {_text(finding.id)} · {_text(finding.title)}",
        f"`{_code(finding.claim)}` · evidence {words.number(finding.evidence, 3)} nats, "
        f"{words.number(finding.threshold, 3)} needed · after {words.plural(finding.rounds, 'round')}",
        _text(finding.text, 4000),
        words.how_sure(finding, alpha),
    ]
    if finding.confirmation:
        lines.append(words.confirmation(finding.confirmation))
    case = finding.smallest or finding.case
    if case:
        lines.append(("Smallest case: " if finding.smallest else "Case: ") + _case(case))
    lines += [_law(table) for table in finding.laws[:3]]
    told = words.told_before(mode, finding, "diagnosis")
    if finding.diagnosis and told:
        lines.append(f"**Diagnosis.** As for {_text(told.id)}: {_text(finding.diagnosis.words)}")
    elif finding.diagnosis:
        lines.append("**Diagnosis.** " + _text(" ".join(words.diagnosis(finding.diagnosis)), 2000))
        if finding.diagnosis.runners_up:
            lines.append(
                "\n".join(
                    f"- {_text(other.words)} ({words.number(other.behind, 3)} nats behind)"
                    for other in finding.diagnosis.runners_up[:4]
                )
            )
    if finding.replay:
        lines.append(_fence(finding.replay, "sh", 1000))
    if finding.snippet and not words.told_before(mode, finding, "snippet"):
        program = _fence(finding.snippet, "python", 6000)
        lines.append(f"<details><summary>Stand-alone Python program</summary>\n\n{program}\n\n</details>")
    return "\n\n".join(line for line in lines if line)


def _case(case: CaseData) -> str:
    rows = "\n".join(f"{name} = {words.law(row)}" for name, row in words.case_rows(case))
    left = words.case_left_out(case)
    title = _text(words.case_title(case))
    return "\n\n".join(part for part in (title, _fence(rows, "", 3000) if rows else "", _text(left)) if part)


def _law(table: LawTable) -> str:
    if not table.outcomes:
        return ""
    named = [
        ("draft", table.draft),
        ("target", table.target),
        ("expected", table.expected),
        ("observed", table.observed),
    ]
    columns = [(name, values) for name, values in named if values]
    lines = [
        f"_{_text(table.what)}, {words.plural(table.draws, 'draw')}_",
        "",
        "| outcome | " + " | ".join(name for name, _ in columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for i, outcome in enumerate(table.outcomes[:_MOST_ROWS]):
        cells = (words.cell(values[i] if i < len(values) else None) for _, values in columns)
        lines.append(f"| {_text(outcome, 60)} | {' | '.join(cells)} |")
    if len(table.outcomes) > _MOST_ROWS:
        lines += ["", f"_{words.plural(len(table.outcomes) - _MOST_ROWS, 'more outcome')} in report.json._"]
    return "\n".join(lines)


def _incident(incident: Incident) -> str:
    lines = [f"### ⚠️ {_text(incident.kind)}: {_text(incident.text)}"]
    if incident.case:
        lines.append(_case(incident.case))
    if incident.traceback:
        program = _fence(incident.traceback, "", 4000)
        lines.append(f"<details><summary>What it said</summary>\n\n{program}\n\n</details>")
    return "\n\n".join(lines)


def _proof(proof: Proof) -> str:
    outcomes = [str(token) for token in range(len(proof.target))]
    table = LawTable("Proof by counting", outcomes, [], proof.observed, proof.rounds, proof.target, proof.draft)
    tests = [
        f"largest gap {words.number(proof.largest_gap, 3)}",
        f"chi-square {words.p_value(proof.p_value)}",
        f"total variation {words.interval(proof.tv, (proof.tv_low, proof.tv_high), 3)}",
    ]
    if proof.acceptance is not None:
        tests.append(
            f"acceptance {words.number(proof.acceptance)} (promised {words.number(proof.acceptance_expected)})"
        )
    if proof.tokens_per_pass is not None:
        promised = words.number(proof.tokens_per_pass_expected)
        tests.append(f"tokens per target pass {words.number(proof.tokens_per_pass)} (promised {promised})")
    return "\n\n".join(part for part in (_law(table), "; ".join(tests) + ".", _text(proof.note)) if part)


def _facts(report: Report) -> str:
    run, adapter = report.run, report.adapter
    facts = [f"speculative-audit {run.version}", f"seed {run.seed}", f"alpha {words.number(run.alpha)}"]
    facts += [words.plural(run.rounds, "round"), f"{run.seconds:.0f} s"]
    facts += [f"{name} {version}" for name, version in adapter.engine.items()]
    lines = f"<sub>{_text(' · '.join(facts), 1000)}</sub>"
    return f"{lines}\n\n{_fence(run.command, 'sh', 1000)}" if run.command else lines


def _text(value: str, limit: int = 300) -> str:
    """One line of text that Markdown and HTML take as it is, and that notifies nobody."""
    line = " ".join(words.shorten(value, limit).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)
    return line.replace("@", "@<!-- -->")


def _code(value: str, limit: int = 100) -> str:
    """The inside of a code span in a table."""
    return " ".join(words.shorten(value, limit).split()).replace("`", "'").replace("|", "\\|")


def _fence(value: str, language: str, limit: int) -> str:
    """A code block whose fence is longer than any in it."""
    runs = [len(run) for run in re.findall(r"`+", value)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return f"{fence}{language}\n{words.shorten(value, limit).rstrip()}\n{fence}"
