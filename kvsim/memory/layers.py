"""Bytes one layer keeps on one GPU: per token, per sequence and per checkpoint, never blended."""

from __future__ import annotations

from types import MappingProxyType

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

BYTES_PER_ELEMENT = MappingProxyType({
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5, "int4": 0.5, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16,
})
"""Bytes an element, scales included (one 8-bit scale per 32 for mxfp4, per 16 for nvfp4); int4 without its scales."""

KV_DTYPES = ("bf16", "fp8", "fp8_ds_mla")
"""KV cache formats: ``fp8_ds_mla`` is DeepSeek's latent with fp8 values, fp32 scales per 128 and bf16 rope."""

CONV_BYTES = 2.0
"""Bytes an element of the convolution state: engines keep it in bf16."""


def kv_bytes_per_token(spec: Attention, kv_dtype: str, tp: int = 1) -> float:
    """Bytes one attention layer keeps for one more token on one TP rank.

    Parameters
    ----------
    spec : Attention
        The layer's attention; constant-state kinds and sliding windows answer 0.
    kv_dtype : str
        One of `KV_DTYPES`.
    tp : int
        Tensor parallel degree; 1 gives the whole layer before any replication.

    Returns
    -------
    float
        Bytes. A latent (MLA) is replicated on every rank, KV heads are split until there is one a rank.

    Notes
    -----
    GQA ``max(n_kv / tp, 1) (d_k + d_v) b``; MLA ``(r_kv + d_rope) b``; compressed attention
    ``(entry + index key) b / ratio``. Index keys in fp8 carry one fp32 scale a key.
    Source: vLLM's KV cache specs; models' config.json.

    Examples
    --------
    >>> from kvsim.profiles.model import MlaAttention
    >>> latent = MlaAttention(kind="mla", num_heads=96, q_lora_rank=1536, kv_lora_rank=512,
    ...                       qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    >>> kv_bytes_per_token(latent, "fp8", tp=8)
    576.0
    """
    if isinstance(spec, MlaAttention):
        return _latent_bytes(spec, kv_dtype) + index_key_bytes(spec.indexer_head_dim, kv_dtype)
    if isinstance(spec, CompressedAttention):
        entry = spec.entry_dim * _kv_element(kv_dtype) + index_key_bytes(spec.indexer_head_dim, kv_dtype)
        return entry / spec.ratio
    if isinstance(spec, GqaAttention) and not spec.window:
        return _gqa_bytes(spec, kv_dtype, tp)
    return 0.0


def window_tokens(spec: Attention) -> int:
    """Recent tokens that a layer keeps uncompressed; 0 when it keeps all or none."""
    return spec.window if isinstance(spec, GqaAttention | CompressedAttention) else 0


def window_bytes(spec: Attention, kv_dtype: str, tp: int = 1) -> float:
    """Bytes of a full sliding window of one layer on one rank: constant per sequence."""
    if isinstance(spec, CompressedAttention):
        return spec.window * spec.entry_dim * _kv_element(kv_dtype)
    if isinstance(spec, GqaAttention):
        return spec.window * _gqa_bytes(spec, kv_dtype, tp)
    return 0.0


def state_bytes(spec: Attention, tp: int = 1, draft_tokens: int = 0) -> float:
    """Bytes of one layer's recurrent and convolution state of one sequence on one TP rank.

    Parameters
    ----------
    spec : Attention
        Attention kinds that keep no state answer 0.
    tp : int
        Heads are split over it.
    draft_tokens : int
        Draft tokens verified per step; they widen the convolution window.

    Notes
    -----
    KDA ``(H/tp) d^2 b_s + (3 H d/tp)(k - 1 + s) 2``; Gated DeltaNet with its own head counts; Mamba-2
    ``(H/tp) d n b_s`` and a convolution over ``H d + 2 g n`` channels.

    Examples
    --------
    >>> from kvsim.profiles.model import KdaAttention
    >>> 69 * state_bytes(KdaAttention(kind="kda", num_heads=96, head_dim=128, conv_kernel=4))
    449372160.0
    """
    if isinstance(spec, KdaAttention):
        state = spec.num_heads * spec.head_dim**2
        channels = 3 * spec.num_heads * spec.head_dim
    elif isinstance(spec, GdnAttention):
        state = spec.num_v_heads * spec.k_head_dim * spec.v_head_dim
        channels = 2 * spec.num_k_heads * spec.k_head_dim + spec.num_v_heads * spec.v_head_dim
    elif isinstance(spec, MambaAttention):
        state = spec.num_heads * spec.head_dim * spec.state_dim
        channels = spec.num_heads * spec.head_dim + 2 * spec.num_groups * spec.state_dim
    else:
        return 0.0
    rows = spec.conv_kernel - 1 + draft_tokens
    return (state * BYTES_PER_ELEMENT[spec.state_dtype] + channels * rows * CONV_BYTES) / tp


def index_key_bytes(head_dim: int, kv_dtype: str) -> float:
    """Bytes of one sparse-attention index key; fp8 keys carry one fp32 scale."""
    if not head_dim:
        return 0.0
    return head_dim * 2.0 if kv_dtype == "bf16" else head_dim + 4.0


def model_bytes_per_token(model: ModelProfile, kv_dtype: str) -> float:
    """Bytes the whole model keeps for one more token, before any replication."""
    return sum(kv_bytes_per_token(model.attention[name], kv_dtype) for name in model.layer_names)


def model_state_bytes(model: ModelProfile, draft_tokens: int = 0) -> float:
    """Bytes of recurrent and convolution state of one sequence, all layers and ranks together."""
    return sum(state_bytes(model.attention[name], 1, draft_tokens) for name in model.layer_names)


def model_window_bytes(model: ModelProfile, kv_dtype: str) -> float:
    """Bytes of full sliding windows of one sequence, all layers, before any replication."""
    return sum(window_bytes(model.attention[name], kv_dtype) for name in model.layer_names)


def _kv_element(kv_dtype: str) -> float:
    return 2.0 if kv_dtype == "bf16" else 1.0


def _latent_bytes(spec: MlaAttention, kv_dtype: str) -> float:
    if kv_dtype == "fp8_ds_mla":
        return spec.kv_lora_rank + spec.kv_lora_rank / 128 * 4 + spec.qk_rope_head_dim * 2.0
    return (spec.kv_lora_rank + spec.qk_rope_head_dim) * _kv_element(kv_dtype)


def _gqa_bytes(spec: GqaAttention, kv_dtype: str, tp: int) -> float:
    heads = max(spec.num_kv_heads / tp, 1.0)
    per_head = spec.head_dim + (spec.v_head_dim or spec.head_dim)
    return heads * per_head * _kv_element(kv_dtype) + spec.index_key_bytes_bf16 * _kv_element(kv_dtype) / 2
