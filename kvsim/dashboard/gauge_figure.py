"""The gauge of the distance to the cliff; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from kvsim.dashboard.colours import GREY, SLATE
from kvsim.dashboard.figures import figure, layout
from kvsim.dashboard.headroom import headroom
from kvsim.dashboard.results import ZONE_TEXT, Span, reached_frac, zone_spans
from kvsim.study import Row

GREYS = MappingProxyType({"safe": 0.12, "edge": 0.35, "collapsed": 0.7})
"""How dark each zone is."""


def gauge(rows: Sequence[Row], live: int) -> go.Figure:
    """Zones along the live sessions as one bar, with the chosen number as a mark and the way to the edge as an arrow.

    Parameters
    ----------
    rows : sequence of Row
        Simulated points, ascending in live sessions.
    live : int
        The chosen number.
    """
    spans = zone_spans([(float(r.concurrency or 0), reached_frac(r)) for r in rows])
    found = headroom(rows, live)
    mark = {"type": "scatter", "mode": "markers+text", "x": [live], "y": [""], "name": "now", "text": [f"{live} now"],
            "textposition": "top center", "cliponaxis": False,
            "marker": {"symbol": "diamond", "size": 16, "color": SLATE, "line": {"width": 2, "color": "white"}},
            "hovertemplate": "%{x} live sessions now<extra></extra>"}
    last = max(float(rows[-1].concurrency or 0), float(live))
    drawn = layout(height=130, barmode="stack", showlegend=False, bargap=0.3, xaxis={
        "title": {"text": "Live sessions"}, "range": [0, last * 1.02]}, yaxis={"showticklabels": False})
    drawn["annotations"] = [_label(span, k == 0) for k, span in enumerate(spans) if span.end - span.start > last / 12]
    if found.edge is not None:
        drawn |= _edge(found.edge)
    return figure([*(_zone(span, k == 0) for k, span in enumerate(spans)), mark], drawn)


def _zone(span: Span, first: bool) -> dict[str, Any]:
    """One zone as a part of the bar; the first one begins at 0."""
    start = 0.0 if first else span.start
    return {"type": "bar", "orientation": "h", "name": span.zone, "y": [""], "x": [span.end - start], "base": [start],
            "marker": {"color": GREY, "opacity": GREYS[span.zone]},
            "hovertemplate": f"{span.zone}: {ZONE_TEXT[span.zone]}<extra></extra>"}


def _label(span: Span, first: bool) -> dict[str, Any]:
    """A zone's name, below the mark's line of text, in the page's own colour."""
    start = 0.0 if first else span.start
    return {"text": span.zone, "x": (start + span.end) / 2, "y": 0.0, "yref": "paper", "yanchor": "bottom",
            "showarrow": False}


def _edge(edge: float) -> dict[str, Any]:
    return {"shapes": [{"type": "line", "x0": edge, "x1": edge, "y0": 0, "y1": 1, "yref": "paper",
                        "line": {"dash": "dot", "width": 2, "color": GREY}}]}


def gauge_alt(rows: Sequence[Row], live: int) -> str:
    """The gauge in words."""
    found = headroom(rows, live)
    where = f"up to {found.last}, the most simulated, there is none" if found.edge is None else (
        f"it lies at {found.edge:.1f} live sessions")
    return f"Headroom from {live} live sessions to the edge of the cliff: {found.text()}; {where}."
