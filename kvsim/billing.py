"""What a scenario costs an hour and what its tokens sell for: prices looked up, units and tiers counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.engine_profile import Speed
from kvsim.profiles.hardware import ApiPriceProfile, OwnedCost, PriceProfile
from kvsim.profiles.store import ProfileStore
from kvsim.report.bill import (
    Bill,
    BillLine,
    OwnedTerms,
    explicit_line,
    gpu_lines,
    owned_usd_per_gpu_hour,
    rented_line,
    tier_line,
    units_of,
)
from kvsim.report.cost import Cost, CostTerms, Sales, Scaling, ScalingCost, Share, cost, gpu_figure
from kvsim.resolve import Resolved, node_of
from kvsim.scenario import Demand, Scenario, naming

USUAL_GPUS_PER_NODE = 8.0
WRITE_OFF = "owned-2026-07"
"""Price profile whose life and cost of capital hold for tiers that are bought beside rented GPUs."""
STORAGE = {"dram": "dram-ddr5", "nvme": "nvme-tlc", "pool": "pool-3fs"}
"""What a tier is made of unless ``prices.tier_profiles`` says otherwise."""
STATED = ("the scenario", "stated", "")
"""Provider, basis and date of a price that the scenario states itself."""
CALIBRATED, SAME_GPU, PHYSICS, GIVEN = ("calibrated here", "same GPU, other model", "physics only",
                                        "coefficients given")
"""Trust marks of a result's speed, the strongest first; the last one rests on what the scenario states."""


def hourly_bill(resolved: Resolved, store: ProfileStore, replicas: int | None = None) -> Bill:
    """$ per hour of all replicas of a scenario, line by line.

    Parameters
    ----------
    resolved : Resolved
        The scenario, looked up.
    store : ProfileStore
        Where prices are found.
    replicas : int, optional
        Instead of the scenario's own number; of several groups, that of the first one alone.

    Raises
    ------
    ProfileError
        An unknown price, node or storage profile, a GPU that the price does not cover, or a power that is not known.

    Notes
    -----
    A tier is billed as memory bought beside the GPUs even where a rented node brings it along: that overstates
    the bill by the part that the rent contains. ``prices.tier_usd_per_hour: {dram: 0}`` leaves it out.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> from kvsim.resolve import resolve
    >>> from kvsim.scenario import load_scenario
    >>> bill = hourly_bill(resolve(load_scenario("k3-b300-study")), default_store())
    >>> bill.usd_per_hour, bill.units.text(), bill.basis
    (34.0, '8 GPUs in 1 node of 8', 'contract')
    """
    counts = _all_replicas(resolved.scenario) if replicas is None else (replicas,)
    return _hired(resolved, store, counts).bill


@dataclass(frozen=True, slots=True)
class _Hired:
    """Replicas that are paid for: their bill, and the nodes they stand in."""

    bill: Bill
    nodes: float


_Lot = tuple[Resolved, int]
"""Replicas of one group: the scenario with the group's own hardware, tiers and prices, and how many."""


def _all_replicas(scenario: Scenario) -> tuple[int, ...]:
    """Replicas of each group."""
    return (scenario.num_replicas,) if isinstance(scenario.replicas, int) else tuple(g.count for g in scenario.groups)


def _hired(resolved: Resolved, store: ProfileStore, counts: tuple[int, ...]) -> _Hired:
    """So many replicas of each group. Groups in the same nodes at the same prices fill buying units together."""
    pools: dict[tuple[str, str, str], list[_Lot]] = {}
    for i, count in enumerate(counts):
        lot = _group(resolved, store, i)
        key = lot.gpu.name, lot.node.name if lot.node else "", lot.scenario.prices.model_dump_json()
        pools.setdefault(key, []).append((lot, count))
    parts = [_pool_bill(lots, store) for lots in pools.values()]
    nodes = [bill.units.billed_gpus / gpus_per_node(lots[0][0], store)
             for bill, lots in zip(parts, pools.values(), strict=True)]
    return _Hired(parts[0] if len(parts) == 1 else _joined(parts), math.fsum(nodes))


def _group(resolved: Resolved, store: ProfileStore, i: int) -> Resolved:
    """What money needs to know of a group: its scenario, GPU and node."""
    if isinstance(resolved.scenario.replicas, int):
        return resolved
    group = resolved.scenario.group(i)
    with naming(group, "hardware.gpu"):
        gpu = store.get("gpu", group.hardware.gpu)
    return replace(resolved, scenario=group, gpu=gpu, node=node_of(group, gpu.name, store))


