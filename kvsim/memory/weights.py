"""Weight bytes of one GPU: what the layout divides and what every rank repeats."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.layout import Layout
from kvsim.memory.geometry import stage_of_layers
from kvsim.memory.layers import BYTES_PER_ELEMENT
from kvsim.profiles.model import Attention, Dtype, GqaAttention, ModelProfile
from kvsim.profiles.parameters import (
    attention_params,
    component_params,
    kv_projection_params,
    mtp_params,
    repeated_params,
)


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Weight bytes of one replica.

    Attributes
    ----------
    per_gpu_bytes : float
        The heaviest rank (what limits the pool).
    by_stage : tuple of float
        Bytes of one rank of each pipeline stage.
    replicated_bytes : float
        Of the heaviest rank's, what its tensor-parallel neighbours hold too.
    total_bytes : float
        The model once, without replication.
    """

    per_gpu_bytes: float
    by_stage: tuple[float, ...]
    replicated_bytes: float
    total_bytes: float


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes divided by tensor parallelism, divided over expert ranks, and repeated on every rank.

    ``copied`` is what a rank holds beyond its even share because it shares a KV head with others.
    """

    split: float = 0.0
    experts: float = 0.0
    repeated: float = 0.0
    copied: float = 0.0

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.split + other.split, self.experts + other.experts, self.repeated + other.repeated,
                     self.copied + other.copied)

    def on_rank(self, layout: Layout) -> float:
        return self.split / layout.tp + self.experts / expert_shards(layout) + self.repeated + self.copied

    @property
    def total(self) -> float:
        return self.split + self.experts + self.repeated


def expert_shards(layout: Layout) -> int:
    """Ranks that the routed experts are divided over: EP if set, else tensor parallelism over all TP x DP ranks.

    Source: vLLM documentation, "Data Parallel Deployment": without EP the expert layers form one tensor-parallel group
    of size DP x TP.
    """
    return layout.ep if layout.ep > 1 else layout.tp * layout.dp


def copied_kv_params(spec: Attention, hidden: int, tp: int) -> float:
    """Parameters that a rank holds beyond its even share of an attention layer: a KV head is never divided.

    Examples
    --------
    >>> from kvsim.profiles.model import GqaAttention
    >>> four = GqaAttention(kind="gqa", num_heads=64, num_kv_heads=4, head_dim=128)
    >>> copied_kv_params(four, 4096, 4), copied_kv_params(four, 4096, 8) == 4096 * 2 * 128 / 2
    (0.0, True)
    """
    keys = kv_projection_params(spec, hidden)
    return keys * max(0.0, 1 / spec.num_kv_heads - 1 / tp) if isinstance(spec, GqaAttention) else 0.0


def rank_attention_params(spec: Attention, hidden: int, tp: int) -> float:
    """Parameters of one attention layer that one tensor-parallel rank holds, and reads in every step."""
    repeated = repeated_params(spec, hidden)
    return (attention_params(spec, hidden) - repeated) / tp + repeated + copied_kv_params(spec, hidden, tp)


def weight_bytes(model: ModelProfile, layout: Layout) -> WeightBytes:
    """Weight bytes a rank holds.

    Notes
    -----
    Attention heads, MLPs, embedding and LM head are split by TP (KV projections stop at one head a rank);
    routed experts by EP, else TP. Repeated on every rank, as vLLM loads them: norms, routers, projections into latents
    and compressed entries, sparse-attention indexers (`repeated_params`), and the projections into and out of a latent
    expert width (Kimi K3: 9.5 GB a rank); these and routers in bf16. Where the checkpoint's size is known, all parts
    are scaled so that they sum to it: the file counts what shapes do not (scales, biases, alignment).
    Source: vLLM 0.33 model code; the models' config.json.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> llama = default_store().get("model", "llama-3.1-8b")
    >>> round(weight_bytes(llama, Layout(tp=1)).per_gpu_bytes / 2**30, 1)
    15.0
    """
    stages = _stage_parts(model, layout.pp, layout.tp)
    scale = _checkpoint_scale(model)
    by_stage = tuple(scale * part.on_rank(layout) for part in stages)
    heaviest = max(range(layout.pp), key=by_stage.__getitem__)
    return WeightBytes(by_stage[heaviest], by_stage, scale * (stages[heaviest].repeated + stages[heaviest].copied),
                       scale * sum(part.total for part in stages))


def computed_weight_bytes(model: ModelProfile) -> float:
    """Bytes of the model as counted from its shapes and formats, draft layers left out."""
    return sum(part.total for part in _stage_parts(model, 1, 1))


def element_bytes(model: ModelProfile, component: str) -> float:
    """Bytes an element of one weight component (``"attention"``, ``"routed_experts"``, ...)."""
    dtype: Dtype = getattr(model.weights, component, None) or model.weights.default
    return format_bytes(dtype, model.weights.int4_group_size)


def format_bytes(dtype: str, int4_group_size: int) -> float:
    """Bytes of one weight in a storage format, scales included: int4 has a bf16 scale a group.

    >>> format_bytes("mxfp4", 128), format_bytes("int4", 32)
    (0.53125, 0.5625)
    """
    return BYTES_PER_ELEMENT[dtype] + (2.0 / int4_group_size if dtype == "int4" else 0.0)


def _checkpoint_scale(model: ModelProfile) -> float:
    if model.checkpoint is None:
        return 1.0
    drafts = mtp_params(model) * element_bytes(model, "default")
    return model.checkpoint.base / (computed_weight_bytes(model) + drafts)


def _stage_parts(model: ModelProfile, pp: int, tp: int) -> list[_Part]:
    parts, counts, names = [_Part() for _ in range(pp)], component_params(model), model.layer_names
    # The last norm is spread over the layers.
    norms = _Part(repeated=counts["norms"] / len(names) * element_bytes(model, "default"))
    dense = set(model.moe.dense_layers) if model.moe else set(range(len(names)))
    kinds = {kind: _attention_part(model, kind[0], tp) + _mlp_part(model, kind[1]) + norms
             for kind in {(name, layer in dense) for layer, name in enumerate(names)}}
    for layer, stage in enumerate(stage_of_layers(len(names), pp)):
        parts[stage] += kinds[names[layer], layer in dense]
    size = element_bytes(model, "embedding")
    vision = counts["vision"] * element_bytes(model, "default")
    parts[0] += _Part(split=counts["embedding"] * size + vision)
    parts[-1] += _Part(split=counts["lm_head"] * size)
    return parts


def _attention_part(model: ModelProfile, name: str, tp: int) -> _Part:
    spec, size = model.attention[name], element_bytes(model, "attention")
    repeated = repeated_params(spec, model.hidden)
    return _Part(split=(attention_params(spec, model.hidden) - repeated) * size, repeated=repeated * size,
                 copied=copied_kv_params(spec, model.hidden, tp) * size)


def _mlp_part(model: ModelProfile, dense: bool) -> _Part:
    matrices = 3 if model.gated_mlp else 2
    moe = model.moe
    if moe is None or dense:
        return _Part(split=matrices * model.hidden * model.dense_intermediate * element_bytes(model, "dense_mlp"))
    width = moe.latent_dim or model.hidden
    routed = moe.num_experts * matrices * width * moe.expert_intermediate
    shared_width = moe.shared_intermediate or moe.expert_intermediate
    shared = moe.num_shared_experts * matrices * model.hidden * shared_width
    repeated = moe.num_experts * (model.hidden + 1) + moe.latent_dim * (2 * model.hidden + 1)
    return _Part(split=shared * element_bytes(model, "shared_experts"),
                 experts=routed * element_bytes(model, "routed_experts"),
                 repeated=repeated * BYTES_PER_ELEMENT["bf16"])
