"""Columns of requests: joining them, and rows of several entries each (an array of offsets beside one of values)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def offsets_of(counts: Sequence[int] | Ints) -> Ints:
    """Row offsets, one more than the rows, from the number of entries of each row.

    >>> offsets_of([2, 0, 1]).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))])


def take_ragged(offsets: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Offsets and values of some rows of a ragged array.

    >>> o, v = take_ragged(np.array([0, 2, 2, 3]), np.array([7, 8, 9]), np.array([2, 0]))
    >>> o.tolist(), v.tolist()
    ([0, 1, 3], [9, 7, 8])
    """
    counts = (offsets[1:] - offsets[:-1])[rows]
    taken = offsets_of(counts)
    index = np.arange(int(taken[-1])) - np.repeat(taken[:-1], counts) + np.repeat(offsets[:-1][rows], counts)
    return taken, values[index]


def join_ints(parts: Sequence[Ints]) -> Ints:
    """Integer columns one below the other; empty without any."""
    return np.concatenate([np.zeros(0, np.int64), *parts])


def join_floats(parts: Sequence[Floats]) -> Floats:
    """Columns of floats one below the other; empty without any."""
    return np.concatenate([np.zeros(0, np.float64), *parts])


def join_offsets(parts: Sequence[Ints]) -> Ints:
    """Row offsets of ragged columns whose values are one below the other.

    >>> join_offsets([np.array([0, 2, 2]), np.array([0, 1])]).tolist()
    [0, 2, 2, 3]
    """
    ends = accumulate([int(p[-1]) for p in parts], initial=0)
    return np.concatenate([np.zeros(1, np.int64), *[p[1:] + end for p, end in zip(parts, ends, strict=False)]])
