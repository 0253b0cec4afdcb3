"""How far a result can be trusted: ranges of its figures as intervals, what moves it most, what would flip it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from kvsim.billing import STORAGE, hourly_bill
from kvsim.errors import InfeasibleError
from kvsim.profiles.figure import Figure, Profile
from kvsim.profiles.store import Kind, ProfileStore, default_store
from kvsim.report.report import Report, plain
from kvsim.resolve import Resolved, resolve
from kvsim.rng import stream
from kvsim.scenario import Scenario
from kvsim.simulation import simulate, step_time_of
from kvsim.steptime.base import StepBatch, step_s
from kvsim.units import UNITS

Path = tuple[str, ...]
Key = tuple[Kind, str, Path]
Values = Mapping[Key, float]
"""Figures by kind and name of their profile and their place in it, in the units of the profile."""

MOST_FIGURES = 8
"""Figures that are drawn: those whose ranges move speed, memory or bill the most."""
LEAST_EFFECT = 1e-3
"""A figure that moves none of them by this share is left as it is."""
NOISE_SEEDS = 3
"""Seeds that show how much of a result is chance of the traffic."""
PROBE_TOKENS, PROBE_CONTEXT, PROBE_SEQS = 4096, 142_000, 8
"""A prefill chunk and a decode batch on which the effect of a figure on speed is read off."""
COVERED_FRAC = (0.05, 0.95)
"""The quantiles that an interval spans."""

METRICS: Mapping[str, Callable[[Report], float]] = {
    "hit rate": lambda r: r.hit_rate.total,
    "TTFT p95 [s]": lambda r: r.latency.ttft_s.p95,
    "TPOT p95 [s]": lambda r: r.latency.tpot_s.p95,
    "output [tokens/s]": lambda r: r.throughput.output_tokens_per_s,
    "blended [$/Mtok]": lambda r: r.cost.usd_per_mtok.blended,
    "contribution [$/node-hour]": lambda r: r.cost.contribution_usd_per_node_hour,
}
"""Results that get an interval."""
DECIDING = "contribution [$/node-hour]"


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


@dataclass(frozen=True, slots=True)
class Interval:
    """A result: nominal, and low and high over the draws of figures and over seeds."""

    nominal: float
    figures_low: float
    figures_high: float
    seeds_low: float
    seeds_high: float


@dataclass(frozen=True, slots=True)
class Swing:
    """One figure at either end of its range, everything else nominal: every result."""

    figure: Ranged
    at_low: Mapping[str, float]
    at_high: Mapping[str, float]

    def width(self, metric: str) -> float:
        """How far a result moves; 0 where one end has none."""
        moved = abs(self.at_high[metric] - self.at_low[metric])
        return moved if math.isfinite(moved) else 0.0


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Intervals by result, and the swings, the widest for the contribution first."""

    intervals: Mapping[str, Interval]
    tornado: tuple[Swing, ...]
    samples: int
    trust: str
    as_of: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        swings = [{"figure": s.figure.name, "value": s.figure.value, "low": s.figure.low, "high": s.figure.high,
                   "unit": s.figure.unit, "kind": s.figure.kind, "at_low": {**s.at_low}, "at_high": {**s.at_high}}
                  for s in self.tornado]
        return plain({"intervals": {**self.intervals}, "tornado": swings, "samples": self.samples,
                      "trust": self.trust, "as_of": self.as_of})


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
    for name, child in _children(part):
        yield from figures(child, (*path, name), gpu)


def put(part: Any, path: Path, value: float) -> Any:
    """A copy of a profile part with one figure's value replaced; the range goes, since the value may leave it."""
    if not path:
        return part.model_copy(update={"value": value, "range": None})
    inner = put(dict(_children(part))[path[0]], path[1:], value)
    if isinstance(part, BaseModel):
        return part.model_copy(update={path[0]: inner})
    if isinstance(part, Mapping):
        return {**cast("Mapping[str, Any]", part), path[0]: inner}
    items = list(cast("tuple[Any, ...]", part))
    items[int(path[0])] = inner
    return tuple(items)


def _children(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, BaseModel):
        return [(name, getattr(part, name)) for name in type(part).model_fields]
    if isinstance(part, Mapping):
        return [(str(k), v) for k, v in cast("Mapping[Any, Any]", part).items()]
    if isinstance(part, tuple):
        return [(str(i), v) for i, v in enumerate(cast("tuple[Any, ...]", part))]
    return []


