"""``kvsim validate`` as people type it: the last line is the score, the exit code says whether all is well."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import kvsim as kvsim  # the command line as a fixture
from tests.cli.helpers import Shell
from tests.validate.test_bench_results import SCENARIO, VLLM

DATA = Path(__file__).parents[1] / "data"


def recorded(kind: str) -> list[dict[str, Any]]:
    """Recorded engine cases of a kind."""
    with gzip.open(DATA / "engine_cases.jsonl.gz", "rt") as lines:
        return [case for case in map(json.loads, lines) if case["kind"] == kind]


@pytest.mark.parametrize("engine", ["core", "reference"])
def test_engine_cases_of_two_kinds(kvsim: Shell, engine: str) -> None:
    done = kvsim("validate", "engine", str(DATA / "engine_cases.jsonl.gz"), "--kinds", "priority,nocache",
                 "--engine", engine)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == ["engine cases: 12/12 exact"]


def test_an_engine_case_that_differs_is_named(kvsim: Shell, tmp_path: Path) -> None:
    good, bad = recorded("nocache")[:2]
    bad["answer"]["requests"][2]["preemptions"] += 1
    for case in (good, bad):
        (tmp_path / f"{case['name']}.json").write_text(json.dumps(case))
    done = kvsim("validate", "engine", str(tmp_path))
    assert done.code == 1
    told, last = done.out.splitlines()
    assert told.startswith(f"{bad['name']}: ")
    assert "preemptions" in told
    assert last == "engine cases: 1/2 exact"


def test_a_kind_that_nobody_recorded(kvsim: Shell) -> None:
    done = kvsim("validate", "engine", str(DATA / "engine_cases.jsonl.gz"), "--kinds", "chatt")
    assert done.code == 2
    assert "chatt" in done.err
    assert "chat" in done.err.split("accepted:", 1)[1]


def test_a_check_of_nothing_does_not_pass(kvsim: Shell) -> None:
    done = kvsim("validate", "engine", str(DATA / "offload_cases.jsonl.gz"), "--kinds", "chat")
    assert (done.code, done.out) == (1, "engine cases: 0/0 exact\n")


def test_gpu_runs(kvsim: Shell, tmp_path: Path) -> None:
    target = tmp_path / "runs.json"
    done = kvsim("validate", "gpu-runs", str(DATA / "gpu_runs.qwen3-30b-a3b-async.jsonl.gz"), "--json", str(target))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("gpu runs: median throughput error ")
    data = json.loads(target.read_text())
    assert {run["fitted"] for run in data["runs"]} == {False}
    assert data["score"]["scored_runs"] == len(data["runs"])
    assert f"{100 * data['score']['median_throughput_error_frac']:.1f} %" in done.out.splitlines()[-1]


def test_gpu_runs_that_were_fitted_on_are_not_scored(kvsim: Shell) -> None:
    labels = "fixed-c1,fixed-c8"
    done = kvsim("validate", "gpu-runs", str(DATA / "gpu_runs.qwen3-30b-a3b-async.jsonl.gz"), "--calibrate-on", labels)
    assert done.code == 0, done.err
    assert "calibrat" in done.out
    assert done.out.splitlines()[-1].startswith("gpu runs: median throughput error ")
    wrong = kvsim("validate", "gpu-runs", str(DATA / "gpu_runs.qwen3-30b-a3b-async.jsonl.gz"), "--calibrate-on", "x")
    assert wrong.code == 2
    assert "fixed-c1" in wrong.err


def test_results_of_a_benchmark(kvsim: Shell, tmp_path: Path) -> None:
    results, scenario, target = tmp_path / "r.json", tmp_path / "s.yaml", tmp_path / "out.json"
    results.write_text(json.dumps(VLLM))
    scenario.write_text(yaml.safe_dump(SCENARIO))
    done = kvsim("validate", "results", str(results), "--scenario", str(scenario), "--json", str(target))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("results: median error ")
    result, = json.loads(target.read_text())["results"]
    assert (result["tool"], result["concurrency"]) == ("vllm bench serve", 4)
    assert "throughput.requests_per_s" in {figure["name"] for figure in result["figures"]}


def test_results_need_a_scenario(kvsim: Shell, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(VLLM))
    done = kvsim("validate", "results", str(tmp_path / "r.json"))
    assert done.code == 2
    assert "--scenario" in done.err
