"""An infinite cache in which a block can be used only some time after the request that brought it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import cast

import numpy as np

from kvsim.cache.curves.paths import Paths
from kvsim.workload.requests import Floats, Ints


def delayed_hits(paths: Paths, order: Ints, time_s: Floats, delay_s: float | None) -> Ints:
    """Leading blocks of each request that an infinite cache with a delay finds.

    Parameters
    ----------
    paths : Paths
        Block paths.
    order : int array
        Rows in the order of time.
    time_s : float array [n]
        Arrivals [s] by row, never falling along `order`.
    delay_s : float or None
        A block can be used from this long [s] after the arrival of the first request with it; None: by any request
        that arrives later than that one, but not at the same instant.

    Returns
    -------
    int array [n]
        Blocks.

    Notes
    -----
    What a server without limits and a fixed service time finds. Queueing can only lower it.

    Examples
    --------
    >>> twice = Paths(np.array([32, 32]), np.array([2, 2]), 16, [0, 1, 2], [0, 0], [2, 2], [0], 2)
    >>> for delay_s in (0.0, 5.0, 6.0, None):
    ...     print(delayed_hits(twice, np.array([0, 1]), np.array([0.0, 5.0]), delay_s))
    [0 2]
    [0 2]
    [0 0]
    [0 2]
    """
    found = np.zeros(len(paths), np.int64)
    ends: list[list[int]] = [[] for _ in paths.depth]
    ready: list[list[float]] = [[] for _ in paths.depth]
    find = bisect_left if delay_s is None else bisect_right
    for row in cast("list[int]", order.tolist()):
        now, visible = float(time_s[row]), True
        for k in range(paths.offsets[row], paths.offsets[row + 1]):
            chain, end = paths.chain[k], paths.end[k]
            if visible:
                steps = find(ready[chain], now)
                seen = min(ends[chain][steps - 1], end) if steps else paths.depth[chain]
                visible = seen == end
                found[row] = max(found[row], seen)
            if not ends[chain] or ends[chain][-1] < end:
                ends[chain].append(end)
                ready[chain].append(now + (delay_s or 0.0))
    return found
