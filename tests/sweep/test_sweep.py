"""Sweeps from start to table: resuming, failures, executors, limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from kvsim.batch import folder as folder_module
from kvsim.batch import sweep as sweep_module
from kvsim.batch.cases import expand
from kvsim.batch.executors import Limits, ProcessPool, make_executor
from kvsim.batch.job import Job, Outcome, report_columns, run_case
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import SweepOptions, SweepProgress, estimate_s, open_sweep, status_of, sweep
from kvsim.errors import KvsimError, ScenarioError
from kvsim.simulation import simulate
from tests.sweep.helpers import INLINE, batch, linear, tiny

LIVE = "workload.concurrency"
GRID = {"grid": {LIVE: [1, 2, 3]}}


def test_row_is_the_report_under_its_stable_names() -> None:
    table = sweep(batch(GRID), options=INLINE)
    report = simulate(tiny(workload={**tiny()["workload"], "concurrency": 2}))
    row = list(table)[1]
    want = report_columns(report)
    assert {name: row[name] for name in want if want[name] is not None} == {
        name: value for name, value in want.items() if value is not None}
    assert row["digest"] == report.run.digest
    assert not [name for name in table.columns if "wall" in name]


def test_equal_cases_run_once() -> None:
    seen: list[SweepProgress] = []
    table = sweep(batch({"grid": {LIVE: [2, 2, 2]}}), options=INLINE, progress=seen.append)
    assert (len(table), table.computed, len(seen)) == (3, 1, 1)
    assert len(set(table["throughput.output_tokens_per_s"])) == 1


def test_resumes_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "o"
    assert sweep(batch(GRID), out, INLINE).computed == 3
    whole = (out / "cases.parquet").read_bytes()
    next((out / "cases").iterdir()).unlink()
    (out / "cases.parquet").unlink()
    again = sweep(batch(GRID), out, INLINE)
    assert again.computed == 1
    assert (out / "cases.parquet").read_bytes() == whole


def test_larger_sweep_in_the_same_folder_reuses_cases(tmp_path: Path) -> None:
    sweep(batch(GRID), tmp_path / "o", INLINE)
    larger = sweep(batch({"grid": {LIVE: [1, 2, 3, 4, 5]}}), tmp_path / "o", INLINE)
    assert (len(larger), larger.computed) == (5, 2)


def test_other_version_or_profiles_compute_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(batch(GRID), tmp_path / "o", INLINE)
    monkeypatch.setattr(folder_module, "package_version", lambda: "999")
    assert sweep(batch(GRID), tmp_path / "o", INLINE).computed == 3


def test_damaged_case_file_is_a_missing_case(tmp_path: Path) -> None:
    sweep(batch(GRID), tmp_path / "o", INLINE)
    next((tmp_path / "o" / "cases").iterdir()).write_text('{"basis": ')
    assert sweep(batch(GRID), tmp_path / "o", INLINE).computed == 1


def test_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ScenarioError, match="no sweep's folder"):
        sweep(batch(GRID), tmp_path, INLINE)


def impossible_batch() -> dict[str, Any]:
    """Two cases that run; a layout that cannot be, a value that is none, a model that does not fit, a missing file."""
    return batch({"list": [{LIVE: 1}, {LIVE: 2}, {"layout.tp": 3}, {"engine.max_num_seqs": 0}, {"model": "kimi-k3"},
                           {"engine.calibration": "no/such/file.yaml"}]})


def test_failed_cases_are_rows_and_the_rest_is_done(tmp_path: Path) -> None:
    table = sweep(impossible_batch(), tmp_path / "o", INLINE)
    assert table["error.kind"] == [None, None, "input", "input", "infeasible", "input"]
    assert [row["case"] for row in table.failed] == [2, 3, 4, 5]
    assert "no/such/file.yaml" in table["error.message"][5]
    assert sweep(impossible_batch(), tmp_path / "o", INLINE).computed == 0


def test_bug_in_one_case_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = simulate

    def broken(scenario: dict[str, Any]) -> Any:
        if scenario["workload"]["concurrency"] == 2:
            raise ZeroDivisionError("by nothing")
        return real(scenario)

    monkeypatch.setattr("kvsim.simulation.simulate", broken)
    table = sweep(batch(GRID), options=INLINE)
    assert table["error.kind"] == [None, "bug", None]
    assert table["error.type"][1] == "ZeroDivisionError"


def test_retry_failed_runs_failed_cases_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always(_: object) -> Any:
        raise RuntimeError("not today")

    with monkeypatch.context() as patch:
        patch.setattr("kvsim.simulation.simulate", always)
        assert len(sweep(batch({"grid": {LIVE: [1]}}), tmp_path / "o", INLINE).failed) == 1
    kept = sweep(batch(GRID), tmp_path / "o", INLINE)
    assert (kept.computed, len(kept.failed)) == (2, 1)
    retried = sweep(batch(GRID), tmp_path / "o", SweepOptions("inline", retry_failed=True))
    assert (retried.computed, len(retried.failed)) == (1, 0)


def test_process_pool_gives_the_same_bytes_as_inline(tmp_path: Path) -> None:
    sweep(batch(GRID, replications=2), tmp_path / "a", INLINE)
    sweep(batch(GRID, replications=2), tmp_path / "b", SweepOptions("process", workers=2))
    assert (tmp_path / "a/cases.parquet").read_bytes() == (tmp_path / "b/cases.parquet").read_bytes()
    assert status_of(load_batch(batch(GRID, replications=2)), tmp_path / "b").peak_bytes < 500e6


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # so that importing it fails
    with pytest.raises(KvsimError, match=r"kvsim\[ray\]"):
        make_executor("ray", None, Limits())


def test_requests_of_every_case(tmp_path: Path) -> None:
    table = sweep(batch(GRID), tmp_path / "o", SweepOptions("inline", requests=True))
    for digest, count in zip(table["digest"], table["run.num_requests"], strict=True):
        requests = pq.read_table(tmp_path / f"o/requests/{digest}.parquet")
        assert requests.num_rows == count == 6
        assert np.all(requests["finish_s"].to_numpy() > requests["arrival_s"].to_numpy())
    with pytest.raises(ScenarioError, match="nowhere to write requests"):
        sweep(batch(GRID), None, SweepOptions("inline", requests=True))


def endless(name: str = "1") -> Job:
    """A case of minutes, in a scenario of many requests."""
    workload = {"fixed": {"num_requests": 3_000_000, "input_tokens": 3000, "output_tokens": 300, "input_sigma": 0.5},
                "concurrency": 64}
    return Job(name, {k: v for k, v in tiny(workload=workload).items() if k != "name"})


def quick(name: str) -> Job:
    return Job(name, {k: v for k, v in tiny(engine={"step_time": linear(0.01)}).items() if k != "name"})


def test_timeout_costs_one_case() -> None:
    pool = ProcessPool(1, Limits(timeout_s=8.0))  # far above what the quick cases take on a busy machine
    outcomes = {job.digest: outcome for job, outcome in pool.run([endless(), quick("2"), quick("3")])}
    assert outcomes["1"]["error"] == {"kind": "timeout", "type": "Timeout", "message": "took longer than 8 s"}
    assert [outcomes[name]["status"] for name in "23"] == ["ok", "ok"]


def test_memory_bound_costs_one_case() -> None:
    pool = ProcessPool(1, Limits(timeout_s=60.0, memory_bytes=300_000_000))
    outcomes = {job.digest: outcome for job, outcome in pool.run([endless(), quick("2")])}
    assert outcomes["1"]["error"]["kind"] in ("memory", "killed")
    assert outcomes["2"]["status"] == "ok"


def test_killed_worker_costs_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    start: Callable[[Any], Any] = subprocess.Popen

    def watched(*args: Any, **how: Any) -> Any:
        process = start(*args, **how)
        killed.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", watched)
    results = ProcessPool(1, Limits(retries=0)).run([quick("1"), endless("2"), quick("3")])
    outcomes: dict[str, Outcome] = {}
    job, outcomes["1"] = next(results)
    assert job.digest == "1"
    time.sleep(0.3)
    os.kill(killed[0], signal.SIGKILL)
    outcomes |= {job.digest: outcome for job, outcome in results}
    assert outcomes["2"]["error"] == {"kind": "killed", "type": "WorkerDied",
                                      "message": "its worker process died (signal 9), 1 times"}
    assert outcomes["3"]["status"] == "ok"
    assert len(killed) == 2


def test_closing_the_results_ends_the_workers() -> None:
    results = ProcessPool(2, Limits()).run([quick("1"), endless("2")])
    next(results)
    began = time.perf_counter()
    results.close()
    assert time.perf_counter() - began < 10


def test_killed_sweep_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL halfway through 40 cases loses at most those in flight, and the table is that of an unbroken run."""
    axes = ({"grid": {LIVE: list(range(1, 11)), "engine.max_num_seqs": [8, 16]}},)
    # Long enough a case to be caught between two of them.
    workload = {"fixed": {"num_requests": 300, "input_tokens": 500, "output_tokens": 30}, "concurrency": 1}
    wanted = batch(*axes, base=tiny(workload=workload), replications=2)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(wanted))
    out = tmp_path / "broken"
    command = [sys.executable, "-m", "kvsim.cli", "sweep", str(tmp_path / "s.yaml"), "-o", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list((out / "cases").glob("*.json"))) < 10:
        assert process.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = status_of(load_batch(wanted), out).ok
    assert 10 <= kept < 40
    assert not (out / "cases.parquet").exists()
    again = sweep(wanted, out, SweepOptions("process", workers=2))
    assert again.computed == 40 - kept
    sweep(wanted, tmp_path / "whole", INLINE)
    assert (out / "cases.parquet").read_bytes() == (tmp_path / "whole/cases.parquet").read_bytes()


