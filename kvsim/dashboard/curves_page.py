"""Hit rates by capacity as a page of HTML that needs nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from kvsim.batch.table import html_table
from kvsim.cache.curves.curves import CurveRow, Curves
from kvsim.dashboard.cache_figures import POLICY_TEXT, capacity_curves
from kvsim.dashboard.sweep_page import axes, chart_slot, document, scroll
from kvsim.report.curve_picture import unlimited_marks

CHART = "Prompt tokens reused by capacity and policy"


def curves_page(found: Curves) -> str:
    """The page of some curves.

    Parameters
    ----------
    found : Curves
        Rows of any policies and capacities.

    Returns
    -------
    str
        HTML with its style, chart and the charting library inside; all rows as a table below.
    """
    about = (f"{found.num_requests:,} requests, {found.num_blocks:,} blocks of {found.block_tokens} tokens, "
             f"{found.num_unique_blocks:,} distinct; {found.played}")
    head = ["policy", "capacity [blocks]", "capacity [tokens]", "blocks reused", "tokens reused", "tokens, full blocks"]
    body = [f"<h1>{escape(found.label)}</h1><p>{escape(about)}</p>", chart_slot(CHART),
            scroll(html_table(head, [_cells(row, found.block_tokens) for row in found.rows]))]
    return document(found.label, "\n".join(body), {CHART: curves_figure(found)})


def curves_figure(found: Curves) -> go.Figure:
    """`capacity_curves` on a white page, with an unlimited cache as a horizontal line."""
    finite = tuple(row for row in found.rows if math.isfinite(row.capacity_blocks))
    drawn = capacity_curves(replace(found, rows=finite), None)
    marks = unlimited_marks(found)
    shapes = [{"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": y, "y1": y,
               "line": {"dash": "dot", "width": 1.5, "color": "#808080"}} for _, y in marks]
    notes = [{"x": 0, "xref": "paper", "xanchor": "left", "y": y, "yanchor": "bottom", "text": text, "showarrow": False}
             for text, y in marks]
    layout = axes("Capacity (tokens)", "Prompt tokens reused (%)", height=480, shapes=shapes, annotations=notes)
    layout["xaxis"] |= {"type": "log", "dtick": 1}
    layout["yaxis"] |= {"range": [0, 105]}
    return go.Figure({"data": drawn.data, "layout": layout})  # pyright: ignore[reportUnknownMemberType]


def write_picture(found: Curves, path: Path) -> None:
    """The chart as a picture file; needs the package kaleido."""
    curves_figure(found).write_image(path)  # pyright: ignore[reportUnknownMemberType]


def _cells(row: CurveRow, block_tokens: int) -> list[str]:
    unlimited = math.isinf(row.capacity_blocks)
    blocks, tokens = (("unlimited", "unlimited") if unlimited else
                      (f"{row.capacity_blocks:,.0f}", f"{row.capacity_blocks * block_tokens:,.0f}"))
    return [POLICY_TEXT.get(row.policy, row.policy), blocks, tokens, f"{row.block_hit_rate:.2%}",
            f"{row.token_hit_rate:.2%}", f"{row.token_full_hit_rate:.2%}"]
