"""A number that carries its origin: value + unit + kind + source (+ range)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from kvsim.units import UNITS, to_base, units_of

FigureKind = Literal["nominal", "measured", "derived", "assumed"]


class Strict(BaseModel):
    """Base of every profile part: unknown keys are errors, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class Figure(Strict):
    """One number of a profile.

    ``kind`` is *nominal* (a data sheet), *measured* (somebody ran it), *derived* (computed from
    other figures; ``note`` says how) or *assumed* (nobody knows: ``why`` and ``range`` are needed).
    ``source`` is a key of the profile's ``sources``. ``range`` is in the same unit as ``value``.
    """

    value: float
    unit: str
    kind: FigureKind
    source: str
    note: str = ""
    why: str = ""
    range: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _check(self) -> Figure:
        if self.unit not in UNITS:
            raise ValueError(f"unknown unit {self.unit!r}; accepted: one of {', '.join(UNITS)}")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"value {self.value:g}; accepted: a finite number that is not negative")
        if self.kind == "assumed" and (not self.why or self.range is None):
            raise ValueError("kind 'assumed' alone; accepted: 'why' and 'range: [low, high]' beside it")
        if self.range is not None and not self.range[0] <= self.value <= self.range[1]:
            raise ValueError(f"value {self.value:g}; accepted: one inside the range {list(self.range)}")
        return self

    @property
    def base(self) -> float:
        """The value in the base unit of its dimension (bytes, bytes/s, FLOP/s, s, W, ...)."""
        return to_base(self.value, self.unit, UNITS[self.unit][0])

    @property
    def base_range(self) -> tuple[float, float]:
        """The range in the base unit; (value, value) when none is stated."""
        low, high = self.range or (self.value, self.value)
        dimension = UNITS[self.unit][0]
        return to_base(low, self.unit, dimension), to_base(high, self.unit, dimension)


def _checker(dimension: str) -> Any:
    def check(figure: Figure) -> Figure:
        if UNITS[figure.unit][0] != dimension:
            raise ValueError(f"unit {figure.unit!r}, which measures {UNITS[figure.unit][0]}; "
                             f"accepted: {', '.join(units_of(dimension))}")
        return figure

    return AfterValidator(check)


Bytes = Annotated[Figure, _checker("B")]
BytesPerS = Annotated[Figure, _checker("B/s")]
FlopPerS = Annotated[Figure, _checker("FLOP/s")]
Seconds = Annotated[Figure, _checker("s")]
Watts = Annotated[Figure, _checker("W")]
Hertz = Annotated[Figure, _checker("Hz")]
Count = Annotated[Figure, _checker("count")]
Frac = Annotated[Figure, _checker("frac")]
Params = Annotated[Figure, _checker("params")]
UsdPerHour = Annotated[Figure, _checker("USD/h")]
UsdPerByte = Annotated[Figure, _checker("USD/byte")]
UsdPerMtok = Annotated[Figure, _checker("USD/Mtok")]
Usd = Annotated[Figure, _checker("USD")]
UsdPerKwh = Annotated[Figure, _checker("USD/kWh")]
UsdPerKwMonth = Annotated[Figure, _checker("USD/kW-month")]


class Source(Strict):
    """Where a figure comes from: a page, a log, a measurement of our own."""

    title: str
    url: str = ""
    accessed: str
    note: str = ""


class Profile(Strict):
    """What every profile file has: schema, name, aliases and sources.

    Every `Figure` inside must name one of the ``sources`` and every source must be used.
    """

    # Any: every kind of profile narrows it to its own literal.
    schema_: Any = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: dict[str, Source]


def figures_in(part: Any, path: str = "") -> list[tuple[str, Figure]]:
    """All (dotted path, figure) pairs of a profile part, in file order."""
    if isinstance(part, Figure):
        return [(path, part)]
    return [pair for name, child in children_of(part) for pair in figures_in(child, f"{path}.{name}" if path else name)]


def children_of(part: Any) -> list[tuple[str, Any]]:
    """(name, part) of everything right inside a profile part, in file order; lists count from 0.

    >>> children_of({"a": 1}), children_of(("x", "y")), children_of(3)
    ([('a', 1)], [('0', 'x'), ('1', 'y')], [])
    """
    if isinstance(part, BaseModel):
        return [(name, getattr(part, name)) for name in type(part).model_fields]
    if isinstance(part, Mapping):
        return [(str(key), value) for key, value in cast("Mapping[Any, Any]", part).items()]
    if isinstance(part, tuple | list):
        return [(str(number), value) for number, value in enumerate(cast("Sequence[Any]", part))]
    return []
