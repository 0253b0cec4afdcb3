"""LRU for all capacities at once, by stack distances of whole runs of blocks.

A request touches its path head first (`lru`) or tail first (`lru_tail`). Blocks of a path are used by every request
that uses a deeper one, so along a path the last use never gets more recent, and blocks last used by the same
request form runs. Within a run of a head-first LRU all stack distances are equal: a run hits as a
whole or not at all, and a hit never follows a miss, so block hits with and without the prefix rule are the same.

Source of stack distances: Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 9 (1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from kvsim.cache.curves.paths import Paths
from kvsim.workload.requests import Ints


@dataclass(frozen=True, slots=True)
class Reuses:
    """Every run of blocks that a request finds again, with the capacity that it takes.

    Attributes
    ----------
    request : int array [m]
        Row of the request.
    start, length : int arrays [m]
        Depth and number of the blocks of the run.
    reach : int array [m]
        Distinct blocks used since, the whole run included: `lru` finds the run from this capacity [blocks] on.
    newer : int array [m]
        Distinct blocks used since by `lru_tail`: it still has the first ``capacity - newer`` blocks of the run.
    """

    request: Ints
    start: Ints
    length: Ints
    reach: Ints
    newer: Ints


class _Fenwick:
    """Sums of the first values of a list that changes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._tree = [0] * (size + 1)

    def add(self, place: int, value: int) -> None:
        """Add to one value."""
        place += 1
        tree, size = self._tree, self.size
        while place <= size:
            tree[place] += value
            place += place & -place

    def before(self, place: int) -> int:
        """Sum of the values below a place."""
        tree, total = self._tree, 0
        while place > 0:
            total += tree[place]
            place &= place - 1
        return total


def lru_reuses(paths: Paths, order: Ints) -> Reuses:
    """Runs found again, in the order of requests.

    Parameters
    ----------
    paths : Paths
        Block paths.
    order : int array
        Rows in the order of time.

    Returns
    -------
    Reuses
        Sum of `Reuses.length` = blocks that an infinite cache finds.

    Notes
    -----
    Per chain a stack of (end, request that used it last) is kept, shallowest on top; a request replaces the top
    of the stack, so the work per request does not grow with its length. How many blocks each request was
    the last to use is kept in a Fenwick tree.
    """
    used = _Fenwick(len(order))
    last_used = [0] * len(order)
    stacks: list[list[tuple[int, int]]] = [[] for _ in paths.depth]
    found: list[tuple[int, int, int, int, int]] = []
    total = 0  # distinct blocks; those in hand count as used most recently, so that only new ones change it
    for place, row in enumerate(cast("list[int]", order.tolist())):
        for k in range(paths.offsets[row], paths.offsets[row + 1]):
            chain, end = paths.chain[k], paths.end[k]
            stack, at = stacks[chain], paths.depth[chain]
            while stack and at < end:
                high, stamp = stack[-1]
                length = min(high, end) - at
                reach = total - used.before(stamp)
                found.append((row, at, length, reach, reach - last_used[stamp]))
                used.add(stamp, -length)
                last_used[stamp] -= length
                last_used[place] += length
                at += length
                if high <= end:
                    stack.pop()
            total += end - at
            last_used[place] += end - at
            stack.append((end, place))
        used.add(place, last_used[place])
    columns = np.array(found, np.int64).reshape(-1, 5).T
    return Reuses(*columns)
