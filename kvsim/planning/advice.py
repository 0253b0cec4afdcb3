"""What a plan says beside its winner: what the next dollar buys, and how far the winner's price can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsim.planning.changes import SEEDS, Fleet, spread, weigh
from kvsim.planning.pool import Workers
from kvsim.planning.results import Change, Option, PlanInterval, Spread
from kvsim.planning.search import Case, Cheapest, PlanOptions
from kvsim.planning.trials import Job, Solved, solve_or_say_why
from kvsim.profiles.store import default_store
from kvsim.scenario import PlanPart, Scenario
from kvsim.uncertainty import DrawnStore, Ranged, Values, drawn_value, latin_hypercube, ranged_figures

DRAWS = 4
"""Draws of the figures' ranges; few, since each is a search of its own: the interval is their extremes."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the next dollar buys, how far the winner's price moves, and what finding both took."""

    changes: tuple[Change, ...]
    interval: PlanInterval
    simulations: int


def advice(scenario: Scenario, found: Cheapest, options: PlanOptions, run: Workers) -> Advice:
    """Every single change from the winner's fleet, and the interval of its price.

    Parameters
    ----------
    scenario : Scenario
        What was planned.
    found : Cheapest
        The winner.
    options : PlanOptions
        Progress.
    run : Workers
        Where jobs are solved.

    Notes
    -----
    The winner's sessions a replica are searched again for two seeds, and with the plan's first seed for every draw of
    the figures that have ranges; each result is priced (with the draw's own prices) at the replicas that it needs.
    Errors of the model's form are not in it.
    """
    best, part = found.result.best, scenario.plan or PlanPart()
    drawn = _drawn(found.case, best, found.result.need.live_sessions, run)
    fleet = Fleet(found.case.candidate.scenario, best.replicas, best.spares, best.sessions_per_replica)
    weighed = weigh(fleet, part, run, options.progress)
    interval = _interval(found, drawn, weighed.today)
    return Advice(weighed.changes, interval, weighed.simulations + sum(s.simulations for _, s in drawn.solved))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Searches with drawn figures: each draw's values and what was found."""

    figures: tuple[Ranged, ...]
    solved: list[tuple[Values, Solved]]


def _drawn(case: Case, best: Option, live: int, run: Workers) -> _Drawn:
    scenario = case.candidate.scenario
    moving = ranged_figures(case.resolved, default_store())
    points = latin_hypercube(DRAWS, len(moving), scenario.seed)
    draws: list[Values] = [{r.key: drawn_value(r, float(u)) for r, u in zip(moving, point, strict=True)}
                           for point in points]
    counts = tuple(sorted({math.ceil(live / replicas) for replicas in range(1, live + 1)}))
    allowed = tuple(n for n in counts if n <= 2 * best.sessions_per_replica) or counts[:1]
    jobs = [Job(scenario, allowed, guess=best.sessions_per_replica, values=values) for values in draws]
    return _Drawn(moving, list(zip(draws, run(solve_or_say_why, jobs), strict=True)))


def _interval(found: Cheapest, drawn: _Drawn, by_seed: Sequence[int]) -> PlanInterval:
    """Extremes over draws and seeds around what the plan found."""
    best, case, live = found.result.best, found.case, found.result.need.live_sessions
    sessions = [s.found.kept.sessions if s.found.kept else 0 for _, s in drawn.solved]
    prices = [_usd(case, best.spares, live, n, values) for n, (values, _) in zip(sessions, drawn.solved, strict=True)]
    prices += [_usd(case, best.spares, live, n, {}) for n in by_seed]
    return PlanInterval(_around(best.usd_per_hour, prices), _around(best.sessions_per_replica, [*sessions, *by_seed]),
                        len(drawn.solved), SEEDS, tuple(f.name for f in drawn.figures))


def _around(nominal: float, values: Sequence[float]) -> Spread:
    wide = spread([nominal, *values])
    return Spread(wide.low, nominal, wide.high)


def _usd(case: Case, spares: int, live: int, sessions: int, values: Values) -> float:
    """$ per hour of the fleet that the demand needs at so many sessions a replica."""
    if not sessions:
        return math.inf
    store = DrawnStore(case.store, values) if values else case.store
    return replace(case, store=store).bill(math.ceil(live / sessions) + spares).usd_per_hour
