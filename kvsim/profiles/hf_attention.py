"""Attention of each layer, read from a Hugging Face config.json, by architecture family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvsim.errors import Problem
from kvsim.profiles.hf_reader import ConfigReader

Layers = tuple[dict[str, dict[str, Any]], list[str]]
"""Attention blocks by name, and the name of every layer."""


def grouped_query(config: ConfigReader) -> Layers:
    """Llama-like models: full attention, or sliding windows where the config says so."""
    blocks = {"full": _gqa(config)}
    num_layers = config.integer("num_hidden_layers")
    if config.value("attn_type_list") is not None:
        config.per_layer("attn_type_list", num_layers, (1,))
    names = _window_layers(config, num_layers)
    if "sliding" in names:
        blocks["sliding"] = {**blocks["full"], "window": config.integer("sliding_window")}
    return {name: blocks[name] for name in dict.fromkeys(names)}, names


def latent(config: ConfigReader) -> Layers:
    """DeepSeek-like models: one latent a token, with or without a sparse-attention indexer."""
    block, num_layers = _mla(config), config.integer("num_hidden_layers")
    sparse = config.value("model_type") in ("deepseek_v32", "glm_moe_dsa") or config.value("index_head_dim")
    if not sparse:
        return {"mla": block}, ["mla"] * num_layers
    chooses = {**block, "indexer_topk": config.integer("index_topk")}
    indexed = {**chooses, "indexer_head_dim": config.integer("index_head_dim"),
               "indexer_num_heads": config.integer("index_n_heads")}
    owners = config.per_layer("indexer_types", num_layers, ("full", "shared"))
    if owners is None or "shared" not in owners:
        return {"mla": indexed}, ["mla"] * num_layers
    if owners[0] == "shared":
        config.problem("indexer_types", "'shared' in layer 0", "'full' in layer 0")
    names = ["mla-indexed" if owner == "full" else "mla-shared" for owner in owners]
    return {"mla-indexed": indexed, "mla-shared": chooses}, names


def kimi_linear(config: ConfigReader) -> Layers:
    """Kimi-Linear and Kimi K3: delta attention with some latent layers; layer numbers count from 1."""
    inner = ConfigReader(config.mapping("linear_attn_config"), f"{config.where}: linear_attn_config", {})
    kda = {"kind": "kda", "num_heads": inner.integer("num_heads"), "head_dim": inner.integer("head_dim"),
           "conv_kernel": inner.integer("short_conv_kernel_size"),
           "full_rank_gate": inner.flag(False, "use_full_rank_gate")}
    mla = {**_mla(config), "output_gate": config.flag(False, "mla_use_output_gate")}
    names = _numbered_layers(inner, config.integer("num_hidden_layers"))
    config.problems += inner.problems
    return {"kda": kda, "mla": mla}, names


def gated_delta(config: ConfigReader) -> Layers:
    """Qwen3-Next and Qwen3.5: Gated DeltaNet with gated full attention every few layers."""
    num_layers = config.integer("num_hidden_layers")
    types = config.per_layer("layer_types", num_layers, ("linear_attention", "full_attention"))
    if types is not None:
        names = ["full" if t == "full_attention" else "gdn" for t in types]
    else:
        every = config.integer("full_attention_interval", "layer_types")
        names = ["full" if (i + 1) % every == 0 else "gdn" for i in range(num_layers)]
    k_heads, v_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if v_heads % k_heads:
        config.problem("linear_num_value_heads", str(v_heads), f"a multiple of linear_num_key_heads ({k_heads})")
    gdn = {"kind": "gdn", "num_k_heads": k_heads, "num_v_heads": v_heads,
           "k_head_dim": config.integer("linear_key_head_dim"), "v_head_dim": config.integer("linear_value_head_dim"),
           "conv_kernel": config.integer("linear_conv_kernel_dim")}
    return {"gdn": gdn, "full": {**_gqa(config), "output_gate": config.flag(True, "attn_output_gate")}}, names


def minimax_m3(config: ConfigReader) -> Layers:
    """MiniMax-M3: grouped queries, with block-sparse choice by index keys in most layers."""
    num_layers, block = config.integer("num_hidden_layers"), _gqa(config)
    inner = ConfigReader(config.mapping("sparse_attention_config"), f"{config.where}: sparse_attention_config", {})
    chooses = {**block, "index_key_bytes_bf16": 2 * inner.integer("sparse_index_dim"),
               "index_num_heads": inner.integer("sparse_num_index_heads"),
               "index_topk": inner.integer("sparse_topk_blocks") * inner.integer("sparse_block_size")}
    if inner.value("sparse_attention_freq") is None:
        inner.problem("sparse_attention_freq", "", "a list of 0 and 1")
    marks = inner.per_layer("sparse_attention_freq", num_layers, (0, 1)) or [0] * num_layers
    config.problems += inner.problems
    return {"full": block, "sparse": chooses}, ["sparse" if mark else "full" for mark in marks]


def compressed(config: ConfigReader) -> Layers:
    """DeepSeek-V4: entries of 4 tokens with an indexer, or of 128 without; a window of raw tokens."""
    num_layers = config.integer("num_hidden_layers")
    if config.value("compress_ratios") is None:
        config.problem("compress_ratios", "", "a list of 4 and 128")
    ratios = config.per_layer("compress_ratios", num_layers, (4, 128)) or [128] * num_layers
    base = {"kind": "compressed", "num_heads": config.integer("num_attention_heads"),
            "entry_dim": config.integer("head_dim"), "window": config.integer("sliding_window"),
            "q_lora_rank": config.integer("q_lora_rank"), "o_lora_rank": config.integer("o_lora_rank"),
            "o_groups": config.integer("o_groups")}
    csa = {**base, "ratio": 4, "overlap": True, "indexer_head_dim": config.integer("index_head_dim"),
           "indexer_num_heads": config.integer("index_n_heads"), "indexer_topk": config.integer("index_topk")}
    return {"csa": csa, "hca": {**base, "ratio": 128}}, ["csa" if ratio == 4 else "hca" for ratio in ratios]


def single_part_layers(keys: Mapping[str, Any], where: str) -> Problem:
    """Why Nemotron-H cannot be described: its layers are a mixer or an MLP each, and some mixers have no MLP behind.

    >>> single_part_layers({"hybrid_override_pattern": "M-M*-E"}, "x").given
    '2 Mamba-2, 1 attention, 2 MLP and 1 expert layers, each of one part'
    """
    names = _PARTS.values()
    stated = keys.get("hybrid_override_pattern") or keys.get("layers_block_type") or ()
    found = Counter(_PARTS.get(part, "unknown") for part in stated)
    counts = [f"{found[name]} {name}" for name in dict.fromkeys(names) if found[name]]
    given = f"{', '.join(counts[:-1])} and {counts[-1]}" if len(counts) > 1 else "".join(counts) or "no"
    return Problem(where, "hybrid_override_pattern", f"{given} layers, each of one part",
                   "layers of two parts, attention or a state and then an MLP or experts",
                   "a profile cannot say that some layers have no MLP: their weights and times would be wrong")


_PARTS = MappingProxyType({
    "M": "Mamba-2", "mamba": "Mamba-2", "linear_attention": "Mamba-2", "*": "attention", "attention": "attention",
    "full_attention": "attention", "-": "MLP", "mlp": "MLP", "E": "expert", "moe": "expert"})
"""Letters and names of Nemotron-H's layers."""


