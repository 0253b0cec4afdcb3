"""The report of a run: stable names, plain JSON, the same bytes for the same input, and figures with an origin."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kvsim.profiles.figure import figures_in
from kvsim.report.ledger import ORDER, ledger_of
from kvsim.report.report import Report, plain
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from tests.scenario.helpers import small

# Names that scripts rely on.
STABLE = {
    "throughput": {"output_tokens_per_s", "input_tokens_per_s", "total_tokens_per_s_per_gpu", "requests_per_s"},
    "hit_rate": {"total", "ideal", "by_tier"},
    "hit_rate.by_tier": {"hbm", "dram", "nvme", "pool"},
    "latency": {"ttft_s", "tpot_s", "itl_s", "e2e_s"},
    "latency.ttft_s": {"mean", "p50", "p90", "p95", "p99"},
    "latency.itl_s": {"mean", "p50", "p90", "p95", "p99"},
    "capacity": {"kv_tokens", "num_blocks", "block_tokens", "max_concurrency", "bytes_per_token",
                 "state_bytes_per_sequence", "checkpoint_bytes"},
    "cost": {"usd_per_hour", "contribution_usd_per_node_hour", "contribution_usd_per_turn", "margin_frac",
             "break_even_frac"},
    "cost.usd_per_mtok": {"uncached_input", "cached_input", "output", "blended", "output_all_in", "total_incl_cached"},
    "goodput": {"requests_per_s"},
    "limits": {"binding", "shares"},
    "limits.shares": {"hbm_bandwidth", "compute", "collectives", "kv_capacity", "transfer", "host", "queue"},
    "run": {"num_requests", "simulated_s", "wall_s", "seed", "digest", "version"},
}


@pytest.fixture(scope="module")
def report() -> Report:
    """One small run of Kimi K3 with two concurrent clients."""
    return simulate(small(model="kimi-k3", hardware={"gpu": "b300", "num_gpus": 8}, layout={"tp": 8},
                          engine={"kv_dtype": "fp8"}, seed=7))


def without_wall(report: Report) -> dict[str, Any]:
    """The report but for the one figure that may differ."""
    data = report.to_dict()
    del data["run"]["wall_s"]
    return data


@pytest.mark.parametrize("path", STABLE)
def test_stable_names(report: Report, path: str) -> None:
    part: Any = report.to_dict()
    for key in path.split("."):
        part = part[key]
    assert set(part) >= STABLE[path]


def test_json_has_plain_numbers_only(report: Report) -> None:
    assert json.loads(report.to_json()) == report.to_dict()
    assert report.to_dict()["preemptions"] == 0


def test_the_same_input_gives_the_same_bytes(report: Report) -> None:
    again = simulate(Scenario.from_dict(report.scenario))
    assert json.dumps(without_wall(again)) == json.dumps(without_wall(report))
    other = simulate(Scenario.from_dict({**report.scenario, "seed": 8}))
    assert other.run.digest != report.run.digest


def test_the_report_says_which_run_it_was(report: Report) -> None:
    scenario = Scenario.from_dict(report.scenario)
    assert (report.run.digest, report.run.seed) == (scenario.digest, 7)
    assert set(report.run.profiles) >= {"kimi-k3", "b300-sxm"}
    assert report.run.num_requests == 6
    assert report.run.num_unfinished == report.run.num_refused == 0


def test_tokens_in_are_hit_or_computed(report: Report) -> None:
    records = report.records
    assert (records.cached_tokens <= records.prompt_tokens - 1).all()
    assert (records.external_tokens <= records.cached_tokens).all()
    assert (records.arrival_s <= records.admitted_s).all()
    assert (records.admitted_s < records.first_token_s).all()
    assert (records.first_token_s <= records.finish_s).all()


def test_the_pool_is_conserved_at_every_change(report: Report) -> None:
    timeline = report.timeline
    assert (np.diff(timeline.time_s) >= 0).all()
    assert (timeline.used_blocks + timeline.cached_blocks <= report.capacity.num_blocks - 1).all()
    assert min(timeline.used_blocks.min(), timeline.cached_blocks.min(), timeline.running.min()) >= 0


def test_every_figure_has_an_origin(report: Report) -> None:
    ledger = report.ledger
    assert [ORDER.index(e.kind) for e in ledger] == sorted(ORDER.index(e.kind) for e in ledger)
    assert all(e.source and e.unit and e.low <= e.value <= e.high for e in ledger)
    assert all(e.why and e.low < e.high for e in ledger if e.kind == "assumed")
    assert {"b300-sxm.hbm_bandwidth", "kimi-k3.checkpoint"} <= {e.name for e in ledger}


def test_the_ledger_leaves_no_figure_out(report: Report) -> None:
    from kvsim.profiles.store import default_store

    gpu = default_store().get("gpu", "b300")
    assert len(ledger_of([gpu])) == len(figures_in(gpu))


def test_plain_data() -> None:
    data = plain({"a": np.float64("nan"), "b": np.int64(3), "c": (1.5, np.bool_(True)), "d": {"e": float("inf")}})
    assert data == {"a": None, "b": 3, "c": [1.5, True], "d": {"e": None}}
    assert json.dumps(data)


def test_little_s_law() -> None:
    """Mean number in flight = rate of completions x mean time in the system, on a run measured whole."""
    fixed = {"num_requests": 100, "input_tokens": 500, "output_tokens": 20}
    found = simulate(small(workload={"fixed": fixed, "rate_per_s": 20}))
    records = found.records
    changes = np.concatenate([np.stack([records.arrival_s, np.ones(100)]), np.stack([records.finish_s, -np.ones(100)])],
                             axis=1)
    times, steps = changes[:, np.argsort(changes[0], kind="stable")]
    present = np.cumsum(steps)[:-1]
    area = float((present * np.diff(times)).sum())
    assert area == pytest.approx(float((records.finish_s - records.arrival_s).sum()))
    assert found.throughput.requests_per_s * found.latency.e2e_s.mean == pytest.approx(area / found.run.simulated_s)
