"""Trace events: what Perfetto needs to draw a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvsim.report.report import Report
from kvsim.report.trace_events import trace_events, trace_events_json
from kvsim.simulation import simulate
from tests.sweep.helpers import linear, tiny


@pytest.fixture(scope="module")
def report() -> Report:
    """Twelve requests on a pool that holds about three at a time: some wait, some are preempted."""
    fixed = {"num_requests": 12, "input_tokens": 100, "output_tokens": 60}
    return simulate(tiny(engine={"num_blocks": 24, "max_model_len": 200, "step_time": linear(0.01)},
                         workload={"fixed": fixed, "concurrency": 6}))


def slices(report: Report) -> list[dict[str, Any]]:
    return [event for event in trace_events(report)["traceEvents"] if event["ph"] in "be"]


def test_slices_nest_and_end(report: Report) -> None:
    """Of every request, each slice ends after it began, inside the request's own, and in order."""
    for index in range(12):
        mine = [event for event in slices(report) if event["id"] == index]
        assert (mine[0]["ph"], mine[-1]["ph"]) == ("b", "e")
        assert mine[0]["name"] == mine[-1]["name"] == f"request {index}"
        times = [event["ts"] for event in mine]
        assert times == sorted(times)
        inner = mine[1:-1]
        assert all(b["name"] == e["name"] for b, e in zip(inner[::2], inner[1::2], strict=True))


def test_phases_are_the_records_times(report: Report) -> None:
    records = report.records
    for index in range(12):
        begun = {e["name"].split(",")[0]: e["ts"] for e in slices(report) if e["id"] == index and e["ph"] == "b"}
        assert begun["queued"] == pytest.approx(1e6 * records.arrival_s[index])
        assert begun["prefill"] == pytest.approx(1e6 * records.admitted_s[index])
        assert begun["decode"] == pytest.approx(1e6 * records.first_token_s[index])


def test_preempted_requests_say_so(report: Report) -> None:
    assert report.preemptions > 0
    marked = {e["id"] for e in slices(report) if "preempted" in e["name"]}
    assert marked == {i for i, n in enumerate(report.records.preemptions) if n}


def test_counters_follow_the_timeline(report: Report) -> None:
    events = [e for e in trace_events(report)["traceEvents"] if e["ph"] == "C" and e["name"] == "blocks"]
    assert [e["args"]["used"] for e in events] == report.timeline.used_blocks.tolist()


def test_json_is_strict(report: Report) -> None:
    data = json.loads(trace_events_json(report))
    assert data["otherData"]["digest"] == report.run.digest
    assert {e["ph"] for e in data["traceEvents"]} == {"M", "b", "e", "C"}
