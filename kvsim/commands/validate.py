"""``kvsim validate``: compare with published and measured answers."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import score, words


@click.group()
def validate() -> None:
    """Compare with published and measured answers; the last line is the score."""


@validate.command("capacity")
@click.argument("cases", type=click.Path(path_type=Path))
def validate_capacity(cases: Path) -> None:
    """Check KV capacities that engines logged (a CSV of CASES)."""
    from kvsim.profiles.store import default_store
    from kvsim.validate.capacity_cases import check_capacity

    results = check_capacity(cases, default_store())
    for case in results:
        click.echo(f"{case.id}: {case.difference or 'exact'}")
    score("capacity cases", [case.exact for case in results])


@validate.command("engine")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--kinds", callback=words, help="Only these kinds of cases, e.g. chat,hybrid,k3.")
@click.option("--engine", type=click.Choice(["core", "reference"]), default="core", show_default=True)
def validate_engine(cases: Path, kinds: tuple[str, ...], engine: str) -> None:
    """Compare every decision with recorded runs of a real scheduler (a folder of CASES)."""
    from kvsim.simulation import ENGINES
    from kvsim.validate.engine_cases import run_cases

    results = run_cases([cases], kinds, ENGINES[engine])
    for case in results:
        if case.difference:
            click.echo(f"{case.name}: {case.difference}")
    score("engine cases", [not case.difference for case in results])
