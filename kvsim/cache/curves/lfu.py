"""LFU with counts kept while a block is cached; among equal counts the least recently used goes first."""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np

from kvsim.cache.curves.paths import Paths, Segments
from kvsim.workload.requests import Ints


class _Part:
    """Cached blocks `lo` to `hi` of a segment with one count, last used one after the other."""

    __slots__ = ("count", "hi", "lo", "segment")

    def __init__(self, segment: int, lo: int, hi: int, count: int) -> None:
        self.segment, self.lo, self.hi, self.count = segment, lo, hi, count


class _LfuCache:
    """Cached parts by count, each count's in the order of last use."""

    def __init__(self, capacity: int, num_segments: int) -> None:
        self.free = capacity
        self.parts: list[list[_Part]] = [[] for _ in range(num_segments)]
        self._queues: dict[int, OrderedDict[_Part, None]] = {}
        self._counts: list[int] = []
        self._num_once = 0

    def leading(self, segment: int) -> int:
        """Cached blocks from the beginning of a segment."""
        at = 0
        for part in self.parts[segment]:
            if part.lo != at:
                break
            at = part.hi
        return at

    def access(self, segment: int, length: int) -> int:
        """Use the blocks of a segment in order; returns how many of them hit."""
        parts = self.parts[segment]
        at = hits = index = 0
        while at < length:
            if index < len(parts) and parts[index].lo == at:
                part = parts[index]
                at = part.hi
                hits += part.hi - part.lo
                self._promote(part)
                index += 1
            else:
                stop = parts[index].lo if index < len(parts) else length
                self._insert(segment, at, stop)
                # Inserting can evict parts of this segment, those just inserted too.
                at = stop
                index = sum(part.hi <= at for part in parts)
        return hits

    def _promote(self, part: _Part) -> None:
        queue = self._queues[part.count]
        del queue[part]
        if part.count == 1:
            self._num_once -= part.hi - part.lo
        part.count += 1
        self._queue(part.count)[part] = None

    def _insert(self, segment: int, lo: int, hi: int) -> None:
        """Insert missing blocks, evicting one for each that has no room."""
        evict = max(hi - lo - self.free, 0)
        self.free -= hi - lo - evict
        if evict and self._num_once + hi - lo == evict:
            # Nothing has been used only once: the first victim is taken among the others, the rest follow the queue.
            self._evict(1)
            evict -= 1
        part = _Part(segment, lo, hi, 1)
        parts = self.parts[segment]
        parts.insert(sum(other.hi <= lo for other in parts), part)
        self._queue(1)[part] = None
        self._num_once += hi - lo
        self._evict(evict)

    def _evict(self, count: int) -> None:
        """Drop blocks from the head of the lowest count's queue."""
        while count:
            lowest = self._counts[0]
            queue = self._queues[lowest]
            if not queue:
                heapq.heappop(self._counts)
                del self._queues[lowest]
                continue
            part = next(iter(queue))
            gone = min(count, part.hi - part.lo)
            part.lo += gone
            count -= gone
            if lowest == 1:
                self._num_once -= gone
            if part.lo == part.hi:
                del queue[part]
                self.parts[part.segment].remove(part)

    def _queue(self, count: int) -> OrderedDict[_Part, None]:
        queue = self._queues.get(count)
        if queue is None:
            queue = self._queues[count] = OrderedDict()
            heapq.heappush(self._counts, count)
        return queue


def lfu_hits(paths: Paths, cut: Segments, order: Ints, capacity: int) -> tuple[Ints, int]:
    """Hits of a least-frequently-used cache of one capacity [blocks].

    Parameters
    ----------
    paths, cut : Paths, Segments
        Block paths and their segments.
    order : int array
        Rows in the order of time.
    capacity : int
        Blocks, >= 1.

    Returns
    -------
    prefix : int array [n]
        Leading blocks of each request found at its lookup.
    plain : int
        Hits of the accesses one by one.
    """
    cache = _LfuCache(capacity, len(cut.length))
    prefix = np.zeros(len(paths), np.int64)
    length = cut.length.tolist()
    plain = 0
    for row in order.tolist():
        segments = cut.of(paths, row).tolist()
        found = 0
        for segment in segments:
            leading = cache.leading(segment)
            found += leading
            if leading < length[segment]:
                break
        prefix[row] = found
        for segment in segments:
            plain += cache.access(segment, length[segment])
    return prefix, plain
