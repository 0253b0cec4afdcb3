"""``kvsim load-or-recompute``: from which context length on loading from a tier beats computing again."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, show, write
from kvsim.commands.cost import an_html_file, numbers


@click.command("load-or-recompute")
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field.")
@click.option("--lengths", callback=numbers, metavar="N,N,...", help="Context lengths; 1,024 to 1,048,576 by default.")
@output_option("--chart", callback=an_html_file, text="Write a page with the charts (dashboard extra).")
@json_option
def load_or_recompute(scenario: str, overrides: tuple[str, ...], lengths: tuple[int, ...], chart: Path | None,
                      json_file: Path | None) -> None:
    """Load a context from a tier or compute it again: both times by context length, for a SCENARIO's hardware."""
    from kvsim.load_or_recompute import LENGTHS
    from kvsim.load_or_recompute import load_or_recompute as compare
    from kvsim.report.report import plain
    from kvsim.scenario import load_scenario

    found = compare(load_scenario(scenario, overrides), lengths or LENGTHS)
    show(found.text(), json_file, plain(found))
    if chart is not None:
        from kvsim.dashboard.reload_page import reload_page

        write(chart, reload_page(found), "--chart")
