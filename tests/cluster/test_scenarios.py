"""Clusters as users meet them: scenarios, the command line, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import ScenarioError
from kvsim.report.report import Report
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate

CHAT: dict[str, Any] = {
    "name": "chat", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    "engine": {"num_blocks": 3000, "step_time": {"kind": "linear", "base_s": 0.008, "per_prefill_token_s": 5e-5,
                                                 "per_decode_seq_s": 4e-4}},
    "workload": {"chat": {"turns": 8, "user_tokens": 200, "output_tokens": 100, "think_s": 2}, "concurrency": 24,
                 "duration_s": 120}}
AFFINE = ("session_affinity", "prefix_aware", "sglang", "llm_d")


def run(**changes: Any) -> Report:
    return simulate({**CHAT, **changes})


def test_a_report_counts_all_replicas() -> None:
    report = run(replicas=3, router="least_loaded")
    assert report.cluster is not None
    use = report.cluster
    assert [r.kind for r in use.replicas] == ["h200-sxm"] * 3
    assert sum(r.requests for r in use.replicas) == report.run.num_requests
    assert sum(r.output_tokens_per_s for r in use.replicas) == pytest.approx(report.throughput.output_tokens_per_s)
    one = run()
    assert one.cluster is None
    assert report.cost.usd_per_hour == pytest.approx(3 * one.cost.usd_per_hour)
    per_s = report.throughput.output_tokens_per_s + report.throughput.input_tokens_per_s
    assert report.throughput.total_tokens_per_s_per_gpu == pytest.approx(per_s / 3)


def test_whole_nodes_are_paid_for() -> None:
    part = {"hardware": {"gpu": "h200", "num_gpus": 8}, "layout": {"tp": 8}}
    two, three = (run(replicas=n, **part).cost.bill for n in (2, 3))
    assert two is not None
    assert three is not None
    assert (two.units.billed_gpus, three.units.billed_gpus) == (16, 24)


@pytest.mark.parametrize("fidelity", ["core", "reference"])
def test_a_scenario_of_several_replicas_is_equal_in_both_engines(fidelity: str) -> None:
    changes = {"replicas": 2, "router": "session_affinity"}
    chat = {**CHAT["workload"], "concurrency": 6, "duration_s": 30}
    base = run(workload=chat, **changes)
    other = run(workload=chat, engine={**CHAT["engine"], "fidelity": fidelity}, **changes)
    assert other.hit_rate == base.hit_rate
    assert other.latency.ttft_s.p95 == pytest.approx(base.latency.ttft_s.p95, rel=1e-9)


def test_the_digest_changes_with_router_and_failures() -> None:
    digests = {Scenario.from_dict({**CHAT, **change}).digest for change in (
        {}, {"router": "sglang"}, {"router": {"kind": "sglang", "cache_threshold": 0.5}}, {"replicas": 2},
        {"failures": [{"replica": 0, "at_s": 1}]})}
    assert len(digests) == 5


def test_a_router_with_parameters_is_written_and_read_again() -> None:
    router = {"kind": "sglang", "cache_threshold": 0.5, "snapshot_age_s": "1 s"}
    scenario = Scenario.from_dict({**CHAT, "router": router})
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    assert scenario.to_dict()["router"] == {**router, "snapshot_age_s": 1.0}


@pytest.mark.parametrize(("change", "match"), [
    ({"router": {"kind": "sglang", "cache_treshold": 0.5}}, "did you mean 'cache_threshold'"),
    ({"router": "nearest"}, "router"),
    ({"replicas": 2, "failures": [{"replica": 2, "at_s": 1}]}, "0 to 1"),
    ({"replicas": 2, "failures": [{"replica": 1, "at_s": 5, "recover_s": 4}]}, "after at_s"),
])
def test_wrong_clusters_are_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ScenarioError, match=match):
        run(**change)


def test_the_command_line_shows_every_replica(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(cli, [
        "run", "cluster-llama-failure", "--set", "workload.duration_s=60", "--set", "workload.concurrency=40",
        "--set", "failures.0.at_s=20", "--set", "failures.0.recover_s=30", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "router session_affinity, snapshots 0 ms old" in result.output
    report = json.loads(out.read_text())
    assert len(report["cluster"]["replicas"]) == 4
    assert report["cluster"]["replicas"][1]["up_frac"] < 0.9 < report["cluster"]["replicas"][0]["up_frac"]
    assert report["run"]["counters"]["simpy_events"] <= 6


def test_affinity_and_prefixes_beat_round_robin_on_coding_sessions(traces: Path) -> None:
    """Real Claude Code sessions on four K3 nodes: hits at least 20 points above round robin, TTFT below it."""
    assert (traces / "kvcache_tester_all710_rle.jsonl.gz").exists()
    found = {name: simulate(load_scenario("cluster-k3-sessions", [f"router={name}", "workload.duration_s=1200"]))
             for name in ("round_robin", *AFFINE)}
    plain = found.pop("round_robin")
    for name, report in found.items():
        assert plain.hit_rate.total + 0.2 < report.hit_rate.total <= report.hit_rate.ideal, name
        assert report.latency.ttft_s.p50 < plain.latency.ttft_s.p50, name


def test_prefixes_beat_round_robin_on_conversations_without_names(traces: Path) -> None:
    """Nobody says in Mooncake's trace which requests belong together: only routers that look at prompts find it out."""
    assert (traces / "mooncake_fast25_conversation.jsonl.gz").exists()
    names = ("round_robin", "prefix_aware", "sglang", "llm_d", "dynamo")
    found = {name: simulate(load_scenario("cluster-llama-mooncake", [f"router={name}"])) for name in names}
    plain = found.pop("round_robin")
    for name, report in found.items():
        assert plain.hit_rate.total + 0.02 < report.hit_rate.total <= report.hit_rate.ideal, name
    assert found["prefix_aware"].latency.ttft_s.p95 < plain.latency.ttft_s.p95
    assert plain.run.counters["simpy_events"] <= plain.run.num_requests
