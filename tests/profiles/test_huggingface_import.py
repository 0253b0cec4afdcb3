"""Imports of public Hugging Face configs give the shapes of the shipped profiles; unclear configs are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.errors import ProfileError
from kvsim.memory.layers import model_bytes_per_token
from kvsim.profiles.hf_attention import layer_runs
from kvsim.profiles.huggingface import FAMILIES, import_config
from kvsim.profiles.model import GqaAttention, ModelProfile
from kvsim.profiles.parameters import component_params

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "tests/data/hf_configs").glob("*.json"))
SHAPES = ("layer_names", "hidden", "vocab", "max_positions", "tied_embeddings", "dense_intermediate", "gated_mlp",
          "attention", "moe", "weights", "depth_residual", "kernel_block_tokens", "prefix_caching_default")


def config_of(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"tests/data/hf_configs/{name}.json").read_text())


def imported(config: dict[str, Any]) -> ModelProfile:
    return ModelProfile.model_validate(import_config(config, "m", "https://example.com/config.json", "2026-11-30"))


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ProfileError) as caught:
        import_config(config, "m")
    return str(caught.value)


def changed(name: str, **keys: Any) -> dict[str, Any]:
    """A config with some keys replaced (in its text part), or dropped where the value is Ellipsis."""
    config = copy.deepcopy(config_of(name))
    part = config.get("text_config", config)
    for key, value in keys.items():
        part.pop(key, None)
        if value is not ...:
            part[key] = value
    return config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_import_reproduces_the_shipped_profile(path: Path) -> None:
    shipped = ModelProfile.model_validate(yaml.safe_load((ROOT / f"models/{path.stem}.yaml").read_text()))
    profile = imported(json.loads(path.read_text()))
    for field in SHAPES:
        assert getattr(profile, field) == getattr(shipped, field), field
    vision = shipped.vision_params.base if shipped.vision_params else 0.0
    assert profile.total_params.base + vision == pytest.approx(shipped.total_params.base, rel=0.02)
    assert bool(profile.note) == (json.loads(path.read_text()).get("vision_config") is not None)


def test_there_are_enough_real_configs_of_different_families() -> None:
    types = {json.loads(p.read_text())["model_type"] for p in CONFIGS}
    assert len(types) >= 12
    assert types <= set(FAMILIES)


def test_result_survives_yaml_and_names_its_source() -> None:
    data = import_config(config_of("kimi-k3"), "my-k3", "https://example.com/config.json", "2026-11-30")
    again = yaml.safe_load(yaml.safe_dump(data))
    assert again == data
    assert data["sources"] == {"config": {"title": "config.json of my-k3", "url": "https://example.com/config.json",
                                          "accessed": "2026-11-30"}}
    assert [data[key]["source"] for key in ("total_params", "active_params")] == ["config"] * 2
    assert data["shape_source"] == "config"


def test_draft_layers_are_counted_but_not_part_of_the_model() -> None:
    profile = imported(config_of("deepseek-v4-pro"))
    assert profile.num_mtp_layers == 1
    assert profile.num_layers == 61
    assert imported(config_of("qwen3.6-27b")).num_mtp_layers == 1


@pytest.mark.parametrize(("keys", "expected"), [
    ({}, ["full"] * 32),
    ({"model_type": "mistral", "sliding_window": 4096}, ["sliding"] * 32),
    ({"model_type": "mistral", "sliding_window": None}, ["full"] * 32),
    ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}, ["full"] * 32),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 30},
     ["full"] * 30 + ["sliding"] * 2),
    ({"model_type": "llama", "sliding_window": 4096,
      "layer_types": ["full_attention", "sliding_attention"] * 16}, ["full", "sliding"] * 16),
])
def test_sliding_windows_by_every_way_configs_say_them(keys: dict[str, Any], expected: list[str]) -> None:
    profile = imported(changed("llama-3.1-8b", **keys))
    assert list(profile.layer_names) == expected
    for name, spec in profile.attention.items():
        assert isinstance(spec, GqaAttention)
        assert spec.window == (4096 if name == "sliding" else 0)


@pytest.mark.parametrize(("keys", "dense"), [
    ({"decoder_sparse_step": 2}, tuple(range(0, 48, 2))),
    ({"mlp_only_layers": [0, 5]}, (0, 5)),
    ({"decoder_sparse_step": 1}, ()),
])
def test_layers_without_experts(keys: dict[str, Any], dense: tuple[int, ...]) -> None:
    profile = imported(changed("qwen3-30b-a3b", **keys))
    assert profile.moe is not None
    assert profile.moe.dense_layers == dense
    assert profile.dense_intermediate == (6144 if dense else 0)


@pytest.mark.parametrize(("quantization", "expected"), [
    ({"quant_method": "fp8"}, {"default": "fp8", "embedding": "bf16"}),
    ({"quant_method": "awq", "bits": 4, "group_size": 64},
     {"default": "int4", "embedding": "bf16", "int4_group_size": 64}),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, {"default": "int8", "embedding": "bf16"}),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, {"default": "int4", "embedding": "bf16"}),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]},
     {"default": "nvfp4", "embedding": "bf16", "attention": "bf16"}),
    ({"quant_method": "compressed-tensors", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
     {"default": "nvfp4", "embedding": "bf16"}),
    ({"quant_method": "compressed-tensors", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "group_size": None}}}},
     {"default": "int8", "embedding": "bf16"}),
])
def test_weight_formats(quantization: dict[str, Any], expected: dict[str, Any]) -> None:
    assert import_config(changed("llama-3.1-8b", quantization_config=quantization), "m")["weights"] == expected


def test_unknown_architecture_is_named_with_the_accepted_ones() -> None:
    text = refusal({"model_type": "rwkv7", "architectures": ["Rwkv7ForCausalLM"]})
    assert "rwkv7" in text
    assert "Rwkv7ForCausalLM" in text
    assert all(family in text for family in FAMILIES)
    assert "did you mean 'qwen3_moe'?" in refusal({"model_type": "qwen3moe"})
    assert "model_type: missing" in refusal({"hidden_size": 8})


GEMMA_27B = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
             "text_config": {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
                             "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
                             "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "sliding_window": 1024},
             "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "num_hidden_layers": 27}}
GEMMA_4B = {"model_type": "gemma3", "torch_dtype": "bfloat16",
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                            "num_hidden_layers": 34, "sliding_window": 1024}}
GEMMA_1B = {"model_type": "gemma3_text", "torch_dtype": "bfloat16", "head_dim": 256, "hidden_size": 1152,
            "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
            "num_hidden_layers": 26, "num_key_value_heads": 1, "sliding_window": 512, "sliding_window_pattern": 6,
            "vocab_size": 262144}


@pytest.mark.parametrize(("config", "embedding", "others"), [
    (GEMMA_27B, 1_416e6, 25_600e6), (GEMMA_4B, 675e6, 3_209e6), (GEMMA_1B, 302e6, 698e6)], ids=("27b", "4b", "1b"))
def test_gemma_3_has_the_parameters_of_its_report(config: dict[str, Any], embedding: float, others: float) -> None:
    """Gemma 3 Technical Report (2025), table of parameter counts: embedding and non-embedding."""
    profile = imported(config)
    parts = component_params(profile)
    assert parts["embedding"] == pytest.approx(embedding, rel=0.01)
    assert sum(parts.values()) - parts["embedding"] == pytest.approx(others, rel=0.01)
    assert parts["lm_head"] == 0


def test_gemma_3_has_five_windows_to_a_full_layer() -> None:
    profile = imported(GEMMA_27B)
    assert profile.layer_names[:7] == ("sliding",) * 5 + ("full", "sliding")
    assert (profile.layer_names.count("full"), profile.layer_names.count("sliding")) == (10, 52)
    assert profile.attention["sliding"] == GqaAttention(kind="gqa", num_heads=32, num_kv_heads=16, head_dim=128,
                                                        window=1024)
    assert model_bytes_per_token(profile, "bf16") == 10 * 2 * 16 * 128 * 2
    assert imported({**GEMMA_1B, "sliding_window_pattern": None, "_sliding_window_pattern": 2}).layer_names[:3] == \
        ("sliding", "full", "sliding")


def test_what_gemma_3_configs_leave_out_is_said() -> None:
    note = imported(GEMMA_27B).note
    assert "vision tower" in note
    assert note.endswith("by default: vocab_size 262208, max_position_embeddings 131072, sliding_window_pattern 6, "
                         "tie_word_embeddings true.")
    assert "num_attention_heads" not in note
    assert "num_attention_heads 8, num_key_value_heads 4, head_dim 256" in imported(GEMMA_4B).note
    assert imported({**GEMMA_1B, "tie_word_embeddings": True}).note == ""
    assert "m: hidden_size: missing" in refusal({"model_type": "gemma3_text"})


@pytest.mark.parametrize("keys", [
    {"hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"},
    {"layers_block_type": ["mamba"] * 27 + ["attention"] * 4 + ["mlp"] * 25},
])
def test_nemotron_h_is_refused_with_what_is_in_the_way(keys: dict[str, Any]) -> None:
    text = refusal({"model_type": "nemotron_h", "hidden_size": 4480, **keys})
    assert "kvsim does not model nemotron_h" in text
    assert "got 27 Mamba-2, 4 attention and 25 MLP layers, each of one part; accepted: layers of two parts" in text
    assert "no layers, each of one part" in refusal({"model_type": "nemotron_h"})


def test_all_missing_keys_are_reported_at_once() -> None:
    text = refusal({"model_type": "deepseek_v3"})
    for key in ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "hidden_size",
                "num_hidden_layers", "vocab_size", "max_position_embeddings", "n_routed_experts",
                "moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace", "torch_dtype"):
        assert f"m: {key}: missing" in text, key


@pytest.mark.parametrize(("name", "keys", "message"), [
    ("llama-3.1-8b", {"num_key_value_heads": 5}, "num_key_value_heads: got 5; accepted: a divisor of"),
    ("llama-3.1-8b", {"hidden_size": 4097}, "hidden_size: got 4097; accepted: a multiple of"),
    ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size: got '4096'; accepted: a whole number"),
    ("llama-3.1-8b", {"vocab_size": True}, "vocab_size: got True; accepted: a whole number"),
    ("llama-3.1-8b", {"layer_types": ["full_attention"] * 31}, "layer_types: got 31 entries; accepted: 32"),
    ("llama-3.1-8b", {"layer_types": ["full_attention"] * 31 + ["chunked_attention"]}, "got 'chunked_attention'"),
    ("llama-3.1-8b", {"model_type": "mistral", "num_key_value_heads": ...}, "num_key_value_heads: missing"),
    ("llama-3.1-8b", {"torch_dtype": "float8_e4m3fn"}, "torch_dtype: got 'float8_e4m3fn'"),
    ("llama-3.1-8b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings: got 'yes'"),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "bitsandbytes"}}, "got 'bitsandbytes'; accepted: awq"),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
     "got 'MIXED_PRECISION'"),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits: got 3; accepted: 4 or 8"),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
     "0 weight formats; accepted: exactly one"),
    ("qwen3-30b-a3b", {"num_experts_per_tok": 200}, "num_experts_per_tok: got 200; accepted: at most 128"),
    ("qwen3-30b-a3b", {"head_dim": ...}, "head_dim: missing"),
    ("qwen3-30b-a3b", {"num_experts": ...}, "n_routed_experts: missing"),
    ("gpt-oss-120b", {"layer_types": ...}, "layer_types: missing"),
    ("gpt-oss-120b", {"sliding_window": ...}, "sliding_window: missing"),
    ("minimax-m2", {"attn_type_list": [0, 1] * 31}, "attn_type_list: got 0; accepted: 1"),
    ("minimax-m3", {"sparse_attention_config": ...}, "sparse_attention_config: missing"),
    ("qwen3.6-27b", {"layer_types": ..., "full_attention_interval": ...}, "full_attention_interval: missing"),
    ("qwen3.6-27b", {"linear_num_value_heads": 40}, "linear_num_value_heads: got 40; accepted: a multiple of"),
    ("glm-5.2", {"index_topk": ...}, "index_topk: missing"),
    ("glm-5.2", {"indexer_types": ["shared"] * 78}, "accepted: 'full' in layer 0"),
    ("deepseek-v4-pro", {"compress_ratios": [128] * 61}, "compress_ratios: got 61 entries"),
    ("deepseek-v4-pro", {"compress_ratios": [2] * 62}, "compress_ratios: got 2; accepted: 4, 128"),
    ("deepseek-v4-pro", {"expert_dtype": "int3"}, "expert_dtype: got 'int3'"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": ...}, "linear_attn_config: missing"),
    ("kimi-linear-48b-a3b", {"num_hidden_layers": 28}, "accepted: every layer 1 to 28 once"),
])
def test_unclear_configs_are_refused(name: str, keys: dict[str, Any], message: str) -> None:
    assert message in refusal(changed(name, **keys))


def test_a_bad_profile_name_is_refused() -> None:
    with pytest.raises(ProfileError, match="lower-case letters"):
        import_config(config_of("llama-3.1-8b"), "My Llama")


@pytest.mark.parametrize("names", [["a"], ["a"] * 7, ["a", "b"] * 5 + ["b"], ["a", "a", "b", "c"] * 3 + ["a"],
                                   ["c", "a", "b", "a", "b", "b", "b"]])
def test_layer_runs_expand_to_the_same_layers(names: list[str]) -> None:
    runs = layer_runs(names)
    assert [n for run in runs for _ in range(run["repeat"]) for n in run["pattern"]] == names
    assert len(runs) <= 4
