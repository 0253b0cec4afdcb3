"""Results to Plotly figures: plain functions, no Streamlit.

Colours are from the palette of Okabe and Ito and keep a contrast of 3:1 on a light and on a dark page; fonts and
backgrounds are left to the page's theme. No meaning is carried by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from kvsim.dashboard.colours import TIER_COLOURS, TIER_PATTERNS
from kvsim.dashboard.results import (
    HIT,
    IDEAL,
    OUTPUT,
    TIER_TEXT,
    Span,
    extremes,
    median,
    reached_frac,
    tier_hits,
    tiers_hit,
    zone_spans,
)
from kvsim.memory.budget import BudgetLine, MemoryBudget
from kvsim.memory.capacity import Capacity, FitAtContext
from kvsim.study import Row
from kvsim.units import gib, si

WEIGHTS_COLOUR, RUNTIME_COLOUR, OUTSIDE_COLOUR, TOTAL_COLOUR = "#9A6F00", "#8A8A8A", "#8A8A8A", "#6E7B8B"
SHORT_COLOUR = "#D55E00"
IDEAL_COLOUR, OUTPUT_COLOUR = "#808080", "#9A6F00"
ZONE_OPACITY = MappingProxyType({"safe": 0.0, "edge": 0.10, "collapsed": 0.22})
ZONE_COLOUR = "#808080"

AGENTIC_CONTEXT_TOKENS = 142_016
"""The context length that pools are compared at: the median request of agentic traffic, in whole blocks."""

GIB = 2.0**30
SHORT_LABEL = 10
"""Labels of so many characters fit behind the longest bar."""


def hbm_waterfall(budget: MemoryBudget, capacity: Capacity | None = None) -> go.Figure:
    """HBM of the fullest GPU, a bar a budget line, down to the KV pool.

    Parameters
    ----------
    budget : MemoryBudget
        Its lines sum to the predicted pool; a negative one is drawn as what is missing.
    capacity : Capacity, optional
        The pool that is used, with what it holds; None when nothing fits. One that differs from the prediction
        (a logged one) gets a bar of its own.

    Returns
    -------
    Figure
        Bars in GiB per GPU; whiskers are the ranges of assumed figures.
    """
    bars = [*_budget_bars(budget.lines), _pool_bar(budget, capacity)]
    if capacity is not None and _is_logged(budget, capacity):
        bars.append(_logged_bar(capacity))
    height = 80 + 34 * len(bars)
    extent = max(line.num_bytes for line in budget.lines) / GIB
    bars = [_label_inside(bar, extent) for bar in bars]
    low = min(0.0, budget.kv_bytes / GIB)
    drawn = layout(height=height, xaxis={"title": {"text": "GiB per GPU (fullest GPU)"},
                                         "range": [low * 1.35, extent * 1.16], "zeroline": True},
                   yaxis={"autorange": "reversed", "automargin": True}, showlegend=False, bargap=0.25)
    return figure([*bars, _bar_labels(bars)], drawn)


def _budget_bars(lines: Sequence[BudgetLine]) -> list[dict[str, Any]]:
    """One bar a line, each starting where the one before ended."""
    bars, level = list[dict[str, Any]](), 0.0
    for number, line in enumerate(lines):
        bars.append(_bar(line.name, (level, line.num_bytes), _line_colour(line.name, number),
                         hover=f"{line.kind}: {line.origin}", whisker=(line.low, line.high)))
        level += line.num_bytes
    return bars


def _pool_bar(budget: MemoryBudget, capacity: Capacity | None) -> dict[str, Any]:
    """The prediction: what is left for the pool, or what is missing."""
    hover = f"derived: {gib(budget.kv_bytes_range[0])} to {gib(budget.kv_bytes_range[1])}"
    if budget.kv_bytes <= 0:
        return _bar("missing", (0.0, budget.kv_bytes), SHORT_COLOUR, hover=hover, whisker=budget.kv_bytes_range)
    holds = capacity is not None and not _is_logged(budget, capacity)
    return _bar("KV pool, predicted", (0.0, budget.kv_bytes), TIER_COLOURS["hbm"], hover=hover,
                whisker=budget.kv_bytes_range, holds=pool_text(capacity) if capacity and holds else "")


def _logged_bar(capacity: Capacity) -> dict[str, Any]:
    size = capacity.num_blocks * max(capacity.geometry.block_bytes)
    return _bar("KV pool, as logged", (0.0, size), TIER_COLOURS["hbm"], hover="given: used instead of the prediction",
                whisker=(size, size), holds=pool_text(capacity))


def _bar(name: str, place: tuple[float, float], colour: str, *, hover: str, whisker: tuple[float, float],
         holds: str = "") -> dict[str, Any]:
    """A bar from `place` = (level, length) in bytes."""
    level, length = place
    text = f"{length / GIB:,.2f}" + (f": {holds}" if holds else "")
    bar: dict[str, Any] = {
        "type": "bar", "orientation": "h", "name": name, "y": [name], "x": [length / GIB], "base": [level / GIB],
        "marker": {"color": colour}, "customdata": [text.replace("-", "−")],
        "hovertemplate": f"{name}: %{{x:,.2f}} GiB<br>{hover}{'<br>' + holds if holds else ''}<extra></extra>",
    }
    low, high = whisker
    if high > low:
        bar["error_x"] = {"type": "data", "symmetric": False, "array": [(high - length) / GIB],
                          "arrayminus": [(length - low) / GIB], "thickness": 1.5, "width": 4, "color": "#808080"}
    return bar


def _bar_labels(bars: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bars' figures, each to the right of its bar and whisker, where there is no text inside it."""
    free = [b for b in bars if "text" not in b]
    ends = [max(b["base"][0], b["base"][0] + b["x"][0] + b.get("error_x", {"array": [0.0]})["array"][0]) for b in free]
    return {"type": "scatter", "mode": "text", "x": ends, "y": [b["y"][0] for b in free], "hoverinfo": "skip",
            "text": [f" {b['customdata'][0]}" for b in free], "textposition": "middle right", "cliponaxis": False}


