"""Weight bytes of one GPU: what the layout divides and what every rank repeats."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.layout import Layout
from kvsim.memory.geometry import stage_of_layers
from kvsim.memory.layers import BYTES_PER_ELEMENT
from kvsim.profiles.model import Attention, Dtype, GqaAttention, MlaAttention, ModelProfile
from kvsim.profiles.parameters import attention_params, component_params, mtp_params


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
    """Bytes divided by tensor parallelism, divided over expert ranks, and repeated on every rank."""

    split: float = 0.0
    experts: float = 0.0
    repeated: float = 0.0

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.split + other.split, self.experts + other.experts, self.repeated + other.repeated)

    def on_rank(self, layout: Layout) -> float:
        return self.split / layout.tp + self.experts / expert_shards(layout) + self.repeated

    @property
    def total(self) -> float:
        return self.split + self.experts + self.repeated


def expert_shards(layout: Layout) -> int:
    """Ranks that the routed experts are divided over: EP if set, else tensor parallelism over all TP x DP ranks.

    Source: vLLM documentation, "Data Parallel Deployment": without EP the expert layers form one tensor-parallel group
    of size DP x TP.
    """
    return layout.ep if layout.ep > 1 else layout.tp * layout.dp


def weight_bytes(model: ModelProfile, layout: Layout) -> WeightBytes:
    """Weight bytes a rank holds.

    Notes
    -----
    Attention heads, MLPs, embedding and LM head are split by TP (KV projections stop at one head a rank);
    routed experts by EP, else TP. Repeated on every rank, as vLLM loads them: norms, routers, the latent's
    down-projections (MLA), sparse-attention indexers, and the projections into and out of a latent expert width
    (Kimi K3: 9.5 GB a rank). Where the checkpoint's size is known, all parts are scaled so that they
    sum to it: the file counts what shapes do not (scales, biases, alignment).
    Source: vLLM 0.33 model code; the models' config.json.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> llama = default_store().get("model", "llama-3.1-8b")
    >>> round(weight_bytes(llama, Layout(tp=1)).per_gpu_bytes / 2**30, 1)
    15.0
    """
    stages = _stage_parts(model, layout.pp)
    scale = _checkpoint_scale(model)
    by_stage = tuple(scale * part.on_rank(layout) for part in stages)
    heaviest = max(range(layout.pp), key=by_stage.__getitem__)
    return WeightBytes(by_stage[heaviest], by_stage, scale * stages[heaviest].repeated,
                       scale * sum(part.total for part in stages))


def computed_weight_bytes(model: ModelProfile) -> float:
    """Bytes of the model as counted from its shapes and formats, draft layers left out."""
    return sum(part.total for part in _stage_parts(model, 1))


def element_bytes(model: ModelProfile, component: str) -> float:
    """Bytes an element of one weight component (``"attention"``, ``"routed_experts"``, ...)."""
    dtype: Dtype = getattr(model.weights, component, None) or model.weights.default
    scale = 2.0 / model.weights.int4_group_size if dtype == "int4" else 0.0
    return BYTES_PER_ELEMENT[dtype] + scale


def _checkpoint_scale(model: ModelProfile) -> float:
    if model.checkpoint is None:
        return 1.0
    drafts = mtp_params(model) * element_bytes(model, "default")
    return model.checkpoint.base / (computed_weight_bytes(model) + drafts)


def _stage_parts(model: ModelProfile, pp: int) -> list[_Part]:
    parts, counts, names = [_Part() for _ in range(pp)], component_params(model), model.layer_names
    # The last norm is spread over the layers.
    norms = _Part(repeated=counts["norms"] / len(names) * element_bytes(model, "default"))
    dense = set(model.moe.dense_layers) if model.moe else set(range(len(names)))
    kinds = {kind: _attention_part(model, kind[0]) + _mlp_part(model, kind[1]) + norms
             for kind in {(name, layer in dense) for layer, name in enumerate(names)}}
    for layer, stage in enumerate(stage_of_layers(len(names), pp)):
        parts[stage] += kinds[names[layer], layer in dense]
    size = element_bytes(model, "embedding")
    vision = counts["vision"] * element_bytes(model, "default")
    parts[0] += _Part(split=counts["embedding"] * size + vision)
    parts[-1] += _Part(split=counts["lm_head"] * size)
    return parts


def _attention_part(model: ModelProfile, name: str) -> _Part:
    spec, size = model.attention[name], element_bytes(model, "attention")
    repeated = _repeated_attention(spec, model.hidden)
    return _Part(split=(attention_params(spec, model.hidden) - repeated) * size, repeated=repeated * size)


def _repeated_attention(spec: Attention, hidden: int) -> int:
    if isinstance(spec, MlaAttention):
        index = (spec.q_lora_rank or hidden) * spec.indexer_num_heads * spec.indexer_head_dim
        index += hidden * (spec.indexer_head_dim + spec.indexer_num_heads)
        return hidden * (spec.q_lora_rank + spec.kv_lora_rank + spec.qk_rope_head_dim) + index
    if isinstance(spec, GqaAttention) and spec.index_num_heads:
        return hidden * (spec.index_num_heads + 1) * spec.index_key_bytes_bf16 // 2
    return 0


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
                 repeated=repeated * element_bytes(model, "default"))
