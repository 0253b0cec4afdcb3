"""``kvsim compare``: two scenarios, reports or sweeps side by side."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, show


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--replications", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds of a scenario.")
@click.option("--workers", type=click.IntRange(min=1), help="Cases at a time; all cores by default.")
@json_option
def compare(a: str, b: str, replications: int, workers: int | None, json_file: Path | None) -> None:
    """What differs between A and B: changed inputs, and figures with intervals.

    Each is a scenario (file or shipped name), a report (JSON) or a sweep's folder. A * marks differences whose
    interval leaves out zero.
    """
    from kvsim.batch.sweep import SweepOptions
    from kvsim.comparison import compare as compare_two
    from kvsim.comparison import comparison_text
    from kvsim.report.report import plain

    found = compare_two(a, b, replications, SweepOptions(workers=workers))
    show(comparison_text(found), json_file, plain(found))
