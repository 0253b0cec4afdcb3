"""Hit rates of traffic by capacity and policy, without any timing: from a preset or from an uploaded trace."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import io
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import numpy as np

from kvsim.cache.curves.curves import Curves, Play, run_curves
from kvsim.cache.curves.paths import paths_of
from kvsim.errors import Problem, TraceError
from kvsim.scenario import Scenario
from kvsim.traffic import session_trees
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.report import ReadReport
from kvsim.workload.table import Trace, trace_of_trees

MAX_UPLOAD_BYTES, MAX_REQUESTS = 50_000_000, 100_000
"""More takes minutes: ``kvsim cache`` has no such limits."""
MAX_UNPACKED_BYTES = 500_000_000
"""A packed file of the largest size holds ten times as much; a few kilobytes that unpack to this are no trace."""
GZIP, ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
PIECE_BYTES = 1 << 20
MAX_SESSIONS = 40
"""Sessions of a preset that are played."""
BLOCK_TOKENS = 256
"""Tokens of a block where the traffic has no blocks of its own."""
NUM_CAPACITIES = 14
SMALLEST_FRAC = 1 / 500
"""Smallest capacity drawn, as a share of all distinct blocks."""


def preset_trace(scenario: Scenario) -> Trace:
    """The first sessions of a scenario's preset.

    Raises
    ------
    ScenarioError
        The workload has no sessions.
    """
    return trace_of_trees(session_trees(scenario)[:MAX_SESSIONS], BLOCK_TOKENS, scenario.workload.preset or "sessions")


def uploaded_trace(name: str, data: bytes) -> Trace:
    """The trace of `read_upload` alone."""
    return read_upload(name, data)[0]


def read_upload(name: str, data: bytes) -> tuple[Trace, ReadReport]:
    """A trace of any known format from an uploaded file, and what became of its rows.

    Raises
    ------
    TraceError
        Too large, or as `kvsim.workload.readers.read.read_trace`; messages name the file as uploaded.
    """
    own = Path(name).name or "upload"
    if len(data) > MAX_UPLOAD_BYTES:
        raise TraceError("the file is too large for the dashboard", [
            Problem(own, "", f"{len(data) / 1e6:,.0f} MB", f"at most {MAX_UPLOAD_BYTES / 1e6:,.0f} MB; "
                    "the command kvsim cache takes any size")])
    with TemporaryDirectory() as folder:
        path = Path(folder) / own
        path.write_bytes(data)
        _refuse_bombs(own, data)
        try:
            trace, report = read_trace(path)
        except TraceError as err:
            raise TraceError(err.message.replace(str(path), own), _renamed(err.problems, path, own)) from None
    if len(trace) > MAX_REQUESTS:
        raise TraceError("the trace is too long for the dashboard", [
            Problem(own, "", f"{len(trace):,} requests", f"at most {MAX_REQUESTS:,}; kvsim cache takes any number")])
    return replace(trace, label=own), replace(report, path=own, bad=_renamed(report.bad, path, own))


def _renamed(problems: Iterable[Problem], path: Path, own: str) -> list[Problem]:
    """Problems that name the file as it was uploaded."""
    return [replace(p, where=p.where.replace(str(path), own)) for p in problems]


def _refuse_bombs(own: str, data: bytes) -> None:
    """Stop before a small file is unpacked to something that fills the memory.

    Raises
    ------
    TraceError
        It would.
    """
    size = unpacked_bytes(data, MAX_UNPACKED_BYTES)
    if size > MAX_UNPACKED_BYTES:
        raise TraceError("the file unpacks to more than the dashboard takes", [
            Problem(own, "", f"{len(data):,} bytes that unpack to more than {MAX_UNPACKED_BYTES / 1e6:,.0f} MB",
                    f"at most {MAX_UNPACKED_BYTES / 1e6:,.0f} MB; the command kvsim cache takes any size")])


def unpacked_bytes(data: bytes, limit: int) -> int:
    """Size of a file's content once unpacked, counted up to a little above `limit`; damaged files count as far as read.

    Examples
    --------
    >>> unpacked_bytes(gzip.compress(bytes(10_000_000)), 1_000_000) > 1_000_000
    True
    >>> unpacked_bytes(b"plain text", 1_000_000)
    10
    """
    if data[:4] == PARQUET:
        return _parquet_bytes(data)
    size = 0
    # What cannot be unpacked is the reader's to explain.
    with contextlib.suppress(OSError, EOFError, zlib.error, RuntimeError), _unpacked(data) as stream:
        while size <= limit and (piece := stream.read(PIECE_BYTES)):
            size += len(piece)
    return size


def _unpacked(data: bytes) -> IO[bytes]:
    """A file's content as a stream."""
    raw = io.BytesIO(data)
    if data[:2] == GZIP:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if data[:4] == ZSTD and importlib.util.find_spec("zstandard") is not None:
        zstandard: Any = importlib.import_module("zstandard")
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


def _parquet_bytes(data: bytes) -> int:
    """Size of a Parquet file's columns in memory at least, from its footer: 8 bytes a value."""
    if importlib.util.find_spec("pyarrow") is None:
        return len(data)
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        about = parquet.ParquetFile(io.BytesIO(data)).metadata
    except (OSError, ValueError):
        return len(data)
    groups = (about.row_group(k) for k in range(about.num_row_groups))
    columns = (group.column(k) for group in groups for k in range(about.num_columns))
    return sum(max(8 * column.num_values, column.total_uncompressed_size) for column in columns)


def curves_of(trace: Trace, policies: Sequence[str], live: int) -> Curves:
    """Hit rates by policy and capacity, from a small share of all distinct blocks to all of them.

    Parameters
    ----------
    trace : Trace
        One without a common clock is played as `live` sessions side by side, any other in its recorded order.
    policies : sequence of str
        Of `kvsim.cache.curves.curves.POLICIES`.
    live : int
        Live sessions, >= 1.

    Raises
    ------
    TraceError
        A trace that knows lengths only.
    """
    distinct = paths_of(trace).num_blocks
    spaced = np.geomspace(max(distinct * SMALLEST_FRAC, 1.0), max(distinct, 1), NUM_CAPACITIES)
    capacities = [*sorted({float(round(c)) for c in spaced})]
    return run_curves(trace, policies, capacities, Play(live if trace.clock == "session" else None))


def ideal_frac(found: Curves) -> float:
    """Token-weighted hit rate with room for everything; nan without rows."""
    return max((row.token_hit_rate for row in found.rows), default=math.nan)
