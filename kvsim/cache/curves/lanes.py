"""A closed population of sessions without service time: which request comes when."""

from __future__ import annotations

import heapq

import numpy as np

from kvsim.errors import TraceError
from kvsim.workload.requests import Floats, Ints
from kvsim.workload.table import Trace


def lanes_order(trace: Trace, num_lanes: int, gap_cap_s: float = 300.0) -> tuple[Ints, Floats]:
    """Rows in the order in which `num_lanes` live sessions ask them.

    Parameters
    ----------
    trace : Trace
        Its sessions are played in their order, each once.
    num_lanes : int
        Live sessions at any time, thinking or not, >= 1.
    gap_cap_s : float
        Longest time [s] between two requests of a session.

    Returns
    -------
    order : int array [n]
        Rows by time, lane, then place in the session.
    time_s : float array [n]
        When each row is asked [s].

    Raises
    ------
    TraceError
        Fewer than one lane.

    Notes
    -----
    All agents of a session are merged by time; lane ``i`` begins session ``i`` at time 0; when the last request of a
    session has been asked its lane takes the next session at that instant (ties: the lower lane). At that instant
    the new session's first request has the lower place, so it is asked just before the old session's last one.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 9, 1, s, [(0, 9)], 0)) for s in "abc" for t in (0.0, 10.0, 900.0)]
    >>> order, time_s = lanes_order(builder.build("")[0], 2)
    >>> time_s.tolist()
    [0.0, 0.0, 310.0, 10.0, 10.0, 320.0, 310.0, 310.0, 620.0]
    """
    if num_lanes < 1:
        raise TraceError(f"a closed population needs at least one lane, not {num_lanes}")
    by_session = np.lexsort((np.arange(len(trace)), trace.time_s, trace.session))
    sizes = np.bincount(trace.session, minlength=trace.num_sessions)
    time_s, lane, place = np.zeros(len(trace)), np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    free = [(0.0, k) for k in range(num_lanes)]
    for rows in np.split(by_session, np.cumsum(sizes)[:-1]):
        if not len(rows):
            continue
        start_s, mine = free[0]
        gaps = np.minimum(np.diff(trace.time_s[rows], prepend=trace.time_s[rows[0]]), gap_cap_s)
        time_s[rows] = start_s + np.cumsum(gaps)
        lane[rows] = mine
        place[rows] = np.arange(len(rows))
        heapq.heapreplace(free, (float(time_s[rows[-1]]), mine))
    return np.lexsort((place, lane, time_s)), time_s
