"""Co-simulation is exact: a cluster of one is the engine, and each replica is an engine that got those requests."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from kvsim.cluster.replica import Fidelity
from kvsim.engine import core, reference
from kvsim.engine.types import EngineRun
from kvsim.errors import InfeasibleError
from tests.cluster.helpers import ENDED, ROUTERS, alone, cluster, uncapped
from tests.engine.strategies import KINDS, TIER_KINDS

SEEDS = int(os.environ.get("KVSIM_FUZZ", "2000")) // 10
SKIPPED = {"records": {"refusals"}, "totals": {"counters", "busy_s", "step_sums"}, "timeline": set[str]()}
"""Parts of a run, and what is compared apart from them."""
ENGINES = {"core": core.run, "reference": reference.run}


def assert_same(engine: EngineRun, cluster_run: EngineRun) -> None:
    """Every decision, count and time, to the last bit."""
    for part, skipped in SKIPPED.items():
        ours, theirs = getattr(cluster_run, part), getattr(engine, part)
        for name in theirs.__dataclass_fields__.keys() - skipped:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), f"{part}.{name}")
    assert cluster_run.records.refusals == engine.records.refusals
    assert cluster_run.totals.busy_s == pytest.approx(engine.totals.busy_s, rel=1e-9)


def compare(seed: int, kind: str, fidelity: Fidelity) -> bool:
    """A cluster of one against the engine alone; False if neither comes to an end."""
    problem = uncapped(seed, kind)
    try:
        engine = ENGINES[fidelity](problem.workload, problem.config, problem.step_time)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            cluster(problem, 1, fidelity=fidelity)
        return False
    assert_same(engine, cluster(problem, 1, fidelity=fidelity).run)
    return True


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_one_replica_is_the_fast_engine(kind: str) -> None:
    assert all(compare(seed, kind, "core") for seed in range(SEEDS))


@pytest.mark.parametrize("kind", TIER_KINDS)
def test_one_replica_with_tiers_is_the_fast_engine(kind: str) -> None:
    assert sum(compare(seed, kind, "core") for seed in range(SEEDS // 4)) > SEEDS // 8


@pytest.mark.parametrize("fidelity", ["core", "reference"])
@pytest.mark.parametrize(("seed", "kind"), [
    (341, "eager"),  # somebody is preempted in a step that computes nothing, and a request comes later
    (1352, "priority tiers"),  # all wait for a store, and a request comes that is refused
    (660, "full"),  # a request waits for one that ends during a step and for one that is refused in it
    (2400, "priority tiers"),  # the time is up while the last request waits for its load: no pause to cut short
    (1985, "nocache"),  # the warm-up ends with a request that is refused
    (578, "priority"),  # the end of the warm-up sets an end of the run that comes before the replica's next look
])
def test_one_replica_is_the_engine_in_rare_cases(seed: int, kind: str, fidelity: Fidelity) -> None:
    assert compare(seed, kind, fidelity)


@pytest.mark.parametrize("kind", ["full", "hybrid", "any tiers"])
def test_one_replica_is_the_plain_engine(kind: str) -> None:
    assert sum(compare(seed, kind, "reference") for seed in range(SEEDS // 8)) > SEEDS // 16


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("kind", ["full", "hybrid", "priority", "any tiers"])
def test_every_replica_is_an_engine_that_got_its_requests(router: str, kind: str) -> None:
    shared = 0
    for seed in range(max(SEEDS // 16, 4)):
        problem = uncapped(seed, kind)
        workload = replace(problem.workload, until_s=float("inf"), ties_by_finish=False)
        problem, num = replace(problem, workload=workload), 2 + seed % 3
        try:
            done = cluster(problem, num, router)
        except InfeasibleError:
            continue
        for r in range(num):
            rows = np.flatnonzero(done.replica_of == r)
            part = alone(workload, rows.tolist(), done.run.records.arrival_s)
            engine = core.run(part, problem.config, problem.step_time).records
            for name in ENDED:
                np.testing.assert_array_equal(getattr(engine, name), getattr(done.run.records, name)[rows], name)
            shared += len(rows) > 0
    assert shared > 4


def test_replicas_share_what_they_do_not_change() -> None:
    done = cluster(uncapped(3), 3)
    parts = [done.part(r) for r in range(3)]
    assert sum(len(part.records.status) for part in parts) == int((done.replica_of >= 0).sum())
    assert sum(part.totals.decode_tokens for part in parts) == done.run.totals.decode_tokens
