"""Charts of two configurations side by side; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvsim.dashboard.figures import figure, layout, line, whiskers
from kvsim.dashboard.results import HIT, OUTPUT, Pick, extremes, median
from kvsim.study import Row

SIDES = (("A", "#6E7B8B", "circle-open", "dash"), ("B", "#8F63C9", "circle", "solid"))
"""Name, colour, marker and dash of the two sides; colours that no cache tier has."""


def curves(a: Sequence[Row], b: Sequence[Row]) -> go.Figure:
    """Hit rate [% of prompt tokens] and output [tokens/s] of A and B against live sessions.

    Medians over the seeds, extremes as whiskers.
    """
    traces = [_side(k, rows, pick, lower=pick is OUTPUT) for pick in (HIT, OUTPUT) for k, rows in enumerate((a, b))]
    drawn = layout(
        height=480, xaxis={"title": {"text": "Live sessions"}, "anchor": "y2"},
        yaxis={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105], "domain": [0.54, 1.0]},
        yaxis2={"title": {"text": "Output (tokens/s)"}, "rangemode": "tozero", "domain": [0.0, 0.46]},
        legend={"orientation": "h", "y": -0.18, "x": 0}, hovermode="closest", showlegend=True)
    return figure(traces, drawn)


def _side(number: int, rows: Sequence[Row], pick: Pick, *, lower: bool) -> dict[str, Any]:
    """One curve of one side; the legend names a side once."""
    name, colour, symbol, dash = SIDES[number]
    scale, unit = (1.0, " tokens/s") if lower else (100.0, " %")
    xs, ys = [float(r.concurrency or 0) for r in rows], [scale * median(r, pick) for r in rows]
    trace = line(name, xs, ys, colour, symbol)
    trace["line"]["dash"] = dash
    trace |= whiskers([tuple(scale * v for v in extremes(r, pick)) for r in rows], trace["y"])
    return trace | {"yaxis": "y2" if lower else "y", "legendgroup": name, "showlegend": not lower,
                    "hovertemplate": f"%{{x}} live sessions: %{{y:,.1f}}{unit}<extra>{name}</extra>"}


def curves_alt(a: Sequence[Row], b: Sequence[Row]) -> str:
    """The curves in words."""
    parts = [f"{name} at {row.concurrency} live sessions: {median(row, HIT):.0%} reused, {median(row, OUTPUT):,.0f} "
             f"output tokens/s" for name, rows in (("A", a), ("B", b)) for row in rows]
    return "Hit rate and output of A and B by live sessions. " + "; ".join(parts) + "."
