"""Dollars: published sums, and laws of the attribution."""

from __future__ import annotations

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ProfileError
from kvsim.profiles.store import default_store
from kvsim.report.cost import Sales, cost, gpu_figure, revenue_usd
from kvsim.report.metrics import Tokens

K3 = default_store().get("api-price", "moonshot-k3")
COUNTS = st.floats(1e3, 1e10)


@pytest.mark.golden
def test_bill_of_a_k3_turn() -> None:
    # A turn of 142,000 + 444 tokens at 95 % hits: $0.0685, derived from Moonshot's API prices ($3, $0.30, $15 per
    # million tokens). 0.5 %.
    assert revenue_usd(Tokens(0.05 * 142_000, 0.95 * 142_000, 444), K3) == pytest.approx(0.0685, rel=0.005)


@pytest.mark.golden
def test_dollars_per_million_tokens_of_a_gpu() -> None:
    # SemiAnalysis InferenceX-app #391: GB200 at $2.21 an hour and 5,336 tokens/s a GPU: $0.115. 1 %.
    sales = Sales(Tokens(0, 0, 5336 * 3600.0), Tokens(0, 0, 0), 1, 1.0)
    assert cost(2.21, 1, sales, None).usd_per_mtok.output_all_in == pytest.approx(0.115, rel=0.01)


def test_by_hand() -> None:
    """One hour of an 8-GPU node at $4 a GPU: 1M uncached, 9M cached, 0.1M output at Moonshot's price."""
    sold = Tokens(1e6, 9e6, 1e5)
    found = cost(32.0, 1.0, Sales(sold, sold, 100, 1.0), K3)
    revenue = 3.0 + 9 * 0.3 + 0.1 * 15
    assert found.contribution_usd_per_node_hour == pytest.approx(revenue - 32)
    assert found.contribution_usd_per_turn == pytest.approx((revenue - 32) / 100)
    assert found.margin_frac == pytest.approx((revenue - 32) / revenue)
    assert found.break_even_frac == pytest.approx(32 / revenue)
    assert found.usd_per_mtok.blended == found.usd_per_mtok.total_incl_cached == pytest.approx(32 / 10.1)
    assert found.usd_per_mtok.output_all_in == pytest.approx(320)


def test_only_what_keeps_the_slo_earns_but_all_of_it_costs() -> None:
    sold = Tokens(1e6, 9e6, 1e5)
    all_good, none_good = (cost(32.0, 1.0, Sales(sold, good, 100, 1.0), K3) for good in (sold, Tokens(0, 0, 0)))
    assert none_good.contribution_usd_per_node_hour == -32
    assert none_good.usd_per_mtok == all_good.usd_per_mtok
    assert isnan(none_good.break_even_frac)


def test_without_an_api_price_there_is_a_bill_and_no_revenue() -> None:
    found = cost(32.0, 1.0, Sales(Tokens(1e6, 0, 1e6), Tokens(1e6, 0, 1e6), 10, 1.0), None)
    assert found.usd_per_mtok.blended == 16.0
    assert isnan(found.margin_frac)
    assert isnan(found.usd_per_mtok.output)


@given(COUNTS, COUNTS, COUNTS, st.floats(0.1, 1000), st.floats(0.01, 100))
def test_the_attribution_sums_to_the_bill(uncached: float, cached: float, output: float, rate: float,
                                          hours: float) -> None:
    sold = Tokens(uncached, cached, output)
    found = cost(rate, 1.0, Sales(sold, sold, 1, hours), K3).usd_per_mtok
    parts = uncached * found.uncached_input + cached * found.cached_input + output * found.output
    assert parts / 1e6 == pytest.approx(rate * hours)
    assert found.blended * sold.total / 1e6 == pytest.approx(rate * hours)
    assert found.output / found.uncached_input == pytest.approx(5.0)


@given(COUNTS, COUNTS, st.floats(0.1, 100))
def test_break_even_and_margin_agree(uncached: float, output: float, rate: float) -> None:
    sold = Tokens(uncached, 0, output)
    found = cost(rate, 2.0, Sales(sold, sold, 1, 1.0), K3)
    assert found.margin_frac == pytest.approx(1 - found.break_even_frac)
    assert (found.contribution_usd_per_node_hour > 0) == (found.break_even_frac < 1)


def test_prices_of_gpus() -> None:
    price = default_store().get("price", "rental-2026-09")
    assert gpu_figure(price, "b300-sxm").base > 0
    with pytest.raises(ProfileError, match=r"has no price for 'ascend-950pr'.*this one covers") as caught:
        gpu_figure(price, "ascend-950pr")
    assert "b300-sxm" in caught.value.problems[0].accepted
