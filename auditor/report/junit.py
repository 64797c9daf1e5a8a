"""The report as JUnit XML: one test case per claim and mode, for CI systems that show such files."""

from __future__ import annotations

from xml.etree import ElementTree

from auditor.report import words
from auditor.results import ClaimResult, Finding, Incident, LawTable, ModeResult, Report


def render(report: Report) -> str:
    """The text of `junit.xml`: a violated claim is a failure, a skipped or undecided one skipped, an incident an error."""
    report = words.cleaned(report)
    root = ElementTree.Element("testsuites", name="speculative-audit")
    suites = [_mode(report, mode) for mode in report.modes]
    if report.error:
        suite = ElementTree.Element("testsuite", name=report.adapter.name)
        case = _case(suite, report.adapter.name, "audit")
        ElementTree.SubElement(case, "error", message=report.error, type="audit").text = report.error
        suites.append(_counted(suite))
    root.extend(suites)
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in suites)))
    root.set("time", f"{report.run.seconds:.3f}")
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _mode(report: Report, mode: ModeResult) -> ElementTree.Element:
    name = f"{report.adapter.name}.{mode.name}" if mode.name else report.adapter.name
    suite = ElementTree.Element("testsuite", name=name, timestamp=report.run.started)
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in (
        ("version", report.run.version),
        ("seed", str(report.run.seed)),
        ("alpha", words.number(report.run.alpha)),
        ("rule", mode.rule),
        ("command", report.run.command),
        *report.adapter.engine.items(),
    ):
        ElementTree.SubElement(properties, "property", name=key, value=value)
    findings = {finding.id: finding for finding in mode.findings}
    for claim in mode.claims:
        case = _case(suite, name, claim.id)
        if claim.status == "violated":
            _failure(case, claim, findings.get(claim.finding or ""), report.run.alpha)
        elif claim.status in ("skipped", "undecided"):
            ElementTree.SubElement(case, "skipped", message=claim.reason or claim.status)
    for number, incident in enumerate(mode.incidents, start=1):
        _incident(_case(suite, name, f"incident {number}"), incident)
    return _counted(suite)


def _case(suite: ElementTree.Element, classname: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=classname, name=name, time="0")


def _counted(suite: ElementTree.Element) -> ElementTree.Element:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _failure(case: ElementTree.Element, claim: ClaimResult, finding: Finding | None, alpha: float) -> None:
    message = finding.title if finding else (claim.detail or claim.reason or claim.promise)
    failure = ElementTree.SubElement(case, "failure", message=message, type=claim.id)
    failure.text = _text(finding, alpha) if finding else message


def _text(finding: Finding, alpha: float) -> str:
    lines = [finding.title, "", finding.text, words.how_sure(finding, alpha)]
    lines += [words.confirmation(finding.confirmation)] if finding.confirmation else []
    smallest = finding.smallest or finding.case
    if smallest:
        lines += ["", f"{'Smallest case' if finding.smallest else 'Case'}: {words.case_title(smallest)}"]
        lines += [f"  {name} = {words.law(row)}" for name, row in words.case_rows(smallest)]
        lines += [words.case_left_out(smallest)] if words.case_left_out(smallest) else []
    for table in finding.laws[:2]:
        lines += ["", *_law(table)]
    if finding.diagnosis:
        lines += ["", *words.diagnosis(finding.diagnosis)]
    lines += ["", f"Run it again: {finding.replay}"] if finding.replay else []
    return "\n".join(lines)


def _law(table: LawTable) -> list[str]:
    lines = [f"{table.what} ({words.plural(table.draws, 'draw')}): expected, observed"]
    for outcome, expected, observed in list(zip(table.outcomes, table.expected, table.observed, strict=False))[:12]:
        lines.append(f"  {outcome}: {words.number(expected)}, {words.number(observed)}")
    return lines


def _incident(case: ElementTree.Element, incident: Incident) -> None:
    error = ElementTree.SubElement(case, "error", message=incident.text, type=incident.kind)
    about = [f"method {incident.method}"] if incident.method else []
    about += [words.case_title(incident.case)] if incident.case else []
    error.text = "\n".join([incident.text, ", ".join([*about, f"seed {incident.seed}"]), incident.traceback]).rstrip()
