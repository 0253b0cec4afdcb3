"""A preset of agentic traffic as plain data and as a YAML file (``kvsim/preset/1``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import yaml

from kvsim.errors import Problem, TraceError
from kvsim.workload.lengths import LogNormal, Mixture
from kvsim.workload.presets import AgenticPreset, FanOut

SCHEMA = "kvsim/preset/1"


def preset_to_dict(preset: AgenticPreset) -> dict[str, Any]:
    """Parameters as plain data; bounds that do not bind are left out.

    >>> from kvsim.workload.presets import preset
    >>> preset_to_dict(preset("claude-code"))["turns"]
    {'median': 39, 'sigma': 1.16, 'low': 1, 'high': 500}
    """
    plain = {key: _plain(value) for key, value in asdict(preset).items()}
    return {"schema": SCHEMA, **plain}


def preset_from_dict(data: Mapping[str, Any], where: str = "preset") -> AgenticPreset:
    """The inverse of `preset_to_dict`.

    Raises
    ------
    TraceError
        Unknown or missing parameters, or values of another kind.

    Examples
    --------
    >>> from kvsim.workload.presets import preset
    >>> preset_from_dict(preset_to_dict(preset("agentx-v1"))) == preset("agentx-v1")
    True
    """
    known = [f.name for f in fields(AgenticPreset)]
    problems = [Problem(where, key, "", "a parameter of a preset") for key in known if key not in data]
    problems += [Problem(where, key, repr(data[key])[:40], ", ".join(known)) for key in data
                 if key not in known and key != "schema"]
    if data.get("schema") != SCHEMA:
        problems.append(Problem(where, "schema", repr(data.get("schema")), SCHEMA))
    if problems:
        raise TraceError(f"{where} is no preset", problems)
    try:
        values = {key: _parameter(value) for key, value in data.items() if key != "schema"}
        if values["fan_out"] is not None:
            fan = cast("dict[str, Any]", values["fan_out"])
            values["fan_out"] = FanOut(**_checked(FanOut, {key: _parameter(value) for key, value in fan.items()}))
        return AgenticPreset(**_checked(AgenticPreset, values))
    except (TypeError, ValueError, KeyError) as error:
        raise TraceError(f"{where} is no preset", [
            Problem(where, "", str(error), "numbers and distributions")]) from error


def load_preset(path: str | Path) -> AgenticPreset:
    """Read a preset that ``kvsim trace fit`` wrote.

    Raises
    ------
    TraceError
        Unreadable file, or no preset in it.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", str(error).splitlines()[0], f"YAML of {SCHEMA}")]) from error
    if not isinstance(data, dict):
        raise TraceError(f"cannot read {path}", [Problem(str(path), "", "no mapping", f"YAML of {SCHEMA}")])
    return preset_from_dict(cast("dict[str, Any]", data), str(path))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        free = {"low": 0.0, "high": math.inf}
        return {k: _plain(v) for k, v in given.items() if k not in free or free[k] != v}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in cast("Sequence[Any]", value)]
    return value


def _parameter(value: Any) -> Any:
    """A distribution or number from plain data."""
    if isinstance(value, dict) and "median" in value:
        return LogNormal(**cast("dict[str, float]", value))
    if isinstance(value, dict) and "parts" in value:
        return Mixture(tuple((float(w), LogNormal(**d)) for w, d in cast("dict[str, Any]", value)["parts"]))
    return cast(Any, value)


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "bool": (bool,), "int": (int,), "float": (int, float), "LogNormal": (LogNormal,),
    "Mixture": (Mixture,), "FanOut | None": (FanOut, type(None))}


def _checked(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Values of the kinds that a class declares."""
    for name, declared in cast("dict[str, str]", kind.__annotations__).items():
        if name in values and not isinstance(values[name], _KINDS[declared]):
            raise ValueError(f"{name}: {values[name]!r} is no {declared}")
    return values