def layer_runs(names: list[str]) -> list[dict[str, Any]]:
    """Write a list of layers as repeated patterns.

    >>> layer_runs(["a", "a", "b", "a", "a", "b", "b"])
    [{'pattern': ['a', 'a', 'b'], 'repeat': 2}, {'pattern': ['b'], 'repeat': 1}]
    """
    runs: list[dict[str, Any]] = []
    at = 0
    while at < len(names):
        period, repeat = _longest_run(names[at:])
        runs.append({"pattern": names[at:at + period], "repeat": repeat})
        at += period * repeat
    return runs


def _longest_run(names: list[str]) -> tuple[int, int]:
    """The (pattern length, repeats) that covers most of the list's head; the shortest pattern wins."""
    best = (1, 1)
    for period in range(1, min(8, len(names)) + 1):
        repeat = 1
        while names[period * repeat:period * (repeat + 1)] == names[:period]:
            repeat += 1
        if period == 1 or (repeat > 1 and period * repeat > best[0] * best[1]):
            best = (period, repeat)
    return best


def _gqa(config: ConfigReader) -> dict[str, Any]:
    """Heads of a grouped-query layer, with the defaults of transformers where the key may be absent."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    family = config.value("model_type")
    kv_heads = config.optional(heads, "num_key_value_heads") if family == "llama" else \
        config.integer("num_key_value_heads")
    if not kv_heads or heads % kv_heads:
        config.problem("num_key_value_heads", str(kv_heads), f"a divisor of num_attention_heads ({heads})")
    if family not in _HEADS_FILL_HIDDEN or config.value("head_dim") is not None:
        head_dim = config.integer("head_dim")
    else:
        head_dim = hidden // heads or 1
        if hidden % heads:
            config.problem("hidden_size", str(hidden), f"a multiple of num_attention_heads ({heads}), or a head_dim")
    return {"kind": "gqa", "num_heads": heads, "num_kv_heads": kv_heads or 1, "head_dim": head_dim}


_HEADS_FILL_HIDDEN = ("llama", "mistral", "mixtral", "qwen2")


def _mla(config: ConfigReader) -> dict[str, Any]:
    """Ranks and head sizes of a latent layer; q_lora_rank null means no query bottleneck."""
    return {"kind": "mla", "num_heads": config.integer("num_attention_heads"),
            "q_lora_rank": config.nullable("q_lora_rank"), "kv_lora_rank": config.integer("kv_lora_rank"),
            "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
            "qk_rope_head_dim": config.integer("qk_rope_head_dim"), "v_head_dim": config.integer("v_head_dim")}


def _window_layers(config: ConfigReader, num_layers: int) -> list[str]:
    """Full or sliding for every layer, by the ways configs say it."""
    types = config.per_layer("layer_types", num_layers, ("full_attention", "sliding_attention"))
    if types is not None:
        return ["sliding" if t == "sliding_attention" else "full" for t in types]
    model_type = config.value("model_type")
    if model_type == "gpt_oss":
        config.problem("layer_types", "", f"a list of {num_layers}")
    if model_type in ("qwen2", "qwen3", "qwen3_moe") and config.flag(False, "use_sliding_window"):
        first = config.integer("max_window_layers")
        return ["sliding" if i >= first else "full" for i in range(num_layers)]
    if model_type in ("gemma3", "gemma3_text"):
        every = config.integer("sliding_window_pattern", "_sliding_window_pattern")
        return ["sliding" if (i + 1) % every else "full" for i in range(num_layers)]
    if model_type in ("mistral", "mixtral") and config.value("sliding_window") is not None:
        return ["sliding"] * num_layers
    return ["full"] * num_layers


def _numbered_layers(linear: ConfigReader, num_layers: int) -> list[str]:
    """Layer names from two lists of 1-based numbers that must cover every layer once."""
    full, kda = linear.listing("full_attn_layers"), linear.listing("kda_layers")
    for name, found in (("full_attn_layers", full), ("kda_layers", kda)):
        if found is None and linear.value(name) is None:
            linear.problem(name, "", "a list of layer numbers from 1")
    if full is None or kda is None:
        return ["mla"] * num_layers
    numbers = [*full, *kda]
    if any(not isinstance(n, int) for n in numbers) or sorted(numbers) != list(range(1, num_layers + 1)):
        linear.problem("full_attn_layers", f"{len(numbers)} numbers with kda_layers",
                       f"every layer 1 to {num_layers} once in one of the two")
    return ["mla" if i + 1 in full else "kda" for i in range(num_layers)]
