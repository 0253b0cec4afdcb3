"""From a scenario's replicas, router, limits and failures to a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.billing import hourly_bill
from kvsim.cluster.limits import WARMING_CLASSES, Allowance, Limit
from kvsim.cluster.replica import Fidelity, ReplicaSpec
from kvsim.cluster.routers.registry import WEIGHTED, RouterSpec
from kvsim.cluster.spec import Autoscale, ClusterSpec, Failure, check_failures
from kvsim.disaggregation import Role, stated_router
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.profiles.store import ProfileStore
from kvsim.report.groups import GroupHardware
from kvsim.resolve import resolve_groups
from kvsim.scenario import ReplicaGroup, Scenario, TrafficLimit
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.drafting import DraftedStepTime
from kvsim.steptime.roofline import RooflineStepTime

BURST_S = 60.0
"""A bucket holds what its rate brings in a minute, which API tiers are stated by [s]."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas that are alike: how many, their engine, their steps, the name of their hardware, attention-DP ranks, the
    bytes of weights that the GPUs of one hold, which engine plays them, their weight for routers that have weights.

    Ranks of a model with experts step together; those of a dense one have nothing in common but their node.
    """

    count: int
    config: EngineConfig
    step_time: StepTimeModel
    kind: str
    ranks: int = 1
    in_step: bool = True
    weight_bytes: float = 0.0
    fidelity: Fidelity = "core"
    weight: float = 1.0

    @staticmethod
    def of(role: Role, part: ReplicaGroup) -> Group:
        """A group of a scenario whose replicas are `role`."""
        resolved, scenario = role.resolved, role.resolved.scenario
        name = f"{resolved.gpu.name} ({part.name})" if part.name else resolved.gpu.name
        return Group(part.count, role.config, role.step_time, name, scenario.layout.dp, resolved.model.moe is not None,
                     resolved.budget.weights.per_gpu_bytes * scenario.hardware.num_gpus, scenario.engine.fidelity,
                     part.weight)

    def spec(self) -> ReplicaSpec:
        """One of them."""
        model = self.step_time
        rank_step_s = model.rank_step_s if isinstance(model, RooflineStepTime | DraftedStepTime) else None
        return ReplicaSpec(self.config, model, self.fidelity, self.kind, self.ranks, self.in_step, rank_step_s,
                           weight=self.weight)


def group_hardware(scenario: Scenario, store: ProfileStore) -> list[GroupHardware]:
    """What the groups of replicas of a scenario are, with what each costs alone."""
    found: list[GroupHardware] = []
    for i, (part, one) in enumerate(zip(scenario.groups, resolve_groups(scenario, store), strict=True)):
        name = part.name or f"{i} {one.gpu.name}"
        found.append(GroupHardware(name, part.count, one.layout.dp, one.gpu.name, one.scenario.hardware.num_gpus,
                                   str(one.layout), one.budget, one.capacity, hourly_bill(one, store).usd_per_hour,
                                   one.predicted is not None))
    return found


def is_cluster(scenario: Scenario) -> bool:
    """Whether a scenario is more than one engine that never fails and takes whatever comes."""
    return (scenario.num_replicas > 1 or scenario.ranks > 1 or bool(scenario.failures)
            or bool(scenario.limits))


def cluster_spec(scenario: Scenario, groups: Sequence[Group], class_names: Sequence[str]) -> ClusterSpec:
    """The cluster of a scenario.

    Parameters
    ----------
    scenario : Scenario
        As written.
    groups : sequence of Group
        Its groups of replicas.
    class_names : sequence of str
        Traffic classes of its workload.

    Raises
    ------
    ScenarioError
        An unknown router, parameter or traffic class, weights for a router without, or failures that cannot happen.
    """
    check_supported(scenario, groups)
    _check_weights(scenario)
    replicas = [g.spec() for g in groups for _ in range(g.count)]
    failures = tuple(Failure(f.replica, f.at_s, math.inf if f.recover_s is None else f.recover_s)
                     for f in sorted(scenario.failures, key=lambda f: f.at_s))
    startups_s = [_startup_s(scenario, g.weight_bytes) for g in groups for _ in range(g.count)]
    spec = ClusterSpec(tuple(replicas), router_spec(scenario), failures, _autoscale(scenario, max(startups_s)),
                       scenario.seed, scenario.origin, _limits(scenario, class_names), tuple(startups_s))
    check_failures(spec)
    return spec


def _startup_s(scenario: Scenario, weight_bytes: float) -> float:
    """How long a replica takes to start [s]; 0 where none ever does."""
    given = scenario.autoscale
    return 0.0 if given is None else weight_bytes / given.load_rate + given.compile_s + given.graphs_s


def _autoscale(scenario: Scenario, startup_s: float) -> Autoscale | None:
    """The autoscaler of a scenario."""
    given = scenario.autoscale
    if given is None:
        return None
    return Autoscale(given.min_replicas, given.target_in_flight, given.interval_s, given.down_delay_s, startup_s)


def _limits(scenario: Scenario, class_names: Sequence[str]) -> tuple[Limit, ...]:
    """What the router lets through."""
    known = [name for name in class_names if name not in WARMING_CLASSES]
    problems = [Problem(scenario.origin, f"limits.{i}.class", repr(given.class_),
                        f"{', '.join(known)}; none limits all traffic", nearest(given.class_, known))
                for i, given in enumerate(scenario.limits or ()) if given.class_ not in (None, *known)]
    if problems:
        raise ScenarioError("there is no such traffic class", problems)
    return tuple(_limit(given) for given in scenario.limits or ())


def _limit(given: TrafficLimit) -> Limit:
    return Limit(given.class_, float(given.max_in_flight or math.inf), _allowance(given.rate, given.burst),
                 _allowance(given.token_rate, given.token_burst), given.tokens, given.on_limit == "reject")


def _allowance(rate_per_s: float | None, burst: int | None) -> Allowance | None:
    """A rate; without a stated burst the bucket holds what comes in a minute, and at least one."""
    if rate_per_s is None:
        return None
    return Allowance(rate_per_s, float(burst) if burst is not None else max(rate_per_s * BURST_S, 1.0))


def _check_weights(scenario: Scenario) -> None:
    """Refuse weights that the router would not look at."""
    problems = [Problem(scenario.origin, f"replicas.{i}.weight", f"{group.weight:g} with {scenario.router_name}",
                        f"1, or a router with weights: {', '.join(WEIGHTED)}")
                for i, group in enumerate(scenario.groups) if group.weight != 1]
    if problems and scenario.router_name not in WEIGHTED:
        raise ScenarioError("this router has no weights", problems)


def check_supported(scenario: Scenario, groups: Sequence[Group]) -> None:
    """Raise `ScenarioError` for what several replicas, or ranks in lockstep, cannot do."""
    for i, group in enumerate(groups):
        _check_group(scenario.group(i), scenario, group.ranks > 1 and group.in_step)


def _company(scenario: Scenario) -> tuple[str, str]:
    """What makes more of a scenario than one engine that takes whatever comes, and what it would be without that."""
    if scenario.num_replicas > 1:
        return f"replicas {scenario.num_replicas}", "replicas 1"
    if scenario.limits:
        return "limits", "no limits"
    return ("failures", "no failures") if scenario.failures else ("", "")


def _check_group(scenario: Scenario, whole: Scenario, has_steps_together: bool) -> None:
    """Refuse what one group of replicas cannot do in a cluster."""
    engine, problems = scenario.engine, list[Problem]()
    if has_steps_together:
        is_plain = engine.fidelity != "core"
        below = "tiers" if any(tier.capacity for tier in scenario.tiers) else ""
        other = below or (engine.eviction.kind if engine.eviction.kind != "lru" else "")
        slow = next((i for i, tier in enumerate(scenario.tiers) if tier.capacity and tier.preset == "vllm-native"), -1)
        alone = {"engine.fidelity": engine.fidelity if is_plain else "",
                 "engine.draft": f"{engine.draft} and {other}" if engine.draft != "none" and other else "",
                 f"tiers.{slow}.preset": "vllm-native, whose stores slow steps," if slow >= 0 else ""}
        problems += [Problem(scenario.origin, field, f"{given} with layout.dp {scenario.layout.dp}: ranks of a model "
                             "with experts step together, and the plain engine, which this takes, does not",
                             "it with layout.dp 1") for field, given in alone.items() if given]
    beside, without = _company(whole)
    if beside:
        alone = {"engine.eviction": engine.eviction.kind if engine.eviction.kind == "belady" else "",
                 "engine.admission": "" if engine.admission is None else "a gate for sessions"}
        problems += [Problem(scenario.origin, field, f"{given} with {beside}, which is not simulated yet",
                             f"it with {without}") for field, given in alone.items() if given]
    if problems:
        raise ScenarioError("this scenario cannot be simulated", problems)


def router_spec(scenario: Scenario) -> RouterSpec:
    """The router of a scenario, checked; where none is named, vLLM's own for ranks, else one after the other."""
    given = scenario.router
    return RouterSpec(scenario.router_name) if given is None else stated_router(given, scenario.origin)
