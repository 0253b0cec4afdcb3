"""Session trees played as a workload: closed loop by live trees (the AgentX replay rules), or by recorded times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvsim.errors import ScenarioError
from kvsim.rng import stream
from kvsim.workload.columns import Floats, Ints, join_floats, join_ints, join_offsets, offsets_of, take_ragged
from kvsim.workload.processes import intervals
from kvsim.workload.requests import Requests, Workload
from kvsim.workload.sessions import CLASS_NAMES, PRIMER, WARMUP, SessionTree, capped_clock_s

FASTEST_TOKEN_S = 1e-4
"""No engine generates the tokens of one sequence faster than this [s]; bounds how many sessions a run can use."""


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """How live session trees are let in; the defaults are those of AgentX.

    Attributes
    ----------
    gap_cap_s : float
        Longest gap [s] kept between a request and what it waits for (AgentX: 300).
    idle_cap_s : float
        Longest time [s] with nothing in flight anywhere (AgentX: 10); see `Workload.idle_cap_s`.
    start_frac : (float, float) or None
        A lane's first session starts at a time uniform in this part of the session (AgentX: 0.25
        to 0.75), on the clock of `capped_clock_s`; None starts it from its first turn.
    warmup_requests : int
        Requests before that start which are played back to back once the primers are through (AgentX: 10).
    barrier : bool
        Whether no lane begins its session before the primers and warm-ups of all lanes have finished.
    steps : tuple of (float, int)
        ``(from_s, live trees)``: from then on another number of trees is live, counted as `until_s`. Who came last goes
        first, in the middle of its session: what it has in flight ends, the rest is not asked.
    num_plays : int or None
        Sessions provided; None = as many as could be needed until `until_s`, or every tree once.
    fastest_token_s : float
        No engine that plays this generates the tokens of one sequence faster [s]; the nearer it is to the truth, the
        fewer sessions are provided that are never begun.
    measure_from_s, until_s : float
        As in `Workload`: they count from the end of the last primer or warm-up.

    Notes
    -----
    AgentX as published: https://docs.nvidia.com/aiperf/benchmark-modes/semi-analysis-agent-x-how-the-benchmark-works-faq
    and InferenceX ``benchmark_lib.sh``: N live trees, sub-agents take no lane, a lane goes on at once to the next
    trace from turn 0, gaps run from the live end to the next start.
    """

    gap_cap_s: float = 300.0
    idle_cap_s: float = 10.0
    start_frac: tuple[float, float] | None = (0.25, 0.75)
    warmup_requests: int = 10
    barrier: bool = True
    steps: tuple[tuple[float, int], ...] = ()
    num_plays: int | None = None
    fastest_token_s: float = FASTEST_TOKEN_S
    measure_from_s: float = 0.0
    until_s: float = math.inf


AGENTX = ReplayRules()
"""The published replay rules."""


def build_closed_loop(trees: Sequence[SessionTree], num_lanes: int, seed: int = 0,
                      rules: ReplayRules = AGENTX, label: str = "") -> Workload:
    """A workload in which `num_lanes` session trees are always live.

    Parameters
    ----------
    trees : sequence of SessionTree
        Sessions, played in this order and from the front again when they are used up, then with
        fresh content: a session played twice finds nothing of its first time.
    num_lanes : int
        Live trees at any time, thinking or not.
    seed : int
        Seed of the starting points.
    rules : ReplayRules
        Caps, start, warm-up, window.
    label : str
        Name for reports.

    Returns
    -------
    Workload
        Lane ``k`` starts with tree ``k``; the other plays are recycled to whichever lane is free first.
        Traffic classes are main, subagent, primer (output 1 token) and warmup.

    Raises
    ------
    ScenarioError
        No tree, or no lane.

    Examples
    --------
    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> turns = [Turn(((0, 100),), 10, 0, 0.0, 0.0), Turn(((0, 150),), 10, 0, 9.0, 8.0, after=(0,))]
    >>> trees = [tree_from_turns(name, turns, 1) for name in "abc"]
    >>> w = build_closed_loop(trees, 2, rules=ReplayRules(start_frac=None))
    >>> w.lane_sessions, w.recycle, w.requests.piece_content.tolist()
    (((0,), (1,)), (2,), [0, 0, 1, 1, 2, 2])
    """
    if not trees or num_lanes < 1:
        raise ScenarioError(f"a closed loop needs at least one session and one lane, not {len(trees)} and {num_lanes}")
    times = intervals(num_lanes, rules.steps)
    plays = [trees[i % len(trees)] for i in range(_num_plays(trees, len(times), rules))]
    if rules.start_frac is not None:
        starts = stream(seed, "session starts").uniform(*rules.start_frac, size=min(num_lanes, len(plays)))
        plays[:num_lanes] = [resume(t, f, rules) for t, f in zip(plays, starts.tolist(), strict=False)]
    requests = _requests(plays, rules.gap_cap_s)
    if rules.start_frac is not None and rules.barrier:
        requests = _with_barrier(requests, min(num_lanes, len(plays)))
    lanes = min(num_lanes, len(plays))
    times = times if rules.steps else times[:lanes]
    return Workload(
        requests=requests, lane_sessions=tuple((k,) if k < lanes else () for k in range(len(times))),
        lane_start_s=np.array([start_s for start_s, _ in times]),
        lane_stop_s=np.array([stop_s for _, stop_s in times]) if rules.steps else np.zeros(0),
        recycle=tuple(range(lanes, len(plays))), idle_cap_s=rules.idle_cap_s,
        warming=np.flatnonzero(requests.traffic_class >= PRIMER), until_s=rules.until_s,
        measure_from_s=rules.measure_from_s, label=label)


def build_open_loop(trees: Sequence[SessionTree], start_s: Sequence[float] | Floats, label: str = "") -> Workload:
    """A workload in which every request arrives at its recorded time, finished or not what came before.

    Parameters
    ----------
    trees : sequence of SessionTree
        Sessions, each played once.
    start_s : float array [num trees]
        When each session begins [s].
    label : str
        Name for reports.

    Returns
    -------
    Workload
        Requests without dependencies, in the order of arrival (ties: order of sessions).

    Raises
    ------
    ScenarioError
        Another number of starts than of trees.

    Examples
    --------
    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> turns = [Turn(((0, 100),), 10, 0, 0.0, 0.0), Turn(((0, 150),), 10, 0, 9.0, 8.0, after=(0,))]
    >>> tree = tree_from_turns("a", turns, 1)
    >>> build_open_loop([tree, tree], [0.0, 5.0]).requests.arrival_s.tolist()
    [0.0, 5.0, 9.0, 14.0]
    """
    if len(trees) != len(start_s):
        raise ScenarioError(f"{len(trees)} sessions but {len(start_s)} starts")
    requests = _requests(trees, math.inf)
    arrival = join_floats([t.start_s + s for t, s in zip(trees, start_s, strict=True)])
    order = np.argsort(arrival, kind="stable")
    piece_offsets, piece_content = take_ragged(requests.piece_offsets, requests.piece_content, order)
    return Workload(label=label, requests=Requests(
        session=requests.session[order], arrival_s=arrival[order], think_s=np.zeros(len(order)),
        dep_offsets=np.zeros(len(order) + 1, np.int64), dep_index=np.zeros(0, np.int64),
        output_tokens=requests.output_tokens[order], priority=requests.priority, piece_offsets=piece_offsets,
        piece_content=piece_content,
        piece_tokens=take_ragged(requests.piece_offsets, requests.piece_tokens, order)[1],
        output_content=requests.output_content[order], traffic_class=requests.traffic_class[order],
        class_names=CLASS_NAMES))


def build_session_arrivals(trees: Sequence[SessionTree], start_s: Sequence[float] | Floats,
                           gap_cap_s: float = math.inf, label: str = "") -> Workload:
    """A workload in which sessions begin by themselves, and their turns wait for what came before.

    Parameters
    ----------
    trees : sequence of SessionTree
        Sessions, played in this order and from the front again (with fresh content) when they are used up.
    start_s : float array [num sessions]
        When each session begins [s].
    gap_cap_s : float
        Longest gap [s] kept between a request and what it waits for.
    label : str
        Name for reports.

    Raises
    ------
    ScenarioError
        No tree to play.

    Examples
    --------
    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> turns = [Turn(((0, 100),), 10, 0, 0.0, 0.0), Turn(((0, 150),), 10, 0, 9.0, 8.0, after=(0,))]
    >>> w = build_session_arrivals([tree_from_turns("a", turns, 1)], [1.0, 5.0])
    >>> w.requests.arrival_s.tolist(), w.requests.think_s.tolist(), w.requests.deps(3)
    ([1.0, 0.0, 5.0, 0.0], [0.0, 8.0, 0.0, 8.0], [2])
    """
    if not trees:
        raise ScenarioError("sessions that begin by themselves need at least one session")
    requests = _requests([trees[k % len(trees)] for k in range(len(start_s))], gap_cap_s)
    begun = np.asarray(start_s, np.float64)[requests.session]
    is_root = np.diff(requests.dep_offsets) == 0
    return Workload(replace(requests, arrival_s=np.where(is_root, requests.arrival_s + begun, 0.0)), label=label)


def resume(tree: SessionTree, start_frac: float, rules: ReplayRules = AGENTX) -> SessionTree:
    """The rest of a session from a point within it, led by the requests that make its prefixes warm.

    Parameters
    ----------
    tree : SessionTree
        The whole session.
    start_frac : float
        Where to begin, as a share of the session's length on the clock of `capped_clock_s`.
    rules : ReplayRules
        ``gap_cap_s`` and ``warmup_requests`` are used.

    Returns
    -------
    SessionTree
        Primers (the last skipped turn of every stream that goes on, output 1 token), warm-up rows, then
        the requests from the starting point on. A request that waited for skipped ones waits for what
        warms its session, and then for what was left of its gap.

    Examples
    --------
    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> turns = [Turn(((0, 100 + 50 * k),), 10, 0, 10.0 * k, 8.0, after=(k - 1,) if k else ()) for k in range(5)]
    >>> rest = resume(tree_from_turns("a", turns, 1), 0.6, ReplayRules(warmup_requests=0))
    >>> rest.prompt_tokens.tolist(), rest.output_tokens.tolist(), rest.gap_s.tolist()
    ([200, 250, 300], [1, 10, 10], [0.0, 6.0, 8.0])
    """
    clock = capped_clock_s(tree, rules.gap_cap_s)
    start_s = start_frac * float(clock[-1])
    cut = int(np.searchsorted(clock, start_s, side="left"))
    first = max(cut - rules.warmup_requests, 0)
    primers = _last_of_streams(tree.stream[:first], set(tree.stream[first:].tolist()))
    rows = np.concatenate([primers, np.arange(first, len(tree))]).astype(np.int64)
    kind = tree.kind[rows]
    kind[:len(primers)] = PRIMER
    kind[len(primers):len(primers) + cut - first] = WARMUP
    wait_s = np.maximum(clock[rows] - start_s, 0.0)
    return _rewire(_take(tree, rows, kind), _new_deps(tree, rows, len(primers)), wait_s)


def _last_of_streams(skipped: Ints, going_on: set[int]) -> Ints:
    """Last skipped row of every stream that goes on."""
    last = {s: row for row, s in enumerate(skipped.tolist()) if s in going_on}
    return np.array(sorted(last.values()), np.int64)


def _new_deps(tree: SessionTree, rows: Ints, num_primers: int) -> list[list[int]]:
    """What each kept row waits for: its old dependencies if kept, and the primers in the place of skipped ones."""
    new_row = {int(old): new for new, old in enumerate(rows) if new >= num_primers}
    deps: list[list[int]] = [[] for _ in range(num_primers)]
    for old in rows[num_primers:].tolist():
        waits = tree.dep_index[tree.dep_offsets[old]:tree.dep_offsets[old + 1]].tolist()
        kept = [new_row[d] for d in waits if d in new_row]
        deps.append(kept if len(kept) == len(waits) else sorted({*kept, *range(num_primers)}))
    return deps


def _take(tree: SessionTree, rows: Ints, kind: Ints) -> SessionTree:
    """Some rows of a tree, as they are; dependencies still to be set."""
    piece_offsets, piece_content = take_ragged(tree.piece_offsets, tree.piece_content, rows)
    return replace(
        tree, stream=tree.stream[rows], kind=kind, start_s=tree.start_s[rows], gap_s=tree.gap_s[rows],
        output_tokens=np.where(kind == PRIMER, 1, tree.output_tokens[rows]),
        output_content=tree.output_content[rows], piece_offsets=piece_offsets, piece_content=piece_content,
        piece_tokens=take_ragged(tree.piece_offsets, tree.piece_tokens, rows)[1])


def _rewire(tree: SessionTree, deps: list[list[int]], wait_s: Floats) -> SessionTree:
    """Set dependencies; rows that now wait for warming rows only wait for what was left of their gap."""
    warming = tree.kind >= PRIMER
    fresh = np.array([not d or all(warming[x] for x in d) for d in deps], bool)
    gap_s = np.where(warming, 0.0, np.where(fresh, wait_s, tree.gap_s))
    return replace(tree, gap_s=gap_s, dep_offsets=offsets_of([len(d) for d in deps]),
                   dep_index=np.array([x for d in deps for x in d], np.int64))


def _num_plays(trees: Sequence[SessionTree], num_lanes: int, rules: ReplayRules) -> int:
    """Sessions that the lanes can use up at most: no session can be over sooner than its shortest life."""
    if rules.num_plays is not None:
        return rules.num_plays
    if math.isinf(rules.until_s):
        return max(len(trees), num_lanes)
    cap_s = min(rules.gap_cap_s, rules.idle_cap_s)
    life_s = [shortest_life_s(t, cap_s, rules.fastest_token_s) for t in trees]
    free_s = [0.0] * num_lanes
    plays = 0 if rules.start_frac is None else num_lanes
    while free_s[0] < rules.until_s:
        heapq.heapreplace(free_s, free_s[0] + life_s[plays % len(trees)])
        plays += 1
    return max(plays, num_lanes)


def shortest_life_s(tree: SessionTree, gap_cap_s: float, token_s: float = FASTEST_TOKEN_S) -> float:
    """Time [s] that a session takes at least: its capped main gaps, and `token_s` a token.

    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> turns = [Turn(((0, 9),), 100, 0, t, t) for t in (0.0, 60.0)]
    >>> round(shortest_life_s(tree_from_turns("a", turns, 1), 10.0), 6)
    10.02
    """
    main = tree.stream == 0
    gaps = np.minimum(tree.gap_s[main], gap_cap_s).sum()
    return float(gaps + token_s * max(int(tree.output_tokens[main].sum()), 1))


def _requests(plays: Sequence[SessionTree], gap_cap_s: float) -> Requests:
    """Columns of all plays; content of each play is its own but for what its tree shares."""
    shared = max(t.num_shared for t in plays) if plays else 0
    base = (shared + offsets_of([t.num_contents - t.num_shared for t in plays])[:-1]).tolist()
    row = offsets_of([len(t) for t in plays])
    gap_s = np.minimum(join_floats([t.gap_s for t in plays]), gap_cap_s)
    dep_offsets = join_offsets([t.dep_offsets for t in plays])
    is_root = np.diff(dep_offsets) == 0
    sizes = np.diff(row)
    return Requests(
        session=np.repeat(np.arange(len(plays)), sizes),
        arrival_s=np.where(is_root, gap_s, 0.0), think_s=np.where(is_root, 0.0, gap_s), dep_offsets=dep_offsets,
        dep_index=join_ints([t.dep_index + r for t, r in zip(plays, row.tolist(), strict=False)]),
        output_tokens=join_ints([t.output_tokens for t in plays]), priority=np.zeros(len(is_root), np.int64),
        piece_offsets=join_offsets([t.piece_offsets for t in plays]),
        piece_content=join_ints([_played(t, t.piece_content, b) for t, b in zip(plays, base, strict=True)]),
        piece_tokens=join_ints([t.piece_tokens for t in plays]),
        output_content=join_ints([_played(t, t.output_content, b) for t, b in zip(plays, base, strict=True)]),
        traffic_class=join_ints([t.kind for t in plays]), class_names=CLASS_NAMES)


def _played(tree: SessionTree, content: Ints, base: int) -> Ints:
    """Content ids of one play."""
    if not tree.num_shared:
        return content + base
    return np.where(content < tree.num_shared, content, content + (base - tree.num_shared))


def _with_barrier(requests: Requests, num_lanes: int) -> Requests:
    """Let the first requests of the first sessions wait for the warming rows of all of them."""
    warming = requests.traffic_class >= PRIMER
    counts = np.diff(requests.dep_offsets)
    waiter = np.repeat(np.arange(len(requests)), counts)
    waited_for = np.zeros(len(requests), bool)
    waited_for[requests.dep_index[warming[waiter]]] = True
    gate = np.flatnonzero(warming & ~waited_for)
    cold = np.bincount(waiter[~warming[requests.dep_index]], minlength=len(requests))
    first = (requests.session < num_lanes) & ~warming & (cold == 0)
    if not len(gate):
        return requests
    return _depend(requests, np.flatnonzero(first), gate)


def _depend(requests: Requests, rows: Ints, gate: Ints) -> Requests:
    """Replace the dependencies of some rows by one common list."""
    counts = np.diff(requests.dep_offsets)
    keep = np.ones(len(requests), bool)
    keep[rows] = False
    old = requests.dep_index[np.repeat(keep, counts)]
    counts[rows] = len(gate)
    offsets = offsets_of(counts)
    index = np.zeros(offsets[-1], np.int64)
    index[np.repeat(keep, counts)] = old
    index[np.repeat(~keep, counts)] = np.tile(gate, len(rows))
    arrival_s, think_s = requests.arrival_s.copy(), requests.think_s.copy()
    think_s[rows] += arrival_s[rows]
    arrival_s[rows] = 0.0
    return replace(requests, dep_offsets=offsets, dep_index=index, arrival_s=arrival_s, think_s=think_s)
