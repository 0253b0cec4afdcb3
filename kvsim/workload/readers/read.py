"""Any trace, from a file, several files or folders: format by content, one common form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kvsim.errors import Problem, TraceError, nearest
from kvsim.workload.parquet import is_common_form, parquet_columns, read_parquet, write_parquet
from kvsim.workload.readers import csv_traces, logs, mooncake, run_lines, servegen, weka
from kvsim.workload.readers.columns import NEEDED, guess_columns, is_table
from kvsim.workload.readers.reading import Reading, ReadOptions
from kvsim.workload.readers.report import ReadReport
from kvsim.workload.readers.source import head_of, header_of, is_parquet, json_rows
from kvsim.workload.table import Trace, concat

Reader = Callable[[Reading], Trace]

FORMATS = MappingProxyType[str, Reader]({
    "mooncake": mooncake.read_mooncake,
    "bailian": mooncake.read_bailian,
    "weka": weka.read_weka,
    "runs": run_lines.read_run_lines,
    "azure": csv_traces.read_azure,
    "burstgpt": csv_traces.read_burstgpt,
    "tracelab-replay": csv_traces.read_tracelab_replay,
    "tracelab": logs.read_tracelab,
    "aiperf": logs.read_aiperf,
    "request-log": logs.read_request_log,
    "servegen": servegen.read_servegen,
    "mapped-csv": csv_traces.read_mapped,
    "mapped-json": csv_traces.read_mapped,
    "mapped-parquet": csv_traces.read_mapped,
    "kvsim": lambda reading: read_parquet(reading.path),
})
"""Reader of each format."""

_BY_KEYS: tuple[tuple[str, frozenset[str]], ...] = tuple((name, frozenset(keys)) for name, keys in (
    ("bailian", ("chat_id", "input_length", "output_length", "hash_ids")),
    ("mooncake", ("timestamp", "input_length", "output_length", "hash_ids")),
    ("weka", ("requests", "block_size")),
    ("runs", ("runs", "bs", "in", "session")),
    ("servegen", ("windows", "dataset")),
    ("tracelab", ("session_id", "round_index", "input_tokens_total")),
    ("aiperf", ("metadata", "metrics")),
    ("aiperf", ("metadata", "payload", "responses")),
    ("aiperf", ("metadata", "responses")),
    ("request-log", ("usage",)),
    ("request-log", ("response",)),
    ("request-log", ("prompt_tokens", "completion_tokens")),
    ("request-log", ("input_tokens", "output_tokens")),
))
_BY_HEADER: tuple[tuple[str, frozenset[str]], ...] = tuple((name, frozenset(columns)) for name, columns in (
    ("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    ("burstgpt", ("Timestamp", "Request tokens", "Response tokens")),
    ("tracelab-replay", ("session_id", "arrival_time", "round_idx", "prefix_len", "input_len", "output_len")),
))


def read_trace(paths: str | Path | Iterable[str | Path],
               options: ReadOptions | None = None) -> tuple[Trace, ReadReport]:
    """Read recorded requests.

    Parameters
    ----------
    paths : path or iterable of paths
        Files (plain, gzip, zstandard) or folders, which are searched for files of any known format.
    options : ReadOptions, optional
        Format, mapping of columns, limits.

    Returns
    -------
    trace : Trace
        All requests. Files share neither sessions nor contents; files that all have absolute times keep them,
        otherwise every file begins at time 0.
    report : ReadReport
        What was skipped, left out and adjusted.

    Raises
    ------
    TraceError
        A file that cannot be read, is empty or of no known format, has more bad rows than allowed or no request.
        Inside a folder files of no known format are left out and counted.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> _ = path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}')
    >>> trace, report = read_trace(path)
    >>> report.formats[str(path)], trace.input_tokens.tolist(), trace.prompt(0)
    ('mooncake', [600], [(0, 600)])
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    options = options or ReadOptions()
    report = ReadReport(", ".join(str(p) for p in given))
    files = [file for path in given for file in _files(Path(path))]
    traces = [trace for file, strict in files if (trace := _read_file(file, strict, options, report)) is not None]
    if not any(len(t) for t in traces):
        raise TraceError(f"{report.path}: no request that can be used", report.bad)
    trace = traces[0] if len(traces) == 1 else concat(traces, report.path)
    report.num_sessions, report.num_requests = trace.num_sessions, len(trace)
    return trace, report


def convert(paths: str | Path | Iterable[str | Path], out: str | Path,
            options: ReadOptions | None = None) -> ReadReport:
    """Write the common form of a trace as Parquet, which `read_trace` reads back at once.

    Raises
    ------
    TraceError
        As `read_trace`; or no pyarrow, or the file cannot be written.
    """
    trace, report = read_trace(paths, options)
    write_parquet(trace, out)
    return report


