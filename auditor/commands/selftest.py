"""`audit selftest`: the auditor audited."""

from __future__ import annotations

import sys

import click


@click.command("selftest")
@click.option("--quick", is_flag=True, help="One seed and at most 50,000 rounds a fault: a few seconds.")
@click.option(
    "--seeds", type=click.IntRange(1), default=9, show_default=True, help="Runs of each fault at each severity."
)
@click.option(
    "--max-rounds", type=click.IntRange(100), default=2_000_000, show_default=True, help="Rounds a run at most."
)
@click.option(
    "--audits", type=click.IntRange(1), default=200, show_default=True, help="Audits of each correct sampler."
)
def selftest(quick: bool, seeds: int, max_rounds: int, audits: int) -> None:
    """Audit the auditor: find every catalogued fault at severities 1, 0.1 and 0.01, and accuse no correct sampler.

    Prints the rounds to detection and their ratio to the Wald limit. Exit code 1 where a fault was missed that the limit left
    room for, or where there were more false alarms than the error rate allows.
    """
    from auditor.selftest import matrix, run_selftest

    if quick:
        seeds, max_rounds, audits = 1, 50_000, 20

    def progress(line: str) -> None:
        click.echo(line, err=True)

    outcome = run_selftest(seeds=seeds, cap=max_rounds, audits=audits, progress=progress)
    click.echo(matrix(outcome))
    for cell in outcome.missed:
        click.echo(f"missed: {cell.fault} at severity {cell.severity:g}", err=True)
    if not outcome.ok:
        click.echo("the self-test failed", err=True)
        sys.exit(1)
