"""What a user writes: a scenario as YAML, a dict or Python, with every mistake reported at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_serializer,
    model_validator,
)

from kvsim.errors import Problem, ProfileError, ScenarioError, nearest
from kvsim.profiles.paths import data_root
from kvsim.profiles.problems import problems_of
from kvsim.profiles.yamlio import parse_yaml
from kvsim.units import parse

SCHEMA = "kvsim/scenario/1"
SOURCES = "preset, trace, fixed, chat, rag, batch"
RouterName = Literal["round_robin", "least_loaded", "session_affinity", "prefix_aware", "sglang", "dynamo", "llm_d",
                     "power_of_two", "vllm_dp"]


def _quantity(dimension: str, bare: str | None = None) -> Any:
    return BeforeValidator(lambda given: given if given is None else parse(given, dimension, bare=bare))


Bytes = Annotated[float, _quantity("B", "B"), Field(gt=0)]
BytesPerSecond = Annotated[float, _quantity("B/s", "B/s"), Field(ge=0)]
Seconds = Annotated[float, _quantity("s", "s"), Field(ge=0)]
PositiveSeconds = Annotated[float, _quantity("s", "s"), Field(gt=0)]
UsdPerHour = Annotated[float, _quantity("USD/h", "USD/h"), Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Frac = Annotated[float, Field(gt=0, le=1)]
AcceptedFrac = Annotated[float, Field(ge=0, le=1)]
Percentile = Literal["mean", "p50", "p90", "p95", "p99"]


class Part(BaseModel):
    """Base of the parts of a scenario: unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class Hardware(Part):
    """GPUs of one replica; ``node`` overrides the node profile that is looked up by GPU."""

    gpu: str
    num_gpus: Positive
    node: str | None = None


class LayoutPart(Part):
    """Parallel degrees of one replica; see `kvsim.layout.Layout`."""

    tp: Positive = 1
    pp: Positive = 1
    ep: Positive = 1
    dp: Positive = 1
    dcp: Positive = 1


class LinearStep(Part):
    """Step time with given coefficients instead of the physics model."""

    kind: Literal["linear"]
    base_s: Seconds
    per_prefill_token_s: Seconds
    per_decode_seq_s: Seconds


EVICTION_PARAMETERS = {"ttl": {"ttl_s"}, "pin_sessions": {"ttl_s", "share_frac"}, "s3fifo": {"small_frac"}}
"""Parameters by eviction policy; the others have none."""


class EvictionPart(Part):
    """Which cached block of the pool is lost first: a name, or a name with parameters; see docs/policies.md.

    ``ttl_s``: how long an unused block lives (ttl) or stays pinned (pin_sessions). ``share_frac``: largest share of the
    pool that is pinned. ``small_frac``: share of the cached blocks in S3-FIFO's queue of newcomers.
    """

    kind: Literal["lru", "fifo", "lfu", "s3fifo", "belady", "ttl", "pin_sessions", "priority", "cost_aware"]
    ttl_s: PositiveSeconds | None = None
    share_frac: Frac | None = None
    small_frac: Frac | None = None

    @model_validator(mode="after")
    def _own_parameters(self) -> EvictionPart:
        own = EVICTION_PARAMETERS.get(self.kind, set[str]())
        foreign = {name for name, _ in self if name != "kind" and getattr(self, name) is not None} - own
        if foreign:
            raise ValueError(f"{', '.join(sorted(foreign))} with {self.kind}; accepted: "
                             f"{', '.join(sorted(own)) or 'no parameters'}")
        return self

    @model_serializer
    def _short(self) -> str | dict[str, Any]:
        given = {name: value for name, value in self if value is not None}
        return self.kind if len(given) == 1 else given


Eviction = Annotated[EvictionPart, BeforeValidator(lambda given: {"kind": given} if isinstance(given, str) else given)]


