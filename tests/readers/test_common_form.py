"""The common form: Parquet and back, joining, playing, fitting."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import ScenarioError, TraceError
from kvsim.workload.agentic import make_trees
from kvsim.workload.fit import fit
from kvsim.workload.parquet import read_parquet, write_parquet
from kvsim.workload.preset_file import load_preset, preset_from_dict, preset_to_dict
from kvsim.workload.presets import CLAUDE_CODE, PRESETS
from kvsim.workload.readers.read import convert, read_trace
from kvsim.workload.replay import session_trees_of
from kvsim.workload.table import Entry, Trace, TraceBuilder, concat, trace_of_trees
from kvsim.workload.trace_info import trace_info


def sample() -> Trace:
    """Two sessions that share a beginning, an empty prompt, an output of 0 tokens."""
    builder = TraceBuilder(num_contents=3)
    first = builder.add(Entry(0.0, 100, 5, "a", [(0, 64), (1, 36)], 1, cached_tokens=10))
    builder.add(Entry(4.0, 0, 7, "b", [], builder.fresh()))
    builder.add(Entry(9.0, 150, 0, "a", [(0, 64), (1, 86)], 1, after=(first,), gap_s=3.0))
    builder.add(Entry(9.0, 100, 5, "b", [(0, 64), (2, 36)], 2, stream=1))
    return replace(builder.build("sample", epoch=True)[0], knowledge="blocks", block_tokens=64)


def same(a: Trace, b: Trace) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(Trace)]
    return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y or (x != x and y != y) for x, y in pairs)


def test_parquet_and_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "trace.parquet"
    write_parquet(sample(), path)
    assert same(read_parquet(path), sample())
    trace, report = read_trace(path)
    assert same(trace, sample())
    assert (list(report.formats.values()), report.num_requests) == (["kvsim"], 4)


def test_convert(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "t.jsonl"
    source.write_text(json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}))
    report = convert(source, tmp_path / "t.parquet")
    assert report.num_requests == 1
    assert same(read_trace(tmp_path / "t.parquet")[0], read_trace(source)[0])
    with pytest.raises(TraceError, match="cannot write"):
        convert(source, tmp_path / "missing" / "t.parquet")


def test_parquet_of_another_kind(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(TraceError, match="of no known format"):
        read_trace(path)


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TraceError, match=r"kvsim\[parquet\]"):
        write_parquet(sample(), tmp_path / "t.parquet")


def test_joined_traces_share_nothing() -> None:
    both = concat([sample(), sample()], "both")
    assert (both.num_sessions, both.num_contents) == (4, 8)
    assert both.time_s.tolist() == [0, 0, 4, 4, 9, 9, 9, 9]
    info, twice = trace_info(sample()), trace_info(both)
    assert (info.infinite_hit_blocks, twice.infinite_hit_blocks) == (2, 4)
    lengths = concat([sample(), replace(sample(), knowledge="nothing", block_tokens=0, epoch_s=float("nan"))])
    assert (lengths.block_tokens, lengths.knowledge) == (0, "sessions")
    assert np.isnan(lengths.epoch_s)


def test_open_play() -> None:
    played = sample().to_workload("open", rate_factor=0.5).requests
    assert played.arrival_s.tolist() == [0.0, 8.0, 18.0, 18.0]
    assert played.prompt_tokens.tolist() == [100, 1, 150, 100]
    assert played.output_tokens.tolist() == [5, 7, 1, 5]
    assert played.prompt(0)[0] == played.prompt(3)[0] == (0, 64)
    assert played.traffic_class.tolist() == [0, 0, 0, 1]
    with pytest.raises(ScenarioError):
        sample().to_workload("open", rate_factor=0.0)


def test_closed_play_keeps_what_sessions_share() -> None:
    workload = sample().to_workload("closed", concurrency=2)
    requests = workload.requests
    prompts = {requests.prompt(i)[0] for i in range(len(requests)) if len(requests.prompt(i)) > 1}
    assert prompts == {(0, 64)}
    single = replace(sample(), dep_index=np.zeros(0, np.int64), dep_offsets=np.zeros(5, np.int64))
    assert single.to_workload("closed", concurrency=2).idle_cap_s == float("inf")


def test_an_output_that_is_content_of_another_session_is_a_number_of_its_own_in_each() -> None:
    builder = TraceBuilder(num_contents=5)
    for session, prompt, output in (("a", [(3, 20)], 1), ("b", [(1, 30), (0, 5)], 4), ("a", [(4, 9)], 3)):
        builder.add(Entry(0.0, sum(n for _, n in prompt), 7, session, prompt, output))
    a, b = session_trees_of(builder.build("")[0])
    assert (a.num_shared, a.num_contents, b.num_contents) == (0, 3, 3)
    assert (a.piece_content.tolist(), a.output_content.tolist()) == ([1, 2], [0, 1])
    assert (b.piece_content.tolist(), b.output_content.tolist()) == ([1, 0], [2])


def test_interleaved_sessions_come_apart_with_what_their_requests_wait_for() -> None:
    builder = TraceBuilder(num_contents=3)
    first = [builder.add(Entry(1.0 + k, 5, 1, name, [(k, 5)], k)) for k, name in enumerate("ab")]
    for time_s, name, k in ((4.0, "b", 1), (7.0, "a", 0), (9.0, "b", 1)):
        builder.add(Entry(time_s, 8, 1, name, [(k, 8)], k, after=(first[k],), gap_s=0.5))
    a, b = session_trees_of(builder.build("")[0])
    assert (a.start_s.tolist(), a.dep_offsets.tolist(), a.dep_index.tolist()) == ([0.0, 6.0], [0, 0, 1], [0])
    assert (b.start_s.tolist(), b.dep_offsets.tolist(), b.dep_index.tolist()) == ([0.0, 2.0, 7.0], [0, 0, 1, 2], [0, 0])
    assert (a.prompt_tokens.tolist(), b.prompt_tokens.tolist()) == ([5, 8], [5, 8, 8])


def test_info_as_text_and_data() -> None:
    info = trace_info(sample())
    assert "4 requests, 2 sessions, 1 requests of sub-agents" in info.text()
    assert json.loads(json.dumps(info.to_dict()))["num_blocks"] == 4
    assert info.recorded_token_hit_rate == 10 / 100


def test_fit_needs_sessions() -> None:
    with pytest.raises(TraceError, match="cannot be fitted"):
        fit(replace(sample(), knowledge="nothing"))


def test_fit_finds_the_parameters_of_generated_sessions() -> None:
    trees = make_trees(CLAUDE_CODE, 300, seed=5)
    found = fit(trace_of_trees(trees, 64)).preset
    assert found.turns.median == pytest.approx(CLAUDE_CODE.turns.median, rel=0.1)
    assert found.output.median == pytest.approx(CLAUDE_CODE.output.median, rel=0.05)
    assert found.output.sigma == pytest.approx(CLAUDE_CODE.output.sigma, rel=0.05)
    assert found.appended.median == pytest.approx(CLAUDE_CODE.appended.median, rel=0.1)
    assert found.kept_tokens == CLAUDE_CODE.kept_tokens
    assert found.compacted.median == pytest.approx(CLAUDE_CODE.compacted.median, rel=0.05)
    assert found.limit.parts[0][1].median == pytest.approx(152_000, rel=0.05)
    assert found.rewrite_prob == pytest.approx(CLAUDE_CODE.rewrite_prob, rel=0.25)
    assert found.outputs_reappear


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_survive_as_plain_data(name: str) -> None:
    assert preset_from_dict(json.loads(json.dumps(preset_to_dict(PRESETS[name])))) == PRESETS[name]


@pytest.mark.parametrize("change", [{"turns": "many"}, {"turns": {"middle": 3}}, {"extra": 1}, {"schema": "x"},
                                    {"turns": None, "gap": {"parts": [[1, {"median": 2, "up": 3}]]}}])
def test_wrong_presets_are_explained(change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="no preset"):
        preset_from_dict({**preset_to_dict(CLAUDE_CODE), **change})


def test_preset_file(tmp_path: Path) -> None:
    for text in ("", "[1]", "a: [", "schema: kvsim/preset/1"):
        path = tmp_path / "p.yaml"
        path.write_text(text)
        with pytest.raises(TraceError):
            load_preset(path)
    with pytest.raises(TraceError):
        load_preset(tmp_path / "missing.yaml")