def _label_inside(bar: dict[str, Any], extent: float) -> dict[str, Any]:
    """A bar that is too long to be followed by a long label, with its label inside."""
    label = bar["customdata"][0]
    if bar["x"][0] < 0.4 * extent or len(label) < SHORT_LABEL:
        return bar
    return {**bar, "text": [label], "textposition": "inside", "insidetextanchor": "start", "textangle": 0,
            "insidetextfont": {"color": "white"}}


def _line_colour(name: str, number: int) -> str:
    if number == 0:
        return TOTAL_COLOUR
    return WEIGHTS_COLOUR if name == "weights" else OUTSIDE_COLOUR if number < 3 else RUNTIME_COLOUR


def _is_logged(budget: MemoryBudget, capacity: Capacity) -> bool:
    """Whether the pool in use is not the one that the budget predicts."""
    return capacity.num_blocks != capacity.geometry.num_blocks(max(budget.kv_bytes, 0.0))


def pool_text(capacity: Capacity) -> str:
    """What a pool holds: tokens as an engine logs them, and sessions at the agentic median."""
    tokens = si(capacity.kv_tokens, "tokens")
    fit = compared_fit(capacity)
    return f"{tokens}, {fit.sessions:,} sessions at {fit.context_tokens / 1e3:.0f}k"


def compared_fit(capacity: Capacity) -> FitAtContext:
    """What fits at the agentic median, or at the longest context below it that the model takes."""
    return [fit for fit in capacity.fits if fit.context_tokens <= AGENTIC_CONTEXT_TOKENS][-1]


def waterfall_alt(budget: MemoryBudget) -> str:
    """The waterfall in words."""
    parts = "; ".join(f"{line.name} {line.num_bytes / GIB:,.1f}" for line in budget.lines)
    return f"HBM budget in GiB per GPU: {parts}; left for KV {budget.kv_bytes / GIB:,.1f}."


def hit_curve(rows: Sequence[Row], live: int) -> go.Figure:
    """Hit rate by tier (above) and output rate (below) against live sessions, with the zones.

    Parameters
    ----------
    rows : sequence of Row
        Simulated points; medians over their seeds are drawn, and the extremes as whiskers.
    live : int
        The number of live sessions to mark.

    Returns
    -------
    Figure
        Areas of the tiers that served tokens, stacked, with the hit rate on top; the ideal; output.
        Hit rates in percent of prompt tokens, output in tokens/s.
    """
    rows = sorted(rows, key=lambda row: row.concurrency or 0)
    xs = [float(row.concurrency or 0) for row in rows]
    traces = [*tier_areas(rows, xs), *_hit_lines(rows, xs)]
    for trace in traces:
        unit = " tokens/s" if trace.get("yaxis") == "y2" else " %"
        trace["hovertemplate"] = f"%{{x}} live sessions: %{{y:.1f}}{unit}<extra>{trace['name']}</extra>"
    return figure(traces, _curve_layout(rows, xs, live))


