"""What one GPU computes and reads in a step, counted from a model's shapes and a layout; no speeds here.

All amounts are those of one GPU and of all layers together, pipeline stages one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvsim.layout import Layout
from kvsim.memory.layers import index_key_bytes, kv_bytes_per_token, state_bytes, window_bytes
from kvsim.memory.weights import expert_shards, rank_attention_params
from kvsim.profiles.model import (
    Attention,
    CompressedAttention,
    GdnAttention,
    GqaAttention,
    KdaAttention,
    MambaAttention,
    MlaAttention,
    ModelProfile,
)
from kvsim.profiles.parameters import component_params, num_moe_layers

ACTIVATION_BYTES = 2.0
"""Bytes of one activation element: engines keep activations in bf16."""

SCAN_CHUNK = 64
"""Tokens of a chunk of the parallel form of constant-state attention (flash-linear-attention's kernels)."""

LAW_STATE = 128 * 128
"""State elements of the heads that chunked-prefill laws were measured with."""


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Routed experts of all layers on one rank.

    ``params`` are all experts that the rank holds, ``flops_per_row`` 2 x the parameters a token takes of
    them; ``num_experts`` and ``chosen`` set how many experts a batch touches. ``row_factor`` is how many times
    the attention rank's own tokens the experts' group sees; ``width`` that of a dispatched token. ``independent_frac``
    is the share of the tokens that choose for themselves: below 1 where tokens of one sequence choose alike.
    """

    layers: int
    num_experts: int
    chosen: int
    fmt: str
    params: float
    flops_per_row: float
    row_factor: float
    width: int
    independent_frac: float = 1.0

    def touched_frac(self, rows: float) -> float:
        """Expected share of experts that at least one of `rows` tokens chose: 1 - (1 - k/n)^(rows x independent_frac).

        Notes
        -----
        Uniform routing, and independent unless said: an upper bound, since real routing is skewed and neighbours agree.

        Examples
        --------
        >>> k3 = ExpertWork(92, 896, 16, "mxfp4", 1.0, 1.0, 1.0, 3584)
        >>> round(896 * k3.touched_frac(8)), round(896 * k3.touched_frac(64))
        (120, 613)
        """
        return 1.0 - (1.0 - self.chosen / self.num_experts) ** (rows * self.independent_frac)


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Attention of decoding sequences in ``layers`` equal layers: a part per context token, a part per sequence.

    With drafts a batch counts ``rows`` rows for every sequence (`kvsim.steptime.drafting`).
    """

    component: Literal["gqa_decode", "mla_decode"]
    heads: int
    layers: int
    bytes_per_token: float
    flops_per_token: float
    bytes_per_seq: float = 0.0
    flops_per_seq: float = 0.0
    kv_heads: int = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """Attention of prefill chunks in ``layers`` equal layers; ``bf16_inputs`` whatever the KV format.

    FLOPs are ``flops_per_pair`` x min(pairs / ``ratio``, tokens x ``cap``) (``cap`` 0: all pairs), bytes
    ``bytes_per_context`` a context token; ``expand_*`` are spent on every context token computed before.
    """

    layers: int
    flops_per_pair: float
    bytes_per_context: float
    cap: int = 0
    ratio: int = 1
    expand_flops: float = 0.0
    expand_bytes: float = 0.0
    bf16_inputs: bool = False


@dataclass(frozen=True, slots=True)
class StateWork:
    """Constant-state attention: bytes a decoding sequence moves, heads a rank scans in prefill."""

    layers: int
    bytes_per_seq: float
    scan_heads: float
    scan_flops_per_token: float


@dataclass(frozen=True, slots=True)
class Work:
    """Everything one GPU does in a step, by component."""

    dense_params: dict[str, float]
    latent_params: float
    head_params: float
    head_fmt: str
    experts: ExpertWork | None
    decode: tuple[DecodeWork, ...]
    prefill: tuple[PrefillWork, ...]
    states: tuple[StateWork, ...]
    elementwise_bytes_per_row: float
    parts: dict[str, int]
    hidden: int
    gathered_bytes_per_context: float
    exchanged_bytes_per_seq: float
    int4_group_size: int


def work_of(model: ModelProfile, layout: Layout, kv_dtype: str) -> Work:
    """Count the work of one GPU.

    Parameters
    ----------
    model : ModelProfile
        The model.
    layout : Layout
        How it is spread. Heads, MLPs and the LM head are divided by TP; a latent's down-projections, routers,
        indexers and latent expert projections are repeated on every rank; experts are divided by EP, else TP.
    kv_dtype : str
        KV cache format.

    Notes
    -----
    Experts see the tokens of all attention-DP ranks, whether they are divided by EP or by TP x DP; the ranks are taken
    to carry equal loads. Biases, norms' weights and rotary tables are not counted (below 0.1 %).
    """
    runs = Counter(model.layer_names)
    specs = [(model.attention[name], count) for name, count in runs.items()]
    return Work(
        dense_params=_dense_params(model, layout),
        latent_params=float(component_params(model)["latent_projections"]),
        head_params=model.hidden * model.vocab / layout.tp,
        head_fmt=model.weights.embedding or model.weights.default,
        experts=_experts(model, layout),
        decode=tuple(w for spec, count in specs for w in _decode_work(spec, count, layout, kv_dtype)),
        prefill=tuple(w for spec, count in specs for w in _prefill_work(spec, count, layout, kv_dtype)),
        states=tuple(w for spec, count in specs for w in _state_work(spec, count, layout)),
        elementwise_bytes_per_row=_elementwise_bytes(model, layout),
        parts=_layer_parts(model),
        hidden=model.hidden,
        gathered_bytes_per_context=_gathered(model, layout, kv_dtype),
        exchanged_bytes_per_seq=_exchanged(model, layout),
        int4_group_size=model.weights.int4_group_size,
    )


def _dense_params(model: ModelProfile, layout: Layout) -> dict[str, float]:
    """Parameters of dense matrices one rank reads, by storage format; LM head and latent projections left out."""
    counts, formats = component_params(model), model.weights
    attention = sum(rank_attention_params(model.attention[n], model.hidden, layout.tp) for n in model.layer_names)
    found: dict[str, float] = {"bf16": float(counts["router"])}
    for fmt, params in ((formats.attention, attention), (formats.dense_mlp, counts["dense_mlp"] / layout.tp),
                        (formats.shared_experts, counts["shared_experts"] / layout.tp)):
        found[fmt or formats.default] = found.get(fmt or formats.default, 0.0) + params
    return {fmt: params for fmt, params in found.items() if params}


def _experts(model: ModelProfile, layout: Layout) -> ExpertWork | None:
    """Routed experts of one rank, None for a dense model."""
    moe = model.moe
    if moe is None:
        return None
    shards = expert_shards(layout)
    params = component_params(model)["routed_experts"]
    chosen = params * moe.experts_per_token / moe.num_experts
    return ExpertWork(
        layers=num_moe_layers(model), num_experts=moe.num_experts, chosen=moe.experts_per_token,
        fmt=model.weights.routed_experts or model.weights.default,
        params=params / shards, flops_per_row=2.0 * chosen / shards,
        row_factor=max(1.0, shards / layout.tp),
        width=moe.latent_dim or model.hidden,
    )


def _decode_work(spec: Attention, layers: int, layout: Layout, kv_dtype: str) -> Iterator[DecodeWork]:
    """Attention over resident context of one kind of layer."""
    if isinstance(spec, GqaAttention):
        yield _gqa_decode(spec, layers, layout, kv_dtype)
    elif isinstance(spec, MlaAttention):
        yield _mla_decode(spec, layers, layout, kv_dtype)
    elif isinstance(spec, CompressedAttention):
        yield _compressed_decode(spec, layers, layout, kv_dtype)


def _gqa_decode(spec: GqaAttention, layers: int, layout: Layout, kv_dtype: str) -> DecodeWork:
    """K and V heads of the rank for every token, or for a window or a chosen set of them."""
    window = window_bytes(spec, kv_dtype, layout.tp)
    per_token = window / spec.window if spec.window else kv_bytes_per_token(spec, kv_dtype, layout.tp)
    flops = 2.0 * -(-spec.num_heads // layout.tp) * (spec.head_dim + (spec.v_head_dim or spec.head_dim))
    heads = -(-spec.num_heads // layout.tp) * layout.dcp
    limit, kv_heads = spec.window or spec.index_topk, max(1, spec.num_kv_heads // layout.tp)
    if not limit:
        return DecodeWork("gqa_decode", heads, layers, per_token / layout.dcp, flops, kv_heads=kv_heads)
    index = 0.0 if spec.window else index_key_bytes(spec.index_key_bytes_bf16 // 2, kv_dtype)
    index_flops = 0.0 if spec.window else float(spec.index_key_bytes_bf16 * spec.index_num_heads)
    return DecodeWork("gqa_decode", heads, layers, index / layout.dcp, index_flops,
                      limit * (per_token - index) / layout.dcp, limit * flops, kv_heads)


def _mla_decode(spec: MlaAttention, layers: int, layout: Layout, kv_dtype: str) -> DecodeWork:
    """The whole latent on every rank (absorbed form): 2 H (2 r + d_rope) FLOPs a token."""
    heads = -(-spec.num_heads // layout.tp)
    index = index_key_bytes(spec.indexer_head_dim, kv_dtype)
    latent = kv_bytes_per_token(spec, kv_dtype) - index
    flops = 2.0 * heads * (2 * spec.kv_lora_rank + spec.qk_rope_head_dim)
    index_flops = 2.0 * spec.indexer_num_heads * spec.indexer_head_dim
    wide = heads * layout.dcp
    if not spec.indexer_topk:
        return DecodeWork("mla_decode", wide, layers, (latent + index) / layout.dcp, flops + index_flops)
    return DecodeWork("mla_decode", wide, layers, index / layout.dcp, index_flops,
                      spec.indexer_topk * latent / layout.dcp, spec.indexer_topk * flops)


def _compressed_decode(spec: CompressedAttention, layers: int, layout: Layout, kv_dtype: str) -> DecodeWork:
    """Entries of ``ratio`` tokens: all of them, or index keys of all and the chosen entries; and the window."""
    heads = -(-spec.num_heads // layout.tp)
    index = index_key_bytes(spec.indexer_head_dim, kv_dtype) / spec.ratio
    entry = kv_bytes_per_token(spec, kv_dtype) - index
    flops = 4.0 * heads * spec.entry_dim
    near_bytes, near_flops = window_bytes(spec, kv_dtype, layout.tp), spec.window * flops
    if not spec.indexer_topk:
        return DecodeWork("mla_decode", heads, layers, entry + index, flops / spec.ratio, near_bytes, near_flops)
    index_flops = 2.0 * spec.indexer_num_heads * spec.indexer_head_dim / spec.ratio
    return DecodeWork("mla_decode", heads, layers, index, index_flops,
                      near_bytes + spec.indexer_topk * entry * spec.ratio, near_flops + spec.indexer_topk * flops)


def _prefill_work(spec: Attention, layers: int, layout: Layout, kv_dtype: str) -> Iterator[PrefillWork]:
    """Attention of prefill chunks of one kind of layer, and its indexer."""
    per_token = kv_bytes_per_token(spec, kv_dtype, layout.tp)
    if isinstance(spec, GqaAttention):
        heads = -(-spec.num_heads // layout.tp)
        flops = 2.0 * heads * (spec.head_dim + (spec.v_head_dim or spec.head_dim))
        yield PrefillWork(layers, flops, per_token, spec.window or spec.index_topk)
        if spec.index_topk and spec.index_num_heads:
            yield PrefillWork(layers, spec.index_key_bytes_bf16 * spec.index_num_heads, 0.0)
    elif isinstance(spec, MlaAttention):
        yield from _mla_prefill(spec, layers, layout, per_token)
    elif isinstance(spec, CompressedAttention):
        yield from _compressed_prefill(spec, layers, layout, per_token)


def _mla_prefill(spec: MlaAttention, layers: int, layout: Layout, per_token: float) -> Iterator[PrefillWork]:
    """Expanded form with re-expansion of the cached latent; absorbed form over a chosen set when there is one."""
    heads = -(-spec.num_heads // layout.tp)
    if spec.indexer_topk:
        absorbed = 2.0 * heads * (2 * spec.kv_lora_rank + spec.qk_rope_head_dim)
        yield PrefillWork(layers, absorbed, per_token, spec.indexer_topk)
        if spec.indexer_head_dim:
            yield PrefillWork(layers, 2.0 * spec.indexer_num_heads * spec.indexer_head_dim, 0.0)
        return
    qk_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    wide = heads * (spec.qk_nope_head_dim + spec.v_head_dim)
    yield PrefillWork(layers, 2.0 * heads * (qk_dim + spec.v_head_dim), per_token, bf16_inputs=True,
                      expand_flops=2.0 * spec.kv_lora_rank * wide, expand_bytes=ACTIVATION_BYTES * wide)


def _compressed_prefill(spec: CompressedAttention, layers: int, layout: Layout,
                        per_token: float) -> Iterator[PrefillWork]:
    """Entries (all or the chosen), the window, and the indexer over all entries."""
    heads = -(-spec.num_heads // layout.tp)
    flops = 4.0 * heads * spec.entry_dim
    yield PrefillWork(layers, flops, per_token, spec.indexer_topk, spec.ratio)
    if spec.window:
        yield PrefillWork(layers, flops, 0.0, spec.window)
    if spec.indexer_head_dim:
        yield PrefillWork(layers, 2.0 * spec.indexer_num_heads * spec.indexer_head_dim, 0.0, 0, spec.ratio)


def _state_work(spec: Attention, layers: int, layout: Layout) -> Iterator[StateWork]:
    """State read and written per decoding sequence; heads a rank scans, in heads of 128 x 128."""
    if isinstance(spec, KdaAttention):
        heads, size = spec.num_heads, spec.head_dim**2
    elif isinstance(spec, GdnAttention):
        heads, size = spec.num_v_heads, spec.k_head_dim * spec.v_head_dim
    elif isinstance(spec, MambaAttention):
        heads, size = spec.num_heads, spec.head_dim * spec.state_dim
    else:
        return
    width = size**0.5
    flops = heads / layout.tp * (2.0 * SCAN_CHUNK * width + 6.0 * size)
    yield StateWork(layers, 2.0 * state_bytes(spec, layout.tp), heads * size / LAW_STATE / layout.tp, flops)


def _elementwise_bytes(model: ModelProfile, layout: Layout) -> float:
    """Bytes of norms, rotations, gates, activations and depth residuals for one row, all layers.

    Two fused norms read and write the stream and its residual (8 widths); rotations and gates read and write
    what attention projects; a gated MLP reads two widths and writes one. Routed experts' own passes are part of
    their kernel.
    """
    norms = 8.0 * model.hidden * model.num_layers
    attention = sum(2.0 * _projected(model.attention[n]) for n in model.layer_names) / layout.tp
    layers_moe = num_moe_layers(model)
    mlp = 3.0 * model.dense_intermediate * (model.num_layers - layers_moe)
    if model.moe:
        width = model.moe.num_shared_experts * (model.moe.shared_intermediate or model.moe.expert_intermediate)
        mlp += 3.0 * width * layers_moe
    return ACTIVATION_BYTES * (norms + attention + mlp / layout.tp + _residual_reads(model))


def _residual_reads(model: ModelProfile) -> float:
    """Elements of earlier block representations that all layers read for one row."""
    if model.depth_residual is None:
        return 0.0
    deep = model.depth_residual
    blocks = [min(layer // deep.block_layers + 1, deep.num_blocks) for layer in range(model.num_layers)]
    return float(sum(blocks) * model.hidden)


def _projected(spec: Attention) -> float:
    """Elements that one layer's attention projects to for one row, gates included."""
    if isinstance(spec, GqaAttention):
        value = spec.v_head_dim or spec.head_dim
        gate = spec.num_heads * value if spec.output_gate else 0
        return spec.num_heads * spec.head_dim + spec.num_kv_heads * (spec.head_dim + value) + gate
    if isinstance(spec, MlaAttention):
        query = spec.qk_nope_head_dim + spec.qk_rope_head_dim
        return spec.num_heads * (query + spec.v_head_dim * (2 if spec.output_gate else 1))
    if isinstance(spec, CompressedAttention):
        return 2.0 * spec.num_heads * spec.entry_dim
    if isinstance(spec, KdaAttention):
        return 5.0 * spec.num_heads * spec.head_dim
    if isinstance(spec, GdnAttention):
        return 2.0 * spec.num_k_heads * spec.k_head_dim + 2.0 * spec.num_v_heads * spec.v_head_dim
    return 2.0 * spec.num_heads * spec.head_dim + 2.0 * spec.num_groups * spec.state_dim


def _layer_parts(model: ModelProfile) -> dict[str, int]:
    """How many layers have each part, for what is paid per kernel launch."""
    linear = {"kda": "linear", "gdn": "linear", "mamba": "linear"}
    parts = Counter(linear.get(model.attention[n].kind, model.attention[n].kind) for n in model.layer_names)
    parts["moe"] = num_moe_layers(model)
    parts["shared_experts"] = parts["moe"] if component_params(model)["shared_experts"] else 0
    parts["dense_mlp"] = model.num_layers - parts["moe"]
    parts["norms"] = model.num_layers
    return {part: count for part, count in parts.items() if count}


def _gathered(model: ModelProfile, layout: Layout, kv_dtype: str) -> float:
    """Bytes of striped context that a rank must fetch from its DCP neighbours for one token of prefill context."""
    if layout.dcp == 1:
        return 0.0
    total = sum(kv_bytes_per_token(model.attention[n], kv_dtype, layout.tp) for n in model.layer_names)
    return total * (layout.dcp - 1) / layout.dcp


def _exchanged(model: ModelProfile, layout: Layout) -> float:
    """Bytes of queries and partial outputs that DCP ranks exchange for one decoding sequence, all layers."""
    if layout.dcp == 1:
        return 0.0
    heads = layout.dcp / layout.tp
    return ACTIVATION_BYTES * heads * sum(_query_width(model.attention[n]) for n in model.layer_names)


def _query_width(spec: Attention) -> float:
    """Elements of queries and outputs of one layer's attention over context, all heads."""
    if isinstance(spec, MlaAttention):
        return spec.num_heads * (2.0 * spec.kv_lora_rank + spec.qk_rope_head_dim)
    if isinstance(spec, GqaAttention):
        return spec.num_heads * (spec.head_dim + float(spec.v_head_dim or spec.head_dim))
    return 2.0 * spec.num_heads * spec.entry_dim if isinstance(spec, CompressedAttention) else 0.0
