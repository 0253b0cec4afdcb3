"""JSON logs of requests: TraceLab rounds, AIPerf records, OpenAI-style request logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvsim.workload.readers.csv_traces import lookup
from kvsim.workload.readers.reading import Call, CallLog, Reading, Unique
from kvsim.workload.readers.report import BadRow, LeftOut, count_of, number_of, text_of
from kvsim.workload.readers.source import json_rows
from kvsim.workload.readers.times import timestamp_s
from kvsim.workload.table import UNKNOWN, Trace

TIME_FIELDS = ("timestamp", "created", "created_at", "start_time", "request_time", "time", "ts", "response.created")
SESSION_FIELDS = ("session_id", "conversation_id", "session", "conversation", "metadata.session_id")
INPUT_FIELDS = ("prompt_tokens", "input_tokens")
OUTPUT_FIELDS = ("completion_tokens", "output_tokens")
CACHED_FIELDS = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens",
                 "prompt_cache_hit_tokens")


def read_tracelab(reading: Reading) -> Trace:
    """Read TraceLab rounds: ``session_id``, ``round_index``, token counts with the provider's cache, timing events.

    A request starts at the last of its input events (user messages, tool results) and ends with its last event.
    ``prefix_tokens`` is what the provider found cached. A round at least as long as the one before is taken to
    append to it, whether or not its provider still had it cached; a shorter one keeps ``prefix_tokens``.

    Source: https://github.com/uw-syfi/TraceLab (CC-BY-4.0).
    """
    log = CallLog(reading, epoch=True)
    unique = Unique("round_index")

    def take(row: dict[str, Any]) -> None:
        session, number = text_of(row, "session_id"), count_of(row, "round_index")
        tokens, kept = count_of(row, "input_tokens_total"), count_of(row, "prefix_tokens")
        if kept > tokens:
            raise BadRow("prefix_tokens", str(kept), f"at most input_tokens_total = {tokens}")
        start_s, end_s = _event_times(row)
        output = count_of(row, "output_tokens")
        unique.check(f"{session}/{number}")
        log.add(Call(start_s, tokens, output, session, end_s=end_s, cached_tokens=kept, kept_tokens=kept))

    reading.each(json_rows(reading.path), take)
    return log.finish()


def _event_times(row: dict[str, Any]) -> tuple[float, float]:
    events: Any = row.get("timing_events")
    if not isinstance(events, list) or not events:
        raise BadRow("timing_events", repr(row.get("timing_events"))[:40], "a list of events")
    inputs: list[float] = []
    times: list[float] = []
    for event in cast("list[Any]", events):
        if not isinstance(event, dict):
            raise BadRow("timing_events", repr(event)[:40], "an object with a timestamp")
        fields = cast("dict[str, Any]", event)
        times.append(timestamp_s(fields.get("timestamp"), "timing_events.timestamp")[0])
        if fields.get("event_type") in ("user_message", "tool_result"):
            inputs.append(times[-1])
    start_s = max(inputs) if inputs else min(times)
    return start_s, max(*times, start_s)


def read_aiperf(reading: Reading) -> Trace:
    """Read AIPerf's ``profile_export.jsonl`` or ``profile_export_raw.jsonl``.

    Failed and cancelled requests and those of other phases than ``profiling`` are left out and counted. Tokens are
    the server's (``usage``) where the record has them, else AIPerf's own count. Raw records need a ``usage``
    in a response. Requests of one ``x_correlation_id`` are a session; sub-agents belong to their root's.

    Source: https://docs.nvidia.com/aiperf/tutorials/metrics-analysis/working-with-profile-export-files.
    """
    log = CallLog(reading, epoch=True)
    unique = Unique("metadata.x_request_id")

    def take(row: dict[str, Any]) -> None:
        meta = _metadata(row)
        _leave_out(row, meta)
        start_s = number_of(meta, "request_start_ns", 0) / 1e9
        end_ns = number_of(meta, "request_end_ns", 0, -1.0)
        tokens, output, cached = _metrics(row) if isinstance(row.get("metrics"), dict) else _raw_usage(row)
        agent = str(meta.get("x_correlation_id") or meta.get("conversation_id") or "")
        root = str(meta.get("root_correlation_id") or meta.get("parent_correlation_id") or agent)
        if meta.get("x_request_id"):
            unique.check(str(meta["x_request_id"]))
        log.add(Call(start_s, tokens, output, root, agent, end_ns / 1e9 if end_ns >= 0 else None, cached))

    reading.each(json_rows(reading.path), take)
    return log.finish()


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    meta = row.get("metadata")
    if not isinstance(meta, dict):
        raise BadRow("metadata", repr(meta)[:40], "an object")
    return cast("dict[str, Any]", meta)


def _leave_out(row: dict[str, Any], meta: dict[str, Any]) -> None:
    phase = meta.get("benchmark_phase", "profiling")
    if phase != "profiling":
        raise LeftOut(f"phase {phase}")
    if meta.get("was_cancelled"):
        raise LeftOut("cancelled request")
    if row.get("error") is not None:
        raise LeftOut("failed request")


def _metrics(row: dict[str, Any]) -> tuple[int, int, int]:
    values: dict[str, Any] = {name: lookup(row["metrics"], f"{name}.value") for name in (
        "usage_prompt_tokens", "input_sequence_length", "usage_completion_tokens", "output_sequence_length",
        "usage_prompt_cache_read_tokens")}
    tokens = _first(values, ("usage_prompt_tokens", "input_sequence_length"), "metrics.input_sequence_length")
    output = _first(values, ("usage_completion_tokens", "output_sequence_length"), "metrics.output_sequence_length")
    cached = values["usage_prompt_cache_read_tokens"]
    return tokens, output, UNKNOWN if cached is None else count_of(values, "usage_prompt_cache_read_tokens")


def _first(values: Mapping[str, Any], fields: tuple[str, ...], place: str) -> int:
    """The first of some fields that is there."""
    for field in fields:
        found = lookup(values, field)
        if found is not None:
            return count_of({field: found}, field)
    raise BadRow(place, "nothing", "a whole number >= 0")


def _raw_usage(row: dict[str, Any]) -> tuple[int, int, int]:
    for text in _texts(row.get("responses")):
        if '"usage"' in text:
            try:
                usage = lookup(json.loads(text.removeprefix("data:")), "usage")
            except json.JSONDecodeError:
                continue
            if isinstance(usage, dict):
                return usage_tokens(cast("dict[str, Any]", usage))
    raise BadRow("responses", "no usage", "a response with token counts, or the file profile_export.jsonl")


def _texts(value: object) -> Iterator[str]:
    """All texts inside a value, last first."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in reversed(list(cast("dict[str, Any]", value).values())):
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in reversed(cast("list[Any]", value)):
            yield from _texts(inner)


