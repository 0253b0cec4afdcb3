"""Shipped model profiles against published totals, KV sizes and block geometries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from kvsim.profiles.figure import figures_in
from kvsim.profiles.model import (
    Attention,
    CompressedAttention,
    GdnAttention,
    GqaAttention,
    KdaAttention,
    MlaAttention,
    ModelProfile,
)
from kvsim.profiles.parameters import active_params, component_params, mtp_params

MODELS = Path(__file__).parents[2] / "models"
NAMES = sorted(p.stem for p in MODELS.glob("*.yaml"))


def load(name: str) -> ModelProfile:
    return ModelProfile.model_validate(yaml.safe_load((MODELS / f"{name}.yaml").read_text()))


def bytes_per_token(spec: Attention, element: int) -> float:
    """Growing bytes a token of one layer, from the shapes alone; index keys in the same format."""
    match spec:
        case GqaAttention(window=0):
            return 2 * spec.num_kv_heads * spec.head_dim * element
        case MlaAttention():
            return (spec.kv_lora_rank + spec.qk_rope_head_dim + spec.indexer_head_dim) * element
        case CompressedAttention():
            return (spec.entry_dim + spec.indexer_head_dim) * element / spec.ratio
        case _:
            return 0


def state_and_conv_bytes(spec: Attention) -> tuple[int, int]:
    """(recurrent state fp32, convolution state bf16) of one layer and sequence."""
    match spec:
        case KdaAttention():
            channels = 3 * spec.num_heads * spec.head_dim
            return spec.num_heads * spec.head_dim**2 * 4, channels * (spec.conv_kernel - 1) * 2
        case GdnAttention():
            channels = 2 * spec.num_k_heads * spec.k_head_dim + spec.num_v_heads * spec.v_head_dim
            return spec.num_v_heads * spec.k_head_dim * spec.v_head_dim * 4, channels * (spec.conv_kernel - 1) * 2
        case _:
            return 0, 0


def window_bytes(spec: Attention) -> int:
    match spec:
        case CompressedAttention():
            return spec.window * spec.entry_dim * 2
        case GqaAttention():
            return spec.window * 2 * spec.num_kv_heads * spec.head_dim * 2
        case _:
            return 0


@pytest.mark.parametrize("name", NAMES)
def test_profile_loads_and_every_source_is_used(name: str) -> None:
    profile = load(name)
    assert profile.name == name
    assert {f.source for _, f in figures_in(profile)} | {profile.shape_source} == set(profile.sources)
    assert {n for run in profile.layers for n in run.pattern} == set(profile.attention)
    if profile.moe:
        assert all(0 <= layer < profile.num_layers for layer in profile.moe.dense_layers)


def test_all_planned_models_are_there() -> None:
    assert set(NAMES) == {
        "kimi-k3", "kimi-linear-48b-a3b", "kimi-k2", "deepseek-v2-lite", "deepseek-v3", "deepseek-r1", "deepseek-v3.2",
        "deepseek-v4-pro", "qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "qwen3.5-9b", "qwen3.5-397b-a17b",
        "qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3.8-27b", "glm-4.7", "glm-5.2", "minimax-m2", "minimax-m2.5",
        "minimax-m3", "gpt-oss-120b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.3-70b"}


def test_names_and_aliases_are_unique() -> None:
    names = [n.lower() for name in NAMES for n in (name, *load(name).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_components_add_up_to_the_published_total(name: str) -> None:
    profile = load(name)
    assert sum(component_params(profile).values()) == pytest.approx(profile.total_params.base, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_active_parameters_lie_in_the_published_range(name: str) -> None:
    """Between neither and both of embedding and head, as publishers differ; whole billions are cut or rounded."""
    profile, parts = load(name), component_params(load(name))
    published = profile.active_params.base / 1e9
    low = (active_params(profile) - parts["lm_head"]) / 1e9
    high = (active_params(profile) + parts["embedding"]) / 1e9
    if published == round(published):
        assert math.floor(low) <= published <= math.ceil(high)
    else:
        assert 0.97 * low <= published <= 1.03 * high


# Elements that Hugging Face counts in the safetensors files; draft layers come with the checkpoint.
EXACT_TOTALS = [
    ("llama-3.1-8b", 8_030_261_248, 0.0, 0),
    ("llama-3.3-70b", 70_553_706_496, 0.0, 0),
    ("qwen3-30b-a3b", 30_532_122_624, 1e-5, 0),       # norms of single heads
    ("qwen3-235b-a22b", 235_093_634_560, 1e-5, 0),
    ("minimax-m2", 228_703_644_928, 1e-4, 0),         # fp8 block scales
    ("qwen3.6-27b", 27_781_427_952, 1e-5, 0),
    ("qwen3.6-35b-a3b", 71_903_645_408 / 2, 2e-4, 0),  # total_size of the index, bf16
    ("glm-4.7", 358_337_791_296, 1e-4, 2),            # the draft layer brings its own embedding and head
    ("deepseek-v4-pro", 1_599e9, 5e-4, 0),
    ("glm-5.2", 753e9, 1e-3, 0),
]


@pytest.mark.parametrize(("name", "published", "rel", "copies"), EXACT_TOTALS)
def test_counts_match_the_published_files(name: str, published: float, rel: float, copies: int) -> None:
    profile = load(name)
    counted = sum(component_params(profile).values()) + mtp_params(profile) + copies * profile.vocab * profile.hidden
    assert counted == pytest.approx(published, rel=rel, abs=0)


def test_kimi_k3_components_equal_its_tensor_list() -> None:
    """Shapes of the tensors in moonshotai/Kimi-K3's 96 shards."""
    kda = 5 * 12288 * 7168 + 128 * 7168 + 12288 * 128 + 96 * 7168 + 3 * 12288 * 4 + 96 + 12288 + 128
    mla = 1536 * 7168 + 18432 * 1536 + 576 * 7168 + 24576 * 512 + 2 * 12288 * 7168 + 1536 + 512
    assert component_params(load("kimi-k3")) == {
        "embedding": 163840 * 7168,
        "attention": 69 * kda + 24 * mla,
        "dense_mlp": 3 * 33792 * 7168,
        "routed_experts": 92 * 896 * 3 * 3072 * 3584,
        "shared_experts": 92 * 3 * 6144 * 7168,
        "router": 92 * (896 * 7168 + 896),
        "latent_projections": 92 * (2 * 3584 * 7168 + 3584),
        "norms": 93 * 6 * 7168 + 3 * 7168,
        "lm_head": 163840 * 7168,
        "vision": 447_360_000,
    }


