"""Does one replica keep its SLO at so many live sessions? And how many are the most?"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import InfeasibleError, KvsimError, ProfileError, ScenarioError
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.metrics import Window
from kvsim.report.report import Report
from kvsim.report.slo import interactivity
from kvsim.scenario import Scenario, SloLimits
from kvsim.simulation import simulate
from kvsim.uncertainty import DrawnStore, Values

Limit = tuple[str, str, float]
"""Latency, statistic and its limit [s], e.g. ("ttft_s", "p95", 10.0)."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One limit of the SLO and what was measured [s], the median over the replications."""

    latency: str
    statistic: str
    value_s: float
    limit_s: float

    @property
    def ratio(self) -> float:
        """Measured over allowed; inf where nothing was measured."""
        return self.value_s / self.limit_s if math.isfinite(self.value_s) else math.inf

    def text(self) -> str:
        """As in 'TTFT p95 12.3 s (limit 10 s)'."""
        name = self.latency.removesuffix("_s").upper()
        if not math.isfinite(self.value_s):
            return f"{name} {self.statistic} unknown: nothing finished"
        return f"{name} {self.statistic} {_seconds(self.value_s)} (limit {_seconds(self.limit_s)})"


@dataclass(frozen=True, slots=True)
class Trial:
    """One replica at so many live sessions: medians over the replications."""

    sessions: int
    measures: tuple[Measure, ...]
    hit_rate_frac: float
    tokens_per_s_per_gpu: float
    interactivity_tokens_per_s: float
    contribution_usd_per_node_hour: float
    turns_per_s: float

    @property
    def worst(self) -> Measure:
        """The limit that is broken the most, or the one with the least room."""
        return max(self.measures, key=lambda m: m.ratio)

    @property
    def ok(self) -> bool:
        """Whether every limit holds."""
        return self.worst.ratio <= 1.0


def limits_of(slo: SloLimits) -> tuple[Limit, ...]:
    """Every limit of an SLO.

    Examples
    --------
    >>> limits_of(SloLimits(ttft_s={"p95": 10.0}))
    (('ttft_s', 'p95', 10.0),)
    """
    given = slo.model_dump(include={"ttft_s", "tpot_s", "e2e_s"})
    return tuple((name, stat, limit) for name, limits in given.items() for stat, limit in limits.items())


def try_sessions(scenario: Scenario, sessions: int, replications: int = 1, store: ProfileStore | None = None) -> Trial:
    """Simulate one replica with so many live sessions, seeds counted from the scenario's own.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    reports = [simulate(scenario.at(sessions, scenario.seed + k), store=store) for k in range(replications)]

    def median(pick: Callable[[Report], float]) -> float:
        return statistics.median(pick(r) for r in reports)

    measures = tuple(Measure(name, stat, median(_latency(name, stat)), limit)
                     for name, stat, limit in limits_of(scenario.slo))
    return Trial(sessions, measures, median(lambda r: r.hit_rate.total),
                 median(lambda r: r.throughput.total_tokens_per_s_per_gpu), median(_interactivity),
                 median(lambda r: r.cost.contribution_usd_per_node_hour), median(lambda r: r.throughput.requests_per_s))


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search over numbers of sessions: the largest that keeps the SLO, and the smallest that does not."""

    kept: Trial | None
    broken: Trial | None


def most_sessions(counts: Sequence[int], trial: Callable[[int], Trial]) -> Found:
    """The largest of ascending `counts` whose trial keeps the SLO, by bisection.

    Notes
    -----
    Assumes that a number which keeps the SLO keeps it at every smaller one. The smallest is tried first: if it fails,
    nothing else is simulated.

    Examples
    --------
    >>> def fake(n):
    ...     return Trial(n, (Measure("ttft_s", "p95", n / 10, 1.0),), 0, 0, 0, 0, 0)
    >>> found = most_sessions([1, 4, 7, 12, 20], fake)
    >>> found.kept.sessions, found.broken.sessions
    (7, 12)
    """
    kept, broken = trial(counts[0]), None
    if not kept.ok:
        return Found(None, kept)
    low, high = 0, len(counts)
    while high - low > 1:
        middle = (low + high) // 2
        tried = trial(counts[middle])
        if tried.ok:
            low, kept = middle, tried
        else:
            high, broken = middle, tried
    return Found(kept, broken)


