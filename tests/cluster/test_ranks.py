"""Attention-DP ranks: pools of their own, one step for all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.eviction.config import KINDS as EVICTIONS
from kvsim.cache.eviction.config import EvictionConfig, EvictionKind
from kvsim.cache.tiers.config import TierConfig
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec, Failure
from kvsim.engine import core
from kvsim.engine.core import needs_plain
from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate, step_time_of
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.drafting import DraftedStepTime
from kvsim.steptime.roofline import RooflineStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ENDED, STEP, check_conserved, uncapped
from tests.engine.strategies import TIER_KINDS, Problem

MOE: dict[str, Any] = {
    "name": "ranks", "model": "deepseek-v2-lite", "hardware": {"gpu": "h200", "num_gpus": 2},
    "layout": {"dp": 2, "ep": 2}, "engine": {"profile": "vllm-0.24-h200", "max_model_len": 32768},
    "workload": {"fixed": {"num_requests": 24, "input_tokens": 3000, "output_tokens": 60}, "concurrency": 8}}


def play(rows: list[Row], ranks: int, router: str = "round_robin", in_step: bool = True) -> ClusterRun:
    replica = ReplicaSpec(CONFIG, STEP, ranks=ranks, in_step=in_step)
    return run(Workload(requests_from_rows(rows)), ClusterSpec((replica,), RouterSpec(router)))


def test_a_rank_among_idle_ones_is_an_engine() -> None:
    rows = [Row([(0, 50 * (t + 1))], 30, 0, after=(t - 1,) if t else (), think_s=0.3) for t in range(5)]
    done = play(rows, 3, "session_affinity")
    engine = core.run(Workload(requests_from_rows(rows)), CONFIG, STEP)
    assert set(done.replica_of.tolist()) == {0}
    for name in ENDED:
        np.testing.assert_array_equal(getattr(done.run.records, name), getattr(engine.records, name), name)


def test_equal_ranks_are_as_fast_as_one() -> None:
    rows = [Row([(i, 300)], 40, 50 + i) for i in range(2)]
    done = play(rows, 2)
    alone = core.run(Workload(requests_from_rows(rows[:1])), CONFIG, STEP)
    assert done.run.records.finish_s.tolist() == [alone.records.finish_s[0]] * 2


def test_a_step_is_as_long_as_the_slowest_rank() -> None:
    """One rank prefills 400 tokens in its first step, the other 100 at the same time; then both decode alike."""
    done = play([Row([(0, 400)], 3, 8), Row([(1, 100)], 3, 9)], 2)
    first_s, decode_s = 0.008 + 400 * 5e-5, 0.008 + 4e-4
    assert done.run.records.first_token_s.tolist() == pytest.approx([first_s] * 2)
    assert done.run.records.finish_s.tolist() == pytest.approx([first_s + 2 * decode_s] * 2)
    apart = play([Row([(0, 400)], 3, 8), Row([(1, 100)], 3, 9)], 2, in_step=False)
    assert apart.run.records.first_token_s.tolist() == pytest.approx([first_s, 0.008 + 100 * 5e-5])


def test_an_arrival_waits_for_the_step_of_all_ranks() -> None:
    done = play([Row([(0, 400)], 1, 8), Row([(1, 100)], 1, 9, arrival_s=0.001)], 2)
    first_s = 0.008 + 400 * 5e-5
    assert done.run.records.admitted_s.tolist() == pytest.approx([0.0, first_s])


@given(seed=st.integers(0, 10**6), ranks=st.integers(2, 4), router=st.sampled_from(["vllm_dp", "prefix_aware"]))
@settings(max_examples=40, deadline=None)
def test_every_request_is_served_once_by_ranks(seed: int, ranks: int, router: str) -> None:
    problem = uncapped(seed)
    replica = ReplicaSpec(problem.config, problem.step_time, ranks=ranks)
    workload = replace(problem.workload, until_s=math.inf)
    done = run(workload, ClusterSpec((replica, replica), RouterSpec(router)))
    check_conserved(done.run.records)
    assert len(done.replicas) == 2 * ranks


def test_all_ranks_of_a_replica_fail_together() -> None:
    replica = ReplicaSpec(CONFIG, STEP, ranks=2)
    rows = [Row([(i, 100)], 50, 50 + i) for i in range(4)]
    done = run(Workload(requests_from_rows(rows)), ClusterSpec((replica, replica), failures=(Failure(0, 0.2, 0.3),)))
    check_conserved(done.run.records)
    assert done.run.totals.counters["retries"] == 2
    assert [len(r.up_s) for r in done.replicas] == [2, 2, 1, 1]
    assert set(done.replica_of.tolist()) == {2, 3}


def test_experts_follow_the_mean_of_the_ranks() -> None:
    model = step_time_of(resolve(load_scenario(MOE)))
    assert isinstance(model, RooflineStepTime)
    batch = StepBatch(4000, 1, 8_002_000, 4000, 0)
    own_s = step_s(model, batch, 0)
    half_s = model.rank_step_s(batch, own_s, 2000)
    assert model.rank_step_s(batch, own_s, 4000) == pytest.approx(own_s)
    assert 0.3 * own_s < half_s < 0.98 * own_s


def test_ranks_of_a_model_with_experts_step_together() -> None:
    report = simulate(MOE)
    assert report.cluster is not None
    assert report.cluster.router == "vllm_dp"
    assert len(report.cluster.replicas) == 2
    assert report.run.num_requests == 24
    assert report.capacity.kv_tokens == 2 * simulate({**MOE, "layout": {"ep": 1}, "hardware": {
        "gpu": "h200", "num_gpus": 1}, "engine": {**MOE["engine"], "num_blocks": report.capacity.num_blocks,
                                                  "block_tokens": report.capacity.geometry.block_capacity_tokens},
    }).capacity.kv_tokens


def test_ranks_of_a_dense_model_step_alone() -> None:
    """Two ranks of Llama with one request each are as fast as one GPU with one request."""
    llama = {"name": "llama", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 2}, "layout": {"dp": 2},
             "workload": {"fixed": {"num_requests": 2, "input_tokens": 3000, "output_tokens": 60}, "concurrency": 2}}
    one = {**llama, "hardware": {"gpu": "h200", "num_gpus": 1}, "layout": {}}
    one["workload"] = {"fixed": {"num_requests": 1, "input_tokens": 3000, "output_tokens": 60}, "concurrency": 1}
    assert simulate(llama).latency.e2e_s.p50 == pytest.approx(simulate(one).latency.e2e_s.p50, rel=1e-9)


EVICTION_NAMED: dict[str, EvictionKind] = {name: name for name in EVICTIONS}


def one_session(problem: Problem) -> Problem:
    """The problem with all requests in one session, so that session affinity keeps them together."""
    requests = replace(problem.workload.requests, session=np.zeros_like(problem.workload.requests.session))
    return replace(problem, workload=replace(problem.workload, requests=requests, until_s=math.inf))


@pytest.mark.parametrize("kind", [*TIER_KINDS, "drafts", "lfu", "s3fifo", "ttl", "pin_sessions", "cost_aware"])
def test_a_rank_of_any_kind_among_idle_ones_is_an_engine(kind: str) -> None:
    used = 0
    for seed in range(60):
        eviction: EvictionKind = EVICTION_NAMED.get(kind, "lru")
        of_engine = ("full", "hybrid")[seed % 2] if eviction == kind else kind
        problem = one_session(uncapped(seed, of_engine))
        config = replace(problem.config, eviction=EvictionConfig(eviction))
        if needs_plain(config) or problem.workload.lane_sessions is not None:
            continue
        replica = ReplicaSpec(config, problem.step_time, ranks=2)
        try:
            engine = core.run(problem.workload, config, problem.step_time)
        except InfeasibleError:
            continue
        done = run(problem.workload, ClusterSpec((replica,), RouterSpec("session_affinity")))
        for name in ENDED:
            ours, theirs = getattr(done.run.records, name), getattr(engine.records, name)
            np.testing.assert_array_equal(ours, theirs, f"{seed} {name}")
        assert done.replicas[0].totals.tiers == engine.totals.tiers
        used += 1
    assert used > 20


@pytest.mark.parametrize("kind", [*TIER_KINDS, "drafts"])
def test_every_request_is_served_once_by_ranks_of_any_kind(kind: str) -> None:
    served = 0
    for seed in range(40):
        problem = uncapped(seed, kind)
        tiers = tuple(replace(t, shared=seed % 2 > 0 and i == len(problem.config.tiers) - 1,
                              write="eager" if t.write == "on-eviction" else t.write)
                      for i, t in enumerate(problem.config.tiers))
        config = replace(problem.config, tiers=tiers)
        if needs_plain(config):
            continue
        replica = ReplicaSpec(config, problem.step_time, ranks=2)
        workload = replace(problem.workload, until_s=math.inf)
        try:
            done = run(workload, ClusterSpec((replica, replica), RouterSpec("vllm_dp")))
        except InfeasibleError:
            continue
        check_conserved(done.run.records)
        served += 1
    assert served > 15


def test_ranks_of_one_node_share_a_tier_without_the_network() -> None:
    tier = TierConfig(100, shared=True, block_bytes=10, network_s_per_block=1.0)
    replica = ReplicaSpec(replace(CONFIG, tiers=(tier,)), STEP, ranks=2)
    rows = [Row([(0, 168)], 4, 1), Row([(0, 168)], 4, 2, arrival_s=1.0)]
    for spec, remote in (((replica,), False), ((replace(replica, ranks=1),) * 2, True)):
        done = run(Workload(requests_from_rows(rows)), ClusterSpec(spec, RouterSpec("round_robin"))).run
        assert done.records.external_tokens.tolist() == ([0, 0] if remote else [0, 160])
        assert (done.totals.tiers[0].bytes_stored_remote > 0) == remote


CHAT = {"chat": {"turns": 8, "user_tokens": 500, "output_tokens": 60, "think_s": 3}, "concurrency": 16,
        "duration_s": 40}
LITTLE = {**MOE["engine"], "num_blocks": 400, "max_model_len": 6000}


def test_memory_below_ranks_brings_hits_back() -> None:
    dram = {"kind": "dram", "capacity": "40 GB"}
    bare, private, shared = (simulate({**MOE, "workload": CHAT, "engine": LITTLE, "tiers": tiers}).hit_rate
                             for tiers in ([], [dram], [{**dram, "shared": True}]))
    assert private.total > bare.total + 0.05
    assert private.by_tier.dram > 0.05
    # vLLM's balancer sends a session to any rank: memory that all of a node's ranks can read is worth more.
    assert shared.total > private.total + 0.05


def test_other_eviction_on_ranks() -> None:
    lru, lfu = (simulate({**MOE, "workload": CHAT, "engine": {**LITTLE, "eviction": {"kind": kind}}})
                for kind in ("lru", "lfu"))
    assert lru.hit_rate.total != lfu.hit_rate.total
    assert lfu.run.num_requests > 0


def test_drafts_on_ranks() -> None:
    engine = {**MOE["engine"], "draft": "mtp-k2", "draft_acceptance": {"kind": "own", "source": "x", "length": 2.0}}
    plain, drafted = simulate(MOE), simulate({**MOE, "engine": engine})
    assert drafted.latency.tpot_s.p50 < plain.latency.tpot_s.p50


def test_experts_of_drafted_ranks_follow_the_mean() -> None:
    engine = {**MOE["engine"], "draft": "mtp-k2", "draft_acceptance": {"kind": "own", "source": "x", "length": 2.0}}
    model = step_time_of(resolve(load_scenario({**MOE, "engine": engine})))
    assert isinstance(model, DraftedStepTime)
    batch = StepBatch(0, 0, 0, 0, 400)
    own_s = step_s(model, batch, 400_000)
    assert model.rank_step_s(batch, own_s, 1200) == pytest.approx(own_s)
    assert model.rank_step_s(batch, own_s, 600) < own_s


@pytest.mark.parametrize(("change", "field"), [
    ({"engine": {**MOE["engine"], "fidelity": "reference"}}, "engine.fidelity"),
    ({"tiers": [{"kind": "dram", "capacity": "200 GB", "preset": "vllm-native"}]}, "tiers.0.preset"),
    ({"tiers": [{"kind": "dram", "capacity": "200 GB"}], "engine": {
        **MOE["engine"], "draft": "mtp-k2", "draft_acceptance": {"kind": "own", "source": "x", "length": 2.0}}},
     "engine.draft"),
])
def test_what_ranks_cannot_do_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError, match=field):
        simulate({**MOE, **change})
