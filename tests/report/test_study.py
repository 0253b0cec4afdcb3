"""Studies: cases, seeds and how results are told; and why a pool serves fewer agents than a division says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvsim.agents import SAFE, Live, live_blocks, safe_sessions, why_fewer
from kvsim.memory.geometry import KvGeometry
from kvsim.report.report import Report
from kvsim.resolve import resolve
from kvsim.rng import stream
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.study import COLUMNS, head_text, report_text, rows_text, run_study, run_text
from kvsim.traffic import session_trees
from tests.memory.helpers import geometry
from tests.scenario.helpers import small

STUDY = {"concurrency": [1, 3], "replications": 2}
SESSIONS = {"preset": "agentx-v1", "concurrency": 2, "duration_s": 60}


def report(**changes: Any) -> Report:
    """Report of the small scenario with changed parts."""
    return simulate(small(**changes))


def test_a_study_runs_every_case_with_every_seed() -> None:
    labels: list[str] = []
    result = run_study(Scenario.from_dict(small(study=STUDY, seed=5)), lambda label, _share: labels.append(label))
    assert [(row.concurrency, [r.run.seed for r in row.reports]) for row in result.rows] == [(1, [5, 6]), (3, [5, 6])]
    assert {"1 live, seed 5", "3 live, seed 6"} <= set(labels)
    data = result.to_dict()
    assert [(c["concurrency"], c["seed"]) for c in data["cases"]] == [(1, 5), (1, 6), (3, 5), (3, 6)]
    assert json.dumps(data)
    assert result.steps == ()  # fixed lengths have no sessions to explain


def test_one_run_is_told_as_its_report() -> None:
    result = run_study(Scenario.from_dict(small()))
    assert {k: v for k, v in result.to_dict().items() if k != "run"} == {
        k: v for k, v in report().to_dict().items() if k != "run"}
    text = run_text(result)
    assert "6 requests measured" in text
    assert "= KV pool" in text
    assert "figures used" in text
    assert "How many agents" not in text


def test_a_row_is_the_median_over_its_seeds() -> None:
    result = run_study(Scenario.from_dict(small(study=STUDY)))
    lines = rows_text(result.rows).splitlines()
    assert len(lines) == 4
    assert lines[2].split()[:2] == ["1", "0.0%"]
    assert "[0%-0%]" in lines[2]
    outputs = sorted(r.throughput.output_tokens_per_s for r in result.rows[0].reports)
    assert f"{sum(outputs) / 2:.1f}" in lines[2]
    assert all(c.title in lines[0] for c in COLUMNS)


def test_what_is_not_known_is_a_dash_and_not_nan() -> None:
    text = run_text(run_study(Scenario.from_dict(small())))
    assert "nan" not in text
    assert "prices.api names no price" in text
    paid = report_text(report(model="kimi-k3", hardware={"gpu": "b300", "num_gpus": 8}, layout={"tp": 8}))
    assert "break-even at" in paid


def test_nothing_earned_says_why() -> None:
    unpriced, missed = report(prices={}), report(prices={"api": "moonshot-k3"}, slo={"ttft_s": {"p95": 1e-6}})
    assert "what it earns is not known: prices.api names no price" in report_text(unpriced)
    assert missed.cost.revenue_usd_per_hour.hits == 0
    assert "nothing earned: no measured request keeps the SLO" in report_text(missed)


def test_a_logged_pool_is_shown_beside_the_predicted_one() -> None:
    text = head_text(resolve(load_scenario("k3-b300-study")))
    assert "Predicted pool:" in text
    assert "The pool as logged is used instead (the prediction is 9" in text
    assert "pool: 2,135 blocks of 1,536 tokens" in text
    assert "3,249,215 tokens" in text


def live(name: str, geometry_: KvGeometry, seed: int = 0) -> Live:
    """What sessions of a preset hold."""
    return live_blocks(session_trees(Scenario.from_dict(small(workload={**SESSIONS, "preset": name}))), geometry_, seed)


def test_live_sessions_hold_whole_blocks_and_their_checkpoint() -> None:
    k3 = geometry("kimi-k3", "fp8", tp=8)
    held = live("agentx-v1", k3)
    assert len(held.main) == len(held.subagents) == len(held.busy)
    stateless = replace(k3, groups=tuple(g for g in k3.groups if g.kind == "attention"))
    assert set((held.main - live("agentx-v1", stateless).main).tolist()) <= {0.0, 3.0}
    assert (held.main > live("agentx-v1", stateless).main).any()
    assert (held.main % 1 == 0).all()
    assert set(held.busy.tolist()) <= {0.0, 1.0}
    again, other = live("agentx-v1", k3), live("agentx-v1", k3, seed=1)
    assert held.main.tolist() == again.main.tolist() != other.main.tolist()


def test_larger_blocks_never_hold_less() -> None:
    """Tokens in blocks of 1,536 take at least the room that they take in blocks of 16."""
    small_blocks, large_blocks = (live("agentx-v1", g).main * g.block_tokens
                                  for g in (geometry("llama-3.1-8b"), geometry("kimi-k3", "fp8", tp=8)))
    assert large_blocks.mean() >= small_blocks.mean()


def test_why_fewer_agents_step_by_step() -> None:
    found = resolve(load_scenario("k3-b300-study"))
    steps = why_fewer(found)
    trees = session_trees(found.scenario)
    prompts = sorted(p for t in trees for p in t.prompt_tokens.tolist())
    median = (prompts[(len(prompts) - 1) // 2] + prompts[len(prompts) // 2]) / 2
    assert steps[0].sessions == pytest.approx(3_249_215 / median)
    assert steps[1].sessions == pytest.approx(2134 / math.ceil(median / 1536))
    assert steps[2].sessions == pytest.approx(2134 / (math.ceil(median / 1536) + 3))
    assert steps[3].sessions == pytest.approx(2134 / (math.ceil(median / 1536) + 6))
    assert all(a.sessions >= b.sessions for a, b in pairwise(steps[1:4]))
    assert steps[-1].what.endswith(f"{SAFE:.0%} of all moments must fit")
    assert 1 <= steps[-1].sessions < steps[0].sessions / 2


def test_a_larger_pool_is_safe_for_more_agents() -> None:
    safe = [why_fewer(resolve(load_scenario("k3-b300-study", ["engine.kv_bytes_per_gpu=null", f"engine.num_blocks={n}"])
                              ))[-1].sessions for n in (1000, 2135, 6000)]
    assert safe == sorted(safe)
    assert safe[0] < safe[-1]


@pytest.mark.parametrize("blocks", [50, 90, 200])
@pytest.mark.parametrize("seed", range(3))
def test_safe_sessions_against_the_binomial(blocks: int, seed: int) -> None:
    """Sessions that hold ten blocks half of the time: the largest n with P(10 Bin(n, 1/2) <= blocks) >= `SAFE`."""
    def fits_frac(n: int) -> float:
        return sum(math.comb(n, k) for k in range(min(n, blocks // 10) + 1)) / 2**n

    exact = max(n for n in range(1, blocks) if fits_frac(n) >= SAFE)
    assert min(abs(fits_frac(n) - SAFE) for n in (exact, exact + 1)) > 0.01, "an edge that draws could miss"
    assert safe_sessions(np.array([0.0, 10.0]), blocks, stream(seed, "test")) == exact


def test_without_states_there_is_no_checkpoint_step() -> None:
    found = resolve(Scenario.from_dict(small(workload=SESSIONS)))
    assert not any("checkpoint" in step.what for step in why_fewer(found))
