"""Two of anything, side by side."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from kvsim.batch.sweep import sweep
from kvsim.comparison import Comparison, compare, comparison_text
from kvsim.errors import ScenarioError
from kvsim.report.statistics import mean_interval
from kvsim.simulation import simulate
from tests.sweep.helpers import INLINE, batch, linear, tiny

LENGTHS = {"num_requests": 20, "input_tokens": 500, "output_tokens": 20, "input_sigma": 0.8, "output_sigma": 0.5}


def scenario(base_s: float) -> dict[str, object]:
    return tiny(engine={"step_time": linear(base_s)}, workload={"fixed": LENGTHS, "concurrency": 4})


def difference(found: Comparison, name: str) -> float:
    return next(d.difference.mean for d in found.differences if d.name == name)


def test_interval_of_known_numbers() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0])
    half = 3.182446305 * math.sqrt(5 / 3) / 2
    assert (found.mean, found.count) == (2.5, 4)
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half))
    assert math.isnan(mean_interval([1.0]).low)


def test_intervals_of_many_figures_follow_students_t_too() -> None:
    """40 degrees of freedom: 2.021 standard errors, not the 1.960 of the normal distribution."""
    values = [1.0, 3.0] * 20 + [2.0]
    half = 2.021075390 * statistics.stdev(values) / math.sqrt(41)
    assert mean_interval(values).high == pytest.approx(2.0 + half)


def test_scenario_with_itself_differs_in_nothing() -> None:
    found = compare(scenario(0.01), scenario(0.01), 3, INLINE)
    assert found.changes == ()
    assert found.num_pairs == 3
    assert {d.difference.mean for d in found.differences} == {0.0}
    assert "no input differs" in comparison_text(found)


def test_only_changed_inputs_are_listed() -> None:
    found = compare(scenario(0.01), scenario(0.02), 2, INLINE)
    assert [(c.field, c.a, c.b) for c in found.changes] == [("engine.step_time.base_s", 0.01, 0.02)]


def test_pairs_share_the_random_stream() -> None:
    """Both see the same requests, and twice the step time halves the throughput of every pair."""
    found = compare(scenario(0.01), scenario(0.02), 5, INLINE)
    output = next(d for d in found.differences if d.name == "throughput.output_tokens_per_s")
    assert output.b == pytest.approx(output.a / 2, rel=1e-6)
    prompts = next(d for d in found.differences if d.name == "run.num_requests")
    assert (prompts.difference.low, prompts.difference.high) == (0.0, 0.0)
    assert "*" in comparison_text(found)


def test_sweeps_pair_by_axes_and_seed(tmp_path: Path) -> None:
    axis = {"grid": {"workload.concurrency": [1, 2, 3]}}
    sweep(batch(axis, base=scenario(0.01), replications=2), tmp_path / "a", INLINE)
    fewer = {"grid": {"workload.concurrency": [2, 3]}}
    b = sweep(batch(fewer, base=scenario(0.02), replications=2), None, INLINE)
    found = compare(tmp_path / "a", b, options=INLINE)
    assert found.num_pairs == 4
    assert len(found.unpaired) == 2
    assert [change.field for change in found.changes] == ["engine.step_time.base_s"]
    assert difference(found, "latency.ttft_s.mean") > 0


def test_reports_and_their_files(tmp_path: Path) -> None:
    a, b = simulate(scenario(0.01)), simulate(scenario(0.03))
    path = tmp_path / "a.json"
    path.write_text(a.to_json())
    found = compare(path, b)
    assert found.num_pairs == 1
    assert math.isnan(found.differences[0].difference.low)
    assert "has no interval" in comparison_text(found)
    mixed = compare(a, scenario(0.03), 4, INLINE)
    assert (mixed.num_pairs, len(mixed.unpaired)) == (1, 3)


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="nothing to compare"):
        compare(simulate(tiny(seed=1)), simulate(tiny(seed=2)))
    (tmp_path / "x.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ScenarioError, match="not a report"):
        compare(tmp_path / "x.json", tmp_path / "x.json")
