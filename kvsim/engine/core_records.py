"""What the fast engine writes down: records and timeline in columns, and the waiting queues."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.content_trie import ContentTrie, build_trie
from kvsim.engine.core_sequence import Sequence
from kvsim.engine.types import UNFINISHED, RunRecords, Timeline
from kvsim.workload.admission import SessionGate
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.requests import Requests, Workload

Floats = NDArray[np.float64]

Rank = tuple[int, float, str, int]
"""(priority, arrival time, name, row): who goes first under the priority policy."""


MANY_ROWS = 1 << 14
"""Rows of the timeline kept as Python numbers at most."""


class Incoming(Protocol):
    """Requests as an engine sees them come: from `kvsim.workload.arrivals.Arrivals`, or handed over one by one."""

    arrival_s: list[float]
    num_left: int
    until_s: float
    soon_s: float
    clock_start_s: float

    def next_s(self) -> float:
        """Time of the next one that is known of; inf without any."""
        ...

    def pop_until(self, now_s: float) -> list[int]:
        """Those that have come by `now_s`."""
        ...

    def wake_s(self, now_s: float) -> float:
        """When the next one comes, if nothing else happens until then."""
        ...

    def finish(self, i: int, now_s: float) -> None:
        """One has ended, or was refused."""
        ...


class Waiting(Sized, Protocol):
    """Requests that wait, as rows until they have been at the head for the first time."""

    def add(self, row: int, /) -> None:
        """A request arrives."""
        ...

    def put_back(self, seq: Sequence, /) -> None:
        """A preempted request returns."""
        ...

    def first(self) -> Sequence | int:
        """The head of the queue."""
        ...

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        ...

    def pop_first(self) -> object:
        """Remove the head."""
        ...

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        ...


class FcfsWaiting(deque[Sequence | int]):
    """In order of arrival; preempted requests return to the front."""

    add = deque["Sequence | int"].append
    put_back = deque["Sequence | int"].appendleft
    pop_first = deque["Sequence | int"].popleft

    def first(self) -> Sequence | int:
        """The head of the queue."""
        return self[0]

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        self[0] = seq

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        return [item for item in self if isinstance(item, Sequence)]


class PriorityWaiting(list[tuple[Rank, Sequence | int]]):
    """By (priority, arrival time, name); there is no front to return to.

    Parameters
    ----------
    rank_of : callable
        Rank of a row.
    """

    def __init__(self, rank_of: Callable[[int], Rank]) -> None:
        super().__init__()
        self._rank_of = rank_of

    def add(self, row: int) -> None:
        """A request arrives."""
        heapq.heappush(self, (self._rank_of(row), row))

    def put_back(self, seq: Sequence) -> None:
        """A preempted request returns."""
        heapq.heappush(self, (self._rank_of(seq.row), seq))

    def first(self) -> Sequence | int:
        """The head of the queue."""
        return self[0][1]

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        self[0] = (self[0][0], seq)

    def pop_first(self) -> None:
        """Remove the head."""
        heapq.heappop(self)

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        return [item for _, item in self if isinstance(item, Sequence)]


class Columns:
    """Columns of the result, filled while the run goes on."""

    def __init__(self, requests: Requests) -> None:
        n = len(requests)
        self.admitted_s = array("d", [math.nan]) * n
        self.first_token_s = array("d", [math.nan]) * n
        self.finish_s = array("d", [math.nan]) * n
        self.cached_tokens = array("q", [0]) * n
        self.external_tokens = array("q", [0]) * n
        self.output_tokens = array("q", [0]) * n
        self.preemptions = array("q", [0]) * n
        self.status = array("q", [UNFINISHED]) * n
        self.refusals: dict[int, str] = {}
        self._prompt_tokens = requests.prompt_tokens

    def records(self, arrival_s: list[float]) -> RunRecords:
        """The columns as arrays."""
        return RunRecords(
            arrival_s=np.array(arrival_s, np.float64), admitted_s=np.array(self.admitted_s),
            first_token_s=np.array(self.first_token_s), finish_s=np.array(self.finish_s),
            prompt_tokens=self._prompt_tokens, cached_tokens=np.array(self.cached_tokens, np.int64),
            external_tokens=np.array(self.external_tokens, np.int64),
            output_tokens=np.array(self.output_tokens, np.int64), preemptions=np.array(self.preemptions, np.int64),
            status=np.array(self.status, np.int64), refusals=self.refusals)


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica of several gets: its own requests, and what all of them use together.

    Attributes
    ----------
    incoming : Incoming
        Requests of this replica.
    columns : Columns
        Where all replicas write.
    trie : ContentTrie
        Content of all requests, in blocks of this replica's size.
    prompt_tokens, output_tokens, priority : list of int
        Of all requests.
    """

    incoming: Incoming
    columns: Columns
    trie: ContentTrie
    prompt_tokens: list[int]
    output_tokens: list[int]
    priority: list[int]


def whole_share(workload: Workload, block_tokens: int, gate: SessionGate | None = None) -> Share:
    """The share of a replica that is alone."""
    requests = workload.requests
    return Share(Arrivals(workload, gate), Columns(requests), build_trie(requests, block_tokens),
                 requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), requests.priority.tolist())


StateRow = tuple[float, int, int, int, int]
"""Time [s]; running and waiting requests, used and cached blocks from then on."""


class TimelineColumns:
    """Change points, one an instant."""

    def __init__(self) -> None:
        self._old: list[Floats] = []
        self._rows: list[StateRow] = []

    def note(self, row: StateRow) -> None:
        """A change point, which replaces one of the same instant."""
        rows = self._rows
        if rows and rows[-1][0] == row[0]:
            rows[-1] = row
            return
        if len(rows) >= MANY_ROWS:
            self._old.append(self._columns(rows[:-1]))
            del rows[:-1]
        rows.append(row)

    def __len__(self) -> int:
        return sum(map(len, self._old)) + len(self._rows)

    def row(self, k: int) -> tuple[float, int, int]:
        """Time, running requests and used blocks of row `k`."""
        part = min(k // (MANY_ROWS - 1), len(self._old))
        k -= part * (MANY_ROWS - 1)
        time_s, running, _, used, _ = self._rows[k] if part == len(self._old) else self._old[part][k].tolist()
        return time_s, int(running), int(used)

    def timeline(self) -> Timeline:
        """The columns as arrays."""
        columns = np.concatenate([*self._old, self._columns(self._rows)])
        return Timeline(columns[:, 0].copy(), *(columns[:, k].astype(np.int64) for k in range(1, 5)))

    @staticmethod
    def _columns(rows: list[StateRow]) -> Floats:
        return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * 5).reshape(-1, 5)
