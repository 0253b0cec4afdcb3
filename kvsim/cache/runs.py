"""The block pool and prefix index of the fast engine: runs of blocks instead of blocks.

Equal answers to `kvsim.cache.blocks`, at a cost that does not depend on how long a prompt is. Three facts make it
exact: which physical block is handed out never matters, so nameless free blocks are a number; a request's blocks are
released together, last one first, so they are one run in the free queue, eaten from its end; and of several copies of
a block the oldest is found, so a chain keeps one *primary* copy of each of its blocks and its younger copies aside.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Protocol

from kvsim.cache.content_trie import Path
from kvsim.errors import SimulationError

PRIMARY, SPARE, LOOSE = 0, 1, -1
"""Which copy of its blocks a run is: the one that lookups find, a younger one, or one that nobody can ask for."""

MOST_BLOCKS = 1 << 32
"""More than a prompt has blocks: a checkpoint's key is its chain's number x this + its end block."""


class Owner(Protocol):
    """Who is told that blocks of a run have been eaten."""

    def evict(self, run: Run, new_hi: int) -> None:
        """The run ends at `new_hi` from now on."""
        ...


class Run:
    """Blocks `lo` to `hi` of a chain in one physical copy that is referred to, and queues, as a whole.

    `layer` says which copy it is. `rest` is the upper part of the last split.
    """

    __slots__ = ("after", "before", "chain", "hi", "index", "layer", "lo", "refs", "rest")

    def __init__(self, index: Owner | None, chain: int, lo: int, hi: int, refs: int) -> None:
        self.index, self.chain, self.lo, self.hi, self.refs = index, chain, lo, hi, refs
        self.layer = PRIMARY
        self.before = self.after = self
        self.rest: Run | None = None


Held = list[tuple[Run, int]]
"""Runs that a request refers to, root first, each with its end when it was taken (it may have been split since)."""


class FreePool:
    """Free blocks: a number of nameless ones, then runs in the order in which they will be eaten.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block not counted.

    Attributes
    ----------
    num_free, num_nameless : int
        Free blocks, and those of them that hold nothing findable.
    num_owed : int
        Blocks that were handed out, but not yet eaten from the runs: whoever looks at what is cached calls `pay` first.
    num_touched : int
        Runs looked at so far (a deterministic measure of the work done).

    Examples
    --------
    >>> pool = FreePool(10)
    >>> pool.take(4)
    >>> pool.num_free, pool.num_cached
    (6, 0)
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.num_free = self.num_nameless = num_blocks
        self.num_owed = self.num_touched = self._num_paid = 0
        self._ends = Run(None, -1, 0, 0, 0)

    @property
    def num_cached(self) -> int:
        """Blocks that are free and can still be found."""
        return self.num_free - self.num_nameless

    @property
    def num_evicted(self) -> int:
        """Findable blocks handed out so far."""
        return self._num_paid + self.num_owed

    def take(self, count: int) -> None:
        """Hand out `count` blocks from the head of the queue."""
        self.num_free = num_free = self.num_free - count
        left = self.num_nameless - count
        if left >= 0:
            self.num_nameless = left
            return
        if num_free < 0:
            raise SimulationError(f"block pool: {-num_free} more blocks taken than there are")
        self.num_nameless = 0
        self.num_owed -= left

    def pay(self) -> None:
        """Eat what has been handed out, from the head of the queue.

        Runs are eaten in the order in which they were queued, whenever it is done; late, a run is touched once for many
        calls of `take`.
        """
        ends, left, self.num_owed = self._ends, -self.num_owed, 0
        self._num_paid -= left
        touched = 0
        while left < 0:
            run = ends.after
            touched += 1
            new_hi = run.lo
            left += run.hi - new_hi
            if left > 0:
                new_hi += left
            else:
                ends.after = after = run.after
                after.before = ends
            if run.layer == LOOSE:
                run.hi = new_hi
            elif run.index is None:
                raise SimulationError("block pool: more runs eaten than were queued")
            else:
                run.index.evict(run, new_hi)
        self.num_touched += touched

    def give_nameless(self, count: int) -> None:
        """Take back `count` blocks that hold nothing findable."""
        self.num_free += count
        self.num_nameless += count

    def push(self, run: Run) -> None:
        """Queue a run that nobody refers to any more."""
        self.num_free += run.hi - run.lo
        last = self._ends.before
        run.before, run.after = last, self._ends
        last.after = self._ends.before = run

    def drop(self, count: int) -> None:
        """Queue `count` blocks that nobody will ever ask for again, as one run with such ones before them."""
        last = self._ends.before
        if last.layer == LOOSE:
            self.num_free += count
            last.hi += count
        else:
            run = Run(None, -1, 0, count, 0)
            run.layer = LOOSE
            self.num_touched += 1
            self.push(run)

    def pull(self, run: Run) -> None:
        """Take a run out of the queue because somebody refers to it again."""
        self.num_free -= run.hi - run.lo
        run.before.after = after = run.after
        after.before = run.before

    def check(self, num_used: int | None = None) -> None:
        """Raise `SimulationError` unless all blocks are used or free; `num_used` is a count made elsewhere."""
        self.pay()
        queued, run = 0, self._ends.after
        while run is not self._ends:
            queued += run.hi - run.lo
            run = run.after
        used = self.num_blocks - self.num_free
        if queued != self.num_cached or used < 0 or num_used not in (None, used):
            raise SimulationError(f"block pool: {used} used (counted {num_used}), {self.num_cached} cached "
                                  f"(counted {queued}) of {self.num_blocks} blocks")