def ranged_figures(resolved: Resolved, store: ProfileStore) -> tuple[Ranged, ...]:
    """Figures whose range moves the scenario's speed, memory or bill, the strongest first.

    Notes
    -----
    Each is set to both ends of its range by itself; its effect is the largest relative change of a prefill step, a
    decode step, the blocks of the pool and the hourly bill. An end at which the model does not fit counts as the
    largest.
    """
    nominal = _probes(resolved.scenario, store)
    scored = [(_effect(r, nominal, resolved.scenario, store), r) for r in _all_ranged(resolved, store)]
    strong = sorted((s for s in scored if s[0] > LEAST_EFFECT), key=lambda s: (-s[0], s[1].name))
    return tuple(r for _, r in strong[:MOST_FIGURES])


def _all_ranged(resolved: Resolved, store: ProfileStore) -> Iterator[Ranged]:
    scenario = resolved.scenario
    prices = scenario.prices
    engine, storage = "engine", "storage"
    used: tuple[tuple[Kind, str], ...] = (
        ("gpu", resolved.gpu.name), ("price", prices.compute),
        *((engine, name) for name in _engine_profiles(scenario.engine.profile, store)),
        *((storage, prices.tier_profiles.get(t.kind, STORAGE[t.kind])) for t in scenario.tiers))
    for kind, name in used:
        profile: Profile = cast("Any", store).get(kind, name)
        for path, figure in figures(profile, gpu=resolved.gpu.name):
            if figure.range and figure.range[0] < figure.range[1]:
                yield Ranged((kind, profile.name, path), figure.value, *figure.range, figure.unit, figure.kind)


def _engine_profiles(name: str, store: ProfileStore) -> list[str]:
    """An engine profile and the ones it is based on."""
    profile = store.get("engine", name)
    return [profile.name, *(_engine_profiles(profile.base, store) if profile.base else [])]


def _probes(scenario: Scenario, store: ProfileStore) -> tuple[float, ...]:
    """Prefill step, decode step, blocks, $ per hour."""
    resolved = resolve(scenario, store)
    model = step_time_of(resolved)
    context = PROBE_TOKENS * PROBE_CONTEXT
    chunk = StepBatch(PROBE_TOKENS, 1, context, PROBE_CONTEXT, 0)
    return (step_s(model, chunk, 0), step_s(model, StepBatch(0, 0, 0, 0, PROBE_SEQS), PROBE_SEQS * PROBE_CONTEXT),
            float(resolved.capacity.num_blocks), hourly_bill(resolved, store).usd_per_hour)


def _effect(figure: Ranged, nominal: tuple[float, ...], scenario: Scenario, store: ProfileStore) -> float:
    try:
        ends = [_probes(scenario, DrawnStore(store, {figure.key: v})) for v in (figure.low, figure.high)]
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


def uncertainty(scenario: Scenario, samples: int, progress: Callable[[float], None] | None = None) -> Uncertainty:
    """Intervals of a scenario's results from the ranges of its figures and from its seeds.

    Parameters
    ----------
    scenario : Scenario
        Without a study.
    samples : int
        Draws of all figures together, by Latin hypercube.
    progress : callable, optional
        Called with the finished share.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.

    Notes
    -----
    All draws and swings see the same traffic (the scenario's seed), so that what differs is the figures alone; the
    chance of the traffic is a second interval, over `NOISE_SEEDS` seeds at nominal figures. Figures are drawn as if
    they knew nothing of each other. Errors of the model's form are in neither. Draws in which the model does not fit
    have no result and are left out.
    """
    store, resolved = default_store(), resolve(scenario)
    moving = ranged_figures(resolved, store)
    runs: list[Values] = [{r.key: drawn_value(r, float(u)) for r, u in zip(moving, point, strict=True)}
                          for point in latin_hypercube(samples, len(moving), scenario.seed)]
    runs += [{r.key: v} for r in moving for v in (r.low, r.high)]
    seeds = [scenario.model_copy(update={"seed": scenario.seed + k}) for k in range(NOISE_SEEDS)]
    results: list[Mapping[str, float]] = []
    nominal = simulate(scenario)
    for i, values in enumerate(runs):
        results.append(_drawn(scenario, DrawnStore(store, values)))
        if progress:
            progress((i + 1) / len(runs))
    noise = [measured(nominal), *(measured(simulate(s)) for s in seeds[1:])]
    ends = results[samples:]
    tornado = [Swing(r, ends[2 * i], ends[2 * i + 1]) for i, r in enumerate(moving)]
    intervals = {m: _interval(m, noise, results[:samples]) for m in METRICS}
    return Uncertainty(intervals, tuple(sorted(tornado, key=lambda s: -s.width(DECIDING))), samples,
                       nominal.cost.trust, nominal.cost.as_of)


