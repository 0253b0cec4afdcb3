"""What the commands share: where results go, how progress is drawn, how a score ends a check."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kvsim.errors import Problem, ScenarioError


def in_a_folder(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file in a folder that does not exist before a long run, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {str(path)!r} does not exist.")
    return path


json_option = click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
                           callback=in_a_folder, help="Also write the result to this file as JSON.")


def show(text: str, json_file: Path | None, data: Any) -> None:
    """Print a result and, if asked, write it as JSON."""
    click.echo(text)
    if json_file is not None:
        write(json_file, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", "--json")


def write(path: Path, text: str, flag: str) -> None:
    """Write a file, or say which flag named one that cannot be written."""
    try:
        path.write_text(text)
    except OSError as err:
        raise ScenarioError("cannot write", [Problem(flag, "", f"{path}: {err.strerror}", "a writable file")]) from None


def score(what: str, exact: Sequence[bool]) -> None:
    """Print the last line of a check and leave: 0 when all are exact, else 1."""
    click.echo(f"{what}: {sum(exact)}/{len(exact)} exact")
    sys.exit(0 if all(exact) else 1)


def words(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[str, ...]:
    """A comma-separated option as a tuple; nothing given is an empty one."""
    return tuple(w for w in (given or "").split(",") if w)


def progress() -> Callable[[str, float], None] | None:
    """A progress bar on a terminal, a line a task; None where nobody watches."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(transient=True, console=Console(stderr=True))
    bar.start()
    tasks: dict[str, Any] = {}

    def advance(label: str, share: float) -> None:
        if label not in tasks:
            tasks[label] = bar.add_task(label, total=1.0)
        bar.update(tasks[label], completed=share)

    click.get_current_context().call_on_close(bar.stop)
    return advance
