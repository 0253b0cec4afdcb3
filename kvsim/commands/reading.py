"""Options that every command which reads recorded traffic has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kvsim.workload.readers.reading import ReadOptions
    from kvsim.workload.readers.report import ReadReport

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--format", "format", help="Format of all files; found from the content of each by default."),
    click.option("--mapping", help="Columns of a CSV, JSON or Parquet log: timestamp=T,input_tokens=I,output_tokens=O, "
                                   "then where there are such session=S, cached_tokens=C, stream=A, and time_unit=ms; "
                                   "commas between, no blanks, or the same as JSON. Usual names are found without."),
    click.option("--max-bad-rows", type=click.IntRange(min=0), default=100, show_default=True,
                 help="Bad rows that are skipped before the reading fails."),
    click.option("--ids", type=click.Choice(["auto", "session", "global"]), default="auto", show_default=True,
                 help="Whether block ids mean the same text in all sessions of a file; auto: as the format says."),
    click.option("--start", "start_s", type=click.FloatRange(min=0.0), default=0.0, show_default=True,
                 help="Begin of what is generated from rates (ServeGen) [s of the day]."),
    click.option("--duration", "duration_s", type=click.FloatRange(min=0.0, min_open=True), default=3600.0,
                 show_default=True, help="Length of what is generated from rates (ServeGen) [s]."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of what is generated."),
)


def reading_options(command: Command) -> Command:
    """Add the options of `options_of` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of(asked: dict[str, Any]) -> ReadOptions:
    """What the options of `reading_options` ask for; they are taken out of `asked`."""
    from kvsim.workload.readers.read import parse_mapping
    from kvsim.workload.readers.reading import ReadOptions

    names = ("format", "mapping", "max_bad_rows", "ids", "start_s", "duration_s", "seed")
    given: dict[str, Any] = {name: asked.pop(name) for name in names}
    if given["mapping"] is not None:
        given["mapping"] = parse_mapping(given["mapping"])
    return ReadOptions(**given)


def tell(report: ReadReport) -> None:
    """Say on standard error what was skipped, left out or adjusted, if anything was."""
    if report.bad or report.skipped or report.adjusted or report.notes:
        click.echo(str(report), err=True)
