"""A plan: the cheapest configuration for a demand and, if asked, what the next dollar buys and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.planning.advice import advice
from kvsim.planning.day import day
from kvsim.planning.pool import Workers, process_pool
from kvsim.planning.results import PlanResult
from kvsim.planning.search import Cheapest, PlanOptions, cheapest
from kvsim.planning.survival import survival
from kvsim.scenario import DayPart, PlanPart, Scenario, SurvivePart, load_scenario


def plan(scenario: Scenario | str | Mapping[str, Any], options: PlanOptions | None = None) -> PlanResult:
    """The cheapest configuration and number of replicas that serve the demand within the SLO.

    Parameters
    ----------
    scenario : Scenario, str or mapping
        A scenario, the path or shipped name of one, or plain data; with an SLO, and ``plan`` or ``demand`` that say how
        many sessions are live.
    options : PlanOptions, optional
        Seats, budget, processes, advice.

    Returns
    -------
    PlanResult
        Same scenario, same result, whatever the number of processes.

    Raises
    ------
    InfeasibleError
        No configuration serves the demand; says why each fails, and which comes nearest.
    ScenarioError
        No SLO or no demand.

    Notes
    -----
    Sessions are shared evenly over replicas, which do not help each other. Every configuration is bounded from above
    without a simulation; in the order of that bound's price the most sessions a replica carries within the SLO are
    found by bisection, where the first trial is at the load at which it would be cheaper than the best so far. The
    limits are compared with the median over ``plan.replications`` seeds. What is pruned would have cost more,
    given that a replica which keeps its SLO keeps it with fewer sessions, and that the bounds hold.

    Examples
    --------
    >>> small = {"name": "x", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 20, "input_tokens": 2000, "output_tokens": 20}, "concurrency": 1},
    ...     "slo": {"ttft_s": {"p95": 1}}, "plan": {"live_sessions": 4, "max_sessions_per_replica": 4}}
    >>> plan(small).best.replicas
    1
    """
    options = options or PlanOptions()
    scenario = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    with process_pool(options.workers) as run:
        found = cheapest(scenario, options, run)
        result = _with_fleet(scenario, found, options, run)
        if not options.advise:
            return result
        advised = advice(scenario, found, options, run)
        return replace(result, changes=advised.changes, interval=advised.interval,
                       simulations=result.simulations + advised.simulations)


def _with_fleet(scenario: Scenario, found: Cheapest, options: PlanOptions, run: Workers) -> PlanResult:
    """The search's result, with what the loss of a node and a day below the peak do to its fleet where asked for."""
    part, result = scenario.plan or PlanPart(), found.result
    loss, swing = part.survive, part.day
    if options.lose_nodes is not None:
        loss = (loss or SurvivePart()).model_copy(update={"nodes": options.lose_nodes})
    if options.peak_over_mean is not None:
        swing = (swing or DayPart(peak_over_mean=2.0)).model_copy(
            update={"peak_over_mean": options.peak_over_mean, "load": None})
    if loss is not None:
        lost = survival(found, loss, run, part.replications)
        result = replace(result, survival=lost, simulations=result.simulations + lost.simulations)
    if swing is not None:
        swung = day(found, swing, run)
        result = replace(result, day=swung, simulations=result.simulations + swung.simulations)
    return result
