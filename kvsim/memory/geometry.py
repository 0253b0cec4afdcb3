"""How an engine cuts KV memory into blocks: pages, groups of layers, blocks a sequence needs.

The rules are vLLM V1's. Layers with an identical KV spec form a *bucket*. When all of them are full attention,
one block id spans all layers. Otherwise (constant state, sliding windows, a draft of another format) every group
of layers takes the same number of equal pages from one pool, and short groups are padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvsim.errors import Problem, ScenarioError
from kvsim.layout import Layout
from kvsim.memory.drafts import NO_DRAFT, Draft
from kvsim.memory.layers import kv_bytes_per_token, state_bytes, window_bytes, window_tokens
from kvsim.profiles.model import CompressedAttention, MlaAttention, ModelProfile

DEFAULT_BLOCK_TOKENS = 16
GroupKind = Literal["attention", "window", "state"]
LogFormula = Literal["uniform", "product", "per-group"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layers with one KV spec, on one rank.

    ``unit_bytes`` are bytes per token for attention and windows, bytes per sequence for states.
    ``layers`` are 0-based positions; a draft's layers follow the target's last one.
    """

    name: str
    kind: GroupKind
    layers: tuple[int, ...]
    unit_bytes: float
    window: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group: up to ``layers_per_group`` layers that share block tables."""

    bucket: str
    kind: GroupKind
    block_tokens: int
    layers: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Block geometry of one replica.

    Attributes
    ----------
    block_tokens : int
        Tokens of one attention block of the target on one rank, before context parallelism.
    page_bytes : float
        Bytes of one block in one layer slot on one rank.
    block_bytes : tuple of float
        Bytes one block id takes on one rank, a pipeline stage each.
    groups : tuple of Group
        Groups that share the pool.
    hybrid : bool
        Whether groups of several kinds share it.
    dcp, draft_tokens : int
        Context parallel degree; draft tokens per step.
    prefix_caching : bool
        Whether state checkpoints are kept (a second state block per group).
    overhead_bytes : float
        Constant bytes a sequence keeps outside the groups on one rank (windows of compressed attention).
    """

    block_tokens: int
    page_bytes: float
    block_bytes: tuple[float, ...]
    groups: tuple[Group, ...]
    hybrid: bool
    dcp: int
    draft_tokens: int
    prefix_caching: bool
    overhead_bytes: float = 0.0

    @property
    def state_groups(self) -> int:
        """Number of constant-state groups."""
        return sum(g.kind == "state" for g in self.groups)

    @property
    def state_blocks(self) -> int:
        """Blocks of one state group that a running sequence may hold: r of the capacity formula."""
        return (2 if self.prefix_caching else 1) + self.draft_tokens

    @property
    def block_capacity_tokens(self) -> int:
        """Tokens of context that one target attention block holds over the DCP ranks."""
        return self.block_tokens * self.dcp

    def blocks_for(self, context_tokens: int, max_batched_tokens: int = 0) -> int:
        """Blocks that one sequence of `context_tokens` needs, all groups together."""
        return sum(self._group_blocks(g, context_tokens, max_batched_tokens) for g in self.groups) + math.ceil(
            self.overhead_bytes / max(self.block_bytes))

    def num_blocks(self, available_bytes: float) -> int:
        """Blocks of the pool when every rank has `available_bytes` (the least over stages)."""
        return min(math.floor(available_bytes / b) for b in self.block_bytes)

    def logged_tokens(self, num_blocks: int, max_model_len: int, formula: LogFormula) -> int:
        """The "KV cache size" an engine prints; it depends on `max_model_len` for hybrids.

        ``uniform``: blocks x tokens of a block. ``per-group`` (vLLM before about 0.21): blocks of one group
        x tokens. ``product``: maximum concurrency x max_model_len, rounded down.
        """
        if formula == "uniform":
            return num_blocks * self.block_capacity_tokens
        if formula == "per-group":
            return num_blocks // len(self.groups) * self.block_capacity_tokens
        return num_blocks * max_model_len // self.blocks_for(max_model_len)

    def _group_blocks(self, group: Group, context_tokens: int, max_batched_tokens: int) -> int:
        if group.kind == "state":
            return self.state_blocks
        whole = math.ceil(context_tokens / (group.block_tokens * self.dcp))
        if group.kind == "window":
            return min(whole, math.ceil((group.window - 1 + max_batched_tokens) / group.block_tokens) + 1)
        return whole


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What decides the geometry of a replica's KV cache.

    ``block_tokens`` overrides the engine's choice (None = the engine's).
    """

    layout: Layout
    kv_dtype: str
    prefix_caching: bool = True
    draft: Draft = NO_DRAFT
    block_tokens: int | None = None


def kv_geometry(model: ModelProfile, spec: KvSpec) -> KvGeometry:
    """Geometry of the KV cache of `model` as vLLM V1 would lay it out.

    Raises
    ------
    ScenarioError
        Layers whose pages cannot be made equal (a latent page that does not divide the largest one).

    Notes
    -----
    With constant-state layers the attention block is ``B = g ceil(m / (g a))`` tokens: the least multiple of the
    kernel block g whose page holds one layer's state m (a: attention bytes per token and layer). Groups have
    ``G = min bucket size`` layers (the largest when it is below 1.5 x the smallest).

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> k3 = default_store().get("model", "kimi-k3")
    >>> kv_geometry(k3, KvSpec(Layout(tp=8), "fp8")).block_tokens
    1536
    """
    buckets = kv_buckets(model, spec)
    hybrid = any(b.kind != "attention" for b in buckets)
    if not hybrid:
        return _uniform(model, spec, buckets)
    return _hybrid(model, spec, buckets)


def kv_buckets(model: ModelProfile, spec: KvSpec) -> tuple[Bucket, ...]:
    """Layers of the target and its draft grouped by identical KV spec."""
    tp, found = spec.layout.tp, dict[tuple[str, float, int], list[int]]()
    for position, name in enumerate(model.layer_names):
        attention = model.attention[name]
        per_token = kv_bytes_per_token(attention, spec.kv_dtype, tp)
        state = state_bytes(attention, tp, spec.draft.tokens)
        if per_token:
            key: tuple[str, float, int] = ("attention", per_token, 0)
        elif state:
            key = ("state", state, 0)
        else:
            window = window_tokens(attention)
            key = ("window", window_bytes(attention, spec.kv_dtype, tp) / window, window)
        found.setdefault(key, []).append(position)
    for key, layers in _draft_layers(model, spec).items():
        found.setdefault(key, []).extend(layers)
    return tuple(Bucket(f"{kind}-{i}", kind, tuple(layers), unit, window)  # pyright: ignore[reportArgumentType]
                 for i, ((kind, unit, window), layers) in enumerate(found.items()))


def stage_of_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """Pipeline stage of every layer: equal shares, the remainder to the stages before the last.

    >>> stage_of_layers(7, 3)
    (0, 0, 1, 1, 1, 2, 2)
    """
    sizes = [num_layers // pp] * pp
    for i in range(num_layers % pp):
        sizes[-2 - i if pp > 1 else 0] += 1
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


def _draft_layers(model: ModelProfile, spec: KvSpec) -> dict[tuple[str, float, int], list[int]]:
    if not spec.draft.num_layers:
        return {}
    main = main_attention(model)
    dtype = spec.draft.kv_dtype or spec.kv_dtype
    first = model.num_layers
    key = ("attention", kv_bytes_per_token(model.attention[main], dtype, spec.layout.tp), 0)
    return {key: list(range(first, first + spec.draft.num_layers))}


def main_attention(model: ModelProfile) -> str:
    """Name of the attention that most layers with growing KV have, which is a draft's too; raises `ScenarioError`."""
    growing = [n for n in model.layer_names if kv_bytes_per_token(model.attention[n], "bf16")]
    if not growing:
        raise ScenarioError("a draft needs a target with full attention",
                            [Problem(model.name, "draft", "a model without full attention", "draft: none")])
    return max(dict.fromkeys(growing), key=growing.count)


