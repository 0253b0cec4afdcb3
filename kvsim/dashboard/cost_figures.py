"""Charts of money against live sessions; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvsim.dashboard.figures import IDEAL_COLOUR, figure, layout, line
from kvsim.dashboard.money import Mode, Offer, break_even, contribution, market_floor
from kvsim.study import Row

OFFER_COLOURS = ("#9A6F00", "#8F63C9")
"""The chosen price profile, and the one beside it; colours that no cache tier has."""
OFFER_SYMBOLS = ("circle", "square")


def contribution_figure(rows: Sequence[Row], priced: Sequence[Offer], mode: Mode, live: int) -> go.Figure:
    """Contribution [$ per node-hour] against live sessions, a line a price profile.

    Parameters
    ----------
    rows : sequence of Row
        Simulated points; medians over their seeds are drawn.
    priced : sequence of Offer
        One or two bills.
    mode : "hits", "ideal_hits" or "demand"
        What earns; see `kvsim.report.cost.Revenue`.
    live : int
        The number of live sessions to mark.
    """
    xs = _xs(rows)
    traces = [_hover(line(o.label, xs, [contribution(r, o, mode) for r in rows], OFFER_COLOURS[k], OFFER_SYMBOLS[k]))
              for k, o in enumerate(priced)]
    zero = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0, "y1": 0,
            "line": {"width": 1.5, "color": "#808080"}}
    return figure(traces, _layout(xs, "Contribution ($ per node-hour)", [zero, _mark(live)]))


def price_figure(rows: Sequence[Row], priced: Sequence[Offer], mode: Mode, live: int) -> go.Figure:
    """Market floor and break-even [$ per million tokens, cached input included] against live sessions.

    The market's floor is what the cheapest provider charges for the same turns (`kvsim.dashboard.money.market_floor`);
    break-even is the bill on them, a line a price profile. The axis is logarithmic: a collapsed cache costs several
    times as much.
    """
    xs, floors = _xs(rows), [market_floor(r, mode) for r in rows]
    floor = line("Market floor (cheapest provider)", xs, floors, IDEAL_COLOUR, "diamond-open")
    floor["line"]["dash"] = "dash"
    ours = [line(f"Break-even, {o.label}", xs, [break_even(r, o) for r in rows], OFFER_COLOURS[k], OFFER_SYMBOLS[k])
            for k, o in enumerate(priced)]
    drawn = _layout(xs, "$ per million tokens, all", [_mark(live)])
    drawn["yaxis"] |= {"type": "log", "dtick": "D1", "tickprefix": "$"}
    return figure([_hover(t) for t in (floor, *ours)], drawn)


def price_alt(rows: Sequence[Row], priced: Sequence[Offer], mode: Mode) -> str:
    """The price chart in words."""
    parts = [f"{row.concurrency} live sessions: market {market_floor(row, mode):.3f}, "
             + ", ".join(f"{o.name} {break_even(row, o):.3f}" for o in priced) for row in rows]
    return "Market floor and break-even in dollars per million tokens. " + "; ".join(parts) + "."


def contribution_alt(rows: Sequence[Row], priced: Sequence[Offer], mode: Mode) -> str:
    """The contribution chart in words."""
    parts = [f"{row.concurrency} live sessions: "
             + ", ".join(f"{o.name} {contribution(row, o, mode):,.2f}" for o in priced) for row in rows]
    return "Contribution in dollars per node-hour by live sessions. " + "; ".join(parts) + "."


def _xs(rows: Sequence[Row]) -> list[float]:
    return [float(row.concurrency or 0) for row in rows]


def _hover(trace: dict[str, Any]) -> dict[str, Any]:
    return {**trace, "hovertemplate": f"%{{x}} live sessions: $%{{y:,.3f}}<extra>{trace['name']}</extra>"}


def _mark(live: int) -> dict[str, Any]:
    return {"type": "line", "x0": live, "x1": live, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"dash": "dot", "width": 1.5, "color": "#808080"}}


def _layout(xs: list[float], y: str, shapes: list[dict[str, Any]]) -> dict[str, Any]:
    return layout(height=400, xaxis={"title": {"text": "Live sessions"}, "tickvals": xs},
                  yaxis={"title": {"text": y}, "automargin": True}, shapes=shapes, showlegend=True,
                  legend={"orientation": "h", "y": -0.22, "x": 0}, hovermode="closest")
