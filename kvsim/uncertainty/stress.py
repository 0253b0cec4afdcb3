"""What would flip a decision: an engine that is faster, dearer rent, fewer hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InfeasibleError
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve_groups
from kvsim.scenario import ReplicaGroup, Scenario, Tier
from kvsim.simulation import simulate
from kvsim.uncertainty.draws import DrawnStore, Key, Values, engine_profiles, figures
from kvsim.uncertainty.intervals import DECIDING, METRICS
from kvsim.units import UNITS

LESS_HITS_FRAC, DEARER_RENT, FASTER = 0.10, 1.40, 2.0
"""The stresses: hits lost of all prompt tokens, rent and speed of the engine as multiples of what they are."""
SHRINK_STEPS = 5
"""Halvings of the interval in which the smaller cache is looked for."""


@dataclass(frozen=True, slots=True)
class Stress:
    """A decision under one stress: the contribution [$ per node-hour] of both sides, and whether the choice flips."""

    what: str
    first_usd: float
    second_usd: float
    flips: bool


def decision_flips(first: Scenario, second: Scenario | None = None) -> tuple[Stress, ...]:
    """Does the better of two scenarios stay the better one under stress? Or does one alone still pay?

    Parameters
    ----------
    first, second : Scenario
        The two sides; without a second one the choice is to run nothing, at $0.

    Notes
    -----
    Three stresses: an engine twice as fast (every peak and bandwidth of the GPU doubled, every time of the engine
    profile halved, host links as they are), rent up by 40 % (the GPUs' part of the bill), and a hit rate 10 points
    lower (pool and tiers shrunk until it is, by bisection).
    """
    sides = (first, *([second] if second else []))
    found = {"as it is": [_usd(s) for s in sides],
             f"engine {FASTER:g}x faster": [_fast_usd(s) for s in sides],
             f"rent +{100 * (DEARER_RENT - 1):.0f} %": [_dear_usd(s) for s in sides],
             f"hit rate -{100 * LESS_HITS_FRAC:.0f} points": [_cold_usd(s) for s in sides]}
    base = found["as it is"]
    return tuple(Stress(what, usd[0], _other(usd), (usd[0] > _other(usd)) != (base[0] > _other(base)))
                 for what, usd in found.items())


def _other(usd: list[float]) -> float:
    return usd[1] if len(usd) > 1 else 0.0


def _usd(scenario: Scenario, values: Values | None = None) -> float:
    store = DrawnStore(default_store(), values) if values else None
    return METRICS[DECIDING](simulate(scenario, store=store))


def _dear_usd(scenario: Scenario) -> float:
    """With GPUs that cost 40 % more an hour, rented or owned."""
    store, values = default_store(), dict[Key, float]()
    for part in _parts(scenario):
        profile = store.get("price", part.prices.compute)
        values |= {("price", profile.name, path): DEARER_RENT * figure.value for path, figure in figures(profile)
                   if "capex_per_gpu" in path or "usd_per_gpu_hour" in path}
    own = [{**group.prices, **_dear(part.prices.usd_per_gpu_hour)}
           for group, part in zip(scenario.groups, _parts(scenario), strict=True)]
    prices = scenario.prices.model_copy(update=_dear(scenario.prices.usd_per_gpu_hour))
    dear = scenario.model_copy(update={"prices": prices})
    return _usd(_with_groups(dear, [{"prices": group} for group in own]), values)


def _dear(stated: Mapping[str, float] | None) -> dict[str, dict[str, float]]:
    """Stated rents by GPU, 40 % higher; nothing where none are."""
    return {"usd_per_gpu_hour": {gpu: DEARER_RENT * usd for gpu, usd in stated.items()}} if stated else {}


def _parts(scenario: Scenario) -> list[Scenario]:
    """Every group of replicas as a scenario of its own."""
    return [scenario.group(i) for i in range(len(scenario.groups))]


def _with_groups(scenario: Scenario, changes: Sequence[Mapping[str, Any]]) -> Scenario:
    """The scenario with fields of its groups of replicas changed; the same where all replicas are alike."""
    if isinstance(scenario.replicas, int):
        return scenario
    groups: tuple[ReplicaGroup, ...] = tuple(
        group.model_copy(update=change) for group, change in zip(scenario.replicas, changes, strict=True))
    return scenario.model_copy(update={"replicas": groups})


def _fast_usd(scenario: Scenario) -> float:
    """On an engine that is twice as fast."""
    store = default_store()
    values: dict[Key, float] = {}
    for part in _parts(scenario):
        gpu = store.get("gpu", part.hardware.gpu)
        values |= {("gpu", gpu.name, path): FASTER * figure.value for path, figure in figures(gpu)
                   if path[0] in ("flops", "hbm_bandwidth", "scale_up") and path[-1] != "domain"}
        for name in engine_profiles(part.engine.profile, store):
            values |= {("engine", name, path): figure.value / FASTER
                       for path, figure in figures(store.get("engine", name)) if UNITS[figure.unit][0] == "s"}
    return _usd(scenario, values)


def _cold_usd(scenario: Scenario) -> float:
    """With a cache so small that the hit rate is 10 points lower, or as near to it as the bisection comes."""
    target = simulate(scenario).hit_rate.total - LESS_HITS_FRAC
    low, high = 0.0, 1.0
    found = scenario
    for _ in range(SHRINK_STEPS):
        middle = (low + high) / 2
        try:
            tried = _shrunk(scenario, middle)
            hits = simulate(tried).hit_rate.total
        except InfeasibleError:
            low = middle
            continue
        found = tried
        low, high = (low, middle) if hits > target else (middle, high)
    return _usd(found)


def _shrunk(scenario: Scenario, share: float) -> Scenario:
    """The scenario with a share of its pool and of its tiers."""
    pools = [{"num_blocks": max(2, round(found.capacity.num_blocks * share)), "kv_bytes_per_gpu": None}
             for found in resolve_groups(scenario)]
    changes = [{"engine": {**group.engine, **pool}, "tiers": _smaller(part.tiers, share)}
               for group, part, pool in zip(scenario.groups, _parts(scenario), pools, strict=True)]
    engine = scenario.engine.model_copy(update=pools[0])
    small = scenario.model_copy(update={"engine": engine, "tiers": _smaller(scenario.tiers, share)})
    return _with_groups(small, changes)


def _smaller(tiers: Sequence[Tier], share: float) -> tuple[Tier, ...]:
    """Tiers with a share of their capacity."""
    return tuple(tier.model_copy(update={"capacity": tier.capacity * share}) for tier in tiers)


def flips_text(stresses: tuple[Stress, ...]) -> str:
    """Stresses of one decision as text."""
    flips = [s.what for s in stresses if s.flips]
    rows = [f"  {s.first_usd:>9.2f}  against {s.second_usd:>9.2f}  {s.what}{'  FLIPS' if s.flips else ''}"
            for s in stresses]
    verdict = f"The decision flips if: {', '.join(flips)}" if flips else "No stress flips the decision"
    return "\n".join([f"{verdict} ({DECIDING})", *rows])
