"""Schema of engine profiles (``engine_profiles/``): which kernels run, how fast, and what an engine version does.

The format weights are stored in never implies the format they are multiplied in: the same MXFP4 experts run
as bf16 in one engine and as fp8 in another. A profile says, dated, which compute lane serves a storage format on a
GPU and which share of the GPU's nominal rates its kernels reach.

Every figure that depends on the GPU is looked up in the same order: the exact GPU, else its architecture,
else the entry that names neither. Such a fallback must be *assumed*, with a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.figure import Bytes, Count, Figure, Frac, Profile, Seconds, Strict
from kvsim.profiles.hardware import Architecture, Lane
from kvsim.profiles.reserve import MemoryReserve

Component = Literal["gemm", "moe", "prefill_attention", "gqa_decode", "mla_decode", "state_decode", "elementwise"]
LayerPart = Literal["gqa", "mla", "compressed", "linear", "dense_mlp", "moe", "shared_experts", "norms"]
ScanForm = Literal["sum", "max"]


class Placed(Strict):
    """Where an entry holds: on named GPUs, on architectures, or (neither named) anywhere else."""

    gpus: tuple[str, ...] = ()
    architectures: tuple[Architecture, ...] = ()

    @property
    def is_fallback(self) -> bool:
        """Whether the entry names no GPU and no architecture."""
        return not self.gpus and not self.architectures

    def rank(self, gpu: str, architecture: str) -> int:
        """2 for the exact GPU, 1 for its architecture, 0 for a fallback, -1 when it does not hold."""
        if gpu in self.gpus:
            return 2
        if architecture in self.architectures:
            return 1
        return 0 if self.is_fallback else -1


P = TypeVar("P", bound=Placed)
T = TypeVar("T")


def best_placed(entries: Iterable[P], gpu: str, architecture: str) -> P | None:
    """The entry that fits a GPU best; among equals the first, None when none holds.

    Examples
    --------
    >>> best_placed([Placed(), Placed(gpus=("b300-sxm",))], "b300-sxm", "blackwell").gpus
    ('b300-sxm',)
    """
    held = [e for e in entries if e.rank(gpu, architecture) >= 0]
    return max(held, key=lambda e: e.rank(gpu, architecture), default=None)


class Speed(Placed):
    """What a kernel family reaches on a GPU.

    ``flops`` and ``bandwidth`` are shares of the lane's dense peak and of the HBM bandwidth. ``overlap`` is
    the share of the shorter of the two times that hides behind the longer (1: a clean roofline, 0: one after
    the other). ``floor`` is the least time of one call; ``overhead`` is added to every call. ``single_sm`` is the
    share of the HBM bandwidth that one multiprocessor reaches alone: given for decode attention whose tiles run in
    waves (`kvsim.steptime.waves`).
    """

    lane: Lane
    flops: Frac
    bandwidth: Frac
    overlap: Frac | None = None
    floor: Seconds | None = None
    overhead: Seconds | None = None
    single_sm: Frac | None = None

    @model_validator(mode="after")
    def _check(self) -> Speed:
        if self.is_fallback and "assumed" not in (self.flops.kind, self.bandwidth.kind):
            raise ValueError("an entry for any GPU must be assumed; accepted: kind 'assumed' with 'why' and 'range'")
        for figure in (self.flops, self.bandwidth, *(f for f in (self.overlap, self.single_sm) if f)):
            if not figure.base <= 1:
                raise ValueError(f"a share of {figure.base:g}; accepted: 0 to 1")
        if not self.flops.base or not self.bandwidth.base:
            raise ValueError("a kernel that reaches nothing; accepted: a share above 0")
        if self.single_sm is not None and not self.single_sm.base:
            raise ValueError("a single_sm of 0; accepted: a share above 0, or none")
        return self


class KernelFamily(Strict):
    """Kernels of one component for some storage formats.

    ``formats`` are weight formats for ``gemm`` and ``moe``, KV formats for attention, empty where the format
    does not matter. ``max_heads`` limits an entry of ``mla_decode`` to that many query heads a rank.
    """

    component: Component
    formats: tuple[str, ...] = ()
    kernel: str
    max_heads: Annotated[int, Field(gt=0)] | None = None
    speeds: tuple[Speed, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> KernelFamily:
        if self.component not in ("gemm", "moe") and any(s.overlap for s in self.speeds):
            raise ValueError(f"overlap on {self.component}; accepted: on gemm and moe only")
        if self.component not in ("gqa_decode", "mla_decode") and any(s.single_sm for s in self.speeds):
            raise ValueError(f"single_sm on {self.component}; accepted: on gqa_decode and mla_decode only")
        if self.max_heads is not None and self.component != "mla_decode":
            raise ValueError(f"max_heads on {self.component}; accepted: on mla_decode only")
        return self


class ScanLaw(Placed):
    """Chunked prefill of constant-state attention: seconds of one layer for T tokens in c sequences on h heads.

    A serial scan over chunks takes ``serial`` s a token of one sequence, a parallel kernel ``per_head`` s a token
    and head. ``form`` "sum" adds them, "max" takes the longer.
    """

    kernel: str
    serial: Seconds
    per_head: Seconds
    form: ScanForm = "sum"


class TimeOn(Placed):
    """A time on a GPU."""

    time: Seconds


class Point(Strict):
    """One measured collective: bytes of the message and the time it took."""

    message: Bytes
    time: Seconds


class AllReduce(Placed):
    """Measured all-reduce over ``ranks`` GPUs of one scale-up domain, by message size, ascending."""

    ranks: Annotated[int, Field(gt=1)]
    points: tuple[Point, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _check(self) -> AllReduce:
        sizes = [p.message.base for p in self.points]
        if sorted(set(sizes)) != sizes:
            raise ValueError("message sizes out of order; accepted: ascending, each once")
        return self


class Collectives(Strict):
    """Times of collectives.

    ``latency`` and ``bus_efficiency`` (share of the scale-up bandwidth) serve where no table holds;
    ``all_to_all_latency`` is that of one dispatch or combine; ``hop`` that of one pipeline hop.
    """

    all_reduce: tuple[AllReduce, ...] = ()
    latency: Seconds
    bus_efficiency: Frac
    all_to_all_latency: Seconds
    all_to_all_efficiency: Frac
    hop: Seconds


class Overheads(Strict):
    """Times that are neither FLOPs nor bytes.

    ``launch`` is the least time of one kernel inside a CUDA graph, ``launches`` how many kernels a layer part
    has. Above ``graph_max_tokens`` scheduled tokens with a prefill among them, the host launches every layer
    itself: such a step takes at least ``eager_part`` for each part. Smaller steps with a prefill run piecewise
    graphs, between which the host launches attention: at least ``piecewise_part`` for each part. ``host_step`` and
    ``host_per_sequence`` are the scheduler, input preparation and output processing of one step: added to it when
    scheduling is synchronous; with asynchronous scheduling the step takes at least as long as they do.
    ``cached_context_part`` is added to ``eager_part`` when a chunk continues or hits computed context, which such
    layers treat in launches of their own. ``host_sync_part`` is the time the GPU waits in each part of a prefill step
    whose kernels need a result on the host first. ``host_per_prefill_token`` is the host's work a prompt token (block
    tables, hashes). ``host_step_per_group`` and ``host_per_sequence_group`` are added to ``host_step`` and
    ``host_per_sequence`` for every group of KV blocks beyond the first (hybrids keep several block tables).
    ``expert_imbalance`` is the busiest rank's share of expert work over the mean under expert parallelism.
    ``latent_output_sharded``: ranks share the projection out of a latent expert width when they decode.
    """

    launch: tuple[TimeOn, ...] = Field(min_length=1)
    launches: dict[LayerPart, Count]
    graph_max_tokens: Count
    eager_part: dict[LayerPart, Seconds]
    piecewise_part: dict[LayerPart, Seconds] = Field(default_factory=dict[LayerPart, Figure])
    cached_context_part: dict[LayerPart, Seconds] = Field(default_factory=dict[LayerPart, Figure])
    host_sync_part: dict[LayerPart, Seconds] = Field(default_factory=dict[LayerPart, Figure])
    host_step: Seconds
    host_per_sequence: Seconds
    host_per_prefill_token: Seconds | None = None
    host_step_per_group: Seconds | None = None
    host_per_sequence_group: Seconds | None = None
    expert_imbalance: Frac
    latent_output_sharded: bool = False


class TokenLimit(Strict):
    """A token budget for GPUs with at least so much usable HBM; a 0 B entry serves the rest."""

    hbm_at_least: Bytes
    tokens: Count


class EngineDefaults(Strict):
    """What the engine does unless told otherwise.

    ``log_formula`` is how "GPU KV cache size" is printed for hybrids: ``product`` (concurrency x length) or
    ``per-group`` (blocks / groups x block). ``retention_interval`` counts tokens between kept state
    checkpoints; absent means one at every block.
    """

    gpu_memory_utilization: Frac
    max_num_batched_tokens: tuple[TokenLimit, ...] = Field(min_length=1)
    max_num_seqs: Count
    log_formula: Literal["product", "per-group"]
    retention_interval: Count | None = None
    block_tokens: Count
    async_scheduling: bool

    def batched_tokens(self, hbm_bytes: float) -> int:
        """Default token budget of a step on a GPU with so many usable bytes."""
        fitting = [t for t in self.max_num_batched_tokens if t.hbm_at_least.base <= hbm_bytes]
        return int(max(fitting, key=lambda t: t.hbm_at_least.base).tokens.base)

    @model_validator(mode="after")
    def _check(self) -> EngineDefaults:
        if not any(t.hbm_at_least.base == 0 for t in self.max_num_batched_tokens):
            raise ValueError("no token limit for small GPUs; accepted: one entry with hbm_at_least 0 B")
        return self


class SupportFact(Strict):
    """Whether an engine has a ``feature``, as of a ``version`` and ``date``; ``note`` may say since when."""

    feature: str
    supported: bool
    version: str
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    source: str
    note: str = ""


class EngineProfile(Profile):
    """One engine at one time (``kvsim/engine/1``).

    ``base`` names a profile whose kernels, scans, overheads, collectives and memory reserve hold where this one
    states none; `resolve_base` joins the two.
    """

    schema_: Literal["kvsim/engine/1"] = Field(alias="schema")
    engine: Literal["vllm", "sglang", "trtllm", "ideal"]
    version: str
    as_of: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    base: str = ""
    defaults: EngineDefaults
    kernels: tuple[KernelFamily, ...] = ()
    scans: tuple[ScanLaw, ...] = ()
    overheads: Overheads | None = None
    collectives: Collectives | None = None
    memory: MemoryReserve | None = None
    support: tuple[SupportFact, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> EngineProfile:
        for fact in self.support:
            if fact.source not in self.sources:
                raise ValueError(f"support.{fact.feature} cites {fact.source!r}; "
                                 f"accepted: {', '.join(self.sources)}")
        parts = {"overheads": self.overheads, "collectives": self.collectives, "memory": self.memory,
                 "scans": self.scans}
        lacking = [name for name, part in parts.items() if not part]
        if not self.base and lacking:
            raise ValueError(f"a profile without base lacks {', '.join(lacking)}; accepted: all of {', '.join(parts)}")
        return self

    def families(self, component: Component, fmt: str = "", heads: int = 0) -> list[KernelFamily]:
        """Kernel families of a component for a storage format and a number of query heads a rank."""
        found = [k for k in self.kernels if k.component == component and (not k.formats or fmt in k.formats)]
        fitting = [k for k in found if k.max_heads is None or heads <= k.max_heads]
        return sorted(fitting, key=lambda k: k.max_heads or 1 << 30)

    def speed(self, component: Component, fmt: str, place: tuple[str, str], heads: int = 0) -> Speed:
        """What a component's kernel reaches.

        Parameters
        ----------
        component : str
            Kernel family.
        fmt : str
            Storage format of the weights, or of the KV cache.
        place : (str, str)
            GPU profile's name and its architecture.
        heads : int
            Query heads a rank (``mla_decode`` only).

        Raises
        ------
        ProfileError
            No entry for the component and format holds on that GPU.
        """
        families = self.families(component, fmt, heads)
        narrow = [k for k in families if k.max_heads == families[0].max_heads]
        found = best_placed((s for k in narrow for s in k.speeds), *place)
        if found is None:
            raise self._no_speed(component, fmt, place)
        return found

    def scan(self, place: tuple[str, str]) -> ScanLaw:
        """The chunked-prefill law of constant-state attention on a GPU."""
        return self._placed(self.scans, "scans", place)

    def launch_s(self, place: tuple[str, str]) -> float:
        """Least time [s] of one kernel inside a CUDA graph."""
        return self._placed(self.costs.launch, "overheads.launch", place).time.base

    @property
    def costs(self) -> Overheads:
        """Overheads, from the base if it has been resolved."""
        return self._own("overheads", self.overheads)

    @property
    def links(self) -> Collectives:
        """Collectives, from the base if it has been resolved."""
        return self._own("collectives", self.collectives)

    @property
    def reserve(self) -> MemoryReserve:
        """What is subtracted from HBM, from the base if it has been resolved."""
        return self._own("memory", self.memory)

    def _own(self, field: str, part: T | None) -> T:
        if part is None:
            raise ProfileError(f"engine profile {self.name!r} still waits for its base",
                               [Problem(self.name, field, "", f"resolve_base with its base {self.base!r}")])
        return part

    def _placed(self, entries: Sequence[P], field: str, place: tuple[str, str]) -> P:
        found = best_placed(entries, *place)
        if found is None:
            raise ProfileError(f"engine profile {self.name!r} does not cover {place[0]}",
                               [Problem(self.name, field, place[0], "an entry for it or one for any GPU")])
        return found

    def _no_speed(self, component: Component, fmt: str, place: tuple[str, str]) -> ProfileError:
        known = sorted({f for k in self.kernels if k.component == component for f in k.formats})
        problem = Problem(self.name, f"kernels.{component}", f"{fmt} on {place[0]}",
                          ", ".join(known) or "a kernel family of that component", nearest(fmt, known))
        return ProfileError(f"engine profile {self.name!r} has no {component} kernel for {fmt!r} on {place[0]}",
                            [problem])


def resolve_base(profile: EngineProfile, get: Callable[[str], EngineProfile]) -> EngineProfile:
    """Join a profile with its base, and the base with its own.

    Own kernel families come first, so that an own entry wins over an equally exact one of the base; scans,
    overheads and collectives are taken whole from whoever states them.

    Parameters
    ----------
    profile : EngineProfile
        The profile to complete; returned as it is when it has no base.
    get : callable
        Finds a profile by name.

    Raises
    ------
    ProfileError
        The bases form a ring, or both define a source of the same key differently.
    """
    return _join(profile, get, (profile.name,))


def _join(profile: EngineProfile, get: Callable[[str], EngineProfile], seen: tuple[str, ...]) -> EngineProfile:
    """Complete one profile; `seen` are the names on the way to it."""
    if not profile.base:
        return profile
    if profile.base in seen:
        raise ProfileError(f"engine profile {profile.name!r} is its own base",
                           [Problem(profile.name, "base", profile.base, "a profile outside " + ", ".join(seen))])
    base = _join(get(profile.base), get, (*seen, profile.base))
    clash = sorted(k for k, s in profile.sources.items() if base.sources.get(k, s) != s)
    if clash:
        raise ProfileError(f"engine profiles {profile.name!r} and {base.name!r} disagree on sources",
                           [Problem(profile.name, f"sources.{k}", k, "another key, or the base's text") for k in clash])
    return profile.model_copy(update={
        "base": "", "sources": base.sources | profile.sources,
        "kernels": profile.kernels + base.kernels, "scans": profile.scans + base.scans,
        "overheads": profile.overheads or base.overheads, "collectives": profile.collectives or base.collectives,
        "memory": profile.memory or base.memory,
        "support": profile.support + base.support,
    })
