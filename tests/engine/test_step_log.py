"""Steps in bins and gaps between tokens: by hand, equal in both engines, and as many as tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import core, reference
from kvsim.engine.step_log import NO_STEPS, StepLog, merged_steps
from kvsim.engine.types import FINISHED, EngineConfig, EngineRun
from kvsim.errors import InfeasibleError
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.same import assert_same_steps
from tests.engine.strategies import KINDS, TIER_KINDS, random_problem

ENGINES = (core.run, reference.run)
STEP = LinearStepTime(1.0, 0.01, 0.0)


def assert_gaps_are_those_between_tokens(run: EngineRun) -> None:
    records = run.records
    gaps, counts = run.totals.step_sums.gaps(-math.inf, math.inf)
    assert counts.sum() == np.maximum(records.output_tokens - 1, 0).sum()
    if (records.status == FINISHED).all():
        between_s = float((records.finish_s - records.first_token_s).sum())
        assert float((gaps * counts).sum()) == pytest.approx(between_s, rel=1e-9, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from((*KINDS, *TIER_KINDS)))
def test_both_engines_log_the_same_steps(seed: int, kind: str) -> None:
    problem = random_problem(seed, kind)
    try:
        plain = reference.run(problem.workload, problem.config, problem.step_time)
    except InfeasibleError:
        return
    fast = core.run(problem.workload, problem.config, problem.step_time)
    assert_same_steps(plain.totals.step_sums, fast.totals.step_sums)
    for run in (plain, fast):
        assert_gaps_are_those_between_tokens(run)
        sums, totals = run.totals.step_sums.sums.sum(axis=0), run.totals
        assert (sums[0], sums[2], sums[6]) == (totals.steps, totals.prefill_tokens_computed, totals.decode_tokens)
        assert sums[1] == pytest.approx(totals.busy_s)


def test_a_prefill_of_others_is_a_gap() -> None:
    """The first decodes alone, 1 s a token; the second's prompt of 400 tokens makes one of its gaps 5 s."""
    rows = [Row([(0, 1)], 10, 0), Row([(1, 400)], 1, 1, arrival_s=3.5)]
    for engine in ENGINES:
        done = engine(Workload(requests_from_rows(rows)), EngineConfig(64, 16, 8, 512, 4096), STEP)
        gaps, counts = done.totals.step_sums.gaps(0.0, math.inf)
        assert sorted(zip(gaps.round(9).tolist(), counts.tolist(), strict=True))[-1] == (5.0, 1.0)
        assert counts.sum() == 9
        assert (gaps * counts).sum() == pytest.approx(8 + 5)
        assert done.totals.step_sums.gaps(100.0, 200.0)[1].sum() == 0


def test_a_preempted_request_waits_for_its_next_token() -> None:
    """Two requests in a pool for one and a half: the younger loses its blocks, and its gap spans its absence."""
    rows = [Row([(k, 32)], 40, k) for k in range(2)]
    for engine in ENGINES:
        done = engine(Workload(requests_from_rows(rows)), EngineConfig(9, 16, 8, 512, 4096), STEP)
        assert done.totals.preemptions >= 1
        gaps, _ = done.totals.step_sums.gaps(0.0, math.inf)
        assert gaps.max() > 5.0
        assert_gaps_are_those_between_tokens(done)


def test_a_window_takes_the_gaps_that_end_in_it() -> None:
    log = StepLog()
    log.note((10.0, 8.0, 8.0, 4, 3, 0, 0, 0, 0, 3, 120))  # tokens at 4, 6, 8 and 10 s
    log.note_gap(7.0, 6.5)
    found = log.sums()
    for start, end, number in ((0, 20, 13), (5, 9, 7), (6, 8, 7), (9, 9.5, 0), (10, 11, 3)):
        assert found.gaps(start, end)[1].sum() == number


def test_rows_are_summed_up_in_portions_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(11, "full")
    whole = core.run(problem.workload, problem.config, problem.step_time).totals.step_sums
    monkeypatch.setattr("kvsim.engine.step_log.MANY_ROWS", 3)
    parts = core.run(problem.workload, problem.config, problem.step_time).totals.step_sums
    assert_same_steps(whole, parts)
    assert len(whole.bins) > 3


def test_engines_side_by_side_add_up() -> None:
    runs = [core.run(p.workload, p.config, p.step_time).totals.step_sums for p in map(random_problem, (3, 4))]
    both = merged_steps(runs)
    assert both.sums.sum(axis=0) == pytest.approx(sum(run.sums.sum(axis=0) for run in runs))
    assert sorted(set(runs[0].bins) | set(runs[1].bins)) == both.bins.tolist()
    assert merged_steps([]) is NO_STEPS
    assert list(NO_STEPS.means()) == []
