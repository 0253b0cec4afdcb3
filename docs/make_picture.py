"""Draws docs/k3-cliff.svg, the README's picture: hits of Kimi K3 on 8 x B300 against live agent sessions."""

from __future__ import annotations

import statistics
from pathlib import Path

from kvsim import load_scenario, simulate
from kvsim.report.svg import Series, log_percent_chart

SESSIONS = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32)
SEEDS = 5
CURVES = (("HBM alone", "k3-b300-cliff"), ("1,889 GB of DRAM below it", "k3-b300-dram"))


def curve(name: str, scenario: str) -> Series:
    """Median hit rate [%] over the seeds at each number of live sessions."""
    base = load_scenario(scenario)
    return Series(name, tuple((float(n), 100 * statistics.median(
        simulate(base.at(n, seed)).hit_rate.total for seed in range(SEEDS))) for n in SESSIONS))


def main() -> None:
    """Simulate and write."""
    title = f"Kimi K3 on 8 x B300, agent traffic: prompt tokens found in the cache (median of {SEEDS} seeds)"
    drawn = log_percent_chart(title, ("live agent sessions", "hit rate (%)"), [curve(*c) for c in CURVES])
    Path(__file__).with_name("k3-cliff.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
