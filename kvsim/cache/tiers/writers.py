"""Write policies: which blocks of one level are copied to the level below, and when.

A writer is told of steps, of requests that end and of blocks that arrive above; it holds both ends of a copy (the
source against reuse, the target as room taken) until the copy has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvsim.cache.blocks import BlockPool, Name
from kvsim.cache.tiers.level import Copy, Level


class Computed(NamedTuple):
    """What one request has in the pool.

    Attributes
    ----------
    row : int
        The request.
    positions, prompt_positions : int
        Leading positions computed before the step (at its end: all), and those of the prompt alone.
    tables : sequence of mapping
        Blocks by position, an attention group each.
    resumed_from : sequence of int
        State blocks of the checkpoint that it starts on in this step.
    """

    row: int
    positions: int
    prompt_positions: int
    tables: Sequence[Mapping[int, int]]
    resumed_from: Sequence[int] = ()


class StepView(NamedTuple):
    """What a writer may see of a step that has just been planned.

    Attributes
    ----------
    scheduled : sequence of Computed
        Requests that compute in this step: those that start for the first time, then those that go on, then those
        that start again after a preemption.
    checkpoints : iterable of list of int
        State blocks named in this step, a request each.
    preempted : sequence of int
        Rows of the requests preempted in this step.
    """

    scheduled: Sequence[Computed]
    checkpoints: Iterable[list[int]]
    preempted: Sequence[int]


class Writer(Protocol):
    """A write policy between two levels."""

    def plan(self, step: StepView) -> list[Copy]:
        """Copies to start at the end of the step."""
        ...

    def finish(self, request: Computed) -> None:
        """A request has ended and is about to release its blocks."""
        ...

    def offer(self, blocks: Sequence[int]) -> None:
        """Blocks of the level above have arrived there, or have been loaded from it."""
        ...

    def arrived(self, copies: Sequence[Copy]) -> None:
        """Copies of this writer are over."""
        ...

    def withdraw(self) -> Sequence[Copy]:
        """Copies that were to start with the next step, and never will."""
        ...


class NoWriter:
    """Writes nothing; the base of writers that do not care for every kind of news."""

    def plan(self, step: StepView) -> list[Copy]:
        """Nothing."""
        del step
        return []

    def finish(self, request: Computed) -> None:
        """Not of interest."""

    def offer(self, blocks: Sequence[int]) -> None:
        """Not of interest."""

    def arrived(self, copies: Sequence[Copy]) -> None:
        """Not of interest."""

    def withdraw(self) -> Sequence[Copy]:
        """None."""
        return ()


class _OfferWriter(NoWriter):
    """A writer that takes blocks offered to it often enough."""

    def __init__(self, source: BlockPool, level: Level, threshold: int) -> None:
        self._source, self._level, self._threshold = source, level, threshold
        self._offers: Counter[Name] = Counter()
        self._under_way: set[int] = set()

    def arrived(self, copies: Sequence[Copy]) -> None:
        """These blocks may be offered again."""
        self._under_way.difference_update(copy.source for copy in copies if copy.source is not None)

    def _wanted(self, block: int) -> bool:
        """Whether the level lacks the block's content, does not get it from this block, and it was offered enough."""
        name = self._source.name_of(block)
        if name is None or block in self._under_way or self._level.has(name):
            return False
        if self._threshold > 1:
            self._offers[name] += 1
            return self._offers[name] >= self._threshold
        return True

    def _take(self, blocks: list[int]) -> list[Copy]:
        """Hold `blocks` and as many of the level's."""
        self._under_way.update(blocks)
        return hold(self._source, self._level, blocks)

    def _take_each(self, blocks: Iterable[int]) -> list[Copy]:
        """Those of `blocks` that are wanted and fit, one after the other."""
        return [copy for block in blocks if self._wanted(block) and self._level.room for copy in self._take([block])]