def detect(path: str | Path, mapping: Mapping[str, str] | None = None) -> str:
    r"""Format of a file, from its content.

    Raises
    ------
    TraceError
        The file cannot be read, is empty, or is of no known format; says what was found in it.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "trace.csv"
    >>> _ = path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5")
    >>> detect(path)
    'azure'
    """
    if is_parquet(path):
        return _detect_parquet(path, mapping)
    head = head_of(path, 1)
    if not head:
        raise TraceError(f"cannot read {path}", [Problem(str(path), "", "an empty file", "a trace")])
    if head[0].lstrip()[:1] in ("{", "["):
        return _detect_json(path, mapping)
    columns = header_of(head[0])
    found = next((name for name, needed in _BY_HEADER if needed <= set(columns)), None)
    if mapping is not None or (found is None and is_table(columns)):
        return "mapped-csv"
    return found or _unknown(path, f"CSV columns {', '.join(sorted(columns))}"[:200], columns)


def _detect_parquet(path: str | Path, mapping: Mapping[str, str] | None) -> str:
    if is_common_form(path):
        return "kvsim"
    columns = parquet_columns(path)
    if mapping is not None or is_table(columns):
        return "mapped-parquet"
    return _unknown(path, f"Parquet columns {', '.join(sorted(columns))}"[:200], columns)


def _detect_json(path: str | Path, mapping: Mapping[str, str] | None) -> str:
    if mapping is not None:
        return "mapped-json"
    looked_at: set[str] = set()
    for row, _ in zip(json_rows(path), range(5), strict=False):
        keys = set(row.values or ())
        looked_at |= keys
        found = next((name for name, needed in _BY_KEYS if needed <= keys), None)
        if found:
            return found
    return _unknown(path, f"JSON with the keys {', '.join(sorted(looked_at))}"[:200] if looked_at else "no JSON object",
                    looked_at)


def _unknown(path: str | Path, given: str, columns: Iterable[str]) -> str:
    lacking = [name for name in NEEDED if name not in guess_columns(columns).of]
    hint = (f"nothing in it is called {' or '.join(lacking)} or the like; a mapping names the columns: "
            f"{','.join(f'{name}=COLUMN' for name in NEEDED)}")
    raise TraceError(f"{path} is of no known format", [Problem(str(path), "", given, ", ".join(FORMATS), hint)])


def _files(path: Path) -> list[tuple[Path, bool]]:
    """Files of a path, and whether each was asked for by name."""
    if not path.exists():
        raise TraceError("no such trace", [Problem(str(path), "", "nothing there", "a file or a folder")])
    if not path.is_dir():
        return [(path, True)]
    inside = [p for p in sorted(path.rglob("*")) if p.is_file()
              and not any(part.startswith(".") for part in p.relative_to(path).parts)]
    return [(p, False) for p in inside]


def _read_file(path: Path, strict: bool, options: ReadOptions, report: ReadReport) -> Trace | None:
    """One file; None if it is left out."""
    try:
        name = options.format or detect(path, options.mapping)
    except TraceError as error:
        if strict or not _harmless(error):
            raise
        report.skipped[f"{path.name}: {error.problems[0].given}"] += 1
        return None
    if name not in FORMATS:
        raise TraceError(f"unknown trace format {name!r}", [
            Problem("format", "", repr(name), ", ".join(FORMATS), nearest(name, list(FORMATS)))])
    report.formats[str(path)] = name
    return FORMATS[name](Reading(path, options, report))


def _harmless(error: TraceError) -> bool:
    """Whether a file of a folder is no trace, rather than a damaged one."""
    return bool(error.problems) and (
        "no known format" in error.message or error.problems[0].given == "an empty file"
        or error.problems[0].given.endswith("not UTF-8"))


def parse_mapping(text: str) -> dict[str, str]:
    """A mapping of columns from ``timestamp=ts,input_tokens=in,output_tokens=out`` or a JSON object.

    Raises
    ------
    TraceError
        Neither of them.

    Examples
    --------
    >>> parse_mapping("timestamp=When,input_tokens=usage.in,output_tokens=usage.out")["timestamp"]
    'When'
    """
    if text.lstrip().startswith("{"):
        try:
            return {str(k): str(v) for k, v in cast("dict[Any, Any]", json.loads(text)).items()}
        except json.JSONDecodeError as error:
            raise TraceError("the mapping is no JSON object", [
                Problem("mapping", "", repr(text)[:60], error.msg)]) from error
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key and eq and value for key, eq, value in pairs):
        raise TraceError("the mapping cannot be read", [
            Problem("mapping", "", repr(text)[:60], "timestamp=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN")])
    return {key.strip(): value.strip() for key, _, value in pairs}
