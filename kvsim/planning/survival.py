"""Whether a fleet at its peak survives the loss of a node, simulated; and the smallest that does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.types import RunRecords
from kvsim.planning.pool import Workers
from kvsim.planning.results import Option
from kvsim.planning.search import Case, Cheapest
from kvsim.planning.trials import Limit, Measure, limits_of
from kvsim.report.metrics import Window, latency
from kvsim.report.replicas import hits_in
from kvsim.report.report import Report, plain
from kvsim.scenario import FailurePart, RouterPart, Scenario, SurvivePart
from kvsim.simulation import simulate

HITS_WINDOW_S, HITS_STEP_S = 120.0, 15.0
"""Hit rates over time are those of so long a time, told again and again after so much."""
PROBE_S = 1.0
"""Measured time of the run that only asks when measuring begins."""
WAVE = 2
"""Fleets that are simulated at the same time, whatever the number of processes: the answer must not depend on it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run: the SLO's limits and what was measured, and the token-weighted hit rate [0 to 1]."""

    measures: tuple[Measure, ...]
    hit_rate_frac: float

    @property
    def ok(self) -> bool:
        """Whether every limit holds."""
        return all(measure.ratio <= 1.0 for measure in self.measures)


@dataclass(frozen=True, slots=True)
class Loss:
    """A fleet that loses nodes at the peak; medians over the seeds.

    Attributes
    ----------
    units, replicas, lost : int
        Buying units, replicas in them, and how many of these stop.
    usd_per_hour : float
        Of the fleet.
    before, first, after : Phase
        Before the loss, right after it, and then; lengths as `SurvivePart` has them.
    lowest_hit_rate_frac : float
        The lowest of any `HITS_WINDOW_S` that begin in ``first``.
    back_s : float
        From the loss until hits are where they were before it [s], see `hits_back`; inf if not within the run.
    retries : int
        Requests that were taken from the lost replicas and began again.
    """

    units: int
    replicas: int
    lost: int
    usd_per_hour: float
    before: Phase
    first: Phase
    after: Phase
    lowest_hit_rate_frac: float
    back_s: float
    retries: int

    @property
    def settled(self) -> bool:
        """Whether the SLO holds before the loss, and again some time after it."""
        return self.before.ok and self.after.ok

    @property
    def throughout(self) -> bool:
        """Whether the SLO holds right after the loss too."""
        return self.settled and self.first.ok


