"""When each request arrives: one clockwork for open, chained and closed-loop workloads.

Both engines drive the same object, so that a request can never arrive at different times in them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

import numpy as np

from kvsim.workload.requests import Workload


class Arrivals:
    """Hands out arrivals in time order and learns of finished requests.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.

    Attributes
    ----------
    arrival_s : list of float
        Arrival time of every request that has been scheduled so far, else nan.

    Notes
    -----
    Ties in time are broken by row number, or (`Workload.ties_by_finish`) by who was let in first. The heap holds
    times in a clock that never shifts; an idle cap moves the whole future by adding to ``_shift``, which stays
    exactly 0.0 when no cap is set.
    """

    def __init__(self, workload: Workload) -> None:
        requests = workload.requests
        self.arrival_s: list[float] = [math.nan] * len(requests)
        self.num_left = len(requests)
        self._heap: list[tuple[float, int, int]] = []
        self._rank = itertools.count() if workload.ties_by_finish else itertools.repeat(0)
        self._shift = 0.0
        self._cap = workload.idle_cap_s
        self._offset_s: list[float] = requests.arrival_s.tolist()
        self._think_s: list[float] = requests.think_s.tolist()
        self._session: list[int] = requests.session.tolist()
        self._waits: list[int] = np.diff(requests.dep_offsets).tolist()
        self._followers = _followers(requests.dep_offsets.tolist(), requests.dep_index.tolist())
        self._lanes: list[deque[int]] | None = None
        if workload.lane_sessions is None:
            self._push_roots(range(len(requests)), 0.0)
        else:
            self._start_lanes(workload)

    def next_s(self) -> float:
        """Time of the next arrival; inf when none is pending."""
        return self._heap[0][0] - self._shift if self._heap else math.inf

    def pop_until(self, now_s: float) -> list[int]:
        """Requests that have arrived by `now_s`, in order, removed from the pending ones."""
        arrived: list[int] = []
        while self._heap and self._heap[0][0] - self._shift <= now_s:
            time_s, _, i = heapq.heappop(self._heap)
            self.arrival_s[i] = time_s - self._shift
            arrived.append(i)
        return arrived

    def wake_s(self, now_s: float) -> float:
        """Next arrival when nothing is in flight at `now_s`, after the idle cap has been applied."""
        gap = self.next_s() - now_s
        if math.isfinite(gap) and gap > self._cap:
            self._shift += gap - self._cap
        return self.next_s()

    def finish(self, i: int, now_s: float) -> None:
        """Tell that request `i` ended at `now_s` (finished or refused): its followers may arrive."""
        self.num_left -= 1
        for f in self._followers.get(i, ()):
            self._waits[f] -= 1
            if not self._waits[f]:
                self._push(f, now_s + self._think_s[f])
        if self._lanes is not None:
            self._leave_session(self._session[i], now_s)

    def _push(self, i: int, time_s: float) -> None:
        heapq.heappush(self._heap, (time_s + self._shift, next(self._rank), i))

    def _push_roots(self, rows: range | list[int], start_s: float) -> None:
        for i in rows:
            if not self._waits[i]:
                self._push(i, start_s + self._offset_s[i])

    def _start_lanes(self, workload: Workload) -> None:
        self._rows: dict[int, list[int]] = {}
        for i, s in enumerate(self._session):
            self._rows.setdefault(s, []).append(i)
        self._open = {s: len(rows) for s, rows in self._rows.items()}
        self._lanes = [deque(sessions) for sessions in workload.lane_sessions or ()]
        self._lane_of: dict[int, int] = {}
        self._recycle = deque(workload.recycle)
        for lane, start_s in enumerate(workload.lane_start_s.tolist()):
            self._take_session(lane, start_s)

    def _take_session(self, lane: int, now_s: float) -> None:
        assert self._lanes is not None
        queue = self._lanes[lane] or self._recycle
        if queue:
            session = queue.popleft()
            self._lane_of[session] = lane
            self._push_roots(self._rows[session], now_s)

    def _leave_session(self, session: int, now_s: float) -> None:
        self._open[session] -= 1
        if not self._open[session]:
            self._take_session(self._lane_of[session], now_s)


def _followers(offsets: list[int], index: list[int]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {}
    for i in range(len(offsets) - 1):
        for d in index[offsets[i]:offsets[i + 1]]:
            followers.setdefault(d, []).append(i)
    return followers
