"""Latency: how long requests wait and stream, one by one and together, and what that costs in throughput."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvsim.dashboard import latency_figures as figures
from kvsim.dashboard import results, show, verdict
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.errors import KvsimError
from kvsim.report.report import Report
from kvsim.report.slo import interactivity
from kvsim.resolve import Resolved
from kvsim.study import Row

SPANS_S = (30, 60, 120, 300, 600)
TTFT_P50: results.Pick = lambda r: r.latency.ttft_s.p50  # noqa: E731
E2E_P95: results.Pick = lambda r: r.latency.e2e_s.p95  # noqa: E731


def page() -> None:
    """The whole page."""
    begun = opened("Latency", "How long requests wait and how fast they stream, and what that costs in throughput.")
    if begun is None:
        return
    choices, resolved = begun
    try:
        rows = simulate_points(choices, resolved.scenario, st.empty(), lambda _rows: None)
    except KvsimError as err:
        show.error(err)
        return
    row = next(r for r in rows if r.concurrency == choices.sessions)
    show_metrics(row, resolved)
    show.not_as_recorded(row.reports)
    show_distributions(row, resolved)
    show_requests(row.reports)
    show_trade_off(rows, choices)
    take_along(choices, resolved.scenario, row)


def show_metrics(row: Row, resolved: Resolved) -> None:
    """Medians over the seeds of the chosen number of live sessions."""
    slo = resolved.scenario.slo
    st.subheader(f"At {row.concurrency} live sessions")
    with st.container(horizontal=True):
        show.metric("TTFT p50", verdict.seconds(results.median(row, TTFT_P50)), goal(slo.ttft_s.get("p50")))
        show.metric("TTFT p95", verdict.seconds(results.median(row, results.TTFT_P95)), goal(slo.ttft_s.get("p95")))
        show.metric("End to end p95", verdict.seconds(results.median(row, E2E_P95)), goal(slo.e2e_s.get("p95")))
        show.metric("TPOT p50", milliseconds(results.median(row, lambda r: r.latency.tpot_s.p50)),
                    goal(slo.tpot_s.get("p50")))
        show.metric("TPOT p95", milliseconds(results.median(row, results.TPOT_P95)), goal(slo.tpot_s.get("p95")))
        show.metric("ITL p95", milliseconds(results.median(row, lambda r: r.latency.itl_s.p95)),
                    "TPOT weighted by tokens: what 95 % of all tokens keep.")
        speed = results.median(row, lambda r: interactivity(r.records, figures.window_of(r)))
        show.metric("Interactivity", f"{speed:,.1f}", "Output tokens/s of end-to-end time that 90 % of requests reach.")


def goal(limit_s: float | None) -> str:
    """What the SLO asks for."""
    return "No objective is set." if limit_s is None else f"The objective is {limit_s:g} s."


def milliseconds(value_s: float) -> str:
    """A short time for people.

    >>> milliseconds(0.01234)
    '12.3 ms'
    """
    return f"{1e3 * value_s:,.1f} ms"


def show_distributions(row: Row, resolved: Resolved) -> None:
    """Distributions of all seeds together."""
    st.subheader("Distributions")
    found = figures.samples(row.reports)
    slo = resolved.scenario.slo.model_dump(include={"ttft_s", "tpot_s"})
    show.chart(figures.distributions(found, slo), "distributions", figures.distributions_alt(found))
    st.caption(f"{len(found.ttft_s):,} requests of {verdict.seeds_text(len(row.reports))} in the measured time. Times "
               "are on logarithmic axes; dotted lines are the SLO's limits. ITL is each request's mean gap, weighted "
               "by its tokens.")


def show_requests(reports: Sequence[Report]) -> None:
    """Requests of one seed as bars."""
    st.subheader("Requests one by one")
    left, middle, right = st.columns([2, 1, 1])
    seeds = {r.run.seed: r for r in reports}
    report = seeds[right.selectbox("Seed", tuple(seeds), key="latency seed")]
    span_s = middle.selectbox("Time shown (s)", SPANS_S, index=SPANS_S.index(120), key="latency span")
    first, last = report.run.measured_from_s, report.run.simulated_s
    latest = max(last - span_s, first)
    share = left.slider("Begin, as a share of the measured time (%)", 0, 100, 0, key="latency begin")
    from_s = first + (latest - first) * share / 100
    bars = figures.request_bars(report, from_s, from_s + span_s)
    show.chart(figures.gantt(bars, from_s, from_s + span_s), "requests", figures.gantt_alt(bars))
    st.caption(f"At most {figures.MAX_REQUESTS} requests, the earliest first. Records say how often a request was "
               "preempted, not when; loads from a lower tier are part of the prefill that waits for them.")


def show_trade_off(rows: Sequence[Row], choices: Choices) -> None:
    """Throughput against interactivity."""
    st.subheader("Throughput against interactivity")
    show.chart(figures.trade_off(rows, choices.sessions), "trade-off", figures.trade_off_alt(rows))
    st.caption(f"A point a number of live sessions, medians over the seeds; the large one is {choices.sessions}. Open "
               "ones are beaten in both by another.")