def _pool_bill(lots: Sequence[_Lot], store: ProfileStore) -> Bill:
    """The bill of groups that are bought together."""
    resolved = lots[0][0]
    prices = resolved.scenario.prices
    gpus = sum([lot.scenario.hardware.num_gpus * count for lot, count in lots])
    units = units_of(gpus, resolved.node, prices.whole_units)
    price, stated = compute_price(resolved, store), stated_usd_per_gpu_hour(resolved, store)
    lines = list(gpu_lines(_lines_of_one_gpu(resolved, store, price), units))
    if prices.network_usd_per_gpu_hour:
        lines.append(BillLine("network", prices.network_usd_per_gpu_hour * units.billed_gpus, "as the scenario states",
                              "nominal"))
    tiers = [line for lot, count in lots for line in _tier_lines(lot, store, count)]
    origin = (price.provider, price.basis, price.as_of) if stated is None else STATED
    return Bill((*lines, *tiers), units, *origin, math.fsum(line.usd_per_hour for line in tiers))


def _joined(bills: Sequence[Bill]) -> Bill:
    """Bills of different hardware as one."""
    first, *others = bills
    units = replace(first.units, more=tuple(bill.units for bill in others))
    provider, basis, as_of = (" + ".join(dict.fromkeys(getattr(bill, name) for bill in bills))
                              for name in ("provider", "basis", "as_of"))
    return Bill(tuple(line for bill in bills for line in bill.lines), units, provider, basis, as_of,
                math.fsum(bill.tiers_usd_per_hour for bill in bills))


def _on_average(resolved: Resolved, store: ProfileStore, shares: Sequence[Share]) -> _Hired:
    """Replicas that come and go, each paid for while it is there."""
    states = [(part, _hired(resolved, store, counts)) for part, counts in shares]
    most = max(states, key=lambda state: state[1].bill.usd_per_hour)[1].bill
    lines: list[BillLine] = []
    for i, line in enumerate(most.lines):
        usd = math.fsum(part * hired.bill.lines[i].usd_per_hour for part, hired in states)
        share = f", {usd / line.usd_per_hour:.1%} of it on average" if line.usd_per_hour else ""
        lines.append(replace(line, usd_per_hour=usd, how=line.how + share))
    tiers = math.fsum(part * hired.bill.tiers_usd_per_hour for part, hired in states)
    nodes = math.fsum(part * hired.nodes for part, hired in states)
    return _Hired(replace(most, lines=tuple(lines), tiers_usd_per_hour=tiers), nodes)


def _paid(resolved: Resolved, store: ProfileStore, scaling: Scaling | None) -> tuple[_Hired, ScalingCost | None]:
    """What is paid for, and what autoscaling does to the bill."""
    everything = _all_replicas(resolved.scenario)
    reserved = _hired(resolved, store, everything)
    if scaling is None or not scaling.paid:
        return reserved, None
    on_demand, perfect = (_on_average(resolved, store, shares) for shares in (scaling.paid, scaling.needed))
    billing = _billing(resolved.scenario, reserved.bill)
    paid, needed = (math.fsum(part * sum(counts) for part, counts in shares)
                    for shares in (scaling.paid, scaling.needed))
    found = ScalingCost(billing, on_demand.bill.usd_per_hour, reserved.bill.usd_per_hour, perfect.bill.usd_per_hour,
                        paid, float(sum(everything)), needed)
    return reserved if billing == "reserved" else on_demand, found


def _billing(scenario: Scenario, bill: Bill) -> str:
    """How replicas that come and go are billed: as stated, else as their price's basis lets it be."""
    if scenario.autoscale is not None and scenario.autoscale.billing is not None:
        return scenario.autoscale.billing
    return "reserved" if scenario.prices.owned is not None or bill.basis == "owned" else "on_demand"


