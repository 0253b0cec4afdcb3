"""Dollars: what the hardware costs, what the tokens earn, and where the two meet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.hardware import ApiPriceProfile, PriceProfile
from kvsim.report.metrics import Tokens

MTOK = 1e6


@dataclass(frozen=True, slots=True)
class UsdPerMtok:
    """$ per million tokens.

    ``uncached_input``, ``cached_input`` and ``output`` share the bill in proportion to the API's prices, so
    that the three, times their tokens, sum to the bill. ``blended`` and ``total_incl_cached`` divide the bill
    by all tokens, ``output_all_in`` by the output alone.
    """

    uncached_input: float
    cached_input: float
    output: float
    blended: float
    output_all_in: float
    total_incl_cached: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The bill and the revenue of the measured window.

    ``break_even_frac`` is the share of the API's prices at which revenue equals the bill: below 1 the API's
    price pays. ``margin_frac`` is contribution / revenue. nan where no API price is known.
    Revenue bills hits as they happen, and only requests that keep the scenario's SLO earn: without that
    rule a collapsed node, which sells every miss as fresh input, looks more profitable than a healthy one.
    """

    usd_per_hour: float
    usd_per_mtok: UsdPerMtok
    contribution_usd_per_node_hour: float
    contribution_usd_per_turn: float
    margin_frac: float
    break_even_frac: float


@dataclass(frozen=True, slots=True)
class Sales:
    """What a window of ``hours`` served: all tokens, those of requests inside the SLO, turns (first tokens)."""

    tokens: Tokens
    earning: Tokens
    turns: int
    hours: float


def gpu_usd_per_hour(price: PriceProfile, gpu: str) -> float:
    """$ per hour of one GPU in a price profile.

    Raises
    ------
    ProfileError
        The profile has no price for that GPU.
    """
    if gpu not in price.usd_per_gpu_hour:
        known = sorted(price.usd_per_gpu_hour)
        problem = Problem("price profile", "", f"{price.name!r}, which has no price for {gpu!r}",
                          f"one that has; this one covers {', '.join(known)}")
        raise ProfileError(f"price profile {price.name!r} does not cover {gpu!r}", [problem])
    return price.usd_per_gpu_hour[gpu].base


def revenue_usd(tokens: Tokens, api: ApiPriceProfile) -> float:
    """What an API earns with these tokens.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> k3 = default_store().get("api-price", "moonshot-k3")
    >>> round(revenue_usd(Tokens(0.05 * 142_000, 0.95 * 142_000, 444), k3), 4)
    0.0684
    """
    return (tokens.uncached_input * api.input.base + tokens.cached_input * api.cached_input.base
            + tokens.output * api.output.base) / MTOK


def cost(usd_per_hour: float, num_nodes: float, sales: Sales, api: ApiPriceProfile | None) -> Cost:
    """Bill against revenue.

    Parameters
    ----------
    usd_per_hour : float
        The whole configuration's $ per hour.
    num_nodes : float
        Nodes (or trays) it runs on.
    sales : Sales
        What was served.
    api : ApiPriceProfile or None
        Prices that the tokens earn.

    Notes
    -----
    Assumes the load of the window all the time. The attribution by API price says what each kind
    would have to sell for if their price ratios stayed as they are; it conserves the bill, but it does not
    say what each kind *causes*.
    """
    bill = usd_per_hour * sales.hours
    revenue = revenue_usd(sales.earning, api) if api else math.nan
    contribution = revenue - bill
    break_even = _ratio(bill, revenue)
    return Cost(
        usd_per_hour=usd_per_hour,
        usd_per_mtok=_per_mtok(bill, sales.tokens, api),
        contribution_usd_per_node_hour=_ratio(contribution, sales.hours * num_nodes),
        contribution_usd_per_turn=_ratio(contribution, sales.turns),
        margin_frac=_ratio(contribution, revenue),
        break_even_frac=break_even,
    )


def _per_mtok(bill: float, tokens: Tokens, api: ApiPriceProfile | None) -> UsdPerMtok:
    blended = _ratio(bill * MTOK, tokens.total)
    break_even = _ratio(bill, revenue_usd(tokens, api)) if api else math.nan
    prices = (api.input.base, api.cached_input.base, api.output.base) if api else (math.nan,) * 3
    uncached, cached, output = (break_even * p for p in prices)
    return UsdPerMtok(uncached, cached, output, blended, _ratio(bill * MTOK, tokens.output), blended)


def _ratio(value: float, by: float) -> float:
    return value / by if by else math.nan
