"""Step time from a measured grid."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.table import Grid, Reach, TableStepTime, convex_lines

DECODE = Grid("decode", (1, 8), (0, 1000, 2000), ((0.006, 0.007, 0.009), (0.008, 0.016, 0.032)))
PREFILL = Grid("prefill", (1, 1024, 8192), (0, 2000), ((0.006, 0.006), (0.030, 0.034), (0.200, 0.260)))
REACH = Reach(max_num_seqs=8, max_model_len=2000, max_num_batched_tokens=8192)


@pytest.fixture
def table() -> TableStepTime:
    return TableStepTime(DECODE, PREFILL, REACH)


@pytest.mark.parametrize(("seqs", "context", "expected"), [
    (1, 0, 0.006), (1, 500, 0.0065), (1, 2000, 0.009), (8, 8000, 0.016), (8, 12000, 0.024)])
def test_decode_is_interpolated_along_context(table: TableStepTime, seqs: int, context: int, expected: float) -> None:
    assert step_s(table, StepBatch(0, 0, 0, 0, seqs), context) == pytest.approx(expected)


def test_decode_is_interpolated_along_the_batch(table: TableStepTime) -> None:
    halfway = (0.007 + 3.5 / 7 * (0.016 - 0.007))
    assert step_s(table, StepBatch(0, 0, 0, 0, 4), 4000) == pytest.approx(0.007 + 3 / 7 * (0.016 - 0.007))
    assert step_s(table, StepBatch(0, 0, 0, 0, 4), 4000) < halfway


def test_prefill_takes_tokens_and_the_chunks_mean_offset(table: TableStepTime) -> None:
    one = StepBatch(1024, 1, 0, 1024 + 1000, 0)
    two = StepBatch(1024, 2, 0, 1024 + 2000, 0)
    assert step_s(table, one, 0) == pytest.approx(0.032)
    assert step_s(table, two, 0) == pytest.approx(0.032)


def test_a_mixed_step_reads_the_weights_once(table: TableStepTime) -> None:
    assert step_s(table, StepBatch(1024, 1, 0, 1024, 8), 8000) == pytest.approx(0.030 + 0.016 - 0.006)


@pytest.mark.parametrize("reach", [Reach(9, 2000, 8192), Reach(8, 2001, 8192), Reach(8, 2000, 8193)])
def test_a_reach_beyond_the_grid_is_refused(reach: Reach) -> None:
    with pytest.raises(ScenarioError, match="do not cover"):
        TableStepTime(DECODE, PREFILL, reach)


def test_means_beyond_the_reach_are_held_at_the_edge(table: TableStepTime) -> None:
    assert step_s(table, StepBatch(0, 0, 0, 0, 16), 0) == step_s(table, StepBatch(0, 0, 0, 0, 8), 0)
    assert step_s(table, StepBatch(1024, 1, 0, 1024 + 2799, 0), 0) == pytest.approx(0.034)


@pytest.mark.parametrize(("rows", "times", "said"), [
    ((2, 1), ((1.0, 1.0), (1.0, 1.0)), "ascending"),
    ((1, 2), ((1.0, 1.0),), "rows of"),
    ((1, 2), ((1.0, 0.0), (1.0, 1.0)), "0 or less"),
    ((1,), ((1.0, 1.0),), "at least two")])
def test_a_wrong_grid_is_refused(rows: tuple[float, ...], times: tuple[tuple[float, ...], ...], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Grid("g", rows, (0, 1), times)


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=8))
def test_lines_lie_on_or_below_the_points_and_never_fall(times: list[float]) -> None:
    points = [(10.0 * i, time) for i, time in enumerate(times)]
    lines = convex_lines(points)
    curve = [max(a + b * x for a, b in lines) for x, _ in points]
    assert all(b >= 0 for _, b in lines)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(curve))
    assert all(value <= time + 1e-9 for value, time in zip(curve, times, strict=True))
    assert curve[-1] == pytest.approx(times[-1])