def _default_block(model: ModelProfile) -> int:
    return max(DEFAULT_BLOCK_TOKENS, model.kernel_block_tokens)


def _uniform(model: ModelProfile, spec: KvSpec, buckets: Sequence[Bucket]) -> KvGeometry:
    block = spec.block_tokens or _default_block(model)
    per_stage = _stage_sums(model, spec, buckets)
    windows = sum(window_bytes(model.attention[n], spec.kv_dtype, spec.layout.tp) for n in model.layer_names
                  if isinstance(model.attention[n], CompressedAttention))
    layers = tuple(p for b in buckets for p in b.layers)
    return KvGeometry(block, buckets[0].unit_bytes * block, tuple(s * block for s in per_stage),
                      (Group("attention", "attention", block, layers),), False, spec.layout.dcp,
                      spec.draft.tokens, spec.prefix_caching, windows / spec.layout.pp)


def _stage_sums(model: ModelProfile, spec: KvSpec, buckets: Sequence[Bucket]) -> list[float]:
    stages = _stages(model, spec)
    sums = [0.0] * spec.layout.pp
    for bucket in buckets:
        for layer in bucket.layers:
            sums[stages(layer)] += bucket.unit_bytes
    return sums


def _stages(model: ModelProfile, spec: KvSpec) -> Callable[[int], int]:
    of = stage_of_layers(model.num_layers, spec.layout.pp)
    return lambda layer: of[layer] if layer < len(of) else spec.layout.pp - 1


