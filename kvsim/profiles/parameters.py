"""Parameters of a model, counted from its shapes by component."""

from __future__ import annotations

from kvsim.profiles.model import (
    Attention,
    CompressedAttention,
    GdnAttention,
    GqaAttention,
    KdaAttention,
    MambaAttention,
    MlaAttention,
    ModelProfile,
    Moe,
)


def component_params(profile: ModelProfile) -> dict[str, int]:
    """Count parameters by component, all layers together.

    Parameters
    ----------
    profile : ModelProfile
        Any model profile.

    Returns
    -------
    dict of str to int
        ``embedding, attention, dense_mlp, routed_experts, shared_experts, router, latent_projections,
        norms, lm_head, vision`` [parameters]; their sum is the model without its draft (MTP) layers.

    Notes
    -----
    Attention counts its own norms, gates, convolutions and indexers. Not counted, below 0.02 % together:
    biases, attention sinks, norms of single heads, shared-expert gates, hyper-connection mixers.
    ``vision`` is the published figure, since towers are not described by shapes.
    Source: the models' published modelling code and tensor lists.

    Examples
    --------
    >>> from kvsim.profiles.model import ModelProfile
    >>> tiny = ModelProfile.model_validate({
    ...     "schema": "kvsim/model/1", "name": "tiny", "shape_source": "s",
    ...     "sources": {"s": {"title": "a test", "accessed": "2026-11-30"}},
    ...     "total_params": {"value": 0, "unit": "params", "kind": "derived", "source": "s"},
    ...     "active_params": {"value": 0, "unit": "params", "kind": "derived", "source": "s"},
    ...     "hidden": 8, "vocab": 10, "max_positions": 64, "dense_intermediate": 16,
    ...     "attention": {"full": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2}},
    ...     "layers": [{"pattern": ["full"], "repeat": 3}], "weights": {"default": "bf16"}})
    >>> parts = component_params(tiny)
    >>> parts["attention"], parts["dense_mlp"], sum(parts.values())
    (576, 1152, 1944)
    """
    layers = profile.num_layers
    matrices = 3 if profile.gated_mlp else 2
    num_dense = layers - num_moe_layers(profile)
    return {
        "embedding": profile.vocab * profile.hidden,
        "attention": sum(attention_params(profile.attention[n], profile.hidden) for n in profile.layer_names),
        "dense_mlp": num_dense * matrices * profile.hidden * profile.dense_intermediate,
        **_moe_params(profile, matrices),
        "norms": _norm_params(profile),
        "lm_head": 0 if profile.tied_embeddings else profile.vocab * profile.hidden,
        "vision": round(profile.vision_params.base) if profile.vision_params else 0,
    }


def active_params(profile: ModelProfile) -> int:
    """Parameters that take part in one text token: chosen experts, no embedding table, no vision tower.

    Notes
    -----
    The LM head counts, the embedding (a look-up of one row) does not; publishers differ on both.
    """
    parts = component_params(profile)
    idle = parts["embedding"] * (not profile.tied_embeddings) + parts["vision"]
    if profile.moe:
        idle += parts["routed_experts"] * (profile.moe.num_experts - profile.moe.experts_per_token) \
            // profile.moe.num_experts
    return sum(parts.values()) - idle


def mtp_params(profile: ModelProfile) -> int:
    """Parameters of the draft (MTP) layers that the checkpoint carries beside the model.

    Notes
    -----
    One draft layer is one more decoder layer of the model's last kind (attention, then experts where the
    model has them) and a projection of two hidden states to one. Embedding and head are shared.
    """
    matrices = 3 if profile.gated_mlp else 2
    layer = attention_params(profile.attention[_growing_attention(profile)], profile.hidden)
    if profile.moe:
        layer += sum(_moe_layer(profile.moe, profile.hidden, matrices).values())
    else:
        layer += matrices * profile.hidden * profile.dense_intermediate
    return profile.num_mtp_layers * (layer + 2 * profile.hidden**2 + 5 * profile.hidden)


def num_moe_layers(profile: ModelProfile) -> int:
    """Decoder layers that have routed experts."""
    return profile.num_layers - len(set(profile.moe.dense_layers)) if profile.moe else 0


