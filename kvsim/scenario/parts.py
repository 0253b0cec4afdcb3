"""What the parts of a scenario share: quantities with units, and their base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from kvsim.units import parse, tokens

SCHEMA = "kvsim/scenario/1"


def quantity(dimension: str, bare: str | None = None) -> Any:
    """A number with a unit of a dimension as one in base units; `bare` is the unit of numbers without."""
    return BeforeValidator(lambda given: given if given is None else parse(given, dimension, bare=bare))


Bytes = Annotated[float, quantity("B", "B"), Field(gt=0)]
BytesPerSecond = Annotated[float, quantity("B/s", "B/s"), Field(gt=0)]
Seconds = Annotated[float, quantity("s", "s"), Field(ge=0)]
PositiveSeconds = Annotated[float, quantity("s", "s"), Field(gt=0)]
Rate = Annotated[float, quantity("1/s", "/s"), Field(gt=0)]
UsdPerHour = Annotated[float, quantity("USD/h", "USD/h"), Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(gt=0), BeforeValidator(tokens)]
TokensOrZero = Annotated[int, Field(ge=0), BeforeValidator(tokens)]
Frac = Annotated[float, Field(gt=0, le=1)]
Percentile = Literal["mean", "p50", "p90", "p95", "p99"]


class Part(BaseModel):
    """Base of the parts of a scenario: unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)