def unlink(run: Run) -> None:
    """Cut a run out of the queue it is in."""
    run.before.after = run.after
    run.after.before = run.before


def link_before(run: Run, other: Run) -> None:
    """Put a run into the queue just before another one."""
    run.before, run.after = other.before, other
    other.before.after = other.before = run


class RunIndex:
    """What one attention group has in the pool, by chain.

    Parameters
    ----------
    pool : FreePool
        The pool that all groups share.
    """

    def __init__(self, pool: FreePool) -> None:
        self.pool = pool
        self._primary: dict[int, list[Run]] = {}
        self._spare: dict[int, list[Run]] = {}

    def leading(self, path: Path, limit: int) -> tuple[Held, int]:
        """Runs of the longest cached prefix of a path, at most `limit` blocks, and its length [blocks]."""
        found: Held = []
        at, primary, pool = 0, self._primary, self.pool
        if pool.num_owed and path and path[0][0] in primary:
            pool.pay()
        for chain, end in path:
            runs = primary.get(chain)
            if runs is None or at >= limit:
                break
            if end > limit:
                end = limit
            for run in runs:
                if run.lo != at:
                    break
                at = run.hi
                if at >= end:
                    at = end
                    found.append((run, end))
                    break
                found.append((run, at))
            if at < end:
                break
        pool.num_touched += len(found)
        return found, at

    def hold(self, found: Held) -> None:
        """Refer to the runs of a lookup, splitting the last one where the hit ends."""
        for run, end in found:
            if end < run.hi:
                self._split(run, end)
            if not run.refs:
                self.pool.pull(run)
            run.refs += 1

    def add(self, held: Held, chain: int, lo: int, hi: int) -> None:
        """Make new blocks, referred to by one request, findable; append them to what it holds."""
        runs = self._primary.get(chain)
        if runs is not None and self.pool.num_owed:
            self.pool.pay()
            runs = self._primary.get(chain)
        if runs is None:
            run = Run(self, chain, lo, hi, 1)
            self._primary[chain] = [run]
            held.append((run, hi))
        elif runs[-1].hi <= lo:
            run = Run(self, chain, lo, hi, 1)
            runs.append(run)
            held.append((run, hi))
        else:
            self._add_between(held, runs, lo, hi)

    def add_loose(self, held: Held, chain: int, lo: int, hi: int) -> None:
        """Append new blocks that nobody will ever ask for again."""
        run = Run(self, chain, lo, hi, 1)
        run.layer = LOOSE
        held.append((run, hi))

    def knows(self, chain: int) -> bool:
        """Whether any block of a chain can be found."""
        if self.pool.num_owed and chain in self._primary:
            self.pool.pay()
        return chain in self._primary

    def release(self, held: Held) -> None:
        """Refer once less to what a request held; what becomes free queues up last block first."""
        queued: Run | None = None
        pool = self.pool
        if pool.num_owed and self._spare:
            pool.pay()
        pool.num_touched += len(held)
        for run, end in reversed(held):
            if run.hi < end:
                for part in reversed(parts(run, end)):
                    part.refs -= 1
                    if not part.refs:
                        queued = self._queue(part, queued)
            else:
                run.refs = refs = run.refs - 1
                if not refs:
                    queued = self._queue(run, queued)

    def _queue(self, run: Run, queued: Run | None) -> Run:
        """Queue a run that nobody refers to any more, as one with the blocks behind it that were queued just before."""
        if (queued is not None and queued.lo == run.hi and queued.chain == run.chain
                and queued.layer == run.layer == PRIMARY):
            queued.lo = run.lo
            self.pool.num_free += run.hi - run.lo
            self._forget(run)
            return queued
        self.pool.push(run)
        return run

    def evict(self, run: Run, new_hi: int) -> None:
        """Forget the blocks of a run from `new_hi` on; a younger copy takes their place."""
        old_hi, run.hi = run.hi, new_hi
        if run.layer == PRIMARY:
            if new_hi == run.lo:
                self._forget(run)
            if run.chain in self._spare:
                self._promote(run.chain, new_hi, old_hi)
        elif run.layer == SPARE and new_hi == run.lo:
            self._forget_spare(run)

    def _add_between(self, held: Held, runs: list[Run], lo: int, hi: int) -> None:
        """`add` where some of the blocks have an older copy: those become spare."""
        chain, at = runs[0].chain, lo
        for run in [run for run in runs if run.hi > lo and run.lo < hi]:
            if run.lo > at:
                self._add_piece(held, Run(self, chain, at, run.lo, 1), PRIMARY)
                at = run.lo
            end = min(run.hi, hi)
            last = held[-1][0] if held else None
            if last is not None and last.layer == SPARE and last.hi == at and last.chain == chain and at > lo:
                last.hi = end
                held[-1] = (last, end)
            else:
                self._add_piece(held, Run(self, chain, at, end, 1), SPARE)
            at = end
        if at < hi:
            self._add_piece(held, Run(self, chain, at, hi, 1), PRIMARY)

    def _add_piece(self, held: Held, run: Run, layer: int) -> None:
        run.layer = layer
        if layer == SPARE:
            self._spare.setdefault(run.chain, []).append(run)
        else:
            self._insert(run)
        held.append((run, run.hi))

    def _insert(self, run: Run) -> None:
        """Put a run among the primary ones of its chain, which are in the order of their blocks."""
        runs = self._primary.setdefault(run.chain, [])
        runs.insert(bisect_right([other.lo for other in runs], run.lo), run)

    def _forget(self, run: Run) -> None:
        runs = self._primary[run.chain]
        if len(runs) == 1:
            del self._primary[run.chain]
        else:
            runs.remove(run)

    def _forget_spare(self, run: Run) -> None:
        runs = self._spare[run.chain]
        if len(runs) == 1:
            del self._spare[run.chain]
        else:
            runs.remove(run)

    def _split(self, run: Run, at: int) -> Run:
        """Cut a run in two at a block; the new upper part queues just before the lower one."""
        upper = Run(self, run.chain, at, run.hi, run.refs)
        upper.layer, upper.rest = run.layer, run.rest
        run.hi, run.rest = at, upper
        runs = (self._primary if run.layer == PRIMARY else self._spare)[run.chain]
        runs.insert(runs.index(run) + 1, upper)
        if not run.refs:
            link_before(upper, run)
        return upper

    def _promote(self, chain: int, lo: int, hi: int) -> None:
        """Let the oldest spare copies of blocks `lo` to `hi` be found from now on."""
        for run in self._spare.get(chain, ()):
            start, end = max(lo, run.lo), min(hi, run.hi)
            if start < end:
                if end < run.hi:
                    self._split(run, end)
                self._make_primary(self._split(run, start) if run.lo < start else run)
                if lo < start:
                    self._promote(chain, lo, start)
                if end < hi:
                    self._promote(chain, end, hi)
                return

    def _make_primary(self, run: Run) -> None:
        """Move a spare run to the primary ones, or into the run above it if they queue as one."""
        self._forget_spare(run)
        upper = run.before
        if not run.refs and upper.chain == run.chain and upper.lo == run.hi and upper.index is self \
                and upper.layer == PRIMARY:
            upper.lo = run.lo
            unlink(run)
        else:
            run.layer = PRIMARY
            self._insert(run)


