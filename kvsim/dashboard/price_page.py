"""A price table as one page of HTML that needs nothing else: charts first, then every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from kvsim.batch.table import html_table
from kvsim.dashboard.sweep_page import COLOURS, SYMBOLS, axes, chart_slot, document, scroll
from kvsim.planning.price_table import MODES, PriceRow, PriceTable
from kvsim.planning.price_text import share_text, usd_text

FLOORS, CONTRIBUTION, CONTEXT = "Our price floor and the market's", "Contribution", "Price of long context"
MODE_DASHES = {"hits": "solid", "ideal_hits": "dash", "demand": "dot"}
MARKET_COLOUR = "#6E7B8B"
HEIGHT = 560


def price_page(table: PriceTable) -> str:
    """The page of a price table.

    Parameters
    ----------
    table : PriceTable
        As `kvsim.planning.price_table.price_table` made it.

    Returns
    -------
    str
        HTML with its style, charts and the charting library inside.
    """
    drawn = {FLOORS: floor_figure(table), CONTRIBUTION: contribution_figure(table), CONTEXT: context_figure(table)}
    first = table.rows[0].costs[0]
    body = [
        f"<h1>{escape(table.name)}: what it earns, and at what price it pays</h1>",
        f"<p>API price {escape(table.api or 'not known')}. Speed: {escape(first.trust)}. Price floors are of the same "
        f"turns: ours is the bill on the tokens that are sold, the market's the cheapest provider "
        f"({escape(table.market or 'none known')}) with everything reused that can be. Where no line of ours is drawn, "
        f"no turn is inside the SLO.</p>",
        *(chart_slot(name) for name in drawn), "<h2>Every point</h2>", scroll(_rows_table(table)),
        *_gains_part(table),
    ]
    return document(table.name, "\n".join(body), drawn)


def floor_figure(table: PriceTable) -> go.Figure:
    """Break-even, a line a tier set and price, and the market's floor, against live sessions [$ per million tokens]."""
    groups = _groups(table)
    ours = [_line(f"Break-even, {name}", rows, lambda r: r.of_cost(lambda c: c.break_even_usd_per_mtok), n)
            for n, (name, rows) in enumerate(groups.items())]
    floor: Callable[[PriceRow], float] = lambda r: r.of_cost(lambda c: c.market_floor_usd_per_mtok)  # noqa: E731
    market = [_line(f"Market floor, turns of: {tiers}", rows, floor, n)
              for n, (tiers, rows) in enumerate(_by_tiers(table).items())]
    for n, trace in enumerate(market):
        trace["line"] = {"color": MARKET_COLOUR, "dash": ("dash", "dot", "dashdot")[n % 3], "width": 3}
    drawn = axes("Live sessions", "$ per million tokens, all", height=HEIGHT)
    drawn["yaxis"] |= {"type": "log", "tickprefix": "$"}
    return go.Figure({"data": [*market, *ours], "layout": drawn})


def contribution_figure(table: PriceTable) -> go.Figure:
    """Contribution [$ per node-hour] against live sessions, a line a tier set, price and revenue mode.

    The modes that are not the scenario's own wait in the legend.
    """
    traces = list[dict[str, Any]]()
    for n, (name, rows) in enumerate(_groups(table).items()):
        for mode in MODES:
            trace = _line(f"{name}, {mode}", rows, lambda r, m=mode: r.contribution(m), n)
            trace["line"] = {"color": COLOURS[n % len(COLOURS)], "dash": MODE_DASHES[mode]}
            traces.append({**trace, "visible": True if mode == table.mode else "legendonly"})
    zero = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0, "y1": 0, "line": {"dash": "dot", "width": 1.5}}
    drawn = axes("Live sessions", "Contribution ($ per node-hour)", shapes=[zero], height=HEIGHT)
    return go.Figure({"data": traces, "layout": drawn})


