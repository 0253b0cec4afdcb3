"""Routers by name, with the age of what they see."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.routers.base import Router
from kvsim.cluster.routers.plain import LeastLoaded, PowerOfTwo, RoundRobin, SessionAffinity, VllmRanks
from kvsim.cluster.routers.prefix import Dynamo, LlmD, PrefixAware, SglangGateway
from kvsim.cluster.view import View
from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.rng import stream

Param = float | str


@dataclass(frozen=True, slots=True)
class RouterKind:
    """A router's class, and how old its snapshots are unless stated [s], with the reason."""

    make: Callable[..., Router]
    age_s: float
    why: str


KINDS: Mapping[str, RouterKind] = MappingProxyType({
    "round_robin": RouterKind(RoundRobin, 0.0, "looks at nothing"),
    "least_loaded": RouterKind(LeastLoaded, 0.0, "counts the requests that it sent itself"),
    "session_affinity": RouterKind(SessionAffinity, 0.0, "counts the requests that it sent itself"),
    "prefix_aware": RouterKind(PrefixAware, 0.0, "counts the requests that it sent itself"),
    "sglang": RouterKind(SglangGateway, 0.0, "counts the requests that it sent itself"),
    "dynamo": RouterKind(Dynamo, 0.0, "counts the requests that it sent itself"),
    "llm_d": RouterKind(LlmD, 0.05, "metrics are scraped every 50 ms"),
    "power_of_two": RouterKind(PowerOfTwo, 0.0, "counts the requests that it sent itself"),
    "vllm_dp": RouterKind(VllmRanks, 0.1, "ranks publish their counts every 100 ms"),
})
"""All routers."""
WEIGHTED = ("round_robin", "least_loaded", "power_of_two", "session_affinity", "prefix_aware")
"""Routers that give a replica with twice the weight twice the requests, as nginx and HAProxy do; the others of the list
are routers of one product each, which knows no weights."""


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """Which router, how old its snapshots are (None: as its source says), and its parameters.

    Examples
    --------
    >>> RouterSpec("llm_d").snapshot_age_s
    0.05
    """

    kind: str = "round_robin"
    age_s: float | None = None
    params: Mapping[str, Param] = field(default_factory=dict[str, Param])

    @property
    def snapshot_age_s(self) -> float:
        """Age [s] of its snapshots."""
        return KINDS[self.kind].age_s if self.age_s is None else self.age_s


def params_of(kind: str) -> dict[str, Param]:
    """Parameters of a router with their defaults.

    >>> params_of("sglang")["cache_threshold"]
    0.3
    """
    signature = inspect.signature(KINDS[kind].make)
    return {name: p.default for name, p in signature.parameters.items() if name != "view"}


def check_router(spec: RouterSpec, where: str, field_name: str = "router") -> None:
    """Raise `ScenarioError` for an unknown router or parameter, each with what is accepted.

    >>> check_router(RouterSpec("sglang", params={"cache_treshold": 0.5}), "x.yaml")
    Traceback (most recent call last):
    ...
    kvsim.errors.ScenarioError: this router is not known
      x.yaml: router.cache_treshold: got 0.5; accepted: cache_threshold, balance_abs_threshold, balance_rel_threshold,
      max_tree_tokens (did you mean 'cache_threshold'?)
    """
    if spec.kind not in KINDS:
        problems = [Problem(where, field_name, repr(spec.kind), ", ".join(KINDS), nearest(spec.kind, list(KINDS)))]
        raise ScenarioError("this router is not known", problems)
    known = params_of(spec.kind)
    problems = [Problem(where, f"{field_name}.{name}", str(value), ", ".join(known) or "no parameters",
                        nearest(name, list(known)))
                for name, value in spec.params.items() if name not in known]
    problems += [Problem(where, f"{field_name}.{name}", repr(value), f"a {type(known[name]).__name__}")
                 for name, value in spec.params.items()
                 if name in known and isinstance(value, str) != isinstance(known[name], str)]
    if problems:
        raise ScenarioError("this router is not known", problems)


def make_router(spec: RouterSpec, fleet: Fleet, seed: int) -> tuple[Router, View]:
    """A router and its view of the cluster."""
    rng = random.Random(int(stream(seed, "router").integers(1 << 62)))
    view = View(fleet, spec.snapshot_age_s, rng)
    return KINDS[spec.kind].make(view, **spec.params), view
