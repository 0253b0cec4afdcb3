"""Rows of a trace that a run does not play as recorded are told, in the text and in the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvsim as library
from kvsim.scenario import load_scenario
from kvsim.traffic import build_workload, trace_accounts
from tests.cli.helpers import Shell

SCENARIO = {"name": "small", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1}}
GOOD = [json.dumps({"timestamp": 100 * k, "input_length": 600, "output_length": 5, "hash_ids": [7, k]})
        for k in range(8)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A trace whose rows 3 to 7 are wrong."""
    path = tmp_path / "log.jsonl"
    wrong = ['{"timestamp": 3, "input_length": -4}', *["nonsense"] * 4]
    path.write_text("\n".join([*GOOD[:2], *wrong, *GOOD[2:]]))
    return path


def scenario(**workload: Any) -> dict[str, Any]:
    """A scenario of a workload."""
    return {**SCENARIO, "workload": workload}


def test_the_command_tells_which_rows_were_skipped(kvsim: Shell, log: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "s.yaml", tmp_path / "out.json"
    path.write_text(yaml.safe_dump({"schema": "kvsim/scenario/1", **scenario(trace=str(log))}))
    done = kvsim("run", str(path), "--json", str(target))
    assert done.code == 0
    assert f"{log}: 5 of 13 rows are bad and were skipped" in done.out
    assert f"{log}:3: input_length: got -4" in done.out
    assert "and 2 more" in done.out
    account, = json.loads(target.read_text())["traces"]
    assert (account["num_rows"], account["num_requests"], len(account["bad"])) == (13, 8, 5)


@pytest.mark.parametrize("workload", [
    {"concurrency": 2},
    {"rate_per_s": 3.0, "mode": "open"},
    {"max_sessions": 4},
])
def test_however_the_trace_is_played(log: Path, workload: dict[str, Any]) -> None:
    report = library.simulate(scenario(trace=str(log), **workload))
    assert [len(account.bad) for account in report.traces] == [5]


def test_a_trace_that_only_sets_the_rate_is_told_too(log: Path) -> None:
    part = {"chat": {"turns": 2, "system_tokens": 50, "user_tokens": 20, "output_tokens": 5, "think_s": 1},
            "arrivals": {"trace_rate": str(log), "window_s": 1}, "duration_s": 2}
    report = library.simulate(scenario(**part))
    assert [account.path for account in report.traces] == [str(log)]


def test_the_traces_of_all_classes_are_told_once(log: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_text("\n".join(GOOD))
    classes = [{"name": name, "trace": str(path)} for name, path in (("a", log), ("b", whole), ("c", log))]
    report = library.simulate(scenario(classes=classes))
    assert [account.path for account in report.traces] == [str(log)]
    assert len(trace_accounts(load_scenario(scenario(classes=classes)))) == 2


def test_a_whole_trace_says_nothing(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_text("\n".join(GOOD))
    report = library.simulate(scenario(trace=str(whole)))
    assert report.traces == ()
    assert "traces" not in report.to_dict()


def test_a_trace_is_read_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = load_scenario(scenario(trace=str(log), concurrency=2))
    build_workload(asked)

    def fail(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("kvsim.traffic.read_trace", fail)
    assert [len(account.bad) for account in trace_accounts(asked)] == [5]
