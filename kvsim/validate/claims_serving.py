"""Kimi K3 on 8 x B300 under agent sessions, with and without tiers below HBM (targets 13 to 18)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from kvsim.report.report import Report
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.validate.claims import Band, Claim, Sample, at_least, at_most, factor, median_of, near, plus_minus

NUM_SEEDS = 11
"""Seeds of a cell."""
NUM_CONTROL_SEEDS = 3
"""Seeds of a cell of a negative control, which is far outside."""
SCENARIOS = MappingProxyType({"none": "k3-b300-cliff", "DRAM": "k3-b300-dram", "Mooncake": "k3-b300-dcp8-mooncake"})
"""Shipped scenarios by the tier below HBM; number of live sessions, engine profile and `LOGGED_POOL` are changed."""
LOGGED_POOL = MappingProxyType({("Mooncake", 56): "engine.num_blocks=1895", ("Mooncake", 70): "engine.num_blocks=1895"})
"""Cells whose engine kept less memory free than the scenario's says: blocks of the 21.6M tokens that it logged."""

_RUN = "SemiAnalysisAI/InferenceX@f04fbe68f"
_MOONCAKE = "SemiAnalysisAI/InferenceX#2802"
_ARTICLE = "SemiAnalysis article on agentic KV caches"
_CYCLE = ("bistable: a few seeds keep most hits, the others lose nearly all; the median lies between. Generated "
          "session trees hold about 315k tokens on average, those of a study of the recorded ones about 377k")

