"""A replica stops: its requests begin again elsewhere, its cache is lost, nobody is served twice or forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.tiers.config import TierConfig
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec, Failure
from kvsim.engine.types import FINISHED, UNFINISHED
from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ROUTERS, STEP, chats, check_conserved, cluster, uncapped


def play(workload: Workload, failures: tuple[Failure, ...], num: int = 3, router: str = "least_loaded") -> ClusterRun:
    replica = ReplicaSpec(CONFIG, STEP)
    return run(workload, ClusterSpec((replica,) * num, RouterSpec(router), failures))


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=st.integers(0, 10**6), at_frac=st.floats(0.01, 1.0), down_frac=st.sampled_from([0.05, 0.5, math.inf]))
@settings(max_examples=12, deadline=None)
def test_every_request_ends_once_although_a_replica_fails(router: str, seed: int, at_frac: float,
                                                          down_frac: float) -> None:
    problem = uncapped(seed)
    problem = replace(problem, workload=replace(problem.workload, until_s=math.inf))
    try:
        whole_s = cluster(problem, 3, router).run.totals.makespan_s
        failure = Failure(seed % 3, at_frac * whole_s + 1e-6, (at_frac + down_frac) * whole_s + 1e-3)
        done = cluster(problem, 3, router, failures=(failure,))
    except InfeasibleError:
        return
    records = done.run.records
    check_conserved(records)
    on_failed = (done.replica_of == failure.replica) & (records.status == FINISHED)
    inside = (records.finish_s > failure.at_s) & (records.finish_s <= failure.recover_s)
    assert not (on_failed & inside).any()
    began = (records.admitted_s < failure.at_s) & (records.finish_s > failure.at_s)
    assert not (on_failed & began).any()
    assert sum(len(done.part(r).records.status) for r in range(3)) == int((done.replica_of >= 0).sum())


def test_what_was_under_way_begins_again_at_the_time_of_the_failure() -> None:
    rows = [Row([(i, 200)], 100, 50 + i, arrival_s=0.0) for i in range(3)]
    done = play(Workload(requests_from_rows(rows)), (Failure(1, 0.5),), router="round_robin")
    records = done.run.records
    assert done.run.totals.counters["retries"] == 1
    assert records.arrival_s.tolist() == [0.0] * 3
    assert records.admitted_s[1] >= 0.5
    assert done.replica_of[1] != 1
    assert records.output_tokens.tolist() == [100] * 3
    assert done.replicas[1].up_s == ((0.0, 0.5),)


def test_a_request_that_ended_in_time_is_not_served_again() -> None:
    """It ends 11 steps after its first: the failure comes with the last token, or just before."""
    rows = [Row([(0, 100)], 12, 9)]
    end_s = float(play(Workload(requests_from_rows(rows)), (), 2).run.records.finish_s[0])
    kept = play(Workload(requests_from_rows(rows)), (Failure(0, end_s),), 2)
    lost = play(Workload(requests_from_rows(rows)), (Failure(0, math.nextafter(end_s, 0.0)),), 2)
    assert (kept.run.totals.counters["retries"], lost.run.totals.counters["retries"]) == (0, 1)
    assert kept.run.records.finish_s[0] == end_s
    assert lost.run.records.finish_s[0] == pytest.approx(2 * end_s)


def test_a_replica_comes_back_without_its_cache() -> None:
    """Three turns of one session with long pauses; the replica fails between the first and the second."""
    rows = [Row([(0, 160 * (t + 1))], 10, 0, after=(t - 1,) if t else (), think_s=10.0) for t in range(3)]
    workload = Workload(requests_from_rows(rows))
    fine, failed = play(workload, (), 1), play(workload, (Failure(0, 2.0, 4.0),), 1)
    assert fine.run.records.cached_tokens.tolist() == [0, 160, 320]
    assert failed.run.records.cached_tokens.tolist() == [0, 0, 320]
    (_, stopped_s), (began_s, _) = failed.replicas[0].up_s
    assert (stopped_s, began_s) == (2.0, 4.0)


def test_requests_wait_while_nobody_is_up() -> None:
    rows = [Row([(i, 50)], 5, 50 + i, arrival_s=1.0 * i) for i in range(4)]
    workload = Workload(requests_from_rows(rows))
    done = play(workload, (Failure(0, 0.5, 2.5),), 1)
    records = done.run.records
    assert (records.status == FINISHED).all()
    assert records.admitted_s.tolist()[:3] == [0.0, 2.5, 2.5]
    assert records.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    never = play(workload, (Failure(0, 0.5),), 1)
    assert never.run.records.status.tolist() == [FINISHED] + [UNFINISHED] * 3
    assert never.run.totals.counters["homeless_requests"] == 3


def test_a_failure_costs_time_and_hits() -> None:
    workload = chats(24, 5, think_s=0.3, gap_s=0.02)
    fine = play(workload, (), router="session_affinity")
    failed = play(workload, (Failure(0, 1.0, 1.5),), router="session_affinity")
    assert failed.run.totals.counters["retries"] > 0
    assert failed.run.records.cached_tokens.sum() < fine.run.records.cached_tokens.sum()
    ttft = [np.mean(d.run.records.first_token_s - d.run.records.arrival_s) for d in (fine, failed)]
    assert ttft[1] > ttft[0]


def test_a_replica_may_fail_again() -> None:
    done = play(chats(24, 5), (Failure(0, 1.0, 1.2), Failure(0, 1.4, 1.6), Failure(1, 1.1, 1.3)))
    check_conserved(done.run.records)
    assert [len(r.up_s) for r in done.replicas] == [3, 2, 1]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("recover_s", [1.5, math.inf])
def test_a_replica_that_fails_has_its_memory_once(recover_s: float, shared: bool) -> None:
    tier = TierConfig(150, shared=shared, load_s_per_block=0.001, store_s_per_block=0.001, block_bytes=100)
    replica = ReplicaSpec(replace(CONFIG, num_blocks=120, tiers=(tier,)), STEP)
    spec = ClusterSpec((replica,) * 3, RouterSpec("round_robin"), (Failure(0, 1.0, recover_s),))
    done = run(chats(24, 5), spec)
    assert done.run.totals.tiers[0].num_blocks == 3 * 150
    parts = [part.totals.tiers[0] for part in done.replicas]
    assert [part.num_blocks for part in parts] == [150] * 3
    assert sum(part.blocks_resident for part in parts) == done.run.totals.tiers[0].blocks_resident <= 3 * 149
    # What a lost machine had in its own memory is gone; its part of a pool goes on being used.
    assert (parts[0].blocks_resident > 0) == (shared or recover_s < math.inf)


def test_impossible_failures_are_named() -> None:
    with pytest.raises(ScenarioError, match=r"0 to 2[\s\S]*after at_s[\s\S]*after the replica is back"):
        play(chats(2, 1), (Failure(3, 1.0), Failure(0, 1.0, 1.0), Failure(1, 1.0, 3.0), Failure(1, 2.0)))


def test_the_same_failure_gives_the_same_run() -> None:
    once, again = (play(chats(24, 5), (Failure(0, 1.0, 1.2),), router="power_of_two") for _ in range(2))
    assert once.run.records.finish_s.tobytes() == again.run.records.finish_s.tobytes()
