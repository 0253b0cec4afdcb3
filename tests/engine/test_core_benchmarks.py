"""The fast engine does no more work than recorded in benchmarks/counters.json."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import COUNTERS, TOO_LONG_TO_CHECK, differences, measure
from benchmarks.suite import Benchmark, suite

QUICK = [benchmark for benchmark in suite() if benchmark.group != "scenario" and "plain" not in benchmark.name
         and benchmark.name not in TOO_LONG_TO_CHECK]


@pytest.mark.parametrize("benchmark", QUICK, ids=lambda benchmark: benchmark.name)
def test_work_is_what_was_recorded(benchmark: Benchmark) -> None:
    result = measure(benchmark, 1)
    assert result is not None
    assert differences(json.loads(COUNTERS.read_text())[benchmark.name], result.counters) == []


def test_a_difference_is_told() -> None:
    assert differences({"steps": 100, "jumps": 7}, {"steps": 103, "runs": 1}) == [
        "jumps: None, recorded 7", "runs: 1, recorded None", "steps: 103, recorded 100"]
    assert differences({"steps": 100}, {"steps": 102}) == []


def test_every_benchmark_is_recorded() -> None:
    assert set(json.loads(COUNTERS.read_text())) == {benchmark.name for benchmark in suite()}
