"""Prefill and decode apart as users meet them: scenarios, the command line, the report, the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.disaggregation import parcel_of, role_scenario
from kvsim.errors import ScenarioError
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.planning import plan
from kvsim.planning.balance import balance
from kvsim.report.report import Report
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate

ONE = {"replicas": 1}
CHAT: dict[str, Any] = {
    "name": "chat", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    "disaggregation": {"prefill": ONE, "decode": ONE, "link": {"bandwidth": "50 GB/s"}},
    "workload": {"chat": {"turns": 4, "user_tokens": 400, "output_tokens": 60, "think_s": 2}, "concurrency": 6,
                 "duration_s": 40}, "slo": {"ttft_s": {"p95": 2}}}


def run(**split: Any) -> Report:
    return simulate({**CHAT, "disaggregation": {**CHAT["disaggregation"], **split}})


def roles(*overrides: str) -> tuple[Resolved, Resolved]:
    scenario = load_scenario("k3-2xb300-1p1d", overrides)
    return resolve(role_scenario(scenario, "prefill")), resolve(role_scenario(scenario, "decode"))


def test_the_report_says_what_was_handed_over_and_both_nodes_are_paid_for() -> None:
    report = run()
    use = report.disaggregation
    assert use is not None
    assert use.transferred_bytes == pytest.approx(use.transferred_blocks * 16 * 131_072)
    assert use.sent_bytes_per_gpu == use.received_bytes_per_gpu == (use.transferred_bytes,)
    assert use.handed_over_requests >= report.run.num_requests > 20
    assert use.decode_cached_tokens == use.local_requests == 0
    assert 0.0 < use.busy_link_frac < 1.0
    assert use.limits[0].link_frac == pytest.approx(use.limits[0].bytes_per_s / 50e9)
    assert report.cluster is not None
    assert [r.kind for r in report.cluster.replicas] == ["h200-sxm prefill", "h200-sxm decode"]
    assert report.cost.bill is not None
    assert report.cost.bill.units.billed_gpus % 2 == 0
    assert report.to_dict()["disaggregation"]["transferred_bytes"] == use.transferred_bytes
    assert simulate({**CHAT, "disaggregation": None}).disaggregation is None


def test_later_turns_need_less_of_the_link_where_the_decode_side_keeps_blocks() -> None:
    bare, keeping = run().disaggregation, run(decode_side_caching=True).disaggregation
    assert bare is not None
    assert keeping is not None
    assert keeping.decode_cached_tokens > 0
    assert keeping.transferred_bytes < 0.7 * bare.transferred_bytes


def test_short_uncached_prompts_stay_on_the_decode_side() -> None:
    use = run(decode_side_caching=True, conditional_uncached_tokens=600).disaggregation
    assert use is not None
    assert use.local_requests > use.handed_over_requests


def test_k3_hands_over_its_latents_and_its_states_once_with_dcp_and_once_a_rank_without() -> None:
    prefill, decode = roles()
    latents = model_bytes_per_token(decode.model, "fp8") * decode.engine.block_tokens
    parcel = parcel_of(prefill, decode)
    assert parcel.block_bytes == pytest.approx(latents)
    assert parcel.state_bytes == pytest.approx(model_state_bytes(decode.model))
    prefill, decode = roles("disaggregation.decode.layout={tp: 8}")
    assert parcel_of(prefill, decode).block_bytes == pytest.approx(
        8 * model_bytes_per_token(decode.model, "fp8") * decode.engine.block_tokens)


@pytest.mark.parametrize(("field", "value"), [
    ("replicas", 2), ("failures", [{"replica": 0, "at_s": 5}]), ("layout", {"dp": 2, "ep": 2}),
    ("engine", {"fidelity": "reference"}), ("engine", {"draft": "ngram-4"}),
    ("engine", {"admission": {"max_live_sessions": 2}}), ("autoscale", {"target_in_flight": 4})])
def test_what_is_not_simulated_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ScenarioError, match="with disaggregation"):
        simulate({**CHAT, field: value})


@pytest.mark.parametrize(("split", "named"), [
    ({"prefil": ONE}, "prefil"), ({"decode": {"engine": {"prefix_caching": True}}}, "decode_side_caching"),
    ({"decode": {"engine": {"kv_dtype": "fp8"}}}, "kv_dtype"), ({"decode": {"engine": {"num_block": 9}}}, "num_block"),
    ({"decode": {"router": {"kind": "sglang", "cache_treshold": 1}}}, "cache_treshold"), ({"link": {"bandwidth": 0}},
                                                                                         "bandwidth")])
def test_mistakes_are_named(split: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        run(**split)


def test_the_network_cards_of_the_node_are_the_link_unless_it_is_stated() -> None:
    report = simulate(load_scenario("k3-2xb300-1p1d", ["workload.duration_s=120", "workload.concurrency=4"]))
    assert report.disaggregation is not None
    assert report.disaggregation.link_bytes_per_s == 100e9


def test_a_plan_divides_the_replicas_and_sets_them_against_doing_both(tmp_path: Path) -> None:
    three = {**CHAT, "disaggregation": {**CHAT["disaggregation"], "decode": {"replicas": 2}}}
    table = balance(three)
    assert [row.name for row in table.rows] == ["3 do both", "1P2D", "2P1D"]
    assert len({row.usd_per_hour for row in table.rows}) == 1
    kept = [row for row in table.rows if row.ok]
    assert table.best is not None
    assert table.best.usd_per_mtok == min(row.usd_per_mtok for row in kept)
    path, out = tmp_path / "three.yaml", tmp_path / "out.json"
    path.write_text(json.dumps(three))
    done = CliRunner().invoke(cli, ["plan", str(path), "--workers", "1", "--json", str(out)], catch_exceptions=False)
    assert "1P2D" in done.output
    assert json.loads(out.read_text())["best"] == table.best.name


def test_a_search_over_hardware_refuses_them() -> None:
    with pytest.raises(ScenarioError, match="disaggregation"):
        plan({**CHAT, "plan": {"live_sessions": 4}})


def test_the_command_line_tells_what_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps(CHAT))
    done = CliRunner().invoke(cli, ["run", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1P1D, whole transfer" in done.output
    assert "link limit" in done.output
