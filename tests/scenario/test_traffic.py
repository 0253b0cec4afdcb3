"""Which requests a scenario stands for, and where traces are found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kvsim.errors import ScenarioError
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from kvsim.traffic import TRACES_VARIABLE, build_workload, find_trace, session_trees, trace_folder
from kvsim.workload.preset_file import preset_to_dict
from kvsim.workload.presets import PRESETS
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


CHAT = {"turns": 4, "system_tokens": 500, "user_tokens": {"median": 100, "sigma": 0.5}, "output_tokens": 80,
        "think_s": 5}
RAG = {"num_documents": 50, "document_tokens": 300, "documents_per_request": 2, "question_tokens": 30,
       "output_tokens": 60}
BATCH = {"num_requests": 40, "input_tokens": 700, "output_tokens": 20, "shared_tokens": 200}


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A trace of 100 requests in ten sessions, which begin a second apart."""
    path = tmp_path / "log.csv"
    lines = [f"s{k % 10},{1000 * k},{k // 10},{100 + 40 * (k // 10 - 1) if k >= 10 else 0},{40 if k >= 10 else 100},5,0"
             for k in range(100)]
    path.write_text("\n".join(["session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
                               *lines]))
    return str(path)


def test_a_trace_of_another_format_comes_at_its_recorded_times(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(json.dumps({"timestamp": 1000 * k, "input_length": 600, "output_length": 5,
                                          "hash_ids": [0, k + 1]}) for k in range(100)))
    found = workload(trace=str(path))
    assert found.lane_sessions is None
    assert found.requests.arrival_s.tolist() == [float(k) for k in range(100)]
    faster = workload(trace=str(path), rate_factor=4, duration_s=10)
    assert faster.requests.arrival_s.tolist() == [k / 4 for k in range(40)]
    assert faster.until_s == 10


def test_a_trace_is_played_as_live_sessions(log: str) -> None:
    found = workload(trace=log, concurrency=3)
    assert found.lane_sessions == ((0,), (1,), (2,))
    assert found.idle_cap_s == 10.0
    fewer = workload(trace=log, concurrency=3, max_sessions=4, replay={"from_start": True, "idle_cap_s": 50})
    assert (len(fewer.requests), fewer.idle_cap_s) == (40, 50.0)


def test_a_trace_at_another_rate_keeps_its_sessions_together(log: str) -> None:
    found = workload(trace=log, rate_per_s=0.5, burstiness=2, mode="open")
    roots = np.diff(found.requests.dep_offsets) == 0
    assert roots.sum() == 10
    assert (np.diff(found.requests.arrival_s[roots]) > 0).all()
    assert found.lane_sessions is None


def test_a_folder_is_a_trace(log: str) -> None:
    assert len(workload(trace=str(Path(log).parent)).requests) == 100


@pytest.mark.parametrize("part", [{"chat": CHAT}, {"rag": RAG}, {"preset": "claude-code"}])
def test_sessions_begin_at_a_rate(part: dict[str, Any]) -> None:
    found = workload(**part, rate_per_s=2, duration_s=600)
    roots = np.diff(found.requests.dep_offsets) == 0
    assert roots.sum() == pytest.approx(1200, abs=4 * math.sqrt(1200))
    assert workload(**part, concurrency=3, duration_s=60).lane_sessions == ((0,), (1,), (2,))


def test_a_batch_is_there_at_once_or_at_the_pace_of_its_clients() -> None:
    found = workload(batch=BATCH, max_concurrency=7)
    assert (found.requests.arrival_s == 0).all()
    assert found.max_in_flight == (7.0,)
    clients = workload(batch=BATCH, concurrency=4)
    assert (len(clients.requests), len(clients.lane_sessions or ())) == (40, 4)
    assert len(workload(batch=BATCH, rate_per_s=3).requests) == 40


def test_live_sessions_and_rates_change_at_stated_times() -> None:
    found = workload(chat=CHAT, concurrency=8, duration_s=300, steps=[{"at_s": "100 s", "concurrency": 20},
                                                                      {"at_s": 200, "concurrency": 8}])
    starts = found.lane_start_s
    assert [(starts == 0).sum(), (starts == 100).sum()] == [8, 12]
    assert found.lane_stop_s[starts == 100].tolist() == [200.0] * 12
    burst = workload(fixed={**FIXED, "num_requests": 100_000}, rate_per_s=10, duration_s=300,
                     steps=[{"at_s": 100, "rate_per_s": 50}, {"at_s": 200, "rate_per_s": 10}])
    counts = np.histogram(burst.requests.arrival_s, [0, 100, 200, 300])[0]
    assert counts.tolist() == pytest.approx([1000, 5000, 1000], rel=0.13)


