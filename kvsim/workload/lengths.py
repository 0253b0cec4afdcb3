"""Length and time distributions of generated traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kvsim.workload.requests import Floats, Ints

_NORMAL = NormalDist()
_EDGE = 1e-12
_PRIMES = (2, 3, 5, 7, 11, 13)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal distribution, clipped to ``[low, high]``.

    Parameters
    ----------
    median : float
        Median, in the unit of what is drawn; > 0.
    sigma : float
        Standard deviation of the logarithm; 0 = always the median.
    low, high : float
        Draws outside are moved to the nearer bound.

    Examples
    --------
    >>> LogNormal(65, 1.27).at(np.array([0.5, 0.9])).round().tolist()
    [65.0, 331.0]
    """

    median: float
    sigma: float = 0.0
    low: float = 0.0
    high: float = math.inf

    @classmethod
    def from_mean(cls, mean: float, median: float) -> LogNormal:
        """The log-normal with a given mean and median.

        >>> round(LogNormal.from_mean(3792, 1664).sigma, 3)
        1.283
        """
        return cls(median, math.sqrt(2 * math.log(mean / median)))

    def at(self, u: Floats) -> Floats:
        """Values at the quantiles `u` (0 < u < 1), shape of `u`."""
        return self.at_score(normal_scores(u))

    def at_score(self, z: Floats) -> Floats:
        """Values at the standard normal scores `z`, shape of `z`."""
        return np.clip(self.median * np.exp(self.sigma * z), self.low, self.high)

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """`n` independent values."""
        return self.at_score(rng.standard_normal(n))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Mixture of log-normal parts.

    Parameters
    ----------
    parts : tuple of (weight, LogNormal)
        Weights > 0; they are divided by their sum.

    Examples
    --------
    >>> Mixture(((0.5, LogNormal(1)), (0.5, LogNormal(9)))).at(np.array([0.2, 0.7])).tolist()
    [1.0, 9.0]
    """

    parts: tuple[tuple[float, LogNormal], ...]

    def at(self, u: Floats) -> Floats:
        """Values at `u` (0 < u < 1): the part that `u` falls into, at the same relative place within it."""
        edges = np.cumsum([w for w, _ in self.parts]) / sum(w for w, _ in self.parts)
        low, values = 0.0, np.empty_like(u)
        for edge, (_, part) in zip([*edges[:-1].tolist(), 1.0], self.parts, strict=True):
            mine = (u >= low) & (u < edge)
            values[mine] = part.at(np.clip((u[mine] - low) / (edge - low), _EDGE, 1 - _EDGE))
            low = edge
        return values

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """`n` independent values."""
        weights = np.array([w for w, _ in self.parts])
        which = rng.choice(len(weights), size=n, p=weights / weights.sum())
        values = np.empty(n)
        for k, (_, part) in enumerate(self.parts):
            mine = which == k
            values[mine] = part.draw(rng, int(mine.sum()))
        return values


def whole_tokens(values: Floats) -> Ints:
    """Lengths as whole tokens, at least 1 each.

    >>> whole_tokens(np.array([0.2, 2.6])).tolist()
    [1, 3]
    """
    return np.maximum(np.rint(values), 1).astype(np.int64)


def normal_scores(u: Floats) -> Floats:
    """Standard normal values at the quantiles `u` (0 < u < 1), shape [n].

    >>> normal_scores(np.array([0.5, 0.9])).round(3).tolist()
    [0.0, 1.282]
    """
    return np.array([_NORMAL.inv_cdf(x) for x in u.tolist()])


def spread_points(rng: np.random.Generator, n: int, num_dims: int, stratified: bool) -> Floats:
    """`n` points in the open unit cube, shape [n, num_dims].

    Parameters
    ----------
    rng : numpy.random.Generator
        Used for the points, or for the shift of the sequence.
    n : int
        Points; the first points do not depend on how many follow.
    num_dims : int
        Dimensions, 1 to 6.
    stratified : bool
        False: independent uniform points. True: a randomly shifted Halton sequence, in which any few neighbours
        already cover the cube evenly, so that a small set of draws shows the distribution it is drawn from.

    Returns
    -------
    float array [n, num_dims]
        Numbers in (0, 1).

    Notes
    -----
    Dimension d of point i is frac(shift_d + the digits of i + 1 in the d-th prime base, mirrored at the point):
    Halton (1960), shifted modulo 1 as by Cranley and Patterson (1976), so that every point is uniform.

    Examples
    --------
    >>> u = spread_points(np.random.default_rng(0), 8, 1, stratified=True)[:, 0]
    >>> sorted(set((u * 4).astype(int).tolist()))
    [0, 1, 2, 3]
    """
    if not stratified:
        return np.clip(rng.random((n, num_dims)), _EDGE, 1 - _EDGE)
    columns = [_mirrored_digits(n, base) for base in _PRIMES[:num_dims]]
    return np.clip((rng.random(num_dims) + np.column_stack(columns)) % 1.0, _EDGE, 1 - _EDGE)


def _mirrored_digits(n: int, base: int) -> Floats:
    """Van der Corput sequence: 1, 2, ..., n with their digits mirrored at the point."""
    left, value, weight = np.arange(1, n + 1), np.zeros(n), 1.0
    while left.any():
        weight /= base
        value += weight * (left % base)
        left = left // base
    return value