def attention_params(spec: Attention, hidden: int) -> int:
    """Parameters of one attention layer: projections, gates, convolutions, indexer and inner norms.

    Parameters
    ----------
    spec : Attention
        The layer's attention.
    hidden : int
        Width of the residual stream.

    Examples
    --------
    A Llama-3 layer of 32 heads and 8 KV heads of 128:

    >>> from kvsim.profiles.model import GqaAttention
    >>> attention_params(GqaAttention(kind="gqa", num_heads=32, num_kv_heads=8, head_dim=128), 4096)
    41943040
    """
    match spec:
        case GqaAttention():
            return _gqa(spec, hidden)
        case MlaAttention():
            return _mla(spec, hidden)
        case CompressedAttention():
            return _compressed(spec, hidden)
        case KdaAttention():
            return _kda(spec, hidden)
        case GdnAttention():
            return _gdn(spec, hidden)
        case MambaAttention():
            return _mamba(spec, hidden)


def repeated_params(spec: Attention, hidden: int) -> int:
    """Parameters of one attention layer that every tensor-parallel rank holds, and reads, whole.

    Notes
    -----
    Projections into latents (MLA) and into compressed entries, compressors, and the indexers of sparse attention, as
    vLLM and SGLang load them; norms are below 0.1 %. What is left is split by heads.

    Examples
    --------
    >>> from kvsim.profiles.model import MlaAttention
    >>> latent = MlaAttention(kind="mla", num_heads=96, q_lora_rank=1536, kv_lora_rank=512,
    ...                       qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    >>> repeated_params(latent, 7168) == 7168 * (1536 + 512 + 64)
    True
    """
    match spec:
        case MlaAttention():
            return hidden * (spec.q_lora_rank + spec.kv_lora_rank + spec.qk_rope_head_dim) + _mla_indexer(spec, hidden)
        case CompressedAttention():
            into = hidden * (spec.q_lora_rank + spec.entry_dim) + _compressor(spec, spec.entry_dim, hidden)
            return into + _entry_indexer(spec, hidden)
        case GqaAttention():
            return _gqa_indexer(spec, hidden)
        case _:
            return 0


def kv_projection_params(spec: Attention, hidden: int) -> int:
    """Parameters of the K and V projections of one layer with KV heads (GQA); 0 for other kinds."""
    if not isinstance(spec, GqaAttention):
        return 0
    return hidden * spec.num_kv_heads * (spec.head_dim + (spec.v_head_dim or spec.head_dim))


def _gqa(spec: GqaAttention, hidden: int) -> int:
    """Q, K, V, O, an output gate as wide as O's input, index queries and one index key."""
    query = hidden * spec.num_heads * spec.head_dim
    output = hidden * spec.num_heads * (spec.v_head_dim or spec.head_dim)
    return (query + kv_projection_params(spec, hidden) + output * (2 if spec.output_gate else 1)
            + _gqa_indexer(spec, hidden))


def _gqa_indexer(spec: GqaAttention, hidden: int) -> int:
    """Index queries and one index key."""
    return hidden * (spec.index_num_heads + 1) * spec.index_key_bytes_bf16 // 2 if spec.index_num_heads else 0


def _mla(spec: MlaAttention, hidden: int) -> int:
    """Query (through its bottleneck), latent down and up, output, gate, indexer."""
    rank, qk_dim = spec.q_lora_rank, spec.qk_nope_head_dim + spec.qk_rope_head_dim
    query = (rank or hidden) * spec.num_heads * qk_dim + rank * (hidden + 1)
    latent = hidden * (spec.kv_lora_rank + spec.qk_rope_head_dim) + spec.kv_lora_rank
    expand = spec.kv_lora_rank * spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim)
    output = spec.num_heads * spec.v_head_dim * hidden * (2 if spec.output_gate else 1)
    return query + latent + expand + output + _mla_indexer(spec, hidden)


def _mla_indexer(spec: MlaAttention, hidden: int) -> int:
    """Index queries, one index key with its norm, weights of the heads."""
    if not spec.indexer_head_dim:
        return 0
    queries = (spec.q_lora_rank or hidden) * spec.indexer_num_heads * spec.indexer_head_dim
    return queries + hidden * (spec.indexer_head_dim + spec.indexer_num_heads) + 2 * spec.indexer_head_dim


