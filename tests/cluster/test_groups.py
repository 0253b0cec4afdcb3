"""Replicas of several kinds in one cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cli import cli
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import WEIGHTED, RouterSpec
from kvsim.cluster.run import run as run_cluster
from kvsim.cluster.spec import ClusterSpec
from kvsim.engine import core
from kvsim.engine.types import EngineConfig
from kvsim.errors import InfeasibleError, KvsimError, ScenarioError
from kvsim.interop.exporting import export_command
from kvsim.planning import PlanOptions, plan
from kvsim.planning.changes import next_dollar
from kvsim.profiles.store import default_store
from kvsim.report.report import Report
from kvsim.resolve import resolve_groups
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.steptime.base import LinearStepTime
from kvsim.uncertainty import decision_flips, ranged_figures, uncertainty
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ENDED, ROUTERS, STEP, alone, chats, check_conserved
from tests.cluster.test_scenarios import CHAT

SMALL = EngineConfig(150, 32, 4, 256, 4096)
SLOW = LinearStepTime(0.03, 2e-4, 1e-3)
PHYSICS: dict[str, Any] = {**CHAT, "engine": {"kv_dtype": "fp8", "max_model_len": 16384}, "slo": {}}


def mixed(workload: Workload, router: str = "least_loaded", weights: tuple[float, float] = (1.0, 1.0)) -> ClusterRun:
    """A large fast replica and a small slow one with other blocks."""
    two = (ReplicaSpec(CONFIG, STEP, weight=weights[0]), ReplicaSpec(SMALL, SLOW, weight=weights[1]))
    return run_cluster(workload, ClusterSpec(two, RouterSpec(router)))


def run(replicas: Any, **changes: Any) -> Report:
    return simulate({**PHYSICS, "replicas": replicas, **changes})


def numbers(report: Report) -> dict[str, Any]:
    """A report without what names the scenario, and without the groups' table."""
    data = report.to_dict()
    data["run"] = {k: v for k, v in data["run"].items() if k not in ("wall_s", "digest")}
    return {k: v for k, v in data.items() if k not in ("scenario", "groups")}


@pytest.mark.parametrize("router", ["session_affinity", "dynamo"])
def test_two_equal_groups_are_one_group_of_the_sum(router: str) -> None:
    one, two = run(3, router=router), run([{"count": 1}, {"count": 2}], router=router)
    assert numbers(two) == numbers(one)
    np.testing.assert_array_equal(two.records.finish_s, one.records.finish_s)


