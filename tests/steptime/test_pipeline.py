"""Pipeline stages: hops, batches in flight, bubble; against the same model without stages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.layout import Layout
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.pipeline import PipelinedStepTime, pipelined, stages_of
from tests.steptime.support import STORE, build, chunk, decode

ONE = build("llama-3.1-70b", "h100", "vllm-0.33", Layout(tp=4))
BUDGET = 8192


def two_stages(tp: int = 4) -> PipelinedStepTime:
    layout = Layout(tp=tp, pp=2)
    stages = stages_of(layout, STORE.get("gpu", "h100"), STORE.get("node", "hgx-h100-8"), 8192, BUDGET)
    found = pipelined(build("llama-3.1-70b", "h100", "vllm-0.33", layout), stages)
    assert isinstance(found, PipelinedStepTime)
    return found


TWO = two_stages()


def test_one_stage_is_the_model_itself() -> None:
    assert pipelined(ONE, stages_of(Layout(tp=4), STORE.get("gpu", "h100"), None, 8192, BUDGET)) is ONE


def test_a_cycle_told_directly_lasts_what_its_pieces_say() -> None:
    for batch in (chunk(100), chunk(BUDGET, 5000, 9), chunk(2 * BUDGET, 100, 63)):
        assert TWO.prefill_seconds()(batch, 123_456) == step_s(TWO, batch, 123_456)


def test_a_single_batch_passes_all_stages_and_pays_the_hop() -> None:
    """Two tensors of 8,192 bf16 elements a token: a quarter of them sent, three quarters gathered, at 450 GB/s."""
    extra = step_s(TWO, chunk(BUDGET), 0) - step_s(ONE, chunk(BUDGET), 0)
    assert extra == pytest.approx(10e-6 + BUDGET * 2 * 8192 * 2 / 450e9)
    assert step_s(TWO, decode(1), 4000) == pytest.approx(step_s(ONE, decode(1), 4000), rel=0.01)


def test_two_batches_of_prefill_take_as_long_as_one() -> None:
    one = chunk(BUDGET)
    both = StepBatch(2 * BUDGET, 2, 2 * one.prefill_pairs, 2 * BUDGET, 0)
    assert step_s(TWO, both, 0) == pytest.approx(step_s(TWO, one, 0), rel=1e-6)


def test_decoding_sequences_are_spread_over_the_batches_in_flight() -> None:
    half = step_s(TWO, decode(2), 40_000)
    assert half == pytest.approx(step_s(ONE, decode(1), 20_000), rel=0.01)
    assert half < step_s(ONE, decode(2), 40_000)


def test_hops_between_nodes_use_the_nic() -> None:
    inside, between = two_stages(tp=4), two_stages(tp=8)
    assert between.stages.hop_s_per_row > inside.stages.hop_s_per_row / 2
    nic = STORE.get("node", "hgx-h100-8").nic_bandwidth_per_gpu
    assert nic is not None
    sent = 2 * 2 * 8192 / 8 / (0.71 * nic.base)
    assert between.stages.hop_s_per_row == pytest.approx(sent + 2 * 2 * 8192 * 7 / 8 / 450e9)


def test_the_bubble() -> None:
    assert TWO.bubble_frac(decode(1), 4000) == pytest.approx(0.5)
    assert TWO.bubble_frac(decode(16), 64_000) == pytest.approx(0.0, abs=1e-9)
    assert TWO.bubble_frac(chunk(BUDGET), 0) == pytest.approx(0.5)
    assert 0.3 < TWO.bubble_frac(chunk(BUDGET, seqs=16), 64_000) < 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 * BUDGET), st.integers(0, 50_000), st.integers(0, 100), st.integers(1, 30_000))
def test_costs_add_up_and_floors_hold(tokens: int, offset: int, seqs: int, context: int) -> None:
    batch = chunk(tokens, offset, seqs) if tokens else decode(max(seqs, 1))
    resident = context * batch.decode_seqs
    duration = step_s(TWO, batch, resident)
    assert sum(c.total_s for c in TWO.costs(batch, resident)) == pytest.approx(duration, rel=1e-4)
    assert duration >= TWO.floor_s(batch, resident) * (1 - 1e-4)
    assert 0.0 <= TWO.bubble_frac(batch, resident) < 1.0
    assert duration <= step_s(ONE, batch, resident) + 1e-3


def test_a_run_keeps_more_prompts_in_flight_and_decodes_no_slower() -> None:
    base = {"model": "llama-3.1-70b", "engine": {"profile": "vllm-0.33"},
            "workload": {"fixed": {"num_requests": 32, "input_tokens": 8000, "output_tokens": 40}, "concurrency": 32}}
    one = kvsim.simulate({**base, "name": "tp4", "hardware": {"gpu": "h100", "num_gpus": 4}, "layout": {"tp": 4}})
    two = kvsim.simulate({**base, "name": "tp4pp2", "hardware": {"gpu": "h100", "num_gpus": 8},
                          "layout": {"tp": 4, "pp": 2}})
    ratio = two.throughput.requests_per_s / one.throughput.requests_per_s
    assert 1.5 < ratio < 2.3
    assert two.latency.tpot_s.p50 <= one.latency.tpot_s.p50 * 1.05
