"""Step time from a measured grid: decode by batch and context, prefill by tokens and offset.

Between measured points the time is interpolated in straight lines. A grid that does not cover what the engine's limits
allow is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvsim.errors import Problem, ScenarioError
from kvsim.steptime.base import Piece, StepBatch


@dataclass(frozen=True, slots=True)
class Grid:
    """Times [s] over two ascending axes; ``times_s[i][j]`` is that at ``rows[i]`` and ``columns[j]``.

    Raises
    ------
    ScenarioError
        Axes that do not ascend, a table of another shape, or a time that is not positive.
    """

    name: str
    rows: tuple[float, ...]
    columns: tuple[float, ...]
    times_s: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        problems = [Problem(f"table {self.name}", axis, str(list(values)), "at least two ascending values")
                    for axis, values in (("rows", self.rows), ("columns", self.columns))
                    if len(values) < 2 or sorted(set(values)) != list(values)]
        shape = [len(row) for row in self.times_s]
        if shape != [len(self.columns)] * len(self.rows):
            problems.append(Problem(f"table {self.name}", "times_s", f"rows of {shape} values",
                                    f"{len(self.rows)} rows of {len(self.columns)} values"))
        if any(not time > 0 for row in self.times_s for time in row):
            problems.append(Problem(f"table {self.name}", "times_s", "a time of 0 or less", "seconds above 0"))
        if problems:
            raise ScenarioError(f"the table {self.name!r} is no grid", problems)

    def row(self, value: float) -> tuple[float, ...]:
        """Times along the columns at a value of the rows' axis, which must lie on it.

        Examples
        --------
        >>> Grid("g", (1, 3), (0, 10), ((1.0, 2.0), (3.0, 6.0))).row(2)
        (2.0, 4.0)
        """
        low, share = _between(self.rows, value)
        below, above = self.times_s[low], self.times_s[low + 1]
        return tuple(a + share * (b - a) for a, b in zip(below, above, strict=True))

    def at(self, row: float, column: float) -> float:
        """Time [s] at a point inside, interpolated in both directions."""
        low, share = _between(self.columns, column)
        times = self.row(row)
        return times[low] + share * (times[low + 1] - times[low])


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a run can go: the engine's limits of the same names."""

    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int


@dataclass(slots=True)
class TableStepTime:
    """A `kvsim.steptime.base.StepTimeModel` from measurements.

    Parameters
    ----------
    decode : Grid
        Steps of decoding sequences alone: rows are batch sizes, columns context tokens of each sequence.
    prefill : Grid
        Steps of prefill alone: rows are tokens of the step, columns tokens computed before, a chunk's mean.
    reach : Reach
        Engine limits of the runs that it will be asked about. Batches beyond them, which no engine makes (the mean of
        unlike ones may lie there), are held at the edge; context goes on along its last line.

    Raises
    ------
    ScenarioError
        The grid does not cover the reach.

    Notes
    -----
    Context enters as the largest convex curve below the measured points, since a step is a maximum of lines: a
    point above its neighbours' line is taken down to it. A mixed step takes its prefill time plus what its decoding
    sequences add to the smallest measured decode step, as both read the weights once. It is wrong where kernels run
    differently together than apart.

    Examples
    --------
    >>> decode = Grid("decode", (1, 8), (0, 1000), ((0.006, 0.007), (0.008, 0.016)))
    >>> prefill = Grid("prefill", (1, 1024), (0, 1000), ((0.006, 0.006), (0.030, 0.034)))
    >>> table = TableStepTime(decode, prefill, Reach(8, 1000, 1024))
    >>> max(a + b * 4000 for a, b in table.pieces(StepBatch(0, 0, 0, 0, 8)))
    0.012
    """

    decode: Grid
    prefill: Grid
    reach: Reach
    _known: dict[StepBatch, tuple[Piece, ...]] = field(default_factory=dict[StepBatch, tuple[Piece, ...]])

    def __post_init__(self) -> None:
        reach = self.reach
        wanted = ((self.decode, "rows", 1, reach.max_num_seqs), (self.decode, "columns", None, reach.max_model_len),
                  (self.prefill, "rows", 1, reach.max_num_batched_tokens),
                  (self.prefill, "columns", 0, reach.max_model_len - 1))
        problems = [Problem(f"table {grid.name}", axis, f"{values[0]:g} to {values[-1]:g}",
                            f"{'' if low is None else f'{low} '}to {high:,}, as far as the engine's limits go")
                    for grid, axis, low, high in wanted
                    if (values := getattr(grid, axis))[-1] < high or (low is not None and values[0] > low)]
        if problems:
            raise ScenarioError("the tables do not cover what the engine may do", problems)

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Affine pieces (seconds, seconds per resident context token) of a step's duration."""
        found = self._known.get(batch)
        if found is None:
            found = self._known[batch] = self._pieces(batch)
        return found

    def _pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        lines = self._decode_lines(batch.decode_seqs) if batch.decode_seqs else ((0.0, 0.0),)
        if not batch.prefill_tokens:
            return lines
        offset = (batch.prefill_context_tokens - batch.prefill_tokens) / max(batch.prefill_chunks, 1)
        start = self.prefill.at(_held(self.prefill.rows, batch.prefill_tokens), _held(self.prefill.columns, offset))
        if batch.decode_seqs:
            start -= self.decode.times_s[0][0]
        return tuple((max(start + a, 0.0), b) for a, b in lines)

    def _decode_lines(self, seqs: int) -> tuple[Piece, ...]:
        """Convex curve over the context of all `seqs` sequences."""
        times = self.decode.row(_held(self.decode.rows, seqs))
        points = [(seqs * context, time) for context, time in zip(self.decode.columns, times, strict=True)]
        return convex_lines(points)


def convex_lines(points: Sequence[tuple[float, float]]) -> tuple[Piece, ...]:
    """Lines whose maximum is the largest convex, never falling curve below some points of ascending x.

    Examples
    --------
    >>> convex_lines([(0.0, 1.0), (10.0, 1.0), (20.0, 2.0)])
    ((1.0, 0.0), (0.0, 0.1))
    """
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    lines: list[Piece] = []
    for left, right in pairwise(hull):
        slope = _slope(left, right)
        line = (left[1] - slope * left[0], slope) if slope > 0 else (right[1], 0.0)
        if lines and lines[-1][1] == line[1] == 0.0:
            lines.pop()
        lines.append(line)
    return tuple(lines)


def _held(axis: Sequence[float], value: float) -> float:
    """A value, or the end of the axis that is nearest to it."""
    return min(max(value, axis[0]), axis[-1])


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Slope between two points."""
    return (right[1] - left[1]) / (right[0] - left[0])


def _between(axis: Sequence[float], value: float) -> tuple[int, float]:
    """(index of the point at or below, share of the way to the next)."""
    low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])
