"""When things arrive by themselves: renewal processes, and rates that change over the day or at stated times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsim.errors import Problem, ScenarioError
from kvsim.workload.requests import Floats

Family = Literal["poisson", "gamma", "weibull", "even"]
_TABLE_STEP_S = 60.0
"""Grid on which a rate that changes smoothly is integrated [s]."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Mean arrivals per second over time.

    Attributes
    ----------
    base_per_s : float
        Rate [1/s] at the beginning, or the mean of a day.
    steps : tuple of (float, float)
        ``(from_s, per_s)``: from then on the rate is another one; times rise.
    swing : float
        The rate swings by this share of itself around its mean, 0 to 1:
        ``1 + swing cos(2 pi (t - peak_s) / period_s)``.
    period_s, peak_s : float
        Length of a day, and when its peak is [s].

    Examples
    --------
    >>> Rate(2.0, steps=((10.0, 4.0),)).expected(np.array([0.0, 10.0, 11.0])).tolist()
    [0.0, 20.0, 24.0]
    """

    base_per_s: float
    steps: tuple[tuple[float, float], ...] = ()
    swing: float = 0.0
    period_s: float = 86_400.0
    peak_s: float = 0.0

    def expected(self, time_s: Floats) -> Floats:
        """Expected arrivals from 0 to some times [s], shape of `time_s`, before any swing is applied to steps."""
        edges = np.array([0.0, *(t for t, _ in self.steps)])
        rates = np.array([self.base_per_s, *(r for _, r in self.steps)])
        reached = np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates[:-1])])
        place = np.maximum(np.searchsorted(edges, time_s, side="right") - 1, 0)
        return reached[place] + (time_s - edges[place]) * rates[place]

    def times_s(self, counts: Floats, until_s: float) -> Floats:
        """Times [s] at which the expected number of arrivals reaches `counts`; those beyond `until_s` are left out."""
        grid = np.unique(np.concatenate([[0.0, until_s], [t for t, _ in self.steps if t < until_s],
                                         np.arange(0.0, until_s, _TABLE_STEP_S) if self.swing else []]))
        reached = np.concatenate([[0.0], np.cumsum(np.diff(self.expected(grid)) * self._swings(grid))])
        counts = counts[counts < reached[-1]]
        return _inverse(grid, reached, counts)

    def _swings(self, grid: Floats) -> Floats:
        """Mean factor of the swing between neighbours of a grid."""
        if not self.swing:
            return np.ones(len(grid) - 1)
        phase = 2 * np.pi * (grid - self.peak_s) / self.period_s
        return 1 + self.swing * np.diff(np.sin(phase)) / np.diff(phase)


def _inverse(grid: Floats, reached: Floats, counts: Floats) -> Floats:
    """Where a piecewise linear function that never falls reaches some values."""
    place = np.searchsorted(reached, counts, side="right") - 1
    slope = (reached[place + 1] - reached[place]) / (grid[place + 1] - grid[place])
    return grid[place] + (counts - reached[place]) / slope


@dataclass(frozen=True, slots=True)
class RatePattern:
    """How the rate of recorded arrivals goes up and down: windows of equal length, played over and over.

    Attributes
    ----------
    per_s : tuple of float
        Mean rate [1/s] in each window.
    window_s : float
        Length of a window [s].
    """

    per_s: tuple[float, ...]
    window_s: float

    @property
    def mean_per_s(self) -> float:
        """Mean rate [1/s]."""
        return math.fsum(self.per_s) / len(self.per_s)

    @property
    def period_s(self) -> float:
        """Length of one play [s]."""
        return self.window_s * len(self.per_s)

    def rate(self, mean_per_s: float, until_s: float) -> Rate:
        """The same ups and downs around another mean [1/s], up to a time [s].

        >>> RatePattern((1.0, 3.0), 60.0).rate(4.0, 150.0)
        Rate(base_per_s=2.0, steps=((60.0, 6.0), (120.0, 2.0)), swing=0.0, period_s=86400.0, peak_s=0.0)
        """
        scale = mean_per_s / self.mean_per_s
        windows = math.ceil(until_s / self.window_s)
        steps = [(k * self.window_s, scale * self.per_s[k % len(self.per_s)]) for k in range(max(windows, 1))]
        return Rate(steps[0][1], tuple(steps[1:]))


def recorded_pattern(time_s: Floats, window_s: float) -> RatePattern:
    """The rate pattern of recorded arrivals.

    Parameters
    ----------
    time_s : float array [n]
        Arrival times [s] from 0 on, never falling.
    window_s : float
        About how long a window is [s], > 0: the recorded span is divided into a whole number of them.

    Raises
    ------
    ScenarioError
        Fewer than two arrivals, or all of them at once.

    Notes
    -----
    The span ends one mean gap after the last arrival, so that the mean rate is that of the gaps.

    Examples
    --------
    >>> recorded_pattern(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 4.4, 4.8, 5.2, 5.6, 7.2]), 4.0)
    RatePattern(per_s=(1.0, 1.5), window_s=4.0)
    """
    last = float(time_s[-1]) if len(time_s) else 0.0
    if last <= 0:
        given = f"{len(time_s)} arrivals within {last:g} s"
        raise ScenarioError("no rate in the trace", [Problem("trace", "", given, "at least two, at different times")])
    span = last * len(time_s) / (len(time_s) - 1)
    windows = max(round(span / window_s), 1)
    counts = np.bincount(np.minimum((time_s * (windows / span)).astype(np.int64), windows - 1), minlength=windows)
    return RatePattern(tuple((counts * (windows / span)).tolist()), span / windows)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A process of arrivals.

    Attributes
    ----------
    rate : Rate
        Mean rate over time.
    family : str
        Distribution of the times between arrivals: "poisson" (exponential), "gamma", "weibull", or "even".
    cv : float
        Coefficient of variation of those times for "gamma" and "weibull": 1 is Poisson, more is burstier.
        (vLLM's ``--burstiness`` is 1 / cv^2.)

    Notes
    -----
    Gaps are drawn with mean 1 and laid on the expected number of arrivals, so that a changing rate stretches them.
    """

    rate: Rate
    family: Family = "poisson"
    cv: float = 1.0

    def draw_s(self, rng: np.random.Generator, until_s: float, most: float = math.inf) -> Floats:
        """Arrival times [s], rising, before `until_s` and at most `most` of them.

        Raises
        ------
        ScenarioError
            Neither bound is finite.

        Examples
        --------
        >>> times = Arrival(Rate(2.0), "gamma", 3.0).draw_s(np.random.default_rng(0), 10_000.0)
        >>> bool(1.8 < len(times) / 10_000 < 2.2), bool(2.7 < np.diff(times).std() / np.diff(times).mean() < 3.3)
        (True, True)
        """
        if math.isinf(until_s) and math.isinf(most):
            raise ScenarioError("arrivals without end", [
                Problem("workload", "duration_s", "", "a duration, or a number of requests or sessions")])
        if math.isinf(until_s):
            until_s = self._long_enough_s(most)
        total = float(self.rate.expected(np.array([until_s]))[0]) * (1 + self.rate.swing)
        counts = np.zeros(0)
        while not len(counts) or (counts[-1] < total and len(counts) < most):
            more = np.cumsum(self._gaps(rng, int(min(total, most)) + 64))
            counts = np.concatenate([counts, more + (counts[-1] if len(counts) else 0.0)])
        times = self.rate.times_s(counts, until_s)
        return times if math.isinf(most) else times[:int(most)]

    def _long_enough_s(self, most: float) -> float:
        """A time by which `most` arrivals have come, with all but certainty."""
        slowest = self.rate.steps[-1][1] if self.rate.steps else self.rate.base_per_s
        last = self.rate.steps[-1][0] if self.rate.steps else 0.0
        if slowest <= 0:
            return last
        return last + (most + 20 * self.cv * math.sqrt(most) + 20 * self.cv**2) / slowest / (1 - 0.9 * self.rate.swing)

    def _gaps(self, rng: np.random.Generator, n: int) -> Floats:
        """Times between arrivals with mean 1."""
        if self.family == "even":
            return np.ones(n)
        if self.family == "poisson" or self.cv == 1.0:
            return rng.exponential(1.0, n)
        if self.family == "gamma":
            return rng.gamma(1 / self.cv**2, self.cv**2, n)
        shape = weibull_shape(self.cv)
        return rng.weibull(shape, n) / math.gamma(1 + 1 / shape)


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull distribution with a given coefficient of variation, by bisection.

    >>> round(weibull_shape(1.0), 6), round(weibull_shape(2.0), 3)
    (1.0, 0.543)
    """
    low, high = 0.05, 100.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weibull_cv(middle) > cv else (low, middle)
    return math.sqrt(low * high)


def _weibull_cv(shape: float) -> float:
    return math.sqrt(max(math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)) - 1, 0.0))


def intervals(initial: int, steps: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """When lanes start and stop [s], so that a stated number of them is live: who came last goes first.

    Parameters
    ----------
    initial : int
        Lanes from the start on.
    steps : sequence of (float, int)
        ``(from_s, lanes)``; times rise.

    Examples
    --------
    >>> intervals(1, [(10.0, 3), (20.0, 1), (30.0, 2)])
    [(0.0, inf), (10.0, 20.0), (10.0, 20.0), (30.0, inf)]
    """
    found = [[0.0, math.inf] for _ in range(initial)]
    live = list(range(initial))
    for time_s, lanes in steps:
        while len(live) > lanes:
            found[live.pop()][1] = time_s
        while len(live) < lanes:
            live.append(len(found))
            found.append([time_s, math.inf])
    return [(start_s, stop_s) for start_s, stop_s in found]
