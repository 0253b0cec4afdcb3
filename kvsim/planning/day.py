"""A fleet for the peak against the load of a whole day: always up, autoscaled, and the bound of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import Problem, ScenarioError
from kvsim.planning.pool import Workers
from kvsim.planning.results import Option
from kvsim.planning.search import Case, Cheapest
from kvsim.planning.survival import Phase, fleet, lasting, phase, whole_units
from kvsim.planning.trials import limits_of
from kvsim.report.metrics import Window
from kvsim.report.replicas import mean_in_flight
from kvsim.report.report import Report, plain
from kvsim.scenario import AutoscalePart, DayPart, Scenario, StepPart
from kvsim.simulation import simulate

PARTS = 48
"""Steps in which a smooth day goes up and down."""
TARGET_FRACS = ((1.0, 0.8), (0.65, 0.5))
"""Targets of the autoscaler that are tried, two at a time: shares of what is in flight on a replica that is full."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a day: replicas on average (starting ones too), bill, and what was measured if it was simulated.

    ``usd_per_hour`` is an average over the day at the plan's prices, without GPUs that only fill up a buying unit.
    """

    name: str
    replicas: float
    usd_per_hour: float
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """What the load of a day costs, from the fleet for its peak down to the mean load without rounding.

    Attributes
    ----------
    live_peak : int
        Live sessions at the peak.
    peak_over_mean : float
        They over those on average.
    period_s : float
        Length of the day [s].
    replicas, simulated_replicas : int
        Of the fleet for the peak, and how many of them were simulated, with sessions in proportion.
    full_in_flight, target_in_flight : float
        Requests in flight of a replica with the sessions that it carries; and for how many the autoscaler wants one:
        the largest share of `TARGET_FRACS` that keeps the SLO, or the smallest where none does.
    always_up, autoscaled, perfect, mean_load : Way
        Ways to run it. ``perfect`` needs no time to start and knows the load at every moment; ``mean_load`` is the mean
        load over what a replica carries, as if replicas could be divided.
    """

    live_peak: int
    peak_over_mean: float
    period_s: float
    replicas: int
    simulated_replicas: int
    full_in_flight: float
    target_in_flight: float
    always_up: Way
    autoscaled: Way
    perfect: Way
    mean_load: Way
    simulations: int

    @property
    def worth_frac(self) -> float:
        """How many times as dear an hour of an autoscaled replica may be before always-up ones cost less."""
        return self.always_up.replicas / self.autoscaled.replicas

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**plain(self), "worth_frac": self.worth_frac}


def day(found: Cheapest, rule: DayPart, run: Workers) -> Day:
    """Simulate a day below the plan's peak, with all replicas up and with an autoscaler.

    Parameters
    ----------
    found : Cheapest
        The plan's winner; the demand is the day's peak. Spares are not in it.
    rule : DayPart
        How the load swings.
    run : Workers
        Where runs are simulated.

    Raises
    ------
    ScenarioError
        The workload has no sessions whose number could change.

    Notes
    -----
    Sessions come and go in steps, beginning at the least load; those that come begin at their first turn. The
    autoscaler is the cluster's (docs/cluster.md) with its assumed times to load weights, to compile and to capture
    graphs; its target is a share of what is in flight on one replica with the sessions that the plan gives it. A fleet
    that is simulated smaller than it is rounds more coarsely: autoscaling looks somewhat worse than it is.

    Examples
    --------
    >>> [round(n, 3) for n in shape(DayPart(peak_over_mean=2.0), 4)]
    [0.0, 0.5, 1.0, 0.5]
    """
    best, base, live = found.result.best, found.case.candidate.scenario, found.result.need.live_sessions
    if base.workload.fixed is not None:
        accepted = "a workload of sessions: preset, trace or chat"
        problem = Problem(base.origin, "plan.day", "it with fixed lengths", accepted)
        raise ScenarioError("the load of a day cannot be simulated", [problem])
    each, small = math.ceil(live / best.replicas), min(best.replicas, rule.replicas)
    load = shape(rule)
    counts = [max(1, round(share * live * small / best.replicas)) for share in load]
    full = run(in_flight_of, [base.at(each, base.seed)])[0]
    whole = _stepped(fleet(base, small, counts[0]), counts, rule.period_s)
    at_least = min(small, math.ceil(counts[0] / each))
    up, (target, scaled), count = _simulated(whole, [AutoscalePart(target_in_flight=full * f, min_replicas=at_least)
                                              for pair in TARGET_FRACS for f in pair], run)
    usd = usd_per_replica_hour(found.case, best)
    mean, ratio = sum(load) / len(load), best.replicas / small
    mean_up, least = ((scaled.cluster.mean_replicas, scaled.cluster.least_replicas) if scaled.cluster is not None
                      else (small, small))

    def way(name: str, replicas: float, report: Report | None = None) -> Way:
        return Way(name, replicas, replicas * usd, None if report is None else _measured(report))

    return Day(live, 1 / mean, rule.period_s, best.replicas, small, full, target,
               way("always up", best.replicas, up), way("autoscaled", ratio * mean_up, scaled),
               way("perfect autoscaler", ratio * least), way("mean load, undivided", mean * live / each), count + 1)


def _simulated(whole: Scenario, rules: Sequence[AutoscalePart],
               run: Workers) -> tuple[Report, tuple[float, Report], int]:
    """The day with all replicas up; target and report of the first rule that keeps the SLO, else of the last; runs."""
    up: Report | None = None
    tried: list[tuple[float, Report]] = []
    for at in range(0, len(rules), 2):
        pair = rules[at:at + 2]
        jobs = [*([] if up else [whole]), *(whole.model_copy(update={"autoscale": rule}) for rule in pair)]
        found = run(simulate, jobs)
        up = up or found[0]
        tried += [(rule.target_in_flight, report) for rule, report in zip(pair, found[-len(pair):], strict=True)]
        if any(_measured(report).ok for _, report in tried):
            break
    assert up is not None
    return up, next((pair for pair in tried if _measured(pair[1]).ok), tried[-1]), 1 + len(tried)


def usd_per_replica_hour(case: Case, best: Option) -> float:
    """$ an hour of one replica where no GPU of a buying unit is idle."""
    count = whole_units(best, case.candidate.scenario.hardware.num_gpus)
    return case.bill(count).usd_per_hour / count


def shape(rule: DayPart, parts: int = PARTS) -> list[float]:
    """Shares of the peak over a day, beginning at the least.

    Notes
    -----
    A smooth day is ``low + (1 - low) ((1 - cos 2 pi t) / 2) ** k``: up to a peak of twice the mean with k = 1, beyond
    that with low = 0 and the k that gives the mean.

    Examples
    --------
    >>> shape(DayPart(load=(0.5, 1.0, 0.2)))
    [0.2, 0.5, 1.0]
    """
    if rule.load is not None:
        at = rule.load.index(min(rule.load))
        return [*rule.load[at:], *rule.load[:at]]
    peak = rule.peak_over_mean or 1.0
    waves = [(1 - math.cos(2 * math.pi * k / parts)) / 2 for k in range(parts)]
    low, power = (2 / peak - 1, 1.0) if peak <= 2 else (0.0, _power(waves, peak))
    return [low + (1 - low) * wave ** power for wave in waves]


def _power(waves: Sequence[float], peak_over_mean: float) -> float:
    """Power that lets the mean of waves up to 1 be 1 / `peak_over_mean`, by bisection."""
    low, high = 1.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = sum(wave ** middle for wave in waves) / len(waves)
        low, high = (middle, high) if mean > 1 / peak_over_mean else (low, middle)
    return low


def _stepped(scenario: Scenario, counts: Sequence[int], period_s: float) -> Scenario:
    """A scenario whose live sessions follow a day."""
    steps = tuple(StepPart(at_s=k * period_s / len(counts), concurrency=n) for k, n in enumerate(counts) if k)
    whole = lasting(scenario, period_s)
    return whole.model_copy(update={"workload": whole.workload.model_copy(update={"steps": steps, "warmup_s": 0.0})})


def in_flight_of(scenario: Scenario) -> float:
    """Requests in flight on one replica, averaged over its measured time.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    report = simulate(scenario)
    return max(mean_in_flight(report.timeline, _window(report)), 1e-3)


def _measured(report: Report) -> Phase:
    return phase(report.records, limits_of(Scenario.from_dict(report.scenario).slo), _window(report))


def _window(report: Report) -> Window:
    return Window(report.run.measured_from_s, report.run.simulated_s)