def parts(run: Run, end: int) -> list[Run]:
    """The runs that a run held up to block `end` has been split into since, lowest first."""
    found = [run]
    while run.hi < end:
        if run.rest is None:
            raise SimulationError("prefix index: a held run has lost a part")
        run = run.rest
        found.append(run)
    return found


class CheckpointIndex(RunIndex):
    """State checkpoints in the pool, by chain and end block: a run of one block in each of the state groups.

    The first group's block is the topmost, since it is the first to be released, queued and eaten. A checkpoint can be
    resumed while blocks of all groups are there, of one copy or of several.

    Parameters
    ----------
    pool : FreePool
        The pool that all groups share.
    num_groups : int
        State groups, >= 1.
    """

    def __init__(self, pool: FreePool, num_groups: int) -> None:
        super().__init__(pool)
        self.num_groups = num_groups
        self._ends: dict[int, list[int]] = {}

    def last(self, path: Path, limit: int) -> tuple[int, Held]:
        """End block of the longest prefix, at most `limit` blocks, that all groups can resume; and its blocks."""
        if self.pool.num_owed:
            self.pool.pay()
        num_groups = self.num_groups
        for chain, end in reversed(path):
            ends = self._ends.get(chain)
            if ends is None:
                continue
            for k in range(bisect_right(ends, min(end, limit)) - 1, -1, -1):
                found, length = self.leading([(chain * MOST_BLOCKS + ends[k], num_groups)], num_groups)
                if length == num_groups:
                    return ends[k], found
        return 0, []

    def write(self, chain: int, end: int) -> Held:
        """A new checkpoint after block `end` of a chain, referred to by the request that wrote it."""
        if self.pool.num_owed:
            self.pool.pay()
        key = chain * MOST_BLOCKS + end
        if key not in self._primary:
            insort(self._ends.setdefault(chain, []), end)
        held: Held = []
        self.add(held, key, 0, self.num_groups)
        return held

    def release_by_group(self, checkpoints: list[Held]) -> None:
        """Refer once less to several checkpoints, group after group, in the given order."""
        for blocks in zip(*[self._singles(held) for held in checkpoints], strict=True):
            for block in blocks:
                self.release([block])

    def evict(self, run: Run, new_hi: int) -> None:
        """Forget the blocks of a checkpoint from `new_hi` on; a younger copy takes their place."""
        super().evict(run, new_hi)
        if run.chain not in self._primary:
            chain, end = divmod(run.chain, MOST_BLOCKS)
            ends = self._ends[chain]
            ends.remove(end)
            if not ends:
                del self._ends[chain]

    def _singles(self, held: Held) -> Held:
        """The blocks of a checkpoint one by one, the first group's first."""
        found: Held = []
        for run, end in reversed(held):
            for part in reversed(parts(run, end)):
                while part.hi - part.lo > 1:
                    upper = self._split(part, part.hi - 1)
                    found.append((upper, upper.hi))
                found.append((part, part.hi))
        return found
