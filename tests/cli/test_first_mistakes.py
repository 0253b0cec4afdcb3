"""Mistakes that a newcomer makes: each is answered with what was wrong and what to do, not with Python's own words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.helpers import Shell
from tests.cli.test_json import BATCH, DATA

LAUNCH = "vllm serve moonshotai/Kimi-K3"
CONFIG = str(DATA / "hf_configs" / "llama-3.1-8b.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a sweep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(json.dumps(BATCH))
    return tmp_path


@pytest.mark.parametrize(("arguments", "said"), [
    (("sweep", "sweep.yaml", "-o", "out", "--memory", "lots"), "'lots' is not a number with a unit"),
    (("sweep", "sweep.yaml", "-o", "out", "--memory", "0 GiB"), "'0 GiB' is nothing"),
    (("sweep", "sweep.yaml", "-o", "out", "--address", "auto"), "it needs --executor ray"),
    (("sweep", "sweep.yaml", "-o", "out", "--status", "--dry-run"), "ask one"),
    (("report", ".", "-o", "page.html"), "got a folder without sweep.json"),
    (("compare", CONFIG, CONFIG), "got JSON without 'run'; accepted: JSON that kvsim run --json wrote"),
    (("profiles", "import", "none.json"), "none.json: got No such file or directory; accepted: a config.json"),
    (("calibrate", "none.jsonl", "-o", "x.yaml"), "none.jsonl: got No such file or directory"),
    (("validate", "capacity", "none.csv"), "none.csv: got No such file or directory"),
    (("validate", "results", "none.json", "--scenario", "k3-b300-study"), "none.json: got No such file or directory"),
    (("import-command", *LAUNCH.split(), "-tp", "8", "--gpu", "b300"), "in quotes, or last, after --"),
    (("import-command", LAUNCH, "--gpu", "b3000"), "did you mean 'b300'?"),
    (("import-command", LAUNCH), "error: the launch command cannot become a scenario\n  --gpu: missing"),
])
def test_the_message_helps(kvsim: Shell, folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = kvsim(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Errno" not in done.err


def test_a_launch_command_without_quotes_may_come_last(kvsim: Shell) -> None:
    done = kvsim("import-command", "--gpu", "b300", "--", "vllm", "serve", "moonshotai/Kimi-K3", "-tp", "8")
    assert done.code == 0
    assert "tp: 8" in done.out


def test_every_kind_of_profile_can_be_listed_and_shown(kvsim: Shell) -> None:
    drafts = kvsim("profiles", "list", "draft").out.removeprefix("draft: ").strip().split(", ")
    assert kvsim("profiles", "show", drafts[0], "--kind", "draft").code == 0
    kinds = [line.partition(":")[0] for line in kvsim("profiles", "list").out.splitlines()]
    assert [kind for kind in kinds if kvsim("profiles", "list", kind).code] == []


def test_rows_that_are_all_wrong_are_told_by_the_first_ten(kvsim: Shell, folder: Path) -> None:
    (folder / "log.jsonl").write_text("nonsense\n" * 150)
    done = kvsim("trace", "info", "log.jsonl", "--format", "mooncake")
    assert done.code == 2
    assert len(done.err.splitlines()) == 12
    assert done.err.endswith("  and 91 more\n")


def test_a_log_from_standard_input_is_called_that(kvsim: Shell, folder: Path) -> None:
    (folder / "none.log").write_text("nothing of worth\n")
    before = os.dup(0)
    with (folder / "none.log").open() as text:
        os.dup2(text.fileno(), 0)
        done = kvsim("import-log", "-")
    os.dup2(before, 0)
    os.close(before)
    assert (done.code, "standard input: missing" in done.err) == (2, True)


def test_room_that_is_asked_for_is_never_nothing(kvsim: Shell) -> None:
    done = kvsim("capacity", "--model", "llama-3.1-70b", "--gpu", "h100")
    assert done.code == 3
    assert "accepted: at least 5.00 MiB per GPU" in done.err
