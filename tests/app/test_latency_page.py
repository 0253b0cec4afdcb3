"""The Latency page: its charts say what the report says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import latency_figures as figures
from kvsim.report.report import Report
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.study import Row


@pytest.fixture(scope="module")
def busy() -> Report:
    """Half an hour past the cliff: requests wait, are preempted, and stream slowly."""
    return simulate(load_scenario("k3-b300-study", [
        "study=null", "workload.concurrency=16", "workload.duration_s=600", "workload.warmup_s=120"]))


def test_distributions_have_the_report_s_percentiles(busy: Report) -> None:
    found = figures.samples([busy])
    ttft = figures.distribution(found.ttft_s)
    assert ttft[[100, 190]] == pytest.approx([busy.latency.ttft_s.p50, busy.latency.ttft_s.p95])
    assert figures.distribution(found.tpot_s)[190] == pytest.approx(busy.latency.tpot_s.p95)
    assert figures.distribution(found.e2e_s)[190] == pytest.approx(busy.latency.e2e_s.p95)


def test_seeds_are_pooled(busy: Report) -> None:
    once, twice = figures.samples([busy]), figures.samples([busy, busy])
    assert len(twice.ttft_s) == 2 * len(once.ttft_s)
    assert figures.distribution(twice.ttft_s)[100] == pytest.approx(figures.distribution(once.ttft_s)[100], rel=0.02)


def test_distributions_are_drawn_with_units_and_limits(busy: Report) -> None:
    found = figures.samples([busy])
    drawn: Any = figures.distributions(found, {"ttft_s": {"p95": 10.0}, "tpot_s": {"p95": 0.05}})
    assert [t.name for t in drawn.data] == ["TTFT", "End to end", "TPOT, by request", "ITL, by token"]
    assert drawn.layout.xaxis.title.text.endswith("(s)")
    assert drawn.layout.xaxis2.title.text.endswith("(ms)")
    assert [(s.xref, s.x0) for s in drawn.layout.shapes] == [("x", 10.0), ("x2", 50.0)]
    tpot = drawn.data[2]
    assert tpot.x[190] == pytest.approx(1e3 * busy.latency.tpot_s.p95)
    for trace in drawn.data:
        assert list(trace.y) == sorted(trace.y)
        assert list(trace.x) == sorted(trace.x)
    assert f"{len(found.ttft_s)} requests" in figures.distributions_alt(found)


def test_nothing_measured_draws_nothing() -> None:
    none = np.array([])
    drawn: Any = figures.distributions(figures.Samples(none, none, none, none), {})
    assert all(np.isnan(t.x).all() for t in drawn.data)


def test_phases_of_a_request_adjoin_and_add_up(busy: Report) -> None:
    from_s = busy.run.measured_from_s
    bars = figures.request_bars(busy, from_s, from_s + 300)
    requests = {b.request for b in bars}
    assert 0 < len(requests) <= figures.MAX_REQUESTS
    for request in requests:
        own = [b for b in bars if b.request == request]
        assert own[0].start_s == busy.records.arrival_s[request]
        for one, following in pairwise(own):
            assert one.start_s + one.length_s == pytest.approx(following.start_s)
        finish = float(busy.records.finish_s[request])
        end = finish if np.isfinite(finish) else busy.run.simulated_s
        assert own[-1].start_s + own[-1].length_s == pytest.approx(end)


def test_requests_outside_the_time_shown_are_left_out(busy: Report) -> None:
    late = figures.request_bars(busy, busy.run.simulated_s - 1, busy.run.simulated_s)
    ends = np.nan_to_num(busy.records.finish_s, nan=busy.run.simulated_s)
    assert late
    assert all(ends[b.request] >= busy.run.simulated_s - 1 for b in late)


def test_every_phase_has_its_colour_and_axis(busy: Report) -> None:
    bars = figures.request_bars(busy, busy.run.measured_from_s, busy.run.simulated_s)
    drawn: Any = figures.gantt(bars, 0.0, 100.0)
    assert {t.name for t in drawn.data} == {b.phase for b in bars}
    assert {"queued", "prefill", "decode"} <= {t.name for t in drawn.data}
    assert sum(len(t.x) for t in drawn.data) == len(bars)
    assert drawn.layout.xaxis.title.text == "Simulated time (s)"
    colours = [colour for colour, _ in figures.PHASES.values()]
    assert len(set(colours)) == len(colours)
    assert "Phases of" in figures.gantt_alt(bars)


def test_preempted_requests_look_different(busy: Report) -> None:
    bars = figures.request_bars(busy, 0.0, busy.run.simulated_s)
    preempted = {b.request for b in bars if b.phase == "decode, preempted"}
    assert preempted == {b.request for b in bars if b.preemptions and b.phase.startswith("decode")}


def test_trade_off_marks_what_nothing_beats(busy: Report) -> None:
    calm = simulate(load_scenario("k3-b300-study", [
        "study=null", "workload.concurrency=4", "workload.duration_s=600", "workload.warmup_s=120"]))
    rows = [Row(4, (calm,)), Row(16, (busy,))]
    drawn: Any = figures.trade_off(rows, 4)
    trace = drawn.data[0]
    assert list(trace.text) == ["4", "16"]
    assert trace.y[0] == pytest.approx(calm.throughput.total_tokens_per_s_per_gpu)
    assert trace.marker.symbol[0] == "circle"
    assert trace.marker.size[0] > trace.marker.size[1]
    assert "tokens/s" in drawn.layout.xaxis.title.text
    assert "tokens/s/GPU" in drawn.layout.yaxis.title.text
    assert "4 live sessions" in figures.trade_off_alt(rows)


def show_latency() -> None:
    from kvsim.dashboard.pages import latency

    latency.page()


def test_page_shows_three_charts_and_keeps_what_was_chosen() -> None:
    app = AppTest.from_function(show_latency, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "6", "duration_s": "120", "warmup_s": "0", "seeds": "2"}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    assert not app.error
    assert [m.label for m in app.metric][:2] == ["TTFT p50", "TTFT p95"]
    assert len(app.get("plotly_chart")) == 3
    app.selectbox(key="latency seed").set_value(1).run()
    assert not app.exception
    assert app.slider(key="sessions").value == 6
