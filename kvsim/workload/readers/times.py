"""Timestamps as seconds, whatever they look like."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from kvsim.workload.readers.report import BadRow

_FRACTION = re.compile(r"\.(\d+)")
_ACCEPTED = "a finite number, or a date and time such as 2024-05-10 00:00:00.009930+00:00"
_NUMERIC_SCALES = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Numbers from the first value on are too large for seconds since 1970 and are taken as ns, us or ms."""


def timestamp_s(value: object, key: str = "timestamp", second: float | None = None) -> tuple[float, bool]:
    """Seconds, and whether they count from 1970-01-01 UTC.

    Parameters
    ----------
    value : number or str
        Seconds, or milliseconds, microseconds or nanoseconds since 1970 (told by their size), or ISO 8601 with
        any number of decimals; without a zone it is taken as UTC.
    key : str
        Name of the field, for messages.
    second : float, optional
        Unit of a number [s]; without it its size tells.

    Raises
    ------
    BadRow
        None of these, nan, or infinite.

    Examples
    --------
    >>> timestamp_s(12.5), timestamp_s("1700000000000")
    ((12.5, False), (1700000000.0, True))
    >>> timestamp_s("1970-01-01 00:01:00.2500000")
    (60.25, True)
    >>> timestamp_s(2500, second=1e-3)
    (2.5, False)
    """
    number = _number(value)
    if number is not None:
        if not math.isfinite(number):
            raise BadRow(key, repr(value), _ACCEPTED)
        if second is not None:
            return number * second, number * second >= 1e9
        for low, factor in _NUMERIC_SCALES:
            if number >= low:
                return number * factor, True
        return number, number >= 1e9
    if not isinstance(value, str):
        raise BadRow(key, "nothing" if value is None else repr(value)[:40], _ACCEPTED)
    return _calendar(value, key), True


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _calendar(text: str, key: str) -> float:
    match = _FRACTION.search(text)
    fraction = float(f"0.{match[1]}") if match else 0.0
    whole = text if match is None else text[:match.start()] + text[match.end():]
    try:
        when = datetime.fromisoformat(whole.strip())
    except ValueError:
        raise BadRow(key, repr(text)[:40], _ACCEPTED) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() + fraction
