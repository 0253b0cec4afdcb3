"""One simulation under several hardware prices: prices change the bill, never what was served."""

from __future__ import annotations

import math
import statistics
from types import MappingProxyType
from typing import Literal

from kvsim.dashboard.results import median
from kvsim.planning.offers import Offer
from kvsim.report.report import Report
from kvsim.study import Row

Mode = Literal["hits", "ideal_hits", "demand"]
MODES: tuple[Mode, ...] = ("hits", "ideal_hits", "demand")
MODE_TEXT = MappingProxyType({
    "hits": "hits as they happen", "ideal_hits": "as if every reusable token had hit",
    "demand": "the same, limited by demand",
})
"""Revenue modes for people."""


def contribution(row: Row, priced: Offer, mode: Mode) -> float:
    """Revenue less bill [$ per node and hour], median over the seeds; nan without an API price."""
    def of(report: Report) -> float:
        revenue = float(getattr(report.cost.revenue_usd_per_hour, mode))
        return (revenue - priced.bill.usd_per_hour) / priced.num_nodes

    return statistics.median(of(r) for r in row.reports)


def break_even(row: Row, priced: Offer) -> float:
    """The bill on all tokens [$ per million, cached input included], median over the seeds: our own price floor."""
    return median(row, lambda r: r.cost.usd_per_mtok.blended * priced.bill.usd_per_hour / r.cost.usd_per_hour)


def market_floor(row: Row, mode: Mode) -> float:
    """What the cheapest provider would charge for the same turns [$ per million tokens]; nan where none is known.

    Parameters
    ----------
    row : Row
        One point; the median over its seeds is given.
    mode : "hits", "ideal_hits" or "demand"
        With ``hits`` our misses are bought as fresh input there too; with the others the provider is taken to reuse all
        that can be reused, which is what a customer who leaves a collapsed cache pays elsewhere.
    """
    if mode == "hits":
        return median(row, lambda r: min((m.blended for m in r.cost.market), default=math.nan))
    return median(row, lambda r: r.cost.market_floor_usd_per_mtok)
