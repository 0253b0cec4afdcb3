"""``kvsim sweep``: many scenarios, in parallel, that can be stopped and continued."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.commands.common import STDOUT, json_option, say, show, workers_of, workers_option, write_json
from kvsim.units import parse

if TYPE_CHECKING:
    from kvsim.batch.spec import Batch
    from kvsim.batch.sweep import SweepProgress
    from kvsim.batch.table import SweepTable

SHOWN_CASES = 5
SHOWN_FAILURES = 10
GIB = 2**30


def a_folder(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """A folder; standard output is none."""
    if path == STDOUT:
        raise click.BadParameter("results are a folder of files, so name one; --json - prints the table of cases.")
    return path


def a_size(_ctx: click.Context, _param: click.Parameter, given: str) -> int:
    """A size with its unit, in bytes."""
    try:
        size = int(parse(given, "B"))
    except ValueError as err:
        raise click.BadParameter(f"{err}") from None
    if size <= 0:
        raise click.BadParameter(f"{given!r} is nothing; accepted: e.g. '4 GiB'.")
    return size


@click.command()
@click.argument("batch", required=False)
@click.option("-o", "--output", "out", type=click.Path(file_okay=False, path_type=Path), callback=a_folder,
              help="Folder of the results; a sweep that was stopped goes on there.")
@click.option("--executor", type=click.Choice(["process", "inline", "ray"]), default="process", show_default=True,
              help="Processes of this machine, this process itself, or a Ray cluster.")
@workers_option
@click.option("--address", help="A Ray cluster, e.g. auto; with --executor ray.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="Longest run of a case [s].")
@click.option("--memory", default="4 GiB", show_default=True, callback=a_size, help="Most memory of one worker.")
@click.option("--retries", type=click.IntRange(min=0), default=1, show_default=True,
              help="Further tries of a case whose worker died.")
@click.option("--requests", is_flag=True, help="Also write the requests of every case (Parquet).")
@click.option("--retry-failed", is_flag=True, help="Run cases again that failed before.")
@click.option("--dry-run", is_flag=True, help="Only say what would run, and about how long it would take.")
@click.option("--status", "ask_status", is_flag=True, help="Only say how far the sweep in the folder is.")
@json_option
def sweep(batch: str | None, out: Path | None, json_file: Path | None, **how: Any) -> None:
    """Run every case of BATCH (a YAML file or a shipped name) that has no result yet.

    Without BATCH, the sweep that --output holds goes on. Names in the JSON: name, cases[] (the columns of
    cases.parquet); of --dry-run name, cases[].case, .digest and .label, missing, estimate_s, workers; of --status name,
    total, ok, failed, missing, peak_bytes.
    """
    if how["dry_run"] and how["ask_status"]:
        raise click.UsageError("--dry-run and --status are two questions; ask one")
    if how["address"] and how["executor"] != "ray":
        raise click.UsageError("--address names a Ray cluster; it needs --executor ray")
    chosen = _batch(batch, out)
    if how["dry_run"]:
        _dry_run(chosen, out, how["workers"], json_file)
    elif how["ask_status"]:
        _status(chosen, out, json_file)
    else:
        if out is None:
            raise click.UsageError("name a folder for the results: --output DIR (or --dry-run)")
        _finish(_run(chosen, out, how), out, json_file)


def _batch(batch: str | None, out: Path | None) -> Batch:
    from kvsim.batch.folder import Folder
    from kvsim.batch.spec import load_batch

    if batch is not None:
        return load_batch(batch)
    if out is None:
        raise click.UsageError("name a sweep, or with --output the folder of one")
    return Folder(out).batch()


def _dry_run(batch: Batch, out: Path | None, workers: int | None, json_file: Path | None) -> None:
    from kvsim.batch.cases import expand
    from kvsim.batch.folder import Folder
    from kvsim.batch.sweep import SweepOptions, estimate_s, known_outcomes

    cases = expand(batch)
    found = known_outcomes(cases, Folder(out) if out else None, SweepOptions())
    workers = workers_of(workers)
    missing = sum(c.digest not in found for c in cases)
    say(f"{batch.name}: {len(cases)} cases, {missing} to run")
    for case in cases[:SHOWN_CASES]:
        say(f"  {case.number}  {case.digest}  {case.label}")
    if len(cases) > SHOWN_CASES:
        say(f"  and {len(cases) - SHOWN_CASES} more")
    seconds = estimate_s(cases, found, workers)
    say(f"about {_duration(seconds)} with {workers} {'worker' if workers == 1 else 'workers'}")
    write_json(json_file, {"name": batch.name, "cases": [{"case": c.number, "digest": c.digest, "label": c.label}
                                                         for c in cases],
                           "missing": missing, "estimate_s": seconds, "workers": workers})


def _status(batch: Batch, out: Path | None, json_file: Path | None) -> None:
    from kvsim.batch.sweep import status_of

    if out is None:
        raise click.UsageError("name the sweep's folder: --output DIR")
    state = status_of(batch, out)
    show(f"{batch.name}: {state.total} cases, {state.ok} ok, {state.failed} failed, {state.missing} missing; "
         f"largest worker {state.peak_bytes / GIB:.2f} GiB", json_file, {"name": batch.name, **asdict(state)})


def _run(batch: Batch, out: Path, how: dict[str, Any]) -> SweepTable:
    from kvsim.batch.executors import Limits
    from kvsim.batch.sweep import SweepOptions
    from kvsim.batch.sweep import sweep as run_sweep

    limits = Limits(how["timeout_s"], how["memory"], how["retries"])
    options = SweepOptions(how["executor"], how["workers"], limits, how["requests"], how["retry_failed"],
                           how["address"])
    try:
        return run_sweep(batch, out, options, _bar(batch.name))
    except KeyboardInterrupt:
        click.echo(f"stopped; finished cases are kept: kvsim sweep -o {out} goes on", err=True)
        raise


def _bar(name: str) -> Callable[[SweepProgress], None] | None:
    """A bar with cases a second and the time left; None where nobody watches."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[rate]}"), console=Console(stderr=True), transient=True)
    task = bar.add_task(name, total=None, rate="")
    bar.start()
    click.get_current_context().call_on_close(bar.stop)

    def advance(at: SweepProgress) -> None:
        speed = bar.tasks[0].speed
        rate = "" if speed is None else f"{speed:.2g} cases/s"
        bar.update(task, total=at.total, completed=at.reused + at.done, rate=f"{rate}, {at.failed} failed")

    return advance


