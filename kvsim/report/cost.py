"""Dollars: what the hardware costs, what the tokens earn, and where the two meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import Figure
from kvsim.profiles.hardware import ApiPriceProfile, PriceProfile
from kvsim.report.bill import HOURS_PER_MONTH, Bill
from kvsim.report.metrics import Tokens

MTOK = 1e6


@dataclass(frozen=True, slots=True)
class UsdPerMtok:
    """$ per million tokens.

    ``uncached_input``, ``cached_input`` and ``output`` share the bill by a stated attribution, so that the three,
    times their tokens, sum to the bill. ``blended`` and ``total_incl_cached`` divide the bill by all tokens,
    ``output_all_in`` by the output alone.
    """

    uncached_input: float
    cached_input: float
    output: float
    blended: float
    output_all_in: float
    total_incl_cached: float


@dataclass(frozen=True, slots=True)
class Revenue:
    """$ per hour that the window earned, in three modes; nan where no API price is known.

    Attributes
    ----------
    hits : float
        Tokens billed as they were served: a miss sells as fresh input. Rewards a bad cache, so that it is only fit
        for comparing where the SLO decides what earns.
    ideal_hits : float
        The same turns billed as if an infinite cache had served them: what a customer is charged who sees prices
        for cached input and sends nothing new.
    demand : float
        ``ideal_hits``, but no more turns than customers ask for; equal to it where no demand is stated.
    """

    hits: float
    ideal_hits: float
    demand: float


@dataclass(frozen=True, slots=True)
class MarketPrice:
    """What one provider would charge for the window's turns, all together [$ per million tokens, cached included].

    Where a provider charges for cache writes, fresh input is billed at that price.

    Attributes
    ----------
    blended : float
        With our misses bought as fresh input there too. Rises when our own cache collapses, so that it is no floor.
    blended_ideal : float
        With everything reused that can be: what a customer pays elsewhere for the same turns, however our cache does.
    """

    provider: str
    as_of: str
    input: float
    cached_input: float
    output: float
    cache_write: float | None
    blended: float
    blended_ideal: float


@dataclass(frozen=True, slots=True)
class SeatCost:
    """Demand in seats; nan where no demand is stated.

    Attributes
    ----------
    served : float
        Seats whose peak hour the turns that earn would fill.
    per_node : float
        The same a node.
    usd_per_month : float
        The whole bill a seat and month of 730 hours; inf where no turn earns.
    """

    served: float = math.nan
    per_node: float = math.nan
    usd_per_month: float = math.nan


Share = tuple[float, tuple[int, ...]]
"""Part of the time, 0 to 1, in which there were so many replicas of each group."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas of each group in a window: ``paid`` were up or starting, a perfect autoscaler has those ``needed``."""

    paid: tuple[Share, ...]
    needed: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class ScalingCost:
    """What autoscaling does to the bill.

    Attributes
    ----------
    billing : "on_demand" or "reserved"
        Which of the first two bills is the headline's.
    on_demand_usd_per_hour : float
        Replicas paid for while they are up or starting.
    reserved_usd_per_hour : float
        All replicas paid for all the time.
    perfect_usd_per_hour : float
        Those of a perfect autoscaler (no start-up, load known at every moment), paid for on demand. One that is late
        may pay less: its requests wait instead.
    paid_replicas, num_replicas, needed_replicas : float
        Means behind the three.
    """

    billing: str
    on_demand_usd_per_hour: float
    reserved_usd_per_hour: float
    perfect_usd_per_hour: float
    paid_replicas: float
    num_replicas: float
    needed_replicas: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The bill and the revenue of the measured window.

    ``break_even_frac`` is the share of the API's prices at which revenue equals the bill: below 1 the API's
    price pays. ``margin_frac`` is contribution / revenue. nan where no API price is known.
    The headline's revenue is the mode ``revenue_mode``; by default hits are billed as they happen, and only requests
    that keep the scenario's SLO earn: without that rule a collapsed node, which sells every miss as fresh
    input, looks more profitable than a healthy one.

    Attributes
    ----------
    usd_per_mtok : UsdPerMtok
        By the attribution named ``attribution``.
    by_price, by_resource_time : UsdPerMtok
        Both attributions: in proportion to the API's prices; by what the time goes to (prefill to uncached input,
        decode to output, cache tiers to cached input).
    bill : Bill or None
        Lines of ``usd_per_hour``.
    market : tuple of MarketPrice
        Providers' prices for these turns, the cheapest with ideal hits first.
    market_floor_usd_per_mtok : float
        What the cheapest provider charges for the same turns, everything reused that can be. It depends on what is
        asked and not on our cache: a collapsed node does not lift it.
    break_even_usd_per_mtok : float
        The bill on the tokens that are sold, cached input included: our own price floor, the second line beside the
        market's. inf where nothing earns (a collapsed node); ``usd_per_mtok.blended`` is the bill on all tokens.
    seats : SeatCost
        The demand in seats.
    revenue_by_class : mapping
        Revenue by traffic class, where there are classes; "" is what belongs to none.
    sales : Sales or None
        What was sold, so that the same run can be priced again.
    prefill_frac : float
        Share of the engine's busy time that prefill takes.
    as_of, trust : str
        Date of the compute price; how far the speed behind it can be trusted.
    scaling : ScalingCost or None
        What autoscaling does to the bill, where there is some.
    """

    usd_per_hour: float
    usd_per_mtok: UsdPerMtok
    contribution_usd_per_node_hour: float
    contribution_usd_per_turn: float
    margin_frac: float
    break_even_frac: float
    by_price: UsdPerMtok
    by_resource_time: UsdPerMtok
    attribution: str
    revenue_usd_per_hour: Revenue
    revenue_mode: str
    bill: Bill | None = None
    market: tuple[MarketPrice, ...] = ()
    market_floor_usd_per_mtok: float = math.nan
    break_even_usd_per_mtok: float = math.nan
    seats: SeatCost = SeatCost()
    revenue_by_class: Mapping[str, Revenue] = field(default_factory=dict[str, Revenue])
    sales: Sales | None = None
    prefill_frac: float = math.nan
    as_of: str = ""
    trust: str = ""
    scaling: ScalingCost | None = None


@dataclass(frozen=True, slots=True)
class Sales:
    """What a window of ``hours`` served.

    Attributes
    ----------
    tokens, earning : Tokens
        All tokens; those of requests that earn.
    turns : int
        First tokens.
    hours : float
        Length of the window [h].
    earning_ideal : Tokens or None
        ``earning`` as an infinite cache would have served it; None takes ``earning`` itself.
    earning_turns : int or None
        Turns that earn; None takes ``turns``.
    ideal : Tokens or None
        ``tokens`` as an infinite cache would have served them; None takes ``tokens``.
    by_class : mapping
        The same by traffic class, where there are classes, so that each can have its own price; "" is what belongs to
        none. Its parts sum to the whole.
    scaling : Scaling or None
        How many replicas there were, where they come and go.
    """

    tokens: Tokens
    earning: Tokens
    turns: int
    hours: float
    earning_ideal: Tokens | None = None
    earning_turns: int | None = None
    ideal: Tokens | None = None
    by_class: Mapping[str, Sales] = field(default_factory=dict[str, "Sales"])
    scaling: Scaling | None = None

    @property
    def sold_turns(self) -> int:
        """Turns that earn."""
        return self.turns if self.earning_turns is None else self.earning_turns


@dataclass(frozen=True, slots=True)
class CostTerms:
    """What a cost rests on beside bill and sales.

    Attributes
    ----------
    bill : Bill or None
        Lines of the bill.
    prefill_frac : float
        Share of the engine's busy time that prefill takes, for the attribution by resource time.
    attribution : "price" or "resource_time"
        Which of the two is the headline's.
    revenue_mode : "hits", "ideal_hits" or "demand"
        Which of the three is the headline's.
    demand_turns_per_hour : float
        Turns that customers ask for, inf where no demand is stated.
    market : iterable of ApiPriceProfile
        Providers of the model.
    class_api : mapping
        Prices of traffic classes that do not sell at the general one.
    seats_served : float
        Seats whose peak hour the turns that earn would fill; nan where no demand is stated.
    trust, scaling
        See `Cost`.
    """

    bill: Bill | None = None
    prefill_frac: float = math.nan
    attribution: str = "price"
    revenue_mode: str = "hits"
    demand_turns_per_hour: float = math.inf
    market: Iterable[ApiPriceProfile] = ()
    class_api: Mapping[str, ApiPriceProfile] = field(default_factory=dict[str, ApiPriceProfile])
    seats_served: float = math.nan
    trust: str = ""
    scaling: ScalingCost | None = None


DEFAULT_TERMS = CostTerms()
"""No lines, attribution by price, hits billed as they happen."""


def gpu_figure(price: PriceProfile, gpu: str) -> Figure:
    """The price of one GPU and hour, with its origin.

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
    return price.usd_per_gpu_hour[gpu]


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


