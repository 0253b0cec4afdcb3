"""The plain engine against 165 recorded runs of a real scheduler, and the readers of such recordings."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.engine import reference
from kvsim.engine.case import EngineCase, read_case
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.errors import TraceError
from kvsim.steptime.base import StepTimeModel
from kvsim.validate.engine_cases import (
    PLAIN_KINDS,
    check_case,
    find_cases,
    first_difference,
    run_cases,
)
from kvsim.workload.requests import Workload

PACKED = Path(__file__).parents[1] / "data" / "engine_cases.jsonl.gz"
COUNTS = {"chat": 20, "burst": 20, "long": 20, "hybrid": 20, "k3": 8, "k3real": 4, "priority": 8, "nocache": 4,
          "edge": 40, "offload": 15, "k3offload": 6}
CASES = list(find_cases([PACKED]))


def small_case() -> dict[str, Any]:
    """Two turns in a pool of 63 blocks, with the answer left out."""
    return {
        "kind": "chat", "step_time": {"base_s": 0.008, "per_prefill_token_s": 5e-5, "per_decode_seq_s": 4e-4},
        "engine": {"num_blocks": 64, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 256,
                   "max_model_len": 999},
        "requests": [{"id": "a", "prompt": [["x", 40]], "output": ["a-o", 3], "arrival_s": 0.5},
                     {"id": "b", "prompt": [["x", 40], ["a-o", 3]], "output": ["b-o", 3], "after": "a"}]}


def test_all_kinds_are_there() -> None:
    assert {kind: sum(case.kind == kind for case in CASES) for kind in COUNTS} == COUNTS
    assert len(CASES) == sum(COUNTS.values())


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in PLAIN_KINDS], ids=lambda case: case.name)
def test_plain_engine_decides_as_the_real_scheduler(case: EngineCase) -> None:
    result = check_case(case)
    assert result.exact, str(result.difference)


def test_packed_cases_are_the_recorded_ones(engine_cases: Path) -> None:
    with gzip.open(PACKED, "rt") as lines:
        packed = {source.pop("name"): source for source in map(json.loads, lines)}
    for file in sorted(engine_cases.glob("*.json")):
        assert packed[file.stem] == json.loads(file.read_text()), file.name


@pytest.mark.parametrize("change", [
    {"num_blocks": 1000}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 4096}, {"prefix_caching": False}])
def test_a_different_engine_is_found_out(change: dict[str, Any]) -> None:
    def other(workload: Workload, config: EngineConfig, step_time: StepTimeModel) -> EngineRun:
        return reference.run(workload, dataclasses.replace(config, **change), step_time)

    results = run_cases([PACKED], ("long",), other)
    assert not all(result.exact for result in results)


@pytest.mark.parametrize(("field", "by"), [
    ("cached_tokens", 16), ("preemptions", 1), ("first_token_s", 1e-6), ("finish_s", 1e-6), ("external_tokens", 1)])
def test_first_difference_names_request_and_field(field: str, by: float) -> None:
    case = next(case for case in CASES if case.kind == "chat")
    assert case.answer is not None
    row = case.answer.requests[3]
    rows = list(case.answer.requests)
    rows[3] = dataclasses.replace(row, **{field: getattr(row, field) + by})
    done = reference.run(case.workload, case.config, case.step_time)
    difference = first_difference(dataclasses.replace(case.answer, requests=tuple(rows)), done)
    assert difference is not None
    assert (difference.request, difference.field) == (row.id, field)
    assert difference.expected - difference.got == pytest.approx(by, rel=1e-3)


def test_totals_are_compared() -> None:
    case = next(case for case in CASES if case.kind == "chat")
    assert case.answer is not None
    totals = {**case.answer.totals, "steps": case.answer.totals["steps"] + 1}
    difference = first_difference(dataclasses.replace(case.answer, totals=totals),
                                  reference.run(case.workload, case.config, case.step_time))
    assert difference is not None
    assert str(difference).startswith("totals: steps is ")


def test_folder_file_and_packed_file_read_alike(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(small_case()))
    (tmp_path / "two.json").write_text(json.dumps({**small_case(), "kind": "burst"}))
    cases = [{"name": path.stem, **json.loads(path.read_text())} for path in sorted(tmp_path.glob("*.json"))]
    (tmp_path / "both.jsonl.gz").write_bytes(gzip.compress("".join(f"{json.dumps(c)}\n" for c in cases).encode()))
    found = [(case.name, case.kind) for case in find_cases([tmp_path / "both.jsonl.gz"])]
    assert found == [("one", "chat"), ("two", "burst")]
    assert [case.name for case in find_cases([tmp_path / "one.json"])] == ["one"]
    assert [case.name for case in find_cases([tmp_path], {"burst"})] == ["two", "two"]


def test_a_piece_that_follows_itself_starts_again() -> None:
    source = small_case()
    source["requests"][0].update(prompt=[["x", 8], ["x", 8]], output=["x", 40])
    source["requests"][1].update(prompt=[["x", 16]], output=["y", 2])
    requests = read_case(source).workload.requests
    assert len(requests.full(0)) == 3
    assert requests.full(0)[0] == (requests.full(1)[0][0], 8)


def test_unanswered_cases_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(small_case()))
    assert run_cases([tmp_path]) == []


@pytest.mark.parametrize(("path", "value", "message"), [
    (("engine", "num_blocks"), 0, "engine.num_blocks: got 0; accepted: a whole number, 1 or more"),
    (("engine", "block_size"), None, "engine.block_size: got None"),
    (("engine", "policy"), "lifo", "engine.policy: got 'lifo'; accepted: fcfs or priority"),
    (("engine", "retention_interval"), -1, "engine.retention_interval: got -1"),
    (("engine", "watermark"), 0.1, "engine.watermark: got 0.1; accepted: 0"),
    (("step_time", "base_s"), "slow", "step_time.base_s: got 'slow'; accepted: a number, 0 or more"),
    (("step_time",), 3, "step_time: got 3; accepted: an object"),
    (("requests",), {}, "requests: got {}; accepted: a list"),
    (("requests", 0, "prompt"), [], "requests.0.prompt: got []"),
    (("requests", 0, "prompt"), [["x", 0]], "requests.0.prompt: got [['x', 0]]"),
    (("requests", 0, "arrival_s"), float("nan"), "requests.0.arrival_s: got nan"),
    (("requests", 1, "after"), "nobody", "requests.1.after: got nobody; accepted: the id of another request"),
    (("requests", 1, "id"), "a", "requests: missing; accepted: an own id for each"),
    (("requests", 1), "text", "requests.1.prompt: missing"),
    (("answer",), {"requests": [], "totals": {}}, "answer.requests: got 0 rows"),
])
def test_malformed_cases_are_refused_with_place_and_remedy(path: tuple[Any, ...], value: object, message: str) -> None:
    source: Any = small_case()
    target = source
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(TraceError) as caught:
        read_case(source, "bad")
    assert f"bad: {message}" in str(caught.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(TraceError) as caught:
        read_case({"engine": {}, "step_time": {}})
    fields = {problem.field for problem in caught.value.problems}
    assert {"engine.num_blocks", "engine.block_size", "step_time.base_s", "requests"} <= fields


def test_a_state_block_of_another_size_is_refused() -> None:
    source = small_case()
    source["engine"].update(state_groups=1, state_block_size=32)
    with pytest.raises(TraceError, match="state_block_size"):
        read_case(source)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_files_that_are_no_case(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(TraceError, match=r"bad\.json"):
        read_case(tmp_path / "bad.json")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_case(tmp_path / "none.json")
    with pytest.raises(TraceError, match="no engine cases"):
        list(find_cases([tmp_path]))
    with pytest.raises(TraceError, match="no engine cases"):
        list(find_cases([tmp_path / "none.json"]))
