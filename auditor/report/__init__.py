"""Reports: `report.json`, and everything that is rendered from it.

Each format is one module with `render(report) -> str`, imported when it is asked for; the terminal's is
`auditor.report.terminal.Terminal`, a handler of events.
"""

from __future__ import annotations

import os
from pathlib import Path

from auditor.results import Report, encode


def write(report: Report, directory: Path) -> list[Path]:
    """Write report.json, report.html, report.md and junit.xml into `directory`, which is made where it is missing.

    Each file is replaced as a whole: a reader sees the old one or the new one. report.json comes first, since the others
    can be made from it again. Returns the paths, in that order; raises `OSError` where the directory cannot be written.
    """
    from auditor.report import words

    directory.mkdir(parents=True, exist_ok=True)
    report = words.cleaned(report)
    paths = [_replace(directory / "report.json", encode(report))]

    from auditor.report import html, junit, markdown

    paths.append(_replace(directory / "report.html", html.render(report)))
    paths.append(_replace(directory / "report.md", markdown.render(report)))
    paths.append(_replace(directory / "junit.xml", junit.render(report)))
    return paths


def _replace(path: Path, text: str) -> Path:
    """Write a text file (UTF-8) so that it is never seen half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