def _drawn(scenario: Scenario, store: ProfileStore) -> Mapping[str, float]:
    """Results with drawn figures; nan where the model does not fit."""
    try:
        return measured(simulate(scenario, store=store))
    except InfeasibleError:
        return dict.fromkeys(METRICS, math.nan)


def measured(report: Report) -> Mapping[str, float]:
    """The results of a report that get intervals."""
    return {name: pick(report) for name, pick in METRICS.items()}


def _interval(metric: str, noise: list[Mapping[str, float]], draws: list[Mapping[str, float]]) -> Interval:
    values = [d[metric] for d in draws if math.isfinite(d[metric])] or [noise[0][metric]]
    low, high = (float(np.quantile(values, q)) for q in COVERED_FRAC)
    seeds = [n[metric] for n in noise]
    return Interval(noise[0][metric], low, high, min(seeds), max(seeds))


@dataclass(frozen=True, slots=True)
class Stress:
    """A decision under one stress: the contribution [$ per node-hour] of both sides, and whether the choice flips."""

    what: str
    first_usd: float
    second_usd: float
    flips: bool


LESS_HITS_FRAC, DEARER_RENT = 0.10, 1.40
FASTER = 2.0
SHRINK_STEPS = 5
"""Halvings of the interval in which the smaller cache is looked for."""


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
    found = {"as it is": [_usd(s) for s in sides], "engine 2x faster": [_fast_usd(s) for s in sides],
             "rent +40 %": [_dear_usd(s) for s in sides], "hit rate -10 points": [_cold_usd(s) for s in sides]}
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
    store, price = default_store(), scenario.prices.compute
    profile = store.get("price", price)
    parts = ("capex_per_gpu", "usd_per_gpu_hour")
    stated = scenario.prices.usd_per_gpu_hour
    if stated:
        dear = scenario.prices.model_copy(update={
            "usd_per_gpu_hour": {gpu: DEARER_RENT * usd for gpu, usd in stated.items()}})
        scenario = scenario.model_copy(update={"prices": dear})
    return _usd(scenario, {("price", profile.name, path): DEARER_RENT * figure.value
                           for path, figure in figures(profile) if any(p in path for p in parts)})


def _fast_usd(scenario: Scenario) -> float:
    """On an engine that is twice as fast."""
    store = default_store()
    gpu = store.get("gpu", scenario.hardware.gpu)
    values: dict[Key, float] = {("gpu", gpu.name, path): FASTER * figure.value for path, figure in figures(gpu)
                                if path[0] in ("flops", "hbm_bandwidth", "scale_up") and path[-1] != "domain"}
    for name in _engine_profiles(scenario.engine.profile, store):
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
    blocks = max(2, round(resolve(scenario).capacity.num_blocks * share))
    engine = scenario.engine.model_copy(update={"num_blocks": blocks, "kv_bytes_per_gpu": None})
    tiers = tuple(t.model_copy(update={"capacity": t.capacity * share}) for t in scenario.tiers)
    return scenario.model_copy(update={"engine": engine, "tiers": tiers})


def uncertainty_text(found: Uncertainty) -> str:
    """Intervals and swings as text."""
    head = f"{'':<28} {'nominal':>9}  {'figures 5-95 %':>21}  {'seeds':>21}"
    rows = [_interval_row(m, i) for m, i in found.intervals.items()]
    swings = [f"  {s.at_low[DECIDING]:>9.2f} to {s.at_high[DECIDING]:>9.2f}  {s.figure.name} "
              f"{s.figure.low:g} to {s.figure.high:g} {s.figure.unit} [{s.figure.kind}]" for s in found.tornado]
    return "\n".join([f"Uncertainty: {found.samples} draws, {NOISE_SEEDS} seeds; speed: {found.trust}; "
                      f"prices as of {found.as_of}", head, *rows, f"What moves the {DECIDING} most", *swings])


def flips_text(stresses: tuple[Stress, ...]) -> str:
    """Stresses of one decision as text."""
    flips = [s.what for s in stresses if s.flips]
    rows = [f"  {s.first_usd:>9.2f}  against {s.second_usd:>9.2f}  {s.what}{'  FLIPS' if s.flips else ''}"
            for s in stresses]
    verdict = f"The decision flips if: {', '.join(flips)}" if flips else "No stress flips the decision"
    return "\n".join([f"{verdict} ({DECIDING})", *rows])


def _interval_row(metric: str, found: Interval) -> str:
    figures_span = f"{found.figures_low:.4g} to {found.figures_high:.4g}"
    return (f"{metric:<28} {found.nominal:>9.4g}  {figures_span:>21}  "
            f"{f'{found.seeds_low:.4g} to {found.seeds_high:.4g}':>21}")
