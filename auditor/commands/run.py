"""`audit run`: one audit, from the command line to the exit code."""

from __future__ import annotations

import difflib
import os
import secrets
import shlex
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from auditor.commands.refusal import CANNOT, INTERRUPTED, refuse
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.results import Report


def _options(pairs: Iterable[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            refuse(f"--option takes key=value, not {pair!r}")
        if key in out:
            refuse(f"--option {key} is given twice")
        out[key] = value
    return out


def _claims(text: tuple[str, ...]) -> tuple[str, ...]:
    from auditor.claims import CLAIMS

    wanted = [c.strip() for part in text for c in part.split(",") if c.strip()]
    for claim in wanted:
        if claim not in CLAIMS:
            near = difflib.get_close_matches(claim, CLAIMS, n=1, cutoff=0.0)
            refuse(f"no claim {claim!r}; the nearest is {near[0]!r} (`audit list` shows all)")
    return tuple(dict.fromkeys(wanted))


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        refuse(f"{name} {value:g} is not a positive number")


def _writable_file(name: str) -> None:
    path = Path(name)
    if not name or path.is_dir():
        refuse(f"--json {name or repr(name)}: that is no file")
    if not path.resolve().parent.is_dir():
        refuse(f"--json {name}: there is no such directory")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        refuse(f"--json {name}: it cannot be written to")


def _writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"--report {directory}: {error.strerror or error}")
    if not os.access(directory, os.W_OK):
        refuse(f"--report {directory}: it cannot be written to")


@click.command()
@click.option(
    "--adapter",
    required=True,
    metavar="A",
    help="NAME (see `audit list`), FILE.py, FILE.py:ATTR or package.module:ATTR.",
)
@click.option("--claims", multiple=True, metavar="IDS", help="Claims to check, separated by commas. Default: all.")
@click.option(
    "--rule", metavar="R", help="The rule it is judged by, where the adapter does not say: rejection, onehot, match."
)
@click.option(
    "--tolerance", type=float, metavar="T", help="Relative error of its arithmetic, where the adapter does not say."
)
@click.option(
    "--alpha", type=float, default=1e-6, show_default=True, help="Probability of ever accusing a conforming one."
)
@click.option("--seed", type=int, metavar="N", help="Seed of the audit. Default: a random one, which is printed.")
@click.option("--max-rounds", type=int, default=3_000_000, show_default=True, metavar="N", help="Budget in rounds.")
@click.option(
    "--max-seconds", type=float, metavar="S", help="Cap on its time. Default: 60, and 150 for each mode of an engine."
)
@click.option(
    "--option", "pairs", multiple=True, metavar="K=V", help="An option of the adapter's constructor; repeatable."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write report.json, .html, .md and junit.xml there.",
)
@click.option("--json", "json_to", metavar="FILE", help="Write report.json to FILE; - is the standard output.")
@click.option("--quiet", is_flag=True, help="Print the verdict alone.")
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter that runs the adapter; it needs NumPy and the engine, nothing of ours.",
)
@click.option(
    "--call-timeout",
    type=float,
    default=120.0,
    show_default=True,
    metavar="S",
    help="Limit on one call of the adapter.",
)
@click.option(
    "--start-timeout", type=float, default=300.0, show_default=True, metavar="S", help="Limit on loading the adapter."
)
@click.option("--memory-limit", type=float, metavar="GB", help="Limit on the memory of the adapter's processes.")
@click.option("--in-process", is_flag=True, help="Run the adapter in this process, for debugging.")
def run(
    adapter: str,
    claims: tuple[str, ...],
    rule: str | None,
    tolerance: float | None,
    alpha: float,
    seed: int | None,
    max_rounds: int,
    max_seconds: float | None,
    pairs: tuple[str, ...],
    report: Path | None,
    json_to: str | None,
    quiet: bool,
    python: str | None,
    call_timeout: float,
    start_timeout: float,
    memory_limit: float | None,
    in_process: bool,
) -> None:
    """Audit one adapter, in a process of its own.

    Exit code 0: every claim that was checked holds. 1: a claim is violated. 2: the audit could not be carried out. 130:
    interrupted.
    """
    if not 0 < alpha < 1:
        refuse(f"--alpha {alpha:g} is not between 0 and 1")
    _positive("--max-rounds", max_rounds)
    _positive("--max-seconds", max_seconds)
    _positive("--call-timeout", call_timeout)
    _positive("--start-timeout", start_timeout)
    _positive("--memory-limit", memory_limit)
    if in_process and python:
        refuse("--python names another process; it does not go with --in-process")
    if tolerance is not None and not 0 <= tolerance < 1:
        refuse(f"--tolerance {tolerance:g} is not in [0, 1)")
    if seed is None:
        seed = secrets.randbelow(2**31)
    elif not 0 <= seed < 2**63:
        refuse(f"--seed {seed} is not in [0, 2^63)")
    wanted, options = _claims(claims), _options(pairs)
    if rule is not None:
        _known_rule(rule)
    if report is not None:
        _writable(report)
    if json_to is not None and json_to != "-":
        _writable_file(json_to)

    from rich.console import Console

    from auditor.audit import AuditConfig, run_audit
    from auditor.catalog import load
    from auditor.report.terminal import Terminal

    command = _command(seed)
    journal = report / "journal.jsonl" if report else None
    if journal is not None:
        journal.unlink(missing_ok=True)
    config = AuditConfig(wanted, alpha, seed, max_rounds, max_seconds, command, journal)
    console = Console(stderr=json_to == "-", highlight=False)
    result: Report | None = None
    try:
        with ExitStack() as stack:
            terminal = stack.enter_context(Terminal(console, quiet=quiet))
            if in_process:
                loaded = load(adapter, options=options, rule=rule, tolerance=tolerance)
            else:
                from auditor.process.interpreter import python_for
                from auditor.worker import Place, loaded_apart

                limit = None if memory_limit is None else int(memory_limit * 2**30)
                log = report / "adapter.log" if report else None
                name = Path(adapter.partition(":")[0]).stem
                place = Place(python_for(name, python), call_timeout, start_timeout, limit, log)
                loaded = stack.enter_context(
                    loaded_apart(adapter, options=options, rule=rule, tolerance=tolerance, place=place)
                )
            result = run_audit(loaded, config, terminal)
        _write(result, report, json_to, console)
    except AuditError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("interrupted; there is no report", INTERRUPTED)
    except Exception as error:  # a bug of ours
        first = str(error).partition("\n")[0]
        code = (result and result.exit_code) or CANNOT  # what was found stays found
        refuse(f"internal error: {type(error).__name__}: {first}; the traceback is in {_traceback(report)}", code)
    if result.run.stopped == "error":
        where = f"is in {journal}" if journal else f"is in the journal of --report DIR --seed {seed}"
        click.echo(f"audit: {result.error}; the traceback {where}", err=True)
    sys.exit(result.exit_code)


def _traceback(report: Path | None) -> Path:
    """Write the traceback of the exception that is being handled; returns where."""
    import tempfile
    import traceback

    folder = report if report is not None else Path(tempfile.mkdtemp(prefix="audit-"))
    path = folder / "traceback.txt"
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path


def _known_rule(rule: str) -> None:
    from auditor.rules import RULES

    if rule not in RULES:
        refuse(f"no rule {rule!r}; there are {', '.join(RULES)}")


def _command(seed: int) -> str:
    """The command that runs this audit again."""
    words = ["audit", *sys.argv[1:]]
    if "--seed" not in words and not any(w.startswith("--seed=") for w in words):
        words += ["--seed", str(seed)]
    return shlex.join(words)


def _write(result: Report, report: Path | None, json_to: str | None, console: Any) -> None:
    try:
        if report is not None:
            from auditor.report import write

            paths = write(result, report)
            console.print(f"report: {', '.join(str(p) for p in paths)}", soft_wrap=True, markup=False)
        if json_to is not None:
            from auditor.results import encode

            text = encode(result) + "\n"
            if json_to == "-":
                sys.stdout.write(text)
            else:
                Path(json_to).write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(f"the report cannot be written: {error}")