def cost_of(resolved: Resolved, store: ProfileStore, sales: Sales, prefill_frac: float) -> Cost:
    """What a scenario costs and earns with what it sold: one run can be priced many times without being run again.

    Parameters
    ----------
    resolved : Resolved
        The scenario with the prices that are asked for. Its hardware and tiers must be those of the run.
    store : ProfileStore
        Where prices are found.
    sales : Sales
        What the run sold (``Report.cost.sales``).
    prefill_frac : float
        Share of the engine's busy time that prefill takes (``Report.cost.prefill_frac``).

    Raises
    ------
    ProfileError
        As `hourly_bill`.
    """
    (hired, scaling), prices, scenario = (_paid(resolved, store, sales.scaling), resolved.scenario.prices,
                                          resolved.scenario)
    bill = hired.bill
    terms = CostTerms(bill, prefill_frac, prices.attribution, prices.revenue, demand_turns_per_hour(scenario),
                      market(resolved.model.name, store), class_prices(scenario, store),
                      seats_served(scenario, sales), trust_mark(resolved), scaling)
    return cost(bill.usd_per_hour, hired.nodes, sales, api_price(scenario, resolved.model.name, store), terms)


def compute_price(resolved: Resolved, store: ProfileStore) -> PriceProfile:
    """The price profile that the scenario names."""
    with naming(resolved.scenario, "prices.compute"):
        return store.get("price", resolved.scenario.prices.compute)


def stated_usd_per_gpu_hour(resolved: Resolved, store: ProfileStore) -> float | None:
    """$ per hour of one GPU that the scenario states itself, by any name of the GPU; None where it states none.

    Raises
    ------
    ProfileError
        A name in ``prices.usd_per_gpu_hour`` that is no GPU profile's.
    """
    given = resolved.scenario.prices.usd_per_gpu_hour
    with naming(resolved.scenario, "prices.usd_per_gpu_hour"):
        return {store.get("gpu", name).name: usd for name, usd in (given or {}).items()}.get(resolved.gpu.name)


def usd_per_gpu_hour(resolved: Resolved, store: ProfileStore) -> float:
    """$ per hour of one of the scenario's GPUs, without tiers and network."""
    lines = _lines_of_one_gpu(resolved, store, compute_price(resolved, store))
    return math.fsum(line.usd_per_hour for line in lines)


def gpus_per_node(resolved: Resolved, store: ProfileStore) -> float:
    """GPUs that share a host; 8 where no node is known."""
    node = resolved.node
    return node.num_gpus.base if node else USUAL_GPUS_PER_NODE


def power_w(resolved: Resolved, store: ProfileStore) -> float:
    """All-in power of one GPU with its share of the host [W], nan where no node says."""
    node = resolved.node
    return node.power_all_in_per_gpu.base if node and node.power_all_in_per_gpu else math.nan


def api_price(scenario: Scenario, model: str, store: ProfileStore) -> ApiPriceProfile | None:
    """The API price that the tokens earn: the named one, else the one with the model's name as an alias, else none."""
    name = scenario.prices.api or model
    if scenario.prices.api is None and not store.knows("api-price", name):
        return None
    with naming(scenario, "prices.api"):
        return store.get("api-price", name)


def class_prices(scenario: Scenario, store: ProfileStore) -> dict[str, ApiPriceProfile]:
    """API prices of the traffic classes that name their own."""
    found: dict[str, ApiPriceProfile] = {}
    for i, kind in enumerate(scenario.workload.classes or ()):
        if kind.api is not None:
            with naming(scenario, f"workload.classes.{i}.api"):
                found[kind.name] = store.get("api-price", kind.api)
    return found


def market(model: str, store: ProfileStore) -> tuple[ApiPriceProfile, ...]:
    """Every provider's price of a model.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> sorted(p.provider for p in market("kimi-k3", default_store()))
    ['APIYI', 'Melious', 'Moonshot', 'Novita']
    """
    found = (store.get("api-price", name) for name in store.names("api-price"))
    return tuple(p for p in found if p.model == model)


def demand_turns_per_hour(scenario: Scenario) -> float:
    """Turns that customers ask for in the peak hour, of all replicas together; inf where no demand is stated.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> demand_turns_per_hour(load_scenario("k3-b300-study",
    ...     ["demand={seats: 1000, active_frac_peak: 0.2, turns_per_active_hour: 30}"]))
    6000.0
    """
    demand = scenario.demand
    if demand is None or demand.turns_per_active_hour is None:
        return math.inf
    return active_seats(demand) * demand.turns_per_active_hour


