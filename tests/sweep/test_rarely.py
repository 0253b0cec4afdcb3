"""What a sweep says and keeps when it is large, stopped, watched, or asked for what is not there."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.batch.cases import expand
from kvsim.batch.executors import Limits, make_executor
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import sweep
from kvsim.errors import KvsimError, ScenarioError
from tests.cli.helpers import Shell
from tests.sweep.helpers import INLINE, batch

LIVE = "workload.concurrency"
TIER = {"kind": "dram", "capacity": "10 GB"}


@pytest.fixture
def kvsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def saved(folder: Path, *axes: dict[str, Any], **changes: Any) -> str:
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(batch(*axes, **changes)))
    return str(path)


def test_an_axis_that_holds_for_one_kind_of_tier_only() -> None:
    nvme = {"kind": "nvme", "capacity": "10 GB"}
    cases = expand(load_batch(batch(
        {"grid": {"tiers": [[], [TIER], [nvme]]}},
        {"grid": {"tiers.0.capacity": ["20 GB", "30 GB"]}, "when": {"tiers.0.kind": "dram"}})))
    sizes = [[tier["capacity"] for tier in case.data.get("tiers", [])] for case in cases]
    assert sizes == [[], [20e9], [30e9], [10e9]]


def test_a_dry_run_shows_the_first_cases_and_counts_the_rest(kvsim: Shell, tmp_path: Path) -> None:
    done = kvsim("sweep", saved(tmp_path, {"grid": {LIVE: list(range(1, 61))}}), "--dry-run", "--workers", "1")
    assert done.code == 0
    shown = [line for line in done.out.splitlines() if "concurrency=" in line]
    assert f"and {60 - len(shown)} more" in done.out
    assert "60 cases, 60 to run" in done.out


def test_all_cores_work_where_nobody_says_how_many(kvsim: Shell, tmp_path: Path) -> None:
    done = kvsim("sweep", saved(tmp_path, {"grid": {LIVE: [1, 2]}}), "--dry-run")
    cores = len(os.sched_getaffinity(0))
    assert f"with {cores} worker{'' if cores == 1 else 's'}" in done.out


def test_many_failures_are_counted_and_the_first_named(kvsim: Shell, tmp_path: Path) -> None:
    text = saved(tmp_path, {"list": [{LIVE: 1}, *({"engine.max_num_seqs": -k} for k in range(12))]})
    done = kvsim("sweep", text, "-o", str(tmp_path / "o"), "--executor", "inline")
    assert done.code == 1
    assert done.out.count("failed: case") == 10
    assert "and 2 more, in column error.message of the table" in done.out


@pytest.mark.parametrize("words", [("--status",), ()])
def test_a_folder_is_asked_for(kvsim: Shell, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = kvsim("sweep", saved(tmp_path, {"grid": {LIVE: [1]}}), *words)
    assert done.code == 2
    assert "--output DIR" in done.err


def test_ctrl_c_says_how_to_go_on(kvsim: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.batch.sweep.sweep", interrupted)
    out = tmp_path / "o"
    done = kvsim("sweep", saved(tmp_path, {"grid": {LIVE: [1]}}), "-o", str(out), "--executor", "inline")
    assert done.code == 130
    assert f"finished cases are kept: kvsim sweep -o {out} goes on" in done.err


def test_a_bar_on_a_terminal_leaves_the_answer_alone(kvsim: Shell, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = saved(tmp_path, {"grid": {LIVE: [1, 2]}})
    quiet = kvsim("sweep", text, "-o", str(tmp_path / "a"), "--executor", "inline")
    watched = Terminal()
    monkeypatch.setattr(sys, "stderr", watched)
    done = kvsim("sweep", text, "-o", str(tmp_path / "b"), "--executor", "inline")
    assert done.out.replace(str(tmp_path / "b"), "") == quiet.out.replace(str(tmp_path / "a"), "")
    assert quiet.err == ""
    assert "2/2" in watched.getvalue()


def test_a_sweep_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="YAML as UTF-8 text") as caught:
        load_batch(path)
    assert caught.value.problems[0].where == str(path)


def test_an_executor_that_nobody_has() -> None:
    with pytest.raises(KvsimError, match="got 'slurm'; accepted: process, inline or ray"):
        make_executor("slurm", 1, Limits())  # pyright: ignore[reportArgumentType]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "o").write_text("a file")
    with pytest.raises(ScenarioError, match="cannot write the sweep's results") as caught:
        sweep(batch({"grid": {LIVE: [1]}}), tmp_path / "o", INLINE)
    assert str(tmp_path / "o") in str(caught.value)


def test_whole_and_broken_numbers_of_one_axis_are_one_column(tmp_path: Path) -> None:
    table = sweep(batch({"list": [{"engine.gpu_memory_utilization": 0.9}, {"engine.gpu_memory_utilization": 1}]}),
                  tmp_path / "o", INLINE)
    assert list(table["axis.engine.gpu_memory_utilization"]) == [0.9, 1.0]
    assert {type(value) for value in table["axis.engine.gpu_memory_utilization"]} == {float}


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = sweep(batch({"grid": {LIVE: [1]}}), tmp_path / "o", INLINE)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(KvsimError, match=r"needs the package polars.*\n.*pip install polars"):
        table.to_polars()
