"""Where a run has become steady, and how sure a number from several runs is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.types import RunRecords
from kvsim.rng import stream

Floats = NDArray[np.float64]
BATCH = 5
"""Values averaged before MSER looks at them."""
RESAMPLES = 2_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True, slots=True)
class Steady:
    """A run is steady from ``from_s`` [s] on; ``found`` is False if it still drifts at half its length."""

    from_s: float
    found: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its confidence interval from ``num_runs`` independent runs.

    ``level_frac`` is how sure the interval is, which may be less than was asked for when the runs are few.
    """

    value: float
    low: float
    high: float
    num_runs: int
    level_frac: float

    def text(self, form: str = ".3g") -> str:
        """The estimate and its interval.

        >>> Interval(1.0, 0.5, 1.5, 3, 0.95).text(".1f")
        '1.0 [0.5, 1.5]'
        """
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """Mean of some figures with the 95 % interval of Student's t; both ends nan for fewer than two."""

    mean: float
    low: float
    high: float
    count: int


def steady_from(records: RunRecords) -> Steady:
    """Where a run has become steady.

    Parameters
    ----------
    records : RunRecords
        The run.

    Returns
    -------
    Steady
        The later one of what `mser` says of time to first token and of computed prompt tokens, taken over requests in
        the order of their first tokens; half the requests at most are cut off.

    Notes
    -----
    Time to first token shows queues that still grow, computed tokens caches that still fill. A workload whose own
    nature changes (a rate with steps, sessions that all began together) has no steady part: then ``found`` is False,
    or the cut is where the last change was.
    """
    order = np.argsort(records.first_token_s, kind="stable")
    order = order[np.isfinite(records.first_token_s[order])]
    if len(order) < 2 * BATCH:
        return Steady(0.0, False)
    waits = (records.first_token_s - records.arrival_s)[order]
    computed = (records.prompt_tokens - records.cached_tokens)[order].astype(np.float64)
    cuts = [mser(waits), mser(computed)]
    start = max(cut for cut, _ in cuts)
    return Steady(float(records.first_token_s[order[start]]) if start else 0.0, all(found for _, found in cuts))


def mser(values: Floats, batch: int = BATCH) -> tuple[int, bool]:
    """How many first values to leave out, so that the mean of the others is known best.

    Parameters
    ----------
    values : float array [n]
        Observations in the order of time.
    batch : int
        Neighbours averaged first (MSER-5).

    Returns
    -------
    cut : int
        Values to leave out, a multiple of `batch`, at most half of them.
    found : bool
        False if the best cut is the largest one allowed: the series may still drift.

    Notes
    -----
    The cut d of n batch means minimises sum_{i >= d} (y_i - mean)^2 / (n - d)^2, the square of the standard error of
    the rest (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997;
    White, Cobb, Spratt, WSC 2000). A series that drifts faster and faster looks to it like one that has only just begun
    to vary, and is not recognised.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> series = np.concatenate([np.linspace(50, 0, 100), np.zeros(900)]) + rng.normal(size=1000)
    >>> 80 <= mser(series)[0] <= 110, mser(rng.normal(size=1000))[1], mser(np.arange(1000.0))[1]
    (True, True, False)
    """
    means = values[:len(values) // batch * batch].reshape(-1, batch).mean(axis=1)
    n = len(means)
    if n < 2:
        return 0, False
    left = np.arange(n, 0, -1)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum((means**2)[::-1])[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    most = n // 2
    cut = int(np.argmin(error[:most + 1]))
    return cut * batch, cut < most


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Mean and 95 % interval of independent figures, by Student's t; nan bounds for fewer than two.

    Examples
    --------
    >>> mean_interval([1.0, 3.0])
    MeanInterval(mean=2.0, low=-10.7, high=14.7, count=2)
    """
    count = len(values)
    mean = statistics.fmean(values) if count else math.nan
    if count < 2:
        return MeanInterval(mean, math.nan, math.nan, count)
    half = student_t(0.975, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return MeanInterval(mean, mean - half, mean + half, count)


def median_interval(values: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval:
    """Median of independent runs with a percentile bootstrap interval; nan bounds for fewer than three.

    Notes
    -----
    Nothing beyond the smallest and the largest run was seen. Those two hold the true median with the probability
    1 - 2^(1 - n): 75 % for three runs, 94 % for five; `Interval.level_frac` is at most that.

    Examples
    --------
    >>> median_interval([3.0, 1.0, 2.0])
    Interval(value=2.0, low=1.0, high=3.0, num_runs=3, level_frac=0.75)
    """
    x = np.asarray(values, np.float64)
    if len(x) < 3:
        return Interval(float(np.median(x)) if len(x) else math.nan, math.nan, math.nan, len(x), 0.0)
    picked = stream(seed, "bootstrap of medians").integers(len(x), size=(RESAMPLES, len(x)))
    low, high = np.percentile(np.median(x[picked], axis=1), [50 * (1 - level), 50 * (1 + level)]).tolist()
    return Interval(float(np.median(x)), low, high, len(x), min(level, 1 - 2.0 ** (1 - len(x))))


@cache
def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution, for a probability of at least 0.5, by bisection.

    >>> round(student_t(0.975, 2), 3), round(student_t(0.975, 30), 3), round(student_t(0.95, 4), 3)
    (4.303, 2.042, 2.132)
    """
    low, high = 0.0, math.pi / 2
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    for _ in range(60):
        angle = (low + high) / 2
        inside = scale * angle / 2 * float((_WEIGHTS * np.cos(angle / 2 * (_NODES + 1)) ** (degrees - 1)).sum())
        low, high = (angle, high) if 0.5 + inside < probability else (low, angle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)
