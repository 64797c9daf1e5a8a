"""The `audit` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from auditor import __version__
from auditor.commands.checkpoint import checkpoint
from auditor.commands.refusal import refuse
from auditor.commands.run import run
from auditor.commands.selftest import selftest


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="audit")
def main() -> None:
    """Audit implementations of speculative sampling: is the output law really the target's?"""


@main.command("list")
def list_() -> None:
    """List adapters, claims, rules and faults."""
    from auditor.catalog import shipped
    from auditor.claims import CLAIMS
    from auditor.rules import FAULTS, RULES

    def section(title: str, rows: list[tuple[str, str]]) -> None:
        click.secho(title, bold=True)
        width = max(len(name) for name, _ in rows) + 2
        for name, words in rows:
            click.echo(f"  {name:<{width}}{words}")
        click.echo()

    adapters = []
    for a in shipped():
        state = (
            f"not here: {a.install}" if a.missing else ", ".join(f"{n} {v}" for n, v in a.versions.items()) or "here"
        )
        adapters.append((a.name, f"{a.summary} [{state}]"))
    section("Adapters", adapters)
    section("Claims", [(c.id, c.promise) for c in CLAIMS.values()])
    section("Rules", [(r.name, "it " + r.words) for r in RULES.values()])
    section("Faults", [(f.name, "it " + f.words) for f in FAULTS.values()])


@main.command()
@click.argument("name", metavar="CLAIM|FAULT|RULE")
def explain(name: str) -> None:
    """Explain a claim, a fault or a rule."""
    from auditor.claims import CLAIMS
    from auditor.rules import FAULTS, RULES

    if name in CLAIMS:
        claim = CLAIMS[name]
        body = [f"Promise: {claim.promise}.", claim.explanation, f"Shown by: {', '.join(claim.needs)}."]
        kind = "claim"
    elif name in FAULTS:
        fault = FAULTS[name]
        parts = {
            "accept": "the acceptance",
            "residual": "the residual draw",
            "bonus": "the bonus token",
            "structure": "the round's form",
        }
        changed = [words for part, words in parts.items() if part in fault.touches]
        body = [f"It {fault.words}.", fault.explanation, f"It changes {', '.join(changed)}."]
        body.append(f"Try it: audit run --adapter faulty --option fault={name}")
        kind = "fault"
    elif name in RULES:
        body, kind = [f"It {RULES[name].words}.", RULES[name].explanation], "rule"
    else:
        near = difflib.get_close_matches(name, [*CLAIMS, *FAULTS, *RULES], n=3, cutoff=0.0)
        refuse(f"nothing is called {name!r}; the nearest are {', '.join(near)}")
    click.secho(f"{name} ({kind})", bold=True)
    for paragraph in body:
        click.echo()
        click.echo(click.wrap_text(paragraph, 90, initial_indent="  ", subsequent_indent="  "))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def new(file: Path, force: bool) -> None:
    """Write a commented adapter to start from."""
    from auditor.commands.scaffold import TEMPLATE

    if file.suffix != ".py":
        refuse(f"{file} does not end in .py")
    if file.exists() and not force:
        refuse(f"{file} exists; --force overwrites it")
    try:
        file.write_text(TEMPLATE.replace("{file}", file.name), encoding="utf-8")
    except OSError as error:
        refuse(f"{file}: {error.strerror or error}")
    click.echo(f"{file} is written; audit it with: audit run --adapter ./{file}")


main.add_command(run)
main.add_command(checkpoint)
main.add_command(selftest)
