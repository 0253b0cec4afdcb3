"""Traffic classes with prices of their own, seats, and the two price floors."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isinf, isnan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.billing import class_prices, cost_of, seats_served
from kvsim.errors import ProfileError
from kvsim.profiles.store import default_store
from kvsim.report.cost import CostTerms, Sales, cost, market_prices, mode_of
from kvsim.report.metrics import Tokens
from kvsim.resolve import resolve
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.study import report_text

STORE = default_store()
K3, CHEAP = STORE.get("api-price", "moonshot-k3"), STORE.get("api-price", "moonshot-k2.5")
COUNTS = st.floats(1e3, 1e9)
MIXED: dict[str, Any] = {
    "name": "mixed", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    "engine": {"policy": "priority"}, "prices": {"api": "groq-llama-3.3-70b"},
    "workload": {"duration_s": 120, "classes": [
        {"name": "chat", "concurrency": 4, "chat": {"turns": 4, "user_tokens": 200, "output_tokens": 60,
                                                    "think_s": 2}},
        {"name": "batch", "priority": 5, "api": "groq-gpt-oss-120b", "max_concurrency": 4,
         "batch": {"num_requests": 200, "input_tokens": 3000, "output_tokens": 60, "shared_tokens": 600}}]},
    "slo": {"ttft_s": {"p95": 2}, "by_class": {"batch": {"e2e_s": {"p95": 60}}}},
}


def halves(first: Tokens, second: Tokens) -> Sales:
    """Two classes of one turn each in an hour, all of which earn."""
    whole = Tokens(first.uncached_input + second.uncached_input, first.cached_input + second.cached_input,
                   first.output + second.output)
    parts = {name: Sales(t, t, 1, 1.0) for name, t in (("a", first), ("b", second))}
    return Sales(whole, whole, 2, 1.0, by_class=parts)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.floats(1, 1e4))
def test_class_prices_conserve_the_bill_and_add_up(a: float, b: float, c: float, d: float, bill: float) -> None:
    sales = halves(Tokens(a, b, c), Tokens(b, d, a))
    found = cost(bill, 1.0, sales, K3, CostTerms(class_api={"b": CHEAP}))
    kinds = found.by_price
    spent = (sales.tokens.uncached_input * kinds.uncached_input + sales.tokens.cached_input * kinds.cached_input
             + sales.tokens.output * kinds.output) / 1e6
    assert spent == pytest.approx(bill, rel=1e-9)
    for mode in ("hits", "ideal_hits", "demand"):
        parts = sum(mode_of(r, mode) for r in found.revenue_by_class.values())
        assert parts == pytest.approx(mode_of(found.revenue_usd_per_hour, mode), rel=1e-9)


@given(COUNTS, COUNTS)
def test_the_same_price_for_every_class_is_no_class_price(a: float, b: float) -> None:
    sales = halves(Tokens(a, b, a), Tokens(b, b, a))
    plain, classed = (cost(10.0, 1.0, sales, K3, CostTerms(class_api=own)) for own in ({}, {"a": K3, "b": K3}))
    assert classed.revenue_usd_per_hour.hits == pytest.approx(plain.revenue_usd_per_hour.hits)
    assert classed.by_price.cached_input == pytest.approx(plain.by_price.cached_input)


def test_a_class_without_any_price_leaves_the_revenue_unknown() -> None:
    sales = halves(Tokens(1e6, 0, 1e4), Tokens(1e6, 0, 1e4))
    found = cost(10.0, 1.0, sales, None, CostTerms(class_api={"a": K3}))
    assert isnan(found.revenue_usd_per_hour.hits)
    assert found.revenue_by_class["a"].hits > 0


def test_classes_of_a_scenario_sell_at_their_own_price() -> None:
    report = simulate(Scenario.from_dict(MIXED))
    sold = report.cost.sales
    assert sold is not None
    assert {"chat", "batch"} <= set(report.cost.revenue_by_class) <= {"chat", "batch", "primer"}
    for name in ("uncached_input", "cached_input", "output"):
        parts = sum(getattr(part.tokens, name) for part in sold.by_class.values())
        assert parts == pytest.approx(getattr(sold.tokens, name), rel=1e-9)
    assert sum(part.turns for part in sold.by_class.values()) == sold.turns
    batch, price = sold.by_class["batch"].earning, STORE.get("api-price", "groq-gpt-oss-120b")
    by_hand = (batch.uncached_input * price.input.base + batch.cached_input * price.cached_input.base
               + batch.output * price.output.base) / 1e6 / sold.hours
    assert report.cost.revenue_by_class["batch"].hits == pytest.approx(by_hand)
    assert {"chat", "batch"} <= set(report.to_dict()["cost"]["revenue_by_class"])


def test_a_run_tells_what_classes_and_seats_bring() -> None:
    asked = Scenario.from_dict({**MIXED, "demand": {"seats": 40, "active_frac_peak": 0.5, "turns_per_active_hour": 60}})
    report = simulate(asked)
    told = report_text(report)
    assert f"batch ${report.cost.revenue_by_class['batch'].hits:,.2f} an hour" in told
    assert f"{report.cost.seats.served:,.1f} seats served inside the SLO" in told
    assert report.cost.seats.per_node == pytest.approx(8 * report.cost.seats.served)
    assert "seats" not in report_text(simulate(Scenario.from_dict(MIXED)))


def test_an_unknown_class_price_is_said_at_the_field() -> None:
    wrong = load_scenario(MIXED, ["workload.classes.1.api=grok"])
    with pytest.raises(ProfileError, match=r"workload\.classes\.1\.api"):
        class_prices(wrong, STORE)


def test_the_market_floor_does_not_rise_with_our_misses() -> None:
    missed, reused = Tokens(20e6, 0, 60e3), Tokens(1e6, 19e6, 60e3)
    floors = [market_prices(served, [K3], reused)[0] for served in (missed, reused)]
    assert floors[0].blended_ideal == floors[1].blended_ideal == floors[1].blended
    assert floors[0].blended == pytest.approx((20 * 3 + 0.06 * 15) / 20.06)


@given(COUNTS, COUNTS, COUNTS, st.floats(1, 1e4))
def test_it_pays_exactly_where_our_floor_is_below_the_price(a: float, b: float, c: float, bill: float) -> None:
    """Sold at the market's cheapest price, the contribution is positive where the market's floor is above ours."""
    sold = Tokens(a, b, c)
    found = cost(bill, 1.0, Sales(sold, sold, 1, 1.0, sold, 1, sold), K3, CostTerms(market=[K3]))
    gap = found.market_floor_usd_per_mtok - found.break_even_usd_per_mtok
    assert gap * sold.total / 1e6 == pytest.approx(found.contribution_usd_per_node_hour, rel=1e-6, abs=1e-6)


def test_a_node_that_sells_nothing_has_no_price_at_which_it_pays() -> None:
    served, nothing = Tokens(1e6, 0, 1e4), Tokens(0, 0, 0)
    collapsed = cost(34.0, 1.0, Sales(served, nothing, 10, 1.0, nothing, 0), K3)
    assert isinf(collapsed.break_even_usd_per_mtok)
    assert collapsed.usd_per_mtok.blended == pytest.approx(34.0 / 1.01)


def test_a_demand_below_what_is_served_lifts_our_floor() -> None:
    sold = Tokens(1e6, 9e6, 1e5)
    all_sold, half = (cost(34.0, 1.0, Sales(sold, sold, 100, 1.0), K3, CostTerms(
        revenue_mode="demand", demand_turns_per_hour=turns)) for turns in (inf, 50.0))
    assert half.break_even_usd_per_mtok == pytest.approx(2 * all_sold.break_even_usd_per_mtok)


def test_seats_by_turns_and_by_live_sessions() -> None:
    some = Tokens(1, 0, 0)
    sales = Sales(some, some, turns=600, hours=1.0, earning_turns=300)
    busy = load_scenario("k3-b300-study", ["demand={seats: 50, active_frac_peak: 0.2, turns_per_active_hour: 30}"])
    assert seats_served(busy, sales) == pytest.approx(300 / 30 / 0.2)
    live = load_scenario("k3-b300-study", ["demand={seats: 50, active_frac_peak: 0.2}"]).at(8, 0)
    assert seats_served(live, sales) == pytest.approx(8 / 0.2 / 2)
    assert isnan(seats_served(load_scenario("k3-b300-study"), sales))
    found = cost_of(resolve(live), STORE, sales, 0.5).seats
    assert found.served == found.per_node == pytest.approx(20)
    assert found.usd_per_month == pytest.approx(34.0 * 730 / 20)
    assert isinf(cost_of(resolve(live), STORE, replace(sales, earning_turns=0), 0.5).seats.usd_per_month)