def most_sessions_near(counts: Sequence[int], trial: Callable[[int], Trial], guess: int) -> Found:
    """As `most_sessions`, from a guess of the answer: a few trials around it instead of a bisection of everything.

    Notes
    -----
    The next number is where the worst limit, interpolated between the two sides, would just hold; a bracket that this
    does not halve is bisected.

    Examples
    --------
    >>> def fake(n):
    ...     return Trial(n, (Measure("ttft_s", "p95", n / 10, 1.0),), 0, 0, 0, 0, 0)
    >>> found = most_sessions_near(range(1, 65), fake, 13)
    >>> found.kept.sessions, found.broken.sessions
    (10, 11)
    """
    low, high = -1, len(counts)
    kept = broken = None
    at = _place(counts, guess, (low, high))
    while True:
        width = high - low
        tried = trial(counts[at])
        if tried.ok:
            low, kept = at, tried
        else:
            high, broken = at, tried
        if high - low <= 1:
            return Found(kept, broken)
        halved = 2 * (high - low) <= width
        at = _place(counts, _crossing(kept, broken), (low, high)) if halved or not (kept and broken) else (
            (low + high) // 2)


def _place(counts: Sequence[int], sessions: float, bracket: tuple[int, int]) -> int:
    """Position of the largest count up to so many sessions, strictly inside a bracket of positions."""
    low, high = bracket
    return min(max(bisect_right(counts, sessions) - 1, low + 1), high - 1)


def _crossing(kept: Trial | None, broken: Trial | None) -> float:
    """Sessions at which the worst limit would just hold; at most a factor of 2 from the only side that is known."""
    if kept and broken:
        below, above = (math.log(max(t.worst.ratio, 1e-9)) for t in (kept, broken))
        share = -below / (above - below) if math.isfinite(above) and above > below else 0.5
        return kept.sessions + share * (broken.sessions - kept.sessions)
    if kept:
        return kept.sessions / max(kept.worst.ratio, 0.5)
    assert broken is not None
    return broken.sessions / min(broken.worst.ratio, 2.0)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is asked: the most sessions among ascending counts.

    ``guess`` is where the answer is expected, 0 where nothing is known; ``values`` replaces figures of profiles.
    """

    scenario: Scenario
    counts: tuple[int, ...]
    replications: int = 1
    guess: int = 0
    values: Values = field(default_factory=dict[Any, float])


@dataclass(frozen=True, slots=True)
class Solved:
    """What was found, by how many simulations; or why it cannot be simulated."""

    found: Found
    simulations: int
    problem: str = ""


def solve(job: Job) -> Solved:
    """The most sessions of a job.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    count = 0
    store = DrawnStore(default_store(), job.values) if job.values else None

    def trial(sessions: int) -> Trial:
        nonlocal count
        count += job.replications
        return try_sessions(job.scenario, sessions, job.replications, store)

    found = most_sessions_near(job.counts, trial, job.guess) if job.guess else most_sessions(job.counts, trial)
    return Solved(found, count)


def solve_or_say_why(job: Job) -> Solved:
    """As `solve`; a scenario that is refused or does not fit is an answer too."""
    try:
        return solve(job)
    except (InfeasibleError, ProfileError, ScenarioError) as err:
        return Solved(Found(None, None), 0, reason_of(err))


def reason_of(err: KvsimError) -> str:
    """The first line of an error, and what the first of its problems says."""
    lines = [err.message.splitlines()[0], *(f"{p.field}: {p.given}" for p in err.problems if p.given)]
    return "; ".join(lines[:2])


def _latency(name: str, stat: str) -> Callable[[Report], float]:
    return lambda report: getattr(getattr(report.latency, name), stat)


def _interactivity(report: Report) -> float:
    return interactivity(report.records, Window(report.run.measured_from_s, report.run.simulated_s))


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def plain_trial(trial: Trial | None) -> dict[str, Any] | None:
    """A trial as plain data."""
    if trial is None:
        return None
    measures = {f"{m.latency}.{m.statistic}": m.value_s for m in trial.measures}
    return {"sessions": trial.sessions, "ok": trial.ok, "measures": measures, "hit_rate": trial.hit_rate_frac,
            "tokens_per_s_per_gpu": trial.tokens_per_s_per_gpu, "turns_per_s": trial.turns_per_s,
            "interactivity_tokens_per_s": trial.interactivity_tokens_per_s}
