"""What the tests of clusters share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvsim.cluster.replica import Fidelity, ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import KINDS, RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec, Failure
from kvsim.engine.types import FINISHED, REFUSED, EngineConfig, RunRecords
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.strategies import Problem, random_problem

ROUTERS = tuple(KINDS)
CONFIG = EngineConfig(400, 16, 8, 512, 4096)
STEP = LinearStepTime(0.008, 5e-5, 4e-4)
ENDED = ("admitted_s", "first_token_s", "finish_s", "cached_tokens", "external_tokens", "output_tokens", "preemptions",
         "status")


def cluster(problem: Problem, num: int, router: str = "round_robin", fidelity: Fidelity = "core",
            failures: tuple[Failure, ...] = ()) -> ClusterRun:
    """A problem's workload on several of its engines."""
    replica = ReplicaSpec(problem.config, problem.step_time, fidelity)
    return run(problem.workload, ClusterSpec((replica,) * num, RouterSpec(router), failures))


def uncapped(seed: int, kind: str = "") -> Problem:
    """A random problem whose clients do not keep requests back.

    With `max_in_flight`, a request that comes during the very step in which another one ends waits for that end in a
    cluster, while a lone engine looks at the door after the step only.
    """
    problem = random_problem(seed, kind)
    return replace(problem, workload=replace(problem.workload, max_in_flight=()))


def chats(num_sessions: int, num_turns: int, think_s: float = 0.5, gap_s: float = 0.05) -> Workload:
    """Sessions whose turns send everything again behind one shared beginning."""
    rows: list[Row] = []
    for s in range(num_sessions):
        for t in range(num_turns):
            rows.append(Row([(0, 64), (1 + s, 200 + 100 * t)], 20, 1 + s, session=s, think_s=think_s,
                            after=(len(rows) - 1,) if t else (), arrival_s=gap_s * s))
    return Workload(requests_from_rows(rows))


def alone(workload: Workload, rows: list[int], arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Workload:
    """Some requests of a workload at the times at which they came."""
    r = workload.requests
    return Workload(requests_from_rows([
        Row(r.prompt(i), int(r.output_tokens[i]), int(r.output_content[i]), arrival_s=float(arrival_s[i]),
            session=int(r.session[i]), priority=int(r.priority[i]), id=r.name(i) if len(r.ids) else "") for i in rows]))


def check_conserved(records: RunRecords) -> None:
    """Every request that came has ended once, or was refused."""
    ended = records.status == FINISHED
    assert (ended | (records.status == REFUSED) | np.isnan(records.arrival_s)).all()
    assert np.isfinite(records.finish_s[ended]).all()
    assert (records.first_token_s[ended] <= records.finish_s[ended]).all()
    assert (records.arrival_s[ended] <= records.admitted_s[ended]).all()