class AdmissionPart(Part):
    """Which session trees are let in; the others wait outside, which counts in the TTFT of their first request.

    At most ``max_live_sessions``, thinking or not; and only while their contexts fit into ``max_context_frac`` of the
    pool, each counted as at least ``expected_tokens``.
    """

    max_live_sessions: Positive | None = None
    max_context_frac: Annotated[float, Field(gt=0)] | None = None
    expected_tokens: NonNegative = 0

    @model_validator(mode="after")
    def _limits_something(self) -> AdmissionPart:
        if self.max_live_sessions is None and self.max_context_frac is None:
            raise ValueError("no limit; accepted: max_live_sessions, max_context_frac or both")
        return self


class AcceptancePart(Part):
    """How many draft tokens the target accepts, and how that is known; see docs/drafts.md.

    ``golden``: the measured curve of a draft profile, the ``preset``, or the one that fits model and method.
    ``measured`` and ``own``: numbers of yours with their ``source``: ``rates`` (of each draft token, given that those
    before it were accepted), ``per_position`` (of all steps, as engines log them) or ``length`` (mean tokens a step,
    the target's own one included).
    """

    kind: Literal["golden", "measured", "own"]
    preset: str | None = None
    rates: tuple[AcceptedFrac, ...] | None = None
    per_position: tuple[AcceptedFrac, ...] | None = None
    length: Annotated[float, Field(ge=1)] | None = None
    source: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _has_source(self) -> AcceptancePart:
        numbers = [n for n in ("rates", "per_position", "length") if getattr(self, n) is not None]
        if self.kind == "golden":
            if numbers or self.source:
                raise ValueError(f"{', '.join(numbers) or 'source'} with golden; accepted: preset, which has its own")
            return self
        if self.preset or len(numbers) != 1 or not self.source:
            given = [*numbers, *(["preset"] if self.preset else []), *(["source"] if self.source else [])]
            raise ValueError(f"{self.kind} with {', '.join(given) or 'nothing'}; "
                             "accepted: source, and one of rates, per_position, length")
        if self.per_position is not None and list(self.per_position) != sorted(self.per_position, reverse=True):
            raise ValueError("per_position that rises; accepted: shares of all steps, which fall from token to token")
        return self


class Engine(Part):
    """Serving engine settings; None takes the engine profile's default for the hardware.

    ``kv_bytes_per_gpu`` or ``num_blocks`` (null block included) replace the predicted pool by a logged one.
    ``calibration`` names a file that ``kvsim calibrate`` wrote.
    ``retention_interval``: 0 = checkpoints at prompt ends and junctions, N = also every N tokens, "dense".
    """

    profile: str = "vllm-day0"
    kv_dtype: Literal["bf16", "fp8", "fp8_ds_mla"] = "bf16"
    gpu_memory_utilization: Frac | None = None
    max_model_len: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_num_seqs: Positive | None = None
    prefix_caching: bool = True
    retention_interval: NonNegative | Literal["dense"] = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    eviction: Eviction = EvictionPart(kind="lru")
    admission: AdmissionPart | None = None
    fidelity: Literal["core", "reference"] = "core"
    draft: str = "none"
    draft_acceptance: AcceptancePart | None = None
    kv_bytes_per_gpu: Bytes | None = None
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    block_tokens: Positive | None = None
    step_time: LinearStep | None = None
    calibration: str | None = None

    @model_validator(mode="after")
    def _one_pool(self) -> Engine:
        if self.kv_bytes_per_gpu is not None and self.num_blocks is not None:
            raise ValueError("kv_bytes_per_gpu and num_blocks both set; accepted: one of them")
        return self


class Tier(Part):
    """A cache tier below HBM.

    ``capacity`` is that of the whole replica. ``preset`` names a connector's rules (`kvsim.cache.tiers.presets`),
    ``write`` overrides when it stores. Bandwidths are those of one GPU's link, ``latency_s`` what every transfer
    takes besides; None takes what the profiles say. ``load_rule``: whether a hit is loaded although computing it
    again would be faster. ``load``: whether a request waits for its load, or computes behind it layer by layer (None:
    as the preset does). ``offline_from_s``: when the tier stops answering.
    """

    kind: Literal["dram", "nvme", "pool"]
    capacity: Annotated[float, _quantity("B", "B"), Field(ge=0)]
    preset: str | None = None
    write: Literal["eager", "lazy", "on-eviction", "on-reuse", "none"] | None = None
    reuse_threshold: Positive = 2
    load_rule: Literal["always_load", "break_even"] = "always_load"
    load: Literal["async", "layerwise"] | None = None
    latency_s: Seconds | None = None
    offline_from_s: Seconds | None = None
    read_bandwidth_per_gpu: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] | None = None
    write_bandwidth_per_gpu: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] | None = None


