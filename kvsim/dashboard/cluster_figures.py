"""Charts of clusters: replicas over time, routers side by side; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kvsim.dashboard.colours import GREY, OCHRE, OLIVE, PLUM, SLATE, VIOLET
from kvsim.dashboard.figures import figure, layout
from kvsim.report.metrics import Window
from kvsim.report.replicas import ReplicaTrack, hits_in, mean_in_flight
from kvsim.report.report import Report

BINS = 24
"""Stretches of the measured time for which a replica's figures are drawn."""
MOST_TRACKS = 8
"""Replicas that one chart shows; more lines cannot be told apart."""
COLOURS = (SLATE, OCHRE, VIOLET, OLIVE, PLUM, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "hexagon")
BAR_COLOURS = (SLATE, OCHRE, OLIVE)
Floats = NDArray[np.float64]


def bins_of(report: Report) -> list[Window]:
    """Equal stretches of the measured time."""
    edges = np.linspace(report.run.measured_from_s, report.run.simulated_s, BINS + 1).tolist()
    return [Window(start_s, end_s) for start_s, end_s in pairwise(edges)]


def in_flight(track: ReplicaTrack, windows: Sequence[Window]) -> list[float]:
    """Requests that a replica had, running or waiting, averaged over each stretch."""
    return [mean_in_flight(track.timeline, window) for window in windows]


def hit_rates(report: Report, track: ReplicaTrack, windows: Sequence[Window]) -> list[float]:
    """Hit rate [% of prompt tokens] of what a replica served, by stretch of the first token; nan without requests."""
    return [100 * hits_in(report.records, window, track.rows) for window in windows]


def over_time(report: Report) -> go.Figure:
    """Requests in flight (above) and hit rate (below) of each replica over the measured time [min].

    Parameters
    ----------
    report : Report
        Of a cluster; the first `MOST_TRACKS` replicas are drawn. Dotted lines are the moments at which one stopped or
        was back.
    """
    windows, tracks = bins_of(report), report.tracks[:MOST_TRACKS]
    from_s = report.run.measured_from_s
    minutes = [((w.start_s + w.end_s) / 2 - from_s) / 60 for w in windows]
    traces = [trace for k, track in enumerate(tracks) for trace in (
        _track(k, track.name, minutes, in_flight(track, windows)),
        _track(k, track.name, minutes, hit_rates(report, track, windows)) | {
            "yaxis": "y2", "showlegend": False, "hovertemplate": f"%{{y:.1f}} %<extra>replica {track.name}</extra>"})]
    moments = [(t - from_s) / 60 for t in moments_of(report)]
    return figure(traces, layout(
        height=480, xaxis={"title": {"text": "Measured time (min)"}, "anchor": "y2"},
        yaxis={"title": {"text": "Requests in flight"}, "rangemode": "tozero", "domain": [0.55, 1.0]},
        yaxis2={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105], "domain": [0.0, 0.45]},
        legend={"orientation": "h", "y": -0.18, "x": 0}, hovermode="closest", showlegend=True,
        shapes=[{"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper",
                 "line": {"dash": "dot", "width": 1.5, "color": GREY}} for x in moments]))


def moments_of(report: Report) -> list[float]:
    """When replicas stopped or were back within the measured time [s]."""
    window = Window(report.run.measured_from_s, report.run.simulated_s)
    times = {t for track in report.tracks for life in track.up_s for t in life}
    return sorted(t for t in times if window.start_s < t < window.end_s)


def _track(number: int, name: str, xs: list[float], ys: list[float]) -> dict[str, Any]:
    """One replica's line; nan leaves a gap."""
    return {"type": "scatter", "mode": "lines+markers", "name": f"replica {name}", "x": xs,
            "y": [None if math.isnan(y) else y for y in ys], "legendgroup": name, "connectgaps": False,
            "line": {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)], "width": 2},
            "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 7},
            "hovertemplate": f"%{{y:.1f}} in flight<extra>replica {name}</extra>"}


def over_time_alt(report: Report) -> str:
    """Replicas over time in words."""
    windows = bins_of(report)
    parts = [f"replica {t.name}: {_span(in_flight(t, windows))} requests in flight, "
             f"{_span(hit_rates(report, t, windows))} % of prompt tokens reused" for t in report.tracks[:MOST_TRACKS]]
    return "Replicas over the measured time. " + "; ".join(parts) + "."


def _span(values: Sequence[float]) -> str:
    known = [v for v in values if not math.isnan(v)]
    return f"{min(known):.0f} to {max(known):.0f}" if known else "no"


Measured = tuple[str, Callable[[Report], float], str]
PANELS: tuple[Measured, ...] = (
    ("Prompt tokens reused (%)", lambda r: 100 * r.hit_rate.total, ".1f"),
    ("TTFT p95 (s)", lambda r: r.latency.ttft_s.p95, ",.3~g"),
    ("$ per M tokens", lambda r: r.cost.usd_per_mtok.blended, ".3f"),
)
"""What routers are compared by: title, where it is found, how it is written."""


def side_by_side(found: Sequence[tuple[str, Report]]) -> go.Figure:
    """Bars of several runs side by side: hit rate [%], TTFT p95 [s] and $ per million tokens."""
    names = [name for name, _ in found]
    traces = [_bars(names, [_known(pick(r)) for _, r in found], k, form) for k, (_, pick, form) in enumerate(PANELS)]
    drawn = layout(height=90 + 34 * len(names), showlegend=False, bargap=0.3,
                   yaxis={"autorange": "reversed", "automargin": True, "type": "category"})
    for k, (title, _, _) in enumerate(PANELS):
        drawn["xaxis" if not k else f"xaxis{k + 1}"] = {
            "title": {"text": title}, "domain": [k * 0.35, k * 0.35 + 0.3], "rangemode": "tozero", "nticks": 4}
    return figure(traces, drawn)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bars(names: list[str], values: list[float | None], number: int, form: str) -> dict[str, Any]:
    """One panel: a bar a run, with its value."""
    axis = {} if not number else {"xaxis": f"x{number + 1}"}
    return {"type": "bar", "orientation": "h", "y": names, "x": values, "marker": {"color": BAR_COLOURS[number]},
            "texttemplate": f"%{{x:{form}}}", "textposition": "auto", "cliponaxis": False,
            "hovertemplate": f"%{{y}}: %{{x:{form}}}<extra>{PANELS[number][0]}</extra>", **axis}


def side_by_side_alt(found: Sequence[tuple[str, Report]]) -> str:
    """The bars in words."""
    parts = [f"{name}: {r.hit_rate.total:.1%} reused, TTFT p95 {r.latency.ttft_s.p95:,.3g} s, "
             f"{r.cost.usd_per_mtok.blended:.3f} $ per million tokens" for name, r in found]
    return "Side by side. " + "; ".join(parts) + "."
