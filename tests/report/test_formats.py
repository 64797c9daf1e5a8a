"""What the realistic reports look like in each format."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from auditor import results
from auditor.events import CaseDone, ClaimViolated, FindingReady, Finished, IncidentSeen, Phase, Started
from auditor.report import figures, html, junit, markdown, write
from auditor.report.terminal import Terminal
from auditor.results import Report


def started(report: Report) -> Started:
    """The first event of the audit that the report is of."""
    mode = report.modes[0]
    skipped = tuple((claim.id, claim.reason) for claim in mode.claims if claim.status == "skipped")
    checked = tuple(claim.id for claim in mode.claims if claim.status != "skipped")
    run = report.run
    return Started(
        adapter=report.adapter,
        modes=tuple(mode.name for mode in report.modes),
        methods=tuple(mode.methods),
        rule=mode.rule,
        tolerance=mode.tolerance,
        alpha=run.alpha,
        seed=run.seed,
        max_rounds=run.max_rounds,
        max_seconds=run.max_seconds,
        claims=checked,
        skipped=skipped,
    )


def events(report: Report) -> list[object]:
    """An audit as a handler of events sees it."""
    mode = report.modes[0]
    said: list[object] = [started(report), Phase(mode.name, "generated cases")]
    for k, case in enumerate(mode.cases[:40]):
        said.append(CaseDone(mode.name, case, 3000 * k, 1.0 * k, ("output-law", 0.4 * k, 16.3)))
    for finding in mode.findings:
        said += [
            ClaimViolated(mode.name, finding.claim, finding.evidence, finding.threshold, 412, 0.3, "it leads so far"),
            FindingReady(finding),
        ]
    incident = results.Incident(
        "raised", "IndexError: 7", mode.name, "verify", mode.cases[0].case, 3, "Traceback …", True
    )
    return [*said, IncidentSeen(incident), Finished(report)]


def shown(report: Report, *, terminal: bool = False, quiet: bool = False) -> str:
    """What an audit prints at 80 columns."""
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=terminal, highlight=False)
    with Terminal(console, quiet=quiet) as handler:
        for event in events(report):
            handler(event)  # type: ignore[arg-type]
    return stream.getvalue()


def test_the_terminal_says_what_is_wrong_how_sure_and_how_to_see_it_again(violated: Report) -> None:
    text = shown(violated)
    for words in (
        "step (variant=naive) · numpy 2.2.1",
        "rule rejection, tolerance 1e-06",
        "200,000 rounds, at most 120 s",
        "✗ residual-law is violated after 412 rounds",
        "at most 1 audit in\n  10⁹",
        "Smallest case: V = 2, gamma = 1",
        "q[0] = (1, 0)",
        "413 nats behind",
        "audit replay audit-report/F1.json",
        "Proof by counting, 200,000 fresh rounds",
        "! raised: IndexError: 7",
        "✗ step breaks 2 of 10 promises",
    ):
        assert words in text, words
    report = text[text.index("\nclaim ") :]
    assert max(len(line.rstrip()) for line in report.splitlines()) <= 80


def test_a_log_gets_a_line_of_progress_now_and_then(violated: Report) -> None:
    lines = [line for line in shown(violated).splitlines() if "strongest: output-law" in line]
    assert len(lines) == 2
    assert lines[0] == "  45,000 rounds, 15 s, generated cases; strongest: output-law at 37% of the threshold"


def test_a_terminal_gets_progress_in_place_and_its_cursor_back(violated: Report) -> None:
    text = shown(violated, terminal=True)
    assert "of what it takes, against output-law" in text
    assert text.rindex("\x1b[?25l") < text.rindex("\x1b[?25h")


def test_close_gives_the_cursor_back_after_an_error(violated: Report) -> None:
    stream = io.StringIO()

    def interrupted() -> None:
        with Terminal(Console(file=stream, width=80, force_terminal=True)) as handler:
            for event in events(violated)[:5]:
                handler(event)  # type: ignore[arg-type]
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert stream.getvalue().rindex("\x1b[?25l") < stream.getvalue().rindex("\x1b[?25h")


def test_quiet_is_one_line(violated: Report, conforming: Report) -> None:
    assert shown(violated, quiet=True) == (
        "✗ violated: step breaks 2 of 10 promises; After a rejection it samples from the target, not from the residual\n"
    )
    assert shown(conforming, quiet=True).count("\n") == 1


def test_a_terminal_without_unicode_is_no_obstacle(
    violated: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        Terminal()(Finished(violated))
    assert b"step breaks 2 of 10 promises" in (tmp_path / "out").read_bytes()


def test_html_answers_the_three_questions_first(violated: Report) -> None:
    text = html.render(violated)
    top = text[: text.index("<h2 id=")]
    for words in ("What is wrong", "How sure it is", "How to reproduce it", "audit replay audit-report/F1.json", "10⁹"):
        assert words in top
    assert top.count("<svg") == 1


def test_html_has_every_figure_of_every_mode(violated: Report, conforming: Report) -> None:
    assert html.render(violated).count("<svg") == 1 + 2 + 1 + 4
    text = html.render(conforming)
    assert text.count("<svg") == 2 * (1 + 4)
    assert "Modes and claims" in text
    assert 'href="#m2-c3"' in text


def test_html_escapes_what_the_adapter_says(violated: Report) -> None:
    evil = "<script>alert(1)</script>"
    mode = violated.modes[0]
    finding = replace(
        mode.findings[0],
        title=evil,
        text=evil,
        replay=evil,
        snippet=evil,
        laws=[replace(mode.findings[0].laws[0], what=evil, outcomes=[evil, evil])],
    )
    incident = results.Incident("raised", evil, evil, "verify", traceback=evil)
    report = replace(
        violated,
        adapter=replace(violated.adapter, name=evil, source=evil, options={evil: evil}, summary=evil),
        modes=[replace(mode, name=evil, findings=[finding], incidents=[incident])] * 2,
    )
    assert "<script" not in html.render(report)
    assert "<script" not in markdown.render(report).split("```")[0]


def test_figures_without_data_are_left_out() -> None:
    assert figures.acceptance_over_overlap([], "k") == ""
    assert figures.acceptance_over_divergence([], "k") == ""
    assert figures.tokens_over_length([], 0.7, "k") == ""
    assert figures.speedup_over_length(None, "k") == ""
    assert figures.laws(results.LawTable("", [], [], [], 0), "k") == ""


def test_the_speedup_figure_marks_the_best_length() -> None:
    text = figures.speedup_over_length(0.9, "k")
    assert "3.43× at 10" in text
    assert "4.67× at 13" in text
    assert "6.37× at 19" in text
    assert "does not pay" in figures.speedup_over_length(0.0, "k")


def test_a_large_law_shows_the_outcomes_with_the_largest_gaps(violated: Report) -> None:
    expected = [0.001] * 1000
    observed = [*expected[:-1], 0.1]
    table = results.LawTable("Token", [str(k) for k in range(1000)], expected, observed, 10_000, rest=0.2)
    finding = replace(violated.modes[0].findings[0], laws=[table])
    report = replace(violated, modes=[replace(violated.modes[0], findings=[finding])])
    text = html.render(report)
    assert ">999</text>" in text
    assert "976 outcomes with smaller gaps not shown" in text
    assert "The outcomes that are not listed have probability 0.2 together." in text


def test_markdown_of_a_huge_report_is_cut_and_says_so(violated: Report) -> None:
    mode = violated.modes[0]
    report = replace(violated, modes=[replace(mode, findings=mode.findings * 60)])
    text = markdown.render(report)
    assert len(text) < 65_536
    assert "left out here; report.html and report.json have everything" in text.splitlines()[-1]
    assert text.count("```") % 2 == 0


def test_a_code_block_cannot_be_left(violated: Report) -> None:
    mode = violated.modes[0]
    finding = replace(mode.findings[0], snippet="x = '''\n````\n# out\n'''")
    text = markdown.render(replace(violated, modes=[replace(mode, findings=[finding])]))
    assert "`````python\nx = '''\n````\n# out\n'''\n`````" in text


def test_junit_has_a_test_case_for_each_claim_of_each_mode(violated: Report, conforming: Report) -> None:
    root = ElementTree.fromstring(junit.render(violated))
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "12",
        "failures": "2",
        "errors": "0",
        "skipped": "2",
    }
    failure = root.find("testsuite/testcase[@name='residual-law']/failure")
    assert failure is not None
    assert failure.get("message") == violated.findings[0].title
    assert "q[0] = (1, 0)" in (failure.text or "")
    assert "audit replay audit-report/F1.json" in (failure.text or "")
    suites = ElementTree.fromstring(junit.render(conforming)).findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["reference.draft-model", "reference.prompt-lookup"]


def test_junit_of_an_audit_that_ended_early_has_an_error(violated: Report) -> None:
    report = replace(violated, verdict="inconclusive", error="the adapter has no method \x00", modes=[])
    error = ElementTree.fromstring(junit.render(report)).find("testsuite/testcase[@name='audit']/error")
    assert error is not None
    assert error.get("message") == "the adapter has no method \ufffd"


def test_writing_replaces_and_leaves_nothing_behind(violated: Report, conforming: Report, tmp_path: Path) -> None:
    write(violated, tmp_path)
    paths = write(conforming, tmp_path)
    assert results.decode((tmp_path / "report.json").read_text()) == conforming
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_renderer_that_fails_leaves_the_data_and_no_half_file(
    violated: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(report: Report) -> str:
        raise RuntimeError

    monkeypatch.setattr(html, "render", fail)
    with pytest.raises(RuntimeError):
        write(violated, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
