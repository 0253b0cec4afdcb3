"""How far a result can be trusted: ranges of its figures and seeds of its traffic as intervals, what moves it most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.errors import InfeasibleError
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.report import Report, plain
from kvsim.resolve import resolve_groups
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from kvsim.uncertainty.draws import DrawnStore, Ranged, Values, drawn_value, latin_hypercube, ranged_figures

NOISE_SEEDS = 3
"""Seeds that show how much of a result is chance of the traffic."""
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
class DrawnInterval:
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

    intervals: Mapping[str, DrawnInterval]
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
    they knew nothing of each other; a figure that several groups of replicas use is one draw. Errors of the model's
    form are in neither. Draws in which the model does not fit have no result and are left out.
    """
    store, (first, *others) = default_store(), resolve_groups(scenario)
    moving = ranged_figures(first, store, others)
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


def _interval(metric: str, noise: list[Mapping[str, float]], draws: list[Mapping[str, float]]) -> DrawnInterval:
    values = [d[metric] for d in draws if math.isfinite(d[metric])] or [noise[0][metric]]
    low, high = (float(np.quantile(values, q)) for q in COVERED_FRAC)
    seeds = [n[metric] for n in noise]
    return DrawnInterval(noise[0][metric], low, high, min(seeds), max(seeds))


def uncertainty_text(found: Uncertainty) -> str:
    """Intervals and swings as text."""
    head = f"{'':<28} {'nominal':>9}  {'figures 5-95 %':>21}  {'seeds':>21}"
    rows = [_interval_row(m, i) for m, i in found.intervals.items()]
    swings = [f"  {s.at_low[DECIDING]:>9.2f} to {s.at_high[DECIDING]:>9.2f}  {s.figure.name} "
              f"{s.figure.low:g} to {s.figure.high:g} {s.figure.unit} [{s.figure.kind}]" for s in found.tornado]
    return "\n".join([f"Uncertainty: {found.samples} draws, {NOISE_SEEDS} seeds; speed: {found.trust}; "
                      f"prices as of {found.as_of}", head, *rows, f"What moves the {DECIDING} most", *swings])


def _interval_row(metric: str, found: DrawnInterval) -> str:
    figures_span = f"{found.figures_low:.4g} to {found.figures_high:.4g}"
    return (f"{metric:<28} {found.nominal:>9.4g}  {figures_span:>21}  "
            f"{f'{found.seeds_low:.4g} to {found.seeds_high:.4g}':>21}")
