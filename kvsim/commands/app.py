"""``kvsim app``: the dashboard."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True,
              help="Port on this machine.")
def app(port: int) -> None:
    """Open the what-if dashboard in a browser (needs the dashboard extra)."""
    from kvsim.dashboard.launch import launch

    sys.exit(launch(port))