def _compressed(spec: CompressedAttention, hidden: int) -> int:
    """Query, one shared entry, grouped output, the compressor and (where there is one) the indexer's."""
    rank, wide = spec.q_lora_rank, spec.num_heads * spec.entry_dim
    query = (rank or hidden) * wide + rank * (hidden + 1)
    entry = hidden * spec.entry_dim + spec.entry_dim
    output = spec.o_lora_rank * (wide + spec.o_groups * hidden) if spec.o_lora_rank else wide * hidden
    return query + entry + output + _compressor(spec, spec.entry_dim, hidden) + _entry_indexer(spec, hidden)


def _entry_indexer(spec: CompressedAttention, hidden: int) -> int:
    """Index queries, weights of the heads, the index keys' own compressor."""
    if not spec.indexer_head_dim:
        return 0
    queries = (spec.q_lora_rank or hidden) * spec.indexer_num_heads * spec.indexer_head_dim
    return queries + hidden * spec.indexer_num_heads + _compressor(spec, spec.indexer_head_dim, hidden)


def _compressor(spec: CompressedAttention, width: int, hidden: int) -> int:
    """Value and gate projections, a position table of one row a token of the window, a norm."""
    columns = width * (2 if spec.overlap else 1)
    return 2 * hidden * columns + spec.ratio * columns + width


def _kda(spec: KdaAttention, hidden: int) -> int:
    """Q, K, V, O, decay (bottleneck), output gate, beta, three convolutions, decay scale and bias, norm."""
    wide, dim = spec.num_heads * spec.head_dim, spec.head_dim
    bottleneck = hidden * dim + dim * wide
    gate = hidden * wide if spec.full_rank_gate else bottleneck
    small = 3 * wide * spec.conv_kernel + spec.num_heads + wide + dim
    return 4 * hidden * wide + bottleneck + gate + hidden * spec.num_heads + small


def _gdn(spec: GdnAttention, hidden: int) -> int:
    """Q, K, V, Z, alpha and beta in one projection, convolution, decay scale and bias, norm, O."""
    key, value = spec.num_k_heads * spec.k_head_dim, spec.num_v_heads * spec.v_head_dim
    inputs = hidden * (2 * key + 2 * value + 2 * spec.num_v_heads)
    small = (2 * key + value) * spec.conv_kernel + 2 * spec.num_v_heads + spec.v_head_dim
    return inputs + small + value * hidden


def _mamba(spec: MambaAttention, hidden: int) -> int:
    """Z, x, B, C and dt in one projection, convolution with bias, A, D and dt bias, norm, O."""
    inner, groups = spec.num_heads * spec.head_dim, spec.num_groups * spec.state_dim
    inputs = hidden * (2 * inner + 2 * groups + spec.num_heads)
    small = (inner + 2 * groups) * (spec.conv_kernel + 1) + 3 * spec.num_heads + inner
    return inputs + small + inner * hidden


def _moe_params(profile: ModelProfile, matrices: int) -> dict[str, int]:
    """Expert components of all layers; zeros for a dense model."""
    if profile.moe is None:
        return {"routed_experts": 0, "shared_experts": 0, "router": 0, "latent_projections": 0}
    layers = num_moe_layers(profile)
    return {part: layers * count for part, count in _moe_layer(profile.moe, profile.hidden, matrices).items()}


def _moe_layer(moe: Moe, hidden: int, matrices: int) -> dict[str, int]:
    """Expert components of one layer; the router's score bias and the latent's norm are counted with them."""
    shared_width = moe.shared_intermediate or moe.expert_intermediate
    return {
        "routed_experts": moe.num_experts * matrices * (moe.latent_dim or hidden) * moe.expert_intermediate,
        "shared_experts": moe.num_shared_experts * matrices * hidden * shared_width,
        "router": moe.num_experts * (hidden + 1),
        "latent_projections": moe.latent_dim * (2 * hidden + 1),
    }


def _norm_params(profile: ModelProfile) -> int:
    """Two norms a layer and a last one; depth residuals add a norm and a score vector to each."""
    vectors = 2 * profile.num_layers + 1
    return vectors * profile.hidden * (3 if profile.depth_residual else 1)


def _growing_attention(profile: ModelProfile) -> str:
    """The last layer's attention name that is not constant in context: what draft layers use."""
    growing = [n for n in profile.layer_names if profile.attention[n].kind not in ("kda", "gdn", "mamba")]
    return growing[-1] if growing else profile.layer_names[-1]
