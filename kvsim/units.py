"""Units: the only place that knows what ``80 GiB`` means.

Inside kvsim every number is in a base unit (bytes, seconds, FLOP/s, watts, dollars). Text with
units is read here, at the edge, and numbers are turned back into text here.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_IEC = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _table() -> dict[str, tuple[str, float]]:
    table: dict[str, tuple[str, float]] = {
        "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "ns": ("s", 1e-9),
        "min": ("s", 60.0), "h": ("s", 3600.0), "day": ("s", 86400.0), "year": ("s", 365.0 * 86400.0),
        "frac": ("frac", 1.0), "%": ("frac", 0.01), "count": ("count", 1.0), "tokens": ("tokens", 1.0),
        "USD": ("USD", 1.0), "USD/h": ("USD/h", 1.0), "USD/kWh": ("USD/kWh", 1.0),
        "USD/GB": ("USD/byte", 1e-9), "USD/TB": ("USD/byte", 1e-12), "USD/Mtok": ("USD/Mtok", 1.0),
        "USD/kW-month": ("USD/kW-month", 1.0),
        "GHz": ("Hz", 1e9), "MHz": ("Hz", 1e6),
        "/s": ("1/s", 1.0), "/min": ("1/s", 1 / 60), "/h": ("1/s", 1 / 3600),
        "params": ("params", 1.0), "Mparams": ("params", 1e6), "Gparams": ("params", 1e9), "Tparams": ("params", 1e12),
    }
    for prefix, factor in (_SI | _IEC).items():
        table[prefix + "B"] = ("B", factor)
        table[prefix + "B/s"] = ("B/s", factor)
    for prefix, factor in _SI.items():
        table[prefix + "bit/s"] = ("B/s", factor / 8)
        table[prefix + "FLOPS"] = ("FLOP/s", factor)
        table[prefix + "FLOP/s"] = ("FLOP/s", factor)
        table[prefix + "W"] = ("W", factor)
    return table


UNITS = MappingProxyType(_table())
"""Unit text -> (dimension, factor to its base unit)."""

_HUMAN = re.compile(r"^(\d+)(?:\.(\d+))?([kKmMgG]?)$")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def units_of(dimension: str) -> list[str]:
    """All unit texts of one dimension, in the order of the table."""
    return [u for u, (d, _) in UNITS.items() if d == dimension]


def to_base(value: float, unit: str, dimension: str) -> float:
    """Turn a number with a unit into the base unit of its dimension.

    Parameters
    ----------
    value : float
        Finite number.
    unit : str
        A key of `UNITS`.
    dimension : str
        ``"B"``, ``"B/s"``, ``"FLOP/s"``, ``"s"``, ``"W"``, ``"USD/h"``, ... as in `UNITS`.

    Returns
    -------
    float
        The value in bytes, bytes/s, FLOP/s, seconds, watts, ...

    Raises
    ------
    ValueError
        Unknown unit, a unit of another dimension, or a number that is not finite.

    Examples
    --------
    >>> to_base(80, "GiB", "B")
    85899345920.0
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; accepted: {', '.join(units_of(dimension))}")
    found, factor = UNITS[unit]
    if found != dimension:
        raise ValueError(f"unit {unit!r}, which measures {found}; accepted: {', '.join(units_of(dimension))}")
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value * factor


def parse(text: str | int | float, dimension: str, *, bare: str | None = None) -> float:
    """Read ``"1889 GB"`` (or a bare number, if `bare` names its unit) into the base unit.

    Raises
    ------
    ValueError
        No number, no unit where one is needed, unknown or wrong unit, not finite.

    Examples
    --------
    >>> parse("1889 GB", "B")
    1889000000000.0
    """
    if isinstance(text, int | float):
        if bare is None:
            raise ValueError(f"missing unit; accepted: a number with one of {', '.join(units_of(dimension))}")
        return to_base(float(text), bare, dimension)
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit; accepted: e.g. '1 {units_of(dimension)[0]}'")
    number, unit = float(match[1].replace(",", "").replace("_", "")), match[2]
    if not unit:
        return parse(number, dimension, bare=bare)
    return to_base(number, unit, dimension)


def human_int(text: str) -> int | None:
    """A whole number with vLLM's suffixes: lower case counts in thousands, upper case in 1,024s; None for other text.

    >>> human_int("32k"), human_int("1M"), human_int("25.6k"), human_int("x")
    (32000, 1048576, 25600, None)
    """
    match = _HUMAN.match(text.strip().replace(",", "").replace("_", ""))
    if match is None or (match[2] and match[3] in ("", "K", "M", "G")):
        return None
    if match[3] in _BINARY:
        return int(match[1]) * _BINARY[match[3]]
    return round(float(f"{match[1]}.{match[2] or 0}") * _DECIMAL[match[3]])


def tokens(given: object) -> object:
    """A number of tokens as people write it (``"32k"`` is 32,000, ``"32K"`` 32,768, as vLLM reads them); else as given.

    Raises
    ------
    ValueError
        Text that is no such number.

    >>> tokens("32K"), tokens("128 tokens"), tokens(7)
    (32768, 128, 7)
    """
    if not isinstance(given, str):
        return given
    found = human_int(given.strip().removesuffix("tokens"))
    if found is None:
        raise ValueError(f"{given!r}; accepted: a whole number, e.g. 8000, 32k (32,000) or 32K (32,768)")
    return found


def gib(num_bytes: float) -> str:
    """Bytes as GiB with two decimals.

    >>> gib(3 * 2**30)
    '3.00 GiB'
    """
    return f"{num_bytes / 2**30:,.2f} GiB"


def si(value: float, unit: str) -> str:
    """A number with an SI prefix: three significant digits.

    >>> si(3_249_215, "tokens")
    '3.25M tokens'
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix} {unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()