class RequestWriter(_OfferWriter):
    """From the pool, what requests have computed: attention blocks a step later, checkpoints at the end of their step.

    A request's blocks are offered once, in their order; a cursor for each attention group remembers how far. What
    does not fit is offered again in the request's next step; a checkpoint that does not fit is not.
    """

    def __init__(self, source: BlockPool, level: Level, threshold: int) -> None:
        super().__init__(source, level, threshold)
        self._cursors: dict[int, list[int]] = {}
        self._of_finished: list[Copy] = []

    def plan(self, step: StepView) -> list[Copy]:
        """Checkpoints of this step, then attention blocks computed before it, then what ended requests left."""
        copies = [copy for blocks in step.checkpoints for copy in self._take_each(blocks)]
        for row in step.preempted:
            self._cursors.pop(row, None)
        for request in step.scheduled:
            if self._threshold > 1:
                copies += self._take_each(request.resumed_from)
            copies += self._take(self._choose(request))
        copies += self._of_finished
        self._of_finished = []
        return copies

    def finish(self, request: Computed) -> None:
        """Its last blocks: room for them is taken now, the copy starts with the next step's."""
        self._of_finished += self._take(self._choose(request))
        del self._cursors[request.row]

    def withdraw(self) -> Sequence[Copy]:
        """What ended requests left."""
        return self._of_finished

    def _choose(self, request: Computed) -> list[int]:
        """Blocks behind the cursors that are wanted, as many as there is room for; moves the cursors."""
        cursors = self._cursors.setdefault(request.row, [0] * len(request.tables))
        outputs = self._level.config.stores_outputs
        end = request.positions if outputs else min(request.positions, request.prompt_positions)
        room = self._level.room
        chosen: list[int] = []
        for group, table in enumerate(request.tables):
            if len(chosen) >= room:
                break
            while cursors[group] < end:
                block = table[cursors[group]]
                if self._wanted(block):
                    if len(chosen) >= room:
                        break
                    chosen.append(block)
                cursors[group] += 1
        return chosen


class ArrivalWriter(_OfferWriter):
    """From tier to tier, what arrives above or is loaded from there; what does not fit is not offered again."""

    def __init__(self, source: BlockPool, level: Level, threshold: int) -> None:
        super().__init__(source, level, threshold)
        self._copies: list[Copy] = []

    def offer(self, blocks: Sequence[int]) -> None:
        """Take what is wanted."""
        self._copies += self._take_each(blocks)

    def plan(self, step: StepView) -> list[Copy]:
        """What has been taken since the last step."""
        del step
        copies, self._copies = self._copies, []
        return copies

    def withdraw(self) -> Sequence[Copy]:
        """What has been taken since the last step."""
        return self._copies


class LazyWriter(NoWriter):
    """Free blocks before they are reused: walks along the free queue above, so many blocks a step.

    The walk goes on behind the last block it saw, wherever that is in the queue by now, and starts again at the head
    when that block is in use.
    """

    def __init__(self, source: BlockPool, level: Level, blocks_per_step: int) -> None:
        self._source, self._level, self._reach = source, level, blocks_per_step
        self._last: int | None = None

    def plan(self, step: StepView) -> list[Copy]:
        """Named blocks among the next ones of the queue that the level does not have."""
        del step
        if self._last is not None and not self._source.is_free(self._last):
            self._last = None
        room = self._level.room
        chosen: list[int] = []
        for seen, block in enumerate(self._source.free_after(self._last)):
            if seen >= self._reach or len(chosen) >= room:
                break
            self._last = block
            name = self._source.name_of(block)
            if name is not None and not self._level.has(name):
                chosen.append(block)
        return hold(self._source, self._level, chosen)


class EvictionWriter(NoWriter):
    """What is evicted above, when its last block there is taken for something else.

    The block is reused at once, as if its content were buffered; only the link is charged.
    """

    def __init__(self, source: BlockPool, level: Level) -> None:
        self._level = level
        self._copies: list[Copy] = []
        self._under_way: set[Name] = set()
        source.on_evict = self._evicted

    def plan(self, step: StepView) -> list[Copy]:
        """What has been evicted since the last step."""
        del step
        copies, self._copies = self._copies, []
        return copies

    def arrived(self, copies: Sequence[Copy]) -> None:
        """These are not under way any more."""
        self._under_way.difference_update(copy.name for copy in copies)

    def _evicted(self, name: Name) -> None:
        if self._level.room and name not in self._under_way and not self._level.has(name):
            self._under_way.add(name)
            self._copies.append(Copy(name, None, self._level.pool.take(1)[0]))


def hold(source: BlockPool, level: Level, blocks: Sequence[int]) -> list[Copy]:
    """Copies of named blocks, both ends held."""
    source.touch(blocks)
    names = [name for name in map(source.name_of, blocks) if name is not None]
    targets = level.pool.take(len(blocks))
    return [Copy(*ends) for ends in zip(names, blocks, targets, strict=True)]


def make_writer(source: BlockPool, level: Level, from_pool: bool, scan_blocks: int) -> Writer:
    """The writer that a tier's configuration asks for.

    Parameters
    ----------
    source : BlockPool
        The level above.
    level : Level
        The tier to write to.
    from_pool : bool
        Whether the level above is the pool that requests compute in.
    scan_blocks : int
        Free blocks that lazy writing looks at in a step.
    """
    write = level.config.write
    if write == "lazy":
        return LazyWriter(source, level, scan_blocks)
    if write == "on-eviction":
        return EvictionWriter(source, level)
    if write == "none":
        return NoWriter()
    threshold = level.config.reuse_threshold if write == "on-reuse" else 1
    return RequestWriter(source, level, threshold) if from_pool else ArrivalWriter(source, level, threshold)
