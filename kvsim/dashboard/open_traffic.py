"""A trace at its recorded times on the Plan page: no live sessions, the rate is varied instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from streamlit.delta_generator import DeltaGenerator

from kvsim.dashboard import results
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.headroom import limits_text
from kvsim.dashboard.results import CONTRIBUTION, HIT, IDEAL, OUTPUT, RESOURCE_TEXT, TPOT_P95, TTFT_P95
from kvsim.dashboard.simulate import simulate_case
from kvsim.dashboard.verdict import capacity_sentence, machine_title, model_title, seconds, trust_sentence, usd
from kvsim.planning.trials import limits_of
from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
from kvsim.study import Row

STEPS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
"""Rates that are simulated, as multiples of the chosen one."""


def loads_of(rate_factor: float) -> tuple[float, ...]:
    """Rate factors to simulate.

    >>> loads_of(2.0)
    (1.0, 1.6, 2.0, 2.4, 3.0, 4.0)
    """
    return tuple(rate_factor if step == 1 else round(step * rate_factor, 6) for step in STEPS)


def simulate_loads(scenario: Scenario, factors: Sequence[float], progress: DeltaGenerator) -> dict[float, Row]:
    """A run at each rate factor, from the server's cache where it is known.

    Raises
    ------
    KvsimError
        The scenario cannot be simulated, or has no price.
    """
    found: dict[float, Row] = {}
    for k, factor in enumerate(factors):
        label = f"Simulating rate {k + 1} of {len(factors)}: {factor:g} times as recorded"
        report = simulate_case(at_rate(scenario, factor), progress, label, k / len(factors))
        found[factor] = Row(None, (report,))
    return found


def at_rate(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with the trace played at another rate."""
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"rate_factor": factor})})


def keeps(row: Row, scenario: Scenario) -> bool:
    """Whether a run keeps every limit of the SLO."""
    report = row.reports[0]
    values = [(getattr(getattr(report.latency, name), stat), limit) for name, stat, limit in limits_of(scenario.slo)]
    return all(math.isfinite(value) and value <= limit for value, limit in values)


def most_kept(loads: Mapping[float, Row], scenario: Scenario) -> float | None:
    """The largest rate factor up to which every simulated one keeps the SLO; None where the smallest misses it."""
    found: float | None = None
    for factor in sorted(loads):
        if not keeps(loads[factor], scenario):
            return found
        found = factor
    return found


def load_sentence(choices: Choices, resolved: Resolved, loads: Mapping[float, Row]) -> str:
    """The verdict on the trace at the chosen rate, and how much faster it may come; Markdown."""
    scenario, row = resolved.scenario, loads[choices.rate_factor]
    limits = limits_of(scenario.slo)
    inside = "keeps" if keeps(row, scenario) else "misses"
    goal = f"{inside} {limits_text(limits)}" if limits else "is served (no SLO is set)"
    earns = results.median(row, CONTRIBUTION)
    money = "" if math.isnan(earns) else f"; contribution **{usd(earns)} per node-hour**"
    zone = results.zone_of(results.reached_frac(row))
    return (f"**{zone.capitalize()}:** **{model_title(resolved.model)} on {machine_title(resolved)}** with "
            f"**{choices.traffic} at {choices.rate_factor:g} times its recorded rate** {goal}"
            f"{room_text(loads, scenario) if limits else ''}; {RESOURCE_TEXT[results.binding(row)]} binds{money}.\n\n"
            f"{capacity_sentence(resolved)}; {results.median(row, HIT):.1%} of prompt tokens are reused (ideal "
            f"{results.median(row, IDEAL):.1%}), TTFT p95 is {seconds(results.median(row, TTFT_P95))}. "
            f"{trust_sentence(row)}")


def room_text(loads: Mapping[float, Row], scenario: Scenario) -> str:
    """Up to which simulated rate the SLO holds, as a clause."""
    most = most_kept(loads, scenario)
    if most is None:
        return f"; the SLO is missed at {min(loads):g} times too, the slowest that was simulated"
    return f"; the SLO holds {'at least ' if most == max(loads) else ''}up to {most:g} times, of the rates simulated"


def load_rows(loads: Mapping[float, Row], scenario: Scenario) -> list[dict[str, str]]:
    """A row a rate."""
    return [{"Rate factor": f"{factor:g}", "Inside the SLO": "yes" if keeps(row, scenario) else "no",
             "Hit rate (%)": f"{100 * results.median(row, HIT):.1f}",
             "Ideal (%)": f"{100 * results.median(row, IDEAL):.1f}",
             "Output (tokens/s)": f"{results.median(row, OUTPUT):,.0f}",
             "TTFT p95": seconds(results.median(row, TTFT_P95)),
             "TPOT p95 (ms)": f"{1e3 * results.median(row, TPOT_P95):,.1f}",
             "Binds": RESOURCE_TEXT[results.binding(row)],
             "Contribution ($/node-h)": usd(results.median(row, CONTRIBUTION))}
            for factor, row in sorted(loads.items())]
