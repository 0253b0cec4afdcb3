"""What the next dollar buys: every single change from today's fleet, in sessions inside the SLO and $ per hour."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.billing import trust_mark
from kvsim.engine.core import needs_plain
from kvsim.errors import KvsimError, Problem, ScenarioError
from kvsim.planning.bounds import Bound
from kvsim.planning.candidates import Candidate, candidate, name_of
from kvsim.planning.pool import Workers, process_pool
from kvsim.planning.results import Change, Spread
from kvsim.planning.search import Case, PlanOptions, PlanProgress
from kvsim.planning.trials import Job, Solved, limits_of, reason_of, solve_or_say_why
from kvsim.profiles.store import default_store
from kvsim.report.report import plain
from kvsim.resolve import resolve
from kvsim.scenario import Hardware, PlanHardware, PlanPart, Scenario, Tier, with_value

TERABYTE = 1e12
OTHER_RETENTION_BLOCKS = 10
"""Spacing of state checkpoints, in blocks, that is tried where today keeps them at prompt ends and junctions only."""
SEEDS = 2
"""Seeds of every row, so that it has an interval."""
HYBRID_DRAFT, PLAIN_DRAFT = "dspark-fp8-k3", "mtp-k1"
"""Drafts that are tried where nobody drafts today: on models with a state, and on others."""
NOT_SIMULATED = "not simulated"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs today: replicas of one scenario, and spares that serve nothing.

    ``guess`` is the number of live sessions that a replica is expected to carry, 0 where nothing is known.
    """

    scenario: Scenario
    replicas: int
    spares: int = 0
    guess: int = 0


@dataclass(frozen=True, slots=True)
class Idea:
    """A change before it is simulated: how many replicas of what; without a candidate, why there is none."""

    what: str
    candidate: Candidate | None
    replicas: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Weighed:
    """All changes from a fleet, and what finding them took; ``today`` is the most sessions of a replica by seed."""

    changes: tuple[Change, ...]
    today: tuple[int, ...]
    simulations: int


def next_dollar(scenario: Scenario, fleet: int, options: PlanOptions | None = None) -> tuple[Change, ...]:
    """Every single change from a fleet of replicas of a scenario, the cheapest extra session first; today leads.

    Parameters
    ----------
    scenario : Scenario
        One replica as it runs today, with an SLO; its ``plan`` names other hardware, and changes of your own.
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
    Sessions a replica are found for each seed alone; the same seeds give all changes the same
    traffic, so that differences are paired. Two seeds are few: an interval is their extremes.
    """
    options = options or PlanOptions()
    with process_pool(options.workers) as run:
        return weigh(Fleet(scenario, fleet), scenario.plan or PlanPart(), run, options.progress).changes


def weigh(fleet: Fleet, part: PlanPart, run: Workers, progress: PlanProgress | None = None) -> Weighed:
    """Every single change from a fleet, on processes that are there already; raises as `next_dollar`.

    Parameters
    ----------
    fleet : Fleet
        What runs today.
    part : PlanPart
        Other hardware, changes of one's own, the most sessions a replica may carry.
    run : Workers
        Where jobs are solved.
    progress : callable, optional
        See `PlanProgress`.
    """
    scenario = fleet.scenario
    if not limits_of(scenario.slo):
        raise ScenarioError("the next dollar needs an SLO", [
            Problem(scenario.origin, "slo", "", "e.g. {ttft_s: {p95: 10}}")])
    today = Idea("today", candidate(scenario, {}, {}), fleet.replicas)
    first = _solved([today], fleet.guess, part, run)
    before = _most(first)
    middle = max(1, round(statistics.median(before)))
    ideas = list(_ideas(fleet, part, middle))
    fresh = [idea for idea in ideas if idea.candidate is not None and idea.candidate != today.candidate]
    later = _solved(fresh, middle, part, run, progress)
    by_idea = {idea.what: later[i * SEEDS:(i + 1) * SEEDS] for i, idea in enumerate(fresh)}
    base = _change(today, before, (today, before), fleet.spares)
    rows = [_row_of(idea, by_idea.get(idea.what, first), (today, before), fleet.spares) for idea in ideas]
    return Weighed((base, *sorted(rows, key=_rank)), tuple(before), sum(s.simulations for s in (*first, *later)))


def _row_of(idea: Idea, solved: Sequence[Solved], today: tuple[Idea, list[int]], spares: int) -> Change:
    problem = idea.problem or next((s.problem for s in solved if s.problem), "")
    if problem:
        nothing = Spread(math.nan, math.nan, math.nan)
        return Change(idea.what, nothing, math.nan, nothing, math.nan, nothing, problem)
    return _change(idea, _most(solved), today, spares)


