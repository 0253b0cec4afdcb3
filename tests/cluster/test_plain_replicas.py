"""Replicas on the plain engine: what routers see of them, and so where requests go, is as on fast ones."""

from __future__ import annotations

import pytest

from kvsim.cluster.result import ClusterRun
from kvsim.engine.types import EngineConfig
from tests.cluster.helpers import ROUTERS, STEP, chats, check_conserved, cluster
from tests.cluster.test_co_simulation import assert_same
from tests.engine.strategies import Problem

SMALL = EngineConfig(80, 16, 8, 512, 4096)
"""A pool that a few sessions fill, so that caches and queues differ between replicas."""


def on(router: str, fidelity: str) -> ClusterRun:
    problem = Problem(chats(12, 4, think_s=0.3, gap_s=0.02), SMALL, STEP)
    return cluster(problem, 3, router, "reference" if fidelity == "reference" else "core")


@pytest.mark.parametrize("router", ROUTERS)
def test_requests_go_where_they_go_on_fast_replicas(router: str) -> None:
    plain, fast = on(router, "reference"), on(router, "core")
    check_conserved(plain.run.records)
    assert plain.replica_of.tolist() == fast.replica_of.tolist()
    assert_same(plain.run, fast.run)
    assert len(set(plain.replica_of.tolist())) > 1
