"""What the commands share: where results go, how progress is drawn, how a score ends a check."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kvsim.errors import Problem, ScenarioError
from kvsim.units import human_int

STDOUT = Path("-")
"""What stands for standard output where a file is written."""
_TAKEN_BY = "kvsim.stdout"
_INSTEAD = ("--json", "--csv")
"""Options whose file says what the text says: on standard output it replaces the text."""


class OutputFile(click.Path):
    """A file to write, or ``-`` for standard output; ``./-`` is a file of that name."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, allow_dash=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; absolute where it would otherwise look like standard output."""
        found = super().convert(value, param, ctx)
        return Path(str(value)).absolute() if found == STDOUT and str(value) != str(STDOUT) else found


def can_be_written(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a folder that does not exist, and two files on standard output, before a long run, not after it."""
    if path == STDOUT:
        first = ctx.meta.setdefault(_TAKEN_BY, _flag(param))
        if first != _flag(param):
            raise click.BadParameter(f"{first} goes to standard output (-) already.")
    elif path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {str(path)!r} does not exist.")
    return path


def _flag(param: click.Parameter) -> str:
    """How an option is written in full."""
    return param.opts[-1]


def output_option(*names: str, text: str, callback: Callable[..., Any] = can_be_written,
                  required: bool = False) -> Callable[[Any], Any]:
    """An option that names a file to write; its help, a sentence, also says what - does."""
    dash = "prints it instead of the text" if names[0] in _INSTEAD else "is standard output"
    return click.option(*names, type=OutputFile(), callback=callback, required=required,
                        help=f"{text.removesuffix('.')}; - {dash}.")


json_option = output_option("--json", "json_file", text="Also write the result to this file as JSON.")


workers_option = click.option("--workers", type=click.IntRange(min=1),
                              help="Processes that simulate at the same time; all cores by default.")


def workers_of(given: object) -> int:
    """Processes asked for with `workers_option`, else one for each core that this process may use."""
    from kvsim.batch.executors import usable_cores

    return given if isinstance(given, int) else usable_cores()


def say(text: str, nl: bool = True) -> None:
    """Print text for people, if any: on standard error, or not at all, where a file takes standard output."""
    taken_by = click.get_current_context().meta.get(_TAKEN_BY)
    if text and taken_by not in _INSTEAD:
        click.echo(text, nl=nl, err=taken_by is not None)


def show(text: str, json_file: Path | None, data: Any) -> None:
    """Print a result and, if asked, write it as JSON."""
    say(text)
    write_json(json_file, data)


def write_json(json_file: Path | None, data: Any) -> None:
    """Write a result as JSON, if asked."""
    if json_file is not None:
        write(json_file, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", "--json")


def write(path: Path, text: str, flag: str) -> None:
    """Write a file or standard output, or say which flag named one that cannot be written."""
    if path == STDOUT:
        click.echo(text, nl=False)
        return
    try:
        path.write_text(text)
    except OSError as err:
        raise ScenarioError("cannot write", [Problem(flag, "", f"{path}: {err.strerror}", "a writable file")]) from None


def wrote(path: Path) -> str:
    """The line that names a written file; empty for standard output."""
    return "" if path == STDOUT else f"wrote {path}"


def score(what: str, differences: Sequence[tuple[str, str]], json_file: Path | None) -> None:
    """Print the last line of a check, of (case, what differs) pairs, and leave: 0 if all are exact, else or if none 1.

    The JSON is ``{"cases": [{"name", "exact", "difference"}], "exact", "total"}``.
    """
    cases = [{"name": name, "exact": not found, "difference": found or None} for name, found in differences]
    exact = [not found for _, found in differences]
    write_json(json_file, {"cases": cases, "exact": sum(exact), "total": len(exact)})
    say(f"{what}: {sum(exact)}/{len(exact)} exact")
    sys.exit(0 if exact and all(exact) else 1)


def words(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[str, ...]:
    """A comma-separated option as a tuple; nothing given is an empty one."""
    return tuple(w for w in (given or "").split(",") if w)


class TokenCount(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  # generic since click 8.2 only
    """A whole number of tokens, at least 1; 32k is 32,000 and 32K 32,768, as vLLM reads them."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a message where it is none."""
        found = value if isinstance(value, int) else human_int(value)
        if found is None or found < 1:
            accepted = "a number of tokens from 1, e.g. 8000, 32k (32,000) or 32K (32,768)"
            self.fail(f"{value!r} is not {accepted}.", param, ctx)
        return found


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
