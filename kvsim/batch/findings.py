"""What a sweep says in money: contribution, break-even, stress, pay-back of DRAM, and what would turn it around.

Works on the table's stable names alone, so that it reads sweeps of any age and from any executor.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsim.batch.table import SweepTable
from kvsim.billing import active_seats
from kvsim.profiles.store import default_store
from kvsim.report.bill import HOURS_PER_MONTH
from kvsim.report.statistics import MeanInterval, mean_interval
from kvsim.scenario import Scenario

CONTRIBUTION, HIT, BILL = "cost.contribution_usd_per_node_hour", "hit_rate.total", "cost.usd_per_hour"
STRESS_PRICE_FRACS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)
STRESS_HIT_POINTS = 0.10


@dataclass(frozen=True, slots=True)
class Group:
    """The replications of one point of a sweep: its label, axes, scenario (without the seed) and rows."""

    label: str
    axes: dict[str, Any]
    scenario: Scenario
    rows: tuple[dict[str, Any], ...]

    def interval(self, column: str) -> MeanInterval:
        """Mean and 95 % interval of a column over the seeds; nan where a seed has no such figure."""
        values = [row.get(column) for row in self.rows]
        if any(not isinstance(value, int | float) for value in values):
            return MeanInterval(math.nan, math.nan, math.nan, 0)
        return mean_interval([float(value) for value in values if value is not None])

    def mean(self, column: str) -> float:
        """Mean of a column over the seeds; nan where a seed has no such figure."""
        return self.interval(column).mean

    def spread(self, measure: Callable[[Group], float]) -> MeanInterval:
        """Mean of a measure of the whole point, and its 95 % interval over the seeds one by one."""
        alone = mean_interval([measure(replace(self, rows=(row,))) for row in self.rows])
        return replace(alone, mean=measure(self))

    @property
    def tier_gb(self) -> float:
        """DRAM of one replica [GB]."""
        return sum(tier.capacity for tier in self.scenario.tiers if tier.kind == "dram") / 1e9


@dataclass(frozen=True, slots=True)
class PayBack:
    """What host DRAM brings: two points of a sweep that differ in tiers, each at its own best number of sessions.

    A node without DRAM would be run with as many sessions as it carries, not with as many as collapse it.

    Attributes
    ----------
    without, with_ : Group
        The pair.
    gain_usd_per_node_month : MeanInterval
        Contribution with DRAM less that without, seed by seed; what the bill charges for DRAM is already taken off.
    capex_usd : tuple of float
        Price of the DRAM of one replica: low, stated, high.
    months : float
        Stated price over the gain before the bill's own charge for DRAM; inf where DRAM gains nothing.
    """

    without: Group
    with_: Group
    gain_usd_per_node_month: MeanInterval
    capex_usd: tuple[float, float, float]
    months: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What a sweep says in money.

    Attributes
    ----------
    groups : tuple of Group
        Points of the sweep with results, in its order.
    best : Group
        The one with the highest mean contribution per node-hour.
    per_month : MeanInterval
        Its contribution [$ per node-month].
    break_even_frac : float
        Bill / revenue of `best`: the share of its load at which it earns its bill, and as well the share of the API's
        price at which it does; above 1 it does not.
    usd_per_seat_month : float
        Bill for a seat, with as many nodes as the demand of the scenario needs; nan without a demand.
    price_stress : tuple of (float, float)
        Share of the API's price -> contribution [$ per node-month], with the same traffic.
    lower_hits : Group or None
        The simulated point nearest to `best` whose hit rate is at least 10 points lower.
    pay_back : PayBack or None
        Of DRAM, where the sweep has a point with and without.
    flips : tuple of str
        Three facts that would turn the sign of the contribution.
    """

    groups: tuple[Group, ...]
    best: Group
    per_month: MeanInterval
    break_even_frac: float
    usd_per_seat_month: float
    price_stress: tuple[tuple[float, float], ...]
    lower_hits: Group | None
    pay_back: PayBack | None
    flips: tuple[str, ...]


