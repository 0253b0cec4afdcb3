"""A scenario from a path, a shipped name or plain data, and what is said where it names something unknown."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.errors import ProfileError, ScenarioError
from kvsim.profiles.yamlio import read_yaml
from kvsim.scenario.files import apply_override, find_file, shipped_files
from kvsim.scenario.parts import SCHEMA
from kvsim.scenario.whole import Scenario


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a path, a shipped name or plain data.

    Parameters
    ----------
    source : str, Path or mapping
        YAML file, name of a shipped scenario (``"k3-b300-study"``), or plain data.
    overrides : sequence of str, or str
        ``"engine.kv_dtype=fp8"``; list items by number (``tiers.0.capacity=2TB``); values are YAML.

    Raises
    ------
    ScenarioError
        Not found (with the nearest shipped name), not YAML, or any number of wrong fields.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "scenario"
    else:
        path = find_scenario(source)
        data, where = read_yaml(path, ScenarioError), str(path)
    overrides = (overrides,) if isinstance(overrides, str) else overrides
    for text in overrides:
        data = apply_override(data, text)
    return Scenario.from_dict(data, " ".join([where, *(f"--set {text}" for text in overrides)]))


@contextmanager
def naming(scenario: Scenario, field: str) -> Generator[None]:
    """Let an unknown profile be reported as the field of the scenario that names it.

    Raises
    ------
    ProfileError
        What was raised inside, with the scenario's origin and `field` where only a kind of profile was named.
    """
    try:
        yield
    except ProfileError as err:
        problems = [replace(p, where=scenario.origin, field=field) if p.where.endswith(" profile") and not p.field
                    else p for p in err.problems]
        raise ProfileError(err.message, problems) from None


def shipped_scenarios() -> dict[str, Path]:
    """Name -> path of the scenarios that come with kvsim."""
    return shipped_files(SCHEMA)


def find_scenario(source: str | Path) -> Path:
    """Path of a scenario given as a path or a shipped name."""
    return find_file(source, SCHEMA)
