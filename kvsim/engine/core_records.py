"""What the fast engine writes down: records and timeline in columns, and the waiting queues."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvsim.cache.content_trie import ContentTrie, build_trie
from kvsim.engine.core_sequence import Sequence
from kvsim.engine.types import UNFINISHED, RunRecords, Timeline
from kvsim.workload.admission import SessionGate
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.requests import Requests, Workload

Rank = tuple[int, float, str, int]
"""(priority, arrival time, name, row): who goes first under the priority policy."""


RECENT = 1 << 16
"""Numbers of the timeline kept in a list, which grows faster than an array."""


class Incoming(Protocol):
    """Requests as an engine sees them come: from `kvsim.workload.arrivals.Arrivals`, or handed over one by one."""

    arrival_s: list[float]
    num_left: int
    until_s: float
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


class Waiting(Protocol):
    """Requests that wait, as rows until they have been at the head for the first time; `items` are all of them."""

    @property
    def items(self) -> Sized:
        """The container, in no particular order, for its length."""
        ...

    def add(self, row: int, rank: Rank) -> None:
        """A request arrives."""
        ...

    def put_back(self, seq: Sequence, rank: Rank) -> None:
        """A preempted request returns."""
        ...

    def first(self) -> Sequence | int:
        """The head of the queue."""
        ...

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        ...

    def pop(self) -> None:
        """Remove the head."""
        ...

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        ...


class FcfsWaiting:
    """In order of arrival; preempted requests return to the front."""

    def __init__(self) -> None:
        self.items: deque[Sequence | int] = deque()

    def add(self, row: int, rank: Rank) -> None:
        """A request arrives."""
        del rank
        self.items.append(row)

    def put_back(self, seq: Sequence, rank: Rank) -> None:
        """A preempted request returns."""
        del rank
        self.items.appendleft(seq)

    def first(self) -> Sequence | int:
        """The head of the queue."""
        return self.items[0]

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        self.items[0] = seq

    def pop(self) -> None:
        """Remove the head."""
        self.items.popleft()

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        return [item for item in self.items if isinstance(item, Sequence)]


class PriorityWaiting:
    """By (priority, arrival time, name); there is no front to return to."""

    def __init__(self) -> None:
        self.items: list[tuple[Rank, Sequence | int]] = []

    def add(self, row: int, rank: Rank) -> None:
        """A request arrives."""
        heapq.heappush(self.items, (rank, row))

    def put_back(self, seq: Sequence, rank: Rank) -> None:
        """A preempted request returns."""
        heapq.heappush(self.items, (rank, seq))

    def first(self) -> Sequence | int:
        """The head of the queue."""
        return self.items[0][1]

    def replace_first(self, seq: Sequence) -> None:
        """Put the sequence in place of its row at the head."""
        self.items[0] = (self.items[0][0], seq)

    def pop(self) -> None:
        """Remove the head."""
        heapq.heappop(self.items)

    def preempted(self) -> list[Sequence]:
        """Those that have been a sequence already."""
        return [item for _, item in self.items if isinstance(item, Sequence)]


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


class TimelineColumns:
    """Change points in columns; one row an instant."""

    def __init__(self) -> None:
        self._time_s = array("d")
        self._counts = array("q")
        self._recent: list[int] = []
        self._last_s = -math.inf

    def note(self, time_s: float, counts: tuple[int, int, int, int]) -> None:
        """Running, waiting, used and cached blocks from `time_s` on, replacing a row of the same instant."""
        recent = self._recent
        if time_s == self._last_s:
            recent[-4:] = counts
            return
        if len(recent) >= RECENT:
            self._counts.fromlist(recent)
            recent.clear()
        recent += counts
        self._time_s.append(time_s)
        self._last_s = time_s

    def __len__(self) -> int:
        return len(self._time_s)

    def row(self, k: int) -> tuple[float, int, int]:
        """Time, running requests and used blocks of row `k`."""
        at, flushed = 4 * k, len(self._counts)
        source, at = (self._counts, at) if at < flushed else (self._recent, at - flushed)
        return self._time_s[k], source[at], source[at + 2]

    def timeline(self) -> Timeline:
        """The columns as arrays."""
        counts = np.concatenate([np.array(part, np.int64) for part in (self._counts, self._recent)]).reshape(-1, 4)
        return Timeline(np.array(self._time_s), *(np.ascontiguousarray(counts[:, k]) for k in range(4)))
