"""Storage format of the weights, read from a Hugging Face config.json."""

from __future__ import annotations

import re
from typing import Any

from kvsim.profiles.hf_reader import ConfigReader

_BASE = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MODULES = {
    "attention": ("model.layers.9.self_attn.q_proj", "model.layers.9.self_attn.o_proj"),
    "shared_experts": ("model.layers.9.mlp.shared_experts.up_proj",),
    "dense_mlp": ("model.layers.0.mlp.up_proj",),
    "routed_experts": ("model.layers.9.mlp.experts.0.up_proj",),
}
_METHODS = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4", "mxfp8")


def weight_format(config: ConfigReader, has_experts: bool) -> dict[str, Any]:
    """Weight format by component.

    Parameters
    ----------
    config : ConfigReader
        Its ``quantization_config`` (if any) and ``torch_dtype`` are read.
    has_experts : bool
        Whether the model has routed experts.

    Returns
    -------
    dict
        Keys of ``WeightFormat``. Embedding and LM head keep the base format: no method here quantises them.

    Notes
    -----
    A component is unquantised when the method's ignore list matches a typical module of it. A method, a
    bit width or a mix of groups that is not understood is a problem, never a guess.
    """
    base = _base_dtype(config)
    if config.value("quantization_config") is None:
        return {"default": base}
    keys = config.mapping("quantization_config")
    method = str(keys.get("quant_method", ""))
    if method == "mxfp4":
        return {"default": base, "routed_experts": "mxfp4"}
    dtype, group = _quantised(config, keys, method)
    return {**_by_component(dtype, base, _ignored(keys), has_experts), **_expert_dtype(config),
            **({"int4_group_size": group} if dtype == "int4" and group else {})}


def _base_dtype(config: ConfigReader) -> str:
    """The unquantised format."""
    found = config.value("torch_dtype", "dtype")
    if found not in _BASE:
        config.problem("torch_dtype", "" if found is None else repr(found), ", ".join(_BASE))
        return "bf16"
    return _BASE[str(found)]


def _quantised(config: ConfigReader, keys: dict[str, Any], method: str) -> tuple[str, int]:
    """(format, group size) of the quantised modules."""
    if method in ("fp8", "mxfp8"):
        return "fp8", 0
    if method in ("awq", "gptq"):
        return _integer_format(config, keys.get("bits"), keys.get("group_size"))
    if method == "modelopt":
        return _modelopt_format(config, str(keys.get("quant_algo", "")))
    if method == "compressed-tensors":
        return _groups_format(config, keys)
    config.problem("quantization_config.quant_method", repr(method), ", ".join(_METHODS))
    return "bf16", 0


def _integer_format(config: ConfigReader, bits: Any, group: Any) -> tuple[str, int]:
    """Integer weights of 4 or 8 bits."""
    if bits not in (4, 8):
        config.problem("quantization_config.bits", repr(bits), "4 or 8")
    return ("int4" if bits == 4 else "int8"), group if isinstance(group, int) and group > 0 else 0


def _modelopt_format(config: ConfigReader, algorithm: str) -> tuple[str, int]:
    """ModelOpt names its one algorithm; mixes are not understood."""
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "MXFP4": "mxfp4", "MXFP8": "fp8"}
    if algorithm not in known:
        config.problem("quantization_config.quant_algo", repr(algorithm), ", ".join(known))
    return known.get(algorithm, "bf16"), 0


def _groups_format(config: ConfigReader, keys: dict[str, Any]) -> tuple[str, int]:
    """compressed-tensors: all groups must share one weight format."""
    groups: dict[str, Any] = keys.get("config_groups") or {}
    found = {_group_format(config, group.get("weights") or {}) for group in groups.values()}
    if len(found) != 1:
        config.problem("quantization_config.config_groups", f"{len(found)} weight formats", "exactly one")
        return "bf16", 0
    return found.pop()


def _group_format(config: ConfigReader, weights: dict[str, Any]) -> tuple[str, int]:
    """One group's weight format from bits, type and group size."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "int":
        return _integer_format(config, bits, group)
    if (bits, kind) == (8, "float"):
        return "fp8", 0
    if (bits, kind) == (4, "float") and group in (16, 32):
        return ("nvfp4" if group == 16 else "mxfp4"), 0
    config.problem("quantization_config.config_groups.weights", f"{bits}-bit {kind}, group size {group}",
                   "int of 4 or 8 bits, float of 8, float of 4 in groups of 16 or 32")
    return "bf16", 0


def _ignored(keys: dict[str, Any]) -> list[str]:
    """Patterns of modules that stay unquantised, whatever the method calls the list."""
    patterns: list[Any] = []
    for name in ("ignore", "modules_to_not_convert", "exclude_modules"):
        patterns += keys.get(name) or []
    return [str(pattern) for pattern in patterns]


def _by_component(dtype: str, base: str, ignored: list[str], has_experts: bool) -> dict[str, Any]:
    """Components that differ from the default; the experts' format stands alone when all else is ignored."""
    plain = {part for part, modules in _MODULES.items() if any(_matches(i, m) for i in ignored for m in modules)}
    if has_experts and {"attention", "shared_experts", "dense_mlp"} <= plain and "routed_experts" not in plain:
        return {"default": base, "routed_experts": dtype}
    return {"default": dtype, "embedding": base, **{part: base for part in _MODULES if part in plain}}


def _matches(pattern: str, module: str) -> bool:
    """Whether an ignore entry covers a module: ``re:`` patterns, ``*`` globs, or a part of the path."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    expression = re.escape(pattern).replace(r"\*", ".*")
    return re.search(rf"(^|\.){expression}(\.|$)", module) is not None


def _expert_dtype(config: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V4 names its experts' format beside the rest's."""
    found = config.value("expert_dtype")
    if found is None:
        return {}
    if found not in ("fp4", "fp8"):
        config.problem("expert_dtype", repr(found), "fp4, fp8")
    return {"routed_experts": "mxfp4"} if found == "fp4" else {}
