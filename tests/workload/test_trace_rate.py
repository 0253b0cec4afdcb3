"""Arrivals that follow the rate of a recorded trace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.errors import ScenarioError
from kvsim.traffic import build_workload
from kvsim.workload.processes import Arrival, Rate, RatePattern, recorded_pattern
from kvsim.workload.requests import Floats

FIXED = {"num_requests": 100_000, "input_tokens": 100, "output_tokens": 5}


def scenario(**workload: Any) -> kvsim.Scenario:
    return kvsim.load_scenario({"name": "t", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
                                "workload": workload})


def arrivals_of(**workload: Any) -> Floats:
    return build_workload(scenario(**workload)).requests.arrival_s


@pytest.fixture
def tide(tmp_path: Path) -> Path:
    """Ten minutes at 1 a second, ten at 4: 3,000 requests in 20 minutes."""
    times = [*np.arange(0, 600, 1.0), *np.arange(600, 1200, 0.25)]
    rows = [{"timestamp": int(1000 * t), "input_length": 512, "output_length": 4, "hash_ids": [k]}
            for k, t in enumerate(times)]
    path = tmp_path / "tide.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_pattern_of_known_times() -> None:
    found = recorded_pattern(np.array([0.0, 10.0, 20.0, 25.0, 30.0]), 20.0)
    assert found.window_s == pytest.approx(18.75)  # 37.5 s, one mean gap beyond the last, in two windows
    assert found.per_s == pytest.approx((2 / 18.75, 3 / 18.75))
    assert found.mean_per_s == pytest.approx(4 / 30)


@settings(max_examples=80)
@given(st.lists(st.floats(0.01, 50), min_size=2, max_size=60), st.floats(0.1, 500), st.floats(0.1, 9))
def test_pattern_keeps_the_mean_and_a_play_brings_as_many(gaps: list[float], window_s: float, mean: float) -> None:
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    found = recorded_pattern(times, window_s)
    assert found.mean_per_s == pytest.approx(len(gaps) / times[-1])
    assert sum(found.per_s) * found.window_s == pytest.approx(len(times))
    rate = found.rate(mean, 3 * found.period_s)
    played = rate.expected(np.array([found.period_s, 2 * found.period_s, 3 * found.period_s]))
    assert np.diff(played, prepend=0.0) == pytest.approx(np.full(3, mean * found.period_s), rel=1e-6)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 20)), max_size=9), st.floats(0, 300), st.floats(0, 5))
def test_expected_is_the_area_under_the_steps(steps: list[tuple[float, float]], time_s: float, base: float) -> None:
    edges = np.cumsum([s for s, _ in steps]).tolist()
    rate = Rate(base, tuple((t, r) for t, (_, r) in zip(edges, steps, strict=True)))
    starts, ends, heights = [0.0, *edges], [*edges, math.inf], [base, *(r for _, r in steps)]
    area = math.fsum(max(0.0, min(time_s, end) - start) * height
                     for start, end, height in zip(starts, ends, heights, strict=True))
    assert rate.expected(np.array([time_s]))[0] == pytest.approx(area, abs=1e-9)


def test_trace_at_one_time_has_no_rate() -> None:
    with pytest.raises(ScenarioError, match="no rate in the trace"):
        recorded_pattern(np.zeros(5), 60.0)


def test_even_arrivals_follow_the_trace_exactly(tide: Path) -> None:
    found = arrivals_of(fixed=FIXED, duration_s=2400.0, arrivals={"trace_rate": str(tide), "family": "even"})
    quarters = np.histogram(found, bins=[0, 600, 1200, 1800, 2400])[0]
    assert quarters == pytest.approx([600, 2400, 600, 2400], abs=5)  # the second twenty minutes play it again


def test_generated_sessions_come_in_the_tide(tide: Path) -> None:
    chat = {"turns": 1, "user_tokens": 50, "output_tokens": 5, "think_s": 1}
    found = arrivals_of(chat=chat, duration_s=1200.0, arrivals={"trace_rate": str(tide)})
    low, high = (found < 600).sum(), ((found >= 600) & (found < 1200)).sum()
    assert low == pytest.approx(600, abs=4 * math.sqrt(600))
    assert high == pytest.approx(2400, abs=4 * math.sqrt(2400))


@pytest.mark.parametrize(("changes", "mean_per_s"), [
    ({"rate_per_s": 5.0}, 5.0), ({"rate_factor": 2.0}, 5.0), ({}, 2.5)])
def test_mean_is_the_stated_rate_or_the_recorded_one(tide: Path, changes: dict[str, float], mean_per_s: float) -> None:
    asked = {"trace_rate": str(tide), "family": "even"}
    found = arrivals_of(fixed=FIXED, duration_s=1200.0, arrivals=asked, **changes)
    assert len(found) == pytest.approx(1200 * mean_per_s, abs=5)
    assert (found > 600).mean() == pytest.approx(0.8, abs=0.01)


def test_number_of_requests_ends_it_without_a_duration(tide: Path) -> None:
    found = arrivals_of(fixed={**FIXED, "num_requests": 7000}, arrivals={"trace_rate": str(tide)})
    assert len(found) == 7000
    assert found[-1] == pytest.approx(3100, abs=4 * math.sqrt(7000) / 4)  # two plays of 3,000, 600 s of 1, 100 s of 4


def test_class_follows_at_its_share(tide: Path) -> None:
    follows = {"name": "a", "fixed": FIXED, "share": 0.5, "arrivals": {"trace_rate": str(tide), "family": "even"}}
    steady = {"name": "b", "fixed": FIXED, "share": 0.5, "arrivals": {"family": "even"}}
    workload = build_workload(scenario(classes=[follows, steady], rate_per_s=4.0, duration_s=1200.0))
    by_class = [workload.requests.arrival_s[workload.requests.traffic_class == k] for k in (0, 1)]
    assert [len(times) for times in by_class] == pytest.approx([2400, 2400], abs=5)
    assert [(times > 600).mean() for times in by_class] == pytest.approx([0.8, 0.5], abs=0.01)


@pytest.mark.parametrize(("workload", "said"), [
    ({"arrivals": {"trace_rate": "TIDE", "swing": 0.5}}, "one of them"),
    ({"arrivals": {"window_s": 60}, "rate_per_s": 1}, "window_s without trace_rate"),
    ({"arrivals": {"trace_rate": "no/such"}}, "arrivals.trace_rate"),
    ({"arrivals": {"trace_rate": "TIDE"}, "steps": [{"at_s": 5, "rate_per_s": 2}]}, "workload.steps"),
    ({"arrivals": {"trace_rate": "TIDE"}, "rate_per_s": 2, "rate_factor": 2}, "workload.rate_factor"),
    ({"arrivals": {"trace_rate": "TIDE"}, "concurrency": 2}, "workload.arrivals"),
])
def test_what_cannot_be_is_refused(tide: Path, workload: dict[str, Any], said: str) -> None:
    asked = json.loads(json.dumps(workload).replace("TIDE", str(tide)))
    with pytest.raises(ScenarioError, match=said):
        build_workload(scenario(fixed=FIXED, duration_s=60, **asked))


def test_session_clocks_have_no_common_rate(traces: Path) -> None:
    with pytest.raises(ScenarioError, match="no common clock"):
        arrivals_of(fixed=FIXED, duration_s=60.0,
                    arrivals={"trace_rate": str(traces / "weka_original_format_sample.jsonl.gz")})


def test_run_of_a_scenario_that_follows_a_public_trace(traces: Path) -> None:
    """The conversation hour has 12,031 requests; a tenth of its rate brings a tenth of them."""
    report = kvsim.simulate(scenario(fixed=FIXED, duration_s=3600.0, rate_factor=0.1, arrivals={
        "trace_rate": str(traces / "mooncake_fast25_conversation.jsonl.gz"), "window_s": 300}))
    assert report.run.num_requests == pytest.approx(1203, abs=4 * math.sqrt(1203))


def test_steady_pattern_is_the_plain_process() -> None:
    same = [Arrival(rate).draw_s(np.random.default_rng(1), 500.0)
            for rate in (Rate(2.0), RatePattern((7.0,), 50.0).rate(2.0, 500.0))]
    assert same[0] == pytest.approx(same[1], rel=1e-9)
