"""Whether a layout can be built: heads, layers, experts and GPUs must divide as engines divide them."""

from __future__ import annotations

from kvsim.errors import Problem
from kvsim.layout import Layout
from kvsim.profiles.model import Attention, GdnAttention, GqaAttention, ModelProfile


def layout_problems(model: ModelProfile, layout: Layout, num_gpus: int, where: str = "scenario") -> list[Problem]:
    """Everything that keeps `layout` from serving `model` on `num_gpus` GPUs.

    Returns
    -------
    list of Problem
        Empty when it can be built.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> k3 = default_store().get("model", "kimi-k3")
    >>> print(layout_problems(k3, Layout(tp=7), 7)[0])
    scenario: layout.tp: got 7; accepted: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96 (kimi-k3 has 96 heads)
    """
    return [*_gpu_problems(layout, num_gpus, where), *_head_problems(model, layout, where),
            *_stage_problems(model, layout, where), *_expert_problems(model, layout, where)]


def _gpu_problems(layout: Layout, num_gpus: int, where: str) -> list[Problem]:
    if layout.num_gpus == num_gpus:
        return []
    product = f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} = {layout.num_gpus} GPUs"
    return [Problem(where, "layout", product, f"a product of {num_gpus}, the hardware's num_gpus")]


def _head_problems(model: ModelProfile, layout: Layout, where: str) -> list[Problem]:
    divided = dict.fromkeys(pair for spec in model.attention.values() for pair in _divided_heads(spec))
    fitting = [tp for tp in range(1, 1 + max(heads for heads, _ in divided))
               if all(_divides(tp, heads, what) for heads, what in divided)]
    if layout.tp in fitting:
        return []
    has = " and ".join(f"{heads} {what}" for heads, what in divided)
    return [Problem(where, "layout.tp", str(layout.tp), ", ".join(map(str, fitting)), f"{model.name} has {has}")]


def _divides(tp: int, heads: int, what: str) -> bool:
    """Whether heads can be split over TP ranks; KV heads may also be repeated, one on several ranks."""
    return heads % tp == 0 or (what == "KV heads" and tp % heads == 0)


def _divided_heads(spec: Attention) -> list[tuple[int, str]]:
    if isinstance(spec, GqaAttention):
        return [(spec.num_heads, "heads"), (spec.num_kv_heads, "KV heads")]
    if isinstance(spec, GdnAttention):
        return [(spec.num_k_heads, "key heads"), (spec.num_v_heads, "value heads")]
    return [(spec.num_heads, "heads")]


def _stage_problems(model: ModelProfile, layout: Layout, where: str) -> list[Problem]:
    found: list[Problem] = []
    if layout.pp > model.num_layers:
        found.append(Problem(where, "layout.pp", str(layout.pp), f"at most {model.num_layers}, the layers"))
    if layout.tp % layout.dcp:
        found.append(Problem(where, "layout.dcp", str(layout.dcp), f"a divisor of tp {layout.tp}"))
    return found


def _expert_problems(model: ModelProfile, layout: Layout, where: str) -> list[Problem]:
    if layout.ep == 1:
        return []
    if model.moe is None:
        return [Problem(where, "layout.ep", str(layout.ep), f"1: {model.name} has no experts")]
    whole = layout.tp * layout.dp
    if layout.ep != whole:
        return [Problem(where, "layout.ep", str(layout.ep), f"1 or tp x dp = {whole}")]
    if model.moe.num_experts % layout.ep:
        return [Problem(where, "layout.ep", str(layout.ep), f"a divisor of {model.moe.num_experts} experts")]
    return []
