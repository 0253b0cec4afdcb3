"""Charts of latencies and of single requests; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kvsim.dashboard.colours import GREY, OCHRE, OLIVE, PLUM, SLATE, VIOLET
from kvsim.dashboard.figures import figure, layout, line
from kvsim.dashboard.results import median
from kvsim.engine.types import FINISHED, REFUSED
from kvsim.report.metrics import Window
from kvsim.report.report import Report
from kvsim.report.slo import ParetoPoint, interactivity, pareto
from kvsim.study import Row

Floats = NDArray[np.float64]

SHARES = np.linspace(0.0, 1.0, 201)
"""Shares at which a distribution is drawn."""
MAX_REQUESTS = 60
"""Requests that one chart of single requests shows."""
LEAST_S = 1e-3
"""Drawn in place of 0 on logarithmic axes [s]."""
PHASES = MappingProxyType({
    "queued": (GREY, ""), "prefill": (OCHRE, "/"), "load and prefill": (VIOLET, "x"), "decode": (OLIVE, ""),
    "decode, preempted": (PLUM, "\\"),
})
"""Phases of a request: colour and hatching."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Latencies [s] of a run's measured window: TTFT and end-to-end by request, TPOT with the gaps it stands for."""

    ttft_s: Floats
    e2e_s: Floats
    tpot_s: Floats
    gaps: Floats


def samples(reports: Iterable[Report]) -> Samples:
    """Latencies of all requests of some runs, as `kvsim.report.metrics.latency` counts them."""
    return Samples(*(np.concatenate(part) for part in zip(*(_samples(r) for r in reports), strict=True)))


def _samples(report: Report) -> tuple[Floats, Floats, Floats, Floats]:
    records, window = report.records, window_of(report)
    started = window.holds(records.first_token_s)
    done = window.holds(records.finish_s) & (records.status == FINISHED)
    many = done & (records.output_tokens > 1)
    gaps = np.maximum(records.output_tokens[many] - 1, 1).astype(np.float64)
    return ((records.first_token_s - records.arrival_s)[started], (records.finish_s - records.arrival_s)[done],
            (records.finish_s - records.first_token_s)[many] / gaps, gaps)


def window_of(report: Report) -> Window:
    """The measured part of a run."""
    return Window(report.run.measured_from_s, report.run.simulated_s)


def distribution(values: Floats, weights: Floats | None = None) -> Floats:
    """Values [201] below which 0, 0.5, ... 100 % of all lie, weighted if asked; nan without values.

    Examples
    --------
    >>> distribution(np.array([1.0, 3.0]), np.array([3.0, 1.0]))[[0, 100, 200]].tolist()
    [1.0, 1.0, 3.0]
    """
    if not len(values):
        return np.full(len(SHARES), math.nan)
    if weights is None:
        return np.quantile(values, SHARES)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.minimum(np.searchsorted(reached, SHARES - 1e-12), len(values) - 1)]


def distributions(found: Samples, slo: dict[str, dict[str, float]]) -> go.Figure:
    """Share of requests [%] within a latency: TTFT and end-to-end [s] to the left, TPOT and ITL [ms] to the right.

    Parameters
    ----------
    found : Samples
        Latencies of one number of live sessions.
    slo : mapping
        Limits as a scenario states them, e.g. ``{"ttft_s": {"p95": 10.0}}``; drawn as dotted lines.
    """
    each = (("TTFT", found.ttft_s, None, 1.0), ("End to end", found.e2e_s, None, 1.0),
            ("TPOT, by request", found.tpot_s, None, 1e3), ("ITL, by token", found.tpot_s, found.gaps, 1e3))
    colours, dashes = (OCHRE, VIOLET, OLIVE, PLUM), ("solid", "dash", "solid", "dash")
    traces = [_curve(name, distribution(values, weights) * scale, (colour, dash, scale))
              for (name, values, weights, scale), colour, dash in zip(each, colours, dashes, strict=True)]
    log = {"type": "log", "tickformat": "~g", "dtick": "D2"}
    return figure(traces, layout(
        height=400, xaxis={"title": {"text": "TTFT, end to end (s)"}, "domain": [0.0, 0.47], **log},
        xaxis2={"title": {"text": "TPOT, ITL (ms)"}, "domain": [0.53, 1.0], **log},
        yaxis={"title": {"text": "Requests, or tokens (%)"}, "range": [0, 101]}, showlegend=True, hovermode="closest",
        legend={"orientation": "h", "y": -0.22, "x": 0}, shapes=[*_limits(slo.get("ttft_s"), "x", 1.0),
                                                                *_limits(slo.get("tpot_s"), "x2", 1e3)]))


