"""A whole scenario."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
)

from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.problems import problems_of
from kvsim.scenario.cluster import (
    AutoscalePart,
    DisaggregationPart,
    FailurePart,
    ReplicaGroup,
    Replicas,
    RouterChoice,
    TrafficLimit,
)
from kvsim.scenario.engine import Engine, Hardware, LayoutPart, Tier
from kvsim.scenario.files import refuse_other_files
from kvsim.scenario.money import Demand, Prices
from kvsim.scenario.parts import SCHEMA, NonNegative, Part, Positive
from kvsim.scenario.plan import PlanPart, Slo
from kvsim.scenario.traffic import WorkloadPart

SOLD = ("api", "revenue", "only_slo_earns", "attribution")
"""Fields of ``prices`` that say what tokens sell for: the same from all replicas."""
OF_ALL_REPLICAS = ("router", "failures", "autoscale", "limits", "study", "plan")
"""Fields that say something of all replicas together."""


class Study(Part):
    """Repeat the scenario at several numbers of live sessions, each with several seeds."""

    concurrency: Annotated[tuple[Positive, ...], Field(min_length=1)]
    replications: Positive = 1


class Scenario(Part):
    """One what-if, as written; `kvsim.resolve.resolve` turns it into numbers.

    Examples
    --------
    >>> s = Scenario.from_dict({"schema": "kvsim/scenario/1", "name": "x", "model": "kimi-k3",
    ...     "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
    ...     "workload": {"preset": "agentx-v1", "concurrency": 8, "duration_s": "10 min"}})
    >>> s.workload.duration_s
    600.0
    """

    schema_: Literal["kvsim/scenario/1"] = Field(default=SCHEMA, alias="schema")
    name: str
    description: str = ""
    model: str
    hardware: Hardware
    layout: LayoutPart = LayoutPart()
    engine: Engine = Engine()
    tiers: tuple[Tier, ...] = ()
    workload: WorkloadPart
    prices: Prices = Prices()
    slo: Slo = Slo()
    demand: Demand | None = None
    plan: PlanPart | None = None
    replicas: Replicas = 1
    router: RouterChoice | None = None
    limits: tuple[TrafficLimit, ...] | None = None
    failures: tuple[FailurePart, ...] = ()
    autoscale: AutoscalePart | None = None
    disaggregation: DisaggregationPart | None = None
    seed: NonNegative = 0
    study: Study | None = None
    _origin: str = PrivateAttr(default="scenario")

    def __eq__(self, other: object) -> bool:
        """Equal if everything written is equal, wherever it was written."""
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "scenario") -> Scenario:
        """Check plain data and build a scenario.

        Raises
        ------
        ScenarioError
            With every problem found: unknown keys, missing units, wrong types, values out of range.
        """
        refuse_other_files(data, where, SCHEMA)
        try:
            scenario = cls.model_validate(data)
        except ValidationError as err:
            raise ScenarioError(f"{where} is not a valid scenario", problems_of(err, where, cls, data)) from None
        scenario._origin = where
        scenario._check_groups()  # here, where messages know the origin
        return scenario

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back to an equal scenario."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def origin(self) -> str:
        """Where it was written, for messages: a path (and its ``--set``), else "scenario"."""
        return self._origin

    @property
    def num_replicas(self) -> int:
        """All replicas: prefill and decode ones where they are apart."""
        if self.disaggregation is None:
            return sum([group.count for group in self.groups])
        return self.disaggregation.prefill.replicas + self.disaggregation.decode.replicas

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        if self.disaggregation is not None:
            return self.num_replicas * self.hardware.num_gpus
        return sum([g.count * int(g.hardware.get("num_gpus", self.hardware.num_gpus)) for g in self.groups])

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """Replicas by kind; one group that changes nothing where ``replicas`` is a number."""
        return self.replicas if isinstance(self.replicas, tuple) else (ReplicaGroup(count=self.replicas),)

    @property
    def ranks(self) -> int:
        """Most attention-DP ranks of a replica."""
        return max([(group.layout or self.layout).dp for group in self.groups])

    def group(self, i: int) -> Scenario:
        """The replicas of one group as a scenario of their own, without what holds for all replicas together.

        Raises
        ------
        ScenarioError
            What the group states is not valid.

        Examples
        --------
        >>> both = Scenario.from_dict({"name": "x", "model": "kimi-k3", "hardware": {"gpu": "b300", "num_gpus": 8},
        ...     "layout": {"tp": 8}, "workload": {"preset": "agentx-v1", "concurrency": 8, "duration_s": 600},
        ...     "replicas": [{"count": 2}, {"hardware": {"gpu": "mi355x"}, "engine": {"max_num_seqs": 32}}]})
        >>> [(g.hardware.gpu, g.engine.max_num_seqs, g.num_replicas) for g in map(both.group, (0, 1))]
        [('b300', None, 2), ('mi355x', 32, 1)]
        """
        if isinstance(self.replicas, int):
            return self
        part = self.replicas[i]
        data = {k: v for k, v in self.to_dict().items() if k not in OF_ALL_REPLICAS}
        for name, own in (("hardware", part.hardware), ("engine", part.engine), ("prices", part.prices)):
            kept = {k: v for k, v in data[name].items() if not (k == "node" and "gpu" in own)}
            data[name] = {**kept, **own}
        if part.layout is not None:
            data["layout"] = part.layout.model_dump()
        if part.tiers is not None:
            data["tiers"] = [tier.model_dump(mode="json", exclude_none=True) for tier in part.tiers]
        where = f"{self.origin} (replicas.{i}{': ' + part.name if part.name else ''})"
        return Scenario.from_dict({**data, "replicas": part.count}, where)

    def _check_groups(self) -> None:
        """Report what is wrong in any group of replicas, all of it at once."""
        if isinstance(self.replicas, int):
            return
        if not self.replicas:
            raise ScenarioError(f"{self.origin} is not a valid scenario", [
                Problem(self.origin, "replicas", "an empty list", "a number, or at least one group")])
        problems = [Problem(self.origin, f"replicas.{i}.prices.{name}", "what tokens sell for", "it in prices, for all")
                    for i, group in enumerate(self.replicas) for name in SOLD if name in group.prices]
        for i in range(len(self.replicas)):
            try:
                self.group(i)
            except ScenarioError as err:
                problems += err.problems
        if problems:
            raise ScenarioError(f"{self.origin} is not a valid scenario", problems)

    @property
    def router_name(self) -> str:
        """Name of the router; where none is stated, vLLM's own for attention-DP ranks, else one after the other."""
        if self.router is None:
            return "vllm_dp" if self.ranks > 1 else "round_robin"
        return self.router.kind

    @property
    def digest(self) -> str:
        """Digest of everything that decides the result, as 16 hex digits."""
        data = self.to_dict()
        text = json.dumps({k: v for k, v in data.items() if k not in ("name", "description", "plan")}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def kind_digest(self) -> str:
        """Digest of everything that decides what one replica does and costs, as 16 hex digits."""
        return self.model_copy(update={"replicas": 1}).digest

    def at(self, concurrency: int, seed: int) -> Scenario:
        """This scenario at another number of live sessions (instead of a rate) and seed, without its study."""
        workload = self.workload.model_copy(update={"concurrency": concurrency, "rate_per_s": None})
        return self.model_copy(update={"workload": workload, "seed": seed, "study": None})


def require_alike(scenario: Scenario, what: str) -> None:
    """Raise `ScenarioError` where replicas differ and `what` knows one kind only."""
    if len(scenario.groups) > 1:
        raise ScenarioError(f"{what} of replicas that differ is not supported", [Problem(
            scenario.origin, "replicas", f"{len(scenario.groups)} groups", "a number of replicas that are alike")])
