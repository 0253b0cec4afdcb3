"""A plan: the cheapest configuration for a demand and, if asked, what the next dollar buys and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.planning.advice import advice
from kvsim.planning.pool import process_pool
from kvsim.planning.results import PlanResult
from kvsim.planning.search import PlanOptions, cheapest
from kvsim.scenario import Scenario, load_scenario


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
        if not options.advise:
            return found.result
        advised = advice(scenario, found, options, run)
        return replace(found.result, changes=advised.changes, interval=advised.interval,
                       simulations=found.result.simulations + advised.simulations)
