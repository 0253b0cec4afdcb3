"""A tier that replicas share: exact order in time, nothing found before it is there, nothing lost."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvsim.cache.blocks import Found, Name
from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.level import Copy, Level
from kvsim.cache.tiers.shared import Delivery, Port, SharedTier
from kvsim.cache.tiers.stack import Place, TierStack
from kvsim.cluster.replica import Fidelity, ReplicaSpec
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec, Failure
from kvsim.engine import core, reference
from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ENDED, ROUTERS, STEP, chats, check_conserved, cluster, uncapped
from tests.cluster.test_co_simulation import assert_same
from tests.engine.strategies import TIER_KINDS, Problem

SEEDS = int(os.environ.get("KVSIM_FUZZ", "2000")) // 20


def shared(problem: Problem, network_s: float = 0.0) -> Problem:
    """The problem without an end, with its last tier shared; eager where what is loaded would leave the tier."""
    problem = replace(problem, workload=replace(problem.workload, until_s=math.inf))
    tiers = list(problem.config.tiers)
    write = "eager" if tiers[-1].write == "on-eviction" else tiers[-1].write
    tiers[-1] = replace(tiers[-1], write=write, shared=True, network_s_per_block=network_s, network_start_s=network_s)
    return replace(problem, config=replace(problem.config, tiers=tuple(tiers)))


@pytest.mark.parametrize("kind", TIER_KINDS)
@pytest.mark.parametrize("fidelity", ["core", "reference"])
def test_a_cluster_of_one_has_the_tier_for_itself(kind: str, fidelity: Fidelity) -> None:
    same = 0
    for seed in range(SEEDS // 2):
        problem = shared(uncapped(seed, kind), 0.5)
        try:
            engine = {"core": core, "reference": reference}[fidelity].run(
                problem.workload, problem.config, problem.step_time)
        except InfeasibleError:
            continue
        done = cluster(problem, 1, fidelity=fidelity).run
        assert_same(engine, done)
        same += bool(done.totals.tiers and done.totals.tiers[-1].blocks_stored)
    assert same


@pytest.mark.parametrize("kind", TIER_KINDS)
def test_both_engines_agree_behind_a_shared_tier(kind: str) -> None:
    used = 0
    for seed in range(SEEDS // 2):
        problem = shared(uncapped(seed, kind), (0.0, 0.001, 0.3)[seed % 3])
        num, router = 2 + seed % 3, ROUTERS[seed % len(ROUTERS)]
        try:
            fast = cluster(problem, num, router)
        except InfeasibleError:
            continue
        plain = cluster(problem, num, router, "reference")
        for name in ENDED:
            ours, theirs = getattr(fast.run.records, name), getattr(plain.run.records, name)
            if name.endswith("_s"):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, err_msg=f"{seed} {name}")
            else:
                np.testing.assert_array_equal(ours, theirs, f"{seed} {name}")
        for ours, theirs in zip(fast.run.totals.tiers, plain.run.totals.tiers, strict=True):
            assert (ours.blocks_loaded, ours.blocks_stored, ours.blocks_resident, ours.bytes_loaded_remote) == (
                theirs.blocks_loaded, theirs.blocks_stored, theirs.blocks_resident, theirs.bytes_loaded_remote)
        used += bool(fast.run.totals.tiers and fast.run.totals.tiers[-1].blocks_stored)
    assert used


@pytest.fixture
def arrivals_s(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], float]:
    """When each content arrived in a shared tier first; what is found there before that is an error."""
    first_s: dict[tuple[int, int], float] = {}
    send, find_in = SharedTier.send, TierStack._find_in

    def sent(tier: SharedTier, copies: list[Copy], arrival_s: float, coming: Counter[Name]) -> Delivery:
        for copy in copies:
            first_s[copy.name] = min(arrival_s, first_s.get(copy.name, arrival_s))
        return send(tier, copies, arrival_s, coming)

    def found(stack: TierStack, levels: list[Level], keys: list[int]) -> Found[Place]:
        hit, last = find_in(stack, levels, keys), levels[-1]
        if isinstance(last, Port):
            for place in (place for blocks in hit.blocks for place in blocks.values()):
                if place[0] == len(levels) - 1:
                    name = last.pool.name_of(place[1])
                    assert name is not None
                    assert first_s[name] <= last._shared.now_s
        return hit

    monkeypatch.setattr(SharedTier, "send", sent)
    monkeypatch.setattr(TierStack, "_find_in", found)
    return first_s


@pytest.mark.parametrize("kind", TIER_KINDS)
def test_nothing_is_found_before_it_has_arrived(kind: str, arrivals_s: dict[tuple[int, int], float]) -> None:
    for seed in range(SEEDS // 4):
        arrivals_s.clear()
        try:
            check_conserved(cluster(shared(uncapped(seed, kind), 0.01), 3, "round_robin").run.records)
        except InfeasibleError:
            continue


TIER = TierConfig(200, shared=True, load_s_per_block=0.001, store_s_per_block=0.002, network_s_per_block=0.004,
                  network_start_s=0.01, block_bytes=100)


def two(tier: TierConfig, gap_s: float, failures: tuple[Failure, ...] = ()) -> tuple[np.ndarray, ...]:
    """The same prompt of ten blocks to one replica and, later, to the other: external and cached tokens, admission."""
    rows = [Row([(0, 168)], 4, 1), Row([(0, 168)], 4, 2, arrival_s=gap_s)]
    spec = ReplicaSpec(replace(CONFIG, tiers=(tier,)), STEP)
    done = run(Workload(requests_from_rows(rows)), ClusterSpec((spec, spec), RouterSpec("round_robin"), failures))
    records = done.run.records
    return records.external_tokens, records.cached_tokens, records.first_token_s, done.replica_of


def test_a_block_is_visible_when_its_transfer_has_ended() -> None:
    # The prefill step takes 8 + 168 x 0.05 = 16.4 ms, the next one, in which its ten blocks are stored, 8.4 ms. Five of
    # them stay (5 x 2 ms), five go over the network (5 x 4 ms + 10 ms): they arrive after 16.4 + 8.4 + 30 = 54.8 ms.
    assert two(TIER, 0.0547)[0].tolist() == [0, 0]
    assert two(TIER, 0.0549)[0].tolist() == [0, 160]
    assert two(replace(TIER, shared=False), 10.0)[0].tolist() == [0, 0]


def test_what_another_node_keeps_comes_over_the_network() -> None:
    external, cached, first_s, where = two(TIER, 1.0)
    assert (external.tolist(), cached.tolist(), where.tolist()) == ([0, 160], [0, 160], [0, 1])
    # Five blocks over the network: 5 x 4 ms + 10 ms; then a step for the last eight tokens: 8 + 8 x 0.05 ms.
    assert first_s[1] == pytest.approx(1.0 + 0.030 + 0.0084)
    # Only the network matters: the five own ones take 5 ms at the same time.
    assert two(replace(TIER, network_s_per_block=0.0, network_start_s=0.0), 1.0)[2][1] == pytest.approx(1.0134)


def test_drives_of_other_nodes_are_used_too() -> None:
    nvme = replace(TIER, kind="nvme", load_s_per_block=0.02)
    assert two(nvme, 1.0)[2][1] == pytest.approx(1.0 + 5 * 0.02 + 0.01 + 0.0084)
    # A pool is nobody's: everything comes over the replica's own link.
    assert two(replace(nvme, kind="pool"), 1.0)[2][1] == pytest.approx(1.0 + 10 * 0.02 + 0.0084)


def test_the_pool_outlives_a_replica_but_not_what_it_was_writing() -> None:
    assert two(TIER, 1.0, (Failure(0, 0.5, 2.0),))[0].tolist() == [0, 160]
    assert two(TIER, 1.0, (Failure(0, 0.05),))[0].tolist() == [0, 0]


@pytest.mark.parametrize("kind", TIER_KINDS)
def test_failures_leave_nothing_behind(kind: str) -> None:
    failures = (Failure(0, 0.4, 1.1), Failure(1, 0.9, 5.0), Failure(0, 3.0, 3.5))
    for seed in range(SEEDS // 4):
        try:
            done = cluster(shared(uncapped(seed, kind), 0.02), 3, "least_loaded", failures=failures)
        except InfeasibleError:
            continue
        check_conserved(done.run.records)


def test_shared_memory_beats_private_memory_behind_round_robin() -> None:
    hits: list[int] = []
    for is_shared in (False, True):
        config = replace(CONFIG, num_blocks=120, tiers=(replace(TIER, num_blocks=150, shared=is_shared),))
        spec = ReplicaSpec(config, STEP)
        done = run(chats(13, 6), ClusterSpec((spec,) * 3, RouterSpec("round_robin")))
        hits.append(done.run.totals.prompt_tokens_hit)
        tier = done.run.totals.tiers[0]
        assert tier.num_blocks == 450
        assert tier.blocks_resident <= 447
        assert (tier.bytes_loaded_remote > 0) == is_shared
        assert tier.bytes_loaded_remote <= tier.bytes_loaded
    assert hits[1] > 1.2 * hits[0]


def test_replicas_that_cut_differently_cannot_share() -> None:
    one = ReplicaSpec(replace(CONFIG, tiers=(TIER,)), STEP)
    other = ReplicaSpec(replace(CONFIG, tiers=(replace(TIER, block_bytes=50),)), STEP)
    with pytest.raises(ScenarioError, match="blocks differ in tokens, bytes or groups"):
        run(chats(2, 2), ClusterSpec((one, other)))


def test_only_the_last_tier_is_shared_and_not_exclusively() -> None:
    bad = replace(CONFIG, tiers=(replace(TIER, write="on-eviction"), TierConfig(9)))
    with pytest.raises(ScenarioError) as caught:
        core.run(chats(1, 1), bad, STEP)
    assert "tiers.0.shared" in str(caught.value)
    assert "tiers.0.write" in str(caught.value)


SCENARIO = {"name": "two", "model": "kimi-k3", "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
            "engine": {"kv_bytes_per_gpu": "6 GiB", "max_model_len": 262144, "kv_dtype": "fp8"}, "replicas": 2,
            "router": "round_robin", "workload": {"preset": "agentx-v1", "concurrency": 4, "duration_s": 240},
            "tiers": [{"kind": "dram", "capacity": "400 GB", "shared": True}]}


def test_users_share_memory() -> None:
    shared_one, private = (simulate(load_scenario(SCENARIO, [f"tiers.0.shared={flag}"])) for flag in ("true", "false"))
    assert shared_one.hit_rate.total > private.hit_rate.total + 0.02
    tier, = shared_one.tiers
    assert 0.3 < tier.bytes_loaded_remote / tier.bytes_loaded < 0.7
    assert 0 < tier.network_utilisation_frac < 0.1
    assert shared_one.cost.usd_per_hour == private.cost.usd_per_hour
    assert private.tiers[0].bytes_loaded_remote == 0


@pytest.mark.parametrize(("field", "value", "message"), [
    ("tiers", "[{kind: dram, capacity: 400 GB, shared: true}, {kind: nvme, capacity: 1 TB}]", "tiers.0.shared"),
    ("tiers.0.preset", "trtllm", "tiers.0.write: got on-eviction in a shared tier"),
    ("hardware", "{gpu: rtx-pro-6000-server, num_gpus: 8}", "tiers.0.network_bandwidth_per_gpu")])
def test_what_cannot_be_shared_is_named(field: str, value: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        simulate(load_scenario(SCENARIO, [f"{field}={value}"]))
    assert message in str(caught.value)
