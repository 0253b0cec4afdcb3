"""Reading measured runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.calibrate.runs import LoopSpec, read_runs
from kvsim.errors import TraceError

ENGINE = {"kind": "engine", "model": "m", "args": {"async_scheduling": False}, "num_gpu_blocks": 10, "block_size": 16}
SPEC = {"concurrency": 1, "sessions": 1, "turns": 1, "first": 10, "growth": 0, "out": 2}
ROW = {"s": 0, "turn": 0, "prompt": 10, "cached": None, "arrive": 0.0, "ttft": 0.02, "e2e": 0.03, "out": 2}
RUN = {"kind": "run", "label": "a", "spec": SPEC, "wall_s": 0.035, "done": 1, "complete": True, "cached": 0,
       "prompt": 10, "output": 2, "requests": [ROW]}
STEPS = {"kind": "steps", "label": "a", "columns": ["prefill_tokens", "decode_seqs", "context_tokens", "ms"],
         "rows": [[10, 0, 10, 20.0], [0, 1, 11, 10.0]]}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


def test_a_run_is_read_in_base_units(tmp_path: Path) -> None:
    run, = read_runs(written(tmp_path / "a.jsonl", ENGINE, RUN, STEPS))
    assert run.engine.model == "m"
    assert not run.engine.asynchronous
    assert [s.duration_s for s in run.steps] == [0.02, 0.01]
    assert run.requests[0].cached_tokens == 0
    assert run.stall_s == pytest.approx(0.005)


def test_scheduling_is_asynchronous_unless_told_otherwise(tmp_path: Path) -> None:
    run, = read_runs(written(tmp_path / "a.jsonl", {**ENGINE, "args": {}}, RUN, STEPS))
    assert run.engine.asynchronous


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.jsonl", ENGINE, RUN, STEPS)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_runs(packed) == read_runs(plain)


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    warm = {"label": "warmup"}
    file = written(tmp_path / "a.jsonl", ENGINE, RUN | warm, STEPS | warm, RUN, STEPS)
    assert [run.label for run in read_runs(file)] == ["a"]


@pytest.mark.parametrize(("records", "said"), [
    ([], "no run"),
    ([ENGINE], "no run"),
    (["{"], "line 1"),
    (["[1]"], "a JSON object"),
    ([{"kind": "engines"}], "did you mean 'engine'?"),
    ([RUN], "a run before its engine"),
    ([ENGINE, STEPS], "without their run"),
    ([ENGINE, RUN, STEPS | {"label": "b"}], "steps of 'b'"),
    ([ENGINE, RUN, STEPS | {"columns": ["ms"]}], "columns ['ms']"),
    ([ENGINE, {k: v for k, v in RUN.items() if k != "wall_s"}, STEPS], "no 'wall_s'"),
    ([{k: v for k, v in ENGINE.items() if k != "block_size"}], "no 'block_size'"),
    ([ENGINE, RUN | {"spec": {**SPEC, "think": 1}}, STEPS], "think"),
])
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, records: list[Any], said: str) -> None:
    file = written(tmp_path / "bad.jsonl", *records)
    with pytest.raises(TraceError) as caught:
        read_runs(file)
    assert said in str(caught.value)
    assert "bad.jsonl" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_runs(tmp_path / "none.jsonl")


def test_longest_request_of_a_loop() -> None:
    assert LoopSpec(1, 1, turns=3, first=100, growth=20, out=5).longest_tokens == 100 + 3 * 5 + 2 * 20
