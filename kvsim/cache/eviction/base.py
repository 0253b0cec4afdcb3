"""What a policy is told, what it is asked, and the order that most of them have in common."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Name = tuple[int, int]
"""(group, prefix key): what a block holds."""

Rank = tuple[float, ...]
"""The least one is evicted first."""

NEVER = 1 << 62
"""The place in the future of what is not used again."""


class Future(Protocol):
    """What will be asked, and in which order: known to the offline bound only."""

    def next_use(self, key: int) -> int:
        """Place of the next request whose prompt has the block of that prefix key; `NEVER` if there is none."""
        ...

    def admitted(self, row: int) -> int:
        """A request has got what it found; returns its place."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may know of the engine that it works in.

    Attributes
    ----------
    num_blocks : int
        Blocks of the pool, the null block included.
    now_s : callable
        The engine's clock [s].
    session, priority : sequence of int
        Session tree and priority (lower is more urgent) of each request.
    recompute_s : callable
        Time [s] to compute a prompt of that many tokens again, alone.
    future : Future or None
        For the offline bound.
    """

    num_blocks: int
    now_s: Callable[[], float]
    session: Sequence[int]
    priority: Sequence[int]
    recompute_s: Callable[[int], float]
    future: Future | None = None


class Release(NamedTuple):
    """Who gives blocks back.

    Attributes
    ----------
    row : int
        The request.
    tokens, prefix_blocks : int
        The prefix that its blocks hold [tokens], and all blocks that hold it.
    num_blocks : int
        Blocks given back now.
    is_all, is_over : bool
        Whether it gives back all that it has; whether it has ended (else it was preempted).
    """

    row: int
    tokens: int
    prefix_blocks: int
    num_blocks: int
    is_all: bool
    is_over: bool


class Listener:
    """Hears everything that happens to blocks and cares for nothing: the pool's own order, LRU, decides."""

    def used(self, block: int, row: int) -> None:
        """A request has found this block; it refers to it already."""

    def releasing(self, release: Release | None) -> None:
        """From now on blocks are freed by this request; None: by nobody in particular (a transfer is over)."""

    def freed(self, block: int, name: Name) -> None:
        """Nobody refers to the block any more, but it can be found: it may be evicted."""

    def taken(self, block: int) -> None:
        """Somebody refers to the block again: it cannot be evicted."""

    def forgotten(self, block: int) -> None:
        """The block holds nothing findable any more."""

    def admitted(self, row: int) -> None:
        """A request has got all blocks that it found."""

    def ended(self, row: int) -> None:
        """A request has ended or was refused."""

    def expire(self) -> list[int]:
        """Time has passed: free blocks that hold nothing findable from now on."""
        return []

    def next_s(self) -> float:
        """When `expire` would change something [s]; inf = never."""
        return math.inf

    def num_reserved(self, row: int) -> int:
        """Free blocks that are not to be lost for the sake of this request's admission."""
        del row
        return 0


class Eviction(Listener, ABC):
    """A policy: it keeps the free blocks that hold something findable in the order in which they are to be lost."""

    @abstractmethod
    def evict(self) -> int:
        """The block to lose; it is a candidate no more. There is one."""


class Queue:
    """Blocks that can be lost, least rank first; among equals in the order in which they were put.

    ``num_put`` counts how often one was.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, int]] = []
        self._number: dict[int, int] = {}
        self.num_put = 0

    def __len__(self) -> int:
        """Blocks in it."""
        return len(self._number)

    def put(self, block: int, rank: Rank) -> None:
        """Put a block into the order, or to another place in it."""
        self.num_put += 1
        self._number[block] = self.num_put
        heapq.heappush(self._heap, (rank, self.num_put, block))
        if len(self._heap) > 2 * len(self._number) + 1000:
            self._heap = [entry for entry in self._heap if self._number.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def __contains__(self, block: int) -> bool:
        """Whether a block is in it."""
        return block in self._number

    def remove(self, block: int) -> None:
        """Take out a block that is in it."""
        del self._number[block]

    def discard(self, block: int) -> None:
        """Take out a block if it is in it."""
        self._number.pop(block, None)

    def pop(self) -> int:
        """Take out the least."""
        while True:
            _, number, block = heapq.heappop(self._heap)
            if self._number.get(block) == number:
                del self._number[block]
                return block


class Ranked(Eviction):
    """Least rank first; among equals in the order of release, as LRU.

    Attributes
    ----------
    release : Release or None
        Who frees blocks now.
    order : Queue
        Blocks that can be lost.
    """

    def __init__(self) -> None:
        self.release: Release | None = None
        self.order = Queue()
        self._ranks: dict[int, Rank] = {}

    @abstractmethod
    def rank(self, block: int, name: Name) -> Rank:
        """Rank of a block that a request gives back."""

    def releasing(self, release: Release | None) -> None:
        """Note who it is."""
        self.release = release

    def freed(self, block: int, name: Name) -> None:
        """Queue it; what a transfer gives back keeps the rank that it had."""
        if self.release is not None or block not in self._ranks:
            self._ranks[block] = self.rank(block, name)
        self.order.put(block, self._ranks[block])

    def taken(self, block: int) -> None:
        """Out of the order."""
        self.order.remove(block)

    def forgotten(self, block: int) -> None:
        """Its rank does not count any more."""
        self._ranks.pop(block, None)
        self.order.discard(block)

    def evict(self) -> int:
        """The least."""
        return self.order.pop()
