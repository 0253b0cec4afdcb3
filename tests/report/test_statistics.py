"""Steady state and confidence intervals: known series, coverage, edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvsim.report.statistics import mean_interval, median_interval, mser, steady_from, student_t
from kvsim.simulation import simulate
from tests.scenario.helpers import small


def test_mser_cuts_a_transient_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    flat = rng.normal(10, 1, 2000)
    for length in (50, 200, 500):
        cut, found = mser(np.concatenate([np.linspace(60, 10, length), flat]))
        assert found
        assert 0.7 * length <= cut <= length + 50
    cut, found = mser(flat)
    assert found
    assert cut <= 400


@pytest.mark.parametrize("drifting", [np.arange(500.0), -np.arange(500.0), np.sqrt(np.arange(500))])
def test_a_drift_is_not_steady(drifting: np.ndarray) -> None:
    assert mser(drifting)[1] is False


def test_too_short_series_are_not_steady() -> None:
    assert mser(np.arange(9.0)) == (0, False)
    assert mser(np.zeros(0)) == (0, False)


def test_student_t_against_tables() -> None:
    table = {(0.975, 1): 12.706, (0.975, 4): 2.776, (0.975, 9): 2.262, (0.995, 5): 4.032, (0.9, 60): 1.296}
    for (probability, degrees), value in table.items():
        assert student_t(probability, degrees) == pytest.approx(value, abs=6e-4)
    assert student_t(0.5, 7) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.theory
def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    runs = rng.normal(5, 2, (2000, 4))
    covered = [m.low <= 5 <= m.high for m in map(mean_interval, runs.tolist())]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)  # 3 standard errors of 2,000 trials
    three = [median_interval(r) for r in runs[:600, :3].tolist()]
    assert {m.level_frac for m in three} == {0.75}
    assert np.mean([m.low <= 5 <= m.high for m in three]) == pytest.approx(0.75, abs=0.053)


def test_few_runs_give_no_interval() -> None:
    assert math.isnan(mean_interval([1.0]).low)
    assert math.isnan(mean_interval([]).mean)
    assert math.isnan(median_interval([1.0, 2.0]).high)
    assert median_interval([1.0, 2.0]).value == 1.5
    assert math.isnan(median_interval([]).value)


def test_a_closed_loop_is_measured_from_where_it_is_steady() -> None:
    traffic = {"fixed": {"num_requests": 1500, "input_tokens": 2000, "output_tokens": 100, "output_sigma": 0.5},
               "concurrency": 64}
    whole = simulate(small(workload=traffic))
    steady = simulate(small(workload={**traffic, "measure": "auto"}))
    assert whole.run.measured_from_s == 0
    assert steady.run.measured_from_s == steady_from(whole.records).from_s > 0
    # All 64 prompts come at once at the start: their waits belong to the start alone.
    assert steady.latency.ttft_s.p99 < whole.latency.ttft_s.p99
