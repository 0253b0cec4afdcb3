"""Hardware, layout, engine and tiers of a replica."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    model_serializer,
    model_validator,
)

from kvsim.scenario.parts import (
    Bytes,
    BytesPerSecond,
    Frac,
    NonNegative,
    Part,
    Positive,
    PositiveSeconds,
    Seconds,
    Tokens,
    TokensOrZero,
    quantity,
)

AcceptedFrac = Annotated[float, Field(ge=0, le=1)]


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


class MeasuredDecode(Part):
    """Steps of decoding sequences alone: ``times_s`` has a row a number of sequences, a column a context of each."""

    sequences: tuple[Positive, ...]
    context_tokens: tuple[TokensOrZero, ...]
    times_s: tuple[tuple[PositiveSeconds, ...], ...]


class MeasuredPrefill(Part):
    """Steps of prefill alone: ``times_s`` has a row a number of tokens, a column the tokens computed before them."""

    tokens: tuple[Tokens, ...]
    offset_tokens: tuple[TokensOrZero, ...]
    times_s: tuple[tuple[PositiveSeconds, ...], ...]


class TableStep(Part):
    """Measured step times instead of the physics model; the grids cover all that the engine's limits allow."""

    kind: Literal["table"]
    decode: MeasuredDecode
    prefill: MeasuredPrefill


GivenStep = Annotated[LinearStep | TableStep, Field(discriminator="kind")]
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
    expected_tokens: TokensOrZero = 0

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
    ``draft_expert_reuse``: share of a draft token's experts that the tokens before it have chosen in the same step,
    beyond chance; 0 is the upper bound of what verification reads.
    """

    profile: str = "vllm-day0"
    kv_dtype: Literal["bf16", "fp8", "fp8_ds_mla"] = "bf16"
    gpu_memory_utilization: Frac | None = None
    max_model_len: Tokens | None = None
    max_num_batched_tokens: Tokens | None = None
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
    draft_expert_reuse: AcceptedFrac = 0.0
    kv_bytes_per_gpu: Bytes | None = None
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    block_tokens: Tokens | None = None
    step_time: GivenStep | None = None
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

    ``shared``: this part of every replica is one pool for all of them, of ``replicas`` times the capacity, whose blocks
    are striped over the nodes; only the last tier can be. What other nodes keep goes over the network,
    ``network_bandwidth_per_gpu`` and ``network_latency_s`` (None: the node's network cards as RDMA uses them).
    """

    kind: Literal["dram", "nvme", "pool"]
    capacity: Annotated[float, quantity("B", "B"), Field(ge=0)]
    preset: str | None = None
    write: Literal["eager", "lazy", "on-eviction", "on-reuse", "none"] | None = None
    reuse_threshold: Positive = 2
    load_rule: Literal["always_load", "break_even"] = "always_load"
    load: Literal["async", "layerwise"] | None = None
    latency_s: Seconds | None = None
    offline_from_s: Seconds | None = None
    read_bandwidth_per_gpu: BytesPerSecond | None = None
    write_bandwidth_per_gpu: BytesPerSecond | None = None
    shared: bool = False
    network_bandwidth_per_gpu: BytesPerSecond | None = None
    network_latency_s: Seconds | None = None
