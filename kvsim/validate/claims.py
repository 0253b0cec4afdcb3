"""A published or measured value, the band that was fixed for it, and what kvsim says: the rows of `published`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

KINDS = MappingProxyType({
    "E": "exact arithmetic", "C": "capacity", "H": "hit rates", "P": "throughput", "A": "absolute times",
    "X": "decisions of a real scheduler, logged pools", "M": "own runs on one H200", "N": "negative controls",
})
"""What a row is about; kinds are counted apart, never summed into one score."""

PUBLISHED_KINDS = ("E", "C", "H", "P", "A")
"""Kinds of published values; the others are measurements of our own, recordings and controls."""


@dataclass(frozen=True, slots=True)
class Band:
    """Accepted values, both ends included, or (``outside``) the values that a negative control must not reach.

    Attributes
    ----------
    low, high : float
        Ends, in the unit of the value.
    text : str
        The tolerance as it was written down.
    outside : bool
        True: a value must lie outside.
    value : float
        The published value, where it is one number; else nan.

    Examples
    --------
    >>> near(100, 0.2).accepts(119), near(100, 0.2, outside=True).accepts(119)
    (True, False)
    """

    low: float
    high: float
    text: str
    outside: bool = False
    value: float = math.nan

    def accepts(self, value: float) -> bool:
        """Whether a value is where it must be; nan never is."""
        return not math.isnan(value) and (self.low <= value <= self.high) != self.outside


def exactly(value: float) -> Band:
    """One value only."""
    return Band(value, value, "exact", value=value)


def near(value: float, frac: float, outside: bool = False) -> Band:
    """Within a share of a value."""
    text = f"outside {frac * 100:g} %" if outside else f"{frac * 100:g} %"
    return Band(value * (1 - frac), value * (1 + frac), text, outside, value)


def plus_minus(value: float, by: float, text: str) -> Band:
    """Within an absolute distance of a value."""
    return Band(value - by, value + by, text, value=value)


def factor(value: float, by: float) -> Band:
    """Within a factor of a value."""
    return Band(value / by, value * by, f"factor {by:g}", value=value)


def at_least(low: float, text: str, value: float = math.nan) -> Band:
    """No upper end."""
    return Band(low, math.inf, text, value=value)


def at_most(high: float, text: str, value: float = math.nan) -> Band:
    """No lower end."""
    return Band(-math.inf, high, text, value=value)


@dataclass(frozen=True, slots=True)
class Sample:
    """What kvsim says: a value and, of simulations, what each seed gave.

    Attributes
    ----------
    value : float
        The value that is judged: exact, or the median over the seeds.
    each : sequence of float
        One value a seed; empty without seeds.
    note : str
        What else to know, e.g. how many runs.
    """

    value: float
    each: Sequence[float] = ()
    note: str = ""


def median_of(values: Sequence[float]) -> Sample:
    """The median over the seeds.

    >>> median_of([3.0, 1.0, 2.0]).value
    2.0
    """
    return Sample(statistics.median(values), tuple(values))


@dataclass(frozen=True, slots=True)
class Claim:
    """One published or measured value and how kvsim computes it.

    Attributes
    ----------
    id : str
        Number of the target and a letter for its part.
    kind : str
        A key of `KINDS`.
    what : str
        What was measured, on what.
    published : str
        The value as published.
    band : Band
        Fixed before the first run.
    source : str
        Where the value was published.
    form : str
        Format of a value.
    measure : callable
        Computes kvsim's value.
    simulated : bool
        Whether that takes simulations (seconds to a minute).
    fitted : str
        What of kvsim was chosen to meet this value; empty: nothing.
    miss : str
        Why the value is missed, where it is.
    """

    id: str
    kind: str
    what: str
    published: str
    band: Band
    source: str
    form: str
    measure: Callable[[], Sample]
    simulated: bool = False
    fitted: str = ""
    miss: str = ""

    @property
    def target(self) -> str:
        """The target that this value belongs to: its id without the letter of the part.

        >>> Claim("14b", "P", "", "", exactly(1), "", "{}", lambda: Sample(1)).target
        '14'
        """
        return self.id.rstrip("abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim and what kvsim says."""

    claim: Claim
    sample: Sample

    @property
    def hit(self) -> bool:
        """Whether the value is where it must be."""
        return self.claim.band.accepts(self.sample.value)

    @property
    def verdict(self) -> str:
        """``hit`` or ``miss``."""
        return "hit" if self.hit else "miss"

    def ours(self) -> str:
        """The value, with the extremes over the seeds."""
        form, each = self.claim.form, self.sample.each
        text = form.format(self.sample.value)
        if each:
            text += f" [{form.format(min(each))} to {form.format(max(each))}]"
        return text

    def seeds(self) -> str:
        """Seeds whose own value is where it must be, of how many; empty without seeds.

        >>> claim = Claim("1", "P", "", "", near(10, 0.1), "", "{}", lambda: Sample(1))
        >>> Finding(claim, median_of([9.0, 10.0, 20.0])).seeds()
        '2/3'
        """
        each = self.sample.each
        return f"{sum(map(self.claim.band.accepts, each))}/{len(each)}" if each else ""

    def difference(self) -> str:
        """Difference from the published value in percent; empty where that is no number, or zero or one.

        >>> Finding(Claim("1", "P", "", "", near(10, 0.2), "", "{}", lambda: Sample(1)), Sample(11)).difference()
        '+10.0 %'
        """
        value = self.claim.band.value
        if math.isnan(value) or value in (0, 1):
            return ""
        return f"{100 * (self.sample.value / value - 1):+.1f} %"

    def reason(self) -> str:
        """Why a miss is one; empty for a hit."""
        return "" if self.hit else self.claim.miss or "not explained"


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """A target that kvsim cannot compute, and why."""

    id: str
    what: str
    reason: str
