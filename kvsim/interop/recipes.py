"""Shipped launch commands: dated, with their GPU and source, one file each in ``recipes/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.paths import data_root
from kvsim.profiles.yamlio import parse_yaml

SCHEMA = "kvsim/recipe/1"
_NEEDED = ("name", "gpu", "engine", "version", "date", "source", "command")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A launch command as somebody published it.

    Attributes
    ----------
    name, gpu, engine, version, date : str
        Name of the file, GPU profile, engine, its version, and the date of the source (YYYY-MM-DD).
    source : str
        URL.
    command : str
        As published; ``note`` says what was filled in.
    note : str
        What is special.
    engine_profile : str or None
        Engine profile to read it with, where the engine's newest is not the one.
    """

    name: str
    gpu: str
    engine: str
    version: str
    date: str
    source: str
    command: str
    note: str = ""
    engine_profile: str | None = None


def recipe_paths() -> dict[str, Path]:
    """Name -> file of every shipped recipe."""
    return {p.stem: p for p in sorted((data_root() / "recipes").glob("*.yaml"))}


def load_recipe(path: Path) -> Recipe:
    """Read one recipe.

    Raises
    ------
    ScenarioError
        Missing or unknown keys, or a name that is not the file's.
    """
    data = {k: str(v) for k, v in parse_yaml(path.read_text(encoding="utf-8"), str(path), ScenarioError).items()}
    schema = data.pop("schema", "")
    problems = [Problem(str(path), key, "", "a text") for key in _NEEDED if not data.get(key)]
    known = set(Recipe.__dataclass_fields__)
    problems += [Problem(str(path), key, "an unknown key", ", ".join(sorted(known))) for key in data.keys() - known]
    if schema != SCHEMA:
        problems.append(Problem(str(path), "schema", repr(schema), SCHEMA))
    if data.get("name") != path.stem:
        problems.append(Problem(str(path), "name", repr(data.get("name")), f"{path.stem!r}, the file's name"))
    if problems:
        raise ScenarioError(f"{path} is not a valid recipe", problems)
    return Recipe(**data)


def find_recipe(name: str) -> Recipe | None:
    """The shipped recipe of that name, if there is one.

    >>> find_recipe("vllm serve x") is None
    True
    """
    path = recipe_paths().get(name)
    return None if path is None else load_recipe(path)
