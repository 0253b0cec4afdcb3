"""The Cache page: reuse by capacity without timing, by tier with it."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.cache.curves.curves import POLICIES
from kvsim.dashboard import cache_figures, figures, reuse
from kvsim.errors import TraceError
from kvsim.scenario import load_scenario
from tests.app.conftest import MakeRow
from tests.app.test_figures import luminance


def two_prompts(num_requests: int = 8) -> bytes:
    """Two prompts of two blocks, asked in turns."""
    rows = [{"timestamp": k, "input_length": 1024, "output_length": 5, "hash_ids": [k % 2, 7 + k % 2]}
            for k in range(num_requests)]
    return "\n".join(json.dumps(row) for row in rows).encode()


def test_uploaded_trace_gives_the_library_s_curve() -> None:
    trace = reuse.uploaded_trace("../../etc/mine.jsonl", two_prompts())
    found = reuse.curves_of(trace, ["lru"], 4)
    assert found.label == "mine.jsonl"
    by_capacity = {row.capacity_blocks: row.hit_blocks for row in found.rows}
    assert by_capacity == {1: 0, 2: 0, 3: 0, 4: 12}
    assert reuse.ideal_frac(found) == 12 / 16


def test_what_is_not_a_trace_is_told_under_its_own_name() -> None:
    with pytest.raises(TraceError) as caught:
        reuse.uploaded_trace("notes.txt", b"just some words")
    assert caught.value.message == "notes.txt is of no known format"
    assert all("/" not in p.where for p in caught.value.problems)


def test_uploads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MAX_REQUESTS", 7)
    with pytest.raises(TraceError, match="too long"):
        reuse.uploaded_trace("mine.jsonl", two_prompts())
    monkeypatch.setattr(reuse, "MAX_UPLOAD_BYTES", 100)
    with pytest.raises(TraceError, match="too large"):
        reuse.uploaded_trace("mine.jsonl", two_prompts())


def test_lengths_alone_have_no_curve() -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    with pytest.raises(TraceError, match="no block ids and no sessions"):
        reuse.curves_of(reuse.uploaded_trace("azure.csv", text.encode()), ["lru"], 1)


def test_preset_curve_rises_to_the_ideal() -> None:
    trace = reuse.preset_trace(load_scenario("k3-b300-study"))
    assert trace.num_sessions <= reuse.MAX_SESSIONS
    hits = [row.token_hit_rate for row in reuse.curves_of(trace, ["lru"], 8).rows]
    assert hits == sorted(hits)
    assert hits[0] < 0.5 < 0.9 < hits[-1]


def test_figure_has_a_line_a_policy_and_marks_the_pool() -> None:
    found = reuse.curves_of(reuse.uploaded_trace("mine.jsonl", two_prompts()), ["lru", "belady"], 1)
    drawn: Any = cache_figures.capacity_curves(found, 1536.0)
    assert [t.name for t in drawn.data] == ["LRU", "Belady (optimum)"]
    assert list(drawn.data[0].x) == [512, 1024, 1536, 2048]
    assert list(drawn.data[0].y) == [0, 0, 0, 75]
    assert drawn.layout.shapes[0].x0 == 1536
    assert drawn.layout.annotations[0].x == pytest.approx(math.log10(1536))
    assert not cache_figures.capacity_curves(found, None).layout["shapes"]


def test_every_policy_has_name_colour_and_marker() -> None:
    assert set(POLICIES) == set(cache_figures.POLICY_TEXT) == set(cache_figures.POLICY_COLOURS)
    assert set(POLICIES) == set(cache_figures.POLICY_SYMBOLS)
    assert not set(cache_figures.POLICY_COLOURS.values()) & set(figures.TIER_COLOURS.values())
    for colour in cache_figures.POLICY_COLOURS.values():
        for page in ("#ffffff", "#0e1117"):
            dark, light = sorted([luminance(colour), luminance(page)])
            assert (light + 0.05) / (dark + 0.05) >= 3.0


def test_tier_figure_stacks_tiers(make_row: MakeRow) -> None:
    rows = [make_row(8, 0.9), make_row(16, 0.8, dram=0.75)]
    plot: Any = cache_figures.tiers_by_sessions(rows)
    hbm, dram, ideal = plot.data
    assert list(hbm.y) == pytest.approx([90, 20])
    assert list(dram.y) == pytest.approx([0, 60])
    assert list(ideal.y) == pytest.approx([100, 100])
    assert "16 live sessions: HBM 20%, DRAM 60%" in cache_figures.tiers_alt(rows)


def _cache_page() -> None:
    from kvsim.dashboard.pages import cache

    cache.page()


def test_page_draws_both_and_asks_for_a_file() -> None:
    app = AppTest.from_function(_cache_page, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "4", "duration_s": "120", "warmup_s": "0", "seeds": "1"}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    assert not app.error
    assert any("agentx-v1: " in c.value for c in app.caption)
    app.radio(key="cache source").set_value("a trace of your own").run()
    assert not app.exception
    assert app.info[0].value == "Choose a file."


@pytest.mark.parametrize("pack", ["gzip", "zstandard"])
def test_small_file_that_unpacks_to_gigabytes_is_stopped(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MAX_UNPACKED_BYTES", 5_000_000)
    line = two_prompts(1) + b"\n"
    many = line * (20_000_000 // len(line))
    module: Any = pytest.importorskip(pack)
    packed: bytes = module.compress(many)
    assert len(packed) < 100_000
    with pytest.raises(TraceError, match="unpacks to more than the dashboard takes"):
        reuse.uploaded_trace("bomb.jsonl.gz", packed)


def test_packed_trace_of_fair_size_is_read() -> None:
    trace = reuse.uploaded_trace("mine.jsonl.gz", gzip.compress(two_prompts()))
    assert len(trace) == 8


def test_parquet_is_judged_by_its_footer(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "zeros.parquet"
    parquet.write_table(pyarrow.table({"x": [0] * 1_000_000}), path)
    assert path.stat().st_size < 20_000
    assert reuse.unpacked_bytes(path.read_bytes(), 1_000) >= 8_000_000


def test_damaged_file_is_the_reader_s_to_explain() -> None:
    with pytest.raises(TraceError) as caught:
        reuse.uploaded_trace("cut.jsonl.gz", gzip.compress(two_prompts(500))[:-20])
    assert "cut.jsonl.gz" in caught.value.message
