"""``kvsim report``: a sweep as one page of HTML."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.commands.common import json_option, output_option, progress, say, workers_option, write, write_json, wrote
from kvsim.errors import KvsimError, Problem

if TYPE_CHECKING:
    from kvsim.batch.doubts import Doubts
    from kvsim.batch.folder import Folder
    from kvsim.batch.table import SweepTable


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@output_option("-o", "--output", required=True, text="The page, which carries everything it needs.")
@click.option("--uncertainty", "draws", type=click.IntRange(min=0), default=12, show_default=True, metavar="N",
              help="Simulate the best point again with figures drawn N times from their ranges, once per folder; "
                   "0 leaves it out.")
@workers_option
@json_option
def report(folder: Path, output: Path, draws: int, workers: int | None, json_file: Path | None) -> None:
    """Turn the results of a sweep in FOLDER into one self-contained page (needs the dashboard extra).

    Names in the JSON: name, cases[] (the columns of cases.parquet), doubts (null without intervals of figures).
    """
    if find_spec("plotly") is None:
        raise KvsimError("the page cannot be made", [
            Problem("kvsim report", "plotly", "", "the package's extra: pip install 'kvsim[dashboard]'")])
    from kvsim.batch.folder import Folder
    from kvsim.batch.sweep import open_sweep
    from kvsim.dashboard.sweep_page import sweep_page
    from kvsim.report.report import plain

    held, table = Folder(folder), open_sweep(folder)
    doubts = _doubts(table, held, draws, workers) if draws else None
    write(output, sweep_page(table, held.batch(), doubts), "--output")
    write_json(json_file, plain({"name": table.name, "cases": list(table), "doubts": doubts}))
    say(wrote(output))


def _doubts(table: SweepTable, folder: Folder, draws: int, workers: int | None) -> Doubts | None:
    """What the ranges of figures do to the best point; None, with a word why, where that cannot be known."""
    from kvsim.batch.doubts import kept_doubts
    from kvsim.batch.findings import findings_of
    from kvsim.batch.sweep import SweepOptions

    found = findings_of(table)
    if found is None:
        return None
    try:
        return kept_doubts(found.best, folder, draws, SweepOptions(workers=workers), progress())
    except KvsimError as err:
        click.echo(f"without intervals of figures: {err}", err=True)
        return None
