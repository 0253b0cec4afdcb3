"""The same traffic on other platforms, in months, and the next best dollar."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from kvsim.dashboard import dollar, finance, tier_figures
from kvsim.dashboard.choices import default_choices, scenario_of
from kvsim.dashboard.jobs import Jobs
from kvsim.dashboard.platforms import deal, list_price, platforms
from kvsim.load_or_recompute import load_or_recompute
from kvsim.planning.offers import offer
from kvsim.planning.value import long_context_prices
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.study import Row

STORE = default_store()
CHOICES = replace(default_choices(STORE), duration_s=120, warmup_s=0, seeds=1, sessions=4)


@pytest.fixture(scope="module")
def row() -> Row:
    return Row(4, (simulate(scenario_of(CHOICES)),))


def test_platforms_serve_the_same_traffic() -> None:
    found = platforms(CHOICES, STORE)
    assert len(found) == 4
    assert found[0].choices == CHOICES
    assert {p.choices.sessions for p in found} == {4}
    assert {p.choices.preset for p in found} == {CHOICES.preset}
    misfit = next(p for p in found if p.resolved is None)
    assert "does not fit" in misfit.obstacle or "fits on" in misfit.obstacle


def test_each_platform_has_its_own_price() -> None:
    prices = {p.choices.gpu: list_price(p.choices, STORE) for p in platforms(CHOICES, STORE)}
    assert prices["b300-sxm"] == 4.25
    assert prices["mi355x"] == 2.9


def test_platform_not_in_the_list_comes_first() -> None:
    small = replace(CHOICES, gpu="h100-sxm", pool="predicted", model="llama-3.1-8b")
    assert platforms(small, STORE)[0].choices.gpu == "h100-sxm"


def test_price_of_the_contract_moves_the_bill_alone(row: Row) -> None:
    here = platforms(CHOICES, STORE)[0]
    usual, dearer = (deal(here, row, usd, STORE) for usd in (4.25, 5.25))
    assert usual.bill_usd_per_hour == pytest.approx(row.reports[0].cost.usd_per_hour)
    assert usual.contribution_usd_per_hour == pytest.approx(row.reports[0].cost.contribution_usd_per_node_hour)
    assert dearer.contribution_usd_per_hour == pytest.approx(usual.contribution_usd_per_hour - 8.0)
    assert dearer.break_even_usd_per_gpu_hour == pytest.approx(usual.break_even_usd_per_gpu_hour)
    at_break_even = deal(here, row, usual.break_even_usd_per_gpu_hour, STORE)
    assert at_break_even.contribution_usd_per_hour == pytest.approx(0.0, abs=1e-9)
    ratio = dearer.break_even_usd_per_mtok / usual.break_even_usd_per_mtok
    assert ratio == pytest.approx(dearer.bill_usd_per_hour / usual.bill_usd_per_hour)


def test_finance_is_what_the_report_page_says(row: Row) -> None:
    scenario = scenario_of(CHOICES)
    found = finance.findings({"none": (scenario, [row])})
    assert found is not None
    hourly = row.reports[0].cost.contribution_usd_per_node_hour
    assert found.per_month.mean == pytest.approx(730 * hourly)
    priced = offer(resolve(scenario), CHOICES.compute, STORE)
    assert found.break_even_frac == pytest.approx(priced.bill.usd_per_hour / (priced.bill.usd_per_hour + hourly))
    assert len(found.flips) == 3
    texts = [r["If"] for r in finance.stress_rows(found)]
    assert "the API's prices are 50% of today's" in texts


def test_dram_pays_back_only_beside_a_curve_without_it(row: Row) -> None:
    with_dram = replace(CHOICES, dram=True)
    other = Row(4, (simulate(scenario_of(with_dram)),))
    found = finance.findings({"none": (scenario_of(CHOICES), [row]), "DRAM": (scenario_of(with_dram), [other])})
    assert found is not None
    assert found.pay_back is not None
    assert found.pay_back.with_.label.startswith("tiers=DRAM")
    alone = finance.findings({"none": (scenario_of(CHOICES), [row])})
    assert alone is not None
    assert alone.pay_back is None


def test_long_context_line_meets_the_flat_price() -> None:
    prices = long_context_prices(resolve(scenario_of(CHOICES)), 34.0, [0, 500_000, 1_000_000])
    drawn: Any = finance.long_context_figure(prices)
    ours, flat = drawn.data
    assert list(ours.y) == [p.usd_per_mtok for p in prices]
    assert set(flat.y) == {3.0}
    assert "tokens" in drawn.layout.xaxis.title.text
    assert drawn.layout.yaxis.title.text.startswith("$")
    assert "after 500,000 tokens" in finance.long_context_alt(prices)


def test_reload_chart_has_a_line_a_tier() -> None:
    found = load_or_recompute(resolve(load_scenario("k3-b300-dram")))
    drawn: Any = tier_figures.reload_figure(found.rows)
    assert [t.name for t in drawn.data][:2] == ["computed again", "loaded from DRAM"]
    assert len(drawn.data) == 1 + len(found.break_even_tokens)
    assert list(drawn.data[1].y) == [row.load_s["dram"] for row in found.rows]
    assert (drawn.layout.xaxis.type, drawn.layout.yaxis.type) == ("log", "log")
    assert drawn.layout.yaxis.title.text.endswith("(s)")
    assert "tokens: computed again" in tier_figures.reload_alt(found.rows)


def test_occupancy_is_the_timeline_in_percent(row: Row) -> None:
    report = row.reports[0]
    drawn: Any = tier_figures.occupancy(report)
    held, cached, running, waiting = drawn.data
    total = [a + b for a, b in zip(held.y, cached.y, strict=True)]
    assert max(total) <= 100 + 1e-9
    assert min(held.y) >= 0
    assert held.y[-1] == pytest.approx(100 * report.timeline.used_blocks[-1] / (report.capacity.num_blocks - 1))
    assert max(running.y) <= report.timeline.running.max()
    assert running.yaxis == waiting.yaxis == "y2"
    assert drawn.layout.xaxis.title.text == "Simulated time (min)"
    assert "on average" in tier_figures.occupancy_alt(report)


def test_next_dollar_answers_from_its_own_process_and_can_be_stopped() -> None:
    jobs, no_slo = Jobs(), load_scenario({**scenario_of(CHOICES).to_dict(), "slo": {}})
    job = jobs.start("no SLO", dollar.work_of(no_slo))
    while job.state == "running":
        time.sleep(0.05)
    assert job.error is not None
    assert job.error.message == "the next dollar needs an SLO"
    long = jobs.start("long", dollar.work_of(scenario_of(replace(CHOICES, duration_s=14_000))))
    long.cancel()
    while long.state == "running":
        time.sleep(0.05)
    assert long.state == "cancelled"


def test_changes_become_rows() -> None:
    span = {"low": 1.0, "median": 2.0, "high": 3.0}
    today = {"what": "today", "sessions": span, "usd_per_hour": 34.0, "extra_sessions": span,
             "extra_usd_per_hour": 0.0, "usd_per_extra_session": span, "note": ""}
    none = {"low": None, "median": None, "high": None}
    more = {**today, "what": "+1", "extra_usd_per_hour": 4.5, "usd_per_extra_session": none}
    never = {**more, "what": "no", "sessions": none, "extra_sessions": none, "usd_per_hour": None,
             "extra_usd_per_hour": None, "note": "does not fit"}
    first, second, third = dollar.change_rows([today, more, never])
    assert first["More sessions"] == ""
    assert second["More $ per hour"] == "+4.50"
    assert second["$ per hour and more session"] == "no more sessions"
    assert (third["$ per hour"], third["Why not"]) == ("–", "does not fit")
