"""What a cluster is: replicas, the router before them, and what fails when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvsim.cluster.limits import Limit
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.errors import Problem, ScenarioError


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica stops at a time [s], with all its requests and its cache, and is back at another (inf: never)."""

    replica: int
    at_s: float
    recover_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Autoscale:
    """How many replicas are up: as many as keep `target_in_flight` requests each.

    Attributes
    ----------
    min_replicas : int
        Never fewer; so many are up at the start.
    target_in_flight : float
        Requests, running or waiting, that one replica should have.
    interval_s : float
        Time [s] between looks at the load.
    down_delay_s : float
        Time [s] for which fewer must have been enough before any is taken down; it ends what it has first.
    startup_s : float
        Time [s] from the decision until a new replica takes requests, with an empty cache.
    """

    min_replicas: int
    target_in_flight: float
    interval_s: float
    down_delay_s: float
    startup_s: float

    def wanted(self, in_flight: int, most: int) -> int:
        """Replicas that so many requests need.

        >>> [Autoscale(1, 8.0, 15.0, 300.0, 60.0).wanted(n, 4) for n in (0, 8, 9, 100)]
        [1, 1, 2, 4]
        """
        return min(max(math.ceil(in_flight / self.target_in_flight), self.min_replicas), most)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Replicas, the router before them, what fails, how many are up, what is let in, and the seed of the router's dice.

    ``startups_s`` says how long each replica takes to start [s], where they differ; else the autoscaler does.
    """

    replicas: tuple[ReplicaSpec, ...]
    router: RouterSpec = field(default_factory=RouterSpec)
    failures: tuple[Failure, ...] = ()
    autoscale: Autoscale | None = None
    seed: int = 0
    where: str = field(default="cluster", compare=False)
    limits: tuple[Limit, ...] = ()
    startups_s: tuple[float, ...] = ()


def check_failures(spec: ClusterSpec) -> None:
    """Raise `ScenarioError` for failures of replicas that are not there, or that overlap."""
    problems: list[Problem] = []
    if spec.failures and spec.autoscale is not None:
        problems.append(Problem(spec.where, "failures", "them with autoscale", "one of the two"))
    if spec.autoscale is not None and spec.autoscale.min_replicas > len(spec.replicas):
        problems.append(Problem(spec.where, "autoscale.min_replicas", str(spec.autoscale.min_replicas),
                                f"at most replicas ({len(spec.replicas)})"))
    last_s = [-math.inf] * len(spec.replicas)
    for i, failure in enumerate(spec.failures):
        if not 0 <= failure.replica < len(spec.replicas):
            problems.append(Problem(spec.where, f"failures.{i}.replica", str(failure.replica),
                                    f"0 to {len(spec.replicas) - 1}"))
            continue
        if failure.recover_s <= failure.at_s:
            problems.append(Problem(spec.where, f"failures.{i}.recover_s", f"{failure.recover_s:g}",
                                    f"a time after at_s ({failure.at_s:g})"))
        if failure.at_s <= last_s[failure.replica]:
            problems.append(Problem(spec.where, f"failures.{i}.at_s", f"{failure.at_s:g}",
                                    f"a time after the replica is back ({last_s[failure.replica]:g})"))
        last_s[failure.replica] = failure.recover_s
    if problems:
        raise ScenarioError("these failures cannot happen", problems)
