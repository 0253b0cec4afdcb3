"""Search for the cheapest way to serve a demand: bounds first, then as few simulations as the price allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvsim.billing import active_seats, gpus_per_node, hourly_bill, power_w, trust_mark
from kvsim.errors import InfeasibleError, KvsimError, Problem, ScenarioError
from kvsim.planning.bounds import Bound, Turns, turns_of, upper_bound
from kvsim.planning.candidates import Candidate, candidates
from kvsim.planning.pool import Workers
from kvsim.planning.results import Need, Option, PlanResult, Rejected
from kvsim.planning.trials import Found, Job, limits_of, reason_of, solve, try_sessions
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.bill import HOURS_PER_MONTH, Bill
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import PlanPart, Scenario

PlanProgress = Callable[[str, float], None]
"""Called with what is being done and its finished share."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a caller adds to the scenario's own plan.

    Attributes
    ----------
    seats : int or None
        Instead of ``demand.seats``.
    max_usd_per_hour : float or None
        Instead of ``plan.max_usd_per_hour``.
    workers : int
        Processes that simulate at the same time; 1 stays in this one.
    exhaustive : bool
        Try every configuration at every number of replicas within the limits, without bounds and prices.
    advise : bool
        Also find what the next dollar buys, and how sure the cheapest option is.
    lose_nodes : int or None
        Nodes whose loss at the peak is simulated, instead of ``plan.survive.nodes``.
    peak_over_mean : float or None
        Peak over mean load of the day that is simulated, instead of that of ``plan.day``.
    progress : callable or None
        See `PlanProgress`.
    """

    seats: int | None = None
    max_usd_per_hour: float | None = None
    workers: int = 1
    exhaustive: bool = False
    advise: bool = False
    lose_nodes: int | None = None
    peak_over_mean: float | None = None
    progress: PlanProgress | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A candidate that fits: looked up, with its bound and what any number of replicas costs."""

    candidate: Candidate
    resolved: Resolved
    bound: Bound
    store: ProfileStore

    def bill(self, replicas: int) -> Bill:
        """Bill of so many replicas, spares among them, in whole buying units."""
        prices = self.resolved.scenario.prices
        whole = prices.model_copy(update={"whole_units": prices.whole_units is not False})
        scenario = self.resolved.scenario.model_copy(update={"prices": whole})
        return hourly_bill(replace(self.resolved, scenario=scenario), self.store, replicas)

    @property
    def replicas_per_node(self) -> int:
        """Replicas that stop with a node: all on it, or the one that it is a part of."""
        return max(1, int(gpus_per_node(self.resolved, self.store)) // self.candidate.scenario.hardware.num_gpus)

    def power_kw(self, bill: Bill) -> float:
        """All-in power [kW] of the GPUs that are paid for; nan where no node says."""
        return bill.units.billed_gpus * power_w(self.resolved, self.store) / 1e3


@dataclass(slots=True)
class Search:
    """State of a search: what is asked, what has been found."""

    base: Scenario
    part: PlanPart
    need: Need
    options: PlanOptions
    found: list[tuple[Case, Option]] = field(default_factory=list[tuple[Case, Option]])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    barred: list[Case] = field(default_factory=list[Case])
    simulations: int = 0

    @property
    def best_usd(self) -> float:
        """Price an hour of the cheapest option so far."""
        return min((o.usd_per_hour for _, o in self.found), default=math.inf)

    @property
    def max_usd(self) -> float:
        """The budget an hour; inf without one."""
        given = self.options.max_usd_per_hour
        return given if given is not None else self.part.max_usd_per_hour or math.inf


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Result of a search, and the case of its cheapest option."""

    result: PlanResult
    case: Case


def cheapest(scenario: Scenario, options: PlanOptions, run: Workers) -> Cheapest:
    """The search behind `kvsim.planning.plan`, on processes that are there already; raises as that does."""
    if not limits_of(scenario.slo):
        raise ScenarioError("a plan needs an SLO", [Problem(scenario.origin, "slo", "", "e.g. {ttft_s: {p95: 10}}")])
    turns = turns_of(scenario)
    search = Search(scenario, scenario.plan or PlanPart(), need_of(scenario, options.seats, turns), options)
    cases = _by_price_bound(search, list(_cases(search, default_store(), turns)))
    _explore(search, cases, run)
    return _result(search)


def need_of(scenario: Scenario, seats: int | None, turns: Turns | None) -> Need:
    """The demand in live sessions.

    Raises
    ------
    ScenarioError
        Nothing says how many there are, or seats are given without what they do.
    """
    demand, part = scenario.demand, scenario.plan or PlanPart()
    if demand is not None:
        demand = demand if seats is None else demand.model_copy(update={"seats": seats})
        active = active_seats(demand)
        if demand.turns_per_active_hour is None:
            return Need(max(1, math.ceil(active - 1e-9)), f"{active:,.0f} active seats, a session each", demand.seats)
        if turns is not None:
            live = active * demand.turns_per_active_hour / turns.per_session_hour
            how = (f"{active:,.0f} active seats x {demand.turns_per_active_hour:g} turns an hour / "
                   f"{turns.per_session_hour:.0f} turns a live session makes an hour")
            return Need(max(1, math.ceil(live - 1e-9)), how, demand.seats)
    if seats is None and part.live_sessions is not None:
        return Need(part.live_sessions, "as the plan states")
    accepted = "demand: {seats, active_frac_peak}, or plan: {live_sessions}"
    raise ScenarioError("a plan needs a demand", [Problem(scenario.origin, "demand", "", accepted)])


def _cases(search: Search, store: ProfileStore, turns: Turns | None) -> Iterator[Case]:
    """Candidates that fit; those that do not are rejected with the reason."""
    for candidate in candidates(search.base):
        try:
            resolved = resolve(candidate.scenario, store)
            hourly_bill(resolved, store)
        except KvsimError as err:
            search.rejected.append(Rejected(candidate.name, reason_of(err)))
            continue
        yield Case(candidate, resolved, upper_bound(resolved, turns), store)


def _by_price_bound(search: Search, cases: list[Case]) -> list[Case]:
    """Cases by the least that they can cost, those that can carry nothing rejected."""
    for case in cases:
        if case.bound.sessions < 1:
            search.rejected.append(Rejected(case.candidate.name, case.bound.why))
            search.barred.append(case)
    able = [c for c in cases if c.bound.sessions >= 1]
    return sorted(able, key=lambda c: (_least_usd(search, c), c.candidate.name))


def _least_usd(search: Search, case: Case) -> float:
    """What a case costs if every replica carries its bound."""
    most = min(_cap(search, case), search.need.live_sessions)
    return case.bill(math.ceil(search.need.live_sessions / most) + search.part.spares).usd_per_hour


def _cap(search: Search, case: Case) -> int:
    limit = search.part.max_sessions_per_replica
    return limit if search.options.exhaustive else int(min(limit, case.bound.sessions))


def _explore(search: Search, cases: list[Case], run: Workers) -> None:
    """Solve the cases in waves of as many as there are processes, each against the best of the waves before."""
    width = 2 if not search.options.exhaustive else max(len(cases), 1)
    for at in range(0, len(cases), width):
        wave = [(c, counts) for c in cases[at:at + width] if (counts := _counts(search, c))]
        jobs = [Job(c.candidate.scenario, counts, search.part.replications) for c, counts in wave]
        if search.options.progress:
            search.options.progress("configurations", at / len(cases))
        for (case, counts), solved in zip(wave, run(solve, jobs), strict=True):
            search.simulations += solved.simulations
            _settle(search, case, counts, solved.found)


def _counts(search: Search, case: Case) -> tuple[int, ...]:
    """Sessions per replica worth trying, ascending: each needs one replica less than the one before.

    Empty, with the case rejected, where no number of replicas is within the limits and below the best price.
    """
    allowed: list[int] = []
    why = ""
    for replicas in _replica_counts(search, case):
        broken = _limit_broken(search, case, replicas + search.part.spares)
        if not broken:
            allowed.append(math.ceil(search.need.live_sessions / replicas))
        why = why or broken
    if not allowed:
        search.rejected.append(Rejected(case.candidate.name, why, serves=why.startswith("costs")))
    return tuple(sorted(set(allowed)))


def _replica_counts(search: Search, case: Case) -> list[int]:
    live = search.need.live_sessions
    fewest = math.ceil(live / max(1, min(_cap(search, case), live)))
    return sorted({math.ceil(live / math.ceil(live / r)) for r in range(fewest, live + 1)})


def _limit_broken(search: Search, case: Case, replicas: int) -> str:
    """What forbids so many replicas, spares included; empty when nothing does."""
    bill = case.bill(replicas)
    gpu, usd, gpus = case.resolved.gpu.name, bill.usd_per_hour, bill.units.billed_gpus
    owned = {default_store().get("gpu", name).name: count for name, count in search.part.inventory.items()}
    power_kw, max_kw = case.power_kw(bill), (search.part.max_power or math.inf) / 1e3
    at_least = f"at {replicas} replicas and at most {_cap(search, case)} sessions each it"
    if gpus > owned.get(gpu, math.inf):
        return f"{at_least} needs {gpus} GPUs, the inventory has {owned[gpu]}"
    if power_kw > max_kw:
        return f"{at_least} draws {power_kw:,.0f} kW, the site carries {max_kw:,.0f}"
    if usd > search.max_usd:
        return f"{at_least} costs ${usd:,.2f} an hour, the budget is ${search.max_usd:,.2f}"
    if usd >= search.best_usd and not search.options.exhaustive:
        return f"costs at least ${usd:,.2f} an hour ({case.bound.why or 'at the most sessions allowed'})"
    return ""


def _settle(search: Search, case: Case, counts: tuple[int, ...], found: Found) -> None:
    """Book what the simulations of a case found."""
    if found.kept is not None:
        option = _option(search, case, found)
        search.found.append((case, option))
        return
    tried = found.broken
    assert tried is not None
    cheaper = f", so it costs more than ${search.best_usd:,.2f} an hour" if search.found and counts[0] > 1 else ""
    why = f"at {tried.sessions} session{'s' if tried.sessions > 1 else ''} a replica {tried.worst.text()}{cheaper}"
    search.rejected.append(Rejected(case.candidate.name, why, tried, serves=bool(cheaper)))


def _option(search: Search, case: Case, found: Found) -> Option:
    assert found.kept is not None
    live, spares, seats = search.need.live_sessions, search.part.spares, search.need.seats
    replicas = math.ceil(live / found.kept.sessions)
    bill = case.bill(replicas + spares)
    nodes = bill.units.billed_gpus / gpus_per_node(case.resolved, case.store)
    return Option(case.candidate.name, found.kept.sessions, replicas, spares, bill.units.billed_gpus, bill.usd_per_hour,
                  case.power_kw(bill), bill.usd_per_hour * HOURS_PER_MONTH / seats if seats else math.nan,
                  seats / nodes if seats else math.nan, found.kept, found.broken, trust_mark(case.resolved), bill,
                  case.candidate.scenario, case.replicas_per_node)


def _result(search: Search) -> Cheapest:
    found = sorted(search.found, key=lambda pair: (pair[1].usd_per_hour, pair[1].name))
    if not found:
        raise _infeasible(search)
    options = tuple(option for _, option in found)
    result = PlanResult(search.base.name, search.need, options, tuple(search.rejected), search.simulations)
    return Cheapest(result, found[0][0])


def _infeasible(search: Search) -> InfeasibleError:
    """No option: every reason, and the nearest SLO that could be kept."""
    kept = "all limits of SLO, inventory, power and budget kept"
    problems = [Problem(r.name, "", r.why, kept) for r in search.rejected]
    tried = [(r.name, r.trial) for r in search.rejected if r.trial is not None]
    if not tried:
        tried = [(c.candidate.name, try_sessions(c.candidate.scenario, 1)) for c in search.barred]
    message = f"no configuration serves {search.need.live_sessions} live sessions"
    if not tried:
        return InfeasibleError(message, problems)
    name, trial = min(tried, key=lambda pair: pair[1].worst.ratio)
    broken = "; ".join(m.text() for m in trial.measures if m.ratio > 1.0)
    sessions = f"{trial.sessions} live session{'s' if trial.sessions > 1 else ''} a replica"
    nearest = f"the nearest is {name} with {sessions}, feasible if these were allowed: {broken}"
    return InfeasibleError(f"{message}; {nearest}", problems)
