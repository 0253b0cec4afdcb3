"""How far the money of a sweep's best point holds: its figures drawn from their ranges, and three stresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kvsim.batch.executors import make_executor
from kvsim.batch.findings import CONTRIBUTION, Group, break_even_frac, usd_per_seat_month
from kvsim.batch.folder import Folder, basis
from kvsim.batch.job import Job, Outcome
from kvsim.batch.spec import digest_of
from kvsim.batch.sweep import SweepOptions
from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.report.bill import HOURS_PER_MONTH
from kvsim.report.report import plain
from kvsim.resolve import resolve
from kvsim.uncertainty import (
    COVERED_FRAC,
    Ranged,
    Stress,
    Values,
    decision_flips,
    drawn_value,
    latin_hypercube,
    ranged_figures,
)

DRAWS = 12
"""Draws of all figures together, if nothing else is asked for."""
SWUNG = 5
"""Figures, the strongest, that are set to either end of their range by themselves."""
MONTH, BREAK_EVEN, SEAT = "usd_per_node_month", "break_even_frac", "usd_per_seat_month"
MEASURES: Mapping[str, Callable[[Group], float]] = {
    MONTH: lambda group: HOURS_PER_MONTH * group.mean(CONTRIBUTION), BREAK_EVEN: break_even_frac,
    SEAT: usd_per_seat_month,
}
"""What gets an interval."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Swing:
    """One figure with its range, and the contribution [$ per node-month] at either end; nan where nothing fits."""

    figure: str
    low: float
    high: float
    unit: str
    kind: str
    usd_at_low: float
    usd_at_high: float

    @property
    def width_usd(self) -> float:
        """How far the contribution moves [$ per node-month]."""
        width = abs(self.usd_at_high - self.usd_at_low)
        return width if math.isfinite(width) else 0.0


@dataclass(frozen=True, slots=True)
class Doubts:
    """What the ranges of figures do to the best point of a sweep.

    Attributes
    ----------
    draws, figures : int
        Draws with a result (in the others the model did not fit), and figures drawn.
    spans : mapping of str to (float, float)
        5 % and 95 % points by measure (`MEASURES`). All draws see the traffic of the first seed; their distance
        from it at nominal figures is added to the mean over all seeds.
    swings : tuple of Swing
        The strongest figures, each alone at either end of its range, the widest first.
    stresses : tuple of Stress
        The decision to run at all under three stresses (`kvsim.uncertainty.decision_flips`), first seed.
    """

    draws: int
    figures: int
    spans: Mapping[str, tuple[float, float]]
    swings: tuple[Swing, ...]
    stresses: tuple[Stress, ...]


def doubts_of(best: Group, draws: int = DRAWS, options: SweepOptions | None = None,
              progress: Progress | None = None) -> Doubts:
    """Draw the figures behind a point of a sweep.

    Parameters
    ----------
    best : Group
        The point; its first row's scenario is simulated again.
    draws : int
        Draws of all figures together (Latin hypercube), >= 1.
    options : SweepOptions, optional
        Where the draws run.
    progress : callable, optional
        Called with a label and the finished share.

    Raises
    ------
    KvsimError
        The point cannot be simulated here, e.g. for want of its trace.
    """
    store = default_store()
    moving = ranged_figures(resolve(best.scenario), store)
    points = latin_hypercube(draws, len(moving), best.scenario.seed)
    cases: list[Values] = [{}, *({r.key: drawn_value(r, float(u)) for r, u in zip(moving, point, strict=True)}
                                 for point in points)]
    cases += [{r.key: end} for r in moving[:SWUNG] for end in (r.low, r.high)]
    found = _measured(best, cases, options or SweepOptions(), progress)
    shifts = _shifts(best, found)
    drawn = [shift for shift in shifts[1:draws + 1] if not math.isnan(shift[MONTH])]
    ends = [shift[MONTH] for shift in shifts[draws + 1:]]
    swings = [_swing(r, ends[2 * k], ends[2 * k + 1]) for k, r in enumerate(moving[:SWUNG])]
    spans = {name: _span([shift[name] for shift in drawn]) for name in MEASURES}
    widest_first = tuple(sorted(swings, key=lambda swing: -swing.width_usd))
    return Doubts(len(drawn), len(moving), spans, widest_first, decision_flips(best.scenario))


