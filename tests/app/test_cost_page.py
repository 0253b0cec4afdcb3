"""The Cost page: one simulation under several prices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import cost_figures, money
from kvsim.dashboard.pages.cost import bill_rows, cost_sentence, with_demand
from kvsim.planning import offers
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.study import Row

STORE = default_store()
SHORT = ["workload.duration_s=300", "workload.warmup_s=0", "study=null"]


@pytest.fixture(scope="module")
def resolved() -> Resolved:
    return resolve(load_scenario("k3-b300-study", SHORT))


@pytest.fixture(scope="module")
def rows(resolved: Resolved) -> list[Row]:
    return [Row(n, (simulate(resolved.scenario.at(n, 0)),)) for n in (4, 8)]


def test_other_price_gives_what_simulating_with_it_gives(rows: list[Row]) -> None:
    again = simulate(load_scenario("k3-b300-study", [*SHORT, "workload.concurrency=8", "prices.compute=owned-2026-07"]))
    resolved = resolve(load_scenario("k3-b300-study", SHORT))
    owned = offers.offer(resolved, "owned-2026-07", STORE)
    assert owned.bill.usd_per_hour == again.cost.usd_per_hour
    assert money.contribution(rows[1], owned, "hits") == pytest.approx(again.cost.contribution_usd_per_node_hour)
    assert money.break_even(rows[1], owned) == pytest.approx(again.cost.usd_per_mtok.blended)


def test_offers_cover_the_gpu_cheapest_first(resolved: Resolved) -> None:
    found = offers.offers(resolved, STORE)
    bills = [o.bill.usd_per_hour for o in found]
    assert bills == sorted(bills)
    assert {o.bill.basis for o in found} >= {"owned", "contract"}
    rented = next(o for o in found if o.name == "rental-2026-09")
    beside = offers.counterpart(rented, found)
    assert beside is not None
    assert beside.bill.basis == "owned"
    assert offers.counterpart(rented, [rented]) is None


def test_contribution_lines_differ_by_the_bill(rows: list[Row], resolved: Resolved) -> None:
    two = [offers.offer(resolved, n, STORE) for n in ("rental-2026-09", "owned-2026-07")]
    drawn: Any = cost_figures.contribution_figure(rows, two, "hits", 8)
    rented, owned = drawn.data
    gap = two[0].bill.usd_per_hour - two[1].bill.usd_per_hour
    assert [b - a for a, b in zip(rented.y, owned.y, strict=True)] == pytest.approx([gap, gap])
    assert list(rented.x) == [4, 8]
    assert drawn.layout.yaxis.title.text == "Contribution ($ per node-hour)"
    assert "owned (owned" not in cost_figures.contribution_alt(rows, two, "hits")


def test_market_floor_and_break_even_are_two_lines(rows: list[Row], resolved: Resolved) -> None:
    one = [offers.offer(resolved, "rental-2026-09", STORE)]
    plot: Any = cost_figures.price_figure(rows, one, "hits", 8)
    floor, ours = plot.data
    assert "Market floor" in floor.name
    assert floor.line.dash == "dash"
    assert list(floor.y) == pytest.approx([r.reports[0].cost.market[0].blended for r in rows])
    assert list(ours.y) == pytest.approx([r.reports[0].cost.usd_per_mtok.blended for r in rows])


def test_market_floor_does_not_rise_when_our_cache_collapses(resolved: Resolved) -> None:
    from dataclasses import replace

    report = simulate(resolved.scenario.at(4, 0))
    missed = [replace(p, blended=10 * p.blended) for p in report.cost.market]  # the same turns, all of them misses
    row, collapsed = (Row(4, (replace(report, cost=replace(report.cost, market=tuple(prices))),))
                      for prices in (report.cost.market, missed))
    assert money.market_floor(collapsed, "hits") == pytest.approx(10 * money.market_floor(row, "hits"))
    assert money.market_floor(collapsed, "ideal_hits") == money.market_floor(row, "ideal_hits")


def test_ideal_floor_is_below_the_one_that_bills_our_misses(rows: list[Row]) -> None:
    cost = rows[0].reports[0].cost
    assert money.market_floor(rows[0], "ideal_hits") == cost.market_floor_usd_per_mtok
    assert money.market_floor(rows[0], "ideal_hits") < money.market_floor(rows[0], "hits")


def test_demand_limits_what_is_sold(resolved: Resolved) -> None:
    assert with_demand(resolved.scenario, 0.0) is resolved.scenario
    limited = Row(8, (simulate(with_demand(resolved.scenario.at(8, 0), 10.0)),))
    priced = offers.offer(resolved, "rental-2026-09", STORE)
    assert money.contribution(limited, priced, "demand") < money.contribution(limited, priced, "ideal_hits")


def test_model_without_price_has_a_bill_and_no_revenue(rows: list[Row], resolved: Resolved) -> None:
    from dataclasses import replace

    report = rows[0].reports[0]
    unsold = replace(report.cost, market=(), revenue_usd_per_hour=replace(report.cost.revenue_usd_per_hour,
                                                                          hits=math.nan))
    row = Row(4, (replace(report, cost=unsold),))
    priced = offers.offer(resolved, "rental-2026-09", STORE)
    text = cost_sentence(row, [priced], "hits")
    assert "**– per node-hour**" in text
    assert "no provider's price of this model is known" in text


def test_bill_rows_add_up(resolved: Resolved) -> None:
    rows = bill_rows(offers.offer(resolved, "owned-2026-07", STORE).bill)
    *lines, whole = [float(row["$ per hour"]) for row in rows]
    assert sum(lines) == pytest.approx(whole, abs=0.01 * len(lines))


def open_cost(repo_root: Path, **query: str) -> AppTest:
    """The page after its first run, one short simulation."""
    app = AppTest.from_function(_cost_page, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "8", "duration_s": "120", "warmup_s": "0", "seeds": "1",
                        **query}.items():
        app.query_params[name] = value
    assert repo_root
    return app.run()


def _cost_page() -> None:
    from kvsim.dashboard.pages import cost

    cost.page()


def test_page_compares_two_price_profiles(repo_root: Path) -> None:
    app = open_cost(repo_root)
    assert not app.exception
    said = app.info[0].value
    assert "At **8 live sessions**" in said
    assert "rental-2026-09 (contract, 2026-09)" in said
    assert "(owned, " in said
    before = said
    app.radio(key="cost mode").set_value("ideal_hits").run()
    assert not app.exception
    assert app.info[0].value != before
    app.selectbox(key="compute").set_value("owned-2026-07").run()
    assert not app.exception
    assert "with owned-2026-07 (owned" in app.info[0].value


def test_what_does_not_fit_has_no_cost(repo_root: Path) -> None:
    app = open_cost(repo_root, gpu="b200-sxm")
    assert not app.exception
    assert "does not fit" in app.error[0].value
    assert not app.info
