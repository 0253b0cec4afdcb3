"""What the next dollar buys: every single change from today's fleet, in sessions inside the SLO and $ per hour."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.errors import KvsimError, Problem, ScenarioError
from kvsim.planning.bounds import Bound
from kvsim.planning.candidates import Candidate, candidate
from kvsim.planning.search import Case, Job, PlanOptions, Run, process_pool
from kvsim.planning.trials import limits_of
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import Hardware, PlanPart, Scenario, Tier

TERABYTE = 1e12
OTHER_RETENTION_BLOCKS = 10
"""Spacing of state checkpoints, in blocks, that is tried where today keeps them at prompt ends and junctions only."""
SEEDS = 2
"""Least number of seeds, so that every row has an interval."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes over the seeds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """One change from today.

    Attributes
    ----------
    what : str
        The change; "today" is the fleet as it is.
    sessions : Spread
        Live sessions of the whole fleet inside the SLO.
    usd_per_hour : float
        Of the whole fleet.
    extra_sessions : Spread
        Against today, seed by seed.
    extra_usd_per_hour : float
        Against today.
    usd_per_extra_session : Spread
        $ per hour and extra session; nan where it is not more sessions, 0 or less where it costs nothing more.
    note : str
        Why a change is not possible.
    """

    what: str
    sessions: Spread
    usd_per_hour: float
    extra_sessions: Spread
    extra_usd_per_hour: float
    usd_per_extra_session: Spread
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Idea:
    """A change before it is simulated: how many replicas of what."""

    what: str
    candidate: Candidate
    replicas: int


def next_dollar(scenario: Scenario, fleet: int, options: PlanOptions | None = None) -> tuple[Change, ...]:
    """Every single change from a fleet of replicas of a scenario, the cheapest extra session first; today leads.

    Parameters
    ----------
    scenario : Scenario
        One replica as it runs today, with an SLO; its ``plan`` names other hardware.
    fleet : int
        Replicas today.
    options : PlanOptions, optional
        Processes, progress.

    Raises
    ------
    ScenarioError
        No SLO.

    Notes
    -----
    Sessions a replica are found by bisection for each seed alone; the same seeds give all changes the same
    traffic, so that differences are paired. At least two seeds, which is few: an interval is their extremes.
    """
    options = options or PlanOptions()
    if not limits_of(scenario.slo):
        raise ScenarioError("the next dollar needs an SLO", [
            Problem(scenario.origin, "slo", "", "e.g. {ttft_s: {p95: 10}}")])
    with process_pool(options.workers) as run:
        today = _Idea("today", candidate(scenario, {}, {}), fleet)
        before = _sessions([today], run)[0]
        ideas = list(_ideas(scenario, fleet, max(1, round(statistics.median(before)))))
        possible = [idea for idea in ideas if not _obstacle(idea)]
        fresh = [idea for idea in possible if idea.candidate != today.candidate]
        simulated = iter(_sessions(fresh, run))
        after = [next(simulated) if idea in fresh else before for idea in possible]
    base = _change(today, before, (today, before))
    rows = [_change(idea, found, (today, before)) for idea, found in zip(possible, after, strict=True)]
    rows += [_impossible(idea) for idea in ideas if _obstacle(idea)]
    return (base, *sorted(rows, key=_rank))


def _ideas(scenario: Scenario, fleet: int, sessions: int) -> Iterator[_Idea]:
    """The single changes that apply to a scenario whose replica carries so many sessions today."""
    engine, layout = scenario.engine, scenario.layout
    yield _Idea("+1 replica", candidate(scenario, {}, {}), fleet + 1)
    yield _Idea("+1 TB of DRAM a replica", candidate(scenario, {"tiers": _with_dram(scenario)}, {}), fleet)
    if engine.kv_dtype == "bf16":
        yield _Idea("fp8 KV", candidate(scenario, {}, {"kv_dtype": "fp8"}), fleet)
    if layout.dcp == 1 and layout.tp > 1:
        wide = layout.model_copy(update={"dcp": layout.tp})
        yield _Idea(f"DCP{layout.tp}", candidate(scenario, {"layout": wide}, {}), fleet)
    yield from _retention(scenario, fleet)
    admitted = candidate(scenario, {}, {"max_num_seqs": sessions})
    yield _Idea(f"admission control: {sessions} requests at once", admitted, fleet)
    yield from _other_hardware(scenario, fleet)


def _retention(scenario: Scenario, fleet: int) -> Iterator[_Idea]:
    """Another spacing of state checkpoints, where the model has a state."""
    config = resolve(scenario).engine
    if not config.state_groups:
        return
    kept = 0 if scenario.engine.retention_interval else OTHER_RETENTION_BLOCKS * config.block_tokens
    what = f"state checkpoints every {kept:,} tokens" if kept else "state checkpoints at prompt ends only"
    yield _Idea(what, candidate(scenario, {}, {"retention_interval": kept}), fleet)


def _other_hardware(scenario: Scenario, fleet: int) -> Iterator[_Idea]:
    for other in (scenario.plan or PlanPart()).hardware or ():
        if other.gpu != scenario.hardware.gpu:
            hardware = Hardware(gpu=other.gpu, num_gpus=other.num_gpus, node=other.node)
            moved = candidate(scenario, {"hardware": hardware, "layout": other.layouts[0]}, {})
            yield _Idea(f"{other.num_gpus} x {other.gpu} instead", moved, fleet)


def _with_dram(scenario: Scenario) -> tuple[Tier, ...]:
    """The scenario's tiers with a terabyte more of DRAM."""
    if any(t.kind == "dram" for t in scenario.tiers):
        return tuple(t.model_copy(update={"capacity": t.capacity + TERABYTE}) if t.kind == "dram" else t
                     for t in scenario.tiers)
    return (Tier(kind="dram", capacity=TERABYTE), *scenario.tiers)