Advance = Callable[[str, float], None]
"""Called with a cell's name and its finished share."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario at one number of live sessions under one engine profile ("" = the scenario's)."""

    tier: str
    concurrency: int
    profile: str = ""

    def __str__(self) -> str:
        return " ".join([*filter(None, [self.profile]), self.tier, f"c{self.concurrency}"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run is judged by.

    Attributes
    ----------
    hit_frac, hbm_frac, external_frac : float
        Hits in all tiers, in HBM and below it / all prompt tokens.
    lost_frac : float
        What an infinite cache would have found beyond that / all prompt tokens.
    output_tokens_per_s, ttft_s : float
        Throughput of the node and median time to first token.
    """

    hit_frac: float
    hbm_frac: float
    external_frac: float
    lost_frac: float
    output_tokens_per_s: float
    ttft_s: float


class K3Runs:
    """Runs of the K3 study, each made once.

    Parameters
    ----------
    num_seeds, num_control_seeds : int
        Seeds 0, 1, ... of a cell, and of a cell of a negative control.
    advance : callable, optional
        Told how far a cell is.

    Examples
    --------
    >>> runs = K3Runs(num_seeds=1)
    >>> [outcome.hit_frac > 0.9 for outcome in runs.outcomes(Cell("none", 4))]
    [True]
    """

    def __init__(self, num_seeds: int = NUM_SEEDS, num_control_seeds: int = NUM_CONTROL_SEEDS,
                 advance: Advance | None = None) -> None:
        self.num_seeds, self.num_control_seeds, self._advance = num_seeds, num_control_seeds, advance
        self._done: dict[Cell, tuple[Outcome, ...]] = {}

    def outcomes(self, cell: Cell) -> tuple[Outcome, ...]:
        """A cell's runs in the order of their seeds."""
        if cell not in self._done:
            seeds = self.num_control_seeds if cell.profile else self.num_seeds
            self._done[cell] = tuple(self._run(cell, seed, seeds) for seed in range(seeds))
        return self._done[cell]

    def values(self, cell: Cell, name: str) -> list[float]:
        """One attribute of `Outcome` of every seed."""
        return [getattr(outcome, name) for outcome in self.outcomes(cell)]

    def _run(self, cell: Cell, seed: int, seeds: int) -> Outcome:
        changes = [f"engine.profile={cell.profile}"] if cell.profile else []
        changes += filter(None, [LOGGED_POOL.get((cell.tier, cell.concurrency), "")])
        outcome = _outcome(simulate(load_scenario(SCENARIOS[cell.tier], changes).at(cell.concurrency, seed)))
        if self._advance is not None:
            self._advance(str(cell), (seed + 1) / seeds)
        return outcome


def _outcome(report: Report) -> Outcome:
    """The figures of a report that are judged."""
    hits, tiers = report.hit_rate, report.hit_rate.by_tier
    return Outcome(hits.total, tiers.hbm, tiers.dram + tiers.nvme + tiers.pool, hits.ideal - hits.total,
                   report.throughput.output_tokens_per_s, report.latency.ttft_s.p50)


def serving_claims(runs: K3Runs) -> list[Claim]:
    """Targets 13 to 18 and the controls of target 14; each claim simulates what it needs.

    Parameters
    ----------
    runs : K3Runs
        Where the runs are made and kept.

    Returns
    -------
    list of Claim
        A value is the median over the seeds; a ratio is one of two such medians, as the published ratios are of
        published values, and its extremes are those of the seeds' own ratios.
    """
    build = _Builder(runs)
    return [*_hits(build), *_throughput(build), *_ratios(build), *_ttft(build), *_external(build), *_divided(build),
            *_controls(build)]


class _Builder:
    """Claims about cells and about ratios of cells."""

    def __init__(self, runs: K3Runs) -> None:
        self.runs = runs

    def cell(self, label: tuple[str, str], cell: Cell, name: str, published: tuple[str, Band], miss: str = "") -> Claim:
        """A claim about the median of one figure in one cell."""
        what, form = _FIGURES[name]
        is_article = name in ("hit_frac", "lost_frac") and cell.concurrency <= 8
        source = _MOONCAKE if cell.tier == "Mooncake" else _ARTICLE if is_article else _RUN
        return Claim(label[0], label[1], f"{cell}: {what}", published[0], published[1], source, form,
                     lambda: median_of(self.runs.values(cell, name)), simulated=True, miss=miss)

    def ratio(self, label: tuple[str, str], cells: tuple[Cell, Cell], name: str, published: tuple[str, Band],
              miss: str = "") -> Claim:
        """A claim about the ratio of one figure's medians in two cells."""
        what = f"{cells[0]} / {cells[1]}: {_FIGURES[name][0]}"
        return Claim(label[0], label[1], what, published[0], published[1], _RUN, "{:.3f}",
                     partial(_ratio, self.runs, cells, name), simulated=True, miss=miss)


_FIGURES = MappingProxyType({
    "hit_frac": ("hit rate", "{:.1%}"), "lost_frac": ("below an infinite cache", "{:.1%}"),
    "hbm_frac": ("hits in HBM, of all prompt tokens", "{:.1%}"),
    "external_frac": ("external hits, of all prompt tokens", "{:.1%}"),
    "output_tokens_per_s": ("output tokens/s", "{:.1f}"), "ttft_s": ("TTFT p50", "{:.3g} s"),
})
"""Title and format of what is judged."""


def _hits(build: _Builder) -> list[Claim]:
    """Target 13."""
    claims: list[Claim] = []
    for parts, c in (("ab", 4), ("cd", 8)):
        claims += [build.cell((f"13{parts[0]}", "H"), Cell("none", c), "hit_frac",
                              ("95 %", at_least(0.90, ">= 90 %", 0.95))),
                   build.cell((f"13{parts[1]}", "H"), Cell("none", c), "lost_frac",
                              ("-", at_most(0.05, "<= 5 points")))]
    low = at_most(0.10, "<= 10 %", 0.027)
    claims += [build.cell(("13e", "H"), Cell("none", 16), "hit_frac", ("2.7 % (c16, c24 jointly)", low), _CYCLE),
               build.cell(("13f", "H"), Cell("none", 24), "hit_frac", ("2.7 % (c16, c24 jointly)", low)),
               Claim("13g", "H", "none: live sessions at which the median hit rate crosses 50 %", "above 8", Band(
                   8, 16, "8 to 16"), _ARTICLE, "{:.1f}", partial(_crossing, build.runs), simulated=True)]
    return claims


def _throughput(build: _Builder) -> list[Claim]:
    """Target 14."""
    name, none16, none24, dram16, dram24 = "output_tokens_per_s", *_CELLS
    overload = "both cells are in their bands (14b, 14d), but at opposite ends"
    return [
        build.cell(("14a", "P"), none16, name, ("49.6", factor(49.6, 1.6))),
        build.cell(("14b", "P"), none24, name, ("54.9", factor(54.9, 1.6))),
        build.cell(("14c", "P"), dram16, name, ("245.0", near(245.0, 0.20))),
        build.cell(("14d", "P"), dram24, name, ("260.6", near(260.6, 0.20))),
        build.ratio(("14e", "P"), (dram16, none16), name, ("4.94", Band(3.2, 8, "3.2 to 8", value=4.94))),
        build.ratio(("14f", "P"), (dram24, none24), name, ("4.75", Band(3.2, 8, "3.2 to 8", value=4.75)), overload),
    ]


_CELLS = (Cell("none", 16), Cell("none", 24), Cell("DRAM", 16), Cell("DRAM", 24))
"""The four cells of the published run."""


def _ratios(build: _Builder) -> list[Claim]:
    """Target 15."""
    name, none16, none24, dram16, dram24 = "output_tokens_per_s", *_CELLS
    return [build.ratio(("15a", "P"), (none24, none16), name, ("1.11", near(1.11, 0.20))),
            build.ratio(("15b", "P"), (dram24, dram16), name, ("1.06", near(1.06, 0.20))),
            build.ratio(("15c", "P"), (dram16, Cell("DRAM", 8)), name, ("-", at_least(1.3, "above 1.3")))]


def _ttft(build: _Builder) -> list[Claim]:
    """Target 16."""
    name, none16, none24, dram16, dram24 = "ttft_s", *_CELLS
    early = "the median TTFT of none c16 is pulled down by seeds that keep their hits (13e)"
    return [
        build.cell(("16a", "A"), none16, name, ("86 s", factor(86, 3))),
        build.cell(("16b", "A"), none24, name, ("191 s", factor(191, 3))),
        build.ratio(("16c", "A"), (none24, none16), name, ("2.2", Band(1.6, 3.0, "1.6 to 3.0", value=191 / 86)), early),
        build.cell(("16d", "A"), dram16, name, ("0.85 s", at_most(2, "<= 2 s", 0.85))),
        build.cell(("16e", "A"), dram24, name, ("6.2 s", Band(2, 20, "2 to 20 s", value=6.2))),
        build.ratio(("16f", "A"), (dram24, dram16), name, ("7.3", at_least(4, ">= 4", 6.2 / 0.85))),
    ]


def _external(build: _Builder) -> list[Claim]:
    """Target 17."""
    cell = Cell("DRAM", 24)
    why = ("nearly every turn finds its context in DRAM, hardly any in HBM: requests in flight hold about nine tenths "
           "of the pool, which leaves too little for the contexts of sessions between turns")
    return [build.cell(("17a", "H"), cell, "external_frac", ("62 %", plus_minus(0.62, 0.20, "20 points")), why),
            build.cell(("17b", "H"), cell, "hit_frac", ("-", at_least(0.88, ">= 88 %")))]


def _divided(build: _Builder) -> list[Claim]:
    """Target 18: latents divided over the GPUs, a Mooncake pool below."""
    low, high = Cell("Mooncake", 56), Cell("Mooncake", 70)
    return [
        Claim("18a", "H", "Mooncake c8, c24, c48: the lowest hit rate in HBM", "90.4 to 96.3 % (c1 to c48)",
              at_least(0.90, ">= 90 %"), _MOONCAKE, "{:.1%}", partial(_lowest, build.runs, (8, 24, 48)),
              simulated=True),
        build.cell(("18b", "H"), low, "hbm_frac", ("88.0 %", Band(0.80, 0.97, "80 to 97 %", value=0.88))),
        Claim("18c", "H", f"{low} - {high}: hits in HBM", "28.1 points", at_least(0.15, ">= 15 points", 0.281),
              _MOONCAKE, "{:.1%}", partial(_fall, build.runs, low, high), simulated=True),
    ]


def _lowest(runs: K3Runs, sessions: Sequence[int]) -> Sample:
    """The lowest median of several cells."""
    return min((median_of(runs.values(Cell("Mooncake", c), "hbm_frac")) for c in sessions), key=lambda s: s.value)


def _fall(runs: K3Runs, low: Cell, high: Cell) -> Sample:
    """Difference of medians, with the differences of each seed."""
    above, below = runs.values(low, "hbm_frac"), runs.values(high, "hbm_frac")
    note = "with the pool as logged; with the one that kvsim predicts, 8 % larger, the fall is half of that"
    return Sample(statistics.median(above) - statistics.median(below),
                  [a - b for a, b in zip(above, below, strict=True)], note)


def _controls(build: _Builder) -> list[Claim]:
    """Engine profiles that target 14 must refute: no floors and full peaks; kernels without Marlin experts."""
    published = {16: 245.0, 24: 260.6}
    return [build.cell((f"N14{'abcdef'[2 * i + j]}", "N"), Cell("DRAM", c, profile), "output_tokens_per_s",
                       (f"{published[c]}", near(published[c], 0.20, outside=True)))
            for i, profile in enumerate(("ideal", "vllm-0.33", "sglang-2026-08")) for j, c in enumerate((16, 24))]


def _ratio(runs: K3Runs, cells: tuple[Cell, Cell], name: str) -> Sample:
    """Ratio of medians, with the ratios of each seed."""
    above, below = (runs.values(cell, name) for cell in cells)
    each = [a / b for a, b in zip(above, below, strict=True)]
    note = f"median of the seeds' ratios {statistics.median(each):.3f}"
    return Sample(statistics.median(above) / statistics.median(below), each, note)


def _crossing(runs: K3Runs) -> Sample:
    """Live sessions at which the hit rate falls through one half, each seed on its own and in the median."""
    rates = {c: runs.values(Cell("none", c), "hit_frac") for c in (4, 8, 10, 12, 16, 24)}
    medians = [(c, statistics.median(values)) for c, values in rates.items()]
    each = [crossing([(c, values[k]) for c, values in rates.items()]) for k in range(runs.num_seeds)]
    return Sample(crossing(medians), each)


def crossing(points: Sequence[tuple[int, float]], level: float = 0.5) -> float:
    """Where a falling line through points first reaches a level; nan if it does not.

    >>> crossing([(8, 0.9), (12, 0.7), (16, 0.3)])
    14.0
    """
    for (c0, y0), (c1, y1) in pairwise(points):
        if y0 >= level > y1:
            return c0 + (c1 - c0) * (y0 - level) / (y0 - y1)
    return float("nan")
