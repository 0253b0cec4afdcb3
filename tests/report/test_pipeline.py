"""The bubble of pipeline stages in a report."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.report.report import Report
from kvsim.study import report_text


def report(pp: int, concurrency: int, **more: Any) -> Report:
    """Decoding of long answers on two stages, or one."""
    return kvsim.simulate({
        "name": "stages", "model": "llama-3.1-8b", "hardware": {"gpu": "h100", "num_gpus": pp}, "layout": {"pp": pp},
        "engine": {"profile": "vllm-0.33"}, "workload": {
            "fixed": {"num_requests": 4 * concurrency, "input_tokens": 64, "output_tokens": 400},
            "concurrency": concurrency}, **more})


def test_a_lone_sequence_leaves_the_other_stage_idle() -> None:
    found = report(2, 1)
    assert found.pipeline is not None
    assert found.pipeline.stages == 2
    assert found.pipeline.bubble_frac == pytest.approx(0.5)
    assert "pipeline: 2 stages, 50% of their time without a batch" in report_text(found)
    assert found.to_dict()["pipeline"] == {"stages": 2, "bubble_frac": found.pipeline.bubble_frac}


def test_many_sequences_fill_both_stages() -> None:
    found = report(2, 32)
    assert found.pipeline is not None
    assert 0.0 <= found.pipeline.bubble_frac < 0.1


def test_one_stage_has_none() -> None:
    found = report(1, 4)
    assert found.pipeline is None
    assert "pipeline" not in found.to_dict()


def test_stated_step_times_say_nothing_of_stages() -> None:
    linear = {"kind": "linear", "base_s": 0.01, "per_prefill_token_s": 0, "per_decode_seq_s": 0}
    assert report(2, 2, engine={"step_time": linear}).pipeline is None