def test_a_preset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump(preset_to_dict(PRESETS["claude-code"])))
    ours, shipped = (workload(preset=name, concurrency=2, duration_s=60) for name in (str(path), "claude-code"))
    assert ours.requests.piece_tokens.tolist() == shipped.requests.piece_tokens.tolist()
    with pytest.raises(ScenarioError, match="or a file of a preset"):
        workload(preset="none.yaml", concurrency=2, duration_s=60)


CLASSES = [{"name": "people", "chat": CHAT, "share": 0.7},
           {"name": "tools", "rag": RAG, "rate_per_s": 2, "priority": 1},
           {"name": "nightly", "batch": BATCH, "priority": 9, "max_concurrency": 3}]


def test_classes_are_told_apart() -> None:
    found = workload(classes=CLASSES, concurrency=10, duration_s=100)
    requests = found.requests
    assert requests.class_names == ("people", "tools", "nightly", "primer", "warmup")
    assert len(found.lane_sessions or ()) == 7
    assert found.max_in_flight == (math.inf, math.inf, 3.0)
    assert (requests.traffic_class == 2).sum() == 40
    assert [set(requests.priority[requests.traffic_class == c].tolist()) for c in range(3)] == [{0}, {1}, {9}]
    assert (requests.traffic_class[found.warming] >= 3).all()


def test_classes_reach_the_report() -> None:
    report = simulate(small(workload={"classes": CLASSES, "concurrency": 10, "duration_s": 60},
                            slo={"ttft_s": {"p95": 5}, "by_class": {"nightly": {"ttft_s": {"p95": 1e-9}}}}))
    assert list(report.goodput_by_class)[:3] == ["people", "tools", "nightly"]
    assert report.goodput_by_class["nightly"].requests_per_s == 0
    assert report.goodput_by_class["people"].within_slo_frac > 0.9


@pytest.mark.parametrize(("part", "said"), [
    ({"chat": CHAT, "concurrency": 2, "burstiness": 2, "duration_s": 9}, "workload.burstiness: got it in a workload"),
    ({"chat": CHAT, "rate_per_s": 2, "duration_s": 9, "steps": [{"at_s": 1, "concurrency": 3}]}, "workload.steps"),
    ({"chat": CHAT, "concurrency": 2, "rate_factor": 2, "duration_s": 9}, "workload.rate_factor"),
    ({"chat": CHAT, "concurrency": 2}, "chat without duration_s"),
    ({"chat": CHAT, "duration_s": 9}, "workload.concurrency: missing"),
    ({"chat": {**CHAT, "turn": 3}, "duration_s": 9}, "did you mean 'turns'?"),
    ({"rag": {**RAG, "documents_per_request": 51}, "rate_per_s": 1, "duration_s": 9}, "at most num_documents"),
    ({"fixed": FIXED, "rate_per_s": 1, "burstiness": 2, "arrivals": {"family": "gamma"}}, "one of them"),
    ({"fixed": FIXED, "rate_per_s": 1, "arrivals": {"cv": 2}}, "gamma or weibull"),
    ({"fixed": FIXED, "rate_per_s": 1, "steps": [{"at_s": 5, "rate_per_s": 1}, {"at_s": 5, "rate_per_s": 2}]}, "rise"),
    ({"classes": [CLASSES[0], CLASSES[0]], "concurrency": 2, "duration_s": 9}, "every name once"),
    ({"classes": [{**CLASSES[0], "share": 0.7}, {**CLASSES[0], "name": "b", "share": 0.7}], "concurrency": 9,
      "duration_s": 9}, "shares that add up to 1.4"),
    ({"classes": [{"name": "x", "chat": CHAT}], "duration_s": 9}, "workload.classes.0.concurrency: missing"),
])
def test_what_does_not_go_together_is_said(part: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        workload(**part)
    assert said in str(caught.value)


def test_sessions_provided_are_those_that_the_engine_could_use_up(tmp_path: Path) -> None:
    """Single requests of a few tokens: as many as steps could serve, not as many as no engine on earth could."""
    lines = [{"timestamp": 1000 * k, "input_length": 8192, "output_length": 5, "hash_ids": list(range(16))}
             for k in range(4)]
    (tmp_path / "short.jsonl").write_text("\n".join(map(json.dumps, lines)))
    scenario = Scenario.from_dict(small(workload={
        "trace": str(tmp_path / "short.jsonl"), "mode": "closed", "concurrency": 4, "duration_s": 60}))
    report = simulate(scenario)
    assert report.records is not None
    num_begun = int(np.isfinite(report.records.arrival_s).sum())
    assert report.run.num_requests > 1000
    assert num_begun < len(report.records.status) < 20 * num_begun
    assert len(build_workload(scenario).requests) > 2 * len(report.records.status)
