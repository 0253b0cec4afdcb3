"""One simulation priced many ways: laws of prices, rows against runs of their own, command, page."""

from __future__ import annotations

import csv
import io
import json
from math import isinf, isnan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvsim.commands.cost import cost
from kvsim.errors import ScenarioError
from kvsim.planning.price_table import MODES, PriceOptions, PriceTable, price_table
from kvsim.planning.price_text import price_csv, price_text
from kvsim.planning.value import tier_values
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate

SHORT = ["workload.duration_s=600"]
DRAM = load_scenario("k3-b300-dram", SHORT)


@pytest.fixture(scope="module")
def table() -> PriceTable:
    """4 and 16 live sessions, with and without DRAM, rented and owned."""
    return price_table(DRAM, PriceOptions(sessions=[4, 16]))


def test_every_point_is_simulated_once_and_priced_twice(table: PriceTable) -> None:
    assert table.simulations == 4
    assert len(table.rows) == 8
    assert {(r.tiers, r.sessions, r.offer.bill.basis) for r in table.rows} == {
        (tiers, n, basis) for tiers in ("no tiers", "1,889 GB dram") for n in (4, 16)
        for basis in ("contract", "owned")}


def test_a_row_is_what_a_run_at_these_prices_says(table: PriceTable) -> None:
    for row in table.rows:
        tiers = [] if row.tiers == "no tiers" else DRAM.to_dict()["tiers"]
        alone = Scenario.from_dict({**DRAM.to_dict(), "tiers": tiers, "prices": {"compute": row.offer.name,
                                                                                 "api": "moonshot-k3"}})
        if row.sessions != 16 or row.offer.bill.basis != "owned":
            continue
        assert row.costs[0] == simulate(alone.at(16, 0)).cost
        assert row.contribution("hits") == pytest.approx(row.costs[0].contribution_usd_per_node_hour)


@pytest.mark.parametrize("mode", MODES)
def test_dram_wins_at_16_in_every_mode_and_at_every_price(table: PriceTable, mode: str) -> None:
    for basis in ("contract", "owned"):
        usd = {r.tiers: r.contribution(mode) for r in table.rows if r.sessions == 16 and r.offer.bill.basis == basis}
        assert usd["1,889 GB dram"] > 0 > usd["no tiers"]


def test_a_collapsed_node_lifts_our_floor_and_not_the_markets(table: PriceTable) -> None:
    at = {(r.tiers, r.sessions): r.costs[0] for r in table.rows if r.offer.bill.basis == "contract"}
    collapsed, healthy = at["no tiers", 16], at["1,889 GB dram", 16]
    assert isinf(collapsed.break_even_usd_per_mtok)
    assert healthy.break_even_usd_per_mtok < healthy.market_floor_usd_per_mtok
    assert collapsed.market_floor_usd_per_mtok == pytest.approx(healthy.market_floor_usd_per_mtok, rel=0.2)
    assert collapsed.market[0].blended > 4 * collapsed.market_floor_usd_per_mtok


def test_contribution_is_linear_in_the_price_and_the_three_kinds_sum_to_the_bill(table: PriceTable) -> None:
    pairs = [(a, b) for a in table.rows for b in table.rows if (a.tiers, a.sessions) == (b.tiers, b.sessions)]
    for a, b in pairs:
        bills = a.offer.bill.usd_per_hour - b.offer.bill.usd_per_hour
        for mode in MODES:
            assert a.contribution(mode) - b.contribution(mode) == pytest.approx(-bills)
        sold, usd = a.points[0].sales, a.costs[0].usd_per_mtok
        spent = (sold.tokens.uncached_input * usd.uncached_input + sold.tokens.cached_input * usd.cached_input
                 + sold.tokens.output * usd.output) / 1e6
        assert spent == pytest.approx(a.offer.bill.usd_per_hour * sold.hours, rel=1e-9)


class TwiceAsDear(ProfileStore):
    """Every dollar of every price profile doubled."""

    def get(self, kind: Any, name: str) -> Any:
        """A profile at twice its prices."""
        found = super().get(kind, name)
        if kind == "price":
            rates = {k: _doubled(f) for k, f in found.usd_per_gpu_hour.items()}
            owned = found.owned and found.owned.model_copy(update={
                "capex_per_gpu": {k: _doubled(f) for k, f in found.owned.capex_per_gpu.items()},
                "electricity": _doubled(found.owned.electricity), "colocation": _doubled(found.owned.colocation)})
            return found.model_copy(update={"usd_per_gpu_hour": rates, "owned": owned})
        if kind == "storage":
            return found.model_copy(update={"capex": _doubled(found.capex)})
        if kind == "api-price":
            parts = {n: _doubled(getattr(found, n)) for n in ("input", "cached_input", "output", "cache_write")
                     if getattr(found, n)}
            return found.model_copy(update=parts)
        return found


def _doubled(figure: Any) -> Any:
    return figure.model_copy(update={"value": 2 * figure.value, "range": None})


