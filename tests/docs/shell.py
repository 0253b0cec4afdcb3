"""Runs the blocks of one page in one folder, as a reader would type them."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kvsim.batch.spec import load_batch
from kvsim.cli import cli, main
from kvsim.profiles import store
from kvsim.scenario import load_scenario
from tests.docs.pages import Block, commands


class Failed(AssertionError):
    """A block that does not do what its page says."""


class Reader:
    """Types a page's blocks in order; Python blocks share their names, shell blocks their environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, not_run: dict[str, str]) -> None:
        self._monkeypatch, self._not_run = monkeypatch, not_run
        self.names: dict[str, Any] = {"__name__": "page"}
        self.printed = ""
        self.left_out: list[str] = []

    def read(self, block: Block) -> None:
        """Run a block, or write it to the file that its fence names."""
        try:
            if block.language == "python":
                self._python(block)
            elif block.language == "bash":
                self.printed = "".join(self._command(line, block) for line in commands(block.text))
            elif block.language == "yaml":
                self._yaml(block)
        except Exception as err:
            raise Failed(f"{block.place}: {type(err).__name__}: {err}") from err

    def _python(self, block: Block) -> None:
        """Execute, keeping what is printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, block.place, "exec"), self.names)
        self.printed = out.getvalue()

    def _yaml(self, block: Block) -> None:
        """A file for later blocks, or something that must be readable as it stands."""
        if block.words:
            Path(block.words[0]).parent.mkdir(parents=True, exist_ok=True)
            Path(block.words[0]).write_text(block.text, encoding="utf-8")
        elif block.text.startswith("schema: kvsim/"):
            Path("block.yaml").write_text(block.text, encoding="utf-8")
            (load_batch if block.text.startswith("schema: kvsim/sweep") else load_scenario)("block.yaml")
        elif block.text.startswith("{"):
            for line in block.text.splitlines():
                yaml.safe_load(line)
        else:
            yaml.safe_load(block.text)

    def _command(self, line: str, block: Block) -> str:
        """Run one command; what it printed."""
        if any(line.startswith(prefix) for prefix in self._not_run):
            self.left_out.append(line)
            if line.startswith("kvsim "):
                parse_only(shlex.split(line)[1:])
            return ""
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._monkeypatch.setenv(name, os.path.expandvars(shlex.split(value)[0]))
            return ""
        if not line.startswith("kvsim "):
            return subprocess.run(["bash", "-euc", line], check=True, capture_output=True, text=True).stdout
        command, _, rest = line.partition(" | ")
        code, out, err = run_kvsim(shlex.split(command)[1:])
        expected = int(next((word.removeprefix("exit-") for word in block.words if word.startswith("exit-")), 0))
        if code != expected:
            raise Failed(f"{line}: ended with {code}, not {expected}\n{err or out[-2000:]}")
        return piped(out, rest) if rest else out


def piped(text: str, command: str) -> str:
    """Text through a shell command."""
    return subprocess.run(["bash", "-uc", command], input=text, capture_output=True, text=True, check=True).stdout


def run_kvsim(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code and both outputs of ``kvsim ARGUMENTS``, in this process."""
    store._store_for.cache_clear()  # a process of its own would read the folders anew
    out, err, code, before = io.StringIO(), io.StringIO(), 0, sys.argv
    sys.argv = ["kvsim", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def parse_only(arguments: list[str]) -> None:
    """Fail where a command would not accept its arguments; nothing is run."""
    command: click.Command = cli
    words, context = list(arguments), click.Context(cli, info_name="kvsim")
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    command.make_context(command.name, words, parent=context.parent)