def groups_of(table: SweepTable) -> list[Group]:
    """Points of a sweep, each with the rows of its seeds; failed cases are left out."""
    axes = [name for name in table.columns if name.startswith("axis.")]
    found: dict[str, list[dict[str, Any]]] = {}
    for row in table:
        if row["status"] == "ok":
            found.setdefault(json.dumps([row[name] for name in axes]), []).append(row)
    return [_group(rows, axes) for rows in found.values()]


def _group(rows: list[dict[str, Any]], axes: Sequence[str]) -> Group:
    first = rows[0]
    data: dict[str, Any] = json.loads(first["scenario"])
    scenario = Scenario.from_dict({"name": "case", **data})
    label = str(first["label"]).rpartition(" seed=")[0] or "the scenario"
    return Group(label.removesuffix(" "), {name.removeprefix("axis."): first[name] for name in axes}, scenario,
                 tuple(rows))


def findings_of(table: SweepTable) -> Findings | None:
    """Everything a sweep says in money.

    Parameters
    ----------
    table : SweepTable
        Finished cases; failed ones are left out.

    Returns
    -------
    Findings or None
        None where no case has a contribution: nothing finished, or no API price is known.
    """
    groups = groups_of(table)
    earning = [group for group in groups if not math.isnan(group.mean(CONTRIBUTION))]
    if not earning:
        return None
    best = max(earning, key=lambda group: group.mean(CONTRIBUTION))
    pay_back = _pay_back(best, earning)
    break_even = break_even_frac(best)
    return Findings(
        groups=tuple(groups), best=best, per_month=_monthly(best.interval(CONTRIBUTION)), break_even_frac=break_even,
        usd_per_seat_month=usd_per_seat_month(best), price_stress=_price_stress(best),
        lower_hits=_lower_hits(best, earning), pay_back=pay_back,
        flips=(_price_flip(break_even), _load_flip(best, break_even), _cache_flip(best, earning)))


def revenue_usd_per_node_hour(group: Group) -> float:
    """Contribution and bill of a node-hour together."""
    return group.mean(CONTRIBUTION) + _bill_per_node_hour(group)


def usd_per_seat_month(group: Group) -> float:
    """Bill for a seat and month, with as much hardware as the peak hour needs, fractions of it allowed; else nan."""
    demand = group.scenario.demand
    if demand is None:
        return math.nan
    active = active_seats(demand)
    if demand.turns_per_active_hour is not None:
        turns_per_hour = 3600.0 * group.mean("throughput.requests_per_s")
        needed = active * demand.turns_per_active_hour / turns_per_hour if turns_per_hour else math.inf
    else:
        needed = active / (group.scenario.workload.concurrency or 1)
    return group.mean(BILL) * HOURS_PER_MONTH * needed / demand.seats


def _monthly(hourly: MeanInterval) -> MeanInterval:
    month = HOURS_PER_MONTH
    return MeanInterval(month * hourly.mean, month * hourly.low, month * hourly.high, hourly.count)


def _bill_per_node_hour(group: Group) -> float:
    """The bill of a node, from margin and contribution where revenue is known to be positive, else from loss alone."""
    margin, contribution = group.mean("cost.margin_frac"), group.mean(CONTRIBUTION)
    per_node = [row[CONTRIBUTION] / row["cost.margin_frac"] - row[CONTRIBUTION]
                for row in group.rows if row.get("cost.margin_frac")]
    return statistics.fmean(per_node) if per_node and not math.isnan(margin) else -contribution


def break_even_frac(group: Group) -> float:
    """Bill / revenue of a point; inf without revenue."""
    revenue = revenue_usd_per_node_hour(group)
    return _bill_per_node_hour(group) / revenue if revenue > 0 else math.inf


def _price_stress(best: Group) -> tuple[tuple[float, float], ...]:
    revenue, bill = revenue_usd_per_node_hour(best), _bill_per_node_hour(best)
    return tuple((frac, HOURS_PER_MONTH * (frac * revenue - bill)) for frac in STRESS_PRICE_FRACS)