def _finish(table: SweepTable, out: Path, json_file: Path | None) -> None:
    from kvsim.batch.points import points_text, trace_lines
    from kvsim.report.report import NOT_AS_RECORDED

    failed, points, lost = table.failed, points_text(table), trace_lines(table)
    there = len(set(table["digest"])) - table.computed - table.refused
    ran = f"{len(table)} cases: {table.computed} computed, {there} there already"
    lines = [*([points] if points else []), *([NOT_AS_RECORDED, *lost] if lost else [])]
    lines += [f"{table.name}: {ran}, {len(failed)} failed", f"wrote {out / 'cases.parquet'}"]
    lines += [f"failed: case {row['case']} ({row['label']}): {row['error.kind']}: {_reason(row)}"
              for row in failed[:SHOWN_FAILURES]]
    if len(failed) > SHOWN_FAILURES:
        lines.append(f"and {len(failed) - SHOWN_FAILURES} more, in column error.message of the table")
    show("\n".join(lines), json_file, {"name": table.name, "cases": list(table)})
    sys.exit(1 if failed else 0)


def _reason(row: Mapping[str, Any]) -> str:
    """Why a case failed, in a line: what is wrong with a scenario that is no valid one."""
    first, *rest = row["error.message"].splitlines()
    return rest[0].strip() if rest and row["error.kind"] == "input" else first


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(90), _duration(7200)
    ('1.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