def seats_served(scenario: Scenario, sales: Sales) -> float:
    """Seats whose peak hour the turns that earn would fill; nan where no demand is stated, or nothing was served.

    Notes
    -----
    Where the demand says how many turns an active seat makes, seats are turns that earn over those of a seat. Else
    every active seat keeps one live session, and the live sessions count by the share of their turns that earn.

    Examples
    --------
    >>> from kvsim.report.metrics import Tokens
    >>> from kvsim.scenario import load_scenario
    >>> asked = load_scenario("k3-b300-study", ["demand={seats: 50, active_frac_peak: 0.2, turns_per_active_hour: 30}"])
    >>> seats_served(asked, Sales(Tokens(1, 0, 0), Tokens(1, 0, 0), turns=600, hours=1.0))
    100.0
    """
    demand, live = scenario.demand, scenario.workload.concurrency
    if demand is None or not sales.turns or sales.hours <= 0:
        return math.nan
    active_frac = active_seats(demand) / demand.seats
    if demand.turns_per_active_hour is not None:
        return sales.sold_turns / sales.hours / (active_frac * demand.turns_per_active_hour)
    return live / active_frac * sales.sold_turns / sales.turns if live else math.nan


def active_seats(demand: Demand) -> float:
    """Seats that are active in the peak hour at the end of the growth.

    Examples
    --------
    >>> round(active_seats(Demand(seats=1000, active_frac_peak=0.2, growth_per_month=0.1, months=2)), 6)
    242.0
    """
    return demand.seats * demand.active_frac_peak * (1.0 + demand.growth_per_month) ** demand.months


def look_up_prices(resolved: Resolved, store: ProfileStore) -> None:
    """Find a misspelt price, node or storage profile before a run, not after it."""
    hourly_bill(resolved, store)
    api_price(resolved.scenario, resolved.model.name, store)
    class_prices(resolved.scenario, store)


def trust_mark(resolved: Resolved) -> str:
    """How far the speed of a result can be trusted.

    Returns
    -------
    str
        "calibrated here" with a calibration of this GPU and model; "same GPU, other model" where the engine profile has
        kernels measured on this GPU; "physics only" where it has none; "coefficients given" where the scenario
        states the step time itself.
    """
    given = resolved.scenario.engine
    if given.step_time is not None:
        return GIVEN
    if given.calibration is not None:
        return CALIBRATED
    return SAME_GPU if any(_measured_on(s, resolved.gpu.name) for s in _speeds(resolved)) else PHYSICS


def _speeds(resolved: Resolved) -> Iterator[Speed]:
    for family in resolved.engine_profile.kernels:
        yield from family.speeds


def _measured_on(speed: Speed, gpu: str) -> bool:
    return gpu in speed.gpus and "measured" in (speed.flops.kind, speed.bandwidth.kind)


def _lines_of_one_gpu(resolved: Resolved, store: ProfileStore, price: PriceProfile) -> tuple[BillLine, ...]:
    with naming(resolved.scenario, "prices.compute"):
        given, stated = resolved.scenario.prices.owned, stated_usd_per_gpu_hour(resolved, store)
        if stated is not None:
            return (BillLine("GPUs", stated, "as the scenario states", "nominal"),)
        if given is None:
            return (rented_line(price, gpu_figure(price, resolved.gpu.name)),)
        power = power_w(resolved, store)
        if math.isnan(power):
            accepted = f"the all-in power of a node with {resolved.gpu.name}"
            raise ProfileError("the power of a GPU is not known", [
                Problem("node profile", "power_all_in_per_gpu", "", accepted)])
        terms = OwnedTerms(given.utilisation_frac, given.opex_frac, given.site)
        return owned_usd_per_gpu_hour(price, resolved.gpu.name, power, terms)


def _tier_lines(resolved: Resolved, store: ProfileStore, replicas: int) -> Iterator[BillLine]:
    prices = resolved.scenario.prices
    for tier in resolved.scenario.tiers:
        if tier.kind in prices.tier_usd_per_hour:
            yield explicit_line(tier.kind, {**prices.tier_usd_per_hour}, replicas)
            continue
        with naming(resolved.scenario, "prices.tier_profiles"):
            storage = store.get("storage", prices.tier_profiles.get(tier.kind, STORAGE[tier.kind]))
        yield tier_line(storage, tier.capacity * replicas, _write_off(resolved, store))


def _write_off(resolved: Resolved, store: ProfileStore) -> OwnedCost:
    own = compute_price(resolved, store).owned or store.get("price", WRITE_OFF).owned
    if own is None:
        raise ProfileError("nothing says how a tier is written off", [
            Problem("price profile", "owned", "", f"life and cost of capital, as in {WRITE_OFF}")])
    return own
