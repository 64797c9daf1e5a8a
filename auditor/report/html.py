"""The report as one HTML page: no script, no network, dark and light, phone and print."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2
from markupsafe import Markup

from auditor.report import figures, words
from auditor.results import CaseData, CaseResult, Finding, LawTable, ModeResult, Proof, Report

MOST_TOKENS = 12
MOST_ROWS = 24


def render(report: Report) -> str:
    """The text of `report.html`."""
    report = words.cleaned(report)
    page = _environment().get_template("page.html.j2")
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    return page.render(report=report, style=Markup(style), matrix=_matrix(report) if len(report.modes) > 1 else [])


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number, cell=words.cell, gap=words.gap, p_value=words.p_value, seconds=words.seconds
    )
    environment.globals.update(
        words=words,
        finding_figure=_finding_figure,
        proof_figure=_proof_figure,
        mode_figures=_mode_figures,
        case_table=_case_table,
        law_rows=_law_rows,
        finding_index=_finding_index,
        visits=_visits,
    )
    return environment


def _finding_figure(table: LawTable, key: str) -> Markup:
    return Markup(figures.laws(table, key))


def _proof_figure(proof: Proof, key: str) -> Markup:
    outcomes = [str(token) for token in range(len(proof.target))]
    table = LawTable("Proof by counting", outcomes, [], proof.observed, proof.rounds, proof.target, proof.draft)
    return Markup(figures.laws(table, key))


def _mode_figures(mode: ModeResult, key: str) -> list[tuple[Markup, str, str]]:
    """The figures of a mode that have something to show, each with its name and its caption."""
    acceptance = mode.metrics.acceptance
    drawn = [
        (
            figures.acceptance_over_overlap(mode.cases, f"{key}-overlap"),
            "Acceptance against 1 − TV(p, q)",
            "Each dot is a case. Under the rejection rule a draft is accepted with mean probability 1 − TV(p, q), so dots "
            "belong on the diagonal. Where the positions of a round differ, reached positions weigh more, and a ring "
            "shows what the rule promises for that case.",
        ),
        (
            figures.acceptance_over_divergence(mode.cases, f"{key}-divergence"),
            "Acceptance against KL(p ‖ q)",
            "The better the draft model, the smaller KL(p ‖ q) and the higher the acceptance. The dashed line is the "
            "least overlap of two laws with that divergence: a correct rejection sampler stays above it, up to noise.",
        ),
        (
            figures.tokens_over_length(mode.cases, acceptance, f"{key}-tokens"),
            "Tokens per target pass over draft length",
            "Dots are observed, rings what the rule promises for the same case; they belong together. The lines are "
            "(1 − a^(gamma+1)) / (1 − a), for a constant acceptance a.",
        ),
        (
            figures.speedup_over_length(acceptance, f"{key}-speedup"),
            "Speed-up over draft length",
            f"What the measured acceptance of {words.number(acceptance, 3)} (over the cases of this audit) would gain "
            "where a target pass costs 10, 20 or 50 draft passes (Leviathan et al. 2023, theorem 3.8).",
        ),
    ]
    return [(Markup(figure), name, caption) for figure, name, caption in drawn if figure]


def _case_table(case: CaseData) -> list[tuple[str, list[float], int]]:
    """(name, first probabilities, how many more) for each law of the case."""
    return [(name, row[:MOST_TOKENS], max(0, len(row) - MOST_TOKENS)) for name, row in words.case_rows(case)]


def _law_rows(table: LawTable) -> tuple[list[tuple[str, list[float | None], float]], int]:
    """(outcome, [expected, observed, target, draft], gap) for each outcome, and how many are left out.

    Where there are too many to print, those with the largest gaps are shown, in their order.
    """
    columns = [table.expected, table.observed, table.target, table.draft]
    rows = []
    for i, outcome in enumerate(table.outcomes):
        values = [column[i] if column and i < len(column) else None for column in columns]
        rows.append((outcome, values, (values[1] or 0.0) - (values[0] or 0.0)))
    if len(rows) <= MOST_ROWS:
        return rows, 0
    least = sorted((abs(row[2]) for row in rows), reverse=True)[MOST_ROWS - 1]
    return [row for row in rows if abs(row[2]) >= least][:MOST_ROWS], len(rows) - MOST_ROWS


def _finding_index(mode: ModeResult, name: str | None) -> int:
    """The place of a finding in its mode, from 1; 0 where there is none of that name."""
    return next((i for i, finding in enumerate(mode.findings, start=1) if finding.id == name), 0)


def _visits(mode: ModeResult, finding: Finding) -> list[tuple[CaseResult, float]]:
    """The visits to cases that the evidence came from, at most five."""
    known = {case.index: case for case in mode.cases}
    return [(known[index], nats) for index, nats in finding.log if index in known][:5]


def _matrix(report: Report) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(claim, promise, [(status, anchor) for each mode]) for every claim of any mode, in the order of the report."""
    promises = {claim.id: claim.promise for mode in report.modes for claim in mode.claims}
    rows = []
    for name, promise in promises.items():
        cells = []
        for m, mode in enumerate(report.modes, start=1):
            place = next((i for i, claim in enumerate(mode.claims, start=1) if claim.id == name), 0)
            cells.append((mode.claims[place - 1].status, f"m{m}-c{place}") if place else ("", ""))
        rows.append((name, promise, cells))
    return rows
