"""``kvsim trace``: look into recorded traffic, convert it, fit presets to it."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from kvsim.commands.common import STDOUT, json_option, output_option, show, write, wrote
from kvsim.commands.reading import options_of, reading_options, tell

if TYPE_CHECKING:
    from kvsim.workload.readers.reading import ReadOptions
    from kvsim.workload.readers.report import ReadReport

paths_argument = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def trace() -> None:
    """Recorded traffic: statistics, one common form, fitted presets."""


@trace.command("info")
@paths_argument
@reading_options
@json_option
def trace_info(paths: tuple[Path, ...], json_file: Path | None, **asked: Any) -> None:
    """Statistics of each of PATHS (a file, or a folder of files that belong together)."""
    from kvsim.report.report import plain
    from kvsim.workload.readers.read import read_trace
    from kvsim.workload.trace_info import trace_info as info_of

    options, found, texts = options_of(asked), list[dict[str, Any]](), list[str]()
    for path in paths:
        recorded, report = read_trace(path, options)
        tell(report)
        info = info_of(recorded)
        found.append({**plain(info.to_dict()), "read": report.to_dict()})
        texts.append(info.text())
    show("\n\n".join(texts), json_file, {"traces": found})


@trace.command("convert")
@paths_argument
@output_option("-o", "--output", required=True,
               text="Where the common form is written (Parquet; needs pyarrow).")
@reading_options
@json_option
def trace_convert(paths: tuple[Path, ...], output: Path, json_file: Path | None, **asked: Any) -> None:
    """Write PATHS, of any format, as one file that is read back at once.

    Names in the JSON: path, num_rows, num_sessions, num_requests, bad[], skipped, adjusted, formats, notes[].
    """
    from kvsim.workload.readers.read import convert

    if output == STDOUT:
        report = _convert_to_stdout(paths, options_of(asked))
    else:
        report = convert(paths, output, options_of(asked))
    show(f"{report}\n{wrote(output)}".rstrip(), json_file, report.to_dict())


def _convert_to_stdout(paths: tuple[Path, ...], options: ReadOptions) -> ReadReport:
    """The common form on standard output, which is no terminal then; whole or not at all."""
    from kvsim.workload.readers.read import convert

    if sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal: name a file, or redirect standard output")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.parquet"
        report = convert(paths, file, options)
        click.echo(file.read_bytes(), nl=False)
    return report


@trace.command("fit")
@paths_argument
@output_option("-o", "--output", required=True,
               text="Where the preset is written (YAML); a scenario names the file as workload.preset.")
@click.option("--name", default="fitted", show_default=True, help="Name of the preset.")
@reading_options
@json_option
def trace_fit(paths: tuple[Path, ...], output: Path, name: str, json_file: Path | None, **asked: Any) -> None:
    """Fit a preset of generated sessions to PATHS and compare both."""
    from kvsim.report.report import plain
    from kvsim.workload.fit import fit
    from kvsim.workload.readers.read import read_trace

    options = options_of(asked)
    recorded, report = read_trace(paths, options)
    tell(report)
    found = fit(recorded, name, options.seed)
    write(output, found.to_yaml(), "--output")
    show(f"{found.text()}\n{wrote(output)}".rstrip(), json_file, plain(found.to_dict()))