def _curve(name: str, xs: Floats, how: tuple[str, str, float]) -> dict[str, Any]:
    colour, dash, scale = how
    unit = "ms" if scale > 1 else "s"
    return {"type": "scatter", "mode": "lines", "name": name, "x": np.maximum(xs, LEAST_S).tolist(),
            "y": (100 * SHARES).tolist(), "line": {"color": colour, "dash": dash, "width": 2.5},
            "xaxis": "x2" if scale > 1 else "x",
            "hovertemplate": f"%{{y:.0f}} % within %{{x:,.3g}} {unit}<extra>{name}</extra>"}


def _limits(limits: dict[str, float] | None, axis: str, scale: float) -> list[dict[str, Any]]:
    """A dotted line a limit."""
    return [{"type": "line", "x0": scale * v, "x1": scale * v, "xref": axis, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"dash": "dot", "width": 1.5, "color": GREY}} for v in (limits or {}).values()]


def distributions_alt(found: Samples) -> str:
    """The distributions in words."""
    def said(name: str, values: Floats, unit: str, scale: float) -> str:
        at = distribution(values)[[100, 190]] * scale
        return f"{name} p50 {at[0]:,.3g} {unit}, p95 {at[1]:,.3g} {unit}"

    return (f"Latencies of {len(found.ttft_s):,} requests: {said('TTFT', found.ttft_s, 's', 1.0)}; "
            f"{said('end to end', found.e2e_s, 's', 1.0)}; {said('TPOT', found.tpot_s, 'ms', 1e3)}.")


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase of one request, from ``start_s`` for ``length_s`` [s]."""

    request: int
    phase: str
    start_s: float
    length_s: float
    preemptions: int


def request_bars(report: Report, from_s: float, until_s: float) -> list[Bar]:
    """Phases of the first requests that are in the system at some time from ``from_s`` to ``until_s`` [s].

    Notes
    -----
    Records say how often a request was preempted, not when; loading from a lower tier ends within the prefill.
    """
    records = report.records
    ends = np.where(np.isfinite(records.finish_s), records.finish_s, report.run.simulated_s)
    inside = (records.arrival_s <= until_s) & (ends >= from_s) & (records.status != REFUSED)
    order = np.flatnonzero(inside)[np.argsort(records.arrival_s[inside], kind="stable")][:MAX_REQUESTS]
    return [bar for i in order for bar in _bars(report, int(i))]


def _bars(report: Report, i: int) -> list[Bar]:
    records, end_s = report.records, report.run.simulated_s
    times = [float(c[i]) for c in (records.arrival_s, records.admitted_s, records.first_token_s, records.finish_s)]
    names = ("queued", "load and prefill" if records.external_tokens[i] else "prefill",
             "decode, preempted" if records.preemptions[i] else "decode")
    stops = [t if math.isfinite(t) else end_s for t in times[1:]]
    return [Bar(i, name, start, max(stop - start, 0.0), int(records.preemptions[i]))
            for name, start, stop in zip(names, times, stops, strict=False) if math.isfinite(start)]


def gantt(bars: Sequence[Bar], from_s: float, until_s: float) -> go.Figure:
    """Requests as bars over simulated time [s], one a row, a colour and hatching a phase."""
    rows = {request: k for k, request in enumerate(dict.fromkeys(b.request for b in bars))}
    traces = [_phase(phase, [b for b in bars if b.phase == phase], rows) for phase in PHASES
              if any(b.phase == phase for b in bars)]
    return figure(traces, layout(
        height=max(260, 110 + 11 * len(rows)), barmode="overlay", bargap=0.15, showlegend=True,
        xaxis={"title": {"text": "Simulated time (s)"}, "range": [from_s, until_s]},
        yaxis={"title": {"text": "Requests, by arrival"}, "autorange": "reversed", "showticklabels": False},
        legend={"orientation": "h", "y": -0.15 if len(rows) > 20 else -0.35, "x": 0}, hovermode="closest"))


def _phase(phase: str, bars: Sequence[Bar], rows: dict[int, int]) -> dict[str, Any]:
    colour, pattern = PHASES[phase]
    return {"type": "bar", "orientation": "h", "name": phase, "x": [b.length_s for b in bars],
            "base": [b.start_s for b in bars], "y": [rows[b.request] for b in bars],
            "marker": {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "size": 5}},
            "customdata": [[b.request, b.preemptions] for b in bars],
            "hovertemplate": f"request %{{customdata[0]}}: {phase} %{{x:,.2f}} s from %{{base:,.1f}} s, preempted "
                             "%{customdata[1]} times<extra></extra>"}


def gantt_alt(bars: Sequence[Bar]) -> str:
    """The chart of requests in words."""
    spent = {phase: sum(b.length_s for b in bars if b.phase == phase) for phase in PHASES}
    parts = ", ".join(f"{phase} {seconds:,.0f} s" for phase, seconds in spent.items() if seconds)
    return f"Phases of {len({b.request for b in bars})} requests, in all: {parts or 'nothing'}."


def trade_off_points(rows: Sequence[Row]) -> list[ParetoPoint]:
    """Throughput and interactivity of every number of live sessions, medians over the seeds."""
    return [ParetoPoint(str(row.concurrency), median(row, lambda r: r.throughput.total_tokens_per_s_per_gpu),
                        median(row, lambda r: interactivity(r.records, window_of(r)))) for row in rows]


def trade_off(rows: Sequence[Row], live: int) -> go.Figure:
    """Throughput [all tokens/s per GPU] against interactivity [output tokens/s that 90 % of requests reach].

    Points are numbers of live sessions; filled ones are beaten in both by no other.
    """
    points = [p for p in trade_off_points(rows) if math.isfinite(p.interactivity_tokens_per_s)]
    best = {p.label for p in pareto(points)}
    trace = line("live sessions", [p.interactivity_tokens_per_s for p in points],
                 [p.tokens_per_s_per_gpu for p in points], SLATE, "circle")
    trace["mode"] = "lines+markers+text"
    trace["line"] |= {"dash": "dot", "width": 1}
    trace["marker"] |= {"symbol": ["circle" if p.label in best else "circle-open" for p in points],
                        "size": [15 if p.label == str(live) else 10 for p in points]}
    trace |= {"text": [p.label for p in points], "textposition": "top center", "cliponaxis": False, "hovertemplate":
              "%{text} live sessions: %{y:,.0f} tokens/s/GPU at %{x:,.1f} tokens/s<extra></extra>"}
    return figure([trace], layout(
        height=380, xaxis={"title": {"text": "Interactivity (output tokens/s of 90 % of requests)"},
                           "rangemode": "tozero"},
        yaxis={"title": {"text": "Throughput (all tokens/s/GPU)"}, "rangemode": "tozero"}, showlegend=False,
        hovermode="closest"))


def trade_off_alt(rows: Sequence[Row]) -> str:
    """The trade-off in words."""
    parts = [f"{p.label} live sessions: {p.tokens_per_s_per_gpu:,.0f} tokens/s/GPU at "
             f"{p.interactivity_tokens_per_s:,.1f} tokens/s" for p in trade_off_points(rows)]
    return "Throughput against interactivity. " + "; ".join(parts) + "."
