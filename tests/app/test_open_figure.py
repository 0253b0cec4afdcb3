"""A trace at several rates as a chart: what its table says, and the lines to hold it against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsim.dashboard.open_figure import load_alt, load_curve
from kvsim.report.report import Report
from kvsim.scenario import load_scenario
from kvsim.study import Row

SCENARIO = load_scenario("k3-b300-study")


@pytest.fixture
def loads(report: Report) -> dict[float, Row]:
    """Two rates, at the higher of which nothing got its first token."""
    nothing = replace(report.latency.ttft_s, p95=float("nan"))
    silent = replace(report, latency=replace(report.latency, ttft_s=nothing))
    return {2.0: Row(None, (silent,)), 1.0: Row(None, (report,))}


def test_curves_are_in_the_order_of_the_rates(loads: dict[float, Row], report: Report) -> None:
    drawn: Any = load_curve(loads, 1.0, SCENARIO)
    names = [t.name for t in drawn.data]
    assert names == ["Hits in HBM", "Hit rate", "Ideal hit rate (unlimited cache)", "TTFT p95"]
    assert all(list(t.x) == [1.0, 2.0] for t in drawn.data)
    assert list(drawn.data[3].y) == [pytest.approx(report.latency.ttft_s.p95), None]
    assert drawn.layout.yaxis2.title.text == "TTFT p95 (s)"


def test_the_chosen_rate_and_the_limit_are_marked(loads: dict[float, Row]) -> None:
    drawn: Any = load_curve(loads, 2.0, SCENARIO)
    rate, limit = drawn.layout.shapes
    assert (rate.x0, rate.x1) == (2.0, 2.0)
    assert (limit.y0, limit.yref) == (SCENARIO.slo.ttft_s["p95"], "y2")
    free = SCENARIO.model_copy(update={"slo": SCENARIO.slo.model_copy(update={"ttft_s": {}})})
    unlimited: Any = load_curve(loads, 2.0, free)
    assert len(unlimited.layout.shapes) == 1


def test_the_chart_in_words(loads: dict[float, Row]) -> None:
    said = load_alt(loads)
    assert said.index("1 times as recorded") < said.index("2 times as recorded")
    assert "TTFT p95 –" in said