def cost(usd_per_hour: float, num_nodes: float, sales: Sales, api: ApiPriceProfile | None,
         terms: CostTerms = DEFAULT_TERMS) -> Cost:
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
    terms : CostTerms
        Lines of the bill, attribution, revenue mode, demand, market.

    Notes
    -----
    Assumes the load of the window all the time. The attribution by API price says what each kind
    would have to sell for if their price ratios stayed as they are; the one by resource time says what takes the
    engine's time, but reads cached context for free. Both conserve the bill.
    """
    bill, priced = usd_per_hour * sales.hours, priced_parts(sales, api, terms.class_api)
    earned = revenue_modes(sales, api, terms.demand_turns_per_hour, terms.class_api)
    revenue = mode_of(earned, terms.revenue_mode) * sales.hours
    contribution = revenue - bill
    by_price, by_time = by_api_price(bill, priced), by_resource_time(bill, sales.tokens, terms)
    market = market_prices(sales.tokens, terms.market, sales.ideal)
    return Cost(
        usd_per_hour=usd_per_hour,
        usd_per_mtok=by_time if terms.attribution == "resource_time" else by_price,
        contribution_usd_per_node_hour=_ratio(contribution, sales.hours * num_nodes),
        contribution_usd_per_turn=_ratio(contribution, sales.turns),
        margin_frac=_ratio(contribution, revenue),
        break_even_frac=_ratio(bill, revenue),
        by_price=by_price, by_resource_time=by_time, attribution=terms.attribution,
        revenue_usd_per_hour=earned, revenue_mode=terms.revenue_mode, bill=terms.bill, market=market,
        market_floor_usd_per_mtok=market[0].blended_ideal if market else math.nan,
        break_even_usd_per_mtok=_price_floor(bill, sales, terms),
        seats=_seat_cost(usd_per_hour, num_nodes, terms.seats_served),
        revenue_by_class=_by_class(sales, api, terms), sales=sales, prefill_frac=terms.prefill_frac,
        as_of=terms.bill.as_of if terms.bill else "", trust=terms.trust,
        scaling=terms.scaling,
    )


def mode_of(revenue: Revenue, mode: str) -> float:
    """The revenue [$ per hour] of one mode.

    >>> mode_of(Revenue(3.0, 2.0, 1.0), "demand")
    1.0
    """
    return {"hits": revenue.hits, "ideal_hits": revenue.ideal_hits, "demand": revenue.demand}[mode]


Priced = tuple[tuple[Sales, ApiPriceProfile | None], ...]
"""Parts of what was sold with the price that each sells at; None where no price is known."""


def priced_parts(sales: Sales, api: ApiPriceProfile | None, class_api: Mapping[str, ApiPriceProfile]) -> Priced:
    """What was sold, divided by price: one part a traffic class where classes have prices of their own."""
    if not class_api:
        return ((sales, api),)
    return tuple((part, class_api.get(name, api)) for name, part in sales.by_class.items())


def revenue_modes(sales: Sales, api: ApiPriceProfile | None, demand_turns_per_hour: float = math.inf,
                  class_api: Mapping[str, ApiPriceProfile] | None = None) -> Revenue:
    """$ per hour of the window in the three modes; see `Revenue`.

    Parameters
    ----------
    sales : Sales
        What was served.
    api : ApiPriceProfile or None
        The general price.
    demand_turns_per_hour : float
        Turns that customers ask for; all classes lose the same share of theirs beyond it.
    class_api : mapping, optional
        Prices of classes that do not sell at the general one.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> k3 = default_store().get("api-price", "moonshot-k3")
    >>> missed, ideal = Tokens(1e6, 0, 0), Tokens(1e5, 9e5, 0)
    >>> modes = revenue_modes(Sales(missed, missed, 10, 1.0, ideal, 10), k3, demand_turns_per_hour=5)
    >>> round(modes.hits, 2), round(modes.ideal_hits, 2), round(modes.demand, 3)
    (3.0, 0.57, 0.285)
    """
    if sales.hours <= 0:
        return Revenue(math.nan, math.nan, math.nan)
    parts = priced_parts(sales, api, class_api or {})
    hits = _earned(parts, lambda part: part.earning) / sales.hours
    ideal = _earned(parts, lambda part: part.earning_ideal or part.earning) / sales.hours
    return Revenue(hits, ideal, ideal * _sold_frac(sales, demand_turns_per_hour))


def _sold_frac(sales: Sales, demand_turns_per_hour: float) -> float:
    """Share of the turns that earn which customers ask for, 0 to 1."""
    turns = _ratio(sales.sold_turns, sales.hours)
    return min(1.0, demand_turns_per_hour / turns) if turns > 0 else 1.0


def _earned(parts: Priced, pick: Callable[[Sales], Tokens]) -> float:
    return math.fsum(revenue_usd(pick(part), api) if api else math.nan for part, api in parts)


def _by_class(sales: Sales, api: ApiPriceProfile | None, terms: CostTerms) -> dict[str, Revenue]:
    """Revenue by class; all classes lose the same share of their turns to a demand below what is served."""
    sold = _sold_frac(sales, terms.demand_turns_per_hour)
    found: dict[str, Revenue] = {}
    for name, part in sales.by_class.items():
        earned = revenue_modes(part, terms.class_api.get(name, api))
        found[name] = Revenue(earned.hits, earned.ideal_hits, earned.ideal_hits * sold)
    return found


def _price_floor(bill_usd: float, sales: Sales, terms: CostTerms) -> float:
    """The bill on what is sold [$ per million tokens]; inf where there is a bill and nothing sold."""
    frac = _sold_frac(sales, terms.demand_turns_per_hour) if terms.revenue_mode == "demand" else 1.0
    sold = sales.earning.total * frac
    return bill_usd * MTOK / sold if sold else math.inf if bill_usd > 0 else math.nan


def _seat_cost(usd_per_hour: float, num_nodes: float, seats: float) -> SeatCost:
    if math.isnan(seats):
        return SeatCost()
    monthly = usd_per_hour * HOURS_PER_MONTH
    return SeatCost(seats, _ratio(seats, num_nodes), monthly / seats if seats else math.inf)


def by_api_price(bill_usd: float, parts: Priced) -> UsdPerMtok:
    """The bill shared in proportion to what each kind of tokens sells for; nan without an API price.

    Where classes sell at prices of their own, a kind's figure is the mean over its tokens.
    """
    whole = math.fsum(part.tokens.total for part, _ in parts)
    made = math.fsum(part.tokens.output for part, _ in parts)
    blended = _ratio(bill_usd * MTOK, whole)
    break_even = _ratio(bill_usd, _earned(parts, lambda part: part.tokens))
    uncached, cached, output = (break_even * _mean_price(parts, *kind) for kind in (
        ("uncached_input", "input"), ("cached_input", "cached_input"), ("output", "output")))
    return UsdPerMtok(uncached, cached, output, blended, _ratio(bill_usd * MTOK, made), blended)


def _mean_price(parts: Priced, kind: str, price: str) -> float:
    """Mean price of a kind of tokens over those served; over the parts where none was."""
    pairs = [(float(getattr(part.tokens, kind)), float(getattr(api, price).base) if api else math.nan)
             for part, api in parts]
    count = math.fsum(n for n, _ in pairs)
    if len(pairs) == 1 or not count:
        return math.fsum(usd for _, usd in pairs) / len(pairs)
    return math.fsum(n * usd for n, usd in pairs) / count


def by_resource_time(bill_usd: float, tokens: Tokens, terms: CostTerms) -> UsdPerMtok:
    """The bill shared by what causes it: cache tiers to cached input, the rest by the time of prefill and decode.

    Waiting and idle time is shared as the busy time is. A kind without tokens leaves its part to the
    others. nan where the time's split is not known.
    """
    tiers = _ratio(terms.bill.tiers_usd_per_hour, terms.bill.usd_per_hour) if terms.bill else 0.0
    parts = ((1.0 - tiers) * terms.prefill_frac, tiers, (1.0 - tiers) * (1.0 - terms.prefill_frac))
    counts = (tokens.uncached_input, tokens.cached_input, tokens.output)
    used = [part if count else 0.0 for part, count in zip(parts, counts, strict=True)]
    whole = math.fsum(used)
    each = [_ratio(bill_usd * MTOK * _ratio(part, whole), count) for part, count in zip(used, counts, strict=True)]
    blended = _ratio(bill_usd * MTOK, tokens.total)
    return UsdPerMtok(each[0], each[1], each[2], blended, _ratio(bill_usd * MTOK, tokens.output), blended)


def market_prices(tokens: Tokens, market: Iterable[ApiPriceProfile], ideal: Tokens | None = None,
                  ) -> tuple[MarketPrice, ...]:
    """What each provider would charge for these turns, the cheapest with ideal hits first.

    Parameters
    ----------
    tokens : Tokens
        As we served them.
    market : iterable of ApiPriceProfile
        Providers of the model.
    ideal : Tokens, optional
        As an infinite cache would have served them; None takes `tokens`.
    """
    reused = ideal or tokens
    priced = [MarketPrice(p.provider, p.as_of, p.input.base, p.cached_input.base, p.output.base,
                          p.cache_write.base if p.cache_write else None, _market_blended(tokens, p),
                          _market_blended(reused, p)) for p in market]
    return tuple(sorted(priced, key=lambda m: (m.blended_ideal, m.blended, m.provider)))


def _market_blended(tokens: Tokens, api: ApiPriceProfile) -> float:
    fresh = api.cache_write or api.input
    usd = (tokens.uncached_input * fresh.base + tokens.cached_input * api.cached_input.base
           + tokens.output * api.output.base)
    return _ratio(usd, tokens.total)


def _ratio(value: float, by: float) -> float:
    return value / by if by else math.nan
