"""The command line: find the command, run it, turn errors into messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback

import click

from kvsim.errors import KvsimError, TraceError, nearest

EXIT_BUG = 70
MOST_ROWS = 10
"""Problems with rows of a trace that are shown."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
COMMANDS = ("run", "capacity", "cost", "plan", "sweep", "compare", "report", "load-or-recompute", "cache", "trace",
            "profiles", "calibrate", "validate", "import-command", "import-log", "export-command", "app")
"""Commands in the order of the help; each is the function of that name in `kvsim.commands`."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, so that every start is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; an unknown one fails with the nearest."""
        if cmd_name not in COMMANDS:
            hint = nearest(cmd_name, COMMANDS)
            ctx.fail(f"no such command {cmd_name!r}" + (f"; {hint}" if hint else ""))
        module = importlib.import_module(f"kvsim.commands.{cmd_name.replace('-', '_')}")
        return getattr(module, cmd_name.replace("-", "_"))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvsim")
def cli() -> None:
    """KV-cache capacity and LLM serving-cost simulator."""


def _shown(err: KvsimError) -> str:
    """An error with its problems; of rows of a trace, which are often all wrong in one way, the first."""
    more = len(err.problems) - MOST_ROWS
    if not isinstance(err, TraceError) or more <= 0:
        return str(err)
    return f"{TraceError(err.message, err.problems[:MOST_ROWS])}\n  and {more} more"


def _forget_output() -> None:
    """Let nothing be written to standard output at the end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point: errors become one message and an exit code; a traceback means a bug."""
    try:
        cli(prog_name="kvsim", standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(2)
    except click.exceptions.Abort:
        sys.exit(130)
    except KvsimError as err:
        click.echo(f"error: {_shown(err)}", err=True)
        if err.exit_code == EXIT_BUG:
            traceback.print_exc()
        sys.exit(err.exit_code)
    except Exception as err:
        if isinstance(err, OSError) and err.errno in _FULL:
            click.echo(f"error: cannot write the output: {err.strerror}", err=True)
            _forget_output()
            sys.exit(2)
        traceback.print_exc()
        sys.exit(EXIT_BUG)


if __name__ == "__main__":
    main()