def test_kimi_k3_bytes_equal_its_checkpoint() -> None:
    """MXFP4 is 17 bytes for 32 weights; all else is bf16 but for small fp32 tensors."""
    parts = component_params(load("kimi-k3"))
    routed = parts.pop("routed_experts")
    assert routed * 17 / 32 + 2 * sum(parts.values()) == pytest.approx(1_560_936_091_448, rel=1e-4)


def test_gpt_oss_components_equal_its_model_card() -> None:
    """Table 1 of arXiv 2508.10925: MLP 114.71B, attention 0.96B, embedding and head 1.16B, active 5.13B."""
    profile = load("gpt-oss-120b")
    parts = component_params(profile)
    assert parts["routed_experts"] + parts["router"] == pytest.approx(114.71e9, rel=1e-3)
    assert parts["attention"] == pytest.approx(0.96e9, abs=0.005e9)
    assert parts["embedding"] + parts["lm_head"] == pytest.approx(1.16e9, abs=0.005e9)
    assert active_params(profile) == pytest.approx(5.13e9, abs=0.01e9)


def test_kimi_linear_weights_equal_what_an_engine_loaded() -> None:
    """vLLM 0.24.0 on one H200, bf16 random weights of these shapes: 'Model loading took 91.56 GiB'."""
    loaded_bytes = 2 * sum(component_params(load("kimi-linear-48b-a3b")).values())
    assert loaded_bytes == pytest.approx(91.56 * 2**30, rel=0.002)


# (model, bf16, fp8): published KV sizes a token, all layers; index keys counted where the publisher counts them.
KV_BYTES = [
    ("kimi-k3", 27_648, 13_824), ("kimi-linear-48b-a3b", 8_064, 4_032), ("kimi-k2", 70_272, 35_136),
    ("deepseek-v3", 70_272, 35_136), ("deepseek-r1", 70_272, 35_136), ("deepseek-v3.2", 85_888, None),
    ("deepseek-v4-pro", 9_848, None), ("qwen3-next-80b-a3b", 24_576, 12_288), ("qwen3.5-397b-a17b", 30_720, 15_360),
    ("glm-4.7", 376_832, 188_416), ("glm-5.2", 95_232, None), ("minimax-m2", 253_952, 126_976),
    ("minimax-m2.5", 253_952, 126_976), ("minimax-m3", 122_880, 61_440), ("gpt-oss-120b", 36_864, 18_432),
    ("llama-3.3-70b", 327_680, 163_840), ("qwen3-235b-a22b", 192_512, 96_256),
]


@pytest.mark.parametrize(("name", "bf16", "fp8"), KV_BYTES)
def test_kv_bytes_per_token(name: str, bf16: int, fp8: int | None) -> None:
    profile = load(name)
    layers = [profile.attention[n] for n in profile.layer_names]
    assert sum(bytes_per_token(spec, 2) for spec in layers) == bf16
    if fp8 is not None:
        assert sum(bytes_per_token(spec, 1) for spec in layers) == fp8


# (model, layers with state, recurrent state fp32, convolution state bf16), bytes a sequence.
STATES = [
    ("kimi-k3", 69, 434_110_464, 15_261_696), ("kimi-linear-48b-a3b", 20, 41_943_040, 1_474_560),
    ("qwen3-next-80b-a3b", 36, 75_497_472, 1_769_472), ("qwen3.5-397b-a17b", 45, 188_743_680, 3_317_760),
]