def _length(given: Any) -> Any:
    return {"median": given} if isinstance(given, int | float) and not isinstance(given, bool) else given


class LengthPart(Part):
    """A log-normal length or time around a median; sigma 0 (or a bare number instead of this) = always the median."""

    median: Annotated[float, Field(ge=0)]
    sigma: Annotated[float, Field(ge=0)] = 0.0
    max: Annotated[float, Field(gt=0)] | None = None


Length = Annotated[LengthPart, BeforeValidator(_length)]


class FixedLengths(Part):
    """Requests of given lengths that share nothing; sigma > 0 makes them lognormal around these medians."""

    num_requests: Positive
    input_tokens: Positive
    output_tokens: Positive
    input_sigma: Annotated[float, Field(ge=0)] = 0.0
    output_sigma: Annotated[float, Field(ge=0)] = 0.0


class OwnedPart(Part):
    """How owned GPUs are paid for when the cost is built from capital and power; see `kvsim.report.bill.OwnedTerms`."""

    utilisation_frac: Frac = 1.0
    opex_frac: Annotated[float, Field(ge=0)] = 0.05
    site: Literal["colocation", "self-built"] = "colocation"


class Prices(Part):
    """What the hardware costs, what the tokens earn.

    ``compute`` and ``api`` name price profiles. ``owned`` builds the cost from the profile's capital and power
    instead of taking its published $ per hour; ``usd_per_gpu_hour`` states the rent by GPU profile instead. GPUs are
    paid for in buying units (node, tray, rack), rounded up; fewer than one unit's pay for themselves alone, unless
    ``whole_units`` is true. False never rounds up. Tiers cost the capital of ``tier_profiles`` by kind, or the $ per
    hour and replica of ``tier_usd_per_hour``. ``revenue`` and ``attribution`` choose the headline's; see
    `kvsim.report.cost`.
    """

    compute: str = "rental-2026-09"
    api: str | None = None
    owned: OwnedPart | None = None
    usd_per_gpu_hour: dict[str, UsdPerHour] | None = None
    whole_units: bool | None = None
    tier_usd_per_hour: dict[Literal["dram", "nvme", "pool"], UsdPerHour] = Field(default_factory=dict[Any, float])
    tier_profiles: dict[Literal["dram", "nvme", "pool"], str] = Field(default_factory=dict[Any, str])
    network_usd_per_gpu_hour: UsdPerHour = 0.0
    revenue: Literal["hits", "ideal_hits", "demand"] = "hits"
    only_slo_earns: bool = True
    attribution: Literal["price", "resource_time"] = "price"

    @model_validator(mode="after")
    def _rented_or_owned(self) -> Prices:
        if self.owned is not None and self.usd_per_gpu_hour:
            raise ValueError("owned and usd_per_gpu_hour both set; accepted: one of them")
        return self


class Demand(Part):
    """Who uses the service: seats, and what they do in the peak hour.

    ``turns_per_active_hour`` counts an active seat's requests, sub-agents' too; without it every active seat
    keeps one live session. ``growth_per_month`` compounds over ``months``.
    """

    seats: Positive
    active_frac_peak: Frac
    turns_per_active_hour: Annotated[float, Field(gt=0)] | None = None
    growth_per_month: Annotated[float, Field(ge=0)] = 0.0
    months: NonNegative = 0


class SloLimits(Part):
    """Limits [s] on statistics, e.g. ``ttft_s: {p95: 10}``."""

    ttft_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    tpot_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    e2e_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])


