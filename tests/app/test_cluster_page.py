"""The Cluster page: its figures and tables say what the reports say, and a link restores it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import choices as c
from kvsim.dashboard import cluster_figures as figures
from kvsim.dashboard import clusters, uploads
from kvsim.planning.balance import balance_of
from kvsim.planning.trials import limits_of
from kvsim.profiles.store import default_store
from kvsim.report.metrics import Window
from kvsim.report.replicas import hits_in, mean_in_flight
from kvsim.report.report import Report
from kvsim.simulation import simulate
from tests.app.test_own_traffic import long_prompts

STORE = default_store()
SHORT = replace(c.default_choices(STORE), sessions=3, duration_s=240, warmup_s=0, seeds=1, curve=())


@pytest.fixture(scope="module")
def pair() -> Report:
    """Two replicas."""
    return simulate(clusters.cluster_scenario(SHORT))


@pytest.fixture(scope="module")
def lost(pair: Report) -> Report:
    """The same, of which the first stops after a minute and is back after two."""
    asked = replace(SHORT, lost_s=60, back_s=120)
    return simulate(clusters.with_loss(clusters.cluster_scenario(asked), asked, pair.run.measured_from_s))


def test_one_replica_is_shown_as_two_with_as_many_sessions_each() -> None:
    found = clusters.cluster_choices(SHORT)
    assert (found.replicas, found.sessions) == (2, 6)
    own = replace(SHORT, replicas=3, sessions=9)
    assert clusters.cluster_choices(own) is own
    assert clusters.cluster_choices(replace(SHORT, sessions=128)).sessions == c.RANGES["sessions"][1]


def test_loss_is_counted_from_the_measured_time() -> None:
    base = clusters.cluster_scenario(SHORT)
    assert clusters.with_loss(base, SHORT, 50.0) is base
    forever = clusters.with_loss(base, replace(SHORT, lost_s=60), 50.0).failures[0]
    assert (forever.replica, forever.at_s, forever.recover_s) == (0, 110.0, None)
    back = clusters.with_loss(base, replace(SHORT, lost_s=60, back_s=90), 50.0).failures[0]
    assert back.recover_s == 140.0
    assert clusters.with_loss(base, replace(SHORT, lost_s=60, back_s=30), 50.0).failures[0].recover_s is None


def test_a_link_holds_the_loss() -> None:
    asked = replace(SHORT, lost_s=60, back_s=120, replicas=4, router="sglang")
    query = c.to_query(asked, STORE)
    assert (query["lost_s"], query["back_s"], query["replicas"]) == ("60", "120", "4")
    assert c.from_query(query, STORE) == (asked, ())
    assert c.scenario_of(asked).failures == ()


def test_lines_are_those_of_the_replicas(pair: Report) -> None:
    windows = figures.bins_of(pair)
    whole = Window(pair.run.measured_from_s, pair.run.simulated_s)
    asked = Window(whole.start_s, whole.start_s + SHORT.duration_s)  # the last step ends a little later
    assert (windows[0].start_s, windows[-1].end_s) == (whole.start_s, whole.end_s)
    assert all(a.end_s == b.start_s for a, b in pairwise(windows))
    assert pair.cluster is not None
    for track, use in zip(pair.tracks, pair.cluster.replicas, strict=True):
        assert np.mean(figures.in_flight(track, windows)) == pytest.approx(mean_in_flight(track.timeline, whole))
        assert mean_in_flight(track.timeline, asked) == pytest.approx(use.in_flight)
        assert hits_in(pair.records, asked, track.rows) == pytest.approx(use.hit_rate)
    assert sum(len(t.rows) for t in pair.tracks) <= len(pair.records.status)
    drawn: Any = figures.over_time(pair)
    assert [t.name for t in drawn.data] == ["replica 0"] * 2 + ["replica 1"] * 2
    assert [t.showlegend for t in drawn.data] == [None, False] * 2
    assert not drawn.layout.shapes
    assert "replica 1:" in figures.over_time_alt(pair)


def test_a_lost_replica_has_nothing_until_it_is_back(lost: Report) -> None:
    from_s = lost.run.measured_from_s
    assert figures.moments_of(lost) == pytest.approx([from_s + 60, from_s + 120])
    drawn: Any = figures.over_time(lost)
    assert [s.x0 for s in drawn.layout.shapes] == pytest.approx([1.0, 2.0])
    gone = [w for w in figures.bins_of(lost) if w.start_s >= from_s + 60 and w.end_s <= from_s + 120]
    assert gone
    assert figures.in_flight(lost.tracks[0], gone) == [0.0] * len(gone)
    assert lost.cluster is not None
    assert lost.cluster.replicas[0].up_frac < 1 == lost.cluster.replicas[1].up_frac
    assert all(abs(up[1] - from_s - 60) < 1e-6 for up in lost.tracks[0].up_s[:1])


def test_loss_is_told_beside_the_run_without(pair: Report, lost: Report) -> None:
    said = clusters.loss_sentence(pair, lost, replace(SHORT, lost_s=60, back_s=120))
    assert "Replica 0 stops 60 s into the measured time, back and empty at 120 s" in said
    assert f"instead of {pair.hit_rate.total:.1%}" in said
    assert "back and empty" not in clusters.loss_sentence(pair, lost, replace(SHORT, lost_s=60))


def test_routers_side_by_side(pair: Report) -> None:
    scenario = clusters.cluster_scenario(SHORT)
    assert "vllm_dp" not in clusters.routers_of(scenario)
    assert "vllm_dp" in clusters.routers_of(scenario.model_copy(update={"layout": scenario.layout.model_copy(
        update={"dp": 8, "tp": 1})}))
    assert clusters.behind(scenario, "dynamo").router_name == "dynamo"
    found = [("round_robin", pair), ("other", pair)]
    rows = clusters.router_rows(found)
    assert [row["Router"] for row in rows] == ["round_robin", "other"]
    assert rows[0]["Hit rate (%)"] == f"{100 * pair.hit_rate.total:.1f}"
    drawn: Any = figures.side_by_side(found)
    assert [t.x[0] for t in drawn.data] == pytest.approx([
        100 * pair.hit_rate.total, pair.latency.ttft_s.p95, pair.cost.usd_per_mtok.blended])
    titles = [axis.title.text for axis in (drawn.layout.xaxis, drawn.layout.xaxis2, drawn.layout.xaxis3)]
    assert titles == [title for title, _, _ in figures.PANELS]
    assert "other: " in figures.side_by_side_alt(found)


def test_every_division_of_the_replicas() -> None:
    scenario = clusters.cluster_scenario(replace(SHORT, replicas=3))
    tried = clusters.apart(scenario)
    assert list(tried) == ["3 do both", "1P2D", "2P1D"]
    assert tried["3 do both"].replicas == 3
    split = tried["1P2D"].disaggregation
    assert split is not None
    assert split.decode.layout is not None
    assert split.decode.layout.dcp == 8
    llama = clusters.apart(clusters.cluster_scenario(replace(
        SHORT, model="llama-3.1-8b", num_gpus=8, kv_dtype="bf16", pool=c.PREDICTED)))["1P1D"].disaggregation
    assert llama is not None
    assert llama.decode.layout is not None
    assert llama.decode.layout.dcp == 1, "KV heads are divided, not striped"


def test_divisions_are_told_in_order_of_price(pair: Report) -> None:
    limits = limits_of(clusters.cluster_scenario(SHORT).slo)
    rows = [balance_of("2 do both", pair, limits), balance_of("again", pair, [("ttft_s", "p95", 1e-9)])]
    assert [row["Inside the SLO"] for row in clusters.apart_rows(rows)] == ["yes", "no"]
    assert "**2 do both**" in clusters.best_sentence(rows)
    assert clusters.best_sentence(rows[1:]) == "No way of using them keeps the SLO."


def show_cluster() -> None:
    from kvsim.dashboard.pages import cluster

    cluster.page()


def opened(**query: str) -> AppTest:
    app = AppTest.from_function(show_cluster, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "3", "duration_s": "120", "warmup_s": "0", "seeds": "1",
                        **query}.items():
        app.query_params[name] = value
    return app.run()


def test_page_shows_charts_and_tables_and_follows_the_loss() -> None:
    app = opened()
    assert not app.exception
    assert not app.error
    assert [m.label for m in app.metric][:2] == ["Prompt tokens reused", "TTFT p95"]
    assert len(app.get("plotly_chart")) == 2
    assert [len(t.value) for t in app.table] == [2, 8, 2]
    assert any("shown are 2 of them" in caption.value for caption in app.caption)
    app.number_input(key="lost_s").set_value(60).run()
    assert not app.exception
    assert any("Replica 0 stops 60 s" in m.value for m in app.markdown)
    assert app.query_params["lost_s"] in ("60", ["60"])


def test_many_replicas_are_divided_on_request_only() -> None:
    app = opened(replicas="5", sessions="5", router="session_affinity")
    assert not app.exception
    assert [len(t.value) for t in app.table] == [5, 8]
    assert any("5 replicas can be divided in 4 ways" in caption.value for caption in app.caption)


def test_a_trace_at_its_recorded_times_goes_through_the_cluster() -> None:
    kept = uploads.shelf().keep("mine.jsonl", long_prompts())
    app = opened(trace=kept.name, pace="open")
    assert not app.exception
    assert not app.error
    assert any("on 2 replicas" in m.value and "live sessions" not in m.value for m in app.markdown)
    assert [len(t.value) for t in app.table] == [2, 8, 2]


def test_what_cannot_be_divided_says_so() -> None:
    app = opened(model="deepseek-r1", gpu="h200-sxm", tp="1", dp="8", ep="8", max_model_len="32768",
                 pool="predicted", preset="claude-code")
    assert not app.exception
    assert "cannot be simulated with prefill and decode apart" in app.error[0].value
