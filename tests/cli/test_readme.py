"""The README tells the truth: its Python runs, its commands exist, and the study's output is today's.

``KVSIM_RENEW_README=1 pytest tests/cli/test_readme.py`` writes the study's output anew.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import shlex
from pathlib import Path

import click
import pytest

from kvsim.cli import cli
from tests.cli.helpers import Shell

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
STUDY = re.compile(r"(<!-- study -->\n)(.*?)(<!-- /study -->)", re.DOTALL)
COMMAND = re.compile(r"^    (kvsim .*?)(?:  +#.*)?$", re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Fenced code of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def study_block() -> str:
    """What stands between the study's marks."""
    match = STUDY.search(README.read_text())
    assert match is not None
    return match[2]


def test_the_python_runs_and_is_short() -> None:
    found = blocks("python")
    assert len(found) == 1
    assert len([line for line in found[0].splitlines() if line.strip()]) <= 6
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[0], "README.md", "exec"), {"__name__": "readme"})
    lines = printed.getvalue().splitlines()
    assert re.fullmatch(r"[\d,]+ tokens of KV; sessions by context: \[\d+(, \d+){4}\]", lines[0])
    assert re.fullmatch(r"\d+\.\d% of prompt tokens cached, \d+ output tokens/s", lines[1])


@pytest.mark.parametrize("line", COMMAND.findall(README.read_text()))
def test_the_commands_exist(line: str) -> None:
    """Every command and flag is one that the program has."""
    words = shlex.split(line)[1:]
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {w for w in words if w.startswith("-")} <= known


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("KVSIM_RENEW_README") == "1", reason="the output is being renewed")
def test_the_study_s_output_is_today_s(kvsim: Shell) -> None:
    done = kvsim("run", "k3-b300-study")
    assert done.code == 0
    assert re.match(r"\n?`make run` on \d{4}-\d{2}-\d{2}:\n\n```text\n", study_block())
    assert study_block().split("```text\n")[1].removesuffix("```\n\n") == done.out


@pytest.mark.skipif(os.environ.get("KVSIM_RENEW_README") != "1", reason="set KVSIM_RENEW_README=1 to renew the output")
def test_renew_the_study_s_output(kvsim: Shell) -> None:
    done = kvsim("run", "k3-b300-study")
    assert done.code == 0
    text = f"\n`make run` on {datetime.date.today().isoformat()}:\n\n```text\n{done.out}```\n\n"
    README.write_text(STUDY.sub(lambda m: m[1] + text + m[3], README.read_text()))
    assert study_block() == text