def _ideas(fleet: Fleet, part: PlanPart, sessions: int) -> Iterator[Idea]:
    """The single changes that apply to a fleet whose replica carries so many sessions today."""
    scenario, replicas = fleet.scenario, fleet.replicas
    engine, layout = scenario.engine, scenario.layout
    yield Idea("+1 replica", candidate(scenario, {}, {}), replicas + 1)
    yield _idea("+1 TB of DRAM a replica", replicas, lambda: candidate(scenario, {"tiers": _with_dram(scenario)}, {}))
    if engine.kv_dtype == "bf16":
        yield _idea("fp8 KV", replicas, lambda: candidate(scenario, {}, {"kv_dtype": "fp8"}))
    if layout.dcp == 1 and layout.tp > 1:
        wide = layout.model_copy(update={"dcp": layout.tp})
        yield _idea(f"DCP{layout.tp}", replicas, lambda: candidate(scenario, {"layout": wide}, {}))
    yield from _retention(scenario, replicas)
    yield from _drafting(scenario, part, replicas)
    yield _idea(f"admission control: {sessions} requests at once", replicas,
                lambda: candidate(scenario, {}, {"max_num_seqs": sessions}))
    yield from (_other_hardware(scenario, other, replicas) for other in part.hardware or ()
                if other.gpu != scenario.hardware.gpu)
    yield from (_own_change(scenario, what, fields, replicas) for what, fields in part.changes.items())


def _idea(what: str, replicas: int, make: Callable[[], Candidate]) -> Idea:
    """A change; with the reason where its scenario is refused or does not fit."""
    try:
        made = make()
        resolve(made.scenario)
    except KvsimError as err:
        return Idea(what, None, replicas, reason_of(err))
    return Idea(what, made, replicas)


def _retention(scenario: Scenario, replicas: int) -> Iterator[Idea]:
    """Another spacing of state checkpoints, where the model has a state."""
    config = resolve(scenario).engine
    if not config.state_groups:
        return
    kept = 0 if scenario.engine.retention_interval else OTHER_RETENTION_BLOCKS * config.block_tokens
    what = f"state checkpoints every {kept:,} tokens" if kept else "state checkpoints at prompt ends only"
    yield _idea(what, replicas, lambda: candidate(scenario, {}, {"retention_interval": kept}))


def _drafting(scenario: Scenario, part: PlanPart, replicas: int) -> Iterator[Idea]:
    """A draft model, where none drafts today and the plan does not name one itself."""
    if scenario.engine.draft != "none" or any("engine.draft" in fields for fields in part.changes.values()):
        return
    found = resolve(scenario).engine
    draft = HYBRID_DRAFT if found.state_groups else PLAIN_DRAFT
    what, fields = f"drafting with {draft}", {"engine.draft": draft, "engine.draft_acceptance": {"kind": "golden"}}
    idea = _own_change(scenario, what, fields, replicas)
    if idea.candidate is not None and needs_plain(resolve(idea.candidate.scenario).engine):
        idea = Idea(what, None, replicas, f"drafts above tiers take the plain engine, minutes: name {what!r} in "
                    "plan.changes to have it")
    yield idea


def _other_hardware(scenario: Scenario, other: PlanHardware, replicas: int) -> Idea:
    hardware = Hardware(gpu=other.gpu, num_gpus=other.num_gpus, node=other.node)
    return _idea(f"{other.num_gpus} x {other.gpu} instead", replicas,
                 lambda: candidate(scenario, {"hardware": hardware, "layout": other.layouts[0]}, {}))


def _own_change(scenario: Scenario, what: str, fields: Mapping[str, Any], replicas: int) -> Idea:
    """A change that the plan states as fields of the scenario."""
    def changed() -> Candidate:
        data = candidate(scenario, {}, {}).scenario.to_dict()
        for field, value in fields.items():
            data = with_value(data, field, value)
        made = Scenario.from_dict(data, scenario.origin)
        return Candidate(name_of(made), made)

    return _idea(what, replicas, changed)


def _with_dram(scenario: Scenario) -> tuple[Tier, ...]:
    """The scenario's tiers with a terabyte more of DRAM."""
    if any(t.kind == "dram" for t in scenario.tiers):
        return tuple(t.model_copy(update={"capacity": t.capacity + TERABYTE}) if t.kind == "dram" else t
                     for t in scenario.tiers)
    return (Tier(kind="dram", capacity=TERABYTE), *scenario.tiers)


