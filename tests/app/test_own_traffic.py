"""A trace of one's own as Plan's traffic, a price of one's own, and several replicas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.billing import hourly_bill
from kvsim.dashboard import choices as c
from kvsim.dashboard import controls, method, open_traffic, platforms, uploads
from kvsim.dashboard.verdict import capacity_sentence, machine_title
from kvsim.errors import KvsimError, TraceError
from kvsim.planning.offers import offers, priced_with
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from tests.app.test_cache_page import two_prompts
from tests.app.test_plan_page import metrics, open_app, query

STORE = default_store()
DEFAULT = c.default_choices(STORE)


def long_prompts(num_requests: int = 40) -> bytes:
    """Two prompts of 16 blocks, longer than a block of the model, asked in turns."""
    rows = [{"timestamp": 1000 * k, "input_length": 8192, "output_length": 5,
             "hash_ids": [100 * (k % 2) + i for i in range(16)]} for k in range(num_requests)]
    return "\n".join(json.dumps(row) for row in rows).encode()


def banner(app: AppTest) -> str:
    """The verdict, whatever its colour."""
    return next(b.value for b in (*app.success, *app.warning, *app.error) if b.icon == ":material/memory:")


def sessions(num_sessions: int = 6, turns: int = 4) -> bytes:
    """Chats whose prompts grow, told by block ids and parents' lengths."""
    rows: list[dict[str, Any]] = []
    for s in range(num_sessions):
        for t in range(turns):
            ids = [1000 * s + k for k in range(4 * (t + 1))]
            rows.append({"chat_id": 10 * s + t, "parent_chat_id": -1 if t == 0 else 10 * s + t - 1,
                         "timestamp": float(s + 20 * t), "input_length": 16 * len(ids), "output_length": 8,
                         "type": "text", "turn": t + 1, "hash_ids": ids})
    rows.sort(key=lambda row: row["timestamp"])
    return "\n".join(json.dumps(row) for row in rows).encode()


def test_kept_trace_is_named_by_content_and_forgotten_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = uploads.Shelf(tmp_path)
    monkeypatch.setattr(uploads, "MAX_KEPT", 2)
    first = shelf.keep("../../etc/mine of old.jsonl", two_prompts())
    assert first.path.parent == tmp_path
    assert first.file_name == "mine_of_old.jsonl"
    assert (first.num_requests, first.has_turns, first.has_clock) == (8, False, True)
    assert shelf.keep("../../etc/mine of old.jsonl", two_prompts()) == first
    shelf.keep("b.jsonl", two_prompts(9))
    shelf.keep("c.jsonl", two_prompts(10))
    assert shelf.find(first.name) is None
    assert not first.path.exists()
    with pytest.raises(TraceError, match="of no known format"):
        shelf.keep("notes.txt", b"just some words")


def test_trace_becomes_the_scenario_s_traffic() -> None:
    kept = uploads.shelf().keep("mine.jsonl", two_prompts())
    closed = replace(DEFAULT, trace=kept.name, sessions=3)
    workload = c.scenario_of(closed).workload
    assert (workload.preset, workload.mode, workload.concurrency) == (None, "closed", 3)
    assert workload.trace == str(kept.path)
    fast = replace(closed, pace=c.OPEN, rate_factor=2.5)
    workload = c.scenario_of(fast).workload
    assert (workload.mode, workload.concurrency, workload.rate_factor) == ("open", None, 2.5)
    assert c.from_query(c.to_query(fast, STORE), STORE) == (fast, ())
    assert fast.traffic == "mine.jsonl"


def test_trace_of_another_server_is_told_and_left_aside() -> None:
    found, problems = c.from_query({"trace": "0123456789ab-gone.jsonl", "pace": "open"}, STORE)
    assert found == DEFAULT
    assert {p.field for p in problems} == {"trace", "pace"}


def test_turns_are_played_by_live_sessions() -> None:
    kept = uploads.shelf().keep("chats.jsonl", sessions())
    assert kept.has_turns
    report = simulate(c.scenario_of(replace(DEFAULT, trace=kept.name, sessions=2, warmup_s=0, duration_s=300)))
    assert report.run.num_requests
    assert report.hit_rate.ideal > 0.3


def test_faster_trace_keeps_the_slo_up_to_some_rate(report: Any) -> None:
    scenario = load_scenario("k3-b300-study")
    row = open_traffic.Row(None, (report,))
    slow = open_traffic.Row(None, (replace(report, latency=replace(report.latency, ttft_s=replace(
        report.latency.ttft_s, p95=99.0))),))
    loads = {0.5: row, 1.0: row, 2.0: slow, 4.0: row}
    assert open_traffic.most_kept(loads, scenario) == 1.0
    assert open_traffic.most_kept({0.5: slow, 1.0: row}, scenario) is None
    assert "up to 1 times" in open_traffic.room_text(loads, scenario)
    assert "missed at 0.5 times" in open_traffic.room_text({0.5: slow}, scenario)
    assert [r["Inside the SLO"] for r in open_traffic.load_rows(loads, scenario)] == ["yes", "yes", "no", "yes"]


