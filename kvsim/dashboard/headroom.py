"""How many sessions keep the SLO, and how far it is to the edge of the cliff: from simulated points, no Streamlit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvsim.dashboard.results import SAFE_FRAC, reached_frac
from kvsim.planning.trials import Limit, limits_of
from kvsim.report.report import Report
from kvsim.scenario import Scenario
from kvsim.study import Row


@dataclass(frozen=True, slots=True)
class Served:
    """Most live sessions inside the SLO.

    Attributes
    ----------
    sessions : int
        Median over the seeds; 0 where the fewest that were simulated already miss it.
    low, high : int
        Extremes over the seeds.
    at_least : bool
        Whether the most that were simulated still keep it: there may be room for more.
    fewest : int
        The fewest that were simulated.
    limits : str
        The SLO in words; empty where there is none.
    """

    sessions: int
    low: int
    high: int
    at_least: bool
    fewest: int
    limits: str


def served(rows: Sequence[Row], scenario: Scenario) -> Served:
    """Most live sessions that keep every limit of the SLO, between simulated points along straight lines.

    Parameters
    ----------
    rows : sequence of Row
        Simulated points with the same seeds, ascending in live sessions.
    scenario : Scenario
        With the SLO.

    Notes
    -----
    Latencies rise faster and faster towards a collapse, where a straight line between two points lies above them: the
    number errs on the side of fewer sessions.
    """
    limits = limits_of(scenario.slo)
    points = [float(row.concurrency or 0) for row in rows]
    found = [_most(points, [_worst(row.reports[k], limits) for row in rows]) for k in range(len(rows[0].reports))]
    middle = math.floor(statistics.median(found))
    return Served(middle, min(found), max(found), middle >= points[-1], int(points[0]), limits_text(limits))


def _worst(report: Report, limits: Sequence[Limit]) -> float:
    """Measured over allowed, of the limit that is broken the most; 0 without limits, inf where nothing was measured."""
    values = [getattr(getattr(report.latency, name), stat) / limit for name, stat, limit in limits]
    return max((v if math.isfinite(v) else math.inf for v in values), default=0.0)


def _most(points: Sequence[float], ratios: Sequence[float]) -> int:
    """Where the ratio first rises above 1, rounded down; 0 where it begins there."""
    if ratios[0] > 1:
        return 0
    for (x0, y0), (x1, y1) in pairwise(zip(points, ratios, strict=True)):
        if y1 > 1:
            return math.floor(x0 + (x1 - x0) * (1 - y0) / (y1 - y0)) if math.isfinite(y1) else math.floor(x0)
    return int(points[-1])


def limits_text(limits: Sequence[Limit]) -> str:
    """An SLO in words.

    >>> limits_text([("ttft_s", "p95", 10.0), ("tpot_s", "p95", 0.05)])
    'TTFT p95 10 s and TPOT p95 50 ms'
    """
    def one(name: str, stat: str, limit_s: float) -> str:
        shown = f"{limit_s:g} s" if limit_s >= 1 else f"{1e3 * limit_s:g} ms"
        return f"{name.removesuffix('_s').upper()} {stat} {shown}"

    return " and ".join(one(*limit) for limit in limits)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Where the hit rate leaves the safe zone.

    Attributes
    ----------
    edge : float or None
        Live sessions at which it does; None where it does not, as far as was simulated.
    last : int
        The most that were simulated.
    live : int
        The number that the question is about.
    """

    edge: float | None
    last: int
    live: int

    @property
    def frac(self) -> float:
        """More sessions that fit before the edge, as a share of the present ones; negative beyond it."""
        return (self.last if self.edge is None else self.edge) / self.live - 1.0

    def text(self) -> str:
        """For people.

        >>> Headroom(9.6, 24, 8).text(), Headroom(9.6, 24, 16).text(), Headroom(None, 24, 16).text()
        ('+20 %', '−40 %', '≥ +50 %')
        """
        sign = "−" if self.frac < 0 else "+"
        return f"{'≥ ' if self.edge is None else ''}{sign}{abs(100 * self.frac):.0f} %"


def headroom(rows: Sequence[Row], live: int) -> Headroom:
    """Distance of a number of live sessions from the edge of the cliff.

    Notes
    -----
    The edge is where the hit rate falls below `SAFE_FRAC` of the ideal, between points along straight lines; below the
    first point where it lies beyond it already.
    """
    points = [(float(row.concurrency or 0), reached_frac(row)) for row in rows]
    last = int(points[-1][0])
    if points[0][1] < SAFE_FRAC:
        return Headroom(points[0][0], last, live)
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 < SAFE_FRAC:
            return Headroom(x0 + (x1 - x0) * (y0 - SAFE_FRAC) / (y0 - y1), last, live)
    return Headroom(None, last, live)