def test_status_and_table_of_an_unfinished_folder(tmp_path: Path) -> None:
    sweep(batch(GRID), tmp_path / "o", INLINE)
    next((tmp_path / "o" / "cases").iterdir()).unlink()
    state = status_of(load_batch(batch(GRID)), tmp_path / "o")
    assert (state.total, state.ok, state.failed, state.missing) == (3, 2, 0, 1)
    assert len(open_sweep(tmp_path / "o")) == 2
    with pytest.raises(ScenarioError, match="not the folder of a sweep"):
        open_sweep(tmp_path)


def test_estimate_comes_from_finished_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {"fixed": {"num_requests": 80, "input_tokens": 120, "output_tokens": 8}, "concurrency": 2}
    cases = expand(load_batch(batch({"grid": {LIVE: list(range(1, 9))}}, base=tiny(workload=workload))))
    found: dict[str, Outcome] = {case.digest: {"status": "ok", "wall_s": 3.0} for case in cases[:2]}
    assert estimate_s(cases, found, 2) == 9.0
    assert estimate_s(cases, dict.fromkeys([case.digest for case in cases], found[cases[0].digest]), 2) == 0.0
    monkeypatch.setattr(sweep_module, "_wall_s", lambda data: 0.1 + data["workload"]["fixed"]["num_requests"])
    assert estimate_s(cases, {}, 1) == pytest.approx(8 * 80.1, rel=0.02)


def test_failed_outcome_has_no_result() -> None:
    outcome = run_case(Job("1", {**tiny(model="kimi-k3"), "hardware": {"gpu": "h200", "num_gpus": 1}}))
    assert outcome["status"] == "failed"
    assert outcome["error"]["kind"] == "infeasible"
    assert "result" not in outcome
    assert json.dumps(outcome)
