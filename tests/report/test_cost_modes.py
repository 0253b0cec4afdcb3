"""Bills from profiles, attributions, revenue modes and market prices."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.billing import demand_turns_per_hour, gpus_per_node, hourly_bill, market, trust_mark
from kvsim.errors import ProfileError
from kvsim.profiles.store import default_store
from kvsim.report.bill import OwnedTerms, Units, bill_text, capital_usd_per_hour, owned_usd_per_gpu_hour
from kvsim.report.cost import Cost, CostTerms, Sales, UsdPerMtok, cost, market_prices, revenue_modes
from kvsim.report.metrics import Tokens
from kvsim.report.report import Report
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from tests.scenario.helpers import small

STORE = default_store()
K3 = STORE.get("api-price", "moonshot-k3")
COUNTS = st.floats(1e3, 1e10)
SHARES = st.floats(0.0, 1.0)


def resolved(name: str = "k3-b300-dram", *overrides: str) -> Resolved:
    return resolve(load_scenario(name, overrides))


def small_resolved(**changes: Any) -> Resolved:
    return resolve(Scenario.from_dict(small(**changes)))


def spent(shares: UsdPerMtok, tokens: Tokens) -> float:
    """What the three kinds of tokens pay together."""
    return (tokens.uncached_input * shares.uncached_input + tokens.cached_input * shares.cached_input
            + tokens.output * shares.output) / 1e6


@given(COUNTS, COUNTS, COUNTS, st.floats(0.1, 1000), SHARES)
def test_both_attributions_sum_to_the_bill(uncached: float, cached: float, output: float, hours: float,
                                           prefill: float) -> None:
    tokens, bill = Tokens(uncached, cached, output), hourly_bill(resolved(), STORE)
    terms = CostTerms(bill, prefill)
    found = cost(bill.usd_per_hour, 1.0, Sales(tokens, tokens, 1, hours), K3, terms)
    for shares in (found.by_price, found.by_resource_time):
        assert spent(shares, tokens) == pytest.approx(bill.usd_per_hour * hours, rel=1e-9)


def test_a_kind_without_tokens_leaves_its_part_to_the_others() -> None:
    bill = hourly_bill(resolved(), STORE)
    sales = Sales(Tokens(1e6, 0, 1e5), Tokens(0, 0, 0), 1, 1.0)
    found = cost(bill.usd_per_hour, 1.0, sales, None, CostTerms(bill, 0.5))
    assert found.by_resource_time.uncached_input * 1 + found.by_resource_time.output * 0.1 == pytest.approx(
        bill.usd_per_hour, rel=1e-9)
    assert isnan(found.by_price.output)


def test_tiers_pay_for_cached_input_and_time_for_the_rest() -> None:
    bill, tokens = hourly_bill(resolved(), STORE), Tokens(1e6, 9e6, 1e5)
    found = cost(bill.usd_per_hour, 1.0, Sales(tokens, tokens, 1, 1.0), K3, CostTerms(bill, 0.75, "resource_time"))
    assert found.usd_per_mtok == found.by_resource_time
    assert found.usd_per_mtok.cached_input * 9 == pytest.approx(bill.tiers_usd_per_hour)
    assert found.usd_per_mtok.uncached_input == pytest.approx(0.75 * 34.0)
    assert found.usd_per_mtok.output * 0.1 == pytest.approx(0.25 * 34.0)


@given(st.floats(0.1, 100), st.floats(1.1, 10))
def test_contribution_is_linear_in_the_price(rate: float, factor: float) -> None:
    sold = Tokens(1e6, 9e6, 1e5)

    def contribution(usd_per_hour: float) -> float:
        return cost(usd_per_hour, 2.0, Sales(sold, sold, 7, 3.0), K3).contribution_usd_per_node_hour

    step = contribution(rate) - contribution(0.0)
    assert contribution(factor * rate) - contribution(0.0) == pytest.approx(factor * step)


def dollars(found: Cost) -> list[float]:
    """Every $ figure of a cost."""
    parts = (found.usd_per_mtok, found.by_price, found.by_resource_time)
    return [found.usd_per_hour, found.contribution_usd_per_node_hour, found.contribution_usd_per_turn,
            found.revenue_usd_per_hour.hits, found.revenue_usd_per_hour.ideal_hits, found.revenue_usd_per_hour.demand,
            *(getattr(p, name) for p in parts for name in UsdPerMtok.__slots__)]


def test_doubling_every_price_doubles_every_dollar() -> None:
    sold, terms = Tokens(1e6, 9e6, 1e5), CostTerms(prefill_frac=0.6)
    prices = {name: getattr(K3, name) for name in ("input", "cached_input", "output")}
    dear = K3.model_copy(update={n: f.model_copy(update={"value": 2 * f.value}) for n, f in prices.items()})
    once = cost(34.0, 1.0, Sales(sold, sold, 10, 1.0), K3, terms)
    twice = cost(68.0, 1.0, Sales(sold, sold, 10, 1.0), dear, terms)
    assert dollars(twice) == pytest.approx([2 * usd for usd in dollars(once)])
    assert twice.margin_frac == pytest.approx(once.margin_frac)


@given(COUNTS, COUNTS, st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_demand_never_sells_more_than_is_served_or_asked_for(tokens: float, cached: float, turns: float,
                                                            asked: float) -> None:
    served = Tokens(tokens, cached, tokens)
    found = revenue_modes(Sales(served, served, int(turns), 1.0, served, int(turns)), K3, asked)
    assert found.demand <= found.ideal_hits * (1 + 1e-12)
    assert found.demand == pytest.approx(found.ideal_hits * min(1.0, asked / int(turns)))


def test_market_and_break_even_are_two_series() -> None:
    tokens = Tokens(1e6, 19e6, 60e3)
    prices = market_prices(tokens, market("kimi-k3", STORE))
    assert [p.blended for p in prices] == sorted(p.blended for p in prices)
    assert {p.provider for p in prices} == {"APIYI", "Melious", "Moonshot", "Novita"}
    moonshot = next(p for p in prices if p.provider == "Moonshot")
    assert moonshot.blended == pytest.approx((1 * 3 + 19 * 0.3 + 0.06 * 15) / 20.06)
    assert prices[-1].provider == "Melious"
    assert all(p.as_of for p in prices)


def test_cache_writes_are_billed_where_a_provider_charges_for_them() -> None:
    novita = STORE.get("api-price", "novita-k3")
    assert novita.cache_write is not None
    dear = novita.model_copy(update={"cache_write": novita.cache_write.model_copy(update={"value": 6.0})})
    assert market_prices(Tokens(1e6, 0, 0), [dear])[0].blended == pytest.approx(6.0)


def test_gpus_are_billed_in_whole_units_and_less_than_one_as_a_share() -> None:
    assert Units(12, "node", 8).billed_gpus == 16
    assert Units(8, "node", 8).billed_gpus == 8
    assert Units(3, "node", 8, share=True).billed_gpus == 3
    assert Units(9, "node", 8, share=True).billed_gpus == 16
    rate = STORE.get("price", "rental-2026-09").usd_per_gpu_hour["h200-sxm"].base
    one = small_resolved(hardware={"gpu": "h200", "num_gpus": 1})
    assert hourly_bill(one, STORE).usd_per_hour == pytest.approx(rate)
    assert hourly_bill(one, STORE, replicas=9).usd_per_hour == pytest.approx(16 * rate)
    whole = small_resolved(hardware={"gpu": "h200", "num_gpus": 1}, prices={"whole_units": True})
    assert hourly_bill(whole, STORE).usd_per_hour == pytest.approx(8 * rate)
    single = small_resolved(hardware={"gpu": "h200", "num_gpus": 1}, prices={"whole_units": False})
    assert hourly_bill(single, STORE, replicas=9).usd_per_hour == pytest.approx(9 * rate)


def test_a_rack_is_billed_whole() -> None:
    rack = resolved("k3-b300-study", "hardware={gpu: gb300, num_gpus: 8, node: gb300-nvl72}", "prices.whole_units=true")
    bill = hourly_bill(rack, STORE)
    assert bill.units.text() == "8 GPUs in 1 rack of 72, 64 idle"
    assert bill.usd_per_hour == pytest.approx(72 * 5.0)
    assert gpus_per_node(rack, STORE) == 4


def test_the_annuity_form_against_a_published_owning_cost() -> None:
    # SemiAnalysis' $1.73 an hour of owning a B200 (July 2026): 1.71 kW x PUE 1.3 x $0.0929/kWh is $0.21 of it, and the
    # other $1.52 is about $50,000 of capital over 5 years at 10 %, to the digits that are given.
    price = STORE.get("price", "neocloud-owned-2026-07")
    lines = owned_usd_per_gpu_hour(price, "b200-sxm", 1710.0, OwnedTerms(opex_frac=0.0, site="self-built"))
    assert [line.what for line in lines] == ["capital", "opex", "electricity"]
    assert round(lines[2].usd_per_hour, 2) == 0.21
    assert price.owned is not None
    assert round(1.52 / capital_usd_per_hour(1000.0, price.owned)) == 50


def test_owned_by_hand() -> None:
    price = STORE.get("price", "owned-2026-07")
    capital, opex, power = owned_usd_per_gpu_hour(price, "b300-sxm", 1900.0, OwnedTerms(0.5, 0.1, "colocation"))
    crf = 0.1 * 1.1**5 / (1.1**5 - 1)
    assert capital.usd_per_hour == pytest.approx(65_000 * crf / 8760 / 0.5)
    assert opex.usd_per_hour == pytest.approx(0.1 * capital.usd_per_hour)
    assert power.usd_per_hour == pytest.approx(1.9 * 200 / 730)
    with pytest.raises(ProfileError, match="without the capital cost of 'mi355x'"):
        owned_usd_per_gpu_hour(price, "mi355x", 1900.0, OwnedTerms())


def test_owned_through_a_scenario() -> None:
    built = resolved("k3-b300-study", "prices.compute=owned-2026-07", "prices.owned={site: self-built}")
    bill = hourly_bill(built, STORE)
    assert bill.basis == "owned"
    assert [line.what for line in bill.lines] == ["GPUs: capital", "GPUs: opex", "GPUs: electricity"]
    assert "8 GPUs in 1 node of 8" in bill_text(bill)


def test_tiers_are_written_off_or_priced_as_stated() -> None:
    bill = hourly_bill(resolved(), STORE)
    assert bill.tiers_usd_per_hour == pytest.approx(1889 * 10.9 * (0.1 * 1.1**5 / (1.1**5 - 1)) / 8760)
    stated = hourly_bill(resolved("k3-b300-dram", "prices.tier_usd_per_hour={dram: 0.25}"), STORE, replicas=4)
    assert stated.tiers_usd_per_hour == pytest.approx(1.0)
    flash = resolved("k3-b300-dram", "prices.tier_profiles={dram: nvme-tlc}")
    assert hourly_bill(flash, STORE).tiers_usd_per_hour < bill.tiers_usd_per_hour
    owned = STORE.get("price", "owned-2026-07").owned
    assert owned is not None
    assert capital_usd_per_hour(1000.0, owned, 0.5) == 2 * capital_usd_per_hour(1000.0, owned)


def test_network_is_billed_as_stated() -> None:
    plain, wired = (hourly_bill(resolved("k3-b300-study", f"prices.network_usd_per_gpu_hour={usd}"), STORE).usd_per_hour
                    for usd in (0, 0.05))
    assert wired - plain == pytest.approx(0.4)


def test_demand() -> None:
    assert demand_turns_per_hour(load_scenario("k3-b300-study")) == inf
    asked = ["demand={seats: 100, active_frac_peak: 0.5, turns_per_active_hour: 20, growth_per_month: 0.5, months: 1}"]
    assert demand_turns_per_hour(load_scenario("k3-b300-study", asked)) == pytest.approx(1500)


def test_trust_marks() -> None:
    assert trust_mark(resolved("k3-b300-study", "engine.step_time={kind: linear, base_s: 1, per_prefill_token_s: 0, "
                                                "per_decode_seq_s: 0}")) == "coefficients given"
    other = resolved("k3-b300-study", "hardware.gpu=mi355x", "engine.kv_bytes_per_gpu=null")
    assert trust_mark(other) == "physics only"
    assert trust_mark(resolved()) == "same GPU, other model"


PAIR = ("k3-b300-study", "k3-b300-dram")


@pytest.fixture(scope="module")
def pair() -> dict[tuple[str, bool], Report]:
    """16 live sessions without and with DRAM, where only turns inside the SLO earn and where all do."""
    return {(name, slo): simulate(load_scenario(name, [
        "workload.duration_s=1200", f"prices.only_slo_earns={str(slo).lower()}"]).at(16, 0))
        for name in PAIR for slo in (True, False)}


def net(report: Report) -> dict[str, float]:
    """Contribution [$ per hour] in every revenue mode."""
    earned = report.cost.revenue_usd_per_hour
    return {mode: getattr(earned, mode) - report.cost.usd_per_hour for mode in ("hits", "ideal_hits", "demand")}


@pytest.mark.parametrize("mode", ["hits", "ideal_hits", "demand"])
def test_dram_wins_at_16_where_only_turns_inside_the_slo_earn(pair: dict[tuple[str, bool], Report], mode: str) -> None:
    without, with_dram = (net(pair[name, True])[mode] for name in PAIR)
    assert with_dram > 0 > without


def test_a_collapsed_cache_sells_more_fresh_input_unless_hits_are_ideal(pair: dict[tuple[str, bool], Report]) -> None:
    """Without the SLO rule misses sell as fresh input: billing hits as they happen flatters a collapsed node."""
    without, with_dram = (net(pair[name, False]) for name in PAIR)
    assert without["hits"] - without["ideal_hits"] > 10 * (with_dram["hits"] - with_dram["ideal_hits"])
    assert with_dram["ideal_hits"] > without["ideal_hits"]


def test_a_report_says_what_its_cost_rests_on(pair: dict[tuple[str, bool], Report]) -> None:
    found = pair["k3-b300-dram", True].to_dict()["cost"]
    assert (found["as_of"], found["trust"], found["bill"]["basis"]) == ("2026-09", "same GPU, other model", "contract")
    assert found["revenue_mode"] == "hits"
    assert found["usd_per_mtok"] == found["by_price"]
    assert found["market"][0]["blended"] <= found["market"][-1]["blended"]


def test_nothing_is_sold_in_no_time() -> None:
    assert isnan(revenue_modes(Sales(Tokens(1, 1, 1), Tokens(1, 1, 1), 1, 0.0), K3).hits)
    assert isnan(cost(1.0, 1.0, Sales(Tokens(0, 0, 0), Tokens(0, 0, 0), 0, nan), None).usd_per_mtok.blended)
