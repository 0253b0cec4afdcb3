"""When each request arrives: one clockwork for open, chained and closed-loop workloads.

Both engines drive the same object, so that a request can never arrive at different times in them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

import numpy as np

from kvsim.workload.admission import SessionGate
from kvsim.workload.requests import Workload


class Arrivals:
    """Hands out arrivals in time order and learns of finished requests.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.
    gate : SessionGate, optional
        Keeps whole sessions waiting outside; a request has arrived when it came to the gate.

    Attributes
    ----------
    arrival_s : list of float
        Arrival time of every request that has been scheduled so far, else nan.
    until_s : float
        When the run stops; inf as long as warming requests are under way.
    soon_s : float
        No request comes before this time [s]; what `next_s` says is never less, and often the same. It is -inf where
        `next_s` must be asked at every turn, since it also lets go what cannot come any more.
    clock_start_s : float
        When the last warming request ended (0 without any, nan as long as one is under way).

    Notes
    -----
    Ties in time are broken by row number, or (`Workload.ties_by_finish`) by who was let in first. The heap holds
    times in a clock that never shifts; an idle cap moves the whole future by adding to ``_shift``, which stays
    exactly 0.0 when no cap is set.
    """

    def __init__(self, workload: Workload, gate: SessionGate | None = None) -> None:
        self._requests = requests = workload.requests
        self._gate = gate
        self._let_in: set[int] = set()
        self.arrival_s: list[float] = [math.nan] * len(requests)
        self.num_left = len(requests)
        self._heap: list[tuple[float, int, int]] = []
        self._rank = itertools.count() if workload.ties_by_finish else itertools.repeat(0)
        self._shift = 0.0
        self.soon_s = math.inf
        self._cap = workload.idle_cap_s
        self._warming = set(workload.warming.tolist())
        self._warming_rows: list[int] = workload.warming.tolist()
        self._end_s: list[float] = [0.0] * len(requests)
        self._latest_end_s = 0.0
        self._duration_s = workload.until_s
        self.until_s = math.inf if self._warming else workload.until_s
        self.clock_start_s = math.nan if self._warming else 0.0
        self._offset_s: list[float] = requests.arrival_s.tolist()
        self._think_s: list[float] = requests.think_s.tolist()
        self._session: list[int] = requests.session.tolist()
        self._waits: list[int] = np.diff(requests.dep_offsets).tolist()
        self._followers = _followers(requests.dep_offsets.tolist(), requests.dep_index.tolist())
        self._lanes: list[deque[int]] | None = None
        self._door = _Door(workload) if workload.max_in_flight else None
        self._stop_s: list[float] = []
        self._gone: set[int] = set()
        if workload.lane_sessions is None:
            self._push_roots(range(len(requests)), 0.0)
        else:
            self._start_lanes(workload)

    def next_s(self) -> float:
        """Time of the next arrival; inf when none is pending."""
        if self._door or self._stop_s:
            self._settle()
        return self._heap[0][0] - self._shift if self._heap else math.inf

    def pop_until(self, now_s: float) -> list[int]:
        """Requests that have arrived by `now_s`, in order, removed from the pending ones."""
        arrived: list[int] = []
        heap, shift = self._heap, self._shift
        if self._door or self._gate is not None or self._stop_s:
            while self.next_s() <= now_s:
                time_s, _, i = heapq.heappop(heap)
                if self._enters(i, time_s - shift):
                    arrived.append(i)
        else:
            while heap and heap[0][0] - shift <= now_s:
                time_s, _, i = heapq.heappop(heap)
                self.arrival_s[i] = time_s - shift
                arrived.append(i)
        self._look_ahead()
        return arrived

    def _enters(self, i: int, now_s: float) -> bool:
        """Note that a request has come to door and gate; whether it gets in now."""
        if i in self._let_in:
            self._let_in.remove(i)
            return True
        self.arrival_s[i] = now_s
        if self._door:
            self._door.enter(i)
        return self._gate is None or self._gate.enters(i)

    def wake_s(self, now_s: float) -> float:
        """Next arrival when nothing is in flight at `now_s`, after the idle cap has been applied."""
        if self._gate is not None and math.isinf(self.next_s()):
            self._open_gate(self._gate.nothing_left(), now_s)
        gap = self.next_s() - now_s
        if math.isfinite(gap) and gap > self._cap:
            self._shift += gap - self._cap
            self._look_ahead()
        return self.next_s()

    def finish(self, i: int, now_s: float) -> None:
        """Tell that request `i` ended at `now_s` (finished or refused): its followers may arrive."""
        self.num_left -= 1
        self._end_s[i] = now_s
        is_late = now_s < self._latest_end_s
        if not is_late:
            self._latest_end_s = now_s
        if i in self._warming:
            self._warming.remove(i)
            if not self._warming:
                end_s = self._last_end_s(self._warming_rows) if is_late else now_s
                self.clock_start_s, self.until_s = end_s, end_s + self._duration_s
                self._start_late(end_s)
        if self._gate is not None:
            self._open_gate(self._gate.leaves(i), now_s)
        if self._door:
            for own_s, waiting in self._door.leave(i):
                heapq.heappush(self._heap, (max(own_s, now_s + self._shift), next(self._rank), waiting))
                self._look_ahead()
        for f in self._followers.get(i, ()):
            self._waits[f] -= 1
            if not self._waits[f] and self._session[f] not in self._gone:
                end_s = self._last_end_s(self._requests.deps(f)) if is_late else now_s
                self._push(f, end_s + self._think_s[f])
        if self._lanes is not None:
            session = self._session[i]
            left = self._open[session] = self._open[session] - 1
            if not left and session in self._lane_of:
                end_s = self._last_end_s(self._rows[session]) if is_late else now_s
                self._take_session(self._lane_of[session], end_s)

    def _last_end_s(self, rows: list[int]) -> float:
        """When the last of these ended: an engine learns of a refusal after ends that came later."""
        return max([self._end_s[i] for i in rows])

    def _open_gate(self, rows: list[int], now_s: float) -> None:
        """These have waited outside and come in now."""
        self._let_in.update(rows)
        for i in rows:
            self._push(i, now_s)

    def _push(self, i: int, time_s: float) -> None:
        at_s = time_s + self._shift
        heapq.heappush(self._heap, (at_s, next(self._rank), i))
        if at_s - self._shift < self.soon_s:
            self.soon_s = at_s - self._shift

    def _look_ahead(self) -> None:
        """Bring `soon_s` up to date."""
        if self._door or self._stop_s:
            self.soon_s = -math.inf
        else:
            self.soon_s = self._heap[0][0] - self._shift if self._heap else math.inf

    def _push_roots(self, rows: range | list[int], start_s: float) -> None:
        waits, offset_s, heap, shift, rank = self._waits, self._offset_s, self._heap, self._shift, self._rank
        for i in rows:
            if not waits[i]:
                heapq.heappush(heap, (start_s + offset_s[i] + shift, next(rank), i))
        self._look_ahead()

    def _settle(self) -> None:
        """Take from the head of the heap what cannot arrive: its lane has stopped, or too many are in flight."""
        while self._heap:
            time_s, _, i = self._heap[0]
            stops = self._session[i] in self._gone or time_s - self._shift >= self._stop_of(self._session[i])
            if not stops and (not self._door or i in self._let_in or not self._door.holds_back(i, time_s)):
                return
            heapq.heappop(self._heap)
            if stops:
                self._abandon(self._session[i])

    def _stop_of(self, session: int) -> float:
        lane = self._lane_of.get(session) if self._stop_s else None
        return math.inf if lane is None else self._stop_s[lane]

    def _abandon(self, session: int) -> None:
        """The rest of a session is not asked; its lane has stopped, so that nobody takes its place."""
        if session not in self._gone:
            self._gone.add(session)
            if self._door:
                self._door.forget(self._rows[session])
            if self._gate is not None:
                self._open_gate(self._gate.forget(session), self._stop_of(session))

    def _start_lanes(self, workload: Workload) -> None:
        self._rows: dict[int, list[int]] = {}
        for i, s in enumerate(self._session):
            self._rows.setdefault(s, []).append(i)
        self._open = {s: len(rows) for s, rows in self._rows.items()}
        self._lanes = [deque(sessions) for sessions in workload.lane_sessions or ()]
        self._relative_stop_s: list[float] = workload.lane_stop_s.tolist()
        self._lane_of: dict[int, int] = {}
        pool: list[int] = workload.pool.tolist() or [0] * (max(self._rows, default=-1) + 1)
        self._lane_pool = workload.lane_pool or (0,) * len(self._lanes)
        self._recycle: dict[int, deque[int]] = {p: deque() for p in self._lane_pool}
        for session in workload.recycle:
            self._recycle.setdefault(pool[session], deque()).append(session)
        alone = set(pool) - set(self._lane_pool)
        self._alone = [i for i, s in enumerate(self._session) if pool[s] in alone] if alone else []
        start_s_of: list[float] = workload.lane_start_s.tolist()
        self._late_lanes = [(lane, start_s) for lane, start_s in enumerate(start_s_of) if start_s and self._warming]
        for lane, start_s in enumerate(start_s_of):
            if not start_s or not self._warming:
                self._take_session(lane, start_s)
        if not self._warming:
            self._start_late(0.0)

    def _start_late(self, clock_start_s: float) -> None:
        """What does not take part in the warm-up begins: later lanes, sessions without lanes; stops get their times."""
        if self._lanes is not None:
            self._stop_s = [stop_s + clock_start_s for stop_s in self._relative_stop_s]
            for lane, start_s in self._late_lanes:
                self._take_session(lane, clock_start_s + start_s)
            self._push_roots(self._alone, clock_start_s)

    def _take_session(self, lane: int, now_s: float) -> None:
        assert self._lanes is not None
        queue = self._lanes[lane] or self._recycle[self._lane_pool[lane]]
        if queue and (not self._stop_s or now_s < self._stop_s[lane]):
            session = queue.popleft()
            self._lane_of[session] = lane
            for i in self._rows[session]:
                if not self._waits[i]:
                    self._push(i, now_s + self._offset_s[i])


class _Door:
    """Counts who is in flight in each pool, and keeps who would be too many."""

    def __init__(self, workload: Workload) -> None:
        sessions = workload.requests.session
        self._pool: list[int] = (workload.pool[sessions] if len(workload.pool) else np.zeros_like(sessions)).tolist()
        self._free = list(workload.max_in_flight)
        self._held: list[deque[tuple[float, int]]] = [deque() for _ in self._free]

    def enter(self, i: int) -> None:
        """One more is in flight."""
        self._free[self._pool[i]] -= 1

    def holds_back(self, i: int, time_s: float) -> bool:
        """Whether there is no room for a request that comes next; then it is kept until `leave` gives it back."""
        pool = self._pool[i]
        if self._free[pool] > 0:
            return False
        self._held[pool].append((time_s, i))
        return True

    def leave(self, i: int) -> list[tuple[float, int]]:
        """One less is in flight: who may come in its place, and when it wanted to."""
        pool = self._pool[i]
        self._free[pool] += 1
        return [self._held[pool].popleft()] if self._held[pool] else []

    def forget(self, rows: list[int]) -> None:
        """These will not come."""
        gone = set(rows)
        self._held = [deque(entry for entry in held if entry[1] not in gone) for held in self._held]


def _followers(offsets: list[int], index: list[int]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {}
    for i in range(len(offsets) - 1):
        for d in index[offsets[i]:offsets[i + 1]]:
            followers.setdefault(d, []).append(i)
    return followers