def _lower_hits(best: Group, groups: Sequence[Group]) -> Group | None:
    limit = best.mean(HIT) - STRESS_HIT_POINTS
    lower = [group for group in groups if group.mean(HIT) <= limit]
    return min(lower, key=lambda group: (_distance(best, group), -group.mean(HIT)), default=None)


def _distance(a: Group, b: Group) -> int:
    """In how many axes two points differ."""
    return sum(a.axes[name] != b.axes[name] for name in a.axes)


def _pay_back(best: Group, groups: Sequence[Group]) -> PayBack | None:
    pairs = [(a, b) for a in groups for b in groups if not a.scenario.tiers and b.tier_gb and _only_tiers(a, b)]
    if not pairs:
        return None
    without, with_ = max(pairs, key=lambda pair: (pair[1] is best, pair[1].mean(CONTRIBUTION),
                                                  pair[0].mean(CONTRIBUTION)))
    before = {row["seed"]: row[CONTRIBUTION] for row in without.rows}
    gains = [row[CONTRIBUTION] - before[row["seed"]] for row in with_.rows if row["seed"] in before]
    if not gains:
        return None
    gain = _monthly(mean_interval(gains))
    capex = _dram_usd(with_.tier_gb)
    charge = HOURS_PER_MONTH * (_bill_per_node_hour(with_) - _bill_per_node_hour(without))
    monthly = gain.mean + charge
    return PayBack(without, with_, gain, capex, capex[1] / monthly if monthly > 0 else math.inf)


def _only_tiers(a: Group, b: Group) -> bool:
    """Whether two points differ in nothing but tiers and live sessions."""
    one, other = (group.scenario.at(1, 0).model_copy(update={"tiers": ()}) for group in (a, b))
    return one.digest == other.digest


def _dram_usd(capacity_gb: float) -> tuple[float, float, float]:
    price = default_store().get("storage", "dram").capex
    per_gb = 1e9 * price.base
    scale = capacity_gb * per_gb
    low, high = price.range or (price.value, price.value)
    return scale * low / price.value, scale, scale * high / price.value


def _price_flip(break_even_frac: float) -> str:
    if math.isinf(break_even_frac):
        return "No API price makes it pay: no turn keeps the SLO."
    change = break_even_frac - 1.0
    rent = 1.0 / break_even_frac - 1.0
    return (f"API prices {_change(change)} (or hardware prices {_change(rent)}), with the same traffic.")


def _load_flip(best: Group, break_even_frac: float) -> str:
    if break_even_frac > 1.0:
        return "Load cannot help: it loses money when it is fully loaded."
    live = best.scenario.workload.concurrency
    loaded = f" of {live} live sessions" if live else ""
    return f"It carries this load{loaded} less than {break_even_frac:.0%} of the time, and nothing in the rest."


def _cache_flip(best: Group, groups: Sequence[Group]) -> str:
    sign = best.mean(CONTRIBUTION) > 0
    other = [group for group in groups if (group.mean(CONTRIBUTION) > 0) != sign]
    if not other:
        return "No other point of this sweep has the opposite sign: nothing that it varies turns the result."
    near = min(other, key=lambda group: (_distance(best, group), -abs(group.mean(CONTRIBUTION))))
    return (f"{near.label} instead of {best.label}: hit rate {near.mean(HIT):.0%}, contribution "
            f"{usd(HOURS_PER_MONTH * near.mean(CONTRIBUTION))} per node-month (simulated).")


def _change(frac: float) -> str:
    return f"{'rise' if frac > 0 else 'fall'} by more than {abs(frac):.0%}"


def usd(value: float) -> str:
    """Whole dollars with a sign where negative.

    >>> usd(-1234.5), usd(float("nan"))
    ('-$1,234', 'not known')
    """
    if not math.isfinite(value):
        return "not known" if math.isnan(value) else "unbounded"
    return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