@dataclass(frozen=True, slots=True)
class Survival:
    """Fleets that lose nodes, each a buying unit larger than the one before; the last survives unless none does.

    ``planned_units`` and ``planned_usd_per_hour`` are those of the plan with its spares, ``unit`` what is bought at
    once, ``router`` what sends sessions to replicas. ``skipped`` says why smaller fleets were not simulated.
    """

    rule: SurvivePart
    unit: str
    router: str
    seeds: int
    planned_units: int
    planned_usd_per_hour: float
    losses: tuple[Loss, ...]
    skipped: str = ""
    simulations: int = 0

    def survives(self, loss: Loss) -> bool:
        """Whether a fleet keeps the SLO as the rule asks."""
        return loss.throughout if self.rule.throughout else loss.settled

    @property
    def smallest(self) -> Loss | None:
        """The smallest fleet that survives."""
        return next((loss for loss in self.losses if self.survives(loss)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times that never come as None."""
        smallest = self.smallest
        rows = [{**plain(loss), "settled": loss.settled, "throughout": loss.throughout} for loss in self.losses]
        return {"rule": self.rule.model_dump(), "unit": self.unit, "router": self.router, "seeds": self.seeds,
                "fleets": rows, "skipped": self.skipped, "smallest_units": smallest.units if smallest else None,
                "smallest_usd_per_hour": smallest.usd_per_hour if smallest else None,
                "planned_units": self.planned_units, "planned_usd_per_hour": self.planned_usd_per_hour}


@dataclass(frozen=True, slots=True)
class LossJob:
    """What one process is asked: a fleet, and how much of it is lost."""

    scenario: Scenario
    lost: int
    rule: SurvivePart


@dataclass(frozen=True, slots=True)
class _Seen:
    """One run of a fleet that lost nodes."""

    before: Phase
    first: Phase
    after: Phase
    lowest_hit_rate_frac: float
    back_s: float
    retries: int


def survival(found: Cheapest, rule: SurvivePart, run: Workers, seeds: int = 1) -> Survival:
    """Simulate the loss of nodes in the cheapest fleet, and in larger ones until one survives it.

    Parameters
    ----------
    found : Cheapest
        The plan's winner; the demand is its peak.
    rule : SurvivePart
        How many nodes, and what is measured when.
    run : Workers
        Where runs are simulated.
    seeds : int
        Runs of each fleet, seeds counted from the scenario's own.

    Notes
    -----
    All replicas that are paid for serve, spares too, behind the scenario's router (session affinity where sessions have
    turns and it names none, else the least loaded). All replicas of a lost node stop at the same time, with their
    caches, lower tiers and requests; these begin again elsewhere, and TTFT counts from their first arrival.
    Fleets grow by whole buying units.
    """
    best, case, live = found.result.best, found.case, found.result.need.live_sessions
    base, lost = case.candidate.scenario, rule.nodes * best.replicas_per_node
    able, skipped = _worth_it(_sizes(best, base.hardware.num_gpus, rule.max_extra), best, live, lost)
    shown = Survival(rule, best.bill.units.unit, fleet(base, 2, live).router_name, seeds, best.bill.units.count,
                     best.usd_per_hour, (), skipped)
    losses: list[Loss] = []
    for at in range(0, len(able), WAVE):
        wave = able[at:at + WAVE]
        fleets = [seeded(fleet(base, replicas, live), k) for _, replicas in wave for k in range(seeds)]
        seen = run(lose, [LossJob(one, lost, rule) for one in fleets])
        losses += [_loss(case, size, lost, seen[i * seeds:(i + 1) * seeds]) for i, size in enumerate(wave)]
        if any(map(shown.survives, losses)):
            break
    kept = next((i for i, loss in enumerate(losses) if shown.survives(loss)), len(losses))
    return replace(shown, losses=tuple(losses[:kept + 1]), simulations=2 * seeds * len(losses))


def _sizes(best: Option, num_gpus: int, max_extra: int) -> list[tuple[int, int]]:
    """Fleets as (buying units, replicas of so many GPUs), from the smallest that carries the demand on."""
    unit, smallest = best.bill.units.gpus_per_unit, whole_units(best, num_gpus)
    step = max(1, unit // num_gpus)
    return [(math.ceil(n * num_gpus / unit), n) for n in range(smallest, smallest + step * max_extra + 1, step)]


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "node"), counted(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def whole_units(best: Option, num_gpus: int) -> int:
    """Replicas of so many GPUs in the buying units that carry the demand."""
    step = max(1, best.bill.units.gpus_per_unit // num_gpus)
    return step * math.ceil(best.replicas / step)


def _worth_it(sizes: list[tuple[int, int]], best: Option, live: int, lost: int) -> tuple[list[tuple[int, int]], str]:
    """Fleets that are worth a simulation, and why smaller ones are not.

    Where what is left would carry as many sessions each as broke the SLO on a single replica, none is.
    """
    broken = best.broken.sessions if best.broken is not None else math.inf
    able = [(units, n) for units, n in sizes if n > lost and math.ceil(live / (n - lost)) < broken]
    if len(able) == len(sizes):
        return able, ""
    units, replicas = sizes[len(sizes) - len(able) - 1]
    fleet_text, left = counted(units, best.bill.units.unit), replicas - lost
    if left < 1:
        return able, f"of {fleet_text} no replica would be left"
    return able, (f"of {fleet_text} the {left} replicas left would carry {math.ceil(live / left)} sessions each, which "
                  "break the SLO for good")


def fleet(scenario: Scenario, replicas: int, live: int) -> Scenario:
    """So many replicas of a scenario behind its router, with so many live sessions in all."""
    workload, router = scenario.workload.model_copy(update={"concurrency": live}), scenario.router
    if router is None and scenario.layout.dp == 1:
        router = RouterPart(kind="session_affinity" if workload.has_sessions else "least_loaded")
    return scenario.model_copy(update={"workload": workload, "router": router, "replicas": replicas})


def seeded(scenario: Scenario, k: int) -> Scenario:
    """A scenario with the seed of its k-th repetition."""
    return scenario.model_copy(update={"seed": scenario.seed + k})


def lose(job: LossJob) -> _Seen:
    """One fleet's run, with the first replicas lost.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    rule, scenario = job.rule, job.scenario
    loss_s = simulate(lasting(scenario, PROBE_S)).run.measured_from_s + rule.before_s
    failures = tuple(FailurePart(replica=r, at_s=loss_s) for r in range(job.lost))
    whole = lasting(scenario, rule.before_s + rule.first_s + rule.after_s).model_copy(update={"failures": failures})
    return _seen(simulate(whole), loss_s, rule)


def lasting(scenario: Scenario, duration_s: float) -> Scenario:
    """A scenario that is measured for so long [s]."""
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"duration_s": duration_s})})


