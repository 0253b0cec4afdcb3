"""A trace at its recorded times, slower and faster, as a chart; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from kvsim.dashboard.colours import GREY, OCHRE
from kvsim.dashboard.figures import IDEAL_COLOUR, TOTAL_COLOUR, figure, layout, line, tier_areas
from kvsim.dashboard.results import HIT, IDEAL, OUTPUT, TTFT_P95, median
from kvsim.dashboard.verdict import seconds
from kvsim.scenario import Scenario
from kvsim.study import Row


def load_curve(loads: Mapping[float, Row], chosen: float, scenario: Scenario) -> go.Figure:
    """Hit rate by tier [%] (above) and TTFT p95 [s] (below) against the rate, as multiples of the recorded one.

    Parameters
    ----------
    loads : mapping of float to Row
        A run a rate factor.
    chosen : float
        The rate factor to mark.
    scenario : Scenario
        Whose SLO's limit of TTFT p95 is drawn, where it has one.
    """
    xs = sorted(loads)
    rows = [loads[x] for x in xs]
    ideal = line("Ideal hit rate (unlimited cache)", xs, [100 * median(r, IDEAL) for r in rows], IDEAL_COLOUR,
                 "circle-open")
    ideal["line"]["dash"] = "dash"
    hit = line("Hit rate", xs, [100 * median(r, HIT) for r in rows], TOTAL_COLOUR, "circle")
    waits = [median(r, TTFT_P95) for r in rows]
    ttft = line("TTFT p95", xs, waits, OCHRE, "diamond") | {
        "yaxis": "y2", "y": [None if math.isnan(y) else y for y in waits]}
    traces = [*tier_areas(rows, xs), hit, ideal, ttft]
    for trace in traces:
        unit = " s" if trace.get("yaxis") == "y2" else " %"
        trace["hovertemplate"] = f"%{{x:g}} times as recorded: %{{y:,.3g}}{unit}<extra>{trace['name']}</extra>"
    return figure(traces, layout(
        height=480, xaxis={"title": {"text": "Rate (times as recorded)"}, "tickvals": xs, "anchor": "y2"},
        yaxis={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105], "domain": [0.47, 1.0]},
        yaxis2={"title": {"text": "TTFT p95 (s)"}, "rangemode": "tozero", "domain": [0.0, 0.39]},
        shapes=_marks(chosen, scenario.slo.ttft_s.get("p95")), showlegend=True, hovermode="closest",
        legend={"orientation": "h", "y": -0.18, "x": 0}))


def _marks(chosen: float, limit_s: float | None) -> list[dict[str, Any]]:
    """Dotted lines at the chosen rate and at the SLO's limit."""
    dotted = {"dash": "dot", "width": 1.5, "color": GREY}
    marks: list[dict[str, Any]] = [{"type": "line", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "yref": "paper",
                                    "line": dotted}]
    if limit_s is not None:
        marks.append({"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": limit_s, "y1": limit_s, "yref": "y2",
                      "line": dotted})
    return marks


def load_alt(loads: Mapping[float, Row]) -> str:
    """The chart in words."""
    parts = [f"{factor:g} times as recorded: {median(row, HIT):.0%} reused (ideal {median(row, IDEAL):.0%}), TTFT p95 "
             f"{seconds(median(row, TTFT_P95))}, {median(row, OUTPUT):,.0f} output tokens/s"
             for factor, row in sorted(loads.items())]
    return "The trace at several rates. " + "; ".join(parts) + "."
