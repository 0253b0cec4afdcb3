"""The draft of speculative decoding as a model of its own: shapes, and weights on a rank."""

from __future__ import annotations

from dataclasses import replace

from kvsim.layout import Layout
from kvsim.memory.budget import BudgetLine, MemoryBudget
from kvsim.memory.drafts import Draft
from kvsim.memory.geometry import main_attention
from kvsim.memory.weights import element_bytes, weight_bytes
from kvsim.profiles.model import LayerRun, ModelProfile, WeightFormat
from kvsim.profiles.parameters import attention_params, component_params

ASSUMED_MLP = 2.5
"""MLP width over hidden width of a draft layer of unknown size beside a model without dense MLPs (Llama's is 3.5)."""


def drafter_model(target: ModelProfile, draft: Draft, params: float | None = None) -> ModelProfile:
    """The draft as a model of its own: its layers alone, sharing the target's embedding and head.

    Parameters
    ----------
    target : ModelProfile
        The model that it drafts for.
    draft : Draft
        Not "none".
    params : float, optional
        Published size without embedding and head: what attention leaves of it is MLP. Unknown: the MLP is as wide as
        the target's dense one, else `ASSUMED_MLP` x hidden.

    Notes
    -----
    An MTP layer is one of the target's: its experts where it has some, in the target's formats; the projection of two
    hidden states to one before it is left out (1 % of such a layer's parameters, 3 % of a dense one's). The other kinds
    are dense and bf16. All use the full attention that most of the target's growing layers have.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> from kvsim.memory.drafts import parse_draft
    >>> k3 = default_store().get("model", "kimi-k3")
    >>> drafter_model(k3, parse_draft("dspark-fp8-k7"), 4e9).num_layers
    5
    """
    name, moe, dense, weights = main_attention(target), None, 0, target.weights
    if draft.kind == "mtp":
        moe = target.moe and target.moe.model_copy(update={"dense_layers": ()})
        dense = 0 if moe else target.dense_intermediate
    else:
        weights = WeightFormat(default="bf16")
        dense = _mlp_width(target, draft, name, params)
    return target.model_copy(update={
        "layers": (LayerRun(pattern=(name,), repeat=draft.num_layers),), "attention": {name: target.attention[name]},
        "moe": moe, "dense_intermediate": dense, "weights": weights, "depth_residual": None, "vision_params": None,
        "checkpoint": None, "num_mtp_layers": 0, "gated_mlp": target.gated_mlp if draft.kind == "mtp" else True})


def draft_weight_bytes(drafter: ModelProfile, layout: Layout) -> float:
    """Bytes of a draft's own weights on one rank of the last pipeline stage, shared embedding and head left out.

    Notes
    -----
    Split like the target's (vLLM's ``draft_tensor_parallel_size`` defaults to the target's degree).
    """
    counts = component_params(drafter)
    shared = (counts["embedding"] + counts["lm_head"]) * element_bytes(drafter, "embedding")
    return weight_bytes(drafter, replace(layout, pp=1)).per_gpu_bytes - shared / layout.tp


def _mlp_width(target: ModelProfile, draft: Draft, attention: str, params: float | None) -> int:
    """Width of the gated MLP of a dense draft layer."""
    if params is None:
        return target.dense_intermediate or round(ASSUMED_MLP * target.hidden)
    left = params / draft.num_layers - attention_params(target.attention[attention], target.hidden)
    return max(1, round(left / (3 * target.hidden)))


def with_draft_weights(budget: MemoryBudget, num_bytes: float, origin: str) -> MemoryBudget:
    """A budget with one more line: the draft's own weights, on the fullest GPU."""
    line = BudgetLine("draft weights", -num_bytes, "derived", origin, -num_bytes, -num_bytes)
    at = next(i for i, known in enumerate(budget.lines) if known.name == "weights") + 1
    low, high = budget.kv_bytes_range
    return replace(budget, lines=(*budget.lines[:at], line, *budget.lines[at:]), kv_bytes=budget.kv_bytes - num_bytes,
                   kv_bytes_range=(low - num_bytes, high - num_bytes))
