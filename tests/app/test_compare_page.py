"""The Compare page: pairs of the same seed, only what differs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.comparison import HEADLINES
from kvsim.dashboard import compare_figures, pairs
from kvsim.dashboard.choices import default_choices
from kvsim.dashboard.pages.compare import title
from kvsim.errors import ScenarioError
from kvsim.profiles.store import default_store
from kvsim.simulation import simulate
from kvsim.study import Row
from tests.app.conftest import MakeRow

TINY = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
        "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 20, "input_sigma": 0.5},
                     "concurrency": 4}}
FP8 = {**TINY, "engine": {"kv_dtype": "fp8"}}


def row(scenario: dict[str, Any], *seeds: int) -> Row:
    return Row(4, tuple(simulate({**scenario, "seed": seed}) for seed in seeds))


def test_pairs_have_the_library_s_means_and_intervals() -> None:
    a, b = row(TINY, 0, 1, 2), row(FP8, 0, 1, 2)
    found = pairs.paired(a, b)
    assert found.num_pairs == 3
    assert [(c.field, c.a, c.b) for c in found.changes] == [("engine.kv_dtype", "bf16", "fp8")]
    ttft = next(d for d in found.differences if d.name == "latency.ttft_s.p50")
    gaps = [y.latency.ttft_s.p50 - x.latency.ttft_s.p50 for x, y in zip(a.reports, b.reports, strict=True)]
    assert ttft.difference.mean == pytest.approx(sum(gaps) / 3)
    assert ttft.difference.low <= min(ttft.difference.mean, ttft.difference.high)
    assert ttft.a == pytest.approx(sum(r.latency.ttft_s.p50 for r in a.reports) / 3)


def test_nothing_differs_from_itself() -> None:
    same = row(TINY, 0, 1)
    found = pairs.paired(same, same)
    assert found.changes == ()
    assert all(d.difference.mean == 0 for d in found.differences)
    assert not any("*" in line["B − A"] for line in pairs.difference_rows(found))


def test_one_pair_has_no_interval() -> None:
    found = pairs.paired(row(TINY, 0), row(FP8, 0))
    assert all(math.isnan(d.difference.low) for d in found.differences)
    assert {line["95 % interval"] for line in pairs.difference_rows(found)} == {"–"}


def test_other_seeds_are_no_pairs() -> None:
    with pytest.raises(ScenarioError, match="nothing to compare"):
        pairs.paired(row(TINY, 0), row(TINY, 1))


def test_every_headline_has_a_title() -> None:
    assert set(HEADLINES) == set(pairs.TITLES)


def test_curves_name_each_side_once(make_row: MakeRow) -> None:
    drawn: Any = compare_figures.curves([make_row(4, 0.9)], [make_row(4, 0.2, 0.4), make_row(8, 0.1)])
    assert [(t.name, t.yaxis, t.showlegend) for t in drawn.data] == [
        ("A", "y", True), ("B", "y", True), ("A", "y2", False), ("B", "y2", False)]
    assert list(drawn.data[1].y) == pytest.approx([30, 10])
    assert drawn.data[0].line.dash == "dash"
    assert "B at 4 live sessions: 30% reused" in compare_figures.curves_alt([], [make_row(4, 0.2, 0.4)])


def test_title_says_dram_only_where_there_is_some() -> None:
    choices = default_choices(default_store())
    assert "DRAM" not in title(replace(choices, dram=True, dram_gb=0.0))
    assert "DRAM 1,889 GB" in title(replace(choices, dram=True))


def _compare_page() -> None:
    from kvsim.dashboard.pages import compare

    compare.page()


def open_compare(**query: str) -> AppTest:
    """The page after its first run, one short simulation a side."""
    app = AppTest.from_function(_compare_page, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "4", "duration_s": "120", "warmup_s": "0", "seeds": "2",
                        **query}.items():
        app.query_params[name] = value
    return app.run()


def address(app: AppTest, name: str) -> str:
    value = app.query_params[name]
    return value[0] if isinstance(value, list) else str(value)


def test_pin_then_change_then_reload(repo_root: Path) -> None:
    assert repo_root
    app = open_compare()
    assert not app.exception
    assert app.info[0].value == "Nothing is pinned yet."
    app.button[0].click().run()
    assert "No input differs" in app.info[0].value
    app.slider(key="sessions").set_value(6).run()
    assert not app.exception
    changes, figures = (t.value for t in app.table)
    assert list(changes["Input"]) == ["workload.concurrency"]
    assert (list(changes["A"]), list(changes["B"])) == (["4"], ["6"])
    assert "Contribution ($/node-h)" in list(figures["Figure"])
    again = open_compare(sessions="6", a=address(app, "a"))
    assert not again.exception
    assert list(again.table[0].value["A"]) == ["4"]
    again.button[1].click().run()
    assert "a" not in again.query_params


def test_wrong_pinned_address_is_told() -> None:
    app = open_compare(a="gpu=b3000&sessions=4")
    assert not app.exception
    assert "b3000" in app.warning[0].value
