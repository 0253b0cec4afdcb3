"""Which blocks of the pool are copied to the tier below, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvsim.cache.blocks import BlockPool
from kvsim.cache.tiers.level import Level

Copy = tuple[int, int]
"""(block it comes from, block it goes to)."""


class Computed(NamedTuple):
    """What one request has in the pool: blocks by position, an attention group each, `positions` of them computed."""

    row: int
    positions: int
    tables: Sequence[Mapping[int, int]]


class StepView(NamedTuple):
    """What a writer may see of a step that has just been planned.

    Attributes
    ----------
    scheduled : sequence of Computed
        Requests that compute in this step, with what they had computed before it: those that start for the first
        time, then those that went on, then those that start again after a preemption.
    checkpoints : sequence of list of int
        State blocks named in this step, a request each.
    preempted : sequence of int
        Rows of the requests preempted in this step.
    """

    scheduled: Sequence[Computed]
    checkpoints: Iterable[list[int]]
    preempted: Sequence[int]


class Writer(Protocol):
    """A write policy between the pool and the tier below."""

    def plan(self, step: StepView) -> list[Copy]:
        """Copies to start at the end of the step; both ends are held until `arrived`."""
        ...

    def finish(self, request: Computed) -> None:
        """A request has ended and is about to release its blocks."""
        ...

    def arrived(self, copies: Sequence[Copy]) -> None:
        """Copies of this writer are over."""
        ...


class EagerWriter:
    """Copies what has been computed: full attention blocks a step later, checkpoints at the end of their step.

    A request's blocks are offered once, in their order; a cursor for each attention group remembers how far. What
    does not fit is offered again in the request's next step; a checkpoint that does not fit is not.
    """

    def __init__(self, source: BlockPool, level: Level) -> None:
        self._source, self._level = source, level
        self._cursors: dict[int, list[int]] = {}
        self._under_way: set[int] = set()
        self._of_finished: list[Copy] = []

    def plan(self, step: StepView) -> list[Copy]:
        """Checkpoints of this step, then attention blocks computed before it, then what ended requests left."""
        copies: list[Copy] = []
        for blocks in step.checkpoints:
            for block in blocks:
                if self._wanted(block) and self._level.pool.num_free:
                    copies += self._take([block])
        for row in step.preempted:
            self._cursors.pop(row, None)
        for request in step.scheduled:
            copies += self._take(self._choose(request))
        copies += self._of_finished
        self._of_finished = []
        return copies

    def finish(self, request: Computed) -> None:
        """Its last blocks: room for them is taken now, the copy starts with the next step's."""
        self._of_finished += self._take(self._choose(request))
        del self._cursors[request.row]

    def arrived(self, copies: Sequence[Copy]) -> None:
        """These blocks may be offered again."""
        self._under_way.difference_update(source for source, _ in copies)

    def _choose(self, request: Computed) -> list[int]:
        """Blocks behind the cursors that are wanted, as many as there is room for; moves the cursors."""
        cursors = self._cursors.setdefault(request.row, [0] * len(request.tables))
        room = self._level.pool.num_free
        chosen: list[int] = []
        for group, table in enumerate(request.tables):
            if len(chosen) >= room:
                break
            while cursors[group] < request.positions:
                block = table[cursors[group]]
                if self._wanted(block):
                    if len(chosen) >= room:
                        break
                    chosen.append(block)
                cursors[group] += 1
        return chosen

    def _wanted(self, block: int) -> bool:
        """Whether the tier neither has the block's content nor is getting it from this very block."""
        name = self._source.name_of(block)
        return name is not None and block not in self._under_way and not self._level.has(name)

    def _take(self, blocks: list[int]) -> list[Copy]:
        """Hold `blocks` and as many of the tier's."""
        self._source.touch(blocks)
        self._under_way.update(blocks)
        return list(zip(blocks, self._level.pool.take(len(blocks)), strict=True))


class LazyWriter:
    """Copies free blocks before they are reused: walks along the free queue, so many blocks a step.

    The walk goes on behind the last block it saw, wherever that is in the queue by now, and starts again at the head
    when that block is in use.
    """

    def __init__(self, source: BlockPool, level: Level, blocks_per_step: int) -> None:
        self._source, self._level, self._reach = source, level, blocks_per_step
        self._last: int | None = None

    def plan(self, step: StepView) -> list[Copy]:
        """Named blocks among the next ones of the queue that the tier does not have."""
        del step
        if self._last is not None and not self._source.is_free(self._last):
            self._last = None
        room = self._level.pool.num_free
        chosen: list[int] = []
        for seen, block in enumerate(self._source.free_after(self._last)):
            if seen >= self._reach or len(chosen) >= room:
                break
            self._last = block
            name = self._source.name_of(block)
            if name is not None and not self._level.has(name):
                chosen.append(block)
        self._source.touch(chosen)
        return list(zip(chosen, self._level.pool.take(len(chosen)), strict=True))

    def finish(self, request: Computed) -> None:
        """Its blocks will be found in the free queue."""

    def arrived(self, copies: Sequence[Copy]) -> None:
        """They go to the queue's tail."""
