"""Figures as plain functions: traces, units, and nothing that the results do not say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvsim.capacity import kv_capacity
from kvsim.dashboard import figures
from kvsim.dashboard.pages.plan import with_any_pool
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import load_scenario
from tests.app.conftest import MakeRow

GIB = 2.0**30


@pytest.fixture(scope="module")
def logged() -> Resolved:
    return resolve(load_scenario("k3-b300-study"))


@pytest.fixture(scope="module")
def predicted() -> Resolved:
    return kv_capacity("kimi-k3", "b300", 8, tp=8, kv_dtype="fp8")


def bars(figure: Any) -> dict[str, Any]:
    """Bars by name."""
    return {trace.name: trace for trace in figure.data if trace.type == "bar"}


def test_waterfall_has_a_bar_a_line_in_gib(predicted: Resolved) -> None:
    found = bars(figures.hbm_waterfall(predicted.budget, predicted.capacity))
    for line in predicted.budget.lines:
        assert found[line.name].x[0] == pytest.approx(line.num_bytes / GIB)
    assert found["KV pool, predicted"].x[0] == pytest.approx(predicted.budget.kv_bytes / GIB)
    assert len(found) == len(predicted.budget.lines) + 1


def test_waterfall_bars_follow_each_other(predicted: Resolved) -> None:
    found = list(bars(figures.hbm_waterfall(predicted.budget, predicted.capacity)).values())[:-1]
    for before, after in pairwise(found):
        assert after.base[0] == pytest.approx(before.base[0] + before.x[0])
    assert found[-1].base[0] + found[-1].x[0] == pytest.approx(predicted.budget.kv_bytes / GIB)


def test_last_bar_says_what_the_pool_holds(logged: Resolved, predicted: Resolved) -> None:
    of_log = list(bars(figures.hbm_waterfall(logged.budget, logged.capacity)).values())[-1]
    assert of_log.name == "KV pool, as logged"
    assert of_log.customdata[0] == "42.22: 3.25M tokens, 21 sessions at 142k"
    assert figures.pool_text(predicted.capacity) in bars(
        figures.hbm_waterfall(predicted.budget, predicted.capacity))["KV pool, predicted"].hovertemplate


def test_whiskers_span_the_ranges(predicted: Resolved) -> None:
    bar = bars(figures.hbm_waterfall(predicted.budget, predicted.capacity))["KV pool, predicted"]
    low, high = predicted.budget.kv_bytes_range
    assert bar.x[0] + bar.error_x.array[0] == pytest.approx(high / GIB)
    assert bar.x[0] - bar.error_x.arrayminus[0] == pytest.approx(low / GIB)


def test_what_is_missing_is_drawn_below_zero() -> None:
    scenario = load_scenario("k3-b300-study", ["hardware.gpu=b200"])
    budget = resolve(with_any_pool(scenario)).budget
    bar = bars(figures.hbm_waterfall(budget))["missing"]
    assert bar.x[0] == pytest.approx(budget.kv_bytes / GIB)
    assert bar.x[0] < 0
    assert bar.marker.color == figures.SHORT_COLOUR


def test_axes_have_titles_with_units(predicted: Resolved, make_row: MakeRow) -> None:
    waterfall: Any = figures.hbm_waterfall(predicted.budget, predicted.capacity).layout
    curve: Any = figures.hit_curve([make_row(4, 0.9), make_row(8, 0.5)], 4).layout
    assert waterfall.xaxis.title.text == "GiB per GPU (fullest GPU)"
    assert [curve[axis].title.text for axis in ("xaxis", "yaxis", "yaxis2")] == [
        "Live sessions", "Prompt tokens reused (%)", "Output (tokens/s)"]


def test_curve_draws_medians_extremes_and_the_ideal(make_row: MakeRow) -> None:
    rows = [make_row(16, 0.2, 0.9, 0.3, ideal=0.95), make_row(4, 0.9, 0.9, 0.9, ideal=0.98)]
    plot: Any = figures.hit_curve(rows, 4)
    area, hit, ideal, output = plot.data
    assert list(hit.x) == [4, 16]
    assert list(hit.y) == pytest.approx([90, 30])
    assert list(hit.error_y.array) == pytest.approx([0, 60])
    assert list(hit.error_y.arrayminus) == pytest.approx([0, 10])
    assert list(ideal.y) == pytest.approx([98, 95])
    assert ideal.line.dash == "dash"
    assert output.yaxis == "y2"
    assert (area.stackgroup, area.line.color) == ("tiers", figures.TIER_COLOURS["hbm"])
    assert list(area.y) == pytest.approx(list(hit.y))


def test_tiers_are_stacked_to_the_hit_rate(make_row: MakeRow) -> None:
    rows = [make_row(8, 0.9), make_row(16, 0.2, 0.9, 0.8, dram=0.75)]
    plot: Any = figures.hit_curve(rows, 8)
    hbm, dram, hit, *_ = plot.data
    assert [hbm.name, dram.name] == ["Hits in HBM", "Hits in DRAM"]
    assert [a.line.color for a in (hbm, dram)] == [figures.TIER_COLOURS["hbm"], figures.TIER_COLOURS["dram"]]
    assert list(dram.y) == pytest.approx([0, 60])
    assert [a + b for a, b in zip(hbm.y, dram.y, strict=True)] == pytest.approx(list(hit.y))
    assert "HBM 20%, DRAM 60%" in figures.curve_alt(rows)


def test_curve_marks_zones_and_the_chosen_sessions(make_row: MakeRow) -> None:
    layout: Any = figures.hit_curve([make_row(4, 1.0), make_row(8, 0.9), make_row(16, 0.1)], 8).layout
    *zones, mark = layout.shapes
    assert [z.x0 for z in zones] == pytest.approx([4, 8, 12])
    assert [z.x1 for z in zones] == pytest.approx([8, 12, 16])
    assert [a.text for a in layout.annotations] == ["safe", "edge", "collapsed"]
    assert (mark.x0, mark.x1, mark.line.dash) == (8, 8, "dot")


def test_one_point_is_a_curve_too(make_row: MakeRow) -> None:
    plot: Any = figures.hit_curve([make_row(4, 0.5)], 4)
    assert list(plot.data[1].y) == [50]


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    shares = [v / 255 for v in bytes.fromhex(colour.removeprefix("#"))]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#0e1117"])
@pytest.mark.parametrize("colour", sorted({*figures.TIER_COLOURS.values(), figures.WEIGHTS_COLOUR,
                                           figures.IDEAL_COLOUR, figures.OUTPUT_COLOUR, figures.TOTAL_COLOUR}))
def test_colours_stand_out_on_light_and_dark(colour: str, page: str) -> None:
    dark, light = sorted([luminance(colour), luminance(page)])
    assert (light + 0.05) / (dark + 0.05) >= 3.0
