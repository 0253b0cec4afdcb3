"""How many replicas there were in a window, where they come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.result import ClusterRun, Spans
from kvsim.report.cost import Scaling, ScalingCost, Share
from kvsim.report.metrics import Window


def scaling_of(done: ClusterRun, window: Window, counts: Sequence[int]) -> Scaling:
    """Replicas of each group that are paid for in a window, and those that a perfect autoscaler would have had.

    Parameters
    ----------
    done : ClusterRun
        A run with an autoscaler.
    window : Window
        Measured part; nothing is known of an empty one.
    counts : sequence of int
        Replicas of each group, in the order in which they are started.
    """
    if window.duration_s <= 0:
        return Scaling((), ())
    since_s, wanted = done.needed()
    length = np.diff(np.append(np.clip(since_s, window.start_s, window.end_s), window.end_s))
    parts = {int(k): float(length[wanted == k].sum()) / window.duration_s for k in np.unique(wanted[length > 0])}
    return Scaling(paid_shares(done.paid_s, window, counts),
                   tuple((part, first_replicas(k, counts)) for k, part in parts.items()))


def first_replicas(count: int, counts: Sequence[int]) -> tuple[int, ...]:
    """The first `count` replicas by group.

    >>> [first_replicas(n, (2, 3)) for n in (1, 3, 5)]
    [(1, 0), (2, 1), (2, 3)]
    """
    before = np.cumsum([0, *counts[:-1]]).tolist()
    return tuple(min(max(count - begin, 0), size) for begin, size in zip(before, counts, strict=True))


def paid_shares(paid_s: Sequence[Spans], window: Window, counts: Sequence[int]) -> tuple[Share, ...]:
    """Parts of a window by how many replicas of each group are paid for.

    >>> paid_shares((((0.0, 9.0),), ((2.0, 4.0), (7.0, 9.0))), Window(0.0, 8.0), (1, 1))
    ((0.625, (1, 0)), (0.375, (1, 1)))
    """
    times = np.unique(np.clip([window.start_s, window.end_s, *_ends(paid_s)], window.start_s, window.end_s))
    there = np.zeros((len(paid_s), len(times) - 1), np.int64)
    for row, spans in zip(there, paid_s, strict=True):
        for begin_s, stop_s in spans:
            row += (times[:-1] >= begin_s) & (times[:-1] < stop_s)
    groups: NDArray[np.int64] = np.add.reduceat(there, np.cumsum([0, *counts[:-1]]), axis=0)
    found: dict[tuple[int, ...], float] = {}
    for state, length in zip(groups.T.tolist(), np.diff(times).tolist(), strict=True):
        found[tuple(state)] = found.get(tuple(state), 0.0) + length / window.duration_s
    return tuple((part, state) for state, part in found.items())


def _ends(paid_s: Sequence[Spans]) -> Iterable[float]:
    for spans in paid_s:
        for span in spans:
            yield from span


def scaling_text(found: ScalingCost) -> str:
    """What autoscaling does to the bill, as one line."""
    on_demand, reserved = ("" if found.billing == name else ", not billed" for name in ("on_demand", "reserved"))
    return (f"autoscaling: ${found.on_demand_usd_per_hour:,.2f} an hour for the {found.paid_replicas:.2f} replicas up "
            f"or starting{on_demand}; ${found.reserved_usd_per_hour:,.2f} for all {found.num_replicas:g}{reserved}; a "
            f"perfect autoscaler pays ${found.perfect_usd_per_hour:,.2f} for {found.needed_replicas:.2f}")
