"""Figures with ranges: which ones move a scenario, values drawn from them, and profiles that carry those values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from kvsim.billing import STORAGE, hourly_bill
from kvsim.errors import InfeasibleError
from kvsim.profiles.figure import Figure, Profile, children_of
from kvsim.profiles.store import Kind, ProfileStore
from kvsim.resolve import Resolved, resolve
from kvsim.rng import stream
from kvsim.scenario import Scenario
from kvsim.simulation import step_time_of
from kvsim.steptime.base import StepBatch, step_s

Path = tuple[str, ...]
Key = tuple[Kind, str, Path]
Values = Mapping[Key, float]
"""Figures by kind and name of their profile and their place in it, in the units of the profile."""

MOST_FIGURES = 8
"""Figures that are drawn: those whose ranges move speed, memory or bill the most."""
LEAST_EFFECT = 1e-3
"""A figure that moves none of them by this share is left as it is."""
PROBE_TOKENS, PROBE_CONTEXT, PROBE_SEQS = 4096, 142_000, 8
"""A prefill chunk and a decode batch on which the effect of a figure on speed is read off."""


@dataclass(frozen=True, slots=True)
class Ranged:
    """A figure with a range, in the unit of its profile."""

    key: Key
    value: float
    low: float
    high: float
    unit: str
    kind: str

    @property
    def name(self) -> str:
        """Profile and place."""
        return f"{self.key[1]}.{'.'.join(self.key[2])}"


class DrawnStore(ProfileStore):
    """A store whose profiles have some figures replaced.

    Parameters
    ----------
    base : ProfileStore
        Where the profiles come from.
    values : mapping
        Replaced figures.
    """

    def __init__(self, base: ProfileStore, values: Values) -> None:
        super().__init__(base.search_path)
        self._base, self._values = base, values

    def get(self, kind: Kind, name: str) -> Any:
        """A profile with its figures replaced."""
        profile: Profile = self._base.get(kind, name)
        for (of_kind, of_name, path), value in self._values.items():
            if (of_kind, of_name) == (kind, profile.name):
                profile = put(profile, path, value)
        return profile

    def knows(self, kind: Kind, name: str) -> bool:
        """Whether there is such a profile; asked of the base, which has looked through the files already."""
        return self._base.knows(kind, name)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Names of all profiles of a kind."""
        return self._base.names(kind)

    def digest(self, profile: Profile) -> str:
        """SHA-256 of what the profile says, as hexadecimal text: no file says it."""
        return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()


def figures(part: Any, path: Path = (), gpu: str = "") -> Iterator[tuple[Path, Figure]]:
    """Every figure of a profile part with its place; with `gpu`, without what an engine profile says of other GPUs."""
    if isinstance(part, Figure):
        yield path, part
        return
    placed: tuple[str, ...] = getattr(part, "gpus", ())
    if gpu and placed and gpu not in placed:
        return
    for name, child in children_of(part):
        yield from figures(child, (*path, name), gpu)


def put(part: Any, path: Path, value: float) -> Any:
    """A copy of a profile part with one figure's value replaced; the range goes, since the value may leave it."""
    if not path:
        return part.model_copy(update={"value": value, "range": None})
    inner = put(dict(children_of(part))[path[0]], path[1:], value)
    if isinstance(part, BaseModel):
        return part.model_copy(update={path[0]: inner})
    if isinstance(part, Mapping):
        return {**cast("Mapping[str, Any]", part), path[0]: inner}
    items = list(cast("tuple[Any, ...]", part))
    items[int(path[0])] = inner
    return tuple(items)


def ranged_figures(resolved: Resolved, store: ProfileStore, others: Sequence[Resolved] = ()) -> tuple[Ranged, ...]:
    """Figures whose range moves the scenario's speed, memory or bill, the strongest first.

    Parameters
    ----------
    resolved : Resolved
        The scenario, or its first group of replicas.
    store : ProfileStore
        Where profiles come from.
    others : sequence of Resolved
        Further groups of replicas. A figure that several groups use is one figure.

    Notes
    -----
    Each is set to both ends of its range by itself; its effect is the largest relative change of a prefill step, a
    decode step, the blocks of the pool and the hourly bill of any group. An end at which the model does not fit counts
    as the largest.
    """
    groups = (resolved, *others)
    scenarios = [group.scenario for group in groups]
    nominal = _probes(scenarios, store)
    ranged = {r.key: r for group in groups for r in _all_ranged(group, store)}
    scored = [(_effect(r, nominal, scenarios, store), r) for r in ranged.values()]
    strong = sorted((s for s in scored if s[0] > LEAST_EFFECT), key=lambda s: (-s[0], s[1].name))
    return tuple(r for _, r in strong[:MOST_FIGURES])


