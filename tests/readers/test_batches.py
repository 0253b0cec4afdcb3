"""Rows are read many at a time: the same rows, accounts and messages as one at a time."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.workload.readers.contents import Run, run_columns, runs_of_ids
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.reading import Reading
from kvsim.workload.readers.source import json_batches, json_rows
from kvsim.workload.table import Trace

ids = st.lists(st.integers(0, 6), max_size=6)
odd = st.none() | st.booleans() | st.floats() | st.sampled_from(["7", -1, 2**62, 2**63 - 1, -(2**63), 2**70, [], {}])
rows = st.builds(
    lambda time_ms, hash_ids, rest, output: {
        "timestamp": time_ms, "input_length": max(512 * len(hash_ids) - rest, 0), "output_length": output,
        "hash_ids": hash_ids},
    st.integers(0, 50) | st.floats(0, 50), ids, st.integers(0, 511) | st.sampled_from([-1, 512]), st.integers(0, 9))
damaged = st.builds(lambda row, key, value: {**row, key: value}, rows,
                    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]),
                    odd | st.integers(0, 4000) | st.lists(odd | st.integers(0, 6), max_size=3))
lines = (rows | rows | rows | damaged).map(json.dumps) | st.sampled_from(["", " ", "{", "7", '{"timestamp": 1}, {}'])


def one_by_one(self: Reading, _take_all: object, take: Any) -> None:
    self.each(json_rows(self.path), take)


def same(one: Trace, other: Trace) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") if isinstance(a, np.ndarray) else repr(a) == repr(b)
               for a, b in ((getattr(one, f.name), getattr(other, f.name)) for f in fields(Trace)))


@settings(deadline=None)
@given(st.lists(lines, min_size=1, max_size=12))
def test_many_rows_at_once_are_the_same_rows(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    path = tmp_path_factory.mktemp("rows") / "t.jsonl"
    good = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    path.write_text("\n".join([json.dumps(good), *written]))
    trace, report = read_trace(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reading, "each_batch", one_by_one)
        expected, account = read_trace(path)
    assert same(trace, expected)
    assert report == account


@example([[0], [1], [], [2, 3]])
@given(st.lists(st.lists(st.integers(-3, 9) | st.integers(2**61, 2**61 + 3), max_size=8), max_size=6))
def test_runs_of_many_rows_are_those_of_each(given_ids: list[list[int]]) -> None:
    each = [runs_of_ids(one) for one in given_ids]
    repeats = any(a[0] == b[0] for runs in each for a, b in pairwise(runs))
    found = run_columns(given_ids)
    if found is None:
        assert repeats
        return
    assert not repeats
    merged: list[Run] = list(zip(found.start.tolist(), found.length.tolist(), strict=True))
    assert merged == [run for runs in each for run in runs]
    assert found.num_runs.tolist() == [len(runs) for runs in each]
    assert found.num_ids.tolist() == [len(one) for one in given_ids]


@pytest.mark.parametrize("odd_ids", [[[1, True]], [[1.0]], [[2**63]], [[-(2**63), 2**63 - 1]], ["12"], [None]])
def test_odd_ids_are_left_to_the_rows(odd_ids: list[Any]) -> None:
    assert run_columns([[1, 2], *odd_ids]) is None


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_numbered_as_in_the_file(tmp_path: Path, end: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(end.join(["", '{"k": 2}', "  ", '{"k": 4}', "", "7", '{"k": 7}', ""]).encode())
    found = [(int(row.where.rpartition(":")[2]), row.values) for row in json_rows(path)]
    assert found == [(2, {"k": 2}), (4, {"k": 4}), (6, None), (7, {"k": 7})]


def test_long_files_come_in_several_batches(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"k": {k}, "text": "{"x" * 500}"}}\n' for k in range(1, 2001)))
    sizes = [len(batch.objects or ()) for batch in json_batches(path)]
    assert sizes[0] == 1
    assert sum(sizes) == 2000
    assert max(sizes) < 1000
    assert all(row.values is not None and row.where == f"{path}:{row.values['k']}" for row in json_rows(path))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_byte_that_is_no_text_is_counted_from_the_beginning(tmp_path: Path, packed: bool, mark: bytes) -> None:
    path = tmp_path / "t.jsonl"
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    content = mark + line * 20_000 + b'{"note": "\xff"}\n' + line * 20_000
    path.write_bytes(gzip.compress(content) if packed else content)
    place = content.index(b"\xff")
    with pytest.raises(TraceError, match=f"byte {place} is not UTF-8"):
        read_trace(path)
