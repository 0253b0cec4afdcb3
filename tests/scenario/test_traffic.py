"""Which requests a scenario stands for, and where traces are found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import ScenarioError
from kvsim.scenario import Scenario
from kvsim.traffic import TRACES_VARIABLE, build_workload, find_trace, session_trees, trace_folder
from kvsim.workload.requests import Workload
from tests.scenario.helpers import small


def workload(**part: Any) -> Workload:
    """Workload of the small scenario with another ``workload`` part."""
    return build_workload(Scenario.from_dict(small(workload=part)))


FIXED = {"num_requests": 200, "input_tokens": 1000, "output_tokens": 100}


def test_fixed_lengths_in_a_closed_loop() -> None:
    found = workload(fixed=FIXED, concurrency=4)
    assert found.lane_sessions is not None
    assert len(found.lane_sessions) == 4
    assert set(found.requests.prompt_tokens.tolist()) == {1000}
    assert set(found.requests.output_tokens.tolist()) == {100}
    assert found.until_s == math.inf


def test_fixed_lengths_arrive_at_their_rate() -> None:
    found = workload(fixed={**FIXED, "num_requests": 4000}, rate_per_s=5, warmup_s=10, duration_s="1 min")
    assert found.lane_sessions is None
    gaps = np.diff(np.sort(found.requests.arrival_s))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)  # 4,000 gaps of an exponential: 1.6 % standard error
    assert (found.measure_from_s, found.until_s) == (10, 70)


def test_fixed_lengths_may_vary_around_their_median() -> None:
    found = workload(fixed={**FIXED, "num_requests": 4000, "input_sigma": 0.5}, concurrency=4)
    lengths = found.requests.prompt_tokens
    assert len(np.unique(lengths)) > 100
    assert float(np.median(lengths)) == pytest.approx(1000, rel=0.05)
    assert float(np.log(lengths).std()) == pytest.approx(0.5, rel=0.1)


def test_prompts_of_fixed_lengths_share_nothing() -> None:
    requests = workload(fixed=FIXED, concurrency=4).requests
    first = requests.piece_content[requests.piece_offsets[:-1]]
    assert len(np.unique(first)) == len(requests)


def test_presets_are_live_session_trees() -> None:
    found = workload(preset="agentx-v1", concurrency=3, duration_s=100, warmup_s=50)
    assert found.lane_sessions is not None
    assert len(found.lane_sessions) == 3
    assert (found.measure_from_s, found.until_s, found.label) == (50, 150, "agentx-v1")


def test_the_seed_decides_the_sessions() -> None:
    part = {"preset": "agentx-v1", "concurrency": 2, "duration_s": 100}
    same, again, other = (session_trees(Scenario.from_dict(small(workload=part, seed=s))) for s in (1, 1, 2))
    assert [t.prompt_tokens.tolist() for t in same] == [t.prompt_tokens.tolist() for t in again]
    assert [t.prompt_tokens.tolist() for t in same] != [t.prompt_tokens.tolist() for t in other]


def test_fixed_lengths_have_no_sessions() -> None:
    with pytest.raises(ScenarioError, match="a preset or a trace"):
        session_trees(Scenario.from_dict(small()))


def test_traces_are_found_as_written_or_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.jsonl").write_text("{}\n")
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    assert trace_folder() == tmp_path
    assert find_trace("t.jsonl") == tmp_path / "t.jsonl"
    assert find_trace(str(tmp_path / "t.jsonl")) == tmp_path / "t.jsonl"
    with pytest.raises(ScenarioError) as caught:
        find_trace("none.jsonl", "my.yaml")
    assert str(caught.value.problems[0]).startswith("my.yaml: workload.trace: got 'none.jsonl'")
    assert str(tmp_path) in str(caught.value)


def test_recorded_sessions_are_played(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACES_VARIABLE, str(traces))
    part = {"trace": "kvcache_tester_all710_rle.jsonl.gz", "concurrency": 2, "duration_s": 60, "max_sessions": 3}
    trees = session_trees(Scenario.from_dict(small(workload=part)))
    assert len(trees) == 3
    found = workload(**part)
    assert found.label == "kvcache_tester_all710_rle.jsonl.gz"
    assert len(found.requests) > 3