@pytest.mark.parametrize(("name", "count", "state", "conv"), STATES)
def test_constant_state(name: str, count: int, state: int, conv: int) -> None:
    profile = load(name)
    pairs = [state_and_conv_bytes(profile.attention[n]) for n in profile.layer_names]
    assert sum(1 for s, _ in pairs if s) == count
    assert (sum(s for s, _ in pairs), sum(c for _, c in pairs)) == (state, conv)


@pytest.mark.parametrize(("name", "expected"), [("deepseek-v4-pro", 7_995_392), ("gpt-oss-120b", 4_718_592)])
def test_windows(name: str, expected: int) -> None:
    profile = load(name)
    assert sum(window_bytes(profile.attention[n]) for n in profile.layer_names) == expected


@pytest.mark.parametrize(("name", "gib"), [("deepseek-v4-pro", 9.62), ("deepseek-v3.2", 83.9)])
def test_published_kv_size_of_a_million_tokens(name: str, gib: float) -> None:
    """vllm.ai/blog/deepseek-v4: 9.62 and 83.9 GiB at 1,048,576 tokens in bf16."""
    profile = load(name)
    token = sum(bytes_per_token(profile.attention[n], 2) for n in profile.layer_names)
    assert token * 2**20 / 2**30 == pytest.approx(gib, rel=0.01)


# vLLM's attention block of hybrid models: (model, TP, bytes an element, tokens).
BLOCKS = [
    ("kimi-k3", 8, 2, 768), ("kimi-k3", 8, 1, 1536), ("kimi-k3", 1, 2, 5760), ("kimi-k3", 1, 1, 11392),
    ("kimi-k3", 2, 2, 2944), ("kimi-k3", 2, 1, 5760), ("kimi-k3", 4, 2, 1536), ("kimi-k3", 4, 1, 2944),
    ("kimi-k3", 16, 2, 384), ("kimi-k3", 16, 1, 768), ("kimi-k3", 32, 2, 256), ("kimi-k3", 32, 1, 384),
    ("kimi-linear-48b-a3b", 2, 2, 960), ("kimi-linear-48b-a3b", 1, 2, 1888),
    ("qwen3.5-9b", 2, 2, 528), ("qwen3.6-27b", 2, 2, 784), ("qwen3.6-27b", 2, 1, 1568), ("qwen3.8-27b", 2, 1, 1568),
    ("qwen3.6-35b-a3b", 1, 2, 1056), ("qwen3.6-35b-a3b", 1, 1, 2096),
]


@pytest.mark.parametrize(("name", "tp", "element", "tokens"), BLOCKS)
def test_block_geometry_of_hybrids(name: str, tp: int, element: int, tokens: int) -> None:
    """The smallest multiple of the kernel step whose page holds one layer's state: g ceil(m / (g a))."""
    profile = load(name)
    specs = list(profile.attention.values())
    state = max(sum(state_and_conv_bytes(s)) for s in specs) // tp
    attention = max(bytes_per_token(s, element) / (tp if isinstance(s, GqaAttention) else 1) for s in specs)
    step = profile.kernel_block_tokens
    assert step * math.ceil(state / (step * attention)) == tokens


@pytest.mark.parametrize(("name", "growing", "constant"), [
    ("kimi-k3", 24, 69), ("kimi-linear-48b-a3b", 7, 20), ("qwen3.5-9b", 8, 24), ("qwen3.6-27b", 16, 48),
    ("qwen3.8-27b", 16, 48), ("qwen3.6-35b-a3b", 10, 30), ("qwen3-next-80b-a3b", 12, 36), ("qwen3.5-397b-a17b", 15, 45),
])
def test_layers_of_hybrids(name: str, growing: int, constant: int) -> None:
    profile = load(name)
    states = [state_and_conv_bytes(profile.attention[n])[0] > 0 for n in profile.layer_names]
    assert (states.count(False), states.count(True)) == (growing, constant)
    assert not profile.prefix_caching_default


def test_kimi_k3_full_attention_layers() -> None:
    names = load("kimi-k3").layer_names
    assert [i + 1 for i, n in enumerate(names) if n == "mla"] == [*range(4, 93, 4), 93]


def test_glm_5_2_indexer_layers() -> None:
    profile = load("glm-5.2")
    owners = [i for i, n in enumerate(profile.layer_names) if n == "mla-indexed"]
    assert owners == [0, 1, 2, *range(6, 78, 4)]
    assert len(owners) == 21
    assert profile.num_layers == 78


def test_minimax_m3_index_keys() -> None:
    """57 layers keep one index key of 128 bf16 numbers a token."""
    profile = load("minimax-m3")
    keys = [s.index_key_bytes_bf16 for n in profile.layer_names if isinstance(s := profile.attention[n], GqaAttention)]
    assert sum(keys) == 57 * 128 * 2
