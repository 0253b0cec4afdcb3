"""How many sessions keep the SLO, and how far the edge is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.dashboard import gauge_figure, headroom, verdict
from kvsim.dashboard.headroom import Headroom, served
from kvsim.report.metrics import Spread
from kvsim.report.report import Report
from kvsim.resolve import resolve
from kvsim.scenario import Scenario, load_scenario
from kvsim.study import Row
from tests.app.conftest import MakeRow

SCENARIO = load_scenario("k3-b300-study")


def slo(**limits: dict[str, float]) -> Scenario:
    return load_scenario({**SCENARIO.to_dict(), "slo": limits})


def waiting(report: Report, concurrency: int, *ttft_s: float) -> Row:
    """A row whose seeds have these TTFT p95."""
    reports = [replace(report, latency=replace(report.latency, ttft_s=Spread(t, t, t, t, t))) for t in ttft_s]
    return Row(concurrency, tuple(reports))


def test_most_sessions_lie_where_the_line_crosses_the_limit(report: Report) -> None:
    rows = [waiting(report, 4, 2.0, 2.0), waiting(report, 8, 6.0, 10.0), waiting(report, 12, 14.0, 40.0)]
    found = served(rows, slo(ttft_s={"p95": 10}))
    assert (found.low, found.high) == (8, 10)
    assert found.sessions == 9
    assert not found.at_least
    assert found.limits == "TTFT p95 10 s"


def test_ends_of_the_curve_are_said_to_be_ends(report: Report) -> None:
    calm, lost = [waiting(report, n, 1.0) for n in (4, 8)], [waiting(report, n, 99.0) for n in (4, 8)]
    most, none = (served(rows, slo(ttft_s={"p95": 10})) for rows in (calm, lost))
    assert (most.sessions, most.at_least) == (8, True)
    assert (none.sessions, none.at_least) == (0, False)
    assert verdict.agents_text(most) == "at least 8 agents"
    assert verdict.agents_text(none) == "fewer than 4 agents"


def test_what_was_not_measured_keeps_no_limit(report: Report) -> None:
    rows = [waiting(report, 4, 1.0), waiting(report, 8, float("nan"))]
    assert served(rows, slo(ttft_s={"p95": 10})).sessions == 4
    assert served(rows, slo()).sessions == 8


def test_headline_names_number_spread_limit_trust_and_money(report: Report) -> None:
    rows = [waiting(report, 4, 2.0, 2.0), waiting(report, 8, 6.0, 10.0), waiting(report, 12, 14.0, 40.0)]
    resolved = resolve(slo(ttft_s={"p95": 10}))
    text = verdict.headline(resolved, rows, 8)
    assert "**Kimi K3 on 8 x B300** serves **9 agents** inside TTFT p95 10 s [8 to 10 over 2 seeds; " in text
    assert report.cost.trust in text
    assert "binds" in text


def test_distance_to_the_edge(make_row: MakeRow) -> None:
    rows = [make_row(4, 1.0), make_row(8, 1.0), make_row(16, 0.6)]
    found = headroom.headroom(rows, 8)
    assert found.edge == pytest.approx(10.0)
    assert found.text() == "+25 %"
    assert headroom.headroom(rows, 16).text() == "−38 %"
    assert headroom.headroom(rows[:2], 4).text() == "≥ +100 %"
    assert headroom.headroom(rows[2:], 16).edge == 16


@given(hits=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6), live=st.integers(1, 64))
def test_edge_lies_where_the_curve_is_safe_until_then(hits: list[float], live: int, make_row: MakeRow) -> None:
    rows = [make_row(4 * (k + 1), hit) for k, hit in enumerate(sorted(hits, reverse=True))]
    found = headroom.headroom(rows, live)
    if found.edge is None:
        assert all(hit >= 0.9 - 1e-9 for hit in hits)
    else:
        safe = [r.concurrency for r in rows if r.reports[0].hit_rate.total >= 0.9]
        assert found.edge >= max((n for n in safe if n), default=0)
        assert found.frac == pytest.approx(found.edge / live - 1)


def test_gauge_shows_zones_mark_and_edge(make_row: MakeRow) -> None:
    rows = [make_row(4, 1.0), make_row(8, 1.0), make_row(16, 0.2)]
    drawn: Any = gauge_figure.gauge(rows, 6)
    *zones, mark = drawn.data
    assert [z.name for z in zones] == ["safe", "edge", "collapsed"]
    assert zones[0].base[0] == 0
    assert sum(z.x[0] for z in zones) == pytest.approx(16)
    assert list(mark.x) == [6]
    assert drawn.layout.shapes[0].x0 == pytest.approx(headroom.headroom(rows, 6).edge)
    assert drawn.layout.xaxis.title.text == "Live sessions"
    assert "+50 %" in gauge_figure.gauge_alt(rows, 6)


def test_nothing_is_marked_where_no_edge_is_known(make_row: MakeRow) -> None:
    drawn: Any = gauge_figure.gauge([make_row(4, 1.0), make_row(8, 1.0)], 6)
    assert not drawn.layout.shapes
    assert "there is none" in gauge_figure.gauge_alt([make_row(4, 1.0), make_row(8, 1.0)], 6)


def test_headroom_of_nothing_more() -> None:
    assert Headroom(8.0, 24, 8).text() == "+0 %"
