"""From a sweep to its cases: every one a whole scenario with a digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kvsim.batch.spec import Axis, Batch, digest_of
from kvsim.errors import KvsimError, ScenarioError
from kvsim.scenario import Scenario, with_value

_UNNAMED = ("name", "description")


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario of a sweep.

    Attributes
    ----------
    number : int
        Place in the sweep, from 0.
    settings : dict
        Field -> value that the axes gave it.
    seed : int
        Seed of this replication.
    data : dict
        The whole scenario as plain data, without name and description where it is valid.
    digest : str
        Of `data`, as 16 hex digits: cases with equal digests have equal results.
    fault : KvsimError or None
        Why the data are no scenario.
    """

    number: int
    settings: dict[str, Any]
    seed: int
    data: dict[str, Any]
    digest: str
    fault: KvsimError | None = None

    @property
    def label(self) -> str:
        """The settings and the seed in words, e.g. ``concurrency=8 tiers=[] seed=0``."""
        parts = [f"{name.rsplit('.', 1)[-1]}={brief(value)}" for name, value in self.settings.items() if name != "seed"]
        return " ".join([*parts, f"seed={self.seed}"])


def brief(value: Any) -> str:
    """A setting in a few characters; mappings by what names them.

    >>> brief([{"kind": "dram", "capacity": "1 TB", "write": "eager"}])
    'dram:1 TB'
    """
    if isinstance(value, Mapping):
        known = cast("Mapping[str, Any]", value)
        named = [str(known[k]) for k in ("kind", "preset", "trace", "capacity") if k in known]
        return ":".join(named) or json.dumps(value)
    if isinstance(value, list | tuple):
        return "+".join(brief(v) for v in cast("list[Any]", value)) or "none"
    return str(value)


def expand(batch: Batch) -> list[Case]:
    """All cases of a sweep, in order: the first axis varies slowest, replications fastest.

    Raises
    ------
    ScenarioError
        Not one case is a valid scenario: a mistake in the base or a misspelt field rather than a combination
        that cannot be.

    Examples
    --------
    >>> from kvsim.batch.spec import load_batch
    >>> cases = expand(load_batch({"name": "x", "base": "k3-b300-study", "replications": 2,
    ...     "axes": [{"grid": {"workload.concurrency": [4, 8]}}]}))
    >>> [case.label for case in cases]
    ['concurrency=4 seed=0', 'concurrency=4 seed=1', 'concurrency=8 seed=0', 'concurrency=8 seed=1']
    """
    base = {k: v for k, v in cast("dict[str, Any]", batch.base).items() if k != "study"}
    points: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, _with_all(base, batch.set_))]
    for axis in batch.axes:
        points = [step for point in points for step in _steps(axis, *point)]
    seeded = [(settings, data, k) for settings, data in points for k in range(batch.replications)]
    cases = [_case(n, settings, _seeded(data, k)) for n, (settings, data, k) in enumerate(seeded)]
    faults = [case.fault for case in cases if case.fault is not None]
    if len(faults) == len(cases):
        raise faults[0]
    return cases


def _steps(axis: Axis, settings: dict[str, Any], data: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if not all(value_at(data, field) in _options(wanted) for field, wanted in axis.when.items()):
        return [(settings, data)]
    return [({**settings, **point}, _with_all(data, point)) for point in axis.points()]


def _options(wanted: Any) -> list[Any]:
    return cast("list[Any]", wanted) if isinstance(wanted, list) and wanted else [wanted]


def _with_all(data: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    for field, value in values.items():
        data = with_value(data, field, value)
    return data


def value_at(data: Any, field: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    for part in field.split("."):
        if isinstance(data, Mapping):
            data = cast("Mapping[str, Any]", data).get(part)
        elif isinstance(data, list) and part.isdigit() and int(part) < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[int(part)]
        else:
            return None
    return data


def _seeded(data: dict[str, Any], replication: int) -> dict[str, Any]:
    seed = data.get("seed", 0)
    return {**data, "seed": seed + replication} if isinstance(seed, int) else data


def _case(number: int, settings: dict[str, Any], data: dict[str, Any]) -> Case:
    seed = data["seed"] if isinstance(data.get("seed"), int) else 0
    named = {**data, "name": data.get("name") or "case", "description": ""}
    try:
        scenario = Scenario.from_dict(named, f"case {number}")
    except ScenarioError as err:
        bare = {k: v for k, v in data.items() if k not in _UNNAMED}
        return Case(number, settings, seed, bare, digest_of(bare), err)
    whole = {k: v for k, v in scenario.to_dict().items() if k not in _UNNAMED}
    return Case(number, settings, seed, whole, scenario.digest)
