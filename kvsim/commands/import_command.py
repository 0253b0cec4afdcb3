"""``kvsim import-command``: a launch line of vLLM or SGLang as a scenario."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, show, write, wrote
from kvsim.errors import Problem, ScenarioError, nearest

MAX_BYTES = 1_000_000
"""A file larger than this is no launch command."""


class LaunchCommand(click.Command):
    """Says what to do where the flags of a launch command without quotes were taken for options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As usual; an unknown option also says how a launch command is given."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as err:
            hint = "put the launch command in quotes, or last, after --"
            raise click.UsageError(f"{err.format_message().rstrip('.')}; {hint}.", ctx) from None


@click.command("import-command", cls=LaunchCommand)
@click.argument("command", nargs=-1)
@click.option("--gpu", help="GPU profile, e.g. b300; a launch line does not say.")
@click.option("--model", help="Model profile, where the command names a path or another checkpoint.")
@click.option("--engine-profile", help="Engine profile; the engine's newest by default.")
@click.option("--name", help="Name of the scenario.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE",
              help="Set a field, e.g. workload={preset: agentx-v1, concurrency: 8, duration_s: 3600}.")
@output_option("-o", "--output", text="Write the scenario here instead of printing it.")
@json_option
def import_command(command: tuple[str, ...], output: Path | None, json_file: Path | None, gpu: str | None,
                   **asked: object) -> None:
    """Turn a launch COMMAND into a scenario: text in quotes, a file with it, or - for standard input.

    Recipes that come with kvsim are found by name. What became of every flag is said on standard error.
    """
    from kvsim.interop.importing import ImportOptions
    from kvsim.interop.importing import import_command as read
    from kvsim.interop.recipes import find_recipe

    text, where = _text_of(command)
    recipe = find_recipe(text.strip())
    if recipe is not None:
        text, where, gpu = recipe.command, recipe.name, gpu or recipe.gpu
        asked["engine_profile"] = asked["engine_profile"] or recipe.engine_profile
    elif where == "command" and len(text.split()) == 1:
        _refuse_word(text.strip())
    found = read(text, ImportOptions(gpu=gpu, **asked), where=where)  # pyright: ignore[reportArgumentType]
    click.echo(found.text(), err=True)
    if output is not None:
        write(output, found.yaml(), "--output")
    show(found.yaml().rstrip() if output is None else wrote(output), json_file, found.to_dict())


def _refuse_word(word: str) -> None:
    """Say that one word is neither a file nor a recipe, and so no command."""
    from kvsim.interop.recipes import recipe_paths
    from kvsim.interop.shell import LOOKED_FOR

    names = list(recipe_paths())
    accepted = f"a file that exists, a recipe ({', '.join(names)}), or {LOOKED_FOR}"
    raise ScenarioError("no such file or recipe", [Problem("command", "", repr(word), accepted, nearest(word, names))])


def _text_of(command: tuple[str, ...]) -> tuple[str, str]:
    """The text that was given, and its name in messages."""
    if command in ((), ("-",)):
        if not command and sys.stdin.isatty():
            raise click.UsageError("give the command in quotes, a file, or - for standard input")
        return sys.stdin.read(MAX_BYTES), "standard input"
    text = command[0] if len(command) == 1 else _joined(command)
    path = Path(text)
    if len(text) < 4096 and "\n" not in text and path.is_file():
        return _read(path), str(path)
    return text, "command"


def _joined(words: tuple[str, ...]) -> str:
    """Words that the shell has already taken apart, quoted again."""
    import shlex

    return shlex.join(words)


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()[:MAX_BYTES + 1]
        if len(data) > MAX_BYTES or b"\0" in data:
            given = "a binary file" if b"\0" in data else f"more than {MAX_BYTES:,} bytes"
            raise ScenarioError("cannot read the command", [Problem(str(path), "", given, "a text file of a command")])
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        problem = Problem(str(path), "", f"byte {err.start} is not UTF-8", "UTF-8 text")
    except OSError as err:
        problem = Problem(str(path), "", err.strerror or type(err).__name__, "a readable file")
    raise ScenarioError("cannot read the command", [problem])
