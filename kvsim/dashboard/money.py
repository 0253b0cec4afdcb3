"""One simulation under several hardware prices: prices change the bill, never what was served."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from kvsim.billing import gpus_per_node, hourly_bill
from kvsim.dashboard.results import median
from kvsim.profiles.store import ProfileStore
from kvsim.report.bill import Bill
from kvsim.report.cost import MarketPrice
from kvsim.report.report import Report
from kvsim.resolve import Resolved
from kvsim.study import Row

Mode = Literal["hits", "ideal_hits", "demand"]
MODES: tuple[Mode, ...] = ("hits", "ideal_hits", "demand")
MODE_TEXT = MappingProxyType({
    "hits": "hits as they happen", "ideal_hits": "as if every reusable token had hit",
    "demand": "the same, limited by demand",
})
"""Revenue modes for people."""
OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Offer:
    """A configuration's bill under one price profile; ``num_nodes`` are those that are paid for."""

    name: str
    bill: Bill
    num_nodes: float

    @property
    def label(self) -> str:
        """Name, basis and date, for legends."""
        return f"{self.name} ({self.bill.basis}, {self.bill.as_of})"


def offer(resolved: Resolved, name: str, store: ProfileStore) -> Offer:
    """The bill of a configuration under a price profile.

    Raises
    ------
    ProfileError
        As `kvsim.billing.hourly_bill`.
    """
    prices = resolved.scenario.prices.model_copy(update={"compute": name})
    priced = replace(resolved, scenario=resolved.scenario.model_copy(update={"prices": prices}))
    bill = hourly_bill(priced, store)
    return Offer(name, bill, bill.units.billed_gpus / gpus_per_node(priced, store))


def offers(resolved: Resolved, store: ProfileStore) -> tuple[Offer, ...]:
    """Bills under every price profile that covers the GPU, the cheapest first.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> from kvsim.resolve import resolve
    >>> from kvsim.scenario import load_scenario
    >>> found = offers(resolve(load_scenario("k3-b300-study")), default_store())
    >>> "rental-2026-09" in [o.name for o in found]
    True
    """
    names = [n for n in store.names("price") if resolved.gpu.name in store.get("price", n).usd_per_gpu_hour]
    return tuple(sorted((offer(resolved, n, store) for n in names), key=lambda o: (o.bill.usd_per_hour, o.name)))


def counterpart(chosen: Offer, found: Sequence[Offer]) -> Offer | None:
    """What to compare an offer with: the newest owned one if it is rented, the newest rented one if it is owned."""
    others = [o for o in found if (o.bill.basis == OWNED) != (chosen.bill.basis == OWNED)]
    return max(others, key=lambda o: (o.bill.as_of, o.name), default=None)


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
        return median(row, lambda r: r.cost.market[0].blended if r.cost.market else math.nan)
    return median(row, lambda r: min((_with_ideal_hits(r, m) for m in r.cost.market), default=math.nan))


def _with_ideal_hits(report: Report, price: MarketPrice) -> float:
    """A provider's price of a run's tokens had every reusable one hit [$ per million tokens]."""
    asked, output = report.throughput.input_tokens_per_s, report.throughput.output_tokens_per_s
    cached = report.hit_rate.ideal * asked
    fresh = price.input if price.cache_write is None else price.cache_write
    usd = (asked - cached) * fresh + cached * price.cached_input + output * price.output
    return usd / (asked + output) if asked + output else math.nan
