"""Several replicas: routers, groups, failures, limits, prefill and decode apart."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_serializer,
    model_validator,
)

from kvsim.scenario.engine import LayoutPart, Tier
from kvsim.scenario.parts import (
    BytesPerSecond,
    NonNegative,
    Part,
    Positive,
    PositiveSeconds,
    Rate,
    Seconds,
    TokensOrZero,
)

RouterName = Literal["round_robin", "least_loaded", "session_affinity", "prefix_aware", "sglang", "dynamo", "llm_d",
                     "power_of_two", "vllm_dp"]


class RouterPart(BaseModel):
    """A router with parameters, which are its own (docs/cluster.md); ``snapshot_age_s``: how old what it sees is."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    kind: RouterName
    snapshot_age_s: Seconds | None = None

    @model_serializer
    def _short(self) -> str | dict[str, Any]:
        given = {"kind": self.kind, "snapshot_age_s": self.snapshot_age_s, **(self.model_extra or {})}
        given = {name: value for name, value in given.items() if value is not None}
        return self.kind if len(given) == 1 else given


RouterChoice = Annotated[RouterPart, BeforeValidator(lambda given: {"kind": given} if isinstance(given, str)
                                                     else given)]


class RolePart(Part):
    """Replicas that only prefill, or only decode: the scenario's own but for what is stated here.

    ``engine`` has fields of the scenario's ``engine``. Decode replicas have no ``tiers``.
    """

    replicas: Positive = 1
    layout: LayoutPart | None = None
    engine: dict[str, Any] = Field(default_factory=dict[str, Any])
    router: RouterChoice | None = None


class LinkPart(Part):
    """Network between prefill and decode nodes, by GPU; without a ``bandwidth``, that of the node's network cards.

    ``shared``: whether transfers of a replica wait for each other.
    """

    bandwidth: BytesPerSecond | None = None
    latency: Seconds = 0.0
    shared: bool = True


class DisaggregationPart(Part):
    """Prefill and decode on replicas of their own; see docs/disaggregation.md.

    ``transfer``: KV goes when the prefill is over, or layer by layer as it is computed. ``decode_side_caching``: decode
    replicas keep blocks, so that later turns transfer only what is new. Prompts of which the decode replica lacks at
    most ``conditional_uncached_tokens`` are prefilled there.
    """

    prefill: RolePart = RolePart()
    decode: RolePart = RolePart()
    link: LinkPart = LinkPart()
    transfer: Literal["whole", "layerwise"] = "whole"
    decode_side_caching: bool = False
    conditional_uncached_tokens: TokensOrZero = 0


class FailurePart(Part):
    """Replica ``replica`` (from 0) stops at ``at_s`` and is back, empty, at ``recover_s`` (never if not set)."""

    replica: NonNegative
    at_s: Seconds
    recover_s: PositiveSeconds | None = None


class AutoscalePart(Part):
    """How many of ``replicas`` are up: as many as keep ``target_in_flight`` requests each, at least ``min_replicas``.

    A new one takes requests after its start-up: the bytes of its weights over ``load_rate``, ``compile_s`` and
    ``graphs_s``. Defaults of ``interval_s`` and ``down_delay_s`` are those of Kubernetes' horizontal pod autoscaler.
    ``billing``: whether only replicas that are up or starting are paid for, or all of them all the time; by default the
    former, but all of them where the price is that of owned hardware, which costs the same when it is idle.
    """

    target_in_flight: Annotated[float, Field(gt=0)]
    min_replicas: Positive = 1
    interval_s: PositiveSeconds = 15.0
    down_delay_s: Seconds = 300.0
    load_rate: BytesPerSecond = 2e9
    compile_s: Seconds = 60.0
    graphs_s: Seconds = 20.0
    billing: Literal["on_demand", "reserved"] | None = None


class ReplicaGroup(Part):
    """Replicas that are alike, in a cluster of several kinds: the scenario's own but for what is stated here.

    ``hardware``, ``engine`` and ``prices`` have fields of the scenario's parts of these names and replace them one by
    one (another ``gpu`` stands in its own usual node); what tokens sell for is the scenario's. ``layout`` and ``tiers``
    replace the scenario's whole. ``weight`` is the share of the requests that routers with weights give each of them.
    """

    count: Positive = 1
    name: Annotated[str, Field(min_length=1)] | None = None
    hardware: dict[str, Any] = Field(default_factory=dict[str, Any])
    layout: LayoutPart | None = None
    engine: dict[str, Any] = Field(default_factory=dict[str, Any])
    tiers: tuple[Tier, ...] | None = None
    prices: dict[str, Any] = Field(default_factory=dict[str, Any])
    weight: Annotated[float, Field(gt=0)] = 1.0


_NUMBER, _LIST = "constrained-number", "constrained-list"


def _kind_of_replicas(given: Any) -> str:
    return _LIST if isinstance(given, list | tuple) else _NUMBER


Replicas = Annotated[
    Annotated[Positive, Tag(_NUMBER)] | Annotated[tuple[ReplicaGroup, ...], Tag(_LIST)],
    Discriminator(_kind_of_replicas)]


class TrafficLimit(Part):
    """What the router lets through of one traffic class (without ``class``: of all traffic).

    At most ``max_in_flight`` requests at a time, ``rate`` requests (``600/min``) and ``token_rate`` tokens of the kind
    ``tokens``. A rate fills a bucket of ``burst`` requests or ``token_burst`` tokens, by default what it lets through
    in a minute. Who comes when nothing is left waits in line, or is rejected (``on_limit``).
    """

    class_: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="class")
    max_in_flight: Positive | None = None
    rate: Rate | None = None
    burst: Positive | None = None
    token_rate: Rate | None = None
    token_burst: Positive | None = None
    tokens: Literal["total", "input", "output"] = "total"
    on_limit: Literal["queue", "reject"] = "queue"

    @model_validator(mode="after")
    def _limits_something(self) -> TrafficLimit:
        if self.max_in_flight is None and self.rate is None and self.token_rate is None:
            raise ValueError("no limit; accepted: max_in_flight, rate, token_rate or several of them")
        for burst, rate in (("burst", "rate"), ("token_burst", "token_rate")):
            if getattr(self, burst) is not None and getattr(self, rate) is None:
                raise ValueError(f"{burst} without {rate}; accepted: both")
        return self