def _hybrid(model: ModelProfile, spec: KvSpec, buckets: Sequence[Bucket]) -> KvGeometry:
    base = spec.block_tokens or _hybrid_block(model, buckets)
    page = max([b.unit_bytes * base for b in buckets if b.kind != "state"]
               + [b.unit_bytes for b in buckets if b.kind == "state"])
    groups = [g for b in buckets for g in _groups(b, _block_of(model, b, base, page), _group_size(buckets))]
    stages = _stages(model, spec)
    slots = [max(sum(stages(p) == s for p in g.layers) for g in groups) for s in range(spec.layout.pp)]
    target = next(g.block_tokens for g in groups if g.kind == "attention")
    return KvGeometry(target, page, tuple(n * page for n in slots), tuple(groups), True, spec.layout.dcp,
                      spec.draft.tokens, spec.prefix_caching)


def _hybrid_block(model: ModelProfile, buckets: Sequence[Bucket]) -> int:
    grain = _default_block(model)
    largest_state = max((b.unit_bytes for b in buckets if b.kind == "state"), default=0.0)
    target = next(b.unit_bytes for b in buckets if b.kind == "attention")
    return grain * max(1, math.ceil(largest_state / (grain * target)))


def _group_size(buckets: Sequence[Bucket]) -> int:
    sizes = [len(b.layers) for b in buckets]
    return max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)


def _block_of(model: ModelProfile, bucket: Bucket, base: int, page: float) -> int:
    if bucket.kind == "state":
        return base
    factor = page / (bucket.unit_bytes * base)
    latent = isinstance(model.attention[model.layer_names[min(bucket.layers[0], model.num_layers - 1)]], MlaAttention)
    if latent and abs(factor - round(factor)) > 1e-9 and factor >= 2:
        given = f"a page of {bucket.unit_bytes * base:.0f} B beside one of {page:.0f} B"
        raise ScenarioError("KV pages cannot be made equal",
                            [Problem(model.name, "kv_dtype", given, "layers whose pages divide the largest one")])
    return base * max(1, math.floor(factor))


def _groups(bucket: Bucket, block_tokens: int, size: int) -> list[Group]:
    count = math.ceil(len(bucket.layers) / size)
    return [Group(bucket.name, bucket.kind, block_tokens, bucket.layers[i::count], bucket.window)
            for i in range(count)]
