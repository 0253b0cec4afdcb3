"""A recorded trace as a workload: at its recorded times, or as live sessions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kvsim.errors import Problem, ScenarioError
from kvsim.workload.columns import Ints, offsets_of, take_ragged
from kvsim.workload.requests import Requests, Workload
from kvsim.workload.sessions import CLASS_NAMES, MAIN, SUBAGENT, SessionTree
from kvsim.workload.table import Trace
from kvsim.workload.trees import AGENTX, ReplayRules, build_closed_loop, build_open_loop

AT_ONCE = ReplayRules(idle_cap_s=math.inf, start_frac=None)
"""Rules for traces whose sessions are single requests: nothing to begin in the middle of."""


def open_workload(trace: Trace, rate_factor: float = 1.0, sessions_per_s: float | None = None) -> Workload:
    """Requests at their recorded times, finished or not what came before.

    Parameters
    ----------
    trace : Trace
        What was asked.
    rate_factor : float
        Arrivals come this many times as fast as recorded, > 0.
    sessions_per_s : float, optional
        Sessions without a common clock begin at this rate [1/s], evenly; needed for those, ignored for others.

    Returns
    -------
    Workload
        Outputs of 0 tokens are raised to 1, as are empty prompts.

    Raises
    ------
    ScenarioError
        A rate that is not positive, or none for sessions without a common clock.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 9, 1, "a", [(0, 9)], 0)) for t in (0.0, 10.0)]
    >>> open_workload(builder.build("")[0], rate_factor=2.0).requests.arrival_s.tolist()
    [0.0, 5.0]
    """
    if not rate_factor > 0 or (sessions_per_s is not None and not sessions_per_s > 0):
        raise ScenarioError(f"arrival rates must be positive, not {rate_factor:g} and {sessions_per_s}")
    if trace.clock == "common":
        return Workload(_requests(trace, rate_factor), label=trace.label)
    if sessions_per_s is None:
        raise ScenarioError("this trace has no common clock", [Problem(
            trace.label or "trace", "mode", "open", "closed, or open with a rate at which sessions begin")])
    trees = session_trees_of(trace)
    starts = np.arange(len(trees)) / (sessions_per_s * rate_factor)
    faster = [replace(t, start_s=t.start_s / rate_factor) for t in trees]
    return build_open_loop(faster, starts, trace.label)


def closed_workload(trace: Trace, concurrency: int, seed: int = 0, rules: ReplayRules | None = None) -> Workload:
    """Live sessions: `concurrency` of them at any time, a turn begins its recorded gap after what it waits for.

    Parameters
    ----------
    trace : Trace
        What was asked.
    concurrency : int
        Live sessions; where sessions are single requests, clients that ask again at once.
    seed : int
        Seed of the starting points.
    rules : ReplayRules, optional
        Those of AgentX for sessions of several turns, `AT_ONCE` otherwise.

    Returns
    -------
    Workload
        See `kvsim.workload.trees.build_closed_loop`.

    Raises
    ------
    ScenarioError
        No session, or no lane.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 9, 1, f"#{t}", [(builder.fresh(), 9)], 0)) for t in range(3)]
    >>> closed_workload(builder.build("")[0], 2).lane_sessions
    ((0,), (1,))
    """
    single = not len(trace.dep_index)
    return build_closed_loop(session_trees_of(trace), concurrency, seed, rules or (AT_ONCE if single else AGENTX),
                             trace.label)


def session_trees_of(trace: Trace) -> list[SessionTree]:
    """Sessions of a trace, in their order; text that several sessions share stays shared.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder(num_contents=3)
    >>> _ = builder.add(Entry(5.0, 30, 0, "a", [(0, 20), (1, 10)], 1))
    >>> _ = builder.add(Entry(6.0, 30, 3, "b", [(0, 20), (2, 10)], 2))
    >>> a, b = session_trees_of(builder.build("")[0])
    >>> b.piece_content.tolist(), b.num_shared, b.start_s.tolist(), a.output_tokens.tolist()
    ([0, 1], 1, [0.0], [1])
    """
    trace = _playable(trace)
    shared = _shared_contents(trace)
    rank = np.full(trace.num_contents, -1, np.int64)
    rank[shared] = np.arange(len(shared))
    order = np.lexsort((np.arange(len(trace)), trace.time_s, trace.session))
    sizes = np.bincount(trace.session, minlength=trace.num_sessions)
    groups = np.split(order, np.cumsum(sizes)[:-1])
    return [_tree(trace, rows, rank, len(shared)) for rows in groups if len(rows)]


def _tree(trace: Trace, rows: Ints, rank: Ints, num_shared: int) -> SessionTree:
    """One session from its rows."""
    piece_offsets, pieces = take_ragged(trace.piece_offsets, trace.piece_content, rows)
    dep_offsets, deps = take_ragged(trace.dep_offsets, trace.dep_index, rows)
    used = np.concatenate([pieces, trace.output_content[rows]])
    own, place = np.unique(used, return_inverse=True)
    is_own = rank[own] < 0
    number = np.where(is_own, num_shared + np.cumsum(is_own) - 1, rank[own])[place]
    by_row = np.argsort(rows)
    stream = trace.stream[rows]
    return SessionTree(
        id=trace.session_names[int(trace.session[rows[0]])], stream=stream, kind=np.where(stream > 0, SUBAGENT, MAIN),
        start_s=trace.time_s[rows] - (trace.time_s[rows[0]] if trace.clock == "common" else 0.0),
        gap_s=trace.gap_s[rows], dep_offsets=dep_offsets,
        dep_index=by_row[np.searchsorted(rows, deps, sorter=by_row)] if len(deps) else deps,
        output_tokens=trace.output_tokens[rows], output_content=number[len(pieces):], piece_offsets=piece_offsets,
        piece_content=number[:len(pieces)],
        piece_tokens=take_ragged(trace.piece_offsets, trace.piece_tokens, rows)[1],
        num_contents=num_shared + int(is_own.sum()), num_shared=num_shared)


def _shared_contents(trace: Trace) -> Ints:
    """Contents that prompts of several sessions have."""
    session = np.repeat(trace.session, np.diff(trace.piece_offsets))
    pairs = np.unique(trace.piece_content * max(trace.num_sessions, 1) + session)
    contents, sessions = np.unique(pairs // max(trace.num_sessions, 1), return_counts=True)
    return contents[sessions > 1]


def _requests(trace: Trace, rate_factor: float) -> Requests:
    trace = _playable(trace)
    n = len(trace)
    return Requests(
        session=trace.session, arrival_s=trace.time_s / rate_factor, think_s=np.zeros(n),
        dep_offsets=np.zeros(n + 1, np.int64), dep_index=np.zeros(0, np.int64), output_tokens=trace.output_tokens,
        priority=np.zeros(n, np.int64), piece_offsets=trace.piece_offsets, piece_content=trace.piece_content,
        piece_tokens=trace.piece_tokens, output_content=trace.output_content,
        traffic_class=np.where(trace.stream > 0, SUBAGENT, MAIN), class_names=CLASS_NAMES)


def _playable(trace: Trace) -> Trace:
    """Every prompt and every output at least one token, since engines compute nothing else."""
    empty = np.flatnonzero(np.diff(trace.piece_offsets) == 0)
    at = trace.piece_offsets[empty]
    counts = np.diff(trace.piece_offsets)
    counts[empty] = 1
    return replace(
        trace, output_tokens=np.maximum(trace.output_tokens, 1), input_tokens=np.maximum(trace.input_tokens, 1),
        piece_offsets=offsets_of(counts),
        piece_content=np.insert(trace.piece_content, at, trace.num_contents + np.arange(len(empty))),
        piece_tokens=np.insert(trace.piece_tokens, at, 1), num_contents=trace.num_contents + len(empty))
