"""``kvsim compare``: two scenarios, reports or sweeps side by side."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, show, workers_of, workers_option


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field of both scenarios.")
@click.option("--set-b", "overrides_b", multiple=True, metavar="PATH=VALUE",
              help="Change one field of B only, e.g. tiers=[] to compare a scenario with itself without its tiers.")
@click.option("--replications", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds of a scenario.")
@workers_option
@json_option
def compare(a: str, b: str, overrides: tuple[str, ...], overrides_b: tuple[str, ...], replications: int,
            **rest: object) -> None:
    """What differs between A and B: changed inputs, and figures with intervals.

    Each is a scenario (file or shipped name), a report (JSON) or a sweep's folder. A * marks differences whose
    interval leaves out zero.
    """
    from kvsim.batch.sweep import SweepOptions
    from kvsim.comparison import changed, comparison_text
    from kvsim.comparison import compare as compare_two
    from kvsim.report.report import plain

    workers, json_file = workers_of(rest["workers"]), rest["json_file"]
    assert json_file is None or isinstance(json_file, Path)
    left, right = changed(a, overrides), changed(b, (*overrides, *overrides_b))
    found = compare_two(left, right, replications, SweepOptions(workers=workers))
    show(comparison_text(found), json_file, plain(found))
