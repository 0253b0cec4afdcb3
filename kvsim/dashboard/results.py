"""What a page says about simulated points: medians over seeds, zones, where the pool binds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from kvsim.report.report import Report
from kvsim.study import Row

Zone = Literal["safe", "edge", "collapsed"]
Pick = Callable[[Report], float]

SAFE_FRAC, EDGE_FRAC = 0.9, 0.5
"""Shares of the ideal hit rate: from the first on a point is safe, from the second on at the edge, below collapsed."""

ZONE_TEXT = MappingProxyType({
    "safe": f"at least {SAFE_FRAC:.0%} of the ideal hit rate",
    "edge": f"{EDGE_FRAC:.0%} to {SAFE_FRAC:.0%} of it",
    "collapsed": f"less than {EDGE_FRAC:.0%} of it",
})

RESOURCE_TEXT = MappingProxyType({
    "hbm_bandwidth": "HBM bandwidth", "compute": "compute", "collectives": "collectives", "kv_capacity": "KV capacity",
    "transfer": "transfers", "host": "host", "queue": "request slots", "idle": "nothing (idle)",
})
"""What binds, for people."""

TIER_TEXT = MappingProxyType({"hbm": "HBM", "dram": "DRAM", "nvme": "NVMe", "pool": "shared pool"})
"""Cache tiers for people, the fastest first."""

HIT: Pick = lambda r: r.hit_rate.total  # noqa: E731
IDEAL: Pick = lambda r: r.hit_rate.ideal  # noqa: E731
OUTPUT: Pick = lambda r: r.throughput.output_tokens_per_s  # noqa: E731
TTFT_P95: Pick = lambda r: r.latency.ttft_s.p95  # noqa: E731
TPOT_P95: Pick = lambda r: r.latency.tpot_s.p95  # noqa: E731
CONTRIBUTION: Pick = lambda r: r.cost.contribution_usd_per_node_hour  # noqa: E731


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of live sessions in one zone."""

    start: float
    end: float
    zone: Zone


def median(row: Row, pick: Pick) -> float:
    """Median over the seeds of a point."""
    return statistics.median(pick(r) for r in row.reports)


def extremes(row: Row, pick: Pick) -> tuple[float, float]:
    """Smallest and largest over the seeds of a point."""
    values = [pick(r) for r in row.reports]
    return min(values), max(values)


def reached_frac(row: Row) -> float:
    """Share of the ideal hit rate that a point reaches, 0 to 1; 1 where nothing could be reused."""
    ideal = median(row, IDEAL)
    return median(row, HIT) / ideal if ideal else 1.0


def tier_hits(row: Row) -> dict[str, float]:
    """Hits by tier as shares of all prompt tokens, those of the median run scaled to the median of all runs.

    Medians of the tiers one by one would not add up to the median of their sum.
    """
    run = sorted(row.reports, key=HIT)[(len(row.reports) - 1) // 2].hit_rate
    scale = median(row, HIT) / run.total if run.total else 0.0
    return {tier: scale * float(getattr(run.by_tier, tier)) for tier in TIER_TEXT}


def tiers_hit(rows: Sequence[Row]) -> list[str]:
    """HBM, and every other tier that served a token of some run."""
    return [t for t in TIER_TEXT if t == "hbm" or any(getattr(r.hit_rate.by_tier, t) for row in rows
                                                      for r in row.reports)]


def zone_of(frac: float) -> Zone:
    """Zone of a share of the ideal hit rate.

    >>> zone_of(0.97), zone_of(0.7), zone_of(0.1)
    ('safe', 'edge', 'collapsed')
    """
    return "safe" if frac >= SAFE_FRAC else "edge" if frac >= EDGE_FRAC else "collapsed"


def zone_spans(points: Sequence[tuple[float, float]]) -> tuple[Span, ...]:
    """Zones along the live sessions, borders where the line between neighbouring points crosses a threshold.

    Parameters
    ----------
    points : sequence of (float, float)
        Live sessions, ascending, and share of the ideal hit rate.

    Examples
    --------
    >>> for span in zone_spans([(4, 1.0), (8, 0.9), (16, 0.1)]):
    ...     print(span)
    Span(start=4, end=8, zone='safe')
    Span(start=8, end=12.0, zone='edge')
    Span(start=12.0, end=16, zone='collapsed')
    """
    spans: list[Span] = []
    for (x0, y0), (x1, y1) in pairwise(points):
        crossed = [t for t in (SAFE_FRAC, EDGE_FRAC) if min(y0, y1) < t < max(y0, y1)]
        borders = [x0, *sorted(x0 + (x1 - x0) * (t - y0) / (y1 - y0) for t in crossed), x1]
        for start, end in pairwise(borders):
            middle = y0 + (y1 - y0) * ((start + end) / 2 - x0) / (x1 - x0)
            spans.append(Span(start, end, zone_of(middle)))
    return _merged(spans)


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    """Neighbours of the same zone as one."""
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].zone == span.zone:
            merged[-1] = replace(merged[-1], end=span.end)
        else:
            merged.append(span)
    return tuple(merged)


def binding(row: Row) -> str:
    """What binds most seeds of a point."""
    return statistics.mode(r.limits.binding for r in row.reports)


def binds_from(rows: Sequence[Row], resource: str = "kv_capacity") -> int | None:
    """Fewest simulated live sessions at which a resource binds."""
    return min((row.concurrency for row in rows if row.concurrency and binding(row) == resource), default=None)