def context_figure(table: PriceTable) -> go.Figure:
    """Cost of fresh input against the context before it, beside the API's flat price [$ per million tokens]."""
    first = next(iter(table.contexts.values()))
    flat = {"type": "scatter", "mode": "lines", "name": "API's flat price", "x": [p.context_tokens for p in first],
            "y": [p.flat_usd_per_mtok for p in first], "line": {"color": MARKET_COLOUR, "dash": "dash", "width": 3}}
    ours = [{"type": "scatter", "mode": "lines+markers", "name": name, "x": [p.context_tokens for p in prices],
             "y": [p.usd_per_mtok for p in prices], "line": {"color": COLOURS[n % len(COLOURS)]}}
            for n, (name, prices) in enumerate(table.contexts.items())]
    return go.Figure({"data": [flat, *ours], "layout": axes("Context before the chunk (tokens)",
                                                            "$ per million uncached input tokens")})


def _groups(table: PriceTable) -> dict[str, list[PriceRow]]:
    """Rows by tier set and price."""
    found: dict[str, list[PriceRow]] = {}
    for row in table.rows:
        found.setdefault(f"{row.tiers}, {row.offer.label}", []).append(row)
    return found


def _by_tiers(table: PriceTable) -> dict[str, list[PriceRow]]:
    """Rows of the first price by tier set: the market's price of the turns does not depend on ours."""
    found: dict[str, list[PriceRow]] = {}
    for row in table.rows:
        if row.offer.name == table.rows[0].offer.name:
            found.setdefault(row.tiers, []).append(row)
    return found


def _line(name: str, rows: Sequence[PriceRow], pick: Callable[[PriceRow], float], number: int) -> dict[str, Any]:
    """A line over live sessions; a gap where there is no figure."""
    ys = [pick(row) for row in rows]
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": [row.sessions or 0 for row in rows],
            "y": [y if abs(y) < float("inf") else None for y in ys], "line": {"color": COLOURS[number % len(COLOURS)]},
            "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 8}}


COLUMNS: tuple[tuple[str, Callable[[PriceRow], str]], ...] = (
    ("tiers", lambda r: r.tiers), ("live", lambda r: "-" if r.sessions is None else str(r.sessions)),
    ("prices", lambda r: r.offer.label), ("$/h", lambda r: usd_text(r.offer.bill.usd_per_hour)),
    ("hit rate", lambda r: share_text(r.of_point(lambda p: p.hit_rate_frac))),
    ("in SLO", lambda r: share_text(r.of_point(lambda p: p.within_slo_frac))),
    *((f"contribution, {m} [$/node-hour]", lambda r, m=m: usd_text(r.contribution(m))) for m in MODES),
    *((f"margin, {m}", lambda r, m=m: share_text(r.margin(m))) for m in MODES),
    *((f"{k.replace('_', ' ')} [$/M]", lambda r, k=k: usd_text(r.of_cost(lambda c: getattr(c.usd_per_mtok, k)), 3))
      for k in ("uncached_input", "cached_input", "output", "blended", "output_all_in")),
    ("our floor [$/M]", lambda r: usd_text(r.of_cost(lambda c: c.break_even_usd_per_mtok), 3)),
    ("market floor [$/M]", lambda r: usd_text(r.of_cost(lambda c: c.market_floor_usd_per_mtok), 3)),
    ("seats a node", lambda r: usd_text(r.of_cost(lambda c: c.seats.per_node), 1)),
    ("$/seat and month", lambda r: usd_text(r.of_cost(lambda c: c.seats.usd_per_month))),
)


def _rows_table(table: PriceTable) -> str:
    return html_table([title for title, _ in COLUMNS], [[cell(row) for _, cell in COLUMNS] for row in table.rows])


def _gains_part(table: PriceTable) -> list[str]:
    if not table.tier_gains:
        return []
    rows = [[g.tier, g.prices, "-" if g.sessions is None else str(g.sessions), f"{g.usd_per_hour:,.2f}",
             f"{g.usd_per_gb_hour:.5f}", f"{g.cost_usd_per_hour:.3f}"] for g in table.tier_gains]
    head = ["tier", "prices", "live", "brings [$/hour]", "[$/GB-hour]", "costs [$/hour]"]
    return [f"<h2>What a tier brings, its own cost paid (revenue mode {escape(table.mode)})</h2>",
            scroll(html_table(head, rows))]
