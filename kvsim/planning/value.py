"""What a gigabyte of a cache tier is worth an hour, and what a token of fresh input costs at long context."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.billing import api_price
from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.report.cost import MTOK
from kvsim.report.report import Report
from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
from kvsim.simulation import simulate, step_time_of
from kvsim.steptime.base import StepBatch, step_s

SECONDS_PER_HOUR = 3600.0
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class TierValue:
    """What one tier brings, from paired runs with and without it.

    Attributes
    ----------
    kind : str
        The tier.
    capacity_bytes : float
        Its size.
    usd_per_hour : float
        Contribution with it less contribution without it, its own cost paid; median over the seeds.
    low_usd_per_hour, high_usd_per_hour : float
        Extremes over the seeds.
    cost_usd_per_hour : float
        What the tier itself costs.
    usd_per_gb_hour : float
        ``usd_per_hour`` a gigabyte.
    """

    kind: str
    capacity_bytes: float
    usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    cost_usd_per_hour: float
    usd_per_gb_hour: float


def tier_values(scenario: Scenario, seeds: int = 1) -> tuple[TierValue, ...]:
    """$ saved per hour by each tier of a scenario, from runs with and without it on the same traffic.

    Parameters
    ----------
    scenario : Scenario
        With tiers and an API price; live sessions as they are. Its revenue mode and SLO decide what counts.
    seeds : int
        Pairs of runs, seeds counted from the scenario's own.

    Raises
    ------
    ScenarioError
        The scenario has no tiers.
    """
    if not scenario.tiers:
        raise ScenarioError("there is no tier to value", [Problem(scenario.origin, "tiers", "[]", "at least one tier")])
    seeded = [scenario.model_copy(update={"seed": scenario.seed + k, "study": None}) for k in range(seeds)]
    whole = [simulate(s) for s in seeded]
    return tuple(_value(i, whole, [simulate(_without(s, i)) for s in seeded]) for i in range(len(scenario.tiers)))


def _without(scenario: Scenario, i: int) -> Scenario:
    return scenario.model_copy(update={"tiers": (*scenario.tiers[:i], *scenario.tiers[i + 1:])})


def _value(i: int, whole: list[Report], without: list[Report]) -> TierValue:
    gains = [_usd(a) - _usd(b) for a, b in zip(whole, without, strict=True)]
    tier = Scenario.from_dict(whole[0].scenario).tiers[i]
    own = whole[0].cost.usd_per_hour - without[0].cost.usd_per_hour
    gain = statistics.median(gains)
    return TierValue(tier.kind, tier.capacity, gain, min(gains), max(gains), own, gain / (tier.capacity / GIGABYTE))


def _usd(report: Report) -> float:
    """Contribution of the whole configuration [$ per hour]."""
    cost, earned = report.cost, report.cost.revenue_usd_per_hour
    revenue = {"hits": earned.hits, "ideal_hits": earned.ideal_hits, "demand": earned.demand}[cost.revenue_mode]
    return revenue - cost.usd_per_hour


@dataclass(frozen=True, slots=True)
class ContextPrice:
    """Cost of fresh input at one context, beside the flat price that the API charges for it [$ per million tokens]."""

    context_tokens: int
    usd_per_mtok: float
    flat_usd_per_mtok: float


def long_context_prices(resolved: Resolved, usd_per_hour: float, contexts: Sequence[int]) -> tuple[ContextPrice, ...]:
    """What a million tokens of fresh input cost when they follow so much context.

    Parameters
    ----------
    resolved : Resolved
        Model, GPU and layout; its step-time model and token budget.
    usd_per_hour : float
        The replica's bill.
    contexts : sequence of int
        Tokens before the chunk.

    Notes
    -----
    A full prefill step at that offset and nothing else: what the tokens cost while they are computed, at a
    busy engine. A flat price charges the same for all contexts; where this line crosses it, longer contexts lose.

    Examples
    --------
    >>> from kvsim.resolve import resolve
    >>> from kvsim.scenario import load_scenario
    >>> near, far = long_context_prices(resolve(load_scenario("k3-b300-study")), 34.0, [0, 1_000_000])
    >>> near.usd_per_mtok < far.usd_per_mtok
    True
    """
    model, tokens = step_time_of(resolved), resolved.limits.max_num_batched_tokens
    api = api_price(resolved.scenario, resolved.model.name, default_store())
    flat = api.input.base if api else math.nan
    found: list[ContextPrice] = []
    for context in contexts:
        pairs = tokens * context + tokens * (tokens + 1) // 2
        seconds = step_s(model, StepBatch(tokens, 1, pairs, context + tokens, 0), 0)
        usd = usd_per_hour * seconds / SECONDS_PER_HOUR / tokens * MTOK
        found.append(ContextPrice(context, usd, flat))
    return tuple(found)
