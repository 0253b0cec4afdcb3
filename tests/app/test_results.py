"""What the page says in words: zones, what binds, the verdict."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from kvsim.dashboard import results, verdict
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario
from tests.app.conftest import MakeRow


def test_zones_compare_with_the_ideal(make_row: MakeRow) -> None:
    assert results.reached_frac(make_row(8, 0.3, 0.45, 0.6, ideal=0.9)) == pytest.approx(0.5)
    assert results.reached_frac(make_row(8, 0.0, ideal=0.0)) == 1.0
    assert [results.zone_of(x) for x in (0.9, 0.899, 0.5, 0.499)] == ["safe", "edge", "edge", "collapsed"]


def test_zones_cover_a_curve_that_recovers() -> None:
    spans = results.zone_spans([(1, 1.0), (2, 0.0), (3, 1.0)])
    assert [s.zone for s in spans] == ["safe", "edge", "collapsed", "edge", "safe"]
    assert (spans[0].start, spans[-1].end) == (1, 3)
    assert all(a.end == b.start for a, b in pairwise(spans))
    assert results.zone_spans([(4, 1.0)]) == ()


def test_binding_is_told_with_the_last_point_below(make_row: MakeRow) -> None:
    free, full = make_row(8, 1.0), make_row(16, 0.1, binding="kv_capacity")
    assert verdict.binding_clause([full, free]) == "KV capacity binds from 16 on, not yet at 8"
    assert verdict.binding_clause([full]) == "KV capacity binds from 16 on"
    assert verdict.binding_clause([free]) == "KV capacity does not bind up to 8, the most that was simulated"


def test_every_binding_resource_has_a_name() -> None:
    from kvsim.report.limits import RESOURCES

    assert {*RESOURCES, "idle"} == set(results.RESOURCE_TEXT)


def test_verdict_is_made_of_results(make_row: MakeRow) -> None:
    resolved = resolve(load_scenario("k3-b300-study"))
    rows = [make_row(8, 0.96, ideal=0.98), make_row(16, 0.1, ideal=0.97, binding="kv_capacity")]
    api = default_store().get("api-price", "moonshot-k3")
    text = verdict.verdict(resolved, rows, 8, api)
    first, rest = text.split("\n\n")
    assert first.startswith("**Safe:** **Kimi K3 on 8 x B300** serves **at least 16 agents** inside TTFT p95 10 s")
    assert rest.startswith("**Kimi K3 on 8 x B300** holds **3.25M tokens of KV** as logged (42.22 GiB per")
    assert "96.0% of prompt tokens are reused (ideal 98.0%)" in text
    assert "binds from 16 on, not yet at 8" in text
    assert verdict.verdict(resolved, rows, 16, api).startswith("**Collapsed:**")


def test_verdict_tells_tiers_and_trust(make_row: MakeRow) -> None:
    resolved = resolve(load_scenario("k3-b300-dram"))
    rows = [make_row(8, 0.9), make_row(16, 0.8, dram=0.75)]
    text = verdict.verdict(resolved, rows, 16, None)
    assert "and a DRAM tier of 1,889 GB behind it" in text
    assert "80.0% of prompt tokens are reused (20.0% from HBM, 60.0% from DRAM; ideal 100.0%)" in text
    assert f"**{rows[1].reports[0].cost.trust}**" in text
    assert "hardware price as of 2026-09" in text
    assert "from DRAM" not in verdict.verdict(resolved, rows, 8, None)


def test_every_trust_mark_has_a_meaning() -> None:
    from kvsim import billing

    assert {billing.CALIBRATED, billing.SAME_GPU, billing.PHYSICS, billing.GIVEN} == set(verdict.TRUST_TEXT)


def test_money_needs_a_price(make_row: MakeRow) -> None:
    row = make_row(8, 0.9)
    assert math.isnan(results.median(row, results.CONTRIBUTION))
    assert verdict.money_sentence(row, None) == "no API price is known, the hardware costs \\$2.90 an hour"


def test_dollars_cannot_become_formulas() -> None:
    assert "$" not in verdict.usd(12.5).replace("\\$", "")
