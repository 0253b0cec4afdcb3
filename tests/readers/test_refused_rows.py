"""Rows that a format's own reader refuses: the field is named, the other rows are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import TraceError
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.source import is_parquet
from tests.readers.test_formats import aiperf, lines, read, write

LAB = {"session_id": "s", "round_index": 0, "input_tokens_total": 1000, "prefix_tokens": 0, "output_tokens": 10,
       "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20Z"}]}
TABLE = {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 1.0}"}
CLIENT = {"client": 3, "windows": [[0, 2.0, 1.0, "Gamma", 1.0, 0.5]], "dataset": {"0": TABLE}}
RUNS = {"t": 0.0, "session": 1, "in": 130, "out": 2, "bs": 64, "runs": [[1, 2]]}
ASKED: dict[str, Any] = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2], "type": "s", "api_time": 1.0}
WEKA: dict[str, Any] = {"id": "a", "block_size": 64, "requests": [ASKED]}


@pytest.mark.parametrize(("good", "changed", "field"), [
    (LAB, {"prefix_tokens": 1001}, "prefix_tokens"), (LAB, {"timing_events": []}, "timing_events"),
    (LAB, {"timing_events": "soon"}, "timing_events"), (LAB, {"timing_events": [7]}, "timing_events"),
    (LAB, {"timing_events": [{"event_type": "text", "timestamp": "never"}]}, "timing_events.timestamp"),
    (CLIENT, {"windows": [[0, 2.0]]}, "windows"), (CLIENT, {"windows": 3}, "windows"),
    (CLIENT, {"dataset": {"0": {"input_tokens": "{", "output_tokens": "{7: 1.0}"}}}, "dataset"),
    (CLIENT, {"dataset": {"0": {**TABLE, "input_tokens": "{100: -1.0}"}}}, "dataset"),
    (CLIENT, {"dataset": {"0": {**TABLE, "input_tokens": "{100: 0.0}"}}}, "dataset"),
    (CLIENT, {"dataset": {"0": {"input_tokens": "{}", "output_tokens": "{}"}}}, "dataset"),
    (CLIENT, {"dataset": [1]}, "dataset"),
    (RUNS, {"runs": [[1, 3]]}, "runs"), (RUNS, {"runs": "1"}, "runs"), (RUNS, {"bs": 0}, "bs"),
])
def test_the_field_is_named(tmp_path: Path, good: dict[str, Any], changed: dict[str, Any], field: str) -> None:
    _, report = read(tmp_path, lines(good, {**good, "round_index": 1, **changed}))
    assert [(p.where, p.field) for p in report.bad] == [(f"{tmp_path / 'file'}:2", field)]
    assert report.bad[0].accepted


def test_block_ids_of_two_sizes_cannot_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="block ids of several sizes") as caught:
        read(tmp_path, lines(RUNS, {**RUNS, "t": 1.0, "bs": 32, "in": 64}))
    assert [(p.field, p.given, p.accepted) for p in caught.value.problems] == [("bs", "32", "64")]


@pytest.mark.parametrize("requests", [None, "none", [7]])
def test_weka_requests_must_be_objects(tmp_path: Path, requests: Any) -> None:
    _, report = read(tmp_path, lines(WEKA, {**WEKA, "id": "b", "requests": requests}))
    assert [p.field for p in report.bad] == ["requests"]


def test_weka_sessions_of_two_block_sizes(tmp_path: Path) -> None:
    small = {**WEKA, "id": "b", "block_size": 32, "requests": [{**ASKED, "hash_ids": [1, 2, 3, 4]}]}
    trace, report = read(tmp_path, lines(WEKA, small))
    assert report.bad == []
    assert trace.input_tokens.tolist() == [130, 130]
    assert trace.session_names == ("a", "b")


def test_raw_responses_that_are_no_json_are_passed_over(tmp_path: Path) -> None:
    record = {k: v for k, v in aiperf(100.0, 0).items() if k != "metrics"}
    good = json.dumps({"usage": {"prompt_tokens": 70, "completion_tokens": 8}})
    packets = [{"name": "data", "value": good}, {"name": "data", "value": '{"usage": {"prompt_tok'},
               {"name": "data", "value": '{"usage": null}'}]
    trace, report = read(tmp_path, lines({**record, "payload": {}, "responses": [{"perf_ns": 1, "packets": packets}]}))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist(), report.bad) == ([70], [8], [])


def test_records_without_an_id_are_not_compared(tmp_path: Path) -> None:
    one = aiperf(100.0, 50, x_request_id=None)
    trace, report = read(tmp_path, lines(one, one))
    assert (len(trace), report.bad) == (2, [])


def test_a_document_with_something_else_in_it(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    path = write(tmp_path, json.dumps([row, 7, row], indent=1), "trace.json")
    trace, report = read_trace(path)
    assert len(trace) == 2
    assert [(p.where, p.given) for p in report.bad] == [(f"{path}:2", "7")]


def test_what_cannot_be_opened_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"No such file or directory; accepted: a readable file"):
        is_parquet(tmp_path / "none")


def test_a_broken_zstandard_frame(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(lines(RUNS).encode() * 50))
    packed[-1] ^= 0xFF
    path = tmp_path / "trace.jsonl.zst"
    path.write_bytes(bytes(packed))
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(path)


def test_a_cell_that_csv_cannot_hold(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,4,1\n2023-11-16 18:17:04.5," + "9" * 200_000
    with pytest.raises(TraceError, match=r"cannot read .*|field larger"):
        read(tmp_path, text + ",1\n")


def test_true_is_no_time(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    _, report = read(tmp_path, lines(row, {**row, "timestamp": True}))
    assert [p.field for p in report.bad] == ["timestamp"]
