"""A run as trace events, which Perfetto and Chrome's tracing page draw."""

from __future__ import annotations

import json
import math
from typing import Any

from kvsim.engine.types import FINISHED, REFUSED, RunRecords, Timeline
from kvsim.report.report import Report

REQUESTS_PROCESS, ENGINE_PROCESS = 1, 2
CATEGORY = "request"
_OUTCOMES = {FINISHED: "finished", REFUSED: "refused"}


def trace_events(report: Report) -> dict[str, Any]:
    """Trace events of a run, in the JSON object format.

    Parameters
    ----------
    report : Report
        With its records and timeline.

    Returns
    -------
    dict
        ``traceEvents``: a request is an async slice with slices inside: ``queued`` (arrival to admission), ``prefill``
        (to the first token; ``load and prefill`` where tokens came from a lower tier) and ``decode`` (to the end).
        Counters: running and waiting requests, blocks in use and cached. Times in us of simulated time.

    Notes
    -----
    Records tell how often a request was preempted and not when: it shows as ``decode, preempted 2x``, and the time
    spent waiting and recomputing lies inside that slice (or inside prefill, if it was preempted there).

    Examples
    --------
    >>> import kvsim
    >>> report = kvsim.simulate({"name": "tiny", "model": "llama-3.1-8b",
    ...     "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 1, "input_tokens": 100, "output_tokens": 10}, "concurrency": 1}})
    >>> [e["name"] for e in trace_events(report)["traceEvents"] if e["ph"] == "b"]
    ['request 0', 'queued', 'prefill', 'decode']
    """
    records, end_s = report.records, report.run.simulated_s
    names = [_process(REQUESTS_PROCESS, f"requests of {report.name}"), _process(ENGINE_PROCESS, "engine")]
    arrived = [i for i in range(len(records.arrival_s)) if math.isfinite(records.arrival_s[i])]
    requests = [event for i in arrived for event in _request(records, i, end_s)]
    about = {"scenario": report.name, "digest": report.run.digest, "version": report.run.version}
    return {"traceEvents": [*names, *requests, *_counters(report.timeline)], "displayTimeUnit": "ms",
            "otherData": about}


def trace_events_json(report: Report) -> str:
    """`trace_events` as JSON text."""
    return json.dumps(trace_events(report), separators=(",", ":"), allow_nan=False)


def _process(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def _request(records: RunRecords, index: int, end_s: float) -> list[dict[str, Any]]:
    """Begin and end events of one request and its phases, the whole first."""
    bounds = [float(column[index]) for column in
              (records.arrival_s, records.admitted_s, records.first_token_s, records.finish_s)]
    reached = [t for t in bounds if math.isfinite(t)]
    status = int(records.status[index])
    last_s = bounds[-1] if math.isfinite(bounds[-1]) else max(end_s, reached[-1]) if status != REFUSED else reached[-1]
    arguments = {name: int(getattr(records, name)[index]) for name in
                 ("prompt_tokens", "cached_tokens", "external_tokens", "output_tokens", "preemptions")}
    outcome = _OUTCOMES.get(status, "unfinished")
    events = [_slice("b", f"request {index}", index, bounds[0], {**arguments, "outcome": outcome})]
    for name, begin_s, stop_s in zip(_phases(records, index), bounds, [*bounds[1:], math.nan], strict=False):
        if math.isfinite(begin_s) and status != REFUSED:
            stop_s = stop_s if math.isfinite(stop_s) else last_s
            events += [_slice("b", name, index, begin_s), _slice("e", name, index, stop_s)]
    return [*events, _slice("e", f"request {index}", index, last_s)]


def _phases(records: RunRecords, index: int) -> tuple[str, str, str]:
    preempted = int(records.preemptions[index])
    prefill = "load and prefill" if records.external_tokens[index] else "prefill"
    return "queued", prefill, f"decode, preempted {preempted}x" if preempted else "decode"


def _slice(phase: str, name: str, index: int, time_s: float, args: dict[str, Any] | None = None) -> dict[str, Any]:
    event = {"ph": phase, "cat": CATEGORY, "id": index, "name": name, "pid": REQUESTS_PROCESS, "ts": 1e6 * time_s}
    return event if args is None else {**event, "args": args}


def _counters(timeline: Timeline) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for row in range(len(timeline.time_s)):
        at = {"ph": "C", "pid": ENGINE_PROCESS, "ts": 1e6 * float(timeline.time_s[row])}
        events.append({**at, "name": "requests", "args": {"running": int(timeline.running[row]),
                                                          "waiting": int(timeline.waiting[row])}})
        events.append({**at, "name": "blocks", "args": {"used": int(timeline.used_blocks[row]),
                                                        "cached": int(timeline.cached_blocks[row])}})
    return events
