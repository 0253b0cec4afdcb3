"""The common form of a trace as a Parquet file; needs the optional package pyarrow."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from kvsim.errors import Problem, TraceError
from kvsim.workload.requests import Ints
from kvsim.workload.sessions import offsets_of
from kvsim.workload.table import Trace

SCHEMA = "kvsim/trace/1"
_FLAT = ("time_s", "session", "stream", "input_tokens", "output_tokens", "cached_tokens", "gap_s", "output_content")
_RAGGED = {"dep_index": "dep_offsets", "piece_content": "piece_offsets", "piece_tokens": "piece_offsets"}
_META = ("session_names", "num_contents", "knowledge", "block_tokens", "partial_blocks", "clock", "epoch_s", "label")


def write_parquet(trace: Trace, path: str | Path) -> None:
    """Write a trace, a row a request; `read_parquet` reads back an equal one.

    Raises
    ------
    TraceError
        No pyarrow, or the file cannot be written.
    """
    pa, pq = _pyarrow()
    columns: dict[str, Any] = {name: getattr(trace, name) for name in _FLAT}
    for name, offsets in _RAGGED.items():
        columns[name] = pa.LargeListArray.from_arrays(getattr(trace, offsets), getattr(trace, name))
    meta = {name: getattr(trace, name) for name in _META}
    table = pa.table(columns).replace_schema_metadata({"kvsim": json.dumps({"schema": SCHEMA, **meta})})
    try:
        pq.write_table(table, str(path), compression="zstd")
    except OSError as error:
        raise TraceError(f"cannot write {path}", [
            Problem(str(path), "", str(error), "a file in an existing folder")]) from error


def read_parquet(path: str | Path) -> Trace:
    """Read what `write_parquet` wrote.

    Raises
    ------
    TraceError
        No pyarrow, an unreadable file, or Parquet of another kind.
    """
    pa, pq = _pyarrow()
    try:
        table = pq.read_table(str(path))
        metadata = cast("dict[bytes, bytes]", table.schema.metadata or {})
        meta: dict[str, Any] = json.loads(metadata.get(b"kvsim", b"{}"))
        if meta.pop("schema", None) != SCHEMA:
            raise TraceError(f"cannot read {path}", [
                Problem(str(path), "", "Parquet without kvsim's columns", f"a file of {SCHEMA}, as convert writes it")])
        columns = {name: table[name].to_numpy() for name in _FLAT}
        for name, offsets in _RAGGED.items():
            column = table[name].combine_chunks()
            columns[name] = _flat(column)
            columns[offsets] = offsets_of(np.asarray(column.value_lengths(), np.int64))
        return _trace({**columns, **meta, "session_names": tuple(meta["session_names"])})
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", str(error)[:200], f"a file of {SCHEMA}")]) from error


def _flat(column: Any) -> Ints:
    return np.asarray(column.flatten(), np.int64)


def _trace(values: dict[str, Any]) -> Trace:
    known = {f.name for f in fields(Trace)}
    return Trace(**{name: value for name, value in values.items() if name in known})


def _pyarrow() -> tuple[Any, Any]:
    """Modules pyarrow and pyarrow.parquet, loaded when they are needed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError("Parquet needs the package pyarrow", [
            Problem("pyarrow", "", "not installed", "pip install 'kvsim[parquet]'")]) from None
    return pyarrow, pyarrow.parquet
