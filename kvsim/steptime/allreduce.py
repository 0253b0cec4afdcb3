"""How long a collective takes: measured points joined by straight lines, or latency + bytes / bandwidth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvsim.profiles.engine_profile import Collectives, best_placed
from kvsim.profiles.hardware import GpuProfile


@dataclass(frozen=True, slots=True)
class Curve:
    """Time [s] over message size [bytes], ascending; linear between points and beyond the last."""

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    def seconds(self, num_bytes: float) -> float:
        """Time of a message of `num_bytes`; at most the first point's below it.

        Examples
        --------
        >>> Curve((0.0, 100.0), (1.0, 3.0)).seconds(200)
        5.0
        """
        if num_bytes <= self.sizes[0]:
            return self.times[0]
        right = min(bisect_right(self.sizes, num_bytes), len(self.sizes) - 1)
        left = right - 1
        slope = (self.times[right] - self.times[left]) / (self.sizes[right] - self.sizes[left])
        return self.times[left] + slope * (num_bytes - self.sizes[left])


def measured_curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Curve through (bytes, s) points; a larger message never takes less time than a smaller one.

    Notes
    -----
    Benchmarks switch algorithms between sizes, so single points can lie above their right neighbour; the
    running maximum removes that.
    """
    sizes, times = zip(*points, strict=True)
    return Curve(tuple(sizes), tuple(accumulate(times, max)))


def all_reduce_curve(links: Collectives, gpu: GpuProfile, ranks: int) -> Curve:
    """All-reduce among `ranks` GPUs of one scale-up domain.

    Parameters
    ----------
    links : Collectives
        Measured tables and the constants that serve where none holds.
    gpu : GpuProfile
        Its scale-up bandwidth is the fallback's.
    ranks : int
        GPUs in the group; 1 costs nothing.

    Notes
    -----
    Fallback: ``latency + 2 M (n - 1) / n / (bandwidth x efficiency)``. It is wrong for groups that leave the
    scale-up domain, whose network is not part of a GPU profile.
    """
    if ranks == 1:
        return Curve((0.0, 1.0), (0.0, 0.0))
    tables = [t for t in links.all_reduce if t.ranks == ranks]
    table = best_placed(tables, gpu.name, gpu.architecture)
    if table is not None:
        return measured_curve([(p.message.base, p.time.base) for p in table.points])
    start = links.latency.base
    per_byte = 2.0 * (ranks - 1) / ranks / (gpu.scale_up.bandwidth.base * links.bus_efficiency.base)
    return Curve((0.0, 1e9), (start, start + 1e9 * per_byte))
