"""Load or recompute as a chart, and as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from kvsim.batch.table import html_table
from kvsim.dashboard.sweep_page import COLOURS, axes, chart_slot, document, scroll
from kvsim.load_or_recompute import LoadOrRecompute

TITLE, MADE = "Load or recompute", "KV throughput"
NAMES = {"dram": "host DRAM", "nvme": "local NVMe", "pool": "shared pool"}


def load_or_recompute_figure(found: LoadOrRecompute) -> go.Figure:
    """Time [s] against context length [tokens], both on log scales: recomputing, and a line a tier."""
    lengths = [row.context_tokens for row in found.rows]
    traces = [_line("recompute", lengths, [row.recompute_s for row in found.rows], COLOURS[0], width=3)]
    for n, tier in enumerate(found.link_bytes_per_s):
        name = f"load from {NAMES.get(tier, tier)} ({found.link_bytes_per_s[tier] / 1e9:.1f} GB/s a GPU)"
        traces.append(_line(name, lengths, [row.load_s[tier] for row in found.rows], COLOURS[(n + 1) % len(COLOURS)]))
    return go.Figure({"data": traces, "layout": _log_log("Time (s)")})


def kv_throughput_figure(found: LoadOrRecompute) -> go.Figure:
    """KV throughput [GB/s] against context length [tokens]: what a link away from prefill must carry."""
    made = found.kv_throughput
    trace = _line("KV bytes / prefill time", [m.context_tokens for m in made], [m.bytes_per_s / 1e9 for m in made],
                  COLOURS[0], width=3)
    return go.Figure({"data": [trace], "layout": _log_log("KV throughput (GB/s)")})


def reload_page(found: LoadOrRecompute) -> str:
    """The page: both charts, the lengths from which on loading pays, and every row.

    Parameters
    ----------
    found : LoadOrRecompute
        As `kvsim.load_or_recompute.load_or_recompute` made it.

    Returns
    -------
    str
        HTML with its style, charts and the charting library inside.
    """
    figures = {TITLE: load_or_recompute_figure(found), MADE: kv_throughput_figure(found)}
    verdicts = "".join(f"<li>{escape(line)}</li>" for line in found.text().splitlines()[2 + len(found.rows):])
    body = [f"<h1>{escape(found.name)}: load a context, or compute it again?</h1>", f"<ul>{verdicts}</ul>",
            *(chart_slot(name) for name in figures), "<h2>Every length</h2>", scroll(_table(found))]
    return document(found.name, "\n".join(body), figures)


def _table(found: LoadOrRecompute) -> str:
    tiers = list(found.link_bytes_per_s)
    head = ["context", "MiB a GPU", "recompute s", *(f"{t} s" for t in tiers), "KV GB/s"]
    return html_table(head, [
        [f"{row.context_tokens:,}", f"{row.moved_bytes_per_gpu / 2**20:,.1f}", f"{row.recompute_s:.4f}",
         *(f"{row.load_s[t]:.4f}" for t in tiers), f"{made.bytes_per_s / 1e9:.3f}"]
        for row, made in zip(found.rows, found.kv_throughput, strict=True)])


def _line(name: str, x: Sequence[float], y: Sequence[float], colour: str, width: int = 2) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y),
            "line": {"color": colour, "width": width}}


def _log_log(y: str) -> dict[str, Any]:
    drawn = axes("Context (tokens)", y)
    for axis in ("xaxis", "yaxis"):
        drawn[axis] |= {"type": "log"}
    return drawn
