"""Replicas, routers, failures, prefill/decode splits and layouts as axes of a sweep, and the columns of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.batch.cases import expand
from kvsim.batch.findings import groups_of
from kvsim.batch.points import CLUSTER_COLUMNS, SHOWN_POINTS, columns_of, points_text
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import SweepOptions, sweep
from kvsim.batch.table import SweepTable
from kvsim.commands.sweep import sweep as sweep_command

BASE: dict[str, Any] = {
    "name": "chats", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    "engine": {"profile": "vllm-0.33", "num_blocks": 4000},
    "workload": {"chat": {"turns": 6, "user_tokens": {"median": 400, "sigma": 0.8}, "output_tokens": 60,
                          "system_tokens": 800, "think_s": 2}, "concurrency": 24, "duration_s": 60},
}


def done(axes: list[dict[str, Any]], tmp_path: Path, **base: Any) -> SweepTable:
    table = sweep({"name": "axes", "base": {**BASE, **base}, "axes": axes}, tmp_path / "out",
                  SweepOptions(executor="inline"))
    assert [row["error.message"] for row in table.failed] == []
    return table


def test_routers_and_replicas(tmp_path: Path) -> None:
    table = done([{"grid": {"replicas": [2, 3], "router": ["round_robin", "session_affinity"]}}], tmp_path)
    assert table["cluster.router"] == ["round_robin", "session_affinity"] * 2
    hits = table["hit_rate.total"]
    assert hits[1] > hits[0]
    assert hits[3] > hits[2]
    assert all(n >= 1 for n in table["cluster.imbalance_computed"])
    assert [len(json.loads(text)) for text in table["cluster.replicas"]] == [2, 2, 3, 3]


def test_failures(tmp_path: Path) -> None:
    table = done([{"list": [{"failures": []}, {"failures": [{"replica": 0, "at_s": 20}]},
                            {"failures": [{"replica": 0, "at_s": 20, "recover_s": 30}]}]}], tmp_path, replicas=2)
    retries = table["cluster.retries"]
    assert retries[0] == 0
    assert retries[1] == retries[2] > 0
    up = [json.loads(text)[0]["up_frac"] for text in table["cluster.replicas"]]
    assert up[0] > up[2] > up[1]


def test_ways_to_divide_replicas_between_prefill_and_decode(tmp_path: Path) -> None:
    zipped = {"disaggregation.prefill.replicas": [1, 2], "disaggregation.decode.replicas": [2, 1]}
    table = done([{"zip": zipped}], tmp_path, disaggregation={})
    assert table["disaggregation.prefill_replicas"] == [1, 2]
    assert table["disaggregation.decode_replicas"] == [2, 1]
    assert all(moved > 0 for moved in table["disaggregation.transferred_bytes"])


def test_layouts_with_and_without_context_parallelism_and_stages(tmp_path: Path) -> None:
    axes = [{"list": [{"layout": {"tp": 8}}, {"layout": {"tp": 8, "dcp": 8}}, {"layout": {"tp": 4, "pp": 2}}]}]
    table = done(axes, tmp_path, model="deepseek-r1", hardware={"gpu": "h200", "num_gpus": 8},
                 engine={"profile": "vllm-0.24-h200", "kv_dtype": "fp8", "max_model_len": 32768})
    plain, striped, staged = table["capacity.kv_tokens"]
    assert striped > 4 * plain
    assert staged != plain


def test_columns_of_clusters_stand_only_where_there_are_replicas(tmp_path: Path) -> None:
    alone = groups_of(done([], tmp_path / "alone"))
    several = done([{"grid": {"replicas": [1, 2]}}], tmp_path / "several")
    assert not set(CLUSTER_COLUMNS) & set(columns_of(alone))
    assert columns_of(groups_of(several))[-1][0] == "imbalance"
    first, one, two = points_text(several).splitlines()
    assert first.split()[0] == "point"
    assert "imbalance" in first
    assert one.endswith("-")
    assert float(two.split()[-1]) >= 1


def test_a_long_sweep_is_told_in_part() -> None:
    scenario = json.dumps({k: v for k, v in BASE.items() if k != "name"})
    row = {"label": "a=1 seed=0", "status": "ok", "scenario": scenario, "hit_rate.total": 0.5}
    rows = [{**row, "case": k, "axis.seed": k} for k in range(SHOWN_POINTS + 3)]
    table = SweepTable("long", {name: [r[name] for r in rows] for name in rows[0]})
    assert points_text(table).splitlines()[-1] == "and 3 more points"


def test_the_shipped_sweep_of_routers_is_whole() -> None:
    cases = expand(load_batch("cluster-routers"))
    assert len(cases) == 16
    assert {(c.data["replicas"], c.data["workload"]["concurrency"]) for c in cases} == {(2, 16), (4, 32)}


def test_the_command_prints_the_points(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    axes = [{"grid": {"router": ["round_robin", "least_loaded"]}}]
    path.write_text(json.dumps({"schema": "kvsim/sweep/1", "name": "axes", "base": BASE, "axes": axes,
                                "set": {"replicas": 2}}))
    ran = CliRunner().invoke(sweep_command, [str(path), "-o", str(tmp_path / "out"), "--executor", "inline"])
    assert ran.exit_code == 0, ran.output
    head, *rows = ran.output.splitlines()
    assert head.split()[:3] == ["point", "hit", "rate"]
    assert [row.split()[0] for row in rows[:2]] == ["router=round_robin", "router=least_loaded"]
    assert rows[2] == "axes: 2 cases: 2 computed, 0 there already, 0 failed"


@pytest.mark.parametrize("field", ["replicas", "router", "failures.0.replica"])
def test_a_wrong_value_is_a_failed_row(field: str, tmp_path: Path) -> None:
    wrong = {"replicas": 0, "router": "fastest", "failures.0.replica": 7}[field]
    base = {**BASE, "replicas": 2, "failures": [{"replica": 0, "at_s": 9}]}
    table = sweep({"name": "wrong", "base": base, "axes": [{"list": [{"seed": 1}, {field: wrong}]}]},
                  tmp_path / "out", SweepOptions(executor="inline"))
    assert [row["error.kind"] for row in table.failed] == ["input"]