def kept_doubts(best: Group, folder: Folder, draws: int = DRAWS, options: SweepOptions | None = None,
                progress: Progress | None = None) -> Doubts:
    """`doubts_of`, kept in the sweep's folder and read from there the next time.

    Raises
    ------
    ScenarioError
        The sweep's results are those of another version, code or profiles: they would not go together.
    """
    digest = best.scenario.digest
    if folder.outcome(digest) is None:
        raise ScenarioError("the sweep's results are those of another version or other profiles", [
            Problem(str(folder.path), "", "", f"results of now: kvsim sweep -o {folder.path}")])
    key = digest_of({"scenario": digest, "seeds": [row["seed"] for row in best.rows], "draws": draws,
                     "basis": basis()})
    kept = folder.doubts(key)
    if kept is None:
        kept = plain(asdict(doubts_of(best, draws, options, progress)))
        folder.keep_doubts(key, kept)
    return _read(kept)


def _read(kept: Mapping[str, Any]) -> Doubts:
    spans = {name: (_known(low), _known(high)) for name, (low, high) in kept["spans"].items()}
    swings = [replace(Swing(**s), usd_at_low=_known(s["usd_at_low"]), usd_at_high=_known(s["usd_at_high"]))
              for s in kept["swings"]]
    return Doubts(kept["draws"], kept["figures"], spans, tuple(swings), tuple(Stress(**s) for s in kept["stresses"]))


def _known(value: float | None) -> float:
    """A figure as it was before JSON, which has no nan."""
    return math.nan if value is None else value


def _measured(best: Group, cases: Sequence[Values], options: SweepOptions,
              progress: Progress | None) -> list[dict[str, float]]:
    """Every measure in every case; nan where the model does not fit."""
    data = {k: v for k, v in best.scenario.to_dict().items() if k not in ("name", "description")}
    jobs = [Job(str(k), data, figures=[[*key, value] for key, value in values.items()])
            for k, values in enumerate(cases)]
    found: list[dict[str, float]] = [{} for _ in jobs]
    executor = make_executor(options.executor, options.workers, options.limits, options.address)
    with closing(executor.run(jobs)) as results:
        for done, (job, outcome) in enumerate(results, 1):
            found[int(job.digest)] = _measures(best, outcome)
            if progress is not None:
                progress("ranges of figures", done / len(jobs))
    return found


def _measures(best: Group, outcome: Outcome) -> dict[str, float]:
    if outcome["status"] != "ok":
        if outcome["error"]["kind"] != "infeasible":
            raise ScenarioError(f"a draw of figures failed: {outcome['error']['message']}")
        return dict.fromkeys(MEASURES, math.nan)
    drawn = Group(best.label, best.axes, best.scenario, (outcome["result"],))
    return {name: measure(drawn) for name, measure in MEASURES.items()}


def _shifts(best: Group, found: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Cases moved so that the first one, all figures nominal, is the mean over the seeds."""
    mean = {name: measure(best) for name, measure in MEASURES.items()}
    return [{name: mean[name] + (case[name] - found[0][name]) for name in MEASURES} for case in found]


def _swing(figure: Ranged, at_low: float, at_high: float) -> Swing:
    return Swing(figure.name, figure.low, figure.high, figure.unit, figure.kind, at_low, at_high)


def _span(values: Sequence[float]) -> tuple[float, float]:
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    low, high = (float(np.quantile(values, q)) for q in COVERED_FRAC)
    return low, high