def _all_ranged(resolved: Resolved, store: ProfileStore) -> Iterator[Ranged]:
    scenario = resolved.scenario
    prices = scenario.prices
    engine, storage = "engine", "storage"
    used: tuple[tuple[Kind, str], ...] = (
        ("gpu", resolved.gpu.name), ("price", prices.compute),
        *((engine, name) for name in engine_profiles(scenario.engine.profile, store)),
        *((storage, prices.tier_profiles.get(t.kind, STORAGE[t.kind])) for t in scenario.tiers))
    for kind, name in used:
        profile: Profile = cast("Any", store).get(kind, name)
        for path, figure in figures(profile, gpu=resolved.gpu.name):
            if figure.range and figure.range[0] < figure.range[1]:
                yield Ranged((kind, profile.name, path), figure.value, *figure.range, figure.unit, figure.kind)


def engine_profiles(name: str, store: ProfileStore) -> list[str]:
    """An engine profile and the ones it is based on."""
    profile = store.get("engine", name)
    return [profile.name, *(engine_profiles(profile.base, store) if profile.base else [])]


def _probes(scenarios: Sequence[Scenario], store: ProfileStore) -> tuple[float, ...]:
    """What figures change in each of some scenarios."""
    return tuple(probe for scenario in scenarios for probe in _probes_of(scenario, store))


def _probes_of(scenario: Scenario, store: ProfileStore) -> tuple[float, ...]:
    """Prefill step, decode step, blocks, $ per hour."""
    resolved = resolve(scenario, store)
    model = step_time_of(resolved)
    context = PROBE_TOKENS * PROBE_CONTEXT
    chunk = StepBatch(PROBE_TOKENS, 1, context, PROBE_CONTEXT, 0)
    return (step_s(model, chunk, 0), step_s(model, StepBatch(0, 0, 0, 0, PROBE_SEQS), PROBE_SEQS * PROBE_CONTEXT),
            float(resolved.capacity.num_blocks), hourly_bill(resolved, store).usd_per_hour)


def _effect(figure: Ranged, nominal: tuple[float, ...], scenarios: Sequence[Scenario], store: ProfileStore) -> float:
    try:
        ends = [_probes(scenarios, DrawnStore(store, {figure.key: v})) for v in (figure.low, figure.high)]
    except InfeasibleError:
        return math.inf
    return max(abs(e / n - 1.0) for end in ends for e, n in zip(end, nominal, strict=True) if n)


def latin_hypercube(samples: int, dimensions: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Points in the unit cube, shape [samples, dimensions], one in each of `samples` slices of every dimension.

    Examples
    --------
    >>> points = latin_hypercube(4, 2, 0)
    >>> sorted((points[:, 1] * 4).astype(int).tolist())
    [0, 1, 2, 3]
    """
    rng = stream(seed, "latin hypercube")
    slices = rng.permuted(np.tile(np.arange(samples, dtype=np.float64)[:, None], (1, dimensions)), axis=0)
    return (slices + rng.uniform(size=slices.shape)) / samples


def drawn_value(figure: Ranged, share: float) -> float:
    """Value of a figure at a share of its distribution: a triangle over its range, highest at its value.

    Examples
    --------
    >>> half = Ranged(("gpu", "x", ()), 0.5, 0.0, 1.0, "frac", "assumed")
    >>> [drawn_value(half, s) for s in (0.0, 0.5, 1.0)]
    [0.0, 0.5, 1.0]
    """
    low, mode, high = figure.low, figure.value, figure.high
    if share <= (mode - low) / (high - low):
        return low + math.sqrt(share * (high - low) * (mode - low))
    return high - math.sqrt((1.0 - share) * (high - low) * (high - mode))
