"""Points of a sweep as a table: means over their seeds, with a replica column where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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


def columns_of(groups: Sequence[Group]) -> tuple[Column, ...]:
    """Columns that say something of these points: those of clusters only where a point has several replicas."""
    own = tuple(c for c in CLUSTER_COLUMNS if any(row.get(c[1]) for g in groups for row in g.rows))
    return (*COLUMNS, *own)


def cell(group: Group, column: Column, unknown: str = "-") -> str:
    """A point's figure as text."""
    value = group.mean(column[1])
    return unknown if math.isnan(value) else column[2](value)


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
