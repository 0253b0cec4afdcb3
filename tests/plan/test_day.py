"""A day below a plan's peak: its shape, what it costs always up and autoscaled, and bounds of that."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvsim.commands.plan import plan as plan_command
from kvsim.errors import ScenarioError
from kvsim.planning.day import Day, day, shape
from kvsim.planning.fleet_text import day_text
from kvsim.planning.pool import process_pool
from kvsim.planning.search import Cheapest, PlanOptions, cheapest
from kvsim.scenario import DayPart, Scenario, load_scenario

CHAT: dict[str, Any] = {
    "schema": "kvsim/scenario/1", "name": "chats", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 8},
    "layout": {"tp": 8}, "engine": {"profile": "vllm-0.33", "num_blocks": 20000},
    "workload": {"chat": {"turns": 6, "user_tokens": {"median": 400, "sigma": 0.8}, "output_tokens": 200,
                          "system_tokens": 800, "think_s": 5}, "concurrency": 8, "duration_s": 120},
    "slo": {"ttft_s": {"p95": 0.5}, "tpot_s": {"p95": 0.02}},
    "plan": {"live_sessions": 40, "max_sessions_per_replica": 10},
}
RULE = DayPart(peak_over_mean=1.8, period_s=3600)


@cache
def winner() -> Cheapest:
    with process_pool(1) as run:
        return cheapest(Scenario.from_dict(CHAT), PlanOptions(), run)


@cache
def simulated(replicas: int = 4) -> Day:
    with process_pool(1) as run:
        return day(winner(), RULE.model_copy(update={"replicas": replicas}), run)


@given(st.floats(1.05, 10.0))
def test_a_smooth_day_has_the_peak_and_the_mean_asked_for(peak_over_mean: float) -> None:
    load = shape(DayPart(peak_over_mean=peak_over_mean))
    assert max(load) == pytest.approx(1.0)
    assert load[0] == min(load) >= 0.0
    assert sum(load) / len(load) == pytest.approx(1 / peak_over_mean, rel=1e-6)
    assert load[1:] == pytest.approx(load[:0:-1])


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_a_stated_day_begins_at_its_least(shares: list[float]) -> None:
    load = shape(DayPart(load=(*shares, 1.0)))
    assert load[0] == min(load)
    assert sorted(load) == sorted([*shares, 1.0])


def test_bounds_lie_in_order() -> None:
    found = simulated()
    assert found.always_up.replicas == found.replicas == 4
    assert found.mean_load.replicas < found.perfect.replicas < found.autoscaled.replicas < found.always_up.replicas
    assert found.mean_load.replicas == pytest.approx(4 / 1.8)
    assert found.worth_frac == pytest.approx(4 / found.autoscaled.replicas)
    ways = (found.always_up, found.autoscaled, found.perfect, found.mean_load)
    usd = [way.usd_per_hour / way.replicas for way in ways]
    assert usd == pytest.approx([winner().case.bill(1).usd_per_hour] * 4)
    assert found.target_in_flight <= found.full_in_flight


def test_both_ways_are_measured_against_the_slo() -> None:
    found = simulated()
    assert found.always_up.phase is not None
    assert found.autoscaled.phase is not None
    assert found.always_up.phase.ok
    assert found.autoscaled.phase.ok
    assert found.perfect.phase is None
    assert found.simulations == 4


def test_a_larger_fleet_is_simulated_in_part() -> None:
    part = simulated(2)
    assert (part.replicas, part.simulated_replicas) == (4, 2)
    assert part.autoscaled.replicas <= 4
    assert part.always_up.usd_per_hour == simulated().always_up.usd_per_hour
    assert "2 of the 4 replicas with their part of the sessions" in day_text(part)
    assert "of the 4 replicas" not in day_text(simulated())


def test_the_day_in_words() -> None:
    said = day_text(simulated())
    assert "40 live sessions at the peak, 22 on average, simulated over 1 h" in said
    assert "requests in flight (a full one has" in said
    assert "times as much as what is kept" in said
    assert said.count("not simulated: a bound") == 2
    alone = replace(simulated(), replicas=1)
    assert "nothing to scale" in day_text(alone)
    json.dumps(simulated().to_dict(), allow_nan=False)


def test_fixed_lengths_have_no_day() -> None:
    fixed = Scenario.from_dict({**CHAT, "workload": {
        "fixed": {"num_requests": 40, "input_tokens": 500, "output_tokens": 20}, "concurrency": 8}})
    with process_pool(1) as run:
        found = cheapest(fixed, PlanOptions(), run)
        with pytest.raises(ScenarioError, match="a workload of sessions"):
            day(found, RULE, run)


@pytest.mark.parametrize("wrong", ["{}", "{peak_over_mean: 1}", "{load: [0.5, 0.9]}", "{load: [1.0]}",
                                   "{load: [0.5, 1], peak_over_mean: 2}", "{peak_over_mean: 2, replicas: 1}"])
def test_wrong_days_are_refused(wrong: str) -> None:
    with pytest.raises(ScenarioError):
        load_scenario("plan-k3", [f"plan.day={wrong}"])


def test_the_command_says_it_and_writes_it(tmp_path: Path) -> None:
    path, target = tmp_path / "chats.json", tmp_path / "plan.json"
    path.write_text(json.dumps({**CHAT, "plan": {**CHAT["plan"], "day": {"load": [0.3, 1.0, 0.6], "period_s": 900}}}))
    args = [str(path), "--quick", "--workers", "1", "--json", str(target)]
    assert CliRunner().invoke(plan_command, args).exit_code == 0
    assert json.loads(target.read_text())["day"] is None
    done = CliRunner().invoke(plan_command, [*args, "--day", "1.5"])
    assert done.exit_code == 0, done.output
    assert "Peak against mean: 40 live sessions at the peak" in done.output
    written = json.loads(target.read_text())["day"]
    assert written["period_s"] == 900
    assert written["peak_over_mean"] == pytest.approx(1.5)
    assert written["autoscaled"]["phase"]["measures"]
