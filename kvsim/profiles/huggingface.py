"""Imports a model profile from a Hugging Face ``config.json``."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from pydantic import ValidationError

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.hf_attention import (
    Layers,
    compressed,
    gated_delta,
    grouped_query,
    kimi_linear,
    latent,
    layer_runs,
    minimax_m3,
    single_part_layers,
)
from kvsim.profiles.hf_reader import ConfigReader
from kvsim.profiles.hf_weights import weight_format
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.parameters import active_params, component_params


@dataclass(frozen=True, slots=True)
class Family:
    """How configs of one ``model_type`` are read.

    Parameters
    ----------
    attention : callable
        Reads attention blocks and the name of every layer.
    experts : bool
        Whether every model of it has experts, so that their keys may not be missing.
    expert_width : str
        Key of an expert's intermediate width.
    dense_first : bool
        Whether the config must say how many first layers have no experts.
    kernel_block_tokens : int
        Token step of the attention kernels that vLLM picks [tokens].
    constant_state : bool
        Whether some layers keep a state; vLLM then leaves prefix caching off by default.
    defaults : mapping
        Keys that published configs of it leave out, and what transformers takes then.
    """

    attention: Callable[[ConfigReader], Layers]
    experts: bool = True
    expert_width: str = "moe_intermediate_size"
    dense_first: bool = False
    kernel_block_tokens: int = 16
    constant_state: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


_DENSE = Family(grouped_query, experts=False)
_GQA_EXPERTS = Family(grouped_query)
_GQA_WIDE = Family(grouped_query, expert_width="intermediate_size")
_LATENT = Family(latent, dense_first=True, kernel_block_tokens=64)
_M3 = Family(minimax_m3, expert_width="intermediate_size", kernel_block_tokens=128)
_DELTA = Family(gated_delta, experts=False, constant_state=True)
_DELTA_EXPERTS = Family(gated_delta, constant_state=True)
# transformers' Gemma3TextConfig: the configs of 4B, 12B and 27B name only what differs from it.
_GEMMA3 = Family(grouped_query, experts=False, defaults=MappingProxyType({
    "vocab_size": 262_208, "max_position_embeddings": 131_072, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "sliding_window_pattern": 6, "tie_word_embeddings": True}))

FAMILIES: MappingProxyType[str, Family] = MappingProxyType({
    "llama": _DENSE, "mistral": _DENSE, "qwen2": _DENSE, "qwen3": _DENSE,
    "qwen3_moe": _GQA_EXPERTS, "glm4_moe": Family(grouped_query, dense_first=True),
    "mixtral": _GQA_WIDE, "gpt_oss": _GQA_WIDE, "minimax": _GQA_WIDE, "minimax_m2": _GQA_WIDE,
    "minimax_m3": _M3, "minimax_m3_text": _M3, "minimax_m3_vl": _M3,
    "deepseek_v2": _LATENT, "deepseek_v3": _LATENT, "deepseek_v32": _LATENT, "kimi_k2": _LATENT,
    "glm_moe_dsa": _LATENT, "deepseek_v4": Family(compressed, kernel_block_tokens=256),
    "kimi_k3": Family(kimi_linear, dense_first=True, kernel_block_tokens=128, constant_state=True),
    "kimi_linear": Family(kimi_linear, dense_first=True, kernel_block_tokens=32, constant_state=True),
    "qwen3_next": _DELTA_EXPERTS, "qwen3_5_moe": _DELTA_EXPERTS, "qwen3_5_moe_text": _DELTA_EXPERTS,
    "qwen3_5": _DELTA, "qwen3_5_text": _DELTA, "gemma3": _GEMMA3, "gemma3_text": _GEMMA3,
})
"""``model_type`` of a config -> how it is read."""

UNMODELLED: MappingProxyType[str, Callable[[Mapping[str, Any], str], Problem]] = MappingProxyType({
    "nemotron_h": single_part_layers})
"""``model_type`` of configs that are understood, but whose model cannot be described -> what is in the way."""

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")


def import_config(config: dict[str, Any], name: str, source_url: str = "", accessed: str = "") -> dict[str, Any]:
    """Turn a parsed ``config.json`` into a model profile.

    Parameters
    ----------
    config : dict
        The parsed file. Multimodal configs are read from their ``text_config``.
    name : str
        Name of the profile: lower-case letters, digits, dots and dashes.
    source_url : str
        Where the file was found; kept as the source of every number.
    accessed : str
        Date of reading, ISO; today when empty.

    Returns
    -------
    dict
        Plain data of one ``kvsim/model/1`` file, valid for `ModelProfile` and ready for YAML. Parameter
        totals are counted from the shapes (kind *derived*). Not in a config, so not in the result: checkpoint
        size, activation bytes, vision parameters (a note says so where there is a tower).

    Raises
    ------
    ProfileError
        Unknown architecture, missing keys, numbers that contradict each other: all of them at once.

    Notes
    -----
    ``kernel_block_tokens`` and ``prefix_caching_default`` are vLLM's choices for the family, not the config's.

    Examples
    --------
    >>> llama = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    ...          "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}
    >>> profile = import_config(llama, "my-llama")
    >>> profile["attention"], profile["total_params"]["value"]
    ({'full': {'kind': 'gqa', 'num_heads': 32, 'num_kv_heads': 8, 'head_dim': 128}}, 8.030261248)
    """
    reader, family = _text_part(config, name)
    attention, names = family.attention(reader)
    data: dict[str, Any] = {
        "schema": "kvsim/model/1", "name": name, "shape_source": "config", **_shapes(reader, family, len(names)),
        "attention": attention, "layers": layer_runs(names),
        "kernel_block_tokens": family.kernel_block_tokens, "prefix_caching_default": not family.constant_state,
        "sources": {"config": {"title": f"config.json of {name}", "url": source_url,
                               "accessed": accessed or datetime.date.today().isoformat()}},
    }
    tower = config.get("vision_config") is not None
    notes = ["The config has a vision tower; its parameters are not counted."] if tower else []
    notes += _defaults_note(reader, family)
    if notes:
        data["note"] = " ".join(notes)
    if reader.problems:
        raise ProfileError(f"cannot import {name}", reader.problems)
    return _with_totals(data)


def _defaults_note(reader: ConfigReader, family: Family) -> list[str]:
    """What was taken from the family's defaults."""
    if not reader.left_out:
        return []
    taken = ", ".join(f"{name} {json.dumps(family.defaults[name])}" for name in reader.left_out)
    return [f"Not in the config, so as transformers has it by default: {taken}."]


