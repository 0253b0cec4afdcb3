"""``kvsim cost``: what a configuration earns by live sessions, tiers and price."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from kvsim.commands.common import (
    STDOUT,
    can_be_written,
    json_option,
    output_option,
    progress,
    show,
    words,
    workers_of,
    workers_option,
    write,
)
from kvsim.errors import KvsimError, Problem


def numbers(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[int, ...]:
    """A comma-separated option of numbers from 1 on."""
    found = [w.strip() for w in (given or "").split(",") if w.strip()]
    wrong = [w for w in found if not w.isdigit() or int(w) < 1]
    if wrong:
        raise click.BadParameter(f"{', '.join(wrong)}: expected whole numbers from 1 on, e.g. 1,2,4,8.")
    return tuple(int(w) for w in found)


def an_html_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """A page in a folder that exists, and the library that draws it, before a long run."""
    if path is None:
        return None
    if path != STDOUT and path.suffix not in (".html", ".htm"):
        raise click.BadParameter(f"{str(path)!r}: the chart is a page of HTML, e.g. cost.html.")
    if find_spec("plotly") is None:
        raise KvsimError("the chart cannot be drawn", [
            Problem("kvsim cost", "plotly", "", "the package's extra: pip install 'kvsim[dashboard]'")])
    return can_be_written(ctx, param, path)


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field.")
@click.option("--sessions", callback=numbers, metavar="N,N,...",
              help="Live sessions; the scenario's study or 1,2,4,8,12,16,24,32 by default.")
@click.option("--prices", callback=words, metavar="NAME,NAME,...",
              help="Price profiles; the scenario's own and the newest of the other kind (owned, rented) by default.")
@click.option("--replications", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds a point.")
@workers_option
@output_option("--chart", callback=an_html_file,
               text="Write a page with the table and its charts (needs the dashboard extra).")
@output_option("--csv", "csv_file", text="Write the table as CSV.")
@json_option
def cost(scenario: str, overrides: tuple[str, ...], sessions: tuple[int, ...], prices: tuple[str, ...],
         replications: int, **rest: object) -> None:
    """What a SCENARIO earns and what its tokens cost, by live sessions, with and without its tiers, at several prices.

    Each point is simulated once and priced in every revenue mode.
    """
    from kvsim.planning.price_table import PriceOptions, price_table
    from kvsim.planning.price_text import price_csv, price_text
    from kvsim.scenario import load_scenario

    chart, csv_file, json_file = (rest[n] for n in ("chart", "csv_file", "json_file"))
    assert json_file is None or isinstance(json_file, Path)
    table = price_table(load_scenario(scenario, overrides), PriceOptions(sessions, prices, replications,
                                                                         workers_of(rest["workers"]), progress()))
    show(price_text(table), json_file, table.to_dict())
    if isinstance(csv_file, Path):
        write(csv_file, price_csv(table), "--csv")
    if isinstance(chart, Path):
        from kvsim.dashboard.price_page import price_page

        write(chart, price_page(table), "--chart")
