"""Belady's policy: evict the block whose next use lies furthest in the future.

It is the best that any policy with forced admission can do for single accesses, not for prefixes: a block behind a
missing one is worth nothing to a prefix cache, and Belady does not know it.

Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5 (1966).
"""

from __future__ import annotations

import heapq

import numpy as np

from kvsim.cache.curves.paths import Paths, Segments, next_uses
from kvsim.workload.requests import Ints


class _Part:
    """Cached blocks `lo` to `hi` of a segment that the request at place `use` needs next."""

    __slots__ = ("hi", "lo", "segment", "use")

    def __init__(self, segment: int, lo: int, hi: int, use: int) -> None:
        self.segment, self.lo, self.hi, self.use = segment, lo, hi, use


class _BeladyCache:
    """Cached parts in a heap, the furthest next use first (deeper blocks of a request are used later).

    Blocks that are never used again are the first victims and never hit, so they count as free room.
    """

    def __init__(self, capacity: int, cut: Segments, never: int) -> None:
        self.free, self.never = capacity, never
        self.parts: list[list[_Part]] = [[] for _ in cut.length]
        self._start: list[int] = cut.start.tolist()
        self._heap: list[tuple[int, int, int, _Part]] = []
        self._pushed = 0

    def leading(self, segment: int) -> int:
        """Cached blocks from the beginning of a segment."""
        at = 0
        for part in self.parts[segment]:
            if part.lo != at:
                break
            at = part.hi
        return at

    def access(self, segment: int, length: int, use: int) -> int:
        """Use the blocks of a segment in order, needed next by request `use`; returns how many of them hit."""
        at = hits = 0
        parts = self.parts[segment]
        while at < length:
            part = next((p for p in parts if p.hi > at), None) if parts else None
            if part is not None and part.lo == at:
                at = part.hi
                hits += part.hi - part.lo
                self._renew(part, use)
            else:
                stop = part.lo if part is not None else length
                at = self._insert(segment, at, stop, use) if use < self.never else self._pass(stop)
        return hits

    def _renew(self, part: _Part, use: int) -> None:
        if use < self.never:
            part.use = use
            self._push(part)
        else:
            self.free += part.hi - part.lo
            self._shrink(part, part.hi - part.lo)

    def _pass(self, stop: int) -> int:
        """Insert missing blocks that nobody needs again: they take the room of one block, which is free again."""
        if not self.free:
            self._shrink(self._furthest(), 1)
            self.free = 1
        return stop

    def _insert(self, segment: int, lo: int, hi: int, use: int) -> int:
        """Insert missing blocks, evicting one for each that has no room; returns where it stopped."""
        fits = min(self.free, hi - lo)
        self.free -= fits
        if not fits:
            victim = self._furthest()
            if (victim.use, self._start[victim.segment] + victim.lo) > (use, self._start[segment] + lo):
                fits = min(victim.hi - victim.lo, hi - lo)
                self._shrink(victim, fits)
            else:
                # The new blocks are needed last: each pushes out the one before it, and the last one stays.
                self._shrink(victim, 1)
                fits, lo = 1, hi - 1
        self._add(segment, lo, lo + fits, use)
        return lo + fits

    def _add(self, segment: int, lo: int, hi: int, use: int) -> None:
        parts = self.parts[segment]
        place = sum(other.hi <= lo for other in parts)
        if place and parts[place - 1].hi == lo and parts[place - 1].use == use:
            parts[place - 1].hi = hi
        else:
            part = _Part(segment, lo, hi, use)
            parts.insert(place, part)
            self._push(part)

    def _push(self, part: _Part) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (-part.use, -self._start[part.segment] - part.lo, self._pushed, part))

    def _furthest(self) -> _Part:
        while True:
            use, depth, _, part = self._heap[0]
            if part.lo < part.hi and part.use == -use and self._start[part.segment] + part.lo == -depth:
                return part
            heapq.heappop(self._heap)

    def _shrink(self, part: _Part, count: int) -> None:
        """Evict the deepest blocks of a part."""
        part.hi -= count
        if part.lo == part.hi:
            self.parts[part.segment].remove(part)


def belady_hits(paths: Paths, cut: Segments, order: Ints, capacities: list[int]) -> tuple[Ints, Ints]:
    """Hits of Belady's policy with forced admission.

    Parameters
    ----------
    paths, cut : Paths, Segments
        Block paths and their segments.
    order : int array
        Rows in the order of time.
    capacities : list of int
        Capacities [blocks], k of them, each >= 1.

    Returns
    -------
    prefix : int array [k, n]
        Leading blocks of each request found at its lookup.
    plain : int array [k]
        Hits of the accesses one by one.
    """
    offsets, uses = next_uses(paths, cut, order)
    prefix = np.zeros((len(capacities), len(paths)), np.int64)
    plain = np.zeros(len(capacities), np.int64)
    length = cut.length.tolist()
    caches = [_BeladyCache(c, cut, len(order)) for c in capacities]
    for place, row in enumerate(order.tolist()):
        segments = cut.of(paths, row).tolist()
        use = uses[offsets[place]:offsets[place + 1]].tolist()
        for k, cache in enumerate(caches):
            found = 0
            for segment in segments:
                leading = cache.leading(segment)
                found += leading
                if leading < length[segment]:
                    break
            prefix[k, row] = found
            plain[k] += sum(cache.access(s, length[s], u) for s, u in zip(segments, use, strict=True))
    return prefix, plain
