"""The audit on a terminal or in a log: a handler of events."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from auditor.events import (
    CaseDone,
    ClaimViolated,
    Event,
    FindingReady,
    Finished,
    IncidentSeen,
    Phase,
    Started,
)
from auditor.report import summary, words

FRAME = 0.1
"""Seconds of the audit between two frames of the progress on a terminal."""
PLAIN = 15.0
"""Seconds of the audit between two lines of progress in a log."""


class Terminal:
    """Prints an audit as it runs: who is audited and how, the progress, each violated claim at once, the report at the end.

    On a terminal the progress is drawn in place; elsewhere it is a line now and then. With `quiet` only the verdict is
    printed, in one line. Use it as a context manager, or call `close`, so that the cursor comes back after an error.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self._console = console if console is not None else _standard_output()
        self._quiet = quiet
        self._live: Live | None = None
        self._started: Started | None = None
        self._phase = ""
        self._drawn = float("-inf")
        self._animated = self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Finished():
                self.close()
                report = words.cleaned(event.report)
                if self._quiet:
                    self._console.print(summary.one_line(report), soft_wrap=True)
                else:
                    summary.show(report, self._console)
            case _ if self._quiet:
                pass
            case Started():
                self._started = event
                self._console.print(_header(event))
            case Phase():
                self._phase = words.clean(f"{event.mode}: {event.name}" if event.mode else event.name)
            case CaseDone():
                self._progress(event)
            case ClaimViolated():
                self._print(_violated(event))
            case FindingReady():
                finding = event.finding
                line = Text(f"  {words.clean(finding.id)} ", "bold").append(words.clean(finding.title), "not bold")
                if finding.smallest:
                    line.append(f" (smallest case: {words.clean(words.case_title(finding.smallest))})", "not bold dim")
                self._print(line)
            case IncidentSeen():
                incident = event.incident
                self._print(Text(words.clean(f"! {incident.kind}: {incident.text}"), "yellow"))

    def close(self) -> None:
        """Take the progress away. Does nothing when there is none."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: Text) -> None:
        """One line; in a log it stays one, however long."""
        self._console.print(line, soft_wrap=not self._animated)

    def _progress(self, event: CaseDone) -> None:
        if event.seconds - self._drawn < (FRAME if self._animated else PLAIN):
            return
        first, self._drawn = self._drawn == float("-inf"), event.seconds
        if not self._animated:
            if not first:
                self._print(Text("  ", "dim").append_text(self._line(event)))
            return
        if self._live is None:
            # Drawn from the events alone: no thread of its own that a fork of the audit could trip over.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._frame(event), refresh=True)

    def _line(self, event: CaseDone) -> Text:
        claim, nats, threshold = event.strongest
        line = Text(f"{event.rounds:,} rounds, {words.seconds(event.seconds)}")
        line.append(f", {self._phase}" if self._phase else "")
        if claim and threshold > 0:
            line.append(f"; strongest: {words.clean(claim)} at {_share(nats, threshold):.0%} of the threshold")
        return line

    def _frame(self, event: CaseDone) -> RenderableType:
        started = self._started
        used = 0.0
        if started is not None:
            used = max(_share(event.rounds, started.max_rounds), _share(event.seconds, started.max_seconds))
        claim, nats, threshold = event.strongest
        table = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=used, width=20, complete_style="cyan", finished_style="cyan")
        spent = f"{used:4.0%}  {event.rounds:,} rounds, {words.seconds(event.seconds)}"
        table.add_row(Text("budget", "dim"), bar, Text(spent + (f" · {self._phase}" if self._phase else "")))
        if claim and threshold > 0:
            share = _share(nats, threshold)
            bar = ProgressBar(total=1.0, completed=share, width=20, complete_style="red", finished_style="red")
            table.add_row(
                Text("evidence", "dim"), bar, Text(f"{share:4.0%}  of what it takes, against {words.clean(claim)}")
            )
        return Group(table)


def _standard_output() -> Console:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    return Console(highlight=False)


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _header(event: Started) -> RenderableType:
    adapter = event.adapter
    options = ", ".join(f"{key}={value}" for key, value in adapter.options.items())
    engine = ", ".join(f"{name} {version}" for name, version in adapter.engine.items())
    facts = [
        (
            "adapter",
            words.clean(adapter.name + (f" ({options})" if options else "") + (f" · {engine}" if engine else "")),
        )
    ]
    if any(event.modes):
        facts.append(("modes", words.clean(", ".join(event.modes))))
    facts += [
        ("judged by", f"rule {words.clean(event.rule)}, tolerance {words.number(event.tolerance)}"),
        ("error rate", f"alpha {words.number(event.alpha)}"),
        ("budget", f"{words.plural(event.max_rounds, 'round')}, at most {words.seconds(event.max_seconds)}"),
        ("seed", str(event.seed)),
        ("claims", words.clean(", ".join(event.claims)) or "none"),
    ]
    if event.skipped:
        facts.append(("skipped", words.clean(", ".join(claim for claim, _ in event.skipped))))
    return summary.facts(facts)


def _violated(event: ClaimViolated) -> Text:
    where = f"{event.claim} ({event.mode})" if event.mode else event.claim
    line = Text(f"✗ {words.clean(where)} is violated", "bold red")
    line.append(f" after {words.plural(event.rounds, 'round')}, {words.seconds(event.seconds)}", "not bold")
    if event.guess:
        line.append(f": {words.clean(event.guess)}", "not bold")
    return line
