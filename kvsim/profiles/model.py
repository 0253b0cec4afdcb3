"""Schema of a model (``models/``): layers, attention kinds, experts, weight formats.

Shape numbers of one block come from one place (the model's published ``config.json``), so a block
names its ``source`` once; numbers from elsewhere are figures of their own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.profiles.figure import Bytes, Params, Profile, Strict

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "mxfp4", "nvfp4", "int4"]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]


class GqaAttention(Strict):
    """Full attention with separate K and V: MHA (kv heads = heads), GQA, MQA (1 kv head).

    ``window`` > 0 makes it a sliding window of that many tokens.
    ``index_key_bytes_bf16`` are bytes of sparse-attention index keys per token beside K and V, bf16;
    ``index_num_heads`` query heads read them and pick ``index_topk`` tokens (0: all) to attend to.
    """

    kind: Literal["gqa"]
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    v_head_dim: Positive | None = None
    window: NonNegative = 0
    output_gate: bool = False
    index_key_bytes_bf16: NonNegative = 0
    index_num_heads: NonNegative = 0
    index_topk: NonNegative = 0


class MlaAttention(Strict):
    """Multi-head latent attention: one latent (``kv_lora_rank`` + ``qk_rope_head_dim``) a token.

    ``indexer_head_dim`` > 0 adds one key of that size a token (DeepSeek sparse attention);
    ``indexer_num_heads`` is its number of query heads, ``indexer_topk`` the tokens they pick (0: all).
    A layer that reuses the choice of an earlier layer's indexer has no indexer of its own but still
    attends to ``indexer_topk`` tokens only.
    """

    kind: Literal["mla"]
    num_heads: Positive
    q_lora_rank: NonNegative
    kv_lora_rank: Positive
    qk_nope_head_dim: Positive
    qk_rope_head_dim: NonNegative
    v_head_dim: Positive
    output_gate: bool = False
    indexer_head_dim: NonNegative = 0
    indexer_num_heads: NonNegative = 0
    indexer_topk: NonNegative = 0


class CompressedAttention(Strict):
    """Attention over compressed entries: one entry of ``entry_dim`` per ``ratio`` tokens.

    ``indexer_head_dim`` > 0 adds an index key per entry, read by ``indexer_num_heads`` query heads that
    pick ``indexer_topk`` entries; a window of ``window`` recent tokens is kept uncompressed beside it
    (constant per sequence). Queries go through a ``q_lora_rank`` bottleneck, outputs through
    ``o_groups`` bottlenecks of ``o_lora_rank`` (0: one full projection). ``overlap``: each entry also
    sees the tokens of the one before, which doubles the compressor's projections.
    """

    kind: Literal["compressed"]
    num_heads: Positive
    entry_dim: Positive
    ratio: Positive
    indexer_head_dim: NonNegative = 0
    indexer_num_heads: NonNegative = 0
    indexer_topk: NonNegative = 0
    window: NonNegative = 0
    q_lora_rank: NonNegative = 0
    o_lora_rank: NonNegative = 0
    o_groups: Positive = 1
    overlap: bool = False


class KdaAttention(Strict):
    """Kimi delta attention: a ``head_dim`` x ``head_dim`` state a head, constant in context.

    The output gate is a full projection with ``full_rank_gate``, else a bottleneck of ``head_dim``.
    """

    kind: Literal["kda"]
    num_heads: Positive
    head_dim: Positive
    conv_kernel: Positive
    full_rank_gate: bool = False
    state_dtype: Dtype = "fp32"


class GdnAttention(Strict):
    """Gated DeltaNet: state of num_v_heads x k_head_dim x v_head_dim, constant in context."""

    kind: Literal["gdn"]
    num_k_heads: Positive
    num_v_heads: Positive
    k_head_dim: Positive
    v_head_dim: Positive
    conv_kernel: Positive
    state_dtype: Dtype = "fp32"


class MambaAttention(Strict):
    """Mamba-2: state of num_heads x head_dim x state_dim, conv over d_inner + 2 groups x state_dim."""

    kind: Literal["mamba"]
    num_heads: Positive
    head_dim: Positive
    state_dim: Positive
    num_groups: Positive
    conv_kernel: Positive
    state_dtype: Dtype = "fp32"


Attention = Annotated[
    GqaAttention | MlaAttention | CompressedAttention | KdaAttention | GdnAttention | MambaAttention,
    Field(discriminator="kind"),
]


class LayerRun(Strict):
    """``repeat`` times the sequence of attention names in ``pattern``."""

    pattern: tuple[str, ...] = Field(min_length=1)
    repeat: Positive = 1


class Moe(Strict):
    """Mixture of experts of the layers not in ``dense_layers``.

    ``latent_dim`` > 0: tokens are projected to that width before dispatch (Kimi K3: 3,584 of 7,168), and
    experts work there. ``shared_intermediate`` is the width of one shared expert, 0 the same as
    ``expert_intermediate``; shared experts work at the full width.
    ``dense_layers`` are 0-based layer numbers that have a dense MLP instead.
    """

    num_experts: Positive
    experts_per_token: Positive
    expert_intermediate: Positive
    num_shared_experts: NonNegative = 0
    shared_intermediate: NonNegative = 0
    latent_dim: NonNegative = 0
    dense_layers: tuple[int, ...] = ()


class WeightFormat(Strict):
    """Storage format of the weights by component (never implies the compute format).

    Scales are part of a format's size (``kvsim.memory`` knows: mxfp4 4.25 bits an element, nvfp4 4.5).
    A component that is not named has the ``default`` format. ``embedding`` covers the LM head too.
    ``int4_group_size`` weights of an int4 tensor share one bf16 scale.
    """

    default: Dtype
    routed_experts: Dtype | None = None
    attention: Dtype | None = None
    shared_experts: Dtype | None = None
    dense_mlp: Dtype | None = None
    embedding: Dtype | None = None
    int4_group_size: Positive = 128


class DepthResidual(Strict):
    """Attention residuals: each layer reads ``num_blocks`` earlier block representations of ``hidden`` width."""

    block_layers: Positive
    num_blocks: Positive


class ModelProfile(Profile):
    """One model (``kvsim/model/1``).

    ``total_params`` count text and vision, without the ``num_mtp_layers`` draft layers that a checkpoint
    may carry. ``kernel_block_tokens`` is the token step of the attention kernels that the engine picks.
    """

    schema_: Literal["kvsim/model/1"] = Field(alias="schema")
    hf_repo: str = ""
    shape_source: str
    total_params: Params
    active_params: Params
    checkpoint: Bytes | None = None
    hidden: Positive
    vocab: Positive
    max_positions: Positive
    tied_embeddings: bool = False
    dense_intermediate: NonNegative = 0
    gated_mlp: bool = True
    attention: dict[str, Attention]
    layers: tuple[LayerRun, ...]
    moe: Moe | None = None
    weights: WeightFormat
    depth_residual: DepthResidual | None = None
    vision_params: Params | None = None
    kernel_block_tokens: Positive = 16
    num_mtp_layers: NonNegative = 0
    prefix_caching_default: bool = True

    @model_validator(mode="after")
    def _check(self) -> ModelProfile:
        for run in self.layers:
            for name in run.pattern:
                if name not in self.attention:
                    raise ValueError(f"layers name attention {name!r}; accepted: {', '.join(self.attention)}")
        if self.shape_source not in self.sources:
            raise ValueError(f"shape_source {self.shape_source!r}; accepted: {', '.join(self.sources)}")
        return self

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Attention name of every layer, first to last."""
        return tuple(name for run in self.layers for _ in range(run.repeat) for name in run.pattern)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_names)