class Slo(SloLimits):
    """Service level objectives; ``by_class`` replaces them for named traffic classes."""

    by_class: dict[str, SloLimits] = Field(default_factory=dict[str, SloLimits])


class PlanHardware(Part):
    """One kind of replica that a plan may use; ``node`` as in `Hardware`."""

    gpu: str
    num_gpus: Positive
    node: str | None = None
    layouts: Annotated[tuple[LayoutPart, ...], Field(min_length=1)]


class PlanPart(Part):
    """What `kvsim.plan.plan` searches, and within which limits.

    Every combination of a ``hardware`` entry's layouts, ``kv_dtypes`` and ``tiers`` is a configuration (None: the
    scenario's own). ``live_sessions`` is the demand when no ``demand`` is stated. ``spares`` are replicas that serve
    nothing until another fails. ``inventory`` limits GPUs by name, ``max_power`` what the site carries. ``changes``
    are single changes of your own for the table of the next dollar: a name, and fields as with ``--set``.
    """

    hardware: tuple[PlanHardware, ...] | None = None
    kv_dtypes: tuple[Literal["bf16", "fp8", "fp8_ds_mla"], ...] | None = None
    tiers: tuple[tuple[Tier, ...], ...] | None = None
    live_sessions: Positive | None = None
    max_sessions_per_replica: Positive = 64
    spares: NonNegative = 0
    inventory: dict[str, NonNegative] = Field(default_factory=dict[str, int])
    max_power: Annotated[float, _quantity("W"), Field(gt=0)] | None = None
    max_usd_per_hour: UsdPerHour | None = None
    changes: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    replications: Positive = 1


class ChatPart(Part):
    """Conversations over one system prompt; `kvsim.workload.synthetic.Chat`. ``think_s`` is the pause between turns."""

    turns: Length
    user_tokens: Length
    output_tokens: Length
    system_tokens: NonNegative = 0
    think_s: Length = LengthPart(median=0.0)


class RagPart(Part):
    """Questions about shared documents; `kvsim.workload.synthetic.Rag`. ``zipf`` 0 = all documents alike."""

    num_documents: Positive
    document_tokens: Length
    question_tokens: Length
    output_tokens: Length
    documents_per_request: Positive = 1
    zipf: Annotated[float, Field(ge=0)] = 1.0
    system_tokens: NonNegative = 0
    sort_documents: bool = False

    @model_validator(mode="after")
    def _enough_documents(self) -> RagPart:
        if self.documents_per_request > self.num_documents:
            raise ValueError(f"{self.documents_per_request} documents per request of {self.num_documents}; "
                             f"accepted: at most num_documents")
        return self


class BatchPart(Part):
    """Items behind one instruction, all there at the start; `kvsim.workload.synthetic.Batch`."""

    num_requests: Positive
    input_tokens: Length
    output_tokens: Length
    shared_tokens: NonNegative = 0


class ArrivalsPart(Part):
    """How times between open arrivals vary, and how their rate swings over the day.

    ``cv`` is the coefficient of variation of gamma or weibull times. The rate is ``1 + swing cos(2 pi (t - peak) /
    period)`` times its mean. ``trace_rate`` names a trace instead, whose rate in windows of about ``window_s`` is
    followed, over and over: at its own mean, or at the workload's ``rate_per_s`` where that is set.
    """

    family: Literal["poisson", "gamma", "weibull", "even"] = "poisson"
    cv: Annotated[float, Field(gt=0, le=100)] = 1.0
    swing: Annotated[float, Field(ge=0, le=1)] = 0.0
    period_s: PositiveSeconds = 86_400.0
    peak_s: Seconds = 0.0
    trace_rate: str | None = None
    window_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_pattern(self) -> ArrivalsPart:
        if self.trace_rate is not None and self.swing:
            raise ValueError("swing and trace_rate both set; accepted: one of them")
        if self.trace_rate is None and self.window_s is not None:
            raise ValueError("window_s without trace_rate; accepted: both, or none of them")
        return self

    @model_validator(mode="after")
    def _has_cv(self) -> ArrivalsPart:
        if self.cv != 1.0 and self.family in ("poisson", "even"):
            raise ValueError(f"cv {self.cv:g} with {self.family}; accepted: a cv for gamma or weibull")
        return self


