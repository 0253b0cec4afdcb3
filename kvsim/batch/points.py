"""Points of a sweep as a table: means over their seeds, with a replica column where there are several."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvsim.batch.findings import BILL, CONTRIBUTION, HIT, Group, groups_of
from kvsim.batch.table import SweepTable

Column = tuple[str, str, Callable[[float], str]]
"""Title, name in the sweep's table, and how a value is written."""

SHOWN_POINTS = 40
IMBALANCE = "cluster.imbalance_computed"
TEXT_COLUMNS = ("hit rate", "output tokens/s", "TTFT p95 [s]", "$/M blended", "$/h", "imbalance")
"""What fits beside a point's name on a terminal."""

COLUMNS: tuple[Column, ...] = (
    ("hit rate", HIT, lambda v: f"{v:.1%}"),
    ("output tokens/s", "throughput.output_tokens_per_s", lambda v: f"{v:,.1f}"),
    ("TTFT p95 [s]", "latency.ttft_s.p95", lambda v: f"{v:,.2f}"),
    ("TPOT p50 [ms]", "latency.tpot_s.p50", lambda v: f"{1e3 * v:,.1f}"),
    ("$/M blended", "cost.usd_per_mtok.blended", lambda v: f"{v:,.3f}"),
    ("$/h", BILL, lambda v: f"{v:,.2f}"),
    ("contribution [$/node-hour]", CONTRIBUTION, lambda v: f"{v:,.2f}"),
)
CLUSTER_COLUMNS: tuple[Column, ...] = (
    ("imbalance", IMBALANCE, lambda v: f"{v:.2f}"),
    ("retried", "cluster.retries", lambda v: f"{v:,.0f}"),
)
"""Largest replica over the mean, of prompt tokens computed; and requests that began again after a failure."""

PIPELINE_COLUMNS: tuple[Column, ...] = (("pipeline bubble", "pipeline.bubble_frac", lambda v: f"{v:.0%}"),)
"""Share of the stages' time without a batch."""


def columns_of(groups: Sequence[Group]) -> tuple[Column, ...]:
    """Columns that say something of these points: those of clusters and pipelines only where a point has one."""
    rows = [row for group in groups for row in group.rows]
    return (*COLUMNS, *(c for c in (*PIPELINE_COLUMNS, *CLUSTER_COLUMNS) if any(row.get(c[1]) for row in rows)))


def cell(group: Group, column: Column, unknown: str = "-") -> str:
    """A point's figure as text."""
    value = group.mean(column[1])
    return unknown if math.isnan(value) else column[2](value)


def trace_lines(table: SweepTable) -> list[str]:
    """What became of rows of traces that the sweep's cases did not play as recorded, each line once.

    Examples
    --------
    >>> read = {"path": "log.csv", "num_rows": 5, "bad": ["log.csv:3: missing"], "skipped": {"failed": 2}}
    >>> trace_lines(SweepTable("x", {"case": [0, 1], "traces": [json.dumps([read]), None]}))
    ['log.csv: 1 of 5 rows are bad and were skipped, the first: log.csv:3: missing', 'log.csv: 2 left out: failed']
    """
    accounts: list[dict[str, Any]] = [one for text in dict.fromkeys(table.columns.get("traces", [])) if text
                                      for one in json.loads(text)]
    return [*dict.fromkeys(line for one in accounts for line in _account_lines(one))]


def _account_lines(one: Mapping[str, Any]) -> list[str]:
    """One trace's bad rows, rows left out and rows changed."""
    path, bad = one["path"], list[str](one.get("bad", []))
    found = [f"{path}: {len(bad)} of {one['num_rows']} rows are bad and were skipped, the first: {b}" for b in bad[:1]]
    found += [f"{path}: {count} left out: {why}" for why, count in one.get("skipped", {}).items()]
    return found + [f"{path}: {count} x {why}" for why, count in one.get("adjusted", {}).items()]


def points_text(table: SweepTable) -> str:
    """The points of a sweep as text; nothing where no case has a result.

    Examples
    --------
    >>> points_text(SweepTable("x", {"case": [], "status": []}))
    ''
    """
    groups = groups_of(table)
    if not groups:
        return ""
    columns = [c for c in columns_of(groups) if c[0] in TEXT_COLUMNS]
    shown = groups[:SHOWN_POINTS]
    rows = [["point", *(c[0] for c in columns)], *([g.label, *(cell(g, c) for c in columns)] for g in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(w) if k == 0 else text.rjust(w)
                       for k, (text, w) in enumerate(zip(row, widths, strict=True))) for row in rows]
    more = [f"and {len(groups) - len(shown)} more points"] if len(groups) > len(shown) else []
    return "\n".join([*lines, *more])
