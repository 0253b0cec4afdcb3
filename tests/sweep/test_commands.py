"""``kvsim sweep``, ``compare``, ``report`` and ``run --trace-events`` as people type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.helpers import Shell
from tests.sweep.helpers import batch, tiny

INLINE = ("--executor", "inline")


@pytest.fixture
def kvsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sweep of three cases on disk."""
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(batch({"grid": {"workload.concurrency": [1, 2, 3]}})))
    return file


def test_sweep_status_and_resuming(kvsim: Shell, path: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "o")
    done = kvsim("sweep", str(path), "-o", out, *INLINE)
    assert done.code == 0
    assert "3 computed, 0 there already, 0 failed" in done.out
    assert "3 ok, 0 failed, 0 missing" in kvsim("sweep", "-o", out, "--status").out
    assert "0 computed, 3 there already" in kvsim("sweep", "-o", out, *INLINE).out


def test_dry_run_runs_nothing(kvsim: Shell, path: Path, tmp_path: Path) -> None:
    shown = kvsim("sweep", str(path), "-o", str(tmp_path / "o"), "--dry-run", "--workers", "1")
    assert shown.code == 0
    assert "3 cases, 3 to run" in shown.out
    assert "concurrency=1 seed=0" in shown.out
    assert "with 1 worker" in shown.out
    assert not (tmp_path / "o").exists()


def test_failed_cases_end_with_1_and_are_named(kvsim: Shell, tmp_path: Path) -> None:
    """Three impossible cases and one that raises: the rest is done, four error rows."""
    points = [{"workload.concurrency": 1}, {"workload.concurrency": 2}, {"layout.tp": 3},
              {"model": "kimi-k3"}, {"engine.max_num_seqs": 0},
              {"engine.calibration": str(tmp_path / "none.yaml")}]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(batch({"list": points})))
    table = tmp_path / "t.json"
    done = kvsim("sweep", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "o"), *INLINE, "--json", str(table))
    assert done.code == 1
    assert done.out.count("failed: case") == 4
    states = [row["status"] for row in json.loads(table.read_text())["cases"]]
    assert states == ["ok", "ok", "failed", "failed", "failed", "failed"]


@pytest.mark.parametrize("arguments", [("sweep",), ("sweep", "k3-cliff-sweep"), ("sweep", "no-such-sweep", "-o", "x"),
                                       ("compare", "nothing", "nowhere")])
def test_user_errors(kvsim: Shell, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = kvsim(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_compare_a_scenario_with_itself_changed(kvsim: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(tiny()))
    target, both = tmp_path / "c.json", str(tmp_path / "a.yaml")
    done = kvsim("compare", both, both, "--replications", "1", "--workers", "1", "--set", "engine.max_num_seqs=7",
                 "--set-b", "engine.kv_dtype=fp8", "--json", str(target))
    assert done.code == 0, done.err
    assert [change["field"] for change in json.loads(target.read_text())["changes"]] == ["engine.kv_dtype"]
    wrong = kvsim("compare", both, both, "--set-b", "engine.kv_dtyp=fp8")
    assert wrong.code == 2
    assert "kv_dtyp" in wrong.err


def test_fields_of_results_cannot_be_changed(kvsim: Shell, path: Path, tmp_path: Path) -> None:
    out, report = str(tmp_path / "o"), tmp_path / "r.json"
    kvsim("sweep", str(path), "-o", out, *INLINE)
    report.write_text("{}")
    for source, kind in ((out, "a sweep"), (str(report), "a report")):
        done = kvsim("compare", source, source, "--set", "seed=1")
        assert done.code == 2
        assert f"{source}: seed=1: got {kind}, which has run already" in done.err


def test_compare_two_files(kvsim: Shell, tmp_path: Path) -> None:
    for name, dtype in (("a", "bf16"), ("b", "fp8")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tiny(engine={"kv_dtype": dtype})))
    data = tmp_path / "c.json"
    done = kvsim("compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), "--replications", "2", "--workers", "1",
                 "--json", str(data))
    assert done.code == 0
    assert "engine.kv_dtype: bf16 -> fp8" in done.out
    assert json.loads(data.read_text())["num_pairs"] == 2


def test_report_page(kvsim: Shell, path: Path, tmp_path: Path) -> None:
    kvsim("sweep", str(path), "-o", str(tmp_path / "o"), *INLINE)
    page = tmp_path / "page.html"
    assert kvsim("report", str(tmp_path / "o"), "-o", str(page)).code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_trace_events_of_a_run(kvsim: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(tiny()))
    assert kvsim("run", str(tmp_path / "a.yaml"), "--trace-events", str(tmp_path / "t.json")).code == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(event["name"].startswith("request ") and event["ph"] == "b" for event in events) == 6
