"""``kvsim plan`` and ``kvsim run --uncertainty``: text, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvsim.commands.plan import plan
from kvsim.commands.run import run
from kvsim.errors import InfeasibleError

SCENARIO = """
schema: kvsim/scenario/1
name: little
model: llama-3.1-8b
hardware: {gpu: h200, num_gpus: 1}
workload: {fixed: {num_requests: 20, input_tokens: 1000, output_tokens: 20}, concurrency: 2}
slo: {ttft_s: {p95: 1}}
plan: {live_sessions: 8, max_sessions_per_replica: 8}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "little.yaml"
    path.write_text(SCENARIO)
    return str(path)


def ask(*args: str) -> Result:
    return CliRunner().invoke(plan, [*args, "--workers", "1"])


def test_a_plan_is_printed_and_written(scenario: str, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    done = ask(scenario, "--json", str(target))
    assert done.exit_code == 0, done.output
    assert "Cheapest: 1 replica of 1 x h200" in done.output
    written = json.loads(target.read_text())
    assert written["options"][0]["replicas"] == 1
    assert written["options"][0]["trial"]["ok"] is True
    assert "The next best dollar" in done.output
    assert "interval: $" in done.output
    assert {c["what"] for c in written["changes"]} >= {"today", "+1 replica", "+1 TB of DRAM a replica"}
    assert written["interval"]["usd_per_hour"]["low"] <= written["options"][0]["usd_per_hour"]


def test_a_quick_plan_is_the_winner_alone(scenario: str) -> None:
    done = ask(scenario, "--quick")
    assert done.exit_code == 0, done.output
    assert "The next best dollar" not in done.output
    assert "interval" not in done.output


def test_the_fleet_table(scenario: str, tmp_path: Path) -> None:
    target = tmp_path / "changes.json"
    done = ask(scenario, "--fleet", "3", "--json", str(target))
    assert done.exit_code == 0, done.output
    assert "Today's fleet of 3 x (1 x h200 TP1, bf16 KV, no tiers); speed: same GPU, other model" in done.output
    assert "prices as of 2026-09 (contract)" in done.output
    written = json.loads(target.read_text())
    assert (written["fleet"], written["trust"], written["as_of"]) == (3, "same GPU, other model", "2026-09")
    assert {"today", "+1 replica", "fp8 KV"} <= {c["what"] for c in written["changes"]}


def test_a_budget_too_small_is_infeasible(scenario: str) -> None:
    done = ask(scenario, "--max-price", "0.01")
    assert isinstance(done.exception, InfeasibleError)
    assert done.exception.exit_code == 3
    assert "the budget is $0.01" in str(done.exception)


def test_seats_need_to_be_known(scenario: str) -> None:
    assert "needs a demand" in str(ask(scenario, "--seats", "100").exception)
    seated = ask(scenario, "--seats", "100", "--set", "demand={seats: 1, active_frac_peak: 0.04}")
    assert "4 live sessions (4 active seats, a session each)" in seated.output
    assert "a seat and month, 100 seats a node" in seated.output


def test_a_run_with_intervals(scenario: str, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    done = CliRunner().invoke(run, [scenario, "--uncertainty", "1", "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert "Uncertainty: 1 draws" in done.output
    written = json.loads(target.read_text())
    assert set(written["uncertainty"]["intervals"]) >= {"hit rate", "TTFT p95 [s]"}
    assert written["stresses"][0]["what"] == "as it is"
