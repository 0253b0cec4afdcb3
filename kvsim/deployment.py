"""From a scenario's replicas, router and failures to a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kvsim.cluster.replica import Fidelity, ReplicaSpec
from kvsim.cluster.routers.registry import Param, RouterSpec, check_router
from kvsim.cluster.spec import Autoscale, ClusterSpec, Failure, check_failures
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, ScenarioError
from kvsim.scenario import Scenario
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.roofline import RooflineStepTime


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas that are alike: how many, their engine, their steps, the name of their hardware, attention-DP ranks, the
    bytes of weights that the GPUs of one hold.

    Ranks of a model with experts step together; those of a dense one have nothing in common but their node.
    """

    count: int
    config: EngineConfig
    step_time: StepTimeModel
    kind: str
    ranks: int = 1
    in_step: bool = True
    weight_bytes: float = 0.0

    def spec(self, fidelity: Fidelity) -> ReplicaSpec:
        """One of them."""
        model = self.step_time
        rank_step_s = model.rank_step_s if isinstance(model, RooflineStepTime) else None
        return ReplicaSpec(self.config, model, fidelity, self.kind, self.ranks, self.in_step, rank_step_s)


def is_cluster(scenario: Scenario) -> bool:
    """Whether a scenario is more than one engine that never fails."""
    return scenario.replicas > 1 or scenario.layout.dp > 1 or bool(scenario.failures)


def cluster_spec(scenario: Scenario, groups: Sequence[Group]) -> ClusterSpec:
    """The cluster of a scenario.

    Raises
    ------
    ScenarioError
        An unknown router or parameter, or failures that cannot happen.
    """
    _check_supported(scenario)
    replicas = [g.spec(scenario.engine.fidelity) for g in groups for _ in range(g.count)]
    failures = tuple(Failure(f.replica, f.at_s, math.inf if f.recover_s is None else f.recover_s)
                     for f in sorted(scenario.failures, key=lambda f: f.at_s))
    autoscale = _autoscale(scenario, max(g.weight_bytes for g in groups))
    spec = ClusterSpec(tuple(replicas), router_spec(scenario), failures, autoscale, scenario.seed, scenario.origin)
    check_failures(spec)
    return spec


def _autoscale(scenario: Scenario, weight_bytes: float) -> Autoscale | None:
    """The autoscaler of a scenario, told how long a replica takes to start."""
    given = scenario.autoscale
    if given is None:
        return None
    startup_s = weight_bytes / given.load_rate + given.compile_s + given.graphs_s
    return Autoscale(given.min_replicas, given.target_in_flight, given.interval_s, given.down_delay_s, startup_s)


def _check_supported(scenario: Scenario) -> None:
    """Refuse what several replicas, or ranks in lockstep, cannot do yet."""
    engine, problems = scenario.engine, list[Problem]()
    if scenario.layout.dp > 1:
        with_ranks = {
            "tiers": (any(tier.capacity for tier in scenario.tiers), "tiers", "none"),
            "engine.fidelity": (engine.fidelity != "core", engine.fidelity, "core"),
            "engine.eviction": (engine.eviction.kind != "lru", engine.eviction.kind, "lru"),
            "engine.draft": (engine.draft != "none", engine.draft, "none"),
        }
        problems += [Problem(scenario.origin, field, f"{given} with layout.dp {scenario.layout.dp}, which is not "
                             "simulated yet", f"{accepted}, or layout.dp 1")
                     for field, (is_wrong, given, accepted) in with_ranks.items() if is_wrong]
    if scenario.num_replicas > 1:
        among_others = {"engine.eviction": engine.eviction.kind if engine.eviction.kind == "belady" else "",
                        "engine.admission": "" if engine.admission is None else "a gate for sessions"}
        problems += [Problem(scenario.origin, field, f"{given} with replicas {scenario.num_replicas}, which is not "
                             "simulated yet", "it with replicas 1") for field, given in among_others.items() if given]
    if problems:
        raise ScenarioError("this scenario cannot be simulated", problems)


def router_spec(scenario: Scenario) -> RouterSpec:
    """The router of a scenario, checked; where none is named, vLLM's own for ranks, else one after the other."""
    given = scenario.router
    if given is None:
        return RouterSpec(scenario.router_name)
    params = cast("dict[str, Param]", {**(given.model_extra or {})})
    spec = RouterSpec(given.kind, given.snapshot_age_s, params)
    check_router(spec, scenario.origin)
    return spec