def test_a_number_and_one_group_are_the_same() -> None:
    assert numbers(run([{"count": 2}])) == numbers(run(2))


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_unlike_replicas_are_engines_that_got_their_requests(router: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [Row([(int(i % 3), 96), (10 + i, int(rng.integers(1, 400)))], int(rng.integers(1, 60)), 1000 + i,
                arrival_s=float(t), session=i % 7) for i, t in enumerate(np.sort(rng.random(40) * 8.0))]
    workload = Workload(requests_from_rows(rows))
    done = mixed(workload, router)
    check_conserved(done.run.records)
    for r, (config, step_time) in enumerate(((CONFIG, STEP), (SMALL, SLOW))):
        mine = np.flatnonzero(done.replica_of == r)
        engine = core.run(alone(workload, mine.tolist(), done.run.records.arrival_s), config, step_time).records
        for name in ENDED:
            np.testing.assert_array_equal(getattr(engine, name), getattr(done.run.records, name)[mine], name)


def test_the_slower_replica_gets_less_from_a_router_that_counts_requests() -> None:
    done = mixed(chats(24, 4, 0.2))
    counts = np.bincount(done.replica_of, minlength=2)
    assert 0 < counts[1] < 0.6 * counts[0]


def test_a_request_too_long_for_one_kind_goes_to_the_other() -> None:
    """The first takes 1,000 tokens at most."""
    rows = [Row([(i, 4000)], 20, 100 + i, arrival_s=0.1 * i) for i in range(4)]
    small = replace(SMALL, max_model_len=1000)
    done = run_cluster(Workload(requests_from_rows(rows)), ClusterSpec(
        (ReplicaSpec(small, SLOW), ReplicaSpec(CONFIG, STEP)), RouterSpec("round_robin")))
    assert done.replica_of.tolist() == [1, 1, 1, 1]


def test_round_robin_goes_by_weight_as_nginx_does() -> None:
    """Weights 3 and 1: a a b a, again and again."""
    rows = [Row([(i, 50)], 2, 100 + i, arrival_s=2.0 * i) for i in range(8)]
    done = mixed(Workload(requests_from_rows(rows)), "round_robin", (3.0, 1.0))
    assert done.replica_of.tolist() == [0, 0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("router", WEIGHTED)
def test_more_weight_means_more_requests(router: str) -> None:
    rows = [Row([(i, 200)], 40, 1000 + i, arrival_s=0.01 * i, session=i) for i in range(120)]
    replicas = [ReplicaSpec(CONFIG, STEP, weight=w) for w in (4.0, 1.0)]
    found = run_cluster(Workload(requests_from_rows(rows)), ClusterSpec(tuple(replicas), RouterSpec(router)))
    counts = np.bincount(found.replica_of, minlength=2)
    assert counts[0] > 2 * counts[1] > 0


def test_weights_need_a_router_that_has_them() -> None:
    with pytest.raises(ScenarioError, match=r"replicas.1.weight: got 2 with sglang"):
        run([{}, {"weight": 2}], router="sglang")


def test_the_bill_is_that_of_all_groups() -> None:
    """$ per hour of 1 H200 and 2 B200 (each a share of a node); tokens per GPU count all three."""
    both = run([{}, {"count": 2, "hardware": {"gpu": "b200"}}])
    h200, b200 = run(1), run(2, hardware={"gpu": "b200", "num_gpus": 1})
    assert both.cost.usd_per_hour == pytest.approx(h200.cost.usd_per_hour + b200.cost.usd_per_hour, rel=1e-12)
    assert [g.usd_per_hour for g in both.groups] == [h200.cost.usd_per_hour, b200.cost.usd_per_hour]
    rates = both.throughput
    assert rates.total_tokens_per_s_per_gpu == pytest.approx(
        (rates.output_tokens_per_s + rates.input_tokens_per_s) / 3)
    assert both.cost.bill is not None
    assert both.cost.bill.units.billed_gpus == 3


def test_groups_in_equal_nodes_fill_them_together() -> None:
    """Two replicas of 4 GPUs with other settings stand in one node of 8; with other GPUs in a share of a node each."""
    half: dict[str, Any] = {"hardware": {"gpu": "h200", "num_gpus": 4}, "layout": {"tp": 4},
                            "prices": {"whole_units": True}}
    together = run([{}, {"engine": {"max_num_seqs": 32}}], **half).cost.bill
    apart = run([{}, {"hardware": {"gpu": "h100-sxm"}}], **half).cost.bill
    assert together is not None
    assert apart is not None
    assert (together.units.billed_gpus, apart.units.billed_gpus) == (8, 16)


def test_each_group_has_its_own_pool_ledger_and_prices() -> None:
    report = run([{"name": "old"}, {"name": "new", "hardware": {"gpu": "b200"},
                                    "prices": {"usd_per_gpu_hour": {"b200": 9.0}}}])
    h200, b200 = run(1), run(1, hardware={"gpu": "b200", "num_gpus": 1})
    assert [g.num_blocks for g in report.groups] == [h200.capacity.num_blocks, b200.capacity.num_blocks]
    assert [g.name for g in report.groups] == ["old", "new"]
    assert report.groups[1].usd_per_hour == 9.0
    assert {e.name for e in report.ledger} == {e.name for e in (*h200.ledger, *b200.ledger)}
    assert set(report.run.profiles) == {*h200.run.profiles, *b200.run.profiles}
    assert report.cluster is not None
    assert [r.kind for r in report.cluster.replicas] == ["h200-sxm (old)", "b200-sxm (new)"]
    assert sum(g.requests for g in report.groups) == report.run.num_requests
    for group in report.groups:
        assert sum(group.hbm_bytes.values()) > 0


def test_a_tier_on_one_group_only() -> None:
    tier = [{"kind": "dram", "capacity": "20 GB"}]
    report = run([{"engine": {"num_blocks": 400}, "tiers": tier}, {"engine": {"num_blocks": 400}}],
                 router="session_affinity")
    assert [t.kind for t in report.tiers] == ["dram"]
    assert report.hit_rate.by_tier.dram > 0
    assert report.cost.bill is not None
    assert [line.what for line in report.cost.bill.lines if line.what.startswith("tier")] == ["tier: dram"]


def test_ranks_in_one_group() -> None:
    """A node of two attention-DP ranks beside one of plain tensor parallelism."""
    report = run([{"layout": {"dp": 2}}, {"layout": {"tp": 2}}], hardware={"gpu": "h200", "num_gpus": 2})
    assert report.cluster is not None
    assert len(report.cluster.replicas) == 3
    assert report.cluster.router == "vllm_dp"
    assert sum(g.requests for g in report.groups) == report.run.num_requests


def test_failures_count_replicas_through_all_groups() -> None:
    report = run([{}, {"count": 2, "hardware": {"gpu": "b200"}}], failures=[{"replica": 2, "at_s": 20}])
    assert report.cluster is not None
    assert report.cluster.replicas[2].up_frac < 0.5 < report.cluster.replicas[1].up_frac


@pytest.mark.parametrize(("replicas", "error", "match"), [
    ([{}, {"hardware": {"gpu": "b3000"}}], KvsimError, r"\(replicas.1\): hardware.gpu: got 'b3000'"),
    ([{}, {"name": "x", "engine": {"max_num_seqz": 3}}], ScenarioError,
     r"\(replicas.1: x\): engine.max_num_seqz: got an unknown key; .*did you mean 'max_num_seqs'"),
    ([{}, {"hardwere": {}}], ScenarioError, "replicas.1.hardwere: got an unknown key"),
    ([{"count": 0}], ScenarioError, "replicas.0.count: got 0"),
    ([], ScenarioError, "replicas: got an empty list"),
    ("four", ScenarioError, "replicas: got 'four'; accepted: a whole number"),
    ([{}, {"prices": {"api": "moonshot-k3"}}], ScenarioError, "replicas.1.prices.api"),
    ([{}, {"name": "tiny", "engine": {"gpu_memory_utilization": 0.1}}], InfeasibleError,
     r"\(replicas.1: tiny\): llama-3.1-8b on 1 x h200-sxm \(TP1\) does not fit"),
    ([{}, {"engine": {"eviction": "belady"}}], ScenarioError, r"\(replicas.1\): engine.eviction: got belady"),
])
def test_wrong_groups_are_named(replicas: Any, error: type[KvsimError], match: str) -> None:
    with pytest.raises(error, match=match):
        run(replicas)


def test_all_wrong_groups_are_named_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({**PHYSICS, "replicas": [{"engine": {"a": 1}}, {"hardware": {"num_gpus": 0}}]})
    assert [p.field for p in caught.value.problems] == ["engine.a", "hardware.num_gpus"]


def test_groups_are_written_and_read_again() -> None:
    scenario = load_scenario("cluster-k3-mixed", ["replicas.1.count=3", "replicas.0.hardware.num_gpus=16"])
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    assert (scenario.num_replicas, scenario.num_gpus) == (4, 16 + 3 * 8)
    assert scenario.digest != load_scenario("cluster-k3-mixed").digest


def test_another_gpu_does_not_stand_in_the_node_of_the_first() -> None:
    scenario = Scenario.from_dict({**PHYSICS, "hardware": {"gpu": "h200", "num_gpus": 1, "node": "dgx-h200"},
                                   "replicas": [{"hardware": {"gpu": "b200"}}, {"hardware": {"num_gpus": 2}}]})
    assert [scenario.group(i).hardware.node for i in (0, 1)] == [None, "dgx-h200"]


SOLD: dict[str, Any] = {
    **PHYSICS, "engine": {**PHYSICS["engine"], "num_blocks": 700}, "workload": {**CHAT["workload"], "duration_s": 30},
    "prices": {"compute": "rental-2026-09", "api": "groq-llama-3.3-70b"}}


@pytest.mark.parametrize("prices", [{}, {"usd_per_gpu_hour": {"h200-sxm": 3.0}}])
def test_doubts_of_equal_groups_are_those_of_one_group(prices: dict[str, Any]) -> None:
    sold = {**SOLD, "prices": {**SOLD["prices"], **prices}}
    one, two = (Scenario.from_dict({**sold, "replicas": replicas}) for replicas in (3, [{"count": 1}, {"count": 2}]))
    assert decision_flips(two) == decision_flips(one)
    if not prices:
        assert uncertainty(two, 2).to_dict() == uncertainty(one, 2).to_dict()


def test_figures_of_every_group_are_drawn() -> None:
    store, (first, *others) = default_store(), resolve_groups(load_scenario("cluster-k3-mixed"))
    both, one, other = ({figure.name for figure in ranged_figures(group, store, more)}
                        for group, more in ((first, others), (first, ()), (others[0], ())))
    assert (both & other) - one  # the MI355X's speeds have the widest ranges


def test_stresses_reach_every_group() -> None:
    scenario = Scenario.from_dict({**SOLD, "replicas": [{}, {"hardware": {"gpu": "b200"}}]})
    stresses = {stress.what: stress.first_usd for stress in decision_flips(scenario)}
    cost = simulate(scenario).cost
    num_nodes = (cost.revenue_usd_per_hour.ideal_hits - cost.usd_per_hour) / cost.contribution_usd_per_node_hour
    assert stresses["rent +40 %"] == pytest.approx(stresses["as it is"] - 0.4 * cost.usd_per_hour / num_nodes)
    assert stresses["hit rate -10 points"] != stresses["as it is"]


def test_what_knows_one_kind_of_replica_only_says_so() -> None:
    with pytest.raises(ScenarioError, match="replicas: got 2 groups; accepted: a number of replicas"):
        export_command(load_scenario("cluster-k3-mixed"))
    scenario = load_scenario("cluster-k3-mixed", ["plan={live_sessions: 8}"])
    for ask in (lambda: plan(scenario), lambda: next_dollar(scenario, 2, PlanOptions())):
        with pytest.raises(ScenarioError, match=r"got 2 groups; accepted: a number of replicas that are alike; plan\."):
            ask()


def test_the_command_line_shows_every_group(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(cli, ["run", "cluster-k3-mixed", "--set", "workload.duration_s=120",
                                      "--set", "workload.concurrency=8", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 replicas of 2 kinds" in result.output
    assert "MI355X: 1 x (8 x mi355x, TP8)" in result.output
    assert "8 GPUs in 1 node of 8 + 8 GPUs in 1 node of 8" in result.output
    report = json.loads(out.read_text())
    assert [g["name"] for g in report["groups"]] == ["B300", "MI355X"]
    assert report["cost"]["usd_per_hour"] == pytest.approx(sum(g["usd_per_hour"] for g in report["groups"]))
