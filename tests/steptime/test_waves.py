"""Waves of decode attention: the law against a kernel's measured times, and what it must not break."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.steptime.base import step_s
from kvsim.steptime.rates import rate_of
from kvsim.steptime.waves import num_splits, wave_factor
from tests.steptime.support import STORE, build, decode, engine

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "measured" / "h200-fa3-decode-2026-11-30.jsonl"


def rows(least_tokens: int) -> list[dict[str, Any]]:
    """Sequences of equal length, batches padded to sizes of CUDA graphs as the engine does."""
    found = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    return [r for r in found if "ctx" in r and r.get("pad", True) and r["ctx"] >= least_tokens]


def predicted_us(row: dict[str, Any], waves: bool = True) -> float:
    """Time of one layer's attention by the H200 engine profile's figures."""
    rate = rate_of(engine("vllm-0.24-h200"), STORE.get("gpu", "h200"), "gqa_decode", "bf16")
    num_bytes = row["B"] * row["ctx"] * row["hkv"] * 128 * 2 * 2
    held = rate.in_waves(row["B"] * row["hkv"]) if waves else rate
    return 1e6 * held.seconds(1, 0.0, num_bytes)


@pytest.mark.golden
def test_the_law_meets_the_kernels_times() -> None:
    errors = sorted(abs(predicted_us(r) / r["us"] - 1) for r in rows(4096))
    assert len(errors) > 200
    assert statistics.median(errors) < 0.03
    assert errors[len(errors) * 9 // 10] < 0.08


@pytest.mark.golden
def test_without_waves_the_times_are_missed() -> None:
    """Negative control: a flat bandwidth is up to a third too fast, which the law is not."""
    ratios = [(predicted_us(r, waves=False) / r["us"], predicted_us(r) / r["us"]) for r in rows(12_000)]
    assert min(flat for flat, _ in ratios) < 0.72
    assert min(waved for _, waved in ratios) > 0.93


def test_nine_sequences_need_a_second_wave_and_eight_do_not() -> None:
    model = build("llama-3.1-8b", "h200", "vllm-0.24-h200")
    eight, nine, fourteen = (step_s(model, decode(n), 24_000 * n) for n in (8, 9, 14))
    assert nine - eight > 32 * 85e-6
    assert fourteen - nine < 32 * 40e-6


def test_kernels_without_a_stated_single_sm_have_no_waves() -> None:
    rate = rate_of(engine("vllm-0.33"), STORE.get("gpu", "b300"), "gqa_decode", "fp8")
    assert rate.in_waves(9) is rate


@given(st.integers(1, 5000), st.integers(1, 200), st.floats(0.05, 1.0))
def test_waves_never_make_reading_faster(tiles: int, num_sms: int, fair_over_alone: float) -> None:
    factor = wave_factor(tiles, num_sms, fair_over_alone)
    assert factor >= 1.0
    assert factor <= 1.0 + num_sms / (tiles * num_splits(tiles, num_sms))
