"""The HBM budget of one GPU, line by line, down to the KV pool."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InfeasibleError, Problem
from kvsim.layout import Layout
from kvsim.memory.geometry import KvGeometry
from kvsim.memory.weights import WeightBytes, expert_shards, weight_bytes
from kvsim.profiles.figure import Figure
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.model import Attention, GqaAttention, KdaAttention, MlaAttention, ModelProfile
from kvsim.profiles.reserve import MemoryReserve
from kvsim.units import gib


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Engine settings that decide how much HBM is left for KV.

    Parameters
    ----------
    gpu_memory_utilization : float
        Share of the GPU's total that the engine may use (vLLM's meaning: of the total, not of what is free).
    max_num_batched_tokens, max_num_seqs, max_model_len : int
        vLLM's limits of the same names.
    """

    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One line: ``num_bytes`` > 0 adds, < 0 takes; ``low``/``high`` bound it; ``kind`` and ``origin`` say why."""

    name: str
    num_bytes: float
    kind: str
    origin: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """HBM of the fullest GPU of a replica.

    Attributes
    ----------
    lines : tuple of BudgetLine
        They sum to ``kv_bytes``.
    kv_bytes : float
        Bytes for the KV pool; negative when the model does not fit.
    kv_bytes_range : (float, float)
        The same with every ranged line at its worst and best.
    weights : WeightBytes
        What the weights line is made of.
    """

    lines: tuple[BudgetLine, ...]
    kv_bytes: float
    kv_bytes_range: tuple[float, float]
    weights: WeightBytes

    def text(self) -> str:
        """The budget as a table, one line a row.

        Returns
        -------
        str
            Name, GiB, kind and origin of each line, and the pool with its range.
        """
        rows = [f"  {line.name:<28}{line.num_bytes / 2**30:>10.2f} GiB  {line.kind:<9}{line.origin}"
                for line in self.lines]
        low, high = self.kv_bytes_range
        rows.append(f"  {'= KV pool':<28}{self.kv_bytes / 2**30:>10.2f} GiB  [{gib(low)} to {gib(high)}]")
        return "\n".join(rows)


def hbm_budget(model: ModelProfile, gpu: GpuProfile, layout: Layout, limits: EngineLimits,
               reserve: MemoryReserve, geometry: KvGeometry) -> MemoryBudget:
    """HBM budget of the fullest GPU.

    Parameters
    ----------
    model, gpu, layout
        What is served on what, split how.
    limits : EngineLimits
        Engine settings.
    reserve : MemoryReserve
        What the engine takes beside weights and KV (from an engine profile).
    geometry : KvGeometry
        Its block size decides the latent workspace of older engines.

    Returns
    -------
    MemoryBudget
        It may be negative: use `require_room` to refuse that.

    Notes
    -----
    ``KV = usable x visible x utilization - weights - context - CUDA graphs - workspace - activations``.
    Activations grow with the prefill budget: ``a + b x max_num_batched_tokens``, b from the shapes
    (`activation_bytes_per_token`) times an assumed number of copies. It is wrong where an engine keeps
    workspaces of its own (expert-parallel buffers, FP4 scratch), which is why the range is wide.
    Source: vLLM's memory profiling (``gpu_worker.py``); our own start-up logs.
    """
    weights = weight_bytes(model, layout)
    lines = (*_hbm_lines(gpu, limits),
             _exact("weights", -weights.per_gpu_bytes, "checkpoint and shapes, split by layout"),
             *_reserve_lines(model, layout, limits, reserve, geometry))
    low = sum(line.low for line in lines)
    high = sum(line.high for line in lines)
    return MemoryBudget(lines, sum(line.num_bytes for line in lines), (low, high), weights)


def _size(num_bytes: float) -> str:
    """A size whose digits are not all zero."""
    return gib(num_bytes) if num_bytes >= 0.01 * 2**30 else f"{num_bytes / 2**20:,.2f} MiB"


def require_room(budget: MemoryBudget, needed_bytes: float, what: str, advice: str) -> None:
    """Refuse a budget that leaves less than `needed_bytes` for KV.

    Raises
    ------
    InfeasibleError
        With the whole budget and what would make it fit.
    """
    if budget.kv_bytes >= needed_bytes:
        return
    short = needed_bytes - budget.kv_bytes
    problem = Problem(what, "KV pool", gib(budget.kv_bytes), f"at least {_size(needed_bytes)} per GPU", advice)
    raise InfeasibleError(f"{what} does not fit: {gib(short)} per GPU missing\n{budget.text()}", [problem])


def activation_bytes_per_token(model: ModelProfile, layout: Layout) -> float:
    """Live activations of one prefill token at the widest point of a layer, bytes on one rank in bf16.

    Notes
    -----
    Residual stream and its normed copy, depth residuals, and the wider of attention (queries, expanded keys
    and values, output) and MLP (gate, up, product; for experts k of each plus the k outputs).

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> activation_bytes_per_token(default_store().get("model", "llama-3.1-8b"), Layout())
    102400.0
    """
    residual = 2 + (model.depth_residual.num_blocks if model.depth_residual else 0)
    attention = max(_attention_elements(s, model.hidden) for s in model.attention.values()) / layout.tp
    return 2.0 * (residual * model.hidden + max(attention, _mlp_elements(model, layout)))


def mla_workspace_bytes(model: ModelProfile, layout: Layout, limits: EngineLimits, reserve: MemoryReserve,
                        block_tokens: int) -> float:
    """Bytes that the latent's chunked prefill reserves to expand cached context, on one rank.

    Notes
    -----
    Rows = min(max(8 x max_model_len, 4 x max_num_seqs x block), 64k), in older vLLM at least one block a
    sequence; each row holds the latent and its expansion to all heads of the rank.
    Source: vLLM ``mla_attention.py``; a Kimi-Linear start-up log shows the older rule.
    """
    latents = [s for s in model.attention.values() if isinstance(s, MlaAttention)]
    if not latents:
        return 0.0
    rows = min(max(8 * limits.max_model_len, 4 * limits.max_num_seqs * block_tokens), reserve.mla_workspace_rows.base)
    if reserve.mla_workspace_covers_pages:
        rows = max(rows, limits.max_num_seqs * block_tokens)
    width = max(s.num_heads / layout.tp * (s.qk_nope_head_dim + s.v_head_dim) + s.kv_lora_rank + s.qk_rope_head_dim
                for s in latents)
    return 2.0 * rows * width


def _hbm_lines(gpu: GpuProfile, limits: EngineLimits) -> tuple[BudgetLine, ...]:
    usable, visible = gpu.hbm_usable.base, gpu.engine_visible_frac
    low, high = visible.base_range
    seen = usable * visible.base
    return (
        BudgetLine("HBM usable", usable, gpu.hbm_usable.kind, gpu.sources[gpu.hbm_usable.source].title, usable, usable),
        BudgetLine("driver reserve", usable * (visible.base - 1), visible.kind, gpu.sources[visible.source].title,
                   usable * (low - 1), usable * (high - 1)),
        _exact("left outside the engine", -seen * (1 - limits.gpu_memory_utilization),
               f"gpu_memory_utilization {limits.gpu_memory_utilization:g}"),
    )


def _reserve_lines(model: ModelProfile, layout: Layout, limits: EngineLimits, reserve: MemoryReserve,
                   geometry: KvGeometry) -> tuple[BudgetLine, ...]:
    context = reserve.non_torch_single if layout.num_gpus == 1 else reserve.non_torch_group
    logits = 4.0 * limits.max_num_seqs * model.vocab
    per_token = activation_bytes_per_token(model, layout)
    peak = limits.max_num_batched_tokens * per_token
    copies = reserve.activation_copies
    low, high = copies.base_range
    workspace = mla_workspace_bytes(model, layout, limits, reserve, geometry.block_tokens)
    note = f"{limits.max_num_batched_tokens:,} tokens x {per_token / 1e3:,.0f} kB x {copies.value:g} copies"
    return (
        _ranged("context, collectives", context),
        _ranged("CUDA graphs", reserve.cuda_graphs),
        _exact("latent prefill workspace", -workspace, "engine's rule, from shapes"),
        _exact("logits", -logits, f"{limits.max_num_seqs} x vocabulary, fp32"),
        BudgetLine("activations", -peak * copies.base, copies.kind, note, -peak * high, -peak * low),
    )


def _exact(name: str, num_bytes: float, origin: str) -> BudgetLine:
    return BudgetLine(name, num_bytes, "derived", origin, num_bytes, num_bytes)


def _ranged(name: str, figure: Figure) -> BudgetLine:
    low, high = figure.base_range
    return BudgetLine(name, -figure.base, figure.kind, figure.note or figure.why, -high, -low)


def _attention_elements(spec: Attention, hidden: int) -> float:
    if isinstance(spec, MlaAttention):
        query = spec.qk_nope_head_dim + spec.qk_rope_head_dim
        return spec.num_heads * 2.0 * (query + spec.v_head_dim)
    if isinstance(spec, GqaAttention):
        value = spec.v_head_dim or spec.head_dim
        return spec.num_heads * (spec.head_dim + value) + spec.num_kv_heads * (spec.head_dim + value)
    if isinstance(spec, KdaAttention):
        return 5.0 * spec.num_heads * spec.head_dim
    return 4.0 * hidden


def _mlp_elements(model: ModelProfile, layout: Layout) -> float:
    dense = 3.0 * model.dense_intermediate / layout.tp
    moe = model.moe
    if moe is None:
        return dense
    shards = 1 if layout.ep > 1 else expert_shards(layout)
    routed = moe.experts_per_token * (3.0 * moe.expert_intermediate / shards + (moe.latent_dim or model.hidden))
    shared = 3.0 * moe.num_shared_experts * (moe.shared_intermediate or moe.expert_intermediate) / layout.tp
    return max(dense, routed + shared + model.hidden + moe.latent_dim)