def _shapes(reader: ConfigReader, family: Family, num_layers: int) -> dict[str, Any]:
    """Everything but attention: widths, experts, weight format, draft layers, depth residuals."""
    moe, block = _moe(reader, family, num_layers), reader.optional(0, "attn_res_block_size")
    residual = {"block_layers": block, "num_blocks": math.ceil(num_layers / block)} if block else None
    return {
        "hidden": reader.integer("hidden_size"), "vocab": reader.integer("vocab_size"),
        "max_positions": reader.integer("max_position_embeddings", "model_max_length"),
        "tied_embeddings": reader.flag(False, "tie_word_embeddings"),
        "dense_intermediate": _dense_width(reader, moe), "weights": weight_format(reader, moe is not None),
        "num_mtp_layers": reader.optional(0, "num_nextn_predict_layers", "mtp_num_hidden_layers"),
        **({"moe": moe} if moe else {}), **({"depth_residual": residual} if residual else {}),
    }


def _text_part(config: dict[str, Any], name: str) -> tuple[ConfigReader, Family]:
    """The text model's keys and its family: the wrapper's name is the narrower one where both are known."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", name):
        raise ProfileError("cannot import", [Problem("name", "", repr(name), "lower-case letters, digits, . and -")])
    inner = config.get("text_config")
    keys = cast("dict[str, Any]", inner) if isinstance(inner, dict) else config
    types = [str(part["model_type"]) for part in (config, keys) if part.get("model_type") is not None]
    for found in types:
        if found in FAMILIES:
            return ConfigReader({**keys, "model_type": found}, name, config, FAMILIES[found].defaults), FAMILIES[found]
        if found in UNMODELLED:
            raise ProfileError(f"cannot import {name}: kvsim does not model {found}", [UNMODELLED[found](keys, name)])
    given = ", ".join(dict.fromkeys(types))
    architectures: list[Any] = config.get("architectures") or []
    hint = f"architectures: {', '.join(str(a) for a in architectures)}" if architectures else ""
    raise ProfileError(f"cannot import {name}: unknown architecture",
                       [Problem(name, "model_type", given, ", ".join(FAMILIES), hint or nearest(given, [*FAMILIES]))])


def _moe(config: ConfigReader, family: Family, num_layers: int) -> dict[str, Any] | None:
    """Experts, or None for a dense model."""
    if config.value(*_EXPERTS) is None and not family.experts:
        return None
    moe = {"num_experts": config.integer(*_EXPERTS),
           "experts_per_token": config.integer("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
           "expert_intermediate": config.integer(family.expert_width)}
    if moe["experts_per_token"] > moe["num_experts"]:
        config.problem("num_experts_per_tok", str(moe["experts_per_token"]), f"at most {moe['num_experts']}")
    moe |= _shared_experts(config, moe["expert_intermediate"])
    latent_dim = config.optional(0, "routed_expert_hidden_size")
    dense = _dense_layers(config, family, num_layers)
    return {**moe, **({"latent_dim": latent_dim} if latent_dim else {}), **({"dense_layers": dense} if dense else {})}


def _shared_experts(config: ConfigReader, expert_width: int) -> dict[str, int]:
    """Number and width of shared experts: a count (as wide as an expert), or one of a stated width."""
    count = config.optional(0, "n_shared_experts", "num_shared_experts")
    width = config.optional(0, "shared_expert_intermediate_size", "shared_intermediate_size")
    if not count and not width:
        return {}
    return {"num_shared_experts": count or 1, "shared_intermediate": width or expert_width}


def _dense_layers(config: ConfigReader, family: Family, num_layers: int) -> list[int]:
    """0-based layers with a dense MLP, by the ways configs say it."""
    kinds = config.per_layer("mlp_layer_types", num_layers, ("dense", "sparse"))
    if kinds is not None:
        return [i for i, kind in enumerate(kinds) if kind == "dense"]
    if isinstance(config.value("moe_layer_freq"), list):
        marks = config.per_layer("moe_layer_freq", num_layers, (0, 1)) or []
        return [i for i, mark in enumerate(marks) if not mark]
    first = config.nullable("first_k_dense_replace") if family.dense_first else 0
    every = config.optional(1, "moe_layer_freq") or 1
    step = config.optional(1, "decoder_sparse_step") or 1
    only = config.listing("mlp_only_layers") or []
    return [i for i in range(num_layers) if i < first or i % every or (i + 1) % step or i in only]


def _dense_width(config: ConfigReader, moe: dict[str, Any] | None) -> int:
    """Width of the dense MLP; 0 where every layer has experts."""
    if moe and not moe.get("dense_layers"):
        return 0
    return config.integer("dense_intermediate_size", "intermediate_size")


def _with_totals(data: dict[str, Any]) -> dict[str, Any]:
    """Add parameter totals counted from the shapes, and check the whole against the schema."""
    draft = {"value": 0, "unit": "Gparams", "kind": "derived", "source": "config"}
    try:
        profile = ModelProfile.model_validate({**data, "total_params": draft, "active_params": draft})
    except ValidationError as error:
        raise ProfileError(f"cannot import {data['name']}", [
            Problem(str(data["name"]), ".".join(str(part) for part in e["loc"]), repr(e["input"]), e["msg"])
            for e in error.errors()]) from error
    total, active = sum(component_params(profile).values()), active_params(profile)
    note = "counted from the shapes"
    return {**data, "total_params": {**draft, "value": total / 1e9, "note": note},
            "active_params": {**draft, "value": active / 1e9, "note": f"{note}, without the embedding table"}}
