"""What a reader found, and what it could not use: nothing is dropped silently."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from kvsim.errors import Problem, TraceError

T = TypeVar("T")


@dataclass(slots=True)
class ReadReport:
    """Account of one reading.

    Attributes
    ----------
    path : str
        File read.
    num_rows : int
        Rows (lines that are not empty) seen.
    num_sessions, num_requests : int
        Sessions and requests returned.
    bad : list of Problem
        Rows that were skipped: file, line, what was wrong.
    adjusted : Counter
        How many requests were changed or completed, by reason.
    """

    path: str
    num_rows: int = 0
    num_sessions: int = 0
    num_requests: int = 0
    bad: list[Problem] = field(default_factory=list[Problem])
    adjusted: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        text = f"{self.path}: {self.num_rows} rows, {self.num_sessions} sessions, {self.num_requests} requests"
        text += f", {len(self.bad)} bad rows skipped"
        return text + "".join(f"; {count} x {why}" for why, count in self.adjusted.items())


class BadRow(ValueError):
    """One row that cannot be used; readers raise it, `read_rows` counts it."""

    def __init__(self, place: str, given: str, accepted: str) -> None:
        super().__init__(f"{place}: {given}; accepted: {accepted}")
        self.place, self.given, self.accepted = place, given, accepted


def read_rows(path: str | Path, report: ReadReport, parse: Callable[[dict[str, Any]], T],
              max_bad_rows: int) -> Iterator[T]:
    """Parse a JSON-lines file (plain or gzip) row by row.

    Parameters
    ----------
    path : path
        File; a name that ends in ``.gz`` is unpacked on the fly.
    report : ReadReport
        Account to be filled.
    parse : callable
        Turns one JSON object into what is wanted, or raises `BadRow`.
    max_bad_rows : int
        Bad rows that are skipped before the reading fails.

    Yields
    ------
    object
        What `parse` returned, one a good row.

    Raises
    ------
    TraceError
        The file cannot be read, or has more bad rows than allowed.
    """
    for number, line in _lines(path):
        report.num_rows += 1
        try:
            yield parse(_object(line))
        except BadRow as bad:
            report.bad.append(Problem(f"{report.path}:{number}", bad.place, bad.given, bad.accepted))
            if len(report.bad) > max_bad_rows:
                raise TraceError(f"{report.path}: more than {max_bad_rows} bad rows", report.bad) from bad


def number_of(row: dict[str, Any], key: str, low: float, default: float | None = None) -> float:
    """A number of a JSON object, at least `low`; a missing or null one is `default`, if that is given.

    >>> number_of({"in": 64}, "in", 1), number_of({"api_time": None}, "api_time", 0, 0.0)
    (64, 0.0)
    """
    value = row.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
        raise BadRow(key, "nothing" if value is None else repr(value), f"a number >= {low:g}")
    return value


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not empty."""
    opener = gzip.open if str(path).endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRow("", f"{line[:40].strip()!r} ({error.msg})", "a JSON object") from error
    if not isinstance(row, dict):
        raise BadRow("", line[:40].strip(), "a JSON object")
    return cast(dict[str, Any], row)
