"""Simulated points for pages: from the server's cache where they are known, with a progress bar where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamlit.delta_generator import DeltaGenerator

from kvsim.dashboard import state
from kvsim.dashboard.choices import Choices
from kvsim.report.report import Report
from kvsim.scenario import Scenario
from kvsim.study import Row

Grow = Callable[[Sequence[Row]], None]
"""Called with the rows so far, whenever a new one has been simulated."""


def simulate_points(choices: Choices, scenario: Scenario, progress: DeltaGenerator, grow: Grow,
                    first: Grow | None = None) -> list[Row]:
    """All points of the curve, the chosen one first; returned by live sessions.

    ``first`` is called with the chosen point's first seed as soon as that is known, where it had to be simulated.

    Raises
    ------
    KvsimError
        The scenario cannot be simulated, or has no price.
    """
    points = sorted(choices.points, key=lambda n: (n != choices.sessions, n))
    rows: list[Row] = []
    for number, concurrency in enumerate(points):
        label = f"Simulating point {number + 1} of {len(points)}: {concurrency} live sessions"
        bar = Bar(progress, label, number / len(points))
        known = is_known(scenario, concurrency, choices.seeds)
        if first is not None and not known and not number and choices.seeds > 1:
            first([simulate_point(scenario, concurrency, 1, bar)])
        rows.append(simulate_point(scenario, concurrency, choices.seeds, bar))
        if not known and number + 1 < len(points):
            grow(rows)
    progress.empty()
    return sorted(rows, key=lambda row: row.concurrency or 0)


def is_known(scenario: Scenario, concurrency: int, seeds: int) -> bool:
    """Whether a point needs no simulation: drawing an unfinished curve would only flicker."""
    cases = (scenario.at(concurrency, seed) for seed in range(scenario.seed, scenario.seed + seeds))
    return all(state.reports().find(case) for case in cases)


def simulate_case(scenario: Scenario, progress: DeltaGenerator, label: str, share: float = 0.0) -> Report:
    """One scenario's report, from the cache where it is known, else behind a progress bar at a share of all work.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    def shown(_done: float) -> None:
        """Drawing is also where Streamlit stops a run that newer choices have overtaken."""
        progress.progress(share, label)

    if state.reports().find(scenario) is None:
        shown(0.0)
    report = state.reports().report(scenario, shown)
    progress.empty()
    return report


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar that is drawn only when something has to be simulated."""

    place: DeltaGenerator
    label: str
    share: float

    def show(self, seed: int) -> None:
        """Draw it; drawing is also where Streamlit stops a run that newer choices have overtaken."""
        self.place.progress(self.share, f"{self.label}, seed {seed}")


def simulate_point(scenario: Scenario, concurrency: int, seeds: int, bar: Bar) -> Row:
    """All seeds of one number of live sessions, from the cache where they are known."""
    cache = state.reports()
    reports: list[Report] = []
    for seed in range(scenario.seed, scenario.seed + seeds):
        case = scenario.at(concurrency, seed)
        if cache.find(case) is None:
            bar.show(seed)
        reports.append(cache.report(case, lambda _share, seed=seed: bar.show(seed)))
    return Row(concurrency, tuple(reports))
