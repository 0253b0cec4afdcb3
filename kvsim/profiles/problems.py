"""Turn pydantic's errors into kvsim's: where, what was given, what is accepted, nearest match."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.yamlio import read_yaml

Checked = TypeVar("Checked", bound=BaseModel)

_NOT_PATH = ("function-before", "function-after", "function-wrap", "tagged-union", "constrained-")

# Start of pydantic's error type -> what was wanted, in words that do not need Python.
_PLAINLY = types.MappingProxyType({
    "model_": "a mapping of keys to values", "dict_": "a mapping of keys to values", "tuple_": "a list",
    "int_": "a whole number", "float_": "a number", "finite_": "a finite number", "string_type": "text",
    "bool_": "true or false", "invalid_key": "keys that are text",
})


def problems_of(err: ValidationError, where: str, cls: type[BaseModel], data: Mapping[str, Any]) -> list[Problem]:
    """All problems of a failed validation, in the order of the file.

    Parameters
    ----------
    err : ValidationError
        What pydantic raised.
    where : str
        File or input name.
    cls : type of BaseModel
        Schema that was checked; names what would have been accepted.
    data : mapping
        Plain data that was checked.
    """
    return [_problem(e, where, cls, data) for e in err.errors(include_url=False)]


def read_checked(path: str | Path, cls: type[Checked], what: str) -> Checked:
    """Read and check a YAML file that is no profile of a store: a calibration, measurements.

    Parameters
    ----------
    path : str or Path
        The file.
    cls : type of BaseModel
        Its schema.
    what : str
        What it should be, for messages.

    Raises
    ------
    ProfileError
        It cannot be read, is not YAML, or has wrong fields (all of them named).
    """
    data = read_yaml(path, ProfileError, what)
    try:
        return cls.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as err:
        raise ProfileError(f"{path} is not {what}", problems_of(err, str(path), cls, data)) from None


def short(given: Any, limit: int = 60) -> str:
    """A value as it would be written, cut to `limit` characters."""
    text = repr(given)
    return text if len(text) <= limit else text[:limit - 3] + "..."


def _problem(error: Any, where: str, cls: type[BaseModel], data: Mapping[str, Any]) -> Problem:
    loc = [p for p in error["loc"] if p != "[key]" and not str(p).startswith(_NOT_PATH)]
    if loc[-1:] == ["kind"] and isinstance(_value_at(data, loc[:-1]), str):
        loc.pop()  # "router: name" is short for "router: {kind: name}"
    kind, given = error["type"], error.get("input")
    field = ".".join(str(p) for p in _without_tags(loc, data))
    if kind == "union_tag_invalid":
        tag, expected = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        return Problem(where, f"{field}.kind", repr(tag), expected, nearest(tag, re.findall("'([^']*)'", expected)))
    if kind == "union_tag_not_found":
        return Problem(where, f"{field}.kind", "", _missing_accepted("kind"))
    if kind == "extra_forbidden":
        known = sorted(_fields_at(cls, loc[:-1]))
        return Problem(where, field, "an unknown key", ", ".join(known), nearest(str(loc[-1]), known))
    if kind == "missing":
        return Problem(where, field, "", _missing_accepted(str(loc[-1])))
    if kind == "value_error":
        return _split_message(where, field, given, str(error["ctx"]["error"]))
    if kind in ("literal_error", "enum"):
        expected = str(error["ctx"]["expected"])
        return Problem(where, field, short(given), expected, nearest(str(given), re.findall("'([^']*)'", expected)))
    return Problem(where, field, short(given), _accepted(error))


def _without_tags(loc: Sequence[int | str], data: Any) -> list[int | str]:
    """A place without the kinds that pydantic puts behind parts which may be of several."""
    found: list[int | str] = []
    for part in loc:
        held = _value_at(data, found)
        if not (isinstance(held, Mapping) and part not in held and cast("Any", held).get("kind") == part):
            found.append(part)
    return found


def _value_at(data: Any, loc: Sequence[int | str]) -> Any:
    """What stands at a place of plain data; None if nothing does."""
    for part in loc:
        if not isinstance(data, Mapping | list):
            return None
        try:
            data = cast("Any", data)[part]
        except (LookupError, TypeError):
            return None
    return data


def _split_message(where: str, field: str, given: Any, message: str) -> Problem:
    said, found, accepted = message.partition("; accepted: ")
    if found:
        named = said.startswith(short(given)) or not isinstance(given, str | int | float)
        value = "" if named else f"{short(given)}, "
        return Problem(where, field, value + said, accepted)
    return Problem(where, field, short(given), message)


def _missing_accepted(name: str) -> str:
    if name == "unit":
        return "a unit beside the value, e.g. GB/s, GiB, TFLOPS, W"
    return f"a value for {name!r}"


def _accepted(error: Any) -> str:
    for start, plainly in _PLAINLY.items():
        if str(error["type"]).startswith(start):
            return plainly
    message = str(error["msg"])
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _fields_at(cls: type[BaseModel], loc: list[Any]) -> Iterable[str]:
    models: list[type[BaseModel]] = [cls]
    for part in loc:
        inner = [m for model in models for m in _step(model, part)]
        models = inner or models
    return {f.alias or n for m in models for n, f in m.model_fields.items()}


def _step(model: type[BaseModel], part: Any) -> list[type[BaseModel]]:
    for name, info in model.model_fields.items():
        if part in (name, info.alias):
            return list(_models_in(info.annotation))
    kind = model.model_fields.get("kind")
    return [model] if kind is not None and part in typing.get_args(kind.annotation) else []


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for arg in typing.get_args(annotation):
            yield from _models_in(arg)
