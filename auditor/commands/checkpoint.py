"""`audit checkpoint DIR`: a pair of models of known law, for people to load in whatever engine they have."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("checkpoint")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--kind",
    type=click.Choice(["attentive", "table"]),
    default="attentive",
    show_default=True,
    help="attentive: real attention, sensitive to its cache; table: a Markov chain.",
)
@click.option("--vocab", type=click.IntRange(2, 100_000), default=16, show_default=True, help="Number of token ids.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed, another pair.")
@click.option(
    "--closeness",
    type=click.FloatRange(0.0, 0.95),
    default=0.3,
    show_default=True,
    help="Mean total variation between target and draft; one minus it is the acceptance rate.",
)
def checkpoint(directory: Path, kind: str, vocab: int, seed: int, closeness: float) -> None:
    """Write target and draft checkpoints of known law into DIRECTORY.

    Each is a small Llama (config, safetensors, tokenizer, generation config) that stock Transformers loads; law.json has
    log-probabilities to compare an engine's with.
    """
    from auditor.oracle import write_checkpoint

    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} is not empty; name a new folder")
    try:
        model = write_checkpoint(directory, kind=kind, vocab=vocab, seed=seed, closeness=closeness)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{model.key}: {vocab} token ids, acceptance {1 - closeness:.2f} on random contexts")
    click.echo(f"target  {model.target}")
    click.echo(f"draft   {model.draft}")
    click.echo(f"law     {directory / 'law.json'}")
