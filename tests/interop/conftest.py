"""The command line as a fixture."""

from __future__ import annotations

import pytest

from tests.cli.helpers import Shell


@pytest.fixture
def kvsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """``kvsim("import-command", ...)`` -> exit code, standard output, standard error."""
    return Shell(monkeypatch, capsys)
