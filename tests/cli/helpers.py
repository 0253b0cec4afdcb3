"""The command line without a subprocess: exit code and both outputs of ``kvsim ARGUMENTS``."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from kvsim.cli import main


class Outcome(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands through the program's own entry point."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["kvsim", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        printed = self._capsys.readouterr()
        return Outcome(code, str(printed.out), str(printed.err))
