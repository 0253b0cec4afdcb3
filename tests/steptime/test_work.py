"""Amounts of work of one GPU, against numbers worked out by hand from the models' shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.layout import Layout
from kvsim.memory.weights import format_bytes, weight_bytes
from kvsim.profiles.parameters import active_params, component_params
from kvsim.profiles.store import default_store
from kvsim.steptime.work import ExpertWork, Work, work_of

STORE = default_store()
K3_MOE = ExpertWork(92, 896, 16, "mxfp4", 1.0, 1.0, 1.0, 3584)


def work(model: str, layout: Layout | None = None, kv_dtype: str = "bf16") -> Work:
    return work_of(STORE.get("model", model), layout or Layout(), kv_dtype)


@pytest.mark.parametrize(("rows", "experts"), [(1, 16), (8, 120), (32, 393), (64, 613), (128, 807), (256, 887)])
def test_distinct_experts_of_k3(rows: int, experts: int) -> None:
    assert round(896 * K3_MOE.touched_frac(rows)) == experts


@given(st.integers(1, 10_000))
def test_touched_experts_grow_and_never_exceed_all(rows: int) -> None:
    less, more = K3_MOE.touched_frac(rows), K3_MOE.touched_frac(rows + 1)
    assert 0 < less <= more <= 1


def test_llama_8b_by_hand() -> None:
    """32 layers of 4096 x (4096 + 2 x 1024) + 4096^2 + 3 x 4096 x 14336; 8 KV heads of 128 in bf16."""
    found = work("llama-3.1-8b")
    assert found.dense_params == {"bf16": 32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336)}
    assert found.head_params == 4096 * 128256
    (decode,), (prefill,) = found.decode, found.prefill
    assert decode.layers * decode.bytes_per_token == 131072
    assert decode.flops_per_token == 4 * 32 * 128
    assert prefill.flops_per_pair == 4 * 32 * 128
    assert found.experts is None
    assert found.states == ()


def test_k3_at_tp8_by_hand() -> None:
    """12 heads a rank read the whole latent; 2 x 12 x 1088 FLOPs a token; 32.9 B of experts' FLOPs over 8 ranks."""
    found = work("kimi-k3", Layout(tp=8), "fp8")
    (decode,) = found.decode
    assert (decode.component, decode.heads, decode.layers) == ("mla_decode", 12, 24)
    assert decode.bytes_per_token == 576
    assert decode.flops_per_token == 2 * 12 * 1088
    (prefill,) = found.prefill
    assert prefill.flops_per_pair == 2 * 12 * (192 + 128)
    assert prefill.expand_flops == 2 * 512 * 12 * 256
    (state,) = found.states
    assert state.scan_heads == 12
    assert state.layers * state.bytes_per_seq == pytest.approx(2 * 449_372_160 / 8)
    assert found.experts is not None
    assert found.experts.flops_per_row * 8 == 2 * 92 * 16 * 3 * 3584 * 3072
    assert found.latent_params == 92 * (2 * 3584 * 7168 + 3584)


@pytest.mark.parametrize("model", STORE.names("model"))
def test_one_gpu_takes_every_active_parameter_once(model: str) -> None:
    profile = STORE.get("model", model)
    found = work(model)
    taken = sum(found.dense_params.values()) + found.latent_params + found.head_params
    taken += found.experts.flops_per_row / 2 if found.experts else 0
    active = active_params(profile) - component_params(profile)["norms"]
    assert taken == pytest.approx(active, rel=0.01)


def test_tensor_parallelism_divides_what_it_can() -> None:
    one, eight = work("llama-3.1-70b"), work("llama-3.1-70b", Layout(tp=8))
    assert eight.dense_params["bf16"] == pytest.approx(one.dense_params["bf16"] / 8)
    assert eight.decode[0].bytes_per_token == pytest.approx(one.decode[0].bytes_per_token / 8)
    sixteen = work("llama-3.1-70b", Layout(tp=16))
    assert sixteen.decode[0].bytes_per_token == eight.decode[0].bytes_per_token


def test_context_parallelism_stripes_the_latent_but_not_the_flops() -> None:
    plain, striped = work("kimi-k3", Layout(tp=8), "fp8"), work("kimi-k3", Layout(tp=8, dcp=8), "fp8")
    assert striped.decode[0].bytes_per_token == plain.decode[0].bytes_per_token / 8
    assert striped.decode[0].flops_per_token == plain.decode[0].flops_per_token
    assert striped.decode[0].heads == 96
    assert striped.states == plain.states
    assert plain.gathered_bytes_per_context == plain.exchanged_bytes_per_seq == 0
    assert striped.gathered_bytes_per_context == 24 * 576 * 7 / 8


def test_expert_parallel_ranks_hold_fewer_experts_and_see_more_tokens() -> None:
    tensor, expert = work("deepseek-v3", Layout(tp=8)).experts, work("deepseek-v3", Layout(tp=1, ep=8, dp=8)).experts
    assert tensor is not None
    assert expert is not None
    assert expert.params == tensor.params
    assert (tensor.row_factor, expert.row_factor) == (1, 8)


def test_a_window_costs_the_same_at_any_context() -> None:
    windows = [w for w in work("gpt-oss-120b").decode if w.bytes_per_token == 0]
    assert windows
    assert all(w.bytes_per_seq == 128 * 2 * 8 * 64 * 2 for w in windows)


def test_sparse_attention_reads_index_keys_of_all_and_latents_of_the_chosen() -> None:
    (sparse,) = work("deepseek-v3.2").decode
    assert sparse.bytes_per_token == 128 * 2
    assert sparse.bytes_per_seq == 2048 * 1152


@pytest.mark.parametrize("name", STORE.names("model"))
def test_a_rank_reads_no_more_weights_than_it_holds(name: str) -> None:
    """Every weight of a rank but embedding, norms and vision is read in a large step; nothing else is."""
    model = STORE.get("model", name).model_copy(update={"checkpoint": None})
    for tp in (1, 2, 8, 16):
        done, held = work_of(model, Layout(tp=tp), "bf16"), weight_bytes(model, Layout(tp=tp)).per_gpu_bytes
        parts = [(done.head_fmt, done.head_params), *done.dense_params.items()]
        parts += [("bf16", done.latent_params)] if done.latent_params else []
        parts += [(done.experts.fmt, done.experts.params)] if done.experts else []
        read = sum(params * format_bytes(fmt, done.int4_group_size) for fmt, params in parts)
        assert 0.8 * held < read <= held


def test_int4_experts_are_read_with_their_scales() -> None:
    kimi = STORE.get("model", "kimi-k2")
    done = work_of(kimi, Layout(tp=8), "bf16")
    assert done.experts is not None
    assert format_bytes(done.experts.fmt, done.int4_group_size) == 0.5 + 2 / 32