def _solved(ideas: Sequence[Idea], guess: int, part: PlanPart, run: Workers,
            progress: PlanProgress | None = None) -> list[Solved]:
    """The most sessions of a replica, for each idea and seed."""
    jobs = [Job(_seeded(idea.candidate.scenario, k), _counts(idea.candidate.scenario, part), guess=guess)
            for idea in ideas if idea.candidate for k in range(SEEDS)]
    return run(solve_or_say_why, jobs, (lambda n: progress("next dollar", n / len(jobs))) if progress else None)


def _most(solved: Sequence[Solved]) -> list[int]:
    return [s.found.kept.sessions if s.found.kept else 0 for s in solved]


def _seeded(scenario: Scenario, k: int) -> Scenario:
    return scenario.model_copy(update={"seed": scenario.seed + k})


def _counts(scenario: Scenario, part: PlanPart) -> tuple[int, ...]:
    most = min(resolve(scenario).limits.max_num_seqs * 4, part.max_sessions_per_replica)
    return tuple(range(1, most + 1))


def _usd(idea: Idea, spares: int) -> float:
    assert idea.candidate is not None
    store = default_store()
    case = Case(idea.candidate, resolve(idea.candidate.scenario, store), Bound(math.inf), store)
    return case.bill(idea.replicas + spares).usd_per_hour


def _change(idea: Idea, found: list[int], today: tuple[Idea, list[int]], spares: int) -> Change:
    before, base = today
    extra_usd = _usd(idea, spares) - _usd(before, spares)
    fleet = [idea.replicas * n for n in found]
    extra = [a - before.replicas * b for a, b in zip(fleet, base, strict=True)]
    each = [extra_usd / n if n > 0 else math.inf for n in extra]
    return Change(idea.what, spread(fleet), _usd(idea, spares), spread(extra), extra_usd, spread(each))


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes.

    >>> spread([3, 1, 2])
    Spread(low=1.0, median=2.0, high=3.0)
    """
    return Spread(float(min(values)), float(statistics.median(values)), float(max(values)))


def _rank(change: Change) -> tuple[bool, float, str]:
    usd = change.usd_per_extra_session.median
    return bool(change.note), math.inf if math.isnan(usd) else usd, change.what


def changes_text(changes: Sequence[Change], title: str) -> str:
    """The table of `next_dollar` as text, under a title."""
    head = f"  {'what':<44} {'sessions in SLO':>17} {'$/hour':>9} {'extra':>6} {'$/hour':>9}  $/hour an extra session"
    return "\n".join([f"{title} (median [least-most] over {SEEDS} seeds)", head, *(_row(c) for c in changes)])


def fleet_basis(scenario: Scenario, fleet: int) -> dict[str, str]:
    """What a fleet is, how far its speed can be trusted, how old its prices are and of what kind."""
    resolved = resolve(scenario)
    bill = Case(candidate(scenario, {}, {}), resolved, Bound(math.inf), default_store()).bill(fleet)
    return {"name": name_of(scenario), "trust": trust_mark(resolved), "as_of": bill.as_of, "basis": bill.basis}


def fleet_title(scenario: Scenario, fleet: int) -> str:
    """What a table of changes is about: today's fleet, how far its speed can be trusted, how old its prices are."""
    found = fleet_basis(scenario, fleet)
    return (f"Today's fleet of {fleet} x ({found['name']}); speed: {found['trust']}; prices as of {found['as_of']} "
            f"({found['basis']})\nEvery single change")


def _row(change: Change) -> str:
    if change.note:
        return f"  {change.what:<44} {NOT_SIMULATED}: {change.note}"
    sessions = f"{change.sessions.median:.0f} [{change.sessions.low:.0f}-{change.sessions.high:.0f}]"
    row = f"  {change.what:<44} {sessions:>17} {change.usd_per_hour:>9,.2f}"
    if change.what == "today":
        return row
    return f"{row} {change.extra_sessions.median:>+6.0f} {change.extra_usd_per_hour:>+9,.2f}  {_each(change)}"


def _each(change: Change) -> str:
    each = change.usd_per_extra_session
    if math.isinf(each.median):
        return "no more sessions"
    high = f"{each.high:,.2f}" if math.isfinite(each.high) else "none gained"
    return f"{each.median:,.2f} [{each.low:,.2f} to {high}]"


def plain_changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The table of `next_dollar` as plain data."""
    return [plain(c) for c in changes]
