"""A recorded trace as a workload: at its recorded times, or as live sessions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kvsim.errors import Problem, ScenarioError
from kvsim.workload.columns import Ints, join_ints, offsets_of, take_ragged
from kvsim.workload.requests import Requests, Workload
from kvsim.workload.sessions import CLASS_NAMES, MAIN, SUBAGENT, SessionTree
from kvsim.workload.table import Trace, take
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
    trace = _by_session(_playable(trace))
    first = offsets_of(np.bincount(trace.session, minlength=trace.num_sessions))
    begun_s = trace.time_s[first[trace.session]] if trace.clock == "common" else 0.0
    prompts, outputs, num_own, num_shared = _own_numbers(trace)
    trace = replace(trace, time_s=trace.time_s - begun_s, piece_content=prompts, output_content=outputs)
    kind = np.where(trace.stream > 0, SUBAGENT, MAIN)
    starts = first.tolist(), trace.dep_offsets[first].tolist(), trace.piece_offsets[first].tolist()
    return [_tree(trace, k, kind, starts, num_shared + own, num_shared)
            for k, own in enumerate(num_own.tolist()) if starts[0][k] < starts[0][k + 1]]


def _by_session(trace: Trace) -> Trace:
    """Sessions one after the other, in their order, each in the order of time."""
    order = np.lexsort((trace.time_s, trace.session))
    row_of = np.empty(len(trace), np.int64)
    row_of[order] = np.arange(len(trace))
    if (np.diff(order) > 0).all():
        return trace
    dep_offsets, dep_index = take_ragged(trace.dep_offsets, trace.dep_index, order)
    return replace(take(trace, order), dep_offsets=dep_offsets, dep_index=row_of[dep_index])


def _tree(trace: Trace, k: int, kind: Ints, starts: tuple[list[int], ...], num_contents: int,
          num_shared: int) -> SessionTree:
    """Session `k` of a trace in the order of sessions, from where its rows, dependencies and pieces start."""
    rows, deps, pieces = (slice(start[k], start[k + 1]) for start in starts)
    row_offsets = slice(rows.start, rows.stop + 1)
    return SessionTree(
        id=trace.session_names[k], stream=trace.stream[rows], kind=kind[rows], start_s=trace.time_s[rows],
        gap_s=trace.gap_s[rows], dep_offsets=trace.dep_offsets[row_offsets] - deps.start,
        dep_index=trace.dep_index[deps] - rows.start, output_tokens=trace.output_tokens[rows],
        output_content=trace.output_content[rows], piece_offsets=trace.piece_offsets[row_offsets] - pieces.start,
        piece_content=trace.piece_content[pieces], piece_tokens=trace.piece_tokens[pieces],
        num_contents=num_contents, num_shared=num_shared)


def _own_numbers(trace: Trace) -> tuple[Ints, Ints, Ints, int]:
    """Contents of prompts and outputs as each session numbers them, how many each has of its own, and how many all.

    What prompts of several sessions have comes first. An output of one session may be content of another without
    being shared in that sense: each of them then gives it a number.
    """
    user = np.repeat(trace.session, np.diff(trace.piece_offsets))
    owner = np.full(trace.num_contents, -1, np.int64)
    owner[trace.piece_content] = user
    is_shared = np.zeros(len(owner), bool)
    is_shared[trace.piece_content[owner[trace.piece_content] != user]] = True
    used, user = join_ints([trace.piece_content, trace.output_content]), join_ints([user, trace.session])
    owner[used] = user
    elsewhere = np.flatnonzero((owner[used] != user) & ~is_shared[used])
    pairs, place = np.unique(user[elsewhere] * len(owner) + used[elsewhere], return_inverse=True)
    used[elsewhere] = len(owner) + place
    content = join_ints([np.arange(len(owner)), pairs % max(len(owner), 1)])
    owner = join_ints([np.where(is_shared, -1, owner), pairs // max(len(owner), 1)])
    own = np.flatnonzero(owner >= 0)
    own = own[np.lexsort((content[own], owner[own]))]
    num_own = np.bincount(owner[own], minlength=trace.num_sessions)
    number, shared = np.empty(len(owner), np.int64), np.flatnonzero(is_shared)
    number[shared] = np.arange(len(shared))
    number[own] = len(shared) + np.arange(len(own)) - np.repeat(offsets_of(num_own)[:-1], num_own)
    prompts, outputs = np.split(number[used], [len(trace.piece_content)])
    return prompts, outputs, num_own, len(shared)


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
