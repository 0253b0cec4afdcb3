"""Charts of the pool over time and of loading against computing; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvsim.dashboard.colours import GREY, OCHRE, OLIVE, PLUM, SLATE, TIER_COLOURS
from kvsim.dashboard.figures import figure, layout, line
from kvsim.dashboard.results import TIER_TEXT
from kvsim.load_or_recompute import ContextCost
from kvsim.report.report import Report

MOMENTS = 500
"""Moments at which a timeline is looked at."""
TIER_SYMBOLS = {"dram": "square", "nvme": "diamond", "pool": "triangle-up"}


def occupancy(report: Report) -> go.Figure:
    """Blocks of the pool [%] that requests hold and that are cached, and requests running and waiting, over time [min].

    The state of a run at evenly spaced moments of its measured time.
    """
    moments, rows = _moments(report)
    minutes, blocks = (moments / 60).tolist(), max(report.capacity.num_blocks - 1, 1)
    timeline = report.timeline
    traces = [_area("held by requests", minutes, 100 * timeline.used_blocks[rows] / blocks, SLATE),
              _area("cached, free to evict", minutes, 100 * timeline.cached_blocks[rows] / blocks, OLIVE),
              _steps("running", minutes, timeline.running[rows], OCHRE, "solid"),
              _steps("waiting", minutes, timeline.waiting[rows], PLUM, "dash")]
    return figure(traces, layout(
        height=460, xaxis={"title": {"text": "Simulated time (min)"}, "anchor": "y2"},
        yaxis={"title": {"text": "KV blocks (% of the pool)"}, "range": [0, 101], "domain": [0.44, 1.0]},
        yaxis2={"title": {"text": "Requests"}, "rangemode": "tozero", "domain": [0.0, 0.36]},
        showlegend=True, legend={"orientation": "h", "y": -0.18, "x": 0}, hovermode="x unified"))


def _moments(report: Report) -> tuple[Any, Any]:
    """Moments [s] and the rows of the timeline that describe them."""
    moments = np.linspace(report.run.measured_from_s, report.run.simulated_s, MOMENTS)
    rows = np.searchsorted(report.timeline.time_s, moments, side="right") - 1
    return moments, np.clip(rows, 0, max(len(report.timeline.time_s) - 1, 0))


def _area(name: str, xs: list[float], ys: Any, colour: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": xs, "y": np.asarray(ys).tolist(),
            "stackgroup": "blocks", "line": {"color": colour, "width": 1, "shape": "hv"},
            "hovertemplate": "%{y:.1f} %"}


def _steps(name: str, xs: list[float], ys: Any, colour: str, dash: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": xs, "y": np.asarray(ys).tolist(), "yaxis": "y2",
            "line": {"color": colour, "width": 1.5, "shape": "hv", "dash": dash}, "hovertemplate": "%{y}"}


def occupancy_alt(report: Report) -> str:
    """The pool over time in words."""
    _, rows = _moments(report)
    blocks = max(report.capacity.num_blocks - 1, 1)
    used, cached = (float(np.mean(c[rows])) / blocks for c in (report.timeline.used_blocks,
                                                               report.timeline.cached_blocks))
    return (f"The pool over the measured time: on average {used:.0%} of its blocks are held by requests and "
            f"{cached:.0%} are cached; {np.mean(report.timeline.running[rows]):.1f} requests run and "
            f"{np.mean(report.timeline.waiting[rows]):.1f} wait.")


def reload_figure(points: Sequence[ContextCost]) -> go.Figure:
    """Time to have a context back [s] against its length [tokens], both logarithmic: a line a tier, and computing."""
    xs = [float(p.context_tokens) for p in points]
    recompute = line("computed again", xs, [p.recompute_s for p in points], GREY, "circle-open")
    recompute["line"]["dash"] = "dash"
    traces = [recompute, *(line(f"loaded from {TIER_TEXT[kind]}", xs, [p.load_s[kind] for p in points],
                                TIER_COLOURS[kind], TIER_SYMBOLS[kind]) for kind in points[0].load_s)]
    for trace in traces:
        trace["hovertemplate"] = f"%{{x:,.0f}} tokens: %{{y:,.3g}} s<extra>{trace['name']}</extra>"
    return figure(traces, layout(
        height=400, xaxis={"title": {"text": "Context (tokens)"}, "type": "log"},
        yaxis={"title": {"text": "Time to have it back (s)"}, "type": "log", "tickformat": "~g"}, showlegend=True,
        legend={"orientation": "h", "y": -0.22, "x": 0}, hovermode="closest"))


def reload_alt(points: Sequence[ContextCost]) -> str:
    """Loading against computing in words."""
    shown = points[:: max(len(points) // 5, 1)]
    parts = [f"{p.context_tokens:,} tokens: computed again {p.recompute_s:.3g} s, "
             + ", ".join(f"from {TIER_TEXT[kind]} {s:.3g} s" for kind, s in p.load_s.items()) for p in shown]
    return "Time to have a context back. " + "; ".join(parts) + "."
