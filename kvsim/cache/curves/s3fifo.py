"""S3-FIFO on single accesses, block by block: `kvsim.cache.eviction.s3fifo` without anybody who holds a block.

Source: J. Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, Algorithm 1.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import numpy as np

from kvsim.cache.curves.paths import Paths, Segments
from kvsim.workload.requests import Ints

MOST_USES = 3
SMALL_FRAC = 0.1


class _S3FifoCache:
    """Uses by cached block, two queues, and the names of what was lost from the small one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses: dict[int, int] = {}
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._least_small, self._num_ghosts = SMALL_FRAC * capacity, round((1 - SMALL_FRAC) * capacity)

    def access(self, blocks: Iterable[int]) -> int:
        """Use blocks one after the other; returns how many of them hit."""
        hits, uses = 0, self.uses
        for block in blocks:
            if block in uses:
                hits += 1
                uses[block] = min(uses[block] + 1, MOST_USES)
                continue
            if len(uses) >= self.capacity:
                self._evict()
            uses[block] = 0
            if block in self._ghosts:
                del self._ghosts[block]
                self._main.append(block)
            else:
                self._small.append(block)
        return hits

    def _evict(self) -> None:
        """Lose one block."""
        while self._small and (len(self._small) >= self._least_small or not self._main):
            block = self._small.popleft()
            if self.uses[block] > 1:
                self.uses[block] = 0
                self._main.append(block)
                continue
            del self.uses[block]
            self._ghosts[block] = None
            if len(self._ghosts) > self._num_ghosts:
                self._ghosts.popitem(last=False)
            return
        while self.uses[self._main[0]]:
            block = self._main.popleft()
            self.uses[block] -= 1
            self._main.append(block)
        del self.uses[self._main.popleft()]


def s3fifo_hits(paths: Paths, cut: Segments, order: Ints, capacity: int) -> tuple[Ints, int]:
    """Hits of an S3-FIFO cache of one capacity [blocks]; about 0.5 us an access.

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
    cache = _S3FifoCache(capacity)
    prefix = np.zeros(len(paths), np.int64)
    plain = 0
    first = (np.cumsum(cut.length) - cut.length).tolist()
    length = cut.length.tolist()
    for row in order.tolist():
        blocks = [block for s in cut.of(paths, row).tolist() for block in range(first[s], first[s] + length[s])]
        prefix[row] = next((n for n, block in enumerate(blocks) if block not in cache.uses), len(blocks))
        plain += cache.access(blocks)
    return prefix, plain
