"""``kvsim report``: a sweep as one page of HTML."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from kvsim.commands.common import in_a_folder, write
from kvsim.errors import KvsimError, Problem


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=in_a_folder, required=True,
              help="The page; it carries everything it needs.")
def report(folder: Path, output: Path) -> None:
    """Turn the results of a sweep in FOLDER into one self-contained page (needs the dashboard extra)."""
    if find_spec("plotly") is None:
        raise KvsimError("the page cannot be made", [
            Problem("kvsim report", "plotly", "", "the package's extra: pip install 'kvsim[dashboard]'")])
    from kvsim.batch.folder import Folder
    from kvsim.batch.sweep import open_sweep
    from kvsim.dashboard.sweep_page import sweep_page

    batch = Folder(folder).batch()
    write(output, sweep_page(open_sweep(folder), batch), "--output")
    click.echo(f"wrote {output}")
