"""Whatever a report holds, every format renders it, and what it renders is well formed."""

from __future__ import annotations

import dataclasses
import io
import re
import types
import typing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from auditor import results
from auditor.events import Finished
from auditor.report import html, junit, markdown, words, write
from auditor.report.terminal import Terminal
from auditor.results import Report

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }} {% raw %}",
    "\x1b[31mred\x1b[0m \x00 \x9b",
    "lone surrogate \ud800, \ufffe",
    "```` | * _ [a](b) @somebody #1 \\",
    "[bold]markup[/nothing]",
    "line\r\nbreaks\u2028and\ttabs",
    "long " * 400,
)
VOID = {"meta", "link", "img", "br", "input", "hr"}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type of the data model."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is list:
        return st.lists(values(inner[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, inner))
    return {
        float: st.one_of(st.floats(0, 1), st.floats(-1e9, 1e9)),
        int: st.integers(-3, 10**6),
        str: st.one_of(st.text(max_size=20), st.sampled_from(NASTY)),
        bool: st.booleans(),
        type(None): st.none(),
    }[kind]


REPORTS = values(Report).map(lambda report: dataclasses.replace(report, schema=results.SCHEMA_VERSION))
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class Page(HTMLParser):
    """Checks that tags nest; collects identifiers, links and the tags seen."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.seen if name in attrs]


def check_page(text: str) -> Page:
    """A page that stands alone: nesting, no script, no resource from elsewhere, links that lead somewhere, drawn figures."""
    page = Page(text)
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "img", "iframe", "object", "embed", "audio", "video", "form"}
    assert not [name for _, attrs in page.seen for name in attrs if name.startswith("on")]
    assert not page.attributes("src")
    for tag, attrs in page.seen:
        if "href" in attrs:
            assert (attrs["href"] or "").startswith("#" if tag == "a" else "data:")
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    identifiers = page.attributes("id")
    assert len(identifiers) == len(set(identifiers))
    assert {link[1:] for link in page.attributes("href") if link.startswith("#")} <= set(identifiers)
    for drawing in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        root = ElementTree.fromstring(drawing)
        name = root.tag.removesuffix("svg")
        assert root.get("role") == "img"
        title, description = root.find(f"{name}title"), root.find(f"{name}desc")
        assert title is not None
        assert title.text
        assert description is not None
        assert description.text
        assert (root.get("aria-labelledby") or "").split() == [title.get("id"), description.get("id")]
        assert not re.search(r'="[^"]*\b(nan|inf)\b', re.sub("<(title|desc|text).*?</", "</", drawing, flags=re.DOTALL))
    return page


@MANY
@given(REPORTS)
def test_html(report: Report) -> None:
    check_page(html.render(report))


@MANY
@given(REPORTS)
def test_markdown(report: Report) -> None:
    text = markdown.render(report)
    assert len(text.encode()) < 65_536
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(`{3,})[^\n]*\n.*?\n\1", "", text, flags=re.DOTALL))
    assert "@somebody" not in prose
    assert "<script>" not in prose


@MANY
@given(REPORTS, st.integers(1_000, 20_000))
def test_markdown_keeps_to_any_limit(report: Report, limit: int) -> None:
    assert len(markdown.render(report, limit).encode()) <= limit


@MANY
@given(REPORTS)
def test_junit(report: Report) -> None:
    root = ElementTree.fromstring(junit.render(report))
    claims = [claim for mode in report.modes for claim in mode.claims]
    incidents = [incident for mode in report.modes for incident in mode.incidents]
    assert len(root.findall("testsuite/testcase")) == len(claims) + len(incidents) + bool(report.error)
    assert len(root.findall(".//failure")) == sum(claim.status == "violated" for claim in claims)
    assert len(root.findall(".//error")) == len(incidents) + bool(report.error)
    assert root.get("tests") == str(len(root.findall(".//testcase")))


@MANY
@given(REPORTS, st.booleans(), st.integers(20, 120))
def test_terminal(report: Report, quiet: bool, width: int) -> None:
    stream = io.StringIO()
    with Terminal(Console(file=stream, width=width, highlight=False), quiet=quiet) as terminal:
        terminal(Finished(report))
    text = stream.getvalue()
    assert text.strip()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


@MANY
@given(REPORTS)
def test_json_comes_back_as_it_went(report: Report) -> None:
    report = words.cleaned(report)
    assert words.cleaned(report) == report
    assert results.decode(results.encode(report)) == report


@MANY
@given(REPORTS)
def test_json_is_valid_by_its_schema(report: Report) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import json

    jsonschema.Draft202012Validator(results.json_schema()).validate(json.loads(results.encode(words.cleaned(report))))


@MANY
@given(REPORTS)
def test_write_makes_four_files(tmp_path_factory: pytest.TempPathFactory, report: Report) -> None:
    directory = tmp_path_factory.mktemp("report") / "new" / "deeper"
    paths = write(report, directory)
    assert [path.name for path in paths] == ["report.json", "report.html", "report.md", "junit.xml"]
    assert sorted(directory.iterdir()) == sorted(paths)
    assert results.decode(Path(paths[0]).read_bytes()) == words.cleaned(report)
