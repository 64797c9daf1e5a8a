"""The report on a terminal, as it stands at the end of an audit. Everything fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from auditor.report import words
from auditor.results import CaseData, Finding, Incident, LawTable, ModeResult, Proof, Report

_COLOURS = {
    "holds": "green",
    "violated": "red",
    "skipped": "dim",
    "undecided": "yellow",
    "conforming": "green",
    "measured": "blue",
    "inconclusive": "yellow",
}
_MOST_ROWS = 12


IN_FULL = 2
"""Findings of a mode that the terminal shows in full; the others are named here and stand in the written reports."""


def one_line(report: Report) -> Text:
    """The verdict in a line."""
    line = Text(f"{words.VERDICT_SIGNS[report.verdict]} {report.verdict}: ", f"bold {_COLOURS[report.verdict]}")
    line.append(words.headline(report), "not bold default")
    why = report.findings[0].title if report.findings else words.reason(report)
    return line.append(f"; {why}" if why else "", "not bold default")


def show(report: Report, console: Console) -> None:
    """Print the whole report; its texts are taken as they are, see `words.cleaned`."""
    several = len(report.modes) > 1
    for mode in report.modes:
        if several or mode.name:
            console.print()
            console.print(Rule(Text(words.mode_title(mode), "bold"), align="left", style="dim"))
        _mode(mode, report.run.alpha, console)
    console.print()
    colour = _COLOURS[report.verdict]
    console.print(Rule(style=colour))
    console.print(Text(f"{words.VERDICT_SIGNS[report.verdict]} {words.headline(report)}", f"bold {colour}"))
    for finding in report.findings[:5]:
        console.print(Text(f"  {finding.id}  {finding.title}"))
    if len(report.findings) > 5:
        console.print(Text(f"  and {words.plural(len(report.findings) - 5, 'more finding')}", "dim"))
    if words.reason(report):
        console.print(Text(words.reason(report)))
    console.print(Text(words.error_rate(report.run.alpha), "dim"))
    run = report.run
    used = f"{words.plural(run.rounds, 'round')} in {words.seconds(run.seconds)}, seed {run.seed}"
    console.print(Text(used + ("; stopped by the time limit" if run.stopped == "time" else ""), "dim"))


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _mode(mode: ModeResult, alpha: float, console: Console) -> None:
    if mode.claims:
        console.print()
        console.print(_claims(mode))
    for finding in mode.findings[:IN_FULL]:
        _finding(finding, mode, alpha, console)
    for finding in mode.findings[IN_FULL:]:
        console.print()
        console.print(Text(f"{finding.id}  {finding.title}", "bold red"))
        _indented(console, Text(finding.text))
    for incident in mode.incidents:
        _incident(incident, console)
    if mode.proof:
        _proof(mode.proof, console)
    if mode.metrics.tv_from_target:
        value, low, high = mode.metrics.tv_from_target
        console.print(Text(f"\nTotal variation from the target: {words.interval(value, (low, high), 3)}"))
    if mode.assurance:
        console.print()
        console.print(Text(words.assurance_line(mode.assurance)))


def _claims(mode: ModeResult) -> Table:
    table = _table()
    table.add_column("claim", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("evidence", justify="right", no_wrap=True)
    table.add_column("events", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    skipped = [c for c in mode.claims if c.status == "skipped"]
    for claim in mode.claims:
        if claim in skipped:
            continue
        colour = _COLOURS[claim.status]
        evidence = (
            f"{words.number(claim.evidence, 3)} / {words.number(claim.threshold, 3)}" if claim.threshold > 0 else "–"
        )
        table.add_row(
            Text(claim.id),
            Text(f"{words.STATUS_SIGNS[claim.status]} {claim.status}", colour),
            Text(evidence),
            Text(f"{claim.events:,}", "dim"),
            Text(claim.finding or claim.reason or claim.detail, "dim"),  # a finding has its own words below
        )
    if skipped:
        # What cannot be shown is one row here; the reasons stand in the written reports.
        table.add_row(
            Text("skipped", "dim"),
            Text(str(len(skipped)), "dim"),
            "",
            "",
            Text(", ".join(c.id for c in skipped), "dim"),
        )
    return table


def _finding(finding: Finding, mode: ModeResult, alpha: float, console: Console) -> None:
    console.print()
    console.print(Text(f"{finding.id}  {finding.title}", "bold red"))
    about = f"{finding.claim}, after {words.plural(finding.rounds, 'round')} and {words.seconds(finding.seconds)}"
    _indented(console, Text(about + (f", method {finding.method}" if finding.method else ""), "dim"))
    _indented(console, Text(finding.text))
    _indented(console, Text(words.how_sure(finding, alpha)))
    if finding.confirmation:
        _indented(console, Text(words.confirmation(finding.confirmation)))
    case = finding.smallest or finding.case
    if case:
        _heading(console, f"{'Smallest case' if finding.smallest else 'Case'}: {words.case_title(case)}")
        _rows(case, console)
    for table in finding.laws[:3]:
        _heading(console, f"{table.what}, {words.plural(table.draws, 'draw')}")
        _law(table, console)
    told = words.told_before(mode, finding, "diagnosis")
    if finding.diagnosis and told:
        _heading(console, "Diagnosis")
        _indented(console, Text(f"As for {told.id}: {finding.diagnosis.words}"))
    elif finding.diagnosis:
        _heading(console, "Diagnosis")
        for line in words.diagnosis(finding.diagnosis):
            _indented(console, Text(line))
        for other in finding.diagnosis.runners_up[:3]:
            _indented(console, Text(f"{words.number(other.behind, 3)} nats behind: {other.words}", "dim"))
    if finding.replay:
        _heading(console, "Run it again")
        console.print(Text(f"  {finding.replay}", "cyan"), soft_wrap=True)  # in one piece, to be copied


def _rows(case: CaseData, console: Console) -> None:
    for name, row in words.case_rows(case):
        _indented(console, Text(f"{name} = {words.law(row)}"))
    if words.case_left_out(case):
        _indented(console, Text(words.case_left_out(case), "dim"))


def _law(law: LawTable, console: Console) -> None:
    named = [("draft", law.draft), ("target", law.target), ("expected", law.expected), ("observed", law.observed)]
    columns = [(name, values) for name, values in named if values]
    table = _table()
    table.add_column("outcome", overflow="fold", max_width=24)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    promised = law.expected or law.target
    table.add_column("gap", justify="right", no_wrap=True)
    for i, outcome in enumerate(law.outcomes[:_MOST_ROWS]):
        cells = [Text(words.cell(values[i] if i < len(values) else None)) for _, values in columns]
        known = promised is not None and i < len(promised) and i < len(law.observed)
        gap = words.gap(law.observed[i] - promised[i]) if known and promised else "–"
        table.add_row(Text(outcome), *cells, Text(gap, "bold"))
    console.print(Padding(table, (0, 0, 0, 2)))
    if len(law.outcomes) > _MOST_ROWS:
        _indented(console, Text(f"{words.plural(len(law.outcomes) - _MOST_ROWS, 'more outcome')} in the report", "dim"))


def _incident(incident: Incident, console: Console) -> None:
    console.print()
    console.print(Text(f"! {incident.kind}: {incident.text}", "bold yellow"))
    again = {None: "not tried again", True: "the same case failed again", False: "the same case did not fail again"}
    about = [f"method {incident.method}"] if incident.method else []
    _indented(console, Text(", ".join([*about, f"seed {incident.seed}", again[incident.repeated]]), "dim"))
    if incident.case:
        _indented(console, Text(words.case_title(incident.case)))
        _rows(incident.case, console)
    if incident.traceback:
        _indented(console, Text("\n".join(incident.traceback.rstrip().splitlines()[-8:]), "dim"))


def _proof(proof: Proof, console: Console) -> None:
    console.print()
    console.print(Text(f"Proof by counting, {words.plural(proof.rounds, 'fresh round')} of {proof.method}", "bold"))
    outcomes = [str(token) for token in range(len(proof.target))]
    _law(LawTable("", outcomes, [], proof.observed, proof.rounds, proof.target, proof.draft), console)
    rows = [
        ("largest gap", f"{words.number(proof.largest_gap, 3)} at token {proof.largest_gap_token}"),
        (
            "chi-square",
            f"{words.number(proof.chi_square, 3)} ({proof.degrees_of_freedom} df), {words.p_value(proof.p_value)}",
        ),
        ("total variation", words.interval(proof.tv, (proof.tv_low, proof.tv_high), 3)),
    ]
    for name, value, bounds, promised in (
        ("acceptance", proof.acceptance, proof.acceptance_interval, proof.acceptance_expected),
        ("tokens per pass", proof.tokens_per_pass, proof.tokens_per_pass_interval, proof.tokens_per_pass_expected),
    ):
        if value is not None:
            said = words.interval(value, bounds)
            rows.append((name, f"{said}, promised {words.number(promised)}" if promised is not None else said))
    console.print(Padding(facts(rows), (0, 0, 0, 2)))
    if proof.note:
        _indented(console, Text(proof.note, "yellow"))


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)


def _heading(console: Console, line: str) -> None:
    console.print()
    _indented(console, Text(line, "bold"))


def _indented(console: Console, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, 2)))
