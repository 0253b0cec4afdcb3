"""Bytes of one layer: every attention kind by hand, and what tensor parallelism does to each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.memory.layers import (
    BYTES_PER_ELEMENT,
    KV_DTYPES,
    index_key_bytes,
    kv_bytes_per_token,
    model_bytes_per_token,
    model_state_bytes,
    model_window_bytes,
    state_bytes,
    window_bytes,
    window_tokens,
)
from kvsim.profiles.model import (
    CompressedAttention,
    GdnAttention,
    GqaAttention,
    KdaAttention,
    MambaAttention,
    MlaAttention,
)
from kvsim.profiles.store import default_store
from tests.memory.helpers import model

LATENT = MlaAttention(kind="mla", num_heads=96, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                      qk_rope_head_dim=64, v_head_dim=128)
GQA = GqaAttention(kind="gqa", num_heads=32, num_kv_heads=8, head_dim=128)
KDA = KdaAttention(kind="kda", num_heads=96, head_dim=128, conv_kernel=4)
GDN = GdnAttention(kind="gdn", num_k_heads=16, num_v_heads=32, k_head_dim=128, v_head_dim=128, conv_kernel=4)
MAMBA = MambaAttention(kind="mamba", num_heads=8, head_dim=64, state_dim=128, num_groups=2, conv_kernel=4)
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 32])


def test_formats_with_block_scales() -> None:
    assert BYTES_PER_ELEMENT["mxfp4"] * 8 == 4.25
    assert BYTES_PER_ELEMENT["nvfp4"] * 8 == 4.5


@pytest.mark.parametrize(("dtype", "expected"), [
    ("bf16", 576 * 2), ("fp8", 576),
    ("fp8_ds_mla", 512 + 4 * 4 + 64 * 2),  # 656: fp8 values, one fp32 scale per 128, bf16 rope
])
def test_latent(dtype: str, expected: int) -> None:
    assert kv_bytes_per_token(LATENT, dtype) == expected


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_latent_is_replicated_on_every_rank(dtype: str) -> None:
    assert len({kv_bytes_per_token(LATENT, dtype, tp) for tp in (1, 2, 4, 8, 16)}) == 1


@pytest.mark.parametrize(("tp", "expected"), [(1, 4096), (2, 2048), (8, 512), (16, 512)])
def test_kv_heads_are_split_down_to_one(tp: int, expected: int) -> None:
    assert kv_bytes_per_token(GQA, "bf16", tp) == expected  # heads x (128 K + 128 V) x 2 B


def test_unequal_value_heads_and_index_keys() -> None:
    spec = GqaAttention(kind="gqa", num_heads=8, num_kv_heads=2, head_dim=192, v_head_dim=128, index_key_bytes_bf16=256)
    assert kv_bytes_per_token(spec, "bf16") == 2 * (192 + 128) * 2 + 256
    assert kv_bytes_per_token(spec, "fp8") == 2 * (192 + 128) + 128


def test_index_keys() -> None:
    assert index_key_bytes(128, "bf16") == 256
    assert index_key_bytes(128, "fp8") == 132  # one fp32 scale a key
    assert index_key_bytes(0, "fp8") == 0


def test_compressed_attention_counts_an_entry_every_ratio_tokens() -> None:
    spec = CompressedAttention(kind="compressed", num_heads=64, entry_dim=512, ratio=4, indexer_head_dim=128,
                               window=128)
    assert kv_bytes_per_token(spec, "bf16") == (1024 + 256) / 4
    assert window_bytes(spec, "bf16") == 128 * 1024
    assert window_tokens(spec) == 128


def test_a_window_is_constant_per_sequence() -> None:
    spec = GqaAttention(kind="gqa", num_heads=64, num_kv_heads=8, head_dim=64, window=128)
    assert kv_bytes_per_token(spec, "bf16") == 0
    assert window_bytes(spec, "bf16") == 128 * 8 * 128 * 2
    assert window_bytes(GQA, "bf16") == 0
    assert window_tokens(LATENT) == 0


def test_states_by_hand() -> None:
    assert state_bytes(KDA) == 96 * 128**2 * 4 + 3 * 96 * 128 * 3 * 2
    assert state_bytes(GDN) == 32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert state_bytes(MAMBA) == 8 * 64 * 128 * 4 + (8 * 64 + 2 * 2 * 128) * 3 * 2
    assert state_bytes(KDA.model_copy(update={"state_dtype": "bf16"})) == 96 * 128**2 * 2 + 3 * 96 * 128 * 3 * 2
    assert state_bytes(GQA) == state_bytes(LATENT) == 0


@given(DEGREES, st.integers(0, 8))
def test_states_are_divided_by_tp_and_widened_by_drafts(tp: int, drafts: int) -> None:
    for spec, channels in ((KDA, 3 * 96 * 128), (GDN, 8192), (MAMBA, 1024)):
        assert state_bytes(spec, tp, drafts) == pytest.approx(state_bytes(spec, 1, drafts) / tp, rel=1e-12)
        assert state_bytes(spec, 1, drafts) - state_bytes(spec) == channels * drafts * 2


@given(DEGREES, st.sampled_from(KV_DTYPES))
def test_a_rank_never_holds_more_than_the_whole_layer(tp: int, dtype: str) -> None:
    for spec in (GQA, LATENT):
        whole, rank = kv_bytes_per_token(spec, dtype), kv_bytes_per_token(spec, dtype, tp)
        assert whole / tp <= rank <= whole


@pytest.mark.parametrize(("name", "bf16", "fp8", "state_mb"), [
    # config.json of each model; derived in the models' published sizes: layers x heads x dims.
    ("kimi-k3", 24 * 576 * 2, 24 * 576, 69 * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2) / 1e6),
    ("kimi-linear-48b-a3b", 7 * 576 * 2, 7 * 576, 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2) / 1e6),
    ("kimi-k2", 61 * 576 * 2, 61 * 576, 0),
    ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256 * 2, 12 * 2 * 2 * 256, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2) / 1e6),
    ("glm-4.7", 92 * 2 * 8 * 128 * 2, 92 * 2 * 8 * 128, 0),
    ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2, 32 * 2 * 8 * 128, 0),
])
def test_whole_models(name: str, bf16: int, fp8: int, state_mb: float) -> None:
    profile = model(name)
    assert model_bytes_per_token(profile, "bf16") == bf16
    assert model_bytes_per_token(profile, "fp8") == fp8
    assert model_state_bytes(profile) / 1e6 == pytest.approx(state_mb, rel=1e-12)


def test_gpt_oss_windows_alternate_with_full_layers() -> None:
    oss = model("gpt-oss-120b")
    assert model_bytes_per_token(oss, "bf16") == 18 * 2 * 8 * 64 * 2
    assert model_window_bytes(oss, "bf16") == 18 * 128 * 2 * 8 * 64 * 2


@pytest.mark.parametrize("name", default_store().names("model"))
def test_every_model_keeps_something_and_fp8_never_more(name: str) -> None:
    profile = model(name)
    kept = [kv_bytes_per_token(a, "bf16") + state_bytes(a) + window_bytes(a, "bf16")
            for a in profile.attention.values()]
    assert min(kept) > 0
    assert model_bytes_per_token(profile, "fp8") <= 0.52 * model_bytes_per_token(profile, "bf16")
