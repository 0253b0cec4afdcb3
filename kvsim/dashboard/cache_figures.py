"""Charts of hit rates by capacity and by tier; plain functions, as in `kvsim.dashboard.figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from kvsim.cache.curves.curves import CurveRow, Curves
from kvsim.dashboard.figures import IDEAL_COLOUR, figure, layout, line, tier_areas
from kvsim.dashboard.results import IDEAL, TIER_TEXT, median, tier_hits, tiers_hit
from kvsim.study import Row

POLICY_TEXT = MappingProxyType({"lru": "LRU", "lru_tail": "LRU, tail first (as engines free)", "fifo": "FIFO",
                                "lfu": "LFU", "belady": "Belady (optimum)"})
POLICY_COLOURS = MappingProxyType({"lru": "#9A6F00", "lru_tail": "#8F63C9", "fifo": "#6E7B8B", "lfu": "#B0517A",
                                   "belady": "#7A8B00"})
POLICY_SYMBOLS = MappingProxyType({"lru": "circle", "lru_tail": "square", "fifo": "diamond", "lfu": "cross",
                                   "belady": "triangle-up"})
"""Policies for people, with a colour that no cache tier has and a marker each."""


def capacity_curves(found: Curves, pool_tokens: float | None) -> go.Figure:
    """Token-weighted hit rate [%] against capacity [tokens], a line a policy.

    Parameters
    ----------
    found : Curves
        Rows of any policies and capacities.
    pool_tokens : float, optional
        Capacity to mark: what the configured pool holds.
    """
    by_policy = {row.policy: [r for r in found.rows if r.policy == row.policy] for row in found.rows}
    traces = [_policy_line(policy, rows, found.block_tokens) for policy, rows in by_policy.items()]
    drawn = layout(height=420, xaxis={"title": {"text": "Capacity (tokens)"}, "type": "log"},
                   yaxis={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105]}, showlegend=True,
                   legend={"orientation": "h", "y": -0.22, "x": 0}, hovermode="closest")
    if pool_tokens:
        drawn |= _pool_mark(pool_tokens)
    return figure(traces, drawn)


def _policy_line(policy: str, rows: Sequence[CurveRow], block_tokens: int) -> dict[str, Any]:
    xs, ys = [row.capacity_blocks * block_tokens for row in rows], [100 * row.token_hit_rate for row in rows]
    trace = line(POLICY_TEXT[policy], xs, ys, POLICY_COLOURS[policy], POLICY_SYMBOLS[policy])
    return trace | {"hovertemplate": f"%{{x:,.3s}} tokens: %{{y:.1f}} %<extra>{trace['name']}</extra>"}


def _pool_mark(tokens: float) -> dict[str, Any]:
    """A line at the pool's capacity with its name."""
    return {"shapes": [{"type": "line", "x0": tokens, "x1": tokens, "y0": 0, "y1": 1, "yref": "paper",
                        "line": {"dash": "dot", "width": 1.5, "color": "#808080"}}],
            # On a logarithmic axis shapes stand at values, but annotations at their logarithms.
            "annotations": [{"x": math.log10(tokens), "xref": "x", "y": 1.0, "yref": "paper", "yanchor": "bottom",
                             "text": "KV pool", "showarrow": False}]}


def curves_alt(found: Curves) -> str:
    """The curves in words."""
    parts = [f"{POLICY_TEXT[r.policy]} with {r.capacity_blocks * found.block_tokens:,.0f} tokens {r.token_hit_rate:.0%}"
             for r in found.rows]
    return f"Hit rate by capacity and policy, {found.label}. " + "; ".join(parts) + "."


def tiers_by_sessions(rows: Sequence[Row]) -> go.Figure:
    """Hits by tier [% of prompt tokens], stacked, against live sessions, with the ideal."""
    xs = [float(row.concurrency or 0) for row in rows]
    ideal = line("Ideal hit rate (unlimited cache)", xs, [100 * median(r, IDEAL) for r in rows], IDEAL_COLOUR,
                 "circle-open")
    ideal["line"]["dash"] = "dash"
    drawn = layout(height=380, xaxis={"title": {"text": "Live sessions"}, "tickvals": xs},
                   yaxis={"title": {"text": "Prompt tokens reused (%)"}, "range": [0, 105]}, showlegend=True,
                   legend={"orientation": "h", "y": -0.24, "x": 0}, hovermode="closest")
    return figure([*tier_areas(rows, xs), ideal], drawn)


def tiers_alt(rows: Sequence[Row]) -> str:
    """Hits by tier in words."""
    tiers = tiers_hit(rows)
    parts = [f"{row.concurrency} live sessions: "
             + ", ".join(f"{TIER_TEXT[t]} {tier_hits(row)[t]:.0%}" for t in tiers) for row in rows]
    return "Hits by tier by live sessions. " + "; ".join(parts) + "."
