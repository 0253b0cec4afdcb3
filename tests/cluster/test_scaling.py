"""Replicas that come and go with the load."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import Autoscale, ClusterSpec, Failure
from kvsim.errors import ScenarioError
from kvsim.simulation import simulate
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ROUTERS, STEP, check_conserved

RULE = Autoscale(1, 4.0, 0.5, 2.0, 1.0)


def burst(num: int, gap_s: float, output_tokens: int = 100) -> Workload:
    return Workload(requests_from_rows([Row([(i, 100)], output_tokens, 1000 + i, arrival_s=gap_s * i)
                                        for i in range(num)]))


def play(workload: Workload, rule: Autoscale = RULE, router: str = "least_loaded", num: int = 4) -> ClusterRun:
    return run(workload, ClusterSpec((ReplicaSpec(CONFIG, STEP),) * num, RouterSpec(router), autoscale=rule))


def test_more_replicas_come_after_their_start_up() -> None:
    """Twenty requests at once ask for five; four are there, three of them one second after the first look."""
    done = play(burst(40, 0.05))
    begins = [r.up_s[0][0] for r in done.replicas]
    assert begins == [0.0, 1.5, 1.5, 2.0]
    assert (done.run.records.admitted_s[done.replica_of == 1] >= 1.5).all()


def test_few_requests_need_no_more() -> None:
    done = play(burst(10, 1.0, 20))
    assert [len(r.up_s) for r in done.replicas] == [1, 0, 0, 0]
    assert done.mean_replicas == done.least_replicas == 1.0


def test_a_replica_that_goes_ends_what_it_has() -> None:
    """A burst, then single requests: what was started goes, and nothing is taken from it."""
    rows = [Row([(i, 100)], 100, 1000 + i, arrival_s=0.02 * i) for i in range(24)]
    rows += [Row([(500 + i, 100)], 20, 2000 + i, arrival_s=6.0 + i) for i in range(12)]
    done = play(Workload(requests_from_rows(rows)))
    check_conserved(done.run.records)
    assert done.run.totals.counters["retries"] == 0
    assert any(math.isfinite(r.up_s[0][1]) and r.up_s[0][1] < 12 for r in done.replicas[1:] if r.up_s)
    assert 1.0 <= done.least_replicas < done.mean_replicas < 4.0


def test_start_up_counts_among_the_replicas_that_are_paid_for() -> None:
    slow = play(burst(40, 0.05), Autoscale(1, 4.0, 0.5, 100.0, 2.0))
    up_s = sum(min(e, slow.run.totals.makespan_s) - b for r in slow.replicas for b, e in r.up_s)
    started = sum(1 for r in slow.replicas for b, _ in r.up_s if b)
    assert slow.mean_replicas == pytest.approx((up_s + 2.0 * started) / slow.run.totals.makespan_s)


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_every_request_is_served_once_by_replicas_that_come_and_go(router: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.random(40) * rng.choice([2.0, 20.0]))
    rows = [Row([(int(i % 3), 64), (10 + i, 80)], 60, 1000 + i, arrival_s=float(t), session=i % 7)
            for i, t in enumerate(times)]
    done = play(Workload(requests_from_rows(rows)), Autoscale(1, 3.0, 0.3, 0.7, 0.5), router, 3)
    check_conserved(done.run.records)
    assert done.run.totals.counters["homeless_requests"] == 0


def test_impossible_rules_are_named() -> None:
    with pytest.raises(ScenarioError, match="at most replicas"):
        play(burst(2, 1.0), Autoscale(5, 4.0, 0.5, 2.0, 1.0))
    spec = ClusterSpec((ReplicaSpec(CONFIG, STEP),), failures=(Failure(0, 1.0),), autoscale=RULE)
    with pytest.raises(ScenarioError, match="one of the two"):
        run(burst(2, 1.0), spec)


def test_a_scenario_says_how_long_a_start_takes() -> None:
    """16 GB of weights at 2 GB/s, compilation and graphs: 88 s; it starts with the second look at the latest."""
    scenario: dict[str, Any] = {
        "name": "scale", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1}, "replicas": 3,
        "autoscale": {"target_in_flight": 8}, "router": "least_loaded",
        "workload": {"fixed": {"num_requests": 3000, "input_tokens": 4000, "output_tokens": 300}, "concurrency": 32}}
    report = simulate(scenario)
    assert report.cluster is not None
    up = [r.up_frac * report.run.simulated_s for r in report.cluster.replicas]
    assert up[0] == pytest.approx(report.run.simulated_s)
    assert report.run.simulated_s - up[1] == pytest.approx(15 + 80 + 16.06e9 / 2e9, abs=0.5)
    assert report.cluster.least_replicas > 2.9
    assert report.cluster.mean_replicas < 3.0
