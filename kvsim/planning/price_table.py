"""What a configuration earns: every tier set and number of live sessions simulated once and priced many ways."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsim.billing import api_price, cost_of, demand_turns_per_hour
from kvsim.errors import Problem, ScenarioError
from kvsim.planning.candidates import tiers_name
from kvsim.planning.offers import Offer, counterpart, offer, offers, priced_with
from kvsim.planning.pool import Workers, process_pool
from kvsim.planning.value import GIGABYTE, ContextPrice, long_context_prices
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.cost import Cost, Sales, mode_of
from kvsim.report.report import plain
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario, Tier, load_scenario
from kvsim.simulation import simulate

MODES = ("hits", "ideal_hits", "demand")
"""Revenue modes; see `kvsim.report.cost.Revenue`."""
USUAL_SESSIONS = (1, 2, 4, 8, 12, 16, 24, 32)
CONTEXTS = (0, 8_192, 32_768, 131_072, 262_144, 524_288, 1_000_000)
"""Contexts [tokens] at which fresh input is priced, as far as the model reaches."""

PriceProgress = Callable[[str, float], None]
"""Called with what is being done and its finished share."""


@dataclass(frozen=True, slots=True)
class PriceOptions:
    """What a caller may choose.

    Attributes
    ----------
    sessions : sequence of int
        Numbers of live sessions; empty takes the scenario's study, else `USUAL_SESSIONS`.
    prices : sequence of str
        Compute price profiles; empty takes the scenario's own and the newest of the other kind (owned or rented).
    replications : int
        Seeds at every point; figures are medians over them.
    workers : int
        Processes.
    progress : callable or None
        See `PriceProgress`.
    """

    sessions: Sequence[int] = ()
    prices: Sequence[str] = ()
    replications: int = 1
    workers: int = 1
    progress: PriceProgress | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation, as far as money needs it: what was sold, and how well."""

    sales: Sales
    prefill_frac: float
    hit_rate_frac: float
    ideal_hit_rate_frac: float
    ttft_p95_s: float
    tpot_p95_s: float

    @property
    def within_slo_frac(self) -> float:
        """Share of the turns that earn, 0 to 1; nan without turns."""
        return self.sales.sold_turns / self.sales.turns if self.sales.turns else math.nan


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One tier set and number of live sessions under one price: a `Point` and its `Cost` for every seed.

    Every figure is the median over the seeds.
    """

    tiers: str
    sessions: int | None
    offer: Offer
    points: tuple[Point, ...]
    costs: tuple[Cost, ...]

    def contribution(self, mode: str) -> float:
        """Revenue less bill [$ per node-hour] in a revenue mode."""
        return self.of_cost(lambda c: (mode_of(c.revenue_usd_per_hour, mode) - c.usd_per_hour) / self.offer.num_nodes)

    def margin(self, mode: str) -> float:
        """Contribution over revenue, below 0 where it loses; nan without revenue."""
        return self.of_cost(lambda c: _margin(mode_of(c.revenue_usd_per_hour, mode), c.usd_per_hour))

    def of_cost(self, pick: Callable[[Cost], float]) -> float:
        """A figure of the costs."""
        return statistics.median(pick(c) for c in self.costs)

    def of_point(self, pick: Callable[[Point], float]) -> float:
        """A figure of the simulations."""
        return statistics.median(pick(p) for p in self.points)

    def to_dict(self) -> dict[str, Any]:
        """One flat row; $ per hour, node-hour or million tokens as the names say, nan and inf as None."""
        bill, mtok = self.offer.bill, ("uncached_input", "cached_input", "output", "blended", "output_all_in")
        found: dict[str, Any] = {
            "tiers": self.tiers, "sessions": self.sessions, "prices": self.offer.name, "basis": bill.basis,
            "as_of": bill.as_of, "trust": self.costs[0].trust, "seeds": len(self.points),
            "usd_per_hour": bill.usd_per_hour, "hit_rate": self.of_point(lambda p: p.hit_rate_frac),
            "hit_rate_ideal": self.of_point(lambda p: p.ideal_hit_rate_frac),
            "within_slo_frac": self.of_point(lambda p: p.within_slo_frac),
            "ttft_s_p95": self.of_point(lambda p: p.ttft_p95_s), "tpot_s_p95": self.of_point(lambda p: p.tpot_p95_s),
            **{f"contribution_usd_per_node_hour.{m}": self.contribution(m) for m in MODES},
            **{f"margin_frac.{m}": self.margin(m) for m in MODES},
            **{f"usd_per_mtok.{k}": self.of_cost(lambda c, k=k: getattr(c.usd_per_mtok, k)) for k in mtok},
            "break_even_usd_per_mtok": self.of_cost(lambda c: c.break_even_usd_per_mtok),
            "market_floor_usd_per_mtok": self.of_cost(lambda c: c.market_floor_usd_per_mtok),
            "seats_per_node": self.of_cost(lambda c: c.seats.per_node),
            "usd_per_seat_month": self.of_cost(lambda c: c.seats.usd_per_month),
        }
        return plain(found)


@dataclass(frozen=True, slots=True)
class TierGain:
    """What one tier brings at one number of live sessions under one price, its own cost paid.

    ``usd_per_hour`` is the contribution of the whole configuration with it less that without it, on the same traffic
    and in the scenario's revenue mode; ``usd_per_gb_hour`` the same a gigabyte. ``cost_usd_per_hour`` is what it costs.
    """

    tier: str
    sessions: int | None
    prices: str
    usd_per_hour: float
    usd_per_gb_hour: float
    cost_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Every point under every price; what each gigabyte of a tier saves; what fresh input costs at long context.

    ``mode`` is the scenario's revenue mode, ``api`` names the API price and its date ("" where none is known),
    ``attribution`` how $ per kind of token share the bill, ``market`` the cheapest provider with its date,
    ``has_demand`` whether turns are limited by a demand.
    """

    name: str
    rows: tuple[PriceRow, ...]
    tier_gains: tuple[TierGain, ...]
    contexts: Mapping[str, tuple[ContextPrice, ...]]
    mode: str
    attribution: str
    api: str
    market: str
    simulations: int
    has_demand: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nan and inf as None."""
        return plain({"name": self.name, "rows": [r.to_dict() for r in self.rows], "tier_gains": self.tier_gains,
                      "long_context": dict(self.contexts), "revenue_mode": self.mode, "attribution": self.attribution,
                      "api": self.api, "market": self.market, "has_demand": self.has_demand,
                      "simulations": self.simulations})


@dataclass(frozen=True, slots=True)
class _Variant:
    """The scenario with some of its tiers; ``without`` is the position of the one that is left out."""

    scenario: Scenario
    shown: bool
    without: int | None = None

    @property
    def name(self) -> str:
        return tiers_name(self.scenario.tiers)


def price_table(scenario: Scenario | str | Mapping[str, Any], options: PriceOptions | None = None) -> PriceTable:
    """Contribution, margin and $ per million tokens with and without cache tiers, by live sessions and price.

    Parameters
    ----------
    scenario : Scenario, str or mapping
        A scenario, the path or shipped name of one, or plain data. Its ``prices`` choose API price, revenue mode,
        attribution and whether only turns inside the SLO earn; ``demand`` limits the third revenue mode.
    options : PriceOptions, optional
        Sessions, prices, seeds, processes.

    Returns
    -------
    PriceTable
        One simulation a tier set, number of sessions and seed; every price is applied to what it sold.

    Raises
    ------
    ScenarioError
        Sessions are asked for where the workload has no number of them.
    KvsimError
        As `kvsim.simulation.simulate`; an unknown price.

    Examples
    --------
    >>> small = {"name": "x", "model": "llama-3.3-70b", "hardware": {"gpu": "h200", "num_gpus": 4}, "layout": {"tp": 4},
    ...     "workload": {"fixed": {"num_requests": 20, "input_tokens": 2000, "output_tokens": 20}, "concurrency": 1}}
    >>> table = price_table(small, PriceOptions(sessions=[1, 4]))
    >>> [(r.sessions, r.offer.bill.basis) for r in table.rows]
    [(1, 'contract'), (1, 'owned'), (4, 'contract'), (4, 'owned')]
    >>> table.simulations
    2
    """
    options = options or PriceOptions()
    scenario = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    store, sessions = default_store(), _sessions(scenario, options)
    names = _price_names(scenario, options, store)
    variants = list(_variants(scenario))
    jobs = [_at(v.scenario, n, k) for v in variants for n in sessions for k in range(options.replications)]
    with process_pool(options.workers) as run:
        points = _simulated(jobs, options.progress, run)
    seeds = options.replications
    grouped = [tuple(points[i:i + seeds]) for i in range(0, len(points), seeds)]
    priced = [_rows(v, sessions, grouped[i * len(sessions):(i + 1) * len(sessions)], names, store)
              for i, v in enumerate(variants)]
    shown = [row for variant, rows in zip(variants, priced, strict=True) if variant.shown for row in rows]
    cost = shown[0].costs[0]
    return PriceTable(scenario.name, tuple(shown), tuple(_tier_gains(variants, priced)),
                      _contexts(scenario, names, store), scenario.prices.revenue, scenario.prices.attribution,
                      _api_text(scenario, store), _market_text(cost), len(jobs),
                      math.isfinite(demand_turns_per_hour(scenario)))


def _sessions(scenario: Scenario, options: PriceOptions) -> Sequence[int | None]:
    if scenario.workload.concurrency is None:
        if options.sessions:
            accepted = "a workload with live sessions, or no sessions asked for"
            raise ScenarioError("there are no live sessions to vary", [
                Problem(scenario.origin, "workload.concurrency", "", accepted)])
        return (None,)
    studied = scenario.study.concurrency if scenario.study else ()
    return tuple(options.sessions) or studied or USUAL_SESSIONS


def _price_names(scenario: Scenario, options: PriceOptions, store: ProfileStore) -> list[str]:
    if options.prices:
        return [store.get("price", name).name for name in options.prices]
    resolved = resolve(scenario.model_copy(update={"tiers": ()}), store)
    chosen = offer(resolved, store.get("price", scenario.prices.compute).name, store)
    beside = None if scenario.prices.owned else counterpart(chosen, offers(resolved, store))
    return [chosen.name, *([beside.name] if beside else [])]


def _variants(scenario: Scenario) -> Iterator[_Variant]:
    """No tiers, all tiers, and all but each one where that is something else."""
    yield _Variant(_with_tiers(scenario, ()), True, 0 if len(scenario.tiers) == 1 else None)
    if scenario.tiers:
        yield _Variant(_with_tiers(scenario, scenario.tiers), True)
    if len(scenario.tiers) > 1:
        for i in range(len(scenario.tiers)):
            yield _Variant(_with_tiers(scenario, (*scenario.tiers[:i], *scenario.tiers[i + 1:])), False, i)


def _with_tiers(scenario: Scenario, tiers: tuple[Tier, ...]) -> Scenario:
    return scenario.model_copy(update={"tiers": tiers, "study": None, "plan": None})


def _at(scenario: Scenario, sessions: int | None, k: int) -> Scenario:
    if sessions is None:
        return scenario.model_copy(update={"seed": scenario.seed + k})
    return scenario.at(sessions, scenario.seed + k)


def _simulated(jobs: Sequence[Scenario], progress: PriceProgress | None, run: Workers) -> list[Point]:
    return run(point_of, jobs, (lambda n: progress("simulations", n / len(jobs))) if progress else None)


def point_of(scenario: Scenario) -> Point:
    """Simulate a scenario and keep what money needs; raises as `kvsim.simulation.simulate`."""
    report = simulate(scenario)
    sales = report.cost.sales
    assert sales is not None
    return Point(sales, report.cost.prefill_frac, report.hit_rate.total, report.hit_rate.ideal,
                 report.latency.ttft_s.p95, report.latency.tpot_s.p95)


def _rows(variant: _Variant, sessions: Sequence[int | None], points: Sequence[tuple[Point, ...]], names: Sequence[str],
          store: ProfileStore) -> list[PriceRow]:
    """Rows of one tier set: every number of sessions under every price."""
    resolved = resolve(variant.scenario, store)
    offered = [(offer(resolved, name, store), priced_with(resolved, name, store)) for name in names]
    return [PriceRow(variant.name, n, found, seeds, tuple(_cost(priced, n, p, store) for p in seeds))
            for n, seeds in zip(sessions, points, strict=True) for found, priced in offered]


def _cost(resolved: Resolved, sessions: int | None, point: Point, store: ProfileStore) -> Cost:
    """A point under the prices of a scenario, at its number of live sessions (which seats are counted by)."""
    if sessions is not None:
        resolved = replace(resolved, scenario=resolved.scenario.at(sessions, resolved.scenario.seed))
    return cost_of(resolved, store, point.sales, point.prefill_frac)


def _tier_gains(variants: Sequence[_Variant], priced: Sequence[list[PriceRow]]) -> Iterator[TierGain]:
    """What each tier brings: the whole configuration against the one without it, row by row."""
    whole = next((rows for v, rows in zip(variants, priced, strict=True) if v.shown and v.scenario.tiers), None)
    for variant, rows in zip(variants, priced, strict=True):
        if whole is None or variant.without is None:
            continue
        tier = next(v for v in variants if v.shown and v.scenario.tiers).scenario.tiers[variant.without]
        for with_it, without in zip(whole, rows, strict=True):
            gain = _gain(with_it, without)
            own = with_it.offer.bill.usd_per_hour - without.offer.bill.usd_per_hour
            yield TierGain(tiers_name((tier,)), with_it.sessions, with_it.offer.name, gain,
                           gain / (tier.capacity / GIGABYTE) if tier.capacity else math.nan, own)


def _gain(with_it: PriceRow, without: PriceRow) -> float:
    """Contribution of the whole configuration with a tier less that without it [$ per hour], seed by seed."""
    pairs = zip(with_it.costs, without.costs, strict=True)
    return statistics.median(_usd(a) - _usd(b) for a, b in pairs)


def _usd(cost: Cost) -> float:
    return mode_of(cost.revenue_usd_per_hour, cost.revenue_mode) - cost.usd_per_hour


def _margin(revenue_usd: float, bill_usd: float) -> float:
    return (revenue_usd - bill_usd) / revenue_usd if revenue_usd else math.nan


def _contexts(scenario: Scenario, names: Sequence[str], store: ProfileStore) -> dict[str, tuple[ContextPrice, ...]]:
    resolved = resolve(scenario, store)
    reach = [c for c in CONTEXTS if c + resolved.limits.max_num_batched_tokens <= resolved.limits.max_model_len] or [0]
    return {name: long_context_prices(resolved, offer(resolved, name, store).bill.usd_per_hour, reach)
            for name in names}


def _api_text(scenario: Scenario, store: ProfileStore) -> str:
    api = api_price(scenario, resolve(scenario, store).model.name, store)
    if api is None:
        return ""
    return (f"{api.name} as of {api.as_of}: ${api.input.base:g} / ${api.cached_input.base:g} / ${api.output.base:g} "
            f"per million uncached, cached, output tokens")


def _market_text(cost: Cost) -> str:
    return f"{cost.market[0].provider} as of {cost.market[0].as_of}" if cost.market else ""
