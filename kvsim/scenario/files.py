"""Scenario files and their like: where they are, which kind they are, single fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.profiles.paths import data_root
from kvsim.profiles.yamlio import parse_yaml

_TAKEN_BY = {"scenario": "kvsim run", "sweep": "kvsim sweep", "recipe": "kvsim import-command"}


def refuse_other_files(data: Mapping[str, Any], where: str, wanted: str) -> None:
    """Say which command takes a file of another kind, instead of every field in which the kinds differ.

    Raises
    ------
    ScenarioError
        The file's ``schema`` is another kind than that of `wanted`, or it is a model's ``config.json``.
    """
    given, kind = str(data.get("schema", wanted)), wanted.split("/")[1]
    if "schema" not in data and "model_type" in data:
        problem = Problem(where, "", "a model's config.json", wanted, "'kvsim profiles import' makes a model of it")
        raise ScenarioError(f"{where} is not a {kind}", [problem])
    if given.startswith("kvsim/") and given.split("/")[1] != kind:
        taker = _TAKEN_BY.get(given.split("/")[1], "kvsim profiles check")
        raise ScenarioError(f"{where} is not a {kind}",
                            [Problem(where, "schema", repr(given), repr(wanted), f"'{taker}' takes such files")])


def shipped_files(schema: str) -> dict[str, Path]:
    """Name -> path of the files of a schema that come with kvsim.

    >>> "k3-cliff-sweep" in shipped_files("kvsim/sweep/1"), "k3-cliff-sweep" in shipped_files("kvsim/scenario/1")
    (True, False)
    """
    paths = sorted((data_root() / "scenarios").glob("*.yaml"))
    return {p.stem: p for p in paths if p.read_text(encoding="utf-8").startswith(f"schema: {schema}")}


def find_file(source: str | Path, schema: str) -> Path:
    """Path of a file of a schema given as a path or a shipped name.

    Raises
    ------
    ScenarioError
        Neither; names the nearest.
    """
    shipped, kind = shipped_files(schema), schema.split("/")[1]
    if str(source) in shipped:
        return shipped[str(source)]
    for path in (Path(source), data_root() / "scenarios" / f"{source}.yaml"):
        if path.is_file():
            return path
    accepted = f"a YAML file, or one of {', '.join(shipped)}"
    raise ScenarioError(f"no such {kind}", [Problem(kind, "", repr(str(source)), accepted,
                                                    nearest(Path(source).stem, list(shipped)))])


def apply_override(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Plain data with one ``a.b.0.c=value`` applied; the input is not changed.

    >>> apply_override({"engine": {"kv_dtype": "bf16"}}, "engine.kv_dtype=fp8")
    {'engine': {'kv_dtype': 'fp8'}}
    """
    path, found, value = text.partition("=")
    if not found or not path:
        raise ScenarioError("cannot apply --set", [Problem("--set", "", repr(text), "path=value, e.g. seed=3")])
    parsed: Any = parse_yaml(f"value: {value}", f"--set {path}", ScenarioError)["value"]
    return _with(data, path.split("."), parsed, text)


def with_value(data: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Plain data with one field set, named by its dotted path; the input is not changed.

    >>> with_value({"tiers": [{"kind": "dram"}]}, "tiers.0.write", "lazy")
    {'tiers': [{'kind': 'dram', 'write': 'lazy'}]}
    """
    return _with(data, field.split("."), value, field)


def _with(part: Any, path: list[str], value: Any, text: str) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(part, list):
        items: list[Any] = list(part)  # pyright: ignore[reportUnknownArgumentType]
        if not head.isdigit() or int(head) > len(items):
            accepted = f"a position from 0 to {len(items)}"
            raise ScenarioError("cannot apply --set", [Problem("--set", text, repr(head), accepted)])
        at = int(head)
        return items[:at] + [_with(items[at] if at < len(items) else {}, rest, value, text)] + items[at + 1:]
    if part is None and head == "0":
        return [_with({}, rest, value, text)]
    inner: dict[str, Any] = dict(part) if isinstance(part, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType]
    return {**inner, head: _with(inner.get(head), rest, value, text)}