def tier_areas(rows: Sequence[Row], xs: list[float]) -> list[dict[str, Any]]:
    """A stacked area a tier that served tokens, the fastest at the bottom; hits in percent of prompt tokens."""
    shares = [tier_hits(row) for row in rows]
    return [{"type": "scatter", "mode": "lines", "name": f"Hits in {TIER_TEXT[tier]}", "x": xs,
             "y": [100 * share[tier] for share in shares], "stackgroup": "tiers",
             "line": {"color": TIER_COLOURS[tier], "width": 1}, "fillcolor": _translucent(TIER_COLOURS[tier]),
             "fillpattern": {"shape": TIER_PATTERNS[tier], "fgcolor": TIER_COLOURS[tier], "size": 6, "fgopacity": 0.6}}
            for tier in tiers_hit(rows)]


def _translucent(colour: str) -> str:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red},{green},{blue},0.35)"


def _hit_lines(rows: Sequence[Row], xs: list[float]) -> list[dict[str, Any]]:
    """Hit rate of all tiers, the ideal one, and output."""
    hit = line("Hit rate", xs, [100 * median(r, HIT) for r in rows], TOTAL_COLOUR, "circle")
    ideal = line("Ideal hit rate (unlimited cache)", xs, [100 * median(r, IDEAL) for r in rows], IDEAL_COLOUR,
                  "circle-open")
    output = line("Output tokens/s", xs, [median(r, OUTPUT) for r in rows], OUTPUT_COLOUR, "diamond")
    ideal["line"]["dash"] = "dash"
    hit |= whiskers([tuple(100 * v for v in extremes(r, HIT)) for r in rows], hit["y"])
    output |= {"yaxis": "y2"} | whiskers([extremes(r, OUTPUT) for r in rows], output["y"])
    return [hit, ideal, output]


def _curve_layout(rows: Sequence[Row], xs: list[float], live: int) -> dict[str, Any]:
    spans = zone_spans([(x, reached_frac(r)) for x, r in zip(xs, rows, strict=True)])
    mark = {"type": "line", "x0": live, "x1": live, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"dash": "dot", "width": 1.5, "color": "#808080"}}
    return layout(
        height=520,
        xaxis={"title": {"text": "Live sessions"}, "tickvals": xs, "anchor": "y2"},
        yaxis={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105], "domain": [0.42, 1.0]},
        yaxis2={"title": {"text": "Output (tokens/s)"}, "rangemode": "tozero", "domain": [0.0, 0.36]},
        shapes=[*(_zone_shape(s) for s in spans), mark],
        annotations=[_zone_label(s) for s in spans if s.end - s.start > 0.06 * (xs[-1] - xs[0])],
        legend={"orientation": "h", "y": -0.16, "x": 0}, hovermode="closest",
    )


def _zone_shape(span: Span) -> dict[str, Any]:
    return {"type": "rect", "x0": span.start, "x1": span.end, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
            "fillcolor": ZONE_COLOUR, "opacity": ZONE_OPACITY[span.zone], "line": {"width": 0}}


def _zone_label(span: Span) -> dict[str, Any]:
    return {"text": span.zone, "x": (span.start + span.end) / 2, "y": 1.0, "yref": "paper", "yanchor": "bottom",
            "showarrow": False}


def line(name: str, xs: list[float], ys: list[float], colour: str, symbol: str) -> dict[str, Any]:
    """A trace of markers and the lines between them."""
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": xs, "y": ys,
            "line": {"color": colour, "width": 2.5}, "marker": {"symbol": symbol, "size": 9, "color": colour}}


def whiskers(spans: Sequence[tuple[float, ...]], middles: Sequence[float]) -> dict[str, Any]:
    """Error bars from the smallest to the largest; none where all seeds agree."""
    up = [high - y for (_, high), y in zip(spans, middles, strict=True)]
    down = [y - low for (low, _), y in zip(spans, middles, strict=True)]
    if not any(up) and not any(down):
        return {}
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5}}


def curve_alt(rows: Sequence[Row]) -> str:
    """The curve in words."""
    parts = [f"{row.concurrency} live sessions: {median(row, HIT):.0%} of prompt tokens reused ({_tiers_alt(row)}), "
             f"ideal {median(row, IDEAL):.0%}, {median(row, OUTPUT):,.0f} output tokens/s" for row in rows]
    return "Hit rate and output by live sessions. " + "; ".join(parts) + "."


def _tiers_alt(row: Row) -> str:
    shares = tier_hits(row)
    return ", ".join(f"{TIER_TEXT[tier]} {shares[tier]:.0%}" for tier in tiers_hit([row]))


def layout(**more: Any) -> dict[str, Any]:
    """A layout on the page's own background."""
    clear = "rgba(0,0,0,0)"
    return {"margin": {"l": 8, "r": 8, "t": 28, "b": 8}, "paper_bgcolor": clear, "plot_bgcolor": clear, **more}


def figure(traces: list[dict[str, Any]], drawn: dict[str, Any]) -> go.Figure:
    """Traces and layout as a figure."""
    return go.Figure({"data": traces, "layout": drawn})
