"""CSV traces: Azure, BurstGPT, TraceLab replay files, and tables of requests of any origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from kvsim.workload.parquet import parquet_columns, parquet_rows
from kvsim.workload.readers.columns import TIME_UNITS, choose_columns
from kvsim.workload.readers.reading import Call, CallLog, Reading, Unique
from kvsim.workload.readers.report import BadRow, LeftOut, count_of, number_of, text_of
from kvsim.workload.readers.source import Row, csv_rows, head_of, header_of, json_rows
from kvsim.workload.readers.times import timestamp_s
from kvsim.workload.table import UNKNOWN, Trace


def read_azure(reading: Reading) -> Trace:
    """Read ``TIMESTAMP,ContextTokens,GeneratedTokens`` of 2023 (no zone) and 2024 (with zone).

    Lengths and arrivals only.

    Source: https://github.com/Azure/AzurePublicDataset (CC-BY-4.0).
    """
    log = CallLog(reading, epoch=True)

    def take(row: dict[str, Any]) -> None:
        time_s, _ = timestamp_s(row.get("TIMESTAMP"), "TIMESTAMP")
        log.add(Call(time_s, count_of(row, "ContextTokens"), count_of(row, "GeneratedTokens")))

    reading.each(csv_rows(reading.path), take)
    return log.finish()


def read_burstgpt(reading: Reading) -> Trace:
    """Read BurstGPT: ``Timestamp`` [s], ``Request tokens``, ``Response tokens``, and ``Session ID`` where present.

    Requests with 0 response tokens failed; they are left out and counted.

    Source: https://github.com/HPMLL/BurstGPT (CC-BY-4.0).
    """
    log = CallLog(reading)

    def take(row: dict[str, Any]) -> None:
        time_s, _ = timestamp_s(row.get("Timestamp"), "Timestamp")
        tokens, output = count_of(row, "Request tokens"), count_of(row, "Response tokens")
        if not output:
            raise LeftOut("failed request (0 response tokens)")
        log.add(Call(time_s, tokens, output, str(row.get("Session ID") or "")))

    reading.each(csv_rows(reading.path), take)
    return log.finish()


def read_tracelab_replay(reading: Reading) -> Trace:
    """Read ``session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms``.

    A prompt is ``prefix_len + input_len`` tokens; ``arrival_time`` [ms] is the session's. Rounds are placed by
    their tool waits alone, since service times are not recorded.

    Source: https://github.com/uw-syfi/TraceLab, replay (Apache-2.0).
    """
    log = CallLog(reading, interleaved=True)
    clock: dict[str, tuple[float, float]] = {}
    unique = Unique("round_idx")

    def take(row: dict[str, Any]) -> None:
        session, wait_s = text_of(row, "session_id"), _number(row, "tool_wait_after_ms") / 1e3
        arrival_s = _number(row, "arrival_time") / 1e3
        kept, added = count_of(row, "prefix_len"), count_of(row, "input_len", 0)
        output = count_of(row, "output_len")
        unique.check(f"{session}/{count_of(row, 'round_idx')}")
        time_s, gap_s = clock.get(session, (arrival_s, 0.0))
        log.add(Call(time_s, kept + added, output, session, kept_tokens=kept, gap_s=gap_s))
        clock[session] = time_s + wait_s, wait_s

    reading.each(csv_rows(reading.path), take)
    return log.finish()


def read_mapped(reading: Reading) -> Trace:
    """Read CSV, JSON lines or Parquet whose fields `ReadOptions.mapping` names, or whose columns have known names.

    Raises
    ------
    TraceError
        A needed field that neither names, an unknown key of the mapping, or no such column.
    """
    rows, names = _table(reading)
    columns = choose_columns(reading.options.mapping, names, str(reading.path))
    if columns.guessed:
        reading.report.note(f"{reading.path.name}: columns taken as {columns}")
    log, second = CallLog(reading), TIME_UNITS.get(columns.time_unit)

    def take(row: dict[str, Any]) -> None:
        flat: dict[str, Any] = {name: lookup(row, field) for name, field in columns.of.items()}
        time_s, epoch = timestamp_s(flat["timestamp"], columns.of["timestamp"], second)
        cached, tokens = flat.get("cached_tokens"), count_of(flat, "input_tokens")
        log.epoch = epoch
        log.add(Call(time_s, tokens, count_of(flat, "output_tokens"), _name(flat.get("session")),
                     _name(flat.get("stream")),
                     cached_tokens=UNKNOWN if cached in (None, "") else count_of(flat, "cached_tokens")))

    reading.each(rows, take)
    return log.finish()


def _table(reading: Reading) -> tuple[Iterable[Row], list[str] | None]:
    """Rows of a file, and the names of their columns; None where rows may differ."""
    path, form = reading.path, reading.report.formats[str(reading.path)]
    if form == "mapped-json":
        return json_rows(path), None
    if form == "mapped-parquet":
        return parquet_rows(path), parquet_columns(path)
    return csv_rows(path), next((header_of(line) for line in head_of(path, 1)), list[str]())


def lookup(row: Mapping[str, Any], field: str) -> Any:
    """A field of a row; dots go into objects, unless the row has the whole name.

    >>> lookup({"usage": {"prompt_tokens": 7}}, "usage.prompt_tokens")
    7
    """
    if field in row:
        return row[field]
    found: Any = row
    for name in field.split("."):
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
    return found


def _name(value: object) -> str:
    return "" if value is None else str(value)


def _number(row: dict[str, Any], key: str) -> float:
    given = row.get(key, "")
    try:
        value = float(given)
    except ValueError:
        raise BadRow(key, repr(given)[:40], "a number >= 0") from None
    return number_of({key: value}, key, 0)
