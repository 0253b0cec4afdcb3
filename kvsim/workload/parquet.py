"""The common form of a trace as a Parquet file; needs the optional package pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from kvsim.errors import Problem, TraceError
from kvsim.workload.columns import Ints, offsets_of
from kvsim.workload.readers.source import Row
from kvsim.workload.table import Trace

SCHEMA = "kvsim/trace/1"
_FLAT = ("time_s", "session", "stream", "input_tokens", "output_tokens", "cached_tokens", "gap_s", "output_content")
_RAGGED = {"dep_index": "dep_offsets", "piece_content": "piece_offsets", "piece_tokens": "piece_offsets"}
_META = ("session_names", "num_contents", "knowledge", "block_tokens", "partial_blocks", "outputs_known", "clock",
         "epoch_s", "label")


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


def is_common_form(path: str | Path) -> bool:
    """Whether a Parquet file is one that `write_parquet` wrote.

    Raises
    ------
    TraceError
        No pyarrow, or an unreadable file.
    """
    metadata = cast("dict[bytes, bytes]", _schema(path).metadata or {})
    return b"kvsim" in metadata


def parquet_columns(path: str | Path) -> list[str]:
    """Names of the columns of a Parquet file. Raises as `is_common_form`."""
    return list(_schema(path).names)


def _schema(path: str | Path) -> Any:
    pa, pq = _pyarrow()
    try:
        return pq.read_schema(str(path))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def parquet_rows(path: str | Path) -> Iterator[Row]:
    """Rows of a Parquet file of any kind; dates and times as text. Raises as `is_common_form`."""
    pa, pq = _pyarrow()
    number = 0
    try:
        for batch in pq.ParquetFile(str(path)).iter_batches(batch_size=1 << 16):
            for row in pa.Table.from_batches([_without_nanoseconds(pa, batch)]).to_pylist():
                number += 1
                plain = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()}
                yield Row(f"{path}: row {number}", plain)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _without_nanoseconds(pa: Any, batch: Any) -> Any:
    """A batch whose times have microseconds, which Python's datetime can hold."""
    for i, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            batch = batch.set_column(i, field.name, batch.column(i).cast(pa.timestamp("us", field.type.tz), safe=False))
    return batch


def _unreadable(path: str | Path, error: Exception) -> TraceError:
    return TraceError(f"cannot read {path}", [Problem(str(path), "", str(error)[:200], "a complete Parquet file")])


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
