"""Step time from physics: FLOPs and bytes of every component over the rates its kernels were measured to reach.

One step runs every component once, prefill chunks and decoding sequences together, so weights are read once for
all of its tokens. A component takes ``max(FLOPs / (peak x share), bytes / (bandwidth x share), floor)``; components
follow each other. Collectives, kernel launches and the host are added. Only attention over resident context depends
on the context, and in straight lines, so that a step is a maximum of a few affine functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from kvsim.layout import Layout
from kvsim.memory.geometry import KvSpec, kv_geometry
from kvsim.memory.weights import format_bytes
from kvsim.profiles.engine_profile import EngineProfile, LayerPart
from kvsim.profiles.figure import Figure
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.model import ModelProfile
from kvsim.steptime.allreduce import all_reduce_curve
from kvsim.steptime.base import Piece, Seconds, StepBatch
from kvsim.steptime.envelope import sum_of_maxima, upper_envelope
from kvsim.steptime.flat import FlatStep
from kvsim.steptime.parts import Host, Links, Rates, Scan
from kvsim.steptime.rates import Cost, Rate, peak_flops, rate_of
from kvsim.steptime.work import (
    ACTIVATION_BYTES,
    DecodeWork,
    ExpertWork,
    PrefillWork,
    Work,
    work_of,
)

_NARROW_FORMATS = ("fp8", "int8", "fp4", "mxfp4", "nvfp4")
_CONTEXT_PARTS = ("gqa", "mla", "compressed")


class _Load(NamedTuple):
    """What one component does in one step."""

    name: str
    rate: Rate
    calls: float
    flops: float
    num_bytes: float


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Step time of one replica (a `kvsim.steptime.base.StepTimeModel`); made by `build_step_time`.

    Two batches that compare equal give equal pieces; batches of decoding sequences alone are kept in a
    small cache.
    """

    work: Work
    rates: Rates
    scans: tuple[Scan, ...]
    links: Links
    host: Host
    expert_imbalance: float
    _decode_only: dict[int, tuple[Piece, ...]] = field(default_factory=dict[int, tuple[Piece, ...]])
    _flat: list[FlatStep] = field(default_factory=list[FlatStep])

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Affine pieces (seconds, seconds per resident context token) of the step's duration.

        Parameters
        ----------
        batch : StepBatch
            What the step computes.

        Returns
        -------
        tuple of (float, float)
            At least one; the step lasts the largest of ``a + b x context``.
        """
        if batch[0]:
            return self.flat.pieces(batch)
        found = self._decode_only.get(batch[4])
        if found is None:
            found = self.flat.pieces(batch)
            if found[0] == (self.host.least_s(batch), 0.0):
                found = upper_envelope(found)
            self._decode_only[batch[4]] = found
        return found

    @property
    def flat(self) -> FlatStep:
        """The same step from flat numbers, made at the first call."""
        if not self._flat:
            parts = self.work, self.rates, self.scans, self.links, self.host
            self._flat.append(FlatStep(parts, self.expert_imbalance, self._lines))
        return self._flat[0]

    def prefill_seconds(self) -> Seconds:
        """How long steps that prefill last; see `kvsim.steptime.base.Direct`."""
        return self.flat.seconds

    def costs(self, batch: StepBatch, context_tokens: int) -> tuple[Cost, ...]:
        """The same duration by component; the costs add up to it.

        Parameters
        ----------
        batch : StepBatch
            What the step computes.
        context_tokens : int
            Tokens that the decoding sequences attend to, summed.
        """
        loads = [*self._loads(batch), *self._context_loads(batch.decode_seqs, context_tokens)]
        costs = [load.rate.cost(load.name, *load[2:]) for load in loads]
        costs += [Cost("state_prefill", compute_s=self._scan_s(batch)),
                  Cost("collectives", link_s=self.links.seconds(batch.prefill_tokens + batch.decode_seqs, batch)),
                  Cost("launches", fixed_s=self.host.launches_s),
                  Cost("host_sync", fixed_s=self.host.waited_s(batch))]
        if not self.host.asynchronous:
            costs.append(Cost("host", fixed_s=self.host.own_s(batch)))
        missing = self.host.least_s(batch) - sum(c.total_s for c in costs)
        return (*costs, Cost("host_bound", fixed_s=max(0.0, missing)))

    def shares(self, batch: StepBatch, context_tokens: int) -> dict[str, float]:
        """Seconds of the step by what they are spent on.

        Returns
        -------
        dict of str to float
            ``hbm_bandwidth``, ``compute``, ``collectives``, ``host`` [s]; their sum is the step's duration. A
            component counts under the longer of its compute and memory time; floors, launches and overheads
            count as ``host``.
        """
        costs = self.costs(batch, context_tokens)
        return {
            "hbm_bandwidth": sum(c.memory_s for c in costs),
            "compute": sum(c.compute_s for c in costs),
            "collectives": sum(c.link_s for c in costs),
            "host": sum(c.fixed_s for c in costs),
        }

    def rank_step_s(self, batch: StepBatch, own_s: float, mean_rows: int) -> float:
        """Duration [s] of a step of one attention-DP rank when the ranks' loads differ.

        Parameters
        ----------
        batch : StepBatch
            What this rank computes.
        own_s : float
            How long it would take if all ranks computed as much [s].
        mean_rows : int
            Tokens that a rank computes on average.

        Notes
        -----
        Experts and their exchange work for all ranks together, so their time follows the mean. Attention and dense
        layers are the rank's own. Where the host decides, a rank with less than the mean is taken as slightly too slow.
        """
        own = self.shared_s(batch.prefill_tokens + batch.decode_seqs)
        return max(own_s - own + self.shared_s(mean_rows), self.host.least_s(batch))

    def shared_s(self, rows: int) -> float:
        """Time [s] of experts and their exchange for `rows` tokens a rank; 0 without experts."""
        if self.rates.experts is None or self.work.experts is None:
            return 0.0
        load = self._expert_load(self.work.experts, *self.rates.experts, rows)
        return load.rate.cost(load.name, *load[2:]).total_s + self.links.per_row_s * rows

    def floor_s(self, batch: StepBatch, context_tokens: int) -> float:
        """Duration [s] below which the step would break physics.

        Notes
        -----
        ``max(sum of FLOPs / dense peak, sum of bytes / nominal HBM bandwidth)``: every component at the peak of
        the lane that the engine uses for it, all compute hidden behind all traffic or the reverse, no
        communication, no launches. Weights, KV and state are counted, activations are not.
        """
        loads = [load for load in self._loads(batch) if load.rate is not self.rates.elementwise]
        loads += self._context_loads(batch.decode_seqs, context_tokens)
        compute = sum(load.flops * load.rate.peak_flop_s for load in loads)
        compute += sum(scan.peak_s for scan in self.scans) * batch.prefill_tokens
        return max(compute, sum(load.num_bytes * load.rate.peak_byte_s for load in loads))

    def _loads(self, batch: StepBatch) -> Iterator[_Load]:
        """What every component but context attention does."""
        yield from self._row_loads(batch.prefill_tokens + batch.decode_seqs)
        yield from self._head_loads(batch.decode_seqs + batch.prefill_chunks)
        yield from self._prefill_loads(batch)
        yield from self._state_loads(batch.decode_seqs)

    def _row_loads(self, rows: int) -> Iterator[_Load]:
        """Components that see all tokens of a step."""
        for rate, params, num_bytes in self.rates.dense:
            yield _Load("dense", rate, 1.0, 2.0 * params * rows, num_bytes)
        if self.rates.experts is not None and self.work.experts is not None:
            yield self._expert_load(self.work.experts, *self.rates.experts, rows)
        yield _Load("elementwise", self.rates.elementwise, 1.0, 0.0, self.work.elementwise_bytes_per_row * rows)

    def _head_loads(self, sampled: int) -> Iterator[_Load]:
        """The output head, which sees one token a request."""
        rate, num_bytes = self.rates.head
        yield _Load("lm_head", rate, 1.0, 2.0 * self.work.head_params * sampled, num_bytes)

    def _state_loads(self, seqs: int) -> Iterator[_Load]:
        """Constant states of decoding sequences."""
        if seqs:
            for state in self.work.states:
                yield _Load("state_decode", self.rates.state, state.layers, 0.0,
                            state.layers * state.bytes_per_seq * seqs)

    def _expert_load(self, experts: ExpertWork, rate: Rate, num_bytes: float, rows: int) -> _Load:
        """Distinct experts are read once; the busiest rank waits for nobody."""
        rows_seen = rows * experts.row_factor
        busiest = self.expert_imbalance
        return _Load("experts", rate, experts.layers, experts.flops_per_row * rows_seen * busiest,
                     min(1.0, experts.touched_frac(rows_seen) * busiest) * num_bytes)

    def _prefill_loads(self, batch: StepBatch) -> Iterator[_Load]:
        """Attention of all chunks."""
        if batch.prefill_tokens:
            for part, attention in zip(self.work.prefill, self.rates.prefill, strict=True):
                yield from self._part_loads(part, attention, batch)

    def _part_loads(self, part: PrefillWork, attention: Rate, batch: StepBatch) -> Iterator[_Load]:
        """Attention of the chunks, and expansion of the context that earlier steps computed."""
        pairs = batch.prefill_pairs / part.ratio
        if part.cap:
            pairs = min(pairs, batch.prefill_tokens * part.cap)
        yield _Load("prefill_attention", attention, part.layers, part.layers * part.flops_per_pair * pairs,
                    part.layers * part.bytes_per_context * batch.prefill_context_tokens)
        cached = part.layers * max(0, batch.prefill_context_tokens - batch.prefill_tokens)
        if part.expand_flops and cached:
            yield _Load("expansion", self.rates.expand, 1.0, part.expand_flops * cached, part.expand_bytes * cached)

    def _scan_s(self, batch: StepBatch) -> float:
        """Chunked prefill of all constant-state layers."""
        if not batch.prefill_tokens:
            return 0.0
        return sum(scan.seconds(batch.prefill_tokens, batch.prefill_chunks) for scan in self.scans)

    def _context_loads(self, seqs: int, context_tokens: int) -> Iterator[_Load]:
        """What attention of decoding sequences does at a context."""
        if seqs:
            for part, rate in zip(self.work.decode, self.rates.decode, strict=True):
                num = -(-seqs // part.rows)
                yield _Load("decode_attention", rate.in_waves(num * part.kv_heads), part.layers,
                            part.layers * (part.flops_per_token * context_tokens + part.flops_per_seq * num),
                            part.layers * (part.bytes_per_token * context_tokens + part.bytes_per_seq * num))

    def _lines(self, seqs: int) -> tuple[Piece, ...]:
        """Attention of `seqs` decoding sequences as lines over their context."""
        pairs = zip(self.work.decode, self.rates.decode, strict=True) if seqs else ()
        return sum_of_maxima([_part_lines(part, rate, seqs) for part, rate in pairs])


StepTime = TypeVar("StepTime", bound=RooflineStepTime)


def with_parts(model: StepTime, **changes: Any) -> StepTime:
    """A model of the same class with other parts (fields by name) and empty caches."""
    kept = {f.name: getattr(model, f.name) for f in fields(model) if not f.name.startswith("_")}
    return type(model)(**{**kept, **changes})


def _part_lines(part: DecodeWork, rate: Rate, seqs: int) -> tuple[Piece, ...]:
    """Compute, memory and floor of one kind of layer, each a line over context."""
    seqs = -(-seqs // part.rows)
    rate = rate.in_waves(seqs * part.kv_heads)
    extra = part.layers * rate.overhead_s
    compute, memory = part.layers * rate.flop_s, part.layers * rate.byte_s
    return upper_envelope([
        (compute * part.flops_per_seq * seqs + extra, compute * part.flops_per_token),
        (memory * part.bytes_per_seq * seqs + extra, memory * part.bytes_per_token),
        (part.layers * rate.floor_s + extra, 0.0),
    ])


def build_step_time(model: ModelProfile, gpu: GpuProfile, layout: Layout, kv_dtype: str, engine: EngineProfile,
                    async_scheduling: bool) -> RooflineStepTime:
    """Step-time model of one replica (with attention data parallelism: of one rank's batch).

    Parameters
    ----------
    model, gpu : ModelProfile, GpuProfile
        What is served, on what.
    layout : Layout
        How the model is spread over GPUs.
    kv_dtype : str
        KV cache format (``bf16``, ``fp8``, ``fp8_ds_mla``).
    engine : EngineProfile
        Which kernels run and what they reach; its base must have been resolved.
    async_scheduling : bool
        Whether the host works on the next step while the GPU runs this one.

    Returns
    -------
    RooflineStepTime
        A `StepTimeModel` that can also tell its parts, shares and physics floor.

    Raises
    ------
    ProfileError
        The engine has no kernel for one of the model's formats on this GPU.

    Notes
    -----
    Assumptions, and when they are wrong. Components run one after the other (engines overlap shared with routed
    experts, and communication with compute). Sliding windows and chosen sets (sparse attention) count in full for every
    decoding sequence: too much while contexts are shorter than the window. Routing is uniform: real routing
    touches fewer experts in small batches, and random weights make it collapse. Pipeline stages run one after the
    other; `kvsim.steptime.pipeline.pipelined` keeps several batches in flight and adds the bytes of the hops.
    Attention-DP ranks carry equal loads. Chunks of one step are about equally long.

    Sources: roofline expressions re-derived from the models' equations (bases: the scaling book of the JAX team,
    NVIDIA's aiconfigurator); rates from measured kernel tables, cited in the engine profile.
    """
    work = work_of(model, layout, kv_dtype)
    place = (gpu.name, gpu.architecture)
    return RooflineStepTime(
        work=work,
        rates=_rates(work, gpu, layout, kv_dtype, engine),
        scans=_scans(work, gpu, engine),
        links=_links(work, gpu, layout, engine),
        host=replace(_host(work, engine, _extra_groups(model, layout, kv_dtype, engine)),
                     launches_s=engine.launch_s(place) * _paid(work, engine.costs.launches),
                     asynchronous=async_scheduling),
        expert_imbalance=engine.costs.expert_imbalance.base if layout.ep > 1 else 1.0,
    )


def _host(work: Work, engine: EngineProfile, extra_groups: int) -> Host:
    """What the host costs, its launches inside graphs left out; scheduling is synchronous."""
    costs = engine.costs
    return Host(
        launches_s=0.0, graph_max_tokens=costs.graph_max_tokens.base, eager_s=_paid(work, costs.eager_part),
        piecewise_s=_paid(work, costs.piecewise_part), context_s=_paid(work, costs.cached_context_part),
        sync_s=_paid(work, costs.host_sync_part),
        step_s=costs.host_step.base + extra_groups * _optional(costs.host_step_per_group),
        per_seq_s=costs.host_per_sequence.base + extra_groups * _optional(costs.host_per_sequence_group),
        per_token_s=_optional(costs.host_per_prefill_token), asynchronous=False)


def _optional(figure: Figure | None) -> float:
    """A figure in base units, 0 where a profile leaves it out."""
    return 0.0 if figure is None else figure.base


def _paid(work: Work, price: Mapping[LayerPart, Figure]) -> float:
    """Prices of all parts of all layers, summed; a part without a price is free."""
    return sum(work.parts.get(part, 0) * figure.base for part, figure in price.items())


def _extra_groups(model: ModelProfile, layout: Layout, kv_dtype: str, engine: EngineProfile) -> int:
    """Groups of KV blocks beyond the first; 0 where the engine profile does not price them."""
    if engine.costs.host_step_per_group is None and engine.costs.host_per_sequence_group is None:
        return 0
    return max(0, len(kv_geometry(model, KvSpec(layout, kv_dtype)).groups) - 1)


def _rates(work: Work, gpu: GpuProfile, layout: Layout, kv_dtype: str, engine: EngineProfile) -> Rates:
    """Look every kernel up."""
    bf16, group = rate_of(engine, gpu, "gemm", "bf16"), work.int4_group_size
    dense = [(rate_of(engine, gpu, "gemm", fmt), params, params * format_bytes(fmt, group))
             for fmt, params in work.dense_params.items()]
    if work.latent_params:
        read = (1.0 + 1.0 / layout.tp) / 2.0 if engine.costs.latent_output_sharded else 1.0
        dense.append((bf16, work.latent_params, work.latent_params * format_bytes("bf16", group) * read))
    experts = work.experts
    return Rates(
        dense=tuple(dense),
        head=(rate_of(engine, gpu, "gemm", work.head_fmt), work.head_params * format_bytes(work.head_fmt, group)),
        experts=None if experts is None else (
            rate_of(engine, gpu, "moe", experts.fmt), experts.params * format_bytes(experts.fmt, group)),
        prefill=tuple(rate_of(engine, gpu, "prefill_attention", "bf16" if part.bf16_inputs else kv_dtype)
                      for part in work.prefill),
        expand=bf16,
        decode=tuple(rate_of(engine, gpu, part.component, kv_dtype, part.heads) for part in work.decode),
        state=rate_of(engine, gpu, "state_decode"),
        elementwise=rate_of(engine, gpu, "elementwise"),
    )


def _scans(work: Work, gpu: GpuProfile, engine: EngineProfile) -> tuple[Scan, ...]:
    """Chunked-prefill law of every kind of constant-state layer."""
    if not work.states:
        return ()
    law = engine.scan((gpu.name, gpu.architecture))
    peak_s = 1.0 / peak_flops(gpu, "bf16")
    return tuple(Scan(s.layers * law.serial.base, s.layers * law.per_head.base * s.scan_heads, law.form == "max",
                      s.layers * s.scan_flops_per_token * peak_s) for s in work.states)


def _links(work: Work, gpu: GpuProfile, layout: Layout, engine: EngineProfile) -> Links:
    """Collectives of a layout: two all-reduces a layer and one for the embedding under TP; expert exchange under DP."""
    links, bandwidth = engine.links, gpu.scale_up.bandwidth.base
    experts, layers = work.experts, work.parts.get("norms", 0)
    exchanged = experts.layers if experts is not None and layout.dp > 1 else 0
    row_bytes = work.hidden * ACTIVATION_BYTES
    per_row = 0.0
    if experts is not None and exchanged:
        per_row += exchanged * _dispatch_bytes(experts, layout) / (bandwidth * links.all_to_all_efficiency.base)
    return Links(
        reduce=all_reduce_curve(links, gpu, layout.tp),
        reduce_calls=2 * layers - exchanged + 1 if layout.tp > 1 else 0,
        row_bytes=row_bytes,
        fixed_s=(layout.pp - 1) * links.hop.base + 2 * exchanged * links.all_to_all_latency.base,
        per_row_s=per_row,
        exchange=all_reduce_curve(links, gpu, layout.dcp),
        exchange_calls=sum(work.parts.get(p, 0) for p in _CONTEXT_PARTS) if layout.dcp > 1 else 0,
        exchange_bytes_per_seq=work.exchanged_bytes_per_seq / max(1, sum(work.parts.get(p, 0) for p in _CONTEXT_PARTS)),
        per_context_s=work.gathered_bytes_per_context / (bandwidth * links.bus_efficiency.base),
    )


def _dispatch_bytes(experts: ExpertWork, layout: Layout) -> float:
    """Bytes one row sends to remote experts and gets back: k x width x (dispatch + combine) x remote share.

    Without EP every rank holds a part of every expert: rows are gathered from, and results scattered to, all DP ranks.
    """
    if layout.ep == 1:
        return 2.0 * ACTIVATION_BYTES * experts.width * (layout.dp - 1)
    sent = 1.0 if experts.fmt in _NARROW_FORMATS else ACTIVATION_BYTES
    return experts.chosen * experts.width * (sent + ACTIVATION_BYTES) * (layout.ep - 1) / layout.ep
