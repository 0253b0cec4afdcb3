"""What a sweep is, as written: a base scenario and the axes along which it varies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from kvsim.errors import ScenarioError
from kvsim.profiles.problems import problems_of
from kvsim.profiles.yamlio import read_yaml
from kvsim.scenario import Part, Positive, find_file, find_scenario, refuse_other_files, shipped_files

SCHEMA = "kvsim/sweep/1"

Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Point = Annotated[dict[str, Any], Field(min_length=1)]


class Axis(Part):
    """One way in which the cases differ; the axes of a sweep multiply.

    Attributes
    ----------
    grid : mapping of field to values
        Every combination of the values.
    zip_ : mapping of field to values (``zip`` in YAML)
        The fields step together: first values, second values, ...
    list_ : list of mappings (``list`` in YAML)
        Each entry sets several fields.
    when : mapping of field to a value or a list of values
        The axis applies only where the fields have one of these values, by base and earlier axes; elsewhere it
        is left out and the case is not multiplied.

    Examples
    --------
    >>> Axis.model_validate({"zip": {"layout.tp": [4, 8], "hardware.num_gpus": [4, 8]}}).points()[1]
    {'layout.tp': 8, 'hardware.num_gpus': 8}
    """

    grid: Annotated[dict[str, Values], Field(min_length=1)] | None = None
    zip_: Annotated[dict[str, Values], Field(min_length=1)] | None = Field(default=None, alias="zip")
    list_: Annotated[tuple[Point, ...], Field(min_length=1)] | None = Field(default=None, alias="list")
    when: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _one_form(self) -> Axis:
        given = [n for n, v in (("grid", self.grid), ("zip", self.zip_), ("list", self.list_)) if v is not None]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'none of them'}; accepted: exactly one of grid, zip, list")
        if self.zip_ is not None and len({len(v) for v in self.zip_.values()}) > 1:
            raise ValueError("zip with lists of different lengths; accepted: one length")
        return self

    def points(self) -> list[dict[str, Any]]:
        """The settings this axis steps through, in order; the last field of a grid varies fastest."""
        if self.list_ is not None:
            return [dict(point) for point in self.list_]
        if self.zip_ is not None:
            names = list(self.zip_)
            return [dict(zip(names, values, strict=True)) for values in zip(*self.zip_.values(), strict=True)]
        points: list[dict[str, Any]] = [{}]
        for name, values in (self.grid or {}).items():
            points = [{**point, name: value} for point in points for value in values]
        return points


class Batch(Part):
    """A sweep as written (``kvsim/sweep/1``).

    ``base`` is a scenario: the name of a shipped one, a path (relative to the sweep's file), or written inline. Its
    ``study`` is dropped: the axes take its place. ``set`` changes fields before the axes do. Replication k of a case
    runs with the scenario's seed + k, so that cases that differ in hardware only see the same traffic.
    """

    schema_: Literal["kvsim/sweep/1"] = Field(default=SCHEMA, alias="schema")
    name: str
    description: str = ""
    base: str | dict[str, Any]
    set_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="set")
    axes: tuple[Axis, ...] = ()
    replications: Positive = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `load_batch` reads back to an equal sweep."""
        # Not exclude_none: a field that an axis sets to nothing is not a field that it leaves alone.
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def digest(self) -> str:
        """Digest of the whole sweep, its base included, as 16 hex digits."""
        return digest_of(self.to_dict())


def digest_of(data: Mapping[str, Any]) -> str:
    """Digest of plain data, as 16 hex digits; the order of keys does not matter.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def load_batch(source: Batch | str | Path | Mapping[str, Any]) -> Batch:
    """Read a sweep, with its base scenario inlined.

    Parameters
    ----------
    source : Batch, str, Path or mapping
        A sweep, the path or shipped name of one, or plain data.

    Raises
    ------
    ScenarioError
        Not found, not YAML, or any number of wrong fields.

    Examples
    --------
    >>> load_batch("k3-cliff-sweep").base["model"]
    'kimi-k3'
    """
    if isinstance(source, Batch):
        return source
    if isinstance(source, Mapping):
        return _checked(dict(source), "sweep", Path())
    path = find_file(source, SCHEMA)
    return _checked(read_yaml(path, ScenarioError), str(path), path.parent)


def shipped_sweeps() -> dict[str, Path]:
    """Name -> path of the sweeps that come with kvsim."""
    return shipped_files(SCHEMA)


def _shipped(base: str, where: str) -> Path:
    """The file of a base that does not lie beside its sweep."""
    try:
        return find_scenario(base)
    except ScenarioError as err:
        raise ScenarioError(err.message, [replace(p, where=where, field="base") for p in err.problems]) from None


def _checked(data: dict[str, Any], where: str, folder: Path) -> Batch:
    refuse_other_files(data, where, SCHEMA)
    try:
        batch = Batch.model_validate(data)
    except ValidationError as err:
        raise ScenarioError(f"{where} is not a valid sweep", problems_of(err, where, Batch, data)) from None
    if isinstance(batch.base, Mapping):
        return batch
    beside = folder / batch.base
    path = beside if beside.is_file() else _shipped(batch.base, where)
    return batch.model_copy(update={"base": read_yaml(path, ScenarioError)})
