"""FIFO for several capacities at once, by whole segments.

A block is resident while fewer than the capacity's number of blocks have been inserted after it. The blocks of a
segment are inserted together, so they have consecutive numbers: when its first block misses, the insertion pushes
out the second, and so on. A segment hits as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.curves.paths import Paths, Segments
from kvsim.workload.requests import Ints

Flags = NDArray[np.bool_]


def fifo_hits(paths: Paths, cut: Segments, order: Ints, capacities: Sequence[int]) -> tuple[Ints, Ints]:
    """Hits of a first-in first-out cache.

    Parameters
    ----------
    paths, cut : Paths, Segments
        Block paths and their segments.
    order : int array
        Rows in the order of time.
    capacities : sequence of int
        Capacities [blocks], k of them.

    Returns
    -------
    prefix : int array [k, n]
        Leading blocks of each request found at its lookup.
    plain : int array [k]
        Hits of the accesses one by one.
    """
    capacity = np.array(capacities, np.int64)[:, None]
    prefix = np.zeros((len(capacities), len(paths)), np.int64)
    missed = np.zeros(len(capacities), np.int64)
    inserted = np.zeros_like(capacity)
    number = np.full((len(capacities), len(cut.length)), -2**62, np.int64)
    for row in order.tolist():
        segments = cut.of(paths, row)
        mine = number[:, segments]
        miss = mine <= inserted - capacity
        if not miss.any():
            prefix[:, row] = paths.blocks[row]
            continue
        prefix[:, row] = np.where(miss.any(axis=1), cut.start[segments[miss.argmax(axis=1)]], paths.blocks[row])
        length = cut.length[segments]
        miss, before = _settle(mine, length, miss, inserted - capacity)
        number[:, segments] = np.where(miss, inserted + before + 1, mine)
        new = (miss * length).sum(axis=1)
        inserted += new[:, None]
        missed += new
    return prefix, paths.blocks.sum() - missed


def _settle(number: Ints, length: Ints, miss: Flags, oldest: Ints) -> tuple[Flags, Ints]:
    """Which segments miss once the insertions of the request itself are counted, and insertions before each."""
    while True:
        size = miss * length
        before = size.cumsum(axis=1) - size
        more = number <= oldest + before
        if np.array_equal(more, miss):
            return miss, before
        miss = more
