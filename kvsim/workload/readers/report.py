"""What a reader found, and what it could not use: nothing is dropped silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import Problem, TraceError
from kvsim.workload.readers.source import Row, json_rows

T = TypeVar("T")
_MOST = 10**12
"""No count of tokens is larger."""

_INF = float("inf")


@dataclass(slots=True)
class ReadReport:
    """Account of one reading.

    Attributes
    ----------
    path : str
        File or folder read.
    num_rows : int
        Rows (lines that are not empty) seen.
    num_sessions, num_requests : int
        Sessions and requests returned.
    bad : list of Problem
        Rows that were skipped because something in them is wrong: file, line, what.
    skipped : Counter
        How many rows or files were left out by a rule, by reason (a failed request, a file that is no trace).
    adjusted : Counter
        How many requests were changed or completed, by reason.
    formats : dict
        Format found in each file.
    notes : list of str
        How the record was understood where it leaves room.
    """

    path: str
    num_rows: int = 0
    num_sessions: int = 0
    num_requests: int = 0
    bad: list[Problem] = field(default_factory=list[Problem])
    skipped: Counter[str] = field(default_factory=Counter[str])
    adjusted: Counter[str] = field(default_factory=Counter[str])
    formats: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        text = f"{self.path}: {self.num_rows} rows, {self.num_sessions} sessions, {self.num_requests} requests"
        text += f", {len(self.bad)} bad rows skipped"
        counts = [("left out", self.skipped), ("", self.adjusted)]
        text += "".join(f"; {count} x {f'{kind}: {why}' if kind else why}"
                        for kind, reasons in counts for why, count in reasons.items())
        return "\n  ".join([text, *self.notes, *(f"skipped {p}" for p in self.bad)])

    @property
    def is_whole(self) -> bool:
        """Whether every row was used as it was recorded."""
        return not (self.bad or self.skipped or self.adjusted)

    def lines(self, most: int = 3) -> list[str]:
        """What was not used as recorded, the first reasons at length; none where all was.

        >>> report = ReadReport("log.csv", 5, bad=[Problem("log.csv:3", "input", "'x'", "a whole number")])
        >>> report.lines()
        ['log.csv: 1 of 5 rows are bad and were skipped', "  log.csv:3: input: got 'x'; accepted: a whole number"]
        """
        found: list[str] = []
        if self.bad:
            found.append(f"{self.path}: {len(self.bad)} of {self.num_rows} rows are bad and were skipped")
            found += [f"  {problem}" for problem in self.bad[:most]]
            found += [f"  and {len(self.bad) - most} more"] if len(self.bad) > most else []
        found += [f"{self.path}: {count} left out: {why}" for why, count in self.skipped.items()]
        return found + [f"{self.path}: {count} x {why}" for why, count in self.adjusted.items()]

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"path": self.path, "num_rows": self.num_rows, "num_sessions": self.num_sessions,
                "num_requests": self.num_requests, "bad": [str(p) for p in self.bad], "skipped": dict(self.skipped),
                "adjusted": dict(self.adjusted), "formats": self.formats, "notes": self.notes}


class BadRow(ValueError):
    """One row that cannot be used; readers raise it, `parse_rows` counts it."""

    def __init__(self, place: str, given: str, accepted: str) -> None:
        super().__init__(f"{place}: {given}; accepted: {accepted}")
        self.place, self.given, self.accepted = place, given, accepted


class LeftOut(ValueError):
    """One row that a rule leaves out (a failed request); counted by reason, without limit."""


def parse_rows(rows: Iterable[Row], report: ReadReport, parse: Callable[[dict[str, Any]], T],
               max_bad_rows: int) -> Iterator[T]:
    """Parse rows one by one.

    Parameters
    ----------
    rows : iterable of Row
        From `kvsim.workload.readers.source`.
    report : ReadReport
        Account to be filled.
    parse : callable
        Turns one row into what is wanted, or raises `BadRow` or `LeftOut`.
    max_bad_rows : int
        Bad rows of the whole reading that are skipped before it fails.

    Yields
    ------
    object
        What `parse` returned, one a good row.

    Raises
    ------
    TraceError
        The file cannot be read, or has more bad rows than allowed.
    """
    for row in rows:
        report.num_rows += 1
        try:
            if row.values is None:
                raise BadRow("", row.text, "a JSON object" if row.problem is None else row.problem)
            yield parse(row.values)
        except LeftOut as why:
            report.skipped[str(why)] += 1
        except BadRow as bad:
            report.bad.append(Problem(row.where, bad.place, bad.given, bad.accepted))
            if len(report.bad) > max_bad_rows:
                raise TraceError(f"{report.path}: more than {max_bad_rows} bad rows", report.bad) from bad


def read_rows(path: str | Path, report: ReadReport, parse: Callable[[dict[str, Any]], T],
              max_bad_rows: int) -> Iterator[T]:
    """`parse_rows` of the JSON objects of a file."""
    return parse_rows(json_rows(path), report, parse, max_bad_rows)


def number_of(row: dict[str, Any], key: str, low: float, default: float | None = None) -> float:
    """A number of a row, at least `low`; a missing or null one is `default`, if that is given.

    >>> number_of({"in": 64}, "in", 1), number_of({"api_time": None}, "api_time", 0, 0.0)
    (64, 0.0)
    """
    value = row.get(key)
    if (type(value) is int or type(value) is float) and low <= value < _INF:
        return value
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
        raise BadRow(key, "nothing" if value is None else repr(value), f"a number >= {low:g}")
    return value


def count_of(row: dict[str, Any], key: str, low: int = 0) -> int:
    """A whole number of a row, as a number or as text, at least `low`.

    >>> count_of({"n": "12"}, "n"), count_of({"n": 3.0}, "n")
    (12, 3)
    """
    value = row.get(key)
    if type(value) is int and low <= value <= _MOST:
        return value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise BadRow(key, repr(value), f"a whole number >= {low}") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not low <= value <= _MOST:
        raise BadRow(key, "nothing" if value is None else repr(value)[:40], f"a whole number from {low} to {_MOST}")
    return value


def ints_of(values: Sequence[object], low: int = 0, high: int = _MOST) -> NDArray[np.int64] | None:
    """A column of plain whole numbers, by default what `count_of` accepts; None where some are anything else.

    >>> ints_of([3, 4]), ints_of([3, "4"])
    (array([3, 4]), None)
    """
    if not set(map(type, values)) <= {int}:
        return None
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        return None
    return numbers if not len(numbers) or low <= numbers.min() <= numbers.max() <= high else None


def numbers_of(values: Sequence[object]) -> NDArray[np.float64] | None:
    """A column of plain finite numbers; None where some are anything else.

    >>> numbers_of([3, 4.5]), numbers_of([3, None])
    (array([3. , 4.5]), None)
    """
    if not set(map(type, values)) <= {int, float}:
        return None
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def text_of(row: dict[str, Any], key: str) -> str:
    """A name: a text or a number, as text."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRow(key, "nothing" if value is None else repr(value)[:40], "a name or a number")
    return str(value)
