"""Capacities of a model's KV cache in blocks of a trace."""

from __future__ import annotations

from kvsim.layout import Layout
from kvsim.memory.layers import kv_bytes_per_token
from kvsim.profiles.model import ModelProfile


def bytes_per_cached_token(model: ModelProfile, kv_dtype: str, layout: Layout) -> float:
    """Bytes of growing KV cache [B] that one token takes on all GPUs of one pool together.

    Parameters
    ----------
    model : ModelProfile
        Its layers.
    kv_dtype : str
        Format of the cache.
    layout : Layout
        Tensor parallelism copies what cannot be divided (latents, few KV heads); DCP stripes it.

    Notes
    -----
    Constant state, its checkpoints and sliding windows are left out, so that sizes of hybrid models are upper bounds
    of what fits. Blocks are not rounded.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> k3 = default_store().get("model", "kimi-k3")
    >>> [bytes_per_cached_token(k3, "fp8", layout) for layout in (Layout(), Layout(tp=8), Layout(tp=8, dcp=8))]
    [13824.0, 110592.0, 13824.0]
    """
    per_rank = sum(kv_bytes_per_token(model.attention[name], kv_dtype, layout.tp) for name in model.layer_names)
    return float(per_rank * layout.tp / layout.dcp)