def _obstacle(idea: _Idea) -> str:
    """Why a change is not possible; empty when it is."""
    try:
        resolve(idea.candidate.scenario)
    except KvsimError as err:
        return err.message.splitlines()[0]
    return ""


def _sessions(ideas: list[_Idea], run: Run) -> list[list[int]]:
    """Sessions a replica carries, for each idea and seed."""
    jobs = [Job(_seeded(idea.candidate.scenario, k), _counts(idea), 1)
            for idea in ideas for k in range(SEEDS)]
    found = [f.kept.sessions if f.kept else 0 for f, _ in run(jobs)]
    return [found[i:i + SEEDS] for i in range(0, len(found), SEEDS)]


def _seeded(scenario: Scenario, k: int) -> Scenario:
    return scenario.model_copy(update={"seed": scenario.seed + k})


def _counts(idea: _Idea) -> tuple[int, ...]:
    limits = resolve(idea.candidate.scenario).limits
    return tuple(range(1, min(limits.max_num_seqs * 4, PlanPart().max_sessions_per_replica) + 1))


def _usd(idea: _Idea) -> float:
    store = default_store()
    case = Case(idea.candidate, resolve(idea.candidate.scenario, store), Bound(math.inf), store)
    return case.bill(idea.replicas).usd_per_hour


def _change(idea: _Idea, found: list[int], today: tuple[_Idea, list[int]]) -> Change:
    before, base = today
    extra_usd = _usd(idea) - _usd(before)
    fleet = [idea.replicas * n for n in found]
    extra = [a - before.replicas * b for a, b in zip(fleet, base, strict=True)]
    each = [extra_usd / n if n > 0 else math.inf for n in extra]
    return Change(idea.what, _spread(fleet), _usd(idea), _spread(extra), extra_usd, _spread(each))


def _impossible(idea: _Idea) -> Change:
    nothing = Spread(math.nan, math.nan, math.nan)
    return Change(idea.what, nothing, math.nan, nothing, math.nan, nothing, _obstacle(idea))


def _spread(values: list[int] | list[float]) -> Spread:
    return Spread(float(min(values)), float(statistics.median(values)), float(max(values)))


def _rank(change: Change) -> tuple[bool, float, str]:
    usd = change.usd_per_extra_session.median
    return bool(change.note), math.inf if math.isnan(usd) else usd, change.what


def changes_text(changes: tuple[Change, ...], fleet: int) -> str:
    """The table of `next_dollar` as text."""
    head = f"{'what':<44} {'sessions in SLO':>20} {'$/hour':>9} {'extra':>6} {'$/hour':>9}  $/hour an extra session"
    title = f"Today's fleet of {fleet} and every single change (median [least-most] over {SEEDS} seeds)"
    return "\n".join([title, head, *(_row(c) for c in changes)])


def _row(change: Change) -> str:
    if change.note:
        return f"{change.what:<44} {change.note}"
    sessions = f"{change.sessions.median:.0f} [{change.sessions.low:.0f}-{change.sessions.high:.0f}]"
    row = f"{change.what:<44} {sessions:>20} {change.usd_per_hour:>9,.2f}"
    if change.what == "today":
        return row
    return f"{row} {change.extra_sessions.median:>+6.0f} {change.extra_usd_per_hour:>+9,.2f}  {_each(change)}"


def _each(change: Change) -> str:
    each = change.usd_per_extra_session
    if math.isinf(each.median):
        return "no more sessions"
    high = f"{each.high:,.2f}" if math.isfinite(each.high) else "none gained"
    return f"{each.median:,.2f} [{each.low:,.2f} to {high}]"


def plain_changes(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    """The table of `next_dollar` as plain data."""
    from kvsim.report.report import plain

    return [plain(c) for c in changes]