def usage_tokens(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Prompt, output and cached tokens of an OpenAI- or Anthropic-style ``usage`` object.

    Anthropic counts cached tokens apart: the prompt is ``input_tokens`` + ``cache_read_input_tokens`` +
    ``cache_creation_input_tokens``.

    >>> usage_tokens({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
    (9, 2, 4)
    >>> usage_tokens({"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 90})
    (99, 2, 90)
    """
    tokens, output = _first(usage, INPUT_FIELDS, "usage.prompt_tokens"), _first(
        usage, OUTPUT_FIELDS, "usage.completion_tokens")
    if usage.get("cache_read_input_tokens") is not None or usage.get("cache_creation_input_tokens") is not None:
        parts = {k: usage.get(k) or 0 for k in ("cache_read_input_tokens", "cache_creation_input_tokens")}
        cached = count_of(parts, "cache_read_input_tokens")
        return tokens + cached + count_of(parts, "cache_creation_input_tokens"), output, cached
    known = [found for field in CACHED_FIELDS if (found := lookup(usage, field)) is not None]
    return tokens, output, count_of({"cached_tokens": known[0]}, "cached_tokens") if known else UNKNOWN


def read_request_log(reading: Reading) -> Trace:
    """Read OpenAI-style request logs: a timestamp, and token counts in ``usage`` or beside it.

    Rows with an error or an HTTP status of 400 and more are left out and counted. Rows of one ``session_id`` or
    ``conversation_id`` are taken to append to one context.
    """
    log = CallLog(reading)

    def take(row: dict[str, Any]) -> None:
        status = row.get("status_code", row.get("status"))
        if row.get("error") not in (None, "", False) or (isinstance(status, int) and status >= 400):
            raise LeftOut("failed request")
        time_s, log.epoch = timestamp_s(_given(row, TIME_FIELDS), "timestamp")
        usage = _given(row, ("usage", "response.usage", "response.body.usage"))
        tokens, output, cached = usage_tokens(cast("dict[str, Any]", usage) if isinstance(usage, dict) else row)
        session = _given(row, SESSION_FIELDS)
        log.add(Call(time_s, tokens, output, "" if session is None else str(session), cached_tokens=cached))

    reading.each(json_rows(reading.path), take)
    return log.finish()


def _given(row: dict[str, Any], fields: tuple[str, ...]) -> Any:
    """The first of some fields that is there, or None."""
    return next((found for field in fields if (found := lookup(row, field)) is not None), None)
