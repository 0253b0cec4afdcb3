"""How KV memory is cut into blocks: published block sizes and block counts, and the laws behind them."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.layout import Layout
from kvsim.memory.drafts import Draft, parse_draft
from kvsim.memory.geometry import (
    Group,
    GroupKind,
    KvGeometry,
    KvSpec,
    LogFormula,
    kv_buckets,
    kv_geometry,
    stage_of_layers,
)
from kvsim.memory.layers import kv_bytes_per_token, state_bytes
from kvsim.profiles.store import default_store
from tests.memory.helpers import geometry, model

MODELS = default_store().names("model")
MILLION = 1_048_576
PAGE = 884_736
"""Bytes of one K3 page at TP8: 1,536 tokens x 576 B (InferenceX logs)."""


@pytest.mark.golden
@pytest.mark.parametrize(("name", "tp", "bf16", "fp8"), [
    # Attention blocks [tokens] that vLLM logs for hybrid models: start-up logs of InferenceX runs (Kimi K3),
    # vLLM issue 40696 (Qwen3.5), user logs (the others); None where no log is known.
    ("kimi-k3", 1, 5760, 11392), ("kimi-k3", 2, 2944, 5760), ("kimi-k3", 4, 1536, 2944), ("kimi-k3", 8, 768, 1536),
    ("kimi-k3", 16, 384, 768), ("kimi-k3", 32, 256, 384),
    ("kimi-linear-48b-a3b", 2, 960, None), ("qwen3.5-9b", 2, 528, None), ("qwen3.6-27b", 2, 784, 1568),
    ("qwen3.8-27b", 2, 784, 1568), ("qwen3.6-35b-a3b", 1, 1056, 2096),
])
def test_block_sizes_of_hybrids(name: str, tp: int, bf16: int, fp8: int | None) -> None:
    assert geometry(name, "bf16", tp=tp).block_tokens == bf16
    if fp8 is not None:
        assert geometry(name, "fp8", tp=tp).block_tokens == fp8


@pytest.mark.golden
@pytest.mark.parametrize(("dtype", "caching", "draft", "blocks", "need", "tokens"), [
    # Kimi K3 TP8 on 8 GPUs, max_model_len 1,048,576: pool, blocks of one request, logged KV cache size
    # (InferenceX commits f04fbe68f, e5dbf4459, 0e06b8436; the mixed fp8/bf16 draft from its run log).
    ("fp8", True, "none", 2135, 689, 3_249_215),
    ("bf16", True, "none", 1851, 1372, 1_414_660),
    ("bf16", False, "none", 1855, 1369, 1_420_824),
    ("fp8", True, "dspark-fp8-k2", 1339, 695, 2_020_206),
    ("fp8", True, "dspark-bf16-k2", 6586, 2449, 2_819_894),
])
def test_logged_pools_of_k3(dtype: str, caching: bool, draft: str, blocks: int, need: int, tokens: int) -> None:
    found = geometry("kimi-k3", dtype, tp=8, prefix_caching=caching, draft=parse_draft(draft))
    assert found.blocks_for(MILLION) == need
    assert found.logged_tokens(blocks, MILLION, "product") == tokens


@pytest.mark.golden
@pytest.mark.parametrize(("block", "caching", "blocks", "need", "tokens"), [
    # A draft of five layers whose KV spec differs from the target's though its pages do not, k = 7: groups of five
    # layers (InferenceX commit 6bb96187b and its fp8 arm). No draft name of ours describes it; the groups do.
    (768, True, 13_677, 8322, 1_723_308), (768, False, 17_083, 8308, 2_156_093), (1536, True, 17_083, 4224, 4_240_725),
])
def test_logged_pools_of_k3_with_a_draft_bucket_of_five(block: int, caching: bool, blocks: int, need: int,
                                                        tokens: int) -> None:
    kinds: list[GroupKind] = [*("attention" for _ in range(6)), *("state" for _ in range(14))]
    groups = tuple(Group(str(i), kind, block, ()) for i, kind in enumerate(kinds))
    found = KvGeometry(block, PAGE, (5.0 * PAGE,), groups, True, 1, 7, caching)
    assert found.blocks_for(MILLION) == need
    assert found.logged_tokens(blocks, MILLION, "product") == tokens


def test_pages_and_groups_of_k3() -> None:
    k3 = geometry("kimi-k3", "fp8", tp=8)
    assert k3.page_bytes == PAGE
    assert k3.block_bytes == (24 * PAGE,)
    assert [(g.kind, len(g.layers)) for g in k3.groups] == [("state", 23)] * 3 + [("attention", 24)]
    assert sorted(p for g in k3.groups for p in g.layers) == list(range(93))
    assert k3.num_blocks(42.23 * 2**30) == 2135
    assert (k3.state_groups, k3.state_blocks) == (3, 2)


def test_a_bf16_draft_beside_fp8_makes_groups_of_five() -> None:
    mixed = geometry("kimi-k3", "fp8", tp=8, draft=parse_draft("dspark-bf16-k2"))
    assert (mixed.block_tokens, mixed.page_bytes) == (3072, 2 * PAGE)
    assert [sum(g.kind == kind for g in mixed.groups) for kind in ("state", "attention")] == [14, 6]
    assert mixed.groups[-1].block_tokens == 1536
    assert max(len(g.layers) for g in mixed.groups) == 5


def test_a_draft_of_the_same_format_joins_the_target() -> None:
    joined = geometry("kimi-k3", "fp8", tp=8, draft=parse_draft("dspark-fp8-k2"))
    assert joined.block_bytes == (29 * PAGE,)
    assert geometry("kimi-k3", "fp8", tp=8, draft=parse_draft("mtp-k1")).block_bytes == (25 * PAGE,)
    assert geometry("llama-3.1-8b", draft=parse_draft("mtp-k3")).block_bytes == (33 * 16 * 4096.0,)


def test_uniform_blocks() -> None:
    llama = geometry("llama-3.1-8b")
    assert (llama.block_tokens, llama.block_bytes, llama.hybrid) == (16, (16 * 131_072.0,), False)
    assert geometry("kimi-k2", tp=8).block_tokens == 64
    assert llama.logged_tokens(57_385, 131_072, "uniform") == 918_160


def test_block_override_and_dcp() -> None:
    spec = KvSpec(Layout(tp=8), "bf16", block_tokens=256)
    assert kv_geometry(model("llama-3.1-8b"), spec).block_tokens == 256
    sharded = geometry("kimi-k3", "fp8", tp=8, dcp=8)
    assert sharded.block_capacity_tokens == 8 * 1536
    assert sharded.blocks_for(MILLION) == math.ceil(MILLION / (8 * 1536)) + 6
    assert sharded.block_bytes == geometry("kimi-k3", "fp8", tp=8).block_bytes


def test_a_window_needs_its_own_blocks_only() -> None:
    oss = geometry("gpt-oss-120b")
    assert [(g.kind, g.window) for g in oss.groups] == [("window", 128), ("attention", 0)]
    long, short = oss.blocks_for(10_000), oss.blocks_for(64)
    assert long == math.ceil(10_000 / 16) + math.ceil(127 / 16) + 1
    assert short == 4 + 4
    assert oss.blocks_for(10_000, max_batched_tokens=8192) == math.ceil(10_000 / 16) + math.ceil(8319 / 16) + 1


def test_windows_of_compressed_attention_are_blocks_of_the_sequence() -> None:
    v4 = geometry("deepseek-v4-pro", tp=8)
    assert v4.overhead_bytes == 61 * 128 * 512 * 2
    assert v4.blocks_for(256) == 1 + math.ceil(v4.overhead_bytes / v4.block_bytes[0])


def test_pages_that_cannot_be_equal_are_refused() -> None:
    # 100 tokens of latent are 115,200 B, which do not divide the state's 814,080 B.
    with pytest.raises(ScenarioError, match=r"115200 B beside one of 814080 B"):
        kv_geometry(model("kimi-k3"), KvSpec(Layout(tp=8), "bf16", block_tokens=100))


def test_a_draft_needs_full_attention() -> None:
    attention = {"kda": model("kimi-k3").attention["kda"]}
    layers = (model("kimi-k3").layers[0].model_copy(update={"pattern": ("kda",)}),)
    only_states = model("kimi-k3").model_copy(update={"attention": attention, "layers": layers})
    with pytest.raises(ScenarioError, match="full attention"):
        kv_geometry(only_states, KvSpec(Layout(), "bf16", draft=Draft("mtp", 1)))


def test_per_group_and_product_formulas_disagree_for_hybrids() -> None:
    linear = geometry("kimi-linear-48b-a3b", tp=2)
    assert linear.logged_tokens(318, 120_000, "per-group") == 318 // 4 * 960
    assert linear.logged_tokens(318, 120_000, "product") == 318 * 120_000 // (125 + 6)


@pytest.mark.parametrize(("layers", "pp", "sizes"), [
    (93, 1, [93]), (93, 2, [47, 46]), (93, 3, [31, 31, 31]), (93, 8, [11, 11, 12, 12, 12, 12, 12, 11]), (4, 4, [1] * 4),
])
def test_stages(layers: int, pp: int, sizes: list[int]) -> None:
    stages = stage_of_layers(layers, pp)
    assert [stages.count(s) for s in range(pp)] == sizes
    assert list(stages) == sorted(stages)


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_differ_by_at_most_one_layer(layers: int, pp: int) -> None:
    assume(pp <= layers)
    stages = stage_of_layers(layers, pp)
    sizes = [stages.count(s) for s in range(pp)]
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


@given(st.sampled_from(MODELS), st.sampled_from(["bf16", "fp8"]), st.integers(1, MILLION), st.integers(1, 100_000))
def test_blocks_never_fall_as_context_grows(name: str, dtype: str, context: int, more: int) -> None:
    found = geometry(name, dtype)
    assert 0 < found.blocks_for(context) <= found.blocks_for(context + more)


@given(st.sampled_from(MODELS), st.integers(1, MILLION))
def test_blocks_hold_the_context(name: str, context: int) -> None:
    """Bytes of the blocks are never less than what the layers must keep of the context."""
    found, profile = geometry(name), model(name)
    kept = sum(kv_bytes_per_token(profile.attention[n], "bf16") * context + state_bytes(profile.attention[n])
               for n in profile.layer_names)
    assert found.blocks_for(context) * found.block_bytes[0] >= kept * (1 - 1e-12)


@given(st.sampled_from(MODELS), st.integers(0, 2**40), st.integers(0, 2**38))
def test_more_bytes_never_make_fewer_blocks(name: str, available: int, more: int) -> None:
    found = geometry(name)
    assert found.num_blocks(available) <= found.num_blocks(available + more)
    assert found.num_blocks(available) * found.block_bytes[0] <= available


@given(st.sampled_from(MODELS), st.sampled_from(["bf16", "fp8"]), st.sampled_from([2, 3, 4]))
def test_the_pool_is_the_least_over_pipeline_stages(name: str, dtype: str, pp: int) -> None:
    found = geometry(name, dtype, pp=pp)
    assert len(found.block_bytes) == pp
    assert found.num_blocks(8e10) == min(math.floor(8e10 / b) for b in found.block_bytes)
    assert max(found.block_bytes) <= geometry(name, dtype).block_bytes[0]


@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))
def test_every_layer_is_in_exactly_one_bucket_and_group(name: str, tp: int, drafts: int) -> None:
    profile, spec = model(name), KvSpec(Layout(tp=tp), "bf16", draft=Draft("mtp", drafts))
    expected = list(range(profile.num_layers + 1))
    assert sorted(p for b in kv_buckets(profile, spec) for p in b.layers) == expected
    assert sorted(p for g in kv_geometry(profile, spec).groups for p in g.layers) == expected


@given(st.sampled_from([n for n in MODELS if geometry(n).state_groups]), st.sampled_from([1, 2, 4, 8]),
       st.sampled_from(["bf16", "fp8"]))
def test_one_page_holds_a_state_and_no_smaller_block_would(name: str, tp: int, dtype: str) -> None:
    found, profile = geometry(name, dtype, tp=tp), model(name)
    largest = max(state_bytes(a, tp) for a in profile.attention.values())
    per_token = max(kv_bytes_per_token(a, dtype, tp) for a in profile.attention.values())
    grain = max(16, profile.kernel_block_tokens)
    assert found.block_tokens % grain == 0
    assert found.page_bytes >= largest > found.page_bytes - grain * per_token


@given(st.integers(1, 100_000), st.integers(1, MILLION), st.sampled_from(["product", "per-group"]))
def test_logged_size_grows_with_the_pool(blocks: int, length: int, formula: LogFormula) -> None:
    k3 = geometry("kimi-k3", "fp8", tp=8)
    assert k3.logged_tokens(blocks, length, formula) <= k3.logged_tokens(blocks + 1, length, formula)
    assert k3.logged_tokens(blocks, length, formula) <= blocks * k3.block_tokens


@pytest.mark.parametrize("text", ["", "mtp", "mtp-k0", "dspark-k2", "dspark-int4-k2", "dspark-fp8-k0", "eagle", "None"])
def test_drafts_that_do_not_exist(text: str) -> None:
    with pytest.raises(ScenarioError, match="accepted: none, mtp-kN"):
        parse_draft(text)


def test_drafts() -> None:
    assert parse_draft("none") == Draft()
    assert (parse_draft("mtp-k3").num_layers, parse_draft("mtp-k3").tokens) == (1, 3)
    assert (parse_draft("dspark-bf16-k7").num_layers, parse_draft("dspark-bf16-k7").kv_dtype) == (5, "bf16")
