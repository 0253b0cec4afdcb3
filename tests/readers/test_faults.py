"""What is wrong with a trace is named or counted; nothing disappears."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.workload.readers.read import FORMATS, read_trace
from kvsim.workload.readers.reading import ReadOptions

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


@pytest.mark.parametrize(("bad", "field"), [
    ({**GOOD, "timestamp": math.nan}, "timestamp"),
    ({**GOOD, "timestamp": None}, "timestamp"),
    ({**GOOD, "timestamp": "soon"}, "timestamp"),
    ({**GOOD, "input_length": -1}, "input_length"),
    ({**GOOD, "input_length": 1.5}, "input_length"),
    ({**GOOD, "input_length": 2**70}, "input_length"),
    ({**GOOD, "hash_ids": [2**70, 1]}, "hash_ids"),
    ({**GOOD, "output_length": True}, "output_length"),
    ({**GOOD, "hash_ids": "0"}, "hash_ids"),
    ({**GOOD, "hash_ids": [0, 1.5]}, "hash_ids"),
    ({**GOOD, "hash_ids": [[0], 1]}, "hash_ids"),
    ({"timestamp": 0}, "input_length"),
    ("{broken", ""),
    ("[1, 2]", ""),
    ("7", ""),
])
def test_bad_row_is_named_and_skipped(tmp_path: Path, bad: Any, field: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", bad, GOOD)
    trace, report = read_trace(path)
    assert (len(trace), report.num_rows) == (2, 3)
    assert [(p.where, p.field) for p in report.bad] == [(f"{path}:3", field)]
    assert f"{path}:3" in str(report)
    with pytest.raises(TraceError, match="more than 0 bad rows") as error:
        read_trace(path, ReadOptions(max_bad_rows=0))
    assert error.value.exit_code == 2


@pytest.mark.parametrize("line", ["nan,1,1", "inf,1,1", "2023-11-16 18:17,x,1", "2023-11-16,1,-1", "1,2", "1,2,3,4",
                                  "2023-13-16 18:17:03,1,1"])
def test_bad_csv_row_is_named_and_skipped(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.5,4,1", line)
    trace, report = read_trace(path)
    assert (len(trace), len(report.bad), report.bad[0].where) == (1, 1, f"{path}:3")


def test_unsorted_times_are_sorted_and_counted(tmp_path: Path) -> None:
    rows = [{**GOOD, "timestamp": t, "input_length": 100 + t} for t in (3000, 1000, 2000, 2000)]
    trace, report = read_trace(write(tmp_path / "t.jsonl", *rows))
    assert trace.time_s.tolist() == [0.0, 1.0, 1.0, 2.0]
    assert trace.input_tokens.tolist() == [1100, 2100, 2100, 3100]
    assert report.adjusted["row earlier than the row before, sorted by time"] == 1


def test_numbers_of_block_ids_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    trace, report = read_trace(write(tmp_path / "t.jsonl", {**GOOD, "hash_ids": [0, 1, 2]}, {**GOOD, "hash_ids": [0]}))
    assert trace.prompt(0) == [(0, 600)]
    assert sum(n for _, n in trace.prompt(1)) == 600
    assert sorted(report.adjusted.values()) == [1, 1]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", b"\xff\xfe\x00", b"{}\n", b"{\n", b"[]", b"PAR1xxxx",
                                     gzip.compress(b'{"a": 1}\n' * 9999)[:60], gzip.compress(b"")],
                         ids=range(10))
def test_no_trace_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(path) in str(error.value)


def test_truncated_gzip_is_an_error_even_after_good_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    rows = "".join(json.dumps({**GOOD, "timestamp": k, "hash_ids": [k, 7 * k]}) + "\n" for k in range(5000))
    path.write_bytes(gzip.compress(rows.encode())[:-500])
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace"):
        read_trace(tmp_path / "missing")


def test_folder_of_many_formats(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "a.jsonl", GOOD, {**GOOD, "timestamp": 5000})
    write(tmp_path / "deep" / "b.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.5,4,1")
    write(tmp_path / "README.md", "# Traces")
    write(tmp_path / "empty.jsonl")
    write(tmp_path / ".hidden", GOOD)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    trace, report = read_trace(tmp_path)
    assert sorted(report.formats.values()) == ["azure", "mooncake"]
    assert (len(trace), report.num_requests, trace.num_sessions) == (3, 3, 3)
    assert sorted(trace.time_s.tolist()) == [0.0, 0.0, 5.0]
    assert sorted(reason.split(":")[0] for reason in report.skipped) == ["README.md", "empty.jsonl", "image.png"]
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"x" * 9999)[:20])
    with pytest.raises(TraceError, match="broken"):
        read_trace(tmp_path)


def test_folder_without_traces(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "# Nothing here")
    with pytest.raises(TraceError, match="no request"):
        read_trace(tmp_path)


def test_several_files_share_nothing_and_keep_absolute_times(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    late = write(tmp_path / "late.csv", head, "2023-11-16 18:00:10,1,1", "2023-11-16 18:00:12,2,1")
    early = write(tmp_path / "early.csv", head, "2023-11-16 18:00:00,3,1", "2023-11-16 18:00:11,4,1")
    trace, _ = read_trace([late, early])
    assert (trace.time_s.tolist(), trace.input_tokens.tolist()) == ([0.0, 10.0, 11.0, 12.0], [3, 1, 4, 2])
    one = write(tmp_path / "one.jsonl", GOOD)
    trace, _ = read_trace([one, one])
    assert trace.block_tokens == 512
    assert len(set(trace.piece_content.tolist())) == 2


def test_limit_holds_for_all_files_together(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{k}.jsonl", GOOD, "{broken") for k in range(3)]
    assert len(read_trace(files, ReadOptions(max_bad_rows=3))[1].bad) == 3
    with pytest.raises(TraceError, match="more than 2 bad rows"):
        read_trace(files, ReadOptions(max_bad_rows=2))


def test_reading_needs_less_memory_than_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("w") as file:
        for k in range(3000):
            ids = list(range(1_000_000 + 500 * k, 1_000_000 + 500 * (k + 1)))
            file.write(json.dumps({**GOOD, "timestamp": k, "input_length": 512 * 500, "hash_ids": ids}) + "\n")
    tracemalloc.start()
    read_trace(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 13_000_000
    assert peak < path.stat().st_size / 4


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(set(FORMATS) - {"kvsim"})), st.lists(st.one_of(
    st.text(max_size=40), st.dictionaries(st.sampled_from([
        "timestamp", "input_length", "output_length", "hash_ids", "requests", "block_size", "t", "in", "out", "runs",
        "bs", "session", "metadata", "metrics", "usage", "windows", "dataset", "client", "round_index", "session_id",
        "input_tokens_total", "prefix_tokens", "output_tokens", "timing_events", "chat_id"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=5)).map(json.dumps)), max_size=4))
def test_whatever_is_in_a_file_only_trace_errors_come_out(
        tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[str]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_text("\n".join(rows), encoding="utf-8", errors="replace")
    mapping = {"timestamp": "t", "input_tokens": "in", "output_tokens": "out"} if name.startswith("mapped") else None
    try:
        trace, report = read_trace(path, ReadOptions(format=name, mapping=mapping))
    except TraceError:
        return
    assert report.num_rows == len(report.bad) + sum(report.skipped.values()) + (
        len(trace) if name not in ("weka", "servegen") else report.num_rows - len(report.bad))