class StepPart(Part):
    """From ``at_s`` on (counted from the end of the warm-up) another number of live sessions, or another rate."""

    at_s: PositiveSeconds
    concurrency: NonNegative | None = None
    rate_per_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> StepPart:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("both or none of concurrency and rate_per_s; accepted: one of them")
        return self


class ReplayPart(Part):
    """How live sessions are let in, where it is not as AgentX does; see `kvsim.workload.trees.ReplayRules`.

    ``start_frac``: first sessions begin uniformly in this part of themselves; ``from_start``: at their first turn.
    """

    gap_cap_s: Seconds | None = None
    idle_cap_s: Seconds | None = None
    start_frac: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] | None = None
    from_start: bool = False
    warmup_requests: NonNegative | None = None


class Traffic(Part):
    """One kind of traffic: what is asked, and how it is let in.

    Exactly one of ``preset`` (a name, or the path of a fitted one), ``trace`` (file or folder of any known format),
    ``fixed``, ``chat``, ``rag``, ``batch`` says what. ``concurrency`` counts live session trees (parent and sub-agents,
    thinking or not), or clients where sessions are single requests. ``mode: open`` lets requests of a trace in at their
    recorded times, ``rate_factor`` times as fast, or lets sessions begin at ``rate_per_s``. ``burstiness`` is the
    coefficient of variation of gamma-distributed times between arrivals. No more than ``max_concurrency`` requests are
    in flight: who comes then waits at the client.
    """

    preset: str | None = None
    trace: str | None = None
    fixed: FixedLengths | None = None
    chat: ChatPart | None = None
    rag: RagPart | None = None
    batch: BatchPart | None = None
    mode: Literal["open", "closed"] | None = None
    concurrency: Positive | None = None
    rate_per_s: Annotated[float, Field(gt=0)] | None = None
    rate_factor: Annotated[float, Field(gt=0)] | None = None
    burstiness: Annotated[float, Field(gt=0, le=100)] | None = None
    arrivals: ArrivalsPart | None = None
    steps: tuple[StepPart, ...] | None = None
    max_concurrency: Positive | None = None
    max_sessions: Positive | None = None
    replay: ReplayPart | None = None

    @property
    def sources(self) -> list[str]:
        """Names of what is asked that are set."""
        return [n for n in ("preset", "trace", "fixed", "chat", "rag", "batch") if getattr(self, n) is not None]

    @property
    def has_sessions(self) -> bool:
        """Whether there are sessions of several turns, as far as the scenario itself says."""
        return self.preset is not None or self.trace is not None or self.chat is not None

    @model_validator(mode="after")
    def _consistent(self) -> Traffic:
        if self.burstiness is not None and self.arrivals is not None:
            raise ValueError("burstiness and arrivals both set; accepted: one of them (burstiness: 2 is arrivals: "
                             "{family: gamma, cv: 2})")
        times = [step.at_s for step in self.steps or ()]
        if times != sorted(set(times)):
            raise ValueError(f"steps at {times}; accepted: times that rise")
        return self


class TrafficClass(Traffic):
    """One of several kinds of traffic side by side.

    ``share`` is the part of the workload's ``concurrency`` or ``rate_per_s`` that it gets, where it states none of
    its own. ``priority`` (lower is more urgent) acts with ``engine.policy: priority``. Limits of its own stand in the
    scenario's ``slo.by_class`` under its name. ``api`` names the API price that it sells at, where that is not the
    general one (``prices.api``).
    """

    name: Annotated[str, Field(min_length=1)]
    share: Frac | None = None
    priority: int = 0
    api: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TrafficClass:
        if len(self.sources) != 1:
            raise ValueError(f"{' and '.join(self.sources) or 'none of them'}; accepted: exactly one of {SOURCES}")
        return self


