"""Laws of the roofline step time: floors, monotonicity, consistency of its views, what parallelism can do."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ProfileError
from kvsim.layout import Layout
from kvsim.profiles.store import default_store
from kvsim.steptime.base import Direct, StepBatch, step_s
from kvsim.steptime.flat import PORTION
from kvsim.steptime.roofline import RooflineStepTime, build_step_time
from tests.steptime.support import build, chunk, decode, engine, prompt_s

STORE = default_store()
GRID = [(decode(1), 100), (decode(64), 64 * 50_000), (chunk(2048, 100_000), 0), (chunk(8192, 16_000, 20), 400_000)]
MODELS: tuple[str, ...] = ("llama-3.1-8b", "kimi-k3", "deepseek-v3.2", "deepseek-v4-pro", "gpt-oss-120b",
                           "qwen3-next-80b-a3b")
TP8 = Layout(tp=8)
BATCHES = st.builds(lambda tokens, offset, seqs: chunk(tokens, offset, seqs) if tokens else decode(max(seqs, 1)),
                    st.integers(0, 16_384), st.integers(0, 300_000), st.integers(0, 200))


def models() -> list[RooflineStepTime]:
    return [build(name, "b300", "vllm-0.33", TP8, kv_dtype="fp8") for name in MODELS]


BUILT: dict[str, RooflineStepTime] = dict(zip(MODELS, models(), strict=True))


@pytest.mark.parametrize("gpu", STORE.names("gpu"))
@pytest.mark.parametrize("name", STORE.names("engine"))
def test_no_step_beats_physics_on_any_gpu_and_model(name: str, gpu: str) -> None:
    profile = engine(name)
    for model in STORE.names("model"):
        built = build_step_time(STORE.get("model", model), STORE.get("gpu", gpu), TP8, "fp8", profile, True)
        for batch, context in GRID:
            assert step_s(built, batch, context) >= built.floor_s(batch, context) * (1 - 1e-12) > 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), BATCHES, st.integers(0, 10_000_000))
def test_pieces_costs_and_shares_tell_the_same_duration(name: str, batch: StepBatch, context: int) -> None:
    model = BUILT[name]
    context = context if batch.decode_seqs else 0
    duration = step_s(model, batch, context)
    assert sum(c.total_s for c in model.costs(batch, context)) == pytest.approx(duration)
    shares = model.shares(batch, context)
    assert set(shares) == {"hbm_bandwidth", "compute", "collectives", "host"}
    assert all(s >= 0 for s in shares.values())
    assert sum(shares.values()) == pytest.approx(duration)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), BATCHES, st.integers(0, 5_000_000), st.integers(1, 5_000_000))
def test_more_context_never_takes_less(name: str, batch: StepBatch, context: int, more: int) -> None:
    model = BUILT[name]
    assert all(slope >= 0 for _, slope in model.pieces(batch))
    assert step_s(model, batch, context + more) >= step_s(model, batch, context)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 16_000), st.integers(0, 300_000), st.integers(0, 100))
def test_more_tokens_sequences_and_offset_never_take_less(name: str, tokens: int, offset: int, seqs: int) -> None:
    model, context = BUILT[name], seqs * 10_000
    base = step_s(model, chunk(tokens, offset, seqs), context)
    larger = (chunk(tokens + 64, offset, seqs), chunk(tokens, offset + 1000, seqs), chunk(tokens, offset, seqs + 1))
    for batch in larger:
        assert step_s(model, batch, context) >= base * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(MODELS), BATCHES.filter(lambda batch: batch.prefill_tokens > 0), st.integers(0, 10_000_000))
def test_a_prefill_step_told_directly_lasts_what_its_pieces_say(name: str, batch: StepBatch, context: int) -> None:
    model = BUILT[name]
    context = context if batch.decode_seqs else 0
    assert isinstance(model, Direct)
    assert model.prefill_seconds()(batch, context) == step_s(model, batch, context)


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_any_number_of_tokens_are_what_their_components_add_up_to(name: str) -> None:
    for tokens in (1, 2, 63, PORTION - 1, PORTION, PORTION + 1, 8191, 16_384):
        duration_s = step_s(BUILT[name], chunk(tokens), 0)
        assert duration_s == pytest.approx(sum(c.total_s for c in BUILT[name].costs(chunk(tokens), 0)), rel=1e-12)


def test_equal_batches_give_equal_pieces() -> None:
    for batch, _ in GRID:
        copy = StepBatch(batch.prefill_tokens, batch.prefill_chunks, batch.prefill_pairs, batch.prefill_context_tokens,
                         batch.decode_seqs)
        assert BUILT["kimi-k3"].pieces(batch) == BUILT["kimi-k3"].pieces(copy)


@pytest.mark.parametrize("name", MODELS)
def test_pieces_are_few(name: str) -> None:
    assert all(1 <= len(BUILT[name].pieces(batch)) <= 4 for batch, _ in GRID)


def test_a_mixed_step_reads_weights_once() -> None:
    model = BUILT["llama-3.1-8b"]
    apart = step_s(model, chunk(256), 0) + step_s(model, decode(32), 32_000)
    assert step_s(model, chunk(256, 0, 32), 32_000) < 0.75 * apart


def test_llama_8b_decode_by_hand() -> None:
    """On the ideal H200: 15.0 GB of weights and 131,072 B a token of context over 4.8 TB/s."""
    model = build("llama-3.1-8b", "h200", "ideal")
    weights = 2 * (32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336) + 4096 * 128256)
    elementwise = 2 * (32 * (8 * 4096 + 2 * 6144 + 3 * 14336))
    assert step_s(model, decode(1), 10_000) == pytest.approx((weights + elementwise + 10_000 * 131072) / 4.8e12)


def test_70b_prompt_of_4000_tokens_keeps_its_floor() -> None:
    """2 x 68.5 B x 4,000 FLOPs over 8 x 989 TFLOP/s are 69.3 ms, attention brings it to 71."""
    for name in STORE.names("engine"):
        model = build("llama-3.1-70b", "h100", name, TP8)
        assert prompt_s(model, 4000) >= 0.071
        assert model.floor_s(chunk(4000), 0) == pytest.approx(0.0719, rel=0.01)


def test_kda_decode_is_flat_in_context_and_mla_is_not() -> None:
    short, long = ({c.name: c for c in BUILT["kimi-k3"].costs(decode(8), 8 * tokens)} for tokens in (1_000, 250_000))
    assert long["state_decode"] == short["state_decode"]
    assert long["decode_attention"].total_s > 20 * short["decode_attention"].total_s


@pytest.mark.parametrize("name", ["vllm-0.33", "sglang-2026-08", "vllm-day0", "vllm-0.24-h200"])
@pytest.mark.parametrize("gpu", ["b300", "h200", "mi355x"])
def test_eight_times_fewer_kda_heads_never_prefill_eight_times_faster(name: str, gpu: str) -> None:
    wide, narrow = (build("kimi-k3", gpu, name, Layout(tp=tp)).scans[0].seconds(8192, 1) for tp in (1, 8))
    assert 1 < wide / narrow < 7.5


def test_kda_prefill_follows_the_published_law() -> None:
    """FlashKDA on Blackwell: 1,094 / 1,002 / 907 us for one sequence of 8,192 tokens at 96 / 64 / 32 heads."""
    layers = 69
    for tp, published in ((1, 1094e-6), (3, 907e-6)):
        scan = build("kimi-k3", "b300", "vllm-0.33", Layout(tp=tp)).scans[0]
        assert scan.seconds(8192, 1) / layers == pytest.approx(published, rel=0.02)
        assert scan.seconds(16384, 1) == pytest.approx(2 * scan.seconds(8192, 1))
        assert scan.seconds(8192, 8) < 0.5 * scan.seconds(8192, 1)


def test_flashkda_law_predicts_two_sequences_on_h200() -> None:
    """Fitted to single sequences only: two of 8,192 tokens at 64 heads took 1.781 ms."""
    law = engine("vllm-0.33").scan(("h200-sxm", "hopper"))
    two = law.serial.base * 8192 + law.per_head.base * 64 * 16384
    assert two == pytest.approx(1.781e-3, rel=0.05)


def test_tensor_parallelism_helps_but_not_in_proportion() -> None:
    built = [build("llama-3.1-70b", "h100", "vllm-0.33", Layout(tp=tp)) for tp in (1, 2, 4, 8)]
    times = [step_s(model, decode(16), 160_000) for model in built]
    assert all(faster < slower < 2.001 * faster for slower, faster in pairwise(times))
    assert times[0] / times[-1] < 7


def test_context_parallelism_shortens_long_contexts_and_costs_at_short_ones() -> None:
    plain = build("kimi-k3", "b300", "vllm-0.33", TP8, kv_dtype="fp8")
    striped = build("kimi-k3", "b300", "vllm-0.33", Layout(tp=8, dcp=8), kv_dtype="fp8")
    assert step_s(striped, decode(16), 16 * 500_000) < 0.75 * step_s(plain, decode(16), 16 * 500_000)
    assert step_s(striped, decode(1), 1_000) > step_s(plain, decode(1), 1_000)


def test_expert_exchange_is_paid_under_attention_data_parallelism_only() -> None:
    alone = build("deepseek-v3", "h200", "vllm-0.33", Layout(tp=8, ep=8))
    spread = build("deepseek-v3", "h200", "vllm-0.33", Layout(tp=1, ep=8, dp=8))
    assert alone.links.reduce_calls == 2 * 61 + 1
    assert spread.links.reduce_calls == 0
    assert spread.links.seconds(64, decode(64)) > 58 * 2 * 12e-6
    assert alone.links.fixed_s == 0


def test_experts_see_the_tokens_of_all_attention_ranks() -> None:
    """Two attention ranks, experts divided by EP or over TP x DP: the same work a GPU, and rows that travel."""
    alone = build("deepseek-v3", "h200", "vllm-0.33", TP8)
    by_ep, by_tp = (build("deepseek-v3", "h200", "vllm-0.33", Layout(tp=4, dp=2, ep=ep)) for ep in (8, 1))
    assert alone.work.experts is not None
    for spread in (by_ep, by_tp):
        assert spread.work.experts is not None
        assert spread.work.experts.row_factor == 2.0
        assert spread.work.experts.params == pytest.approx(alone.work.experts.params)
        cost = {c.name: c for c in spread.costs(chunk(4096), 0)}["experts"]
        assert cost.compute_s >= {c.name: c for c in alone.costs(chunk(8192), 0)}["experts"].compute_s * (1 - 1e-9)
        assert spread.links.seconds(4096, chunk(4096)) > spread.links.fixed_s > 0


def test_the_host_is_added_when_synchronous_and_hidden_when_not() -> None:
    synchronous = build("llama-3.1-8b", "h200", "vllm-0.24-h200", asynchronous=False)
    overlapped = build("llama-3.1-8b", "h200", "vllm-0.24-h200")
    for seqs in (1, 64):
        host = 1.2e-3 + 19e-6 * seqs
        gap = step_s(synchronous, decode(seqs), 1000 * seqs) - step_s(overlapped, decode(seqs), 1000 * seqs)
        assert gap == pytest.approx(host)


def test_a_tiny_asynchronous_step_lasts_as_long_as_its_host() -> None:
    profile = engine("vllm-0.33")
    host_step = profile.costs.host_step.model_copy(update={"value": 50.0, "range": None})
    slow = profile.costs.model_copy(update={"host_step": host_step})
    model = build_step_time(STORE.get("model", "llama-3.1-8b"), STORE.get("gpu", "h200"), Layout(), "bf16",
                            profile.model_copy(update={"overheads": slow}), True)
    assert step_s(model, decode(1), 100) == pytest.approx(50e-3 + 12.7e-6)
    assert model.shares(decode(1), 100)["host"] > 0.9 * 50e-3


def test_steps_that_no_graph_covers_take_at_least_their_launches() -> None:
    model = build("kimi-linear-48b-a3b", "h200", "vllm-0.24-h200")
    small, large = step_s(model, chunk(512), 0), step_s(model, chunk(513), 0)
    assert large >= model.host.eager_s > 20 * 1.9e-3
    assert small < large


def test_routing_of_larger_batches_reads_more_experts_but_less_than_in_proportion() -> None:
    experts = [{c.name: c for c in BUILT["kimi-k3"].costs(decode(n), 0)}["experts"].memory_s for n in (1, 8, 64, 512)]
    assert experts[1] == pytest.approx(120 / 16 * experts[0], rel=0.01)
    assert all(b < 8 * a for a, b in pairwise(experts))


def test_an_engine_without_a_kernel_for_a_format_is_refused() -> None:
    profile = engine("vllm-0.33").model_copy(update={"kernels": ()})
    with pytest.raises(ProfileError, match="has no gemm kernel"):
        build_step_time(STORE.get("model", "kimi-k3"), STORE.get("gpu", "b300"), TP8, "fp8", profile, True)


@pytest.mark.timed
def test_pieces_are_cheap() -> None:
    """Budget 5 us for decode-only and 15 us for mixed batches; four times that leaves room for a busy machine."""
    model = BUILT["kimi-k3"]
    mixed = [chunk(16_000 + i, 50_000, 12) for i in range(2000)]
    model.pieces(decode(12))
    best: dict[str, float] = {}
    for _ in range(5):
        for kind, batches in (("decode", [decode(12)] * 2000), ("mixed", mixed)):
            start = time.perf_counter()
            for batch in batches:
                model.pieces(batch)
            best[kind] = min(best.get(kind, 1.0), (time.perf_counter() - start) / len(batches))
    assert best["decode"] < 20e-6
    assert best["mixed"] < 60e-6