def test_doubling_every_price_doubles_every_dollar_and_no_share(table: PriceTable,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    dear = TwiceAsDear(default_store().search_path)
    monkeypatch.setattr("kvsim.planning.price_table.default_store", lambda: dear)
    monkeypatch.setattr("kvsim.planning.value.default_store", lambda: dear)
    again = price_table(DRAM, PriceOptions(sessions=[4, 16]))
    for once, twice in zip(table.rows, again.rows, strict=True):
        a, b = once.to_dict(), twice.to_dict()
        for name, value in a.items():
            if "usd" in name and value is not None:
                assert b[name] == pytest.approx(2 * value), name
            elif not name.startswith("digest"):
                assert b[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    gains = [(g.usd_per_hour, g.usd_per_gb_hour, g.cost_usd_per_hour) for g in table.tier_gains]
    assert [v for g in again.tier_gains for v in (g.usd_per_hour, g.usd_per_gb_hour, g.cost_usd_per_hour)] == (
        pytest.approx([2 * v for gain in gains for v in gain]))
    for name, prices in table.contexts.items():
        assert [p.usd_per_mtok for p in again.contexts[name]] == pytest.approx([2 * p.usd_per_mtok for p in prices])


def test_a_tier_brings_what_paired_runs_say(table: PriceTable) -> None:
    gain = next(g for g in table.tier_gains if g.sessions == 16 and g.prices == "rental-2026-09")
    (value,) = tier_values(DRAM.at(16, 0))
    assert gain.usd_per_hour == pytest.approx(value.usd_per_hour)
    assert gain.usd_per_gb_hour == pytest.approx(value.usd_per_gb_hour)
    assert gain.cost_usd_per_hour == pytest.approx(value.cost_usd_per_hour)


def test_medians_over_seeds_and_seats() -> None:
    asked = load_scenario("k3-b300-study", [*SHORT, "demand={seats: 100, active_frac_peak: 0.1}"])
    found = price_table(asked, PriceOptions(sessions=[4], prices=["rental-2026-09"], replications=3))
    (row,) = found.rows
    assert found.simulations == len(row.costs) == 3
    usd = sorted(c.contribution_usd_per_node_hour for c in row.costs)
    assert row.contribution("hits") == pytest.approx(usd[1])
    assert row.of_cost(lambda c: c.seats.per_node) == pytest.approx(40, rel=0.1)
    assert "a seat" in price_text(found)
    assert not found.tier_gains


def test_two_tiers_are_valued_one_by_one() -> None:
    flash = "{kind: nvme, capacity: 4 TB, read_bandwidth_per_gpu: 6 GB/s, write_bandwidth_per_gpu: 3 GB/s}"
    both = load_scenario("k3-b300-dram", [*SHORT, f"tiers.1={flash}"])
    found = price_table(both, PriceOptions(sessions=[12], prices=["rental-2026-09"]))
    assert found.simulations == 4
    assert [g.tier for g in found.tier_gains] == ["1,889 GB dram", "4,000 GB nvme"]
    assert {r.tiers for r in found.rows} == {"no tiers", "1,889 GB dram + 4,000 GB nvme"}


def test_sessions_of_a_workload_without_any() -> None:
    opened = {"name": "x", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
              "workload": {"fixed": {"num_requests": 10, "input_tokens": 500, "output_tokens": 10}, "rate_per_s": 2}}
    (row, *_) = price_table(opened).rows
    assert row.sessions is None
    assert isnan(row.margin("hits"))
    with pytest.raises(ScenarioError, match="no live sessions"):
        price_table(opened, PriceOptions(sessions=[4]))


def ask(*args: str) -> Result:
    return CliRunner().invoke(cost, [*args, "--workers", "1"], catch_exceptions=True)


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    names = {flag: tmp_path / f"cost.{flag}" for flag in ("json", "csv")}
    page = tmp_path / "cost.html"
    done = ask("k3-b300-dram", "--set", SHORT[0], "--sessions", "2,16", "--json", str(names["json"]), "--csv",
               str(names["csv"]), "--chart", str(page))
    assert done.exit_code == 0, (done.output, done.exception)
    for said in ("no tiers; rental-2026-09: $34.00 an hour", "owned, as of 2026-07", "same GPU, other model",
                 "moonshot-k3 as of 2026-07-18", "What a tier brings", "Fresh input at a busy engine"):
        assert said in done.output
    written = json.loads(names["json"].read_text())
    rows = list(csv.DictReader(io.StringIO(names["csv"].read_text())))
    assert len(rows) == len(written["rows"]) == 8
    assert float(rows[0]["usd_per_hour"]) == written["rows"][0]["usd_per_hour"] == 34.0
    html = page.read_text()
    assert "Market floor" in html
    assert "Break-even" in html
    assert "<table" in html


@pytest.mark.parametrize(("given", "said"), [
    (["--sessions", "0,x"], "whole numbers from 1"), (["--chart", "cost.svg"], "page of HTML"),
    (["--csv", "/nowhere/at/all.csv"], "does not exist"),
])
def test_what_is_wrong_is_said_before_the_run(given: list[str], said: str) -> None:
    done = ask("k3-b300-dram", *given)
    assert done.exit_code == 2
    assert said in done.output


def test_a_model_without_an_api_price_says_so() -> None:
    free = load_scenario("llama-chat-burst", ["prices.api=null", "workload.steps=null", "workload.duration_s=60"])
    said = price_text(price_table(free, PriceOptions(sessions=[4])))
    assert "API price not known" in said
    assert "[$/M]; no API price is known" in said
    assert "charges" not in said


def test_csv_has_no_text_for_what_is_not_known(table: PriceTable) -> None:
    rows = list(csv.DictReader(io.StringIO(price_csv(table))))
    collapsed = next(r for r in rows if r["tiers"] == "no tiers" and r["sessions"] == "16")
    assert collapsed["break_even_usd_per_mtok"] == ""
    assert float(collapsed["market_floor_usd_per_mtok"]) > 0