def _seen(report: Report, loss_s: float, rule: SurvivePart) -> _Seen:
    """The three stretches of a run, and how hits came back."""
    records, end_s = report.records, report.run.simulated_s
    limits = limits_of(Scenario.from_dict(report.scenario).slo)
    settled_s = min(loss_s + rule.first_s, end_s)
    before, first, after = (phase(records, limits, Window(start_s, stop_s)) for start_s, stop_s in (
        (report.run.measured_from_s, loss_s), (loss_s, settled_s), (settled_s, end_s)))
    lowest, back_s = hits_back(records, Window(report.run.measured_from_s, end_s), loss_s, rule.first_s)
    return _Seen(before, first, after, lowest, back_s, report.cluster.retries if report.cluster else 0)


def phase(records: RunRecords, limits: Sequence[Limit], window: Window) -> Phase:
    """What a stretch of a run measured."""
    found = latency(records, window)
    measures = tuple(Measure(kind, stat, float(getattr(getattr(found, kind), stat)), limit)
                     for kind, stat, limit in limits)
    return Phase(measures, hits_in(records, window))


def hits_back(records: RunRecords, window: Window, loss_s: float, first_s: float) -> tuple[float, float]:
    """The lowest hit rate soon after a loss, and the time [s] from the loss until hits are where they were.

    Parameters
    ----------
    records : RunRecords
        Requests of a run.
    window : Window
        Its measured part.
    loss_s : float
        When nodes were lost.
    first_s : float
        The lowest hit rate is looked for so long after the loss.

    Returns
    -------
    (float, float)
        Hit rate of the worst `HITS_WINDOW_S` that begin within ``first_s``; and the begin of the first ones from there
        on that are no worse than the worst before the loss: inf if none are, 0 where even the worst are.
    """
    earlier = _hits_over_time(records, Window(window.start_s, loss_s))
    rates = _hits_over_time(records, Window(loss_s, window.end_s))
    early = rates[:int(first_s // HITS_STEP_S) + 1]
    if np.isnan(early).all() or np.isnan(earlier).all():
        return math.nan, math.inf
    usual, worst = np.nanmin(earlier), int(np.nanargmin(early))
    if rates[worst] >= usual:
        return float(rates[worst]), 0.0
    back = np.flatnonzero(rates[worst:] >= usual)
    return float(rates[worst]), float(HITS_STEP_S * (worst + back[0])) if len(back) else math.inf


def _hits_over_time(records: RunRecords, window: Window) -> NDArray[np.float64]:
    """Hit rates of the times of `HITS_WINDOW_S` that begin every `HITS_STEP_S` in a window; nan without requests."""
    last_s = max(window.end_s - HITS_WINDOW_S, window.start_s)
    starts = np.arange(window.start_s, last_s + 1e-9, HITS_STEP_S).tolist()
    return np.array([hits_in(records, Window(s, min(s + HITS_WINDOW_S, window.end_s))) for s in starts])


def _loss(case: Case, size: tuple[int, int], lost: int, seen: Sequence[_Seen]) -> Loss:
    """Medians over the seeds of a fleet."""
    def median(pick: Callable[[_Seen], float]) -> float:
        return statistics.median(pick(s) for s in seen)

    units, replicas = size
    return Loss(units, replicas, lost, case.bill(replicas).usd_per_hour, _median_phase([s.before for s in seen]),
                _median_phase([s.first for s in seen]), _median_phase([s.after for s in seen]),
                median(lambda s: s.lowest_hit_rate_frac), median(lambda s: s.back_s),
                round(median(lambda s: s.retries)))


def _median_phase(phases: Sequence[Phase]) -> Phase:
    each = zip(*(p.measures for p in phases), strict=True)
    measures = tuple(replace(same[0], value_s=statistics.median(m.value_s for m in same)) for same in each)
    return Phase(measures, statistics.median(p.hit_rate_frac for p in phases))
