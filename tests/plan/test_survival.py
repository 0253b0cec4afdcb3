"""Loss of a node at a plan's peak: what is simulated, what counts as survived, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import ceil, inf, nan
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.commands.plan import plan as plan_command
from kvsim.engine.types import FINISHED, RunRecords
from kvsim.errors import ScenarioError
from kvsim.planning.fleet_text import one_node_down, phase_text, survival_text
from kvsim.planning.plan import plan
from kvsim.planning.pool import process_pool
from kvsim.planning.search import Cheapest, PlanOptions, cheapest
from kvsim.planning.survival import Loss, Phase, Survival, fleet, hits_back, survival
from kvsim.planning.trials import Measure
from kvsim.report.metrics import Window
from kvsim.report.replicas import hits_in
from kvsim.scenario import Scenario, SurvivePart, load_scenario

CHAT = {
    "schema": "kvsim/scenario/1", "name": "chats", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 8},
    "layout": {"tp": 8}, "engine": {"profile": "vllm-0.33", "num_blocks": 6000},
    "workload": {"chat": {"turns": 6, "user_tokens": {"median": 400, "sigma": 0.8}, "output_tokens": 100,
                          "system_tokens": 800, "think_s": 10}, "concurrency": 8, "duration_s": 120},
    "slo": {"ttft_s": {"p95": 0.5}, "tpot_s": {"p95": 0.02}},
    "plan": {"live_sessions": 90, "max_sessions_per_replica": 30},
}
RULE = SurvivePart(before_s=120, first_s=60, after_s=120)


def chats(**changes: object) -> Scenario:
    return Scenario.from_dict({**CHAT, "plan": {**CHAT["plan"], **changes}})  # type: ignore[dict-item]


@cache
def winner() -> Cheapest:
    with process_pool(1) as run:
        return cheapest(chats(), PlanOptions(), run)


@cache
def survived() -> Survival:
    with process_pool(1) as run:
        return survival(winner(), RULE, run)


def test_nodes_that_are_lost_take_their_requests_and_caches_along() -> None:
    found = survived()
    loss = found.losses[0]
    assert winner().result.best.replicas == 3
    assert (loss.units, loss.replicas, loss.lost) == (3, 3, 1)
    assert loss.retries > 0
    assert loss.lowest_hit_rate_frac < loss.before.hit_rate_frac
    assert found.router == "session_affinity"
    assert found.simulations == 4 * ceil(len(found.losses) / 2)


def test_every_fleet_is_a_unit_larger_and_the_last_one_survives() -> None:
    found = survived()
    assert [loss.units for loss in found.losses] == list(range(3, 3 + len(found.losses)))
    assert [found.survives(loss) for loss in found.losses] == [False] * (len(found.losses) - 1) + [True]
    assert found.smallest == found.losses[-1]
    usd = [loss.usd_per_hour for loss in found.losses]
    assert usd == sorted(usd)


def test_same_answer_whatever_the_number_of_processes() -> None:
    with process_pool(2) as run:
        assert survival(winner(), RULE, run) == survived()


def test_a_fleet_that_stands_on_one_node_is_not_simulated() -> None:
    eight = Scenario.from_dict({**CHAT, "hardware": {"gpu": "h200", "num_gpus": 1}, "layout": {"tp": 1}})
    with process_pool(1) as run:
        found = cheapest(eight, PlanOptions(), run)
        lost = survival(found, RULE.model_copy(update={"max_extra": 1}), run)
    best = found.result.best
    assert best.replicas_per_node == 8
    assert "nothing is left, 3 replicas stand on it" in one_node_down(best, 90)
    assert lost.skipped == "of 1 node no replica would be left"
    assert [(loss.units, loss.replicas, loss.lost) for loss in lost.losses] == [(2, 16, 8)]


def test_what_would_break_the_slo_for_good_is_not_simulated() -> None:
    best = winner().result.best
    assert best.broken is None
    broken = replace(best.trial, sessions=31)
    doubtful = replace(winner(), result=replace(winner().result, options=(replace(best, broken=broken),)))
    with process_pool(1) as run:
        found = survival(doubtful, RULE.model_copy(update={"max_extra": 0}), run)
    assert not found.losses
    assert "2 replicas left would carry 45 sessions each" in found.skipped
    assert "none of those allowed" in survival_text(found)


def records(rows: list[tuple[float, int, int]]) -> RunRecords:
    """Requests as (first token [s], prompt, cached)."""
    first, prompt, cached = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), np.int64)
    return RunRecords(arrival_s=first - 1.0, admitted_s=first - 1.0, first_token_s=first.astype(float),
                      finish_s=first + 1.0, prompt_tokens=prompt, output_tokens=nothing + 1, cached_tokens=cached,
                      external_tokens=nothing, preemptions=nothing, status=nothing + FINISHED)


def test_hits_are_back_where_they_are_no_worse_than_before() -> None:
    steps = [(float(t), 100, 90 if t < 300 or t >= 480 else 10) for t in range(0, 1000, 5)]
    lowest, back_s = hits_back(records(steps), Window(0.0, 1000.0), 300.0, 300.0)
    assert lowest == pytest.approx(0.1)
    assert back_s == 180.0
    never = [(t, prompt, 90 if t < 300 else 10) for t, prompt, _ in steps]
    assert hits_back(records(never), Window(0.0, 1000.0), 300.0, 300.0)[1] == inf
    always = [(t, prompt, 90) for t, prompt, _ in steps]
    assert hits_back(records(always), Window(0.0, 1000.0), 300.0, 300.0) == (0.9, 0.0)


def test_hits_are_weighted_by_tokens() -> None:
    assert hits_in(records([(1.0, 300, 300), (2.0, 100, 0), (9.0, 100, 100)]), Window(0.0, 5.0)) == 0.75
    assert np.isnan(hits_in(records([(9.0, 100, 100)]), Window(0.0, 5.0)))


def stretch(ttft_s: float) -> Phase:
    return Phase((Measure("ttft_s", "p95", ttft_s, 1.0),), 0.9)


def test_survived_means_again_or_throughout() -> None:
    loss = Loss(4, 4, 1, 10.0, stretch(0.5), stretch(2.0), stretch(0.5), 0.5, 90.0, 3)
    assert (loss.settled, loss.throughout) == (True, False)
    found = Survival(RULE, "node", "session_affinity", 1, 3, 7.5, (loss,))
    assert found.smallest is loss
    said = survival_text(found)
    assert "again 1 minute after the loss: 4 nodes, $10.00 an hour, $2.50 more than the plan's 3 nodes." in said
    assert "It misses the SLO in the first minute: TTFT p95 2 s (limit 1 s)." in said
    assert "fall to 50.0% (worst 2 minutes) and are where they were 1.5 minutes after" in said
    strict = replace(found, rule=RULE.model_copy(update={"throughout": True}))
    assert strict.smallest is None
    assert "keeps the SLO throughout: none up to 4 nodes" in survival_text(strict)
    assert found.to_dict()["fleets"][0]["settled"] is True
    json.dumps(replace(found, losses=(replace(loss, back_s=inf),)).to_dict(), allow_nan=False)


def test_a_stretch_in_words() -> None:
    assert phase_text(stretch(0.5)) == "90.0%, kept"
    assert phase_text(stretch(2.0)) == "90.0%, TTFT p95 2 s"
    assert phase_text(stretch(nan)) == "90.0%, TTFT p95"


def test_the_router_is_the_scenario_s_own_where_it_names_one() -> None:
    assert fleet(chats(), 3, 9).router_name == "session_affinity"
    named = chats().model_copy(update={"router": load_scenario("cluster-llama-mooncake").router})
    assert fleet(named, 3, 9).router_name == "prefix_aware"
    fixed = load_scenario("plan-k3", ["workload={fixed: {num_requests: 9, input_tokens: 9, output_tokens: 9}}"])
    assert fleet(fixed, 3, 9).router_name == "least_loaded"


def test_a_failing_fleet_is_planned_without_its_failures() -> None:
    asked = load_scenario("cluster-llama-failure", ["workload.duration_s=200", "plan={live_sessions: 8}"])
    best = plan(asked).best
    assert best.replicas == 1
    assert best.scenario is not None
    assert best.scenario.failures == ()


def test_the_command_says_it_and_writes_it(tmp_path: Path) -> None:
    path, target = tmp_path / "chats.json", tmp_path / "plan.json"
    path.write_text(json.dumps({**CHAT, "plan": {**CHAT["plan"], "survive": RULE.model_dump()}}))  # type: ignore[dict-item]
    args = [str(path), "--quick", "--workers", "1", "--json", str(target)]
    quick = CliRunner().invoke(plan_command, args)
    assert quick.exit_code == 0, quick.output
    assert "one node down: 2 replicas left would carry 45 sessions each, more than the 30 that" in quick.output
    assert json.loads(target.read_text())["survival"] is None
    done = CliRunner().invoke(plan_command, [*args, "--survive", "1", "--set", "plan.survive.after_s=60"])
    assert done.exit_code == 0, done.output
    assert "Losing 1 node at the peak, simulated" in done.output
    assert "one node down" not in done.output
    written = json.loads(target.read_text())["survival"]
    assert written["smallest_units"] >= 3
    assert written["rule"]["after_s"] == 60


@pytest.mark.parametrize("wrong", ["plan.survive={nodes: 0}", "plan.survive={first_s: 0}", "plan.survive={loss: 1}"])
def test_wrong_rules_are_refused(wrong: str) -> None:
    with pytest.raises(ScenarioError):
        load_scenario("plan-k3", [wrong])
