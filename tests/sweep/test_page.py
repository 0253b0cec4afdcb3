"""What a sweep says in money, and the page that shows it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from kvsim.batch.doubts import BREAK_EVEN, MONTH, SEAT, Doubts, Swing
from kvsim.batch.findings import findings_of, usd_per_seat_month
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import sweep
from kvsim.batch.table import SweepTable
from kvsim.dashboard.sweep_page import sweep_page
from kvsim.scenario import load_scenario
from kvsim.uncertainty import Stress
from tests.sweep.helpers import INLINE, batch, tiny

TIERS = [{"kind": "dram", "capacity": 1e12, "write": "eager"}]
BILL_USD = 30.0


def made_up(contributions: dict[tuple[int, bool], list[float]], **changes: Any) -> SweepTable:
    """A table with given contributions by (live sessions, DRAM), a seed each; a node costs $30 an hour."""
    rows: list[dict[str, Any]] = []
    for (live, dram), values in contributions.items():
        for seed, value in enumerate(values):
            base = load_scenario("k3-b300-study").at(live, seed).to_dict()
            data = {**base, "tiers": TIERS if dram else [], **changes}
            rows.append({
                "label": f"concurrency={live} dram={dram} seed={seed}", "seed": seed, "status": "ok",
                "axis.workload.concurrency": live, "axis.dram": dram, "hit_rate.total": 0.9 if dram else 1.0 / live,
                "cost.contribution_usd_per_node_hour": value, "cost.usd_per_hour": BILL_USD,
                "cost.margin_frac": value / (value + BILL_USD) if value > -BILL_USD else None,
                "throughput.requests_per_s": 0.1, "scenario": json.dumps(data)})
    names = list(rows[0])
    columns = {name: [row[name] for row in rows] for name in names}
    return SweepTable("made up", {"case": list(range(len(rows))), **columns})


def test_best_point_by_the_month_with_its_interval() -> None:
    found = findings_of(made_up({(4, False): [5.0, 7.0], (8, False): [10.0, 20.0], (16, False): [-30.0, -30.0]}))
    assert found is not None
    assert found.best.axes["workload.concurrency"] == 8
    assert found.per_month.mean == pytest.approx(15.0 * 730)
    assert found.per_month.low == pytest.approx((15 - 12.7062047 * 5) * 730)


def test_break_even_and_price_stress_are_the_bill_against_revenue() -> None:
    found = findings_of(made_up({(8, False): [10.0]}))
    assert found is not None
    assert found.break_even_frac == pytest.approx(30 / 40)
    stress = dict(found.price_stress)
    assert stress[1.0] == pytest.approx(10 * 730)
    assert stress[0.75] == pytest.approx(0.0, abs=1e-6)
    assert "fall by more than 25%" in found.flips[0]
    assert "75%" in found.flips[1]


def test_loss_turns_the_other_way() -> None:
    found = findings_of(made_up({(8, False): [-10.0]}))
    assert found is not None
    assert found.break_even_frac == pytest.approx(30 / 20)
    assert "rise by more than 50%" in found.flips[0]
    assert "Load cannot help" in found.flips[1]
    nothing = findings_of(made_up({(8, False): [-30.0]}))
    assert nothing is not None
    assert math.isinf(nothing.break_even_frac)
    assert "No API price" in nothing.flips[0]


def test_dram_is_compared_with_the_best_point_without() -> None:
    found = findings_of(made_up({(8, False): [10.0, 12.0], (16, False): [-30.0, -30.0], (16, True): [30.0, 34.0]}))
    assert found is not None
    assert found.pay_back is not None
    assert found.pay_back.without.axes["workload.concurrency"] == 8
    assert found.pay_back.gain_usd_per_node_month.mean == pytest.approx(21 * 730)
    assert found.pay_back.capex_usd[1] == pytest.approx(1000 * 10.9)
    assert found.pay_back.months == pytest.approx(10_900 / (21 * 730))
    assert "dram=False instead of" in found.flips[2]


def test_dram_that_gains_nothing_never_pays_back() -> None:
    found = findings_of(made_up({(8, False): [10.0], (8, True): [9.0]}))
    assert found is not None
    assert found.pay_back is not None
    assert math.isinf(found.pay_back.months)


def test_seats_by_sessions_and_by_turns() -> None:
    for demand, want in (({"seats": 100, "active_frac_peak": 0.2}, 730 * 30 * (20 / 8) / 100),
                         ({"seats": 100, "active_frac_peak": 0.2, "turns_per_active_hour": 36},
                          730 * 30 * (20 * 36 / 360) / 100)):
        found = findings_of(made_up({(8, False): [10.0]}, demand=demand))
        assert found is not None
        assert usd_per_seat_month(found.best) == pytest.approx(want)


def test_without_a_contribution_there_are_no_findings() -> None:
    table = made_up({(8, False): [10.0]})
    table.columns["cost.contribution_usd_per_node_hour"] = [None]
    assert findings_of(table) is None


def test_page_stands_alone() -> None:
    wanted = batch({"grid": {"workload.concurrency": [1, 2]}}, {"list": [{"tiers": []}, {"layout.tp": 3}]},
                   base=tiny(description="<script>alert(1)</script>"), description="<b>bold</b>")
    page = sweep_page(sweep(wanted, options=INLINE), load_batch(wanted))
    bare = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)\s*=|@import|url\(", bare)
    assert "<b>bold" not in bare
    assert "Failed cases" in bare
    assert bare.count("<figure>") == page.count("Plotly.newPlot(\"")


def test_page_of_money_names_every_headline() -> None:
    table = made_up({(8, False): [10.0, 12.0], (16, False): [-30.0, -30.0], (16, True): [30.0, 34.0]})
    page = sweep_page(table, load_batch(batch()))
    for text in ("Contribution per node-month", "$23,360", "Break-even utilisation", "48%", "DRAM pays back in",
                 "live session and month", "What would turn it around", "API price x 0.9",
                 "Hit rate 10 points or more lower"):
        assert text in page, text


def test_seat_card_is_the_seat_where_a_demand_is_stated() -> None:
    demand = {"seats": 100, "active_frac_peak": 0.2}
    page = sweep_page(made_up({(8, False): [10.0]}, demand=demand), load_batch(batch()))
    assert "Bill per seat and month" in page
    assert f"${730 * 30 * (20 / 8) / 100:,.2f}" in page


def test_page_with_doubts_names_spans_swings_and_stresses() -> None:
    swings = (Swing("gpu.x", 0.5, 0.9, "frac", "assumed", 5_000.0, 20_000.0),)
    doubts = Doubts(12, 3, {MONTH: (9_000.0, 21_000.0), BREAK_EVEN: (0.4, 0.8), SEAT: (math.nan, math.nan)}, swings,
                    (Stress("hit rate -10 points", -2.0, 0.0, True),))
    table = made_up({(8, False): [10.0, 30.0]})
    page = sweep_page(table, load_batch(batch()), doubts)
    for text in ("5 to 95 % over the ranges of figures: $9,000 to $21,000", "40% to 80%", "12 draws of 3 figures",
                 "hit rate -10 points (simulated, first seed)", "-$1,460; turns the decision",
                 "What moves the contribution most", "gpu.x", "95 % of the traffic"):
        assert text in page, text
    assert "has not been drawn" in sweep_page(table, load_batch(batch()))