class WorkloadPart(Traffic):
    """All traffic: one kind, or several ``classes`` side by side.

    ``duration_s`` and ``warmup_s`` are the measured time and what comes before it, both after the warm-up requests of
    live sessions. ``measure: auto`` measures from where the run has become steady instead (`kvsim.report.statistics`).
    """

    duration_s: PositiveSeconds | None = None
    warmup_s: Seconds = 0.0
    measure: Literal["auto"] | None = None
    classes: Annotated[tuple[TrafficClass, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadPart:
        given = [*self.sources, *(["classes"] if self.classes else [])]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'none of them'}; accepted: exactly one of {SOURCES}, classes")
        endless = [c.name for c in self.classes or () if c.preset or c.chat or c.rag]
        if self.duration_s is None and (endless or self.preset or self.chat or self.rag):
            what = f"{', '.join(endless) or given[0]} without duration_s"
            raise ValueError(f"a {what}; accepted: both, since its sessions never run out")
        names = [c.name for c in self.classes or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"classes {', '.join(names)}; accepted: every name once")
        return self


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

    bandwidth: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] | None = None
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
    conditional_uncached_tokens: NonNegative = 0


class FailurePart(Part):
    """Replica ``replica`` (from 0) stops at ``at_s`` and is back, empty, at ``recover_s`` (never if not set)."""

    replica: NonNegative
    at_s: Seconds
    recover_s: PositiveSeconds | None = None