def test_page_plays_a_trace_at_its_times_and_by_clients(repo_root: Path) -> None:
    kept = uploads.shelf().keep("mine.jsonl", long_prompts())
    app = open_app(repo_root, trace=kept.name, pace="open")
    assert not app.exception
    assert not app.error
    said = banner(app)
    assert "mine.jsonl at 1 times its recorded rate" in said
    assert "agents" not in said
    assert list(app.table[0].value["Rate factor"]) == ["0.5", "0.8", "1", "1.2", "1.5", "2"]
    assert len(app.get("plotly_chart")) == 2
    assert app.slider(key="sessions").disabled
    assert any("look for mine.jsonl" in caption.value for caption in app.caption)
    assert str(kept.path) not in " ".join(code.value for code in app.code)
    app.radio(key="pace").set_value("closed").run()
    assert not app.exception
    assert "serves" in banner(app)
    assert not app.slider(key="sessions").disabled
    assert query(app)["trace"] == kept.name


def test_refused_upload_is_told_at_the_control(repo_root: Path) -> None:
    app = open_app(repo_root)
    app.file_uploader(key=controls.UPLOAD).set_value(("notes.txt", b"just some words", "text/plain")).run()
    assert not app.exception
    assert "of no known format" in app.error[0].value
    app.file_uploader(key=controls.UPLOAD).set_value(("mine.jsonl", long_prompts(), "application/json")).run()
    assert not app.exception
    assert not app.error
    assert "mine.jsonl" in banner(app)


def test_other_pages_say_what_they_need() -> None:
    kept = uploads.shelf().keep("mine.jsonl", two_prompts())
    for page in ("cache", "latency", "cost", "compare", "sweep"):
        app = AppTest.from_function(_page, default_timeout=60, args=(page,))
        app.query_params["trace"], app.query_params["pace"] = kept.name, "open"
        app.run()
        assert not app.exception
        assert "recorded times" in app.info[0].value


def _page(name: str) -> None:
    import importlib

    importlib.import_module(f"kvsim.dashboard.pages.{name}").page()


def test_stated_price_replaces_the_profile_s_and_nothing_else() -> None:
    usual, stated = (resolve(c.scenario_of(x)) for x in (DEFAULT, replace(DEFAULT, usd_per_gpu_hour=3.0)))
    assert hourly_bill(stated, STORE).usd_per_hour == 24.0
    assert hourly_bill(usual, STORE).usd_per_hour == 34.0
    other = next(o for o in offers(usual, STORE) if o.name != DEFAULT.compute)
    assert hourly_bill(priced_with(stated, other.name, STORE), STORE).usd_per_hour == other.bill.usd_per_hour
    assert c.reconcile(replace(DEFAULT, usd_per_gpu_hour=3.0, gpu="gb300"), replace(DEFAULT, usd_per_gpu_hour=3.0),
                       STORE).usd_per_gpu_hour is None


def test_price_for_no_gpu_or_beside_owned_is_refused() -> None:
    with pytest.raises(KvsimError, match="b300"):
        hourly_bill(resolve(load_scenario("k3-b300-study", ["prices.usd_per_gpu_hour={b3000: 3}"])), STORE)
    with pytest.raises(KvsimError, match="one of them"):
        load_scenario("k3-b300-study", ["prices.usd_per_gpu_hour={b300: 3}", "prices.owned={}"])


def test_card_of_the_chosen_platform_bills_the_stated_price() -> None:
    place = platforms.platforms(replace(DEFAULT, usd_per_gpu_hour=3.0), STORE)
    assert place[0].resolved is not None
    assert platforms.list_price(place[0].choices, STORE) == 3.0
    assert platforms.list_price(place[1].choices, STORE) != 3.0
    row = open_traffic.Row(4, (simulate(place[0].resolved.scenario.at(4, 0)),))
    found = platforms.deal(place[0], row, 3.0, STORE)
    assert found.bill_usd_per_hour == pytest.approx(24.0)
    assert found.contribution_usd_per_hour == pytest.approx(row.reports[0].cost.contribution_usd_per_node_hour)


def test_price_and_replicas_change_page_and_address(repo_root: Path) -> None:
    app = open_app(repo_root)
    before = metrics(app)
    app.number_input(key="usd_per_gpu_hour").set_value(3.0).run()
    assert not app.exception
    gained = (float(m["Contribution ($/node-h)"].replace("−", "-").replace("$", "")) for m in (metrics(app), before))
    assert next(gained) - next(gained) == pytest.approx(10.0, abs=0.02)
    assert query(app)["usd_per_gpu_hour"] == "3"
    app.number_input(key="replicas").set_value(2).run()
    app.selectbox(key="router").set_value("prefix_aware").run()
    assert not app.exception
    assert "2 replicas of 8 x B300" in banner(app)
    assert (query(app)["replicas"], query(app)["router"]) == ("2", "prefix_aware")


def test_replicas_reach_scenario_and_sentences() -> None:
    several = replace(DEFAULT, replicas=3, router="least_loaded")
    resolved = resolve(c.scenario_of(several))
    assert (resolved.scenario.replicas, resolved.scenario.router_name) == (3, "least_loaded")
    assert machine_title(resolved) == "3 replicas of 8 x B300"
    assert "in each replica" in capacity_sentence(resolved)
    assert hourly_bill(resolved, STORE).usd_per_hour == 3 * 34.0
    assert c.from_query(c.to_query(several, STORE), STORE) == (several, ())
    assert not any("Several replicas" in text for text in method.NOT_MODELLED)