class AutoscalePart(Part):
    """How many of ``replicas`` are up: as many as keep ``target_in_flight`` requests each, at least ``min_replicas``.

    A new one takes requests after its start-up: the bytes of its weights over ``load_rate``, ``compile_s`` and
    ``graphs_s``. Defaults of ``interval_s`` and ``down_delay_s`` are those of Kubernetes' horizontal pod autoscaler.
    """

    target_in_flight: Annotated[float, Field(gt=0)]
    min_replicas: Positive = 1
    interval_s: PositiveSeconds = 15.0
    down_delay_s: Seconds = 300.0
    load_rate: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] = 2e9
    compile_s: Seconds = 60.0
    graphs_s: Seconds = 20.0


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
    replicas: Positive = 1
    router: RouterChoice | None = None
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
            return self.replicas
        return self.disaggregation.prefill.replicas + self.disaggregation.decode.replicas

    @property
    def router_name(self) -> str:
        """Name of the router; where none is stated, vLLM's own for attention-DP ranks, else one after the other."""
        if self.router is None:
            return "vllm_dp" if self.layout.dp > 1 else "round_robin"
        return self.router.kind

    @property
    def digest(self) -> str:
        """Digest of everything that decides the result, as 16 hex digits."""
        data = self.to_dict()
        text = json.dumps({k: v for k, v in data.items() if k not in ("name", "description", "plan")}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def at(self, concurrency: int, seed: int) -> Scenario:
        """This scenario at another number of live sessions and seed, without its study."""
        workload = self.workload.model_copy(update={"concurrency": concurrency})
        return self.model_copy(update={"workload": workload, "seed": seed, "study": None})


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a path, a shipped name or plain data.

    Parameters
    ----------
    source : str, Path or mapping
        YAML file, name of a shipped scenario (``"k3-b300-study"``), or plain data.
    overrides : sequence of str
        ``"engine.kv_dtype=fp8"``; list items by number (``tiers.0.capacity=2TB``); values are YAML.

    Raises
    ------
    ScenarioError
        Not found (with the nearest shipped name), not YAML, or any number of wrong fields.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "scenario"
    else:
        path = find_scenario(source)
        data, where = parse_yaml(_read(path), str(path), ScenarioError), str(path)
    for text in overrides:
        data = apply_override(data, text)
    return Scenario.from_dict(data, " ".join([where, *(f"--set {text}" for text in overrides)]))


_TAKEN_BY = {"scenario": "kvsim run", "sweep": "kvsim sweep", "recipe": "kvsim import-command"}


def refuse_other_files(data: Mapping[str, Any], where: str, wanted: str) -> None:
    """Say which command takes a file of another kind, instead of every field in which the kinds differ.

    Raises
    ------
    ScenarioError
        The file's ``schema`` is another kind than that of `wanted`, or it is a model's ``config.json``.
    """
    given, kind = str(data.get("schema", wanted)), wanted.split("/")[1]
    if "schema" not in data and "model_type" in data:
        problem = Problem(where, "", "a model's config.json", wanted, "'kvsim profiles import' makes a model of it")
        raise ScenarioError(f"{where} is not a {kind}", [problem])
    if given.startswith("kvsim/") and given.split("/")[1] != kind:
        taker = _TAKEN_BY.get(given.split("/")[1], "kvsim profiles check")
        raise ScenarioError(f"{where} is not a {kind}",
                            [Problem(where, "schema", repr(given), repr(wanted), f"'{taker}' takes such files")])


@contextmanager
def naming(scenario: Scenario, field: str) -> Generator[None]:
    """Let an unknown profile be reported as the field of the scenario that names it.

    Raises
    ------
    ProfileError
        What was raised inside, with the scenario's origin and `field` where only a kind of profile was named.
    """
    try:
        yield
    except ProfileError as err:
        problems = [replace(p, where=scenario.origin, field=field) if p.where.endswith(" profile") and not p.field
                    else p for p in err.problems]
        raise ProfileError(err.message, problems) from None


def shipped_scenarios() -> dict[str, Path]:
    """Name -> path of the scenarios that come with kvsim."""
    paths = sorted((data_root() / "scenarios").glob("*.yaml"))
    return {p.stem: p for p in paths if p.read_text(encoding="utf-8").startswith(f"schema: {SCHEMA}")}


def find_scenario(source: str | Path) -> Path:
    """Path of a scenario given as a path or a shipped name."""
    shipped = shipped_scenarios()
    if str(source) in shipped:
        return shipped[str(source)]
    for path in (Path(source), data_root() / "scenarios" / f"{source}.yaml"):
        if path.is_file():
            return path
    accepted = f"a YAML file, or one of {', '.join(shipped)}"
    raise ScenarioError("no such scenario", [Problem("scenario", "", repr(str(source)), accepted,
                                                     nearest(Path(source).stem, list(shipped)))])


def _read(path: Path) -> str:
    """Text of a scenario file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        problem = Problem(str(path), "", err.strerror or type(err).__name__, "a readable YAML file")
    except UnicodeDecodeError as err:
        problem = Problem(str(path), "", f"byte {err.start} is not UTF-8", "YAML as UTF-8 text")
    raise ScenarioError(f"cannot read {path}", [problem])


def apply_override(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Plain data with one ``a.b.0.c=value`` applied; the input is not changed.

    >>> apply_override({"engine": {"kv_dtype": "bf16"}}, "engine.kv_dtype=fp8")
    {'engine': {'kv_dtype': 'fp8'}}
    """
    path, found, value = text.partition("=")
    if not found or not path:
        raise ScenarioError("cannot apply --set", [Problem("--set", "", repr(text), "path=value, e.g. seed=3")])
    parsed: Any = parse_yaml(f"value: {value}", f"--set {path}", ScenarioError)["value"]
    return _with(data, path.split("."), parsed, text)


def with_value(data: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Plain data with one field set, named by its dotted path; the input is not changed.

    >>> with_value({"tiers": [{"kind": "dram"}]}, "tiers.0.write", "lazy")
    {'tiers': [{'kind': 'dram', 'write': 'lazy'}]}
    """
    return _with(data, field.split("."), value, field)


def _with(part: Any, path: list[str], value: Any, text: str) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(part, list):
        items: list[Any] = list(part)  # pyright: ignore[reportUnknownArgumentType]
        if not head.isdigit() or int(head) > len(items):
            accepted = f"a position from 0 to {len(items)}"
            raise ScenarioError("cannot apply --set", [Problem("--set", text, repr(head), accepted)])
        at = int(head)
        return items[:at] + [_with(items[at] if at < len(items) else {}, rest, value, text)] + items[at + 1:]
    inner: dict[str, Any] = dict(part) if isinstance(part, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType]
    return {**inner, head: _with(inner.get(head), rest, value, text)}
