"""Drafts in the engines: the pace, the plain engine by hand, and the fast engine equal to it."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.tiers.config import TierConfig
from kvsim.engine import core, reference
from kvsim.engine.pace import Drafting
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.errors import ScenarioError
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.drafts.problems import KINDS, drafted_problem
from tests.engine.test_core import assert_equal

BATCHES = 10
BATCH = int(os.environ.get("KVSIM_FUZZ", "2000")) // BATCHES // 2
STEP = LinearStepTime(0.01, 0.0, 0.0)


def one(prompt: int, output: int, config: EngineConfig) -> EngineRun:
    return reference.run(Workload(requests_from_rows([Row([(0, prompt)], output, 0)])), config, STEP)


@given(st.integers(1, 15), st.floats(0, 1), st.integers(0, 10**6))
def test_pace(tokens: int, share: float, steps: int) -> None:
    drafting = Drafting.of(tokens, 1.0 + share * tokens)
    gain = drafting.given(steps + 1) - drafting.given(steps)
    assert 1 <= gain <= drafting.width
    assert 0 <= steps * drafting.numerator - drafting.given(steps) * drafting.denominator < drafting.denominator
    assert drafting.steps_for(drafting.given(steps)) <= steps
    assert drafting.given(drafting.steps_for(steps)) >= steps
    assert drafting.given(drafting.steps_for(steps + 1) - 1) < steps + 1
    assert drafting.tokens <= drafting.ahead_tokens <= 2 * drafting.tokens
    assert drafting.length == pytest.approx(1.0 + share * tokens, abs=1e-3)


def test_steps_of_a_lone_request() -> None:
    config = EngineConfig(64, 16, 4, 512, 4096, drafting=Drafting.of(3, 2.5))
    done = one(100, 51, config)
    # One step for the prompt and the first token; then 50 tokens at 2.5 a step.
    assert done.totals.steps == 1 + 20
    assert done.totals.decode_tokens == 50
    assert done.records.finish_s[0] == pytest.approx(0.21)
    assert done.records.output_tokens[0] == 51


def test_a_last_step_gives_no_more_than_was_asked_for() -> None:
    done = one(100, 4, EngineConfig(64, 16, 4, 512, 4096, drafting=Drafting.of(7, 8.0)))
    assert (done.totals.steps, done.totals.decode_tokens, done.records.output_tokens[0]) == (2, 3, 4)


def test_slots_and_states_for_drafts() -> None:
    # 32 prompt tokens: 2 blocks; with 2 x 3 + 1 - 2 = 5 slots ahead a third, and 3 states a group beside the running.
    plain = EngineConfig(64, 16, 4, 512, 4096, prefix_caching=False, state_groups=2)
    assert max(one(32, 1, plain).timeline.used_blocks) == 2 + 2
    assert max(one(32, 1, replace(plain, drafting=Drafting.of(3, 2.5))).timeline.used_blocks) == 3 + 2 * (1 + 3)


@pytest.mark.parametrize(("states", "drops", "cached"), [(0, False, 96), (0, True, 80), (1, False, 96), (1, True, 80)])
def test_a_hit_loses_its_last_block(states: int, drops: bool, cached: int) -> None:
    turns = requests_from_rows([Row([(0, 100)], 1, 0), Row([(0, 140)], 1, 0, after=(0,))])
    config = EngineConfig(64, 16, 4, 512, 4096, state_groups=states, drafting=Drafting.of(1, 2.0, drops))
    assert reference.run(Workload(turns), config, STEP).records.cached_tokens.tolist() == [0, cached]


def test_drafts_use_up_the_budget_of_a_step() -> None:
    rows = requests_from_rows([Row([(i, 10)], 9, 0) for i in range(4)])
    config = EngineConfig(64, 16, 4, 40, 4096, drafting=Drafting.of(3, 4.0))
    wide = reference.run(Workload(rows), config, STEP)
    narrow = reference.run(Workload(rows), replace(config, max_num_batched_tokens=8), STEP)
    assert wide.totals.steps == 3
    # 8 tokens a step: prompts in pieces, and two sequences of 4 tokens at once.
    assert narrow.totals.steps > 3 + 2
    assert narrow.totals.decode_tokens == wide.totals.decode_tokens == 4 * 8


def test_what_no_engine_can_start_with() -> None:
    config = EngineConfig(64, 4, 4, 4, 4096, drafting=Drafting.of(7, 2.0))
    with pytest.raises(ScenarioError, match="7 draft tokens; accepted: 8 or more") as caught:
        core.run(Workload(requests_from_rows([Row([(0, 4)], 4, 0)])), config, STEP)
    assert {p.field for p in caught.value.problems} == {"block_tokens", "max_num_batched_tokens"}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_fast_engine_equals_plain_engine(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = drafted_problem(seed)
        args = problem.workload, problem.config, problem.step_time
        assert_equal(reference.run(*args), core.run(*args))


@settings(deadline=None)
@given(st.integers(10**6, 10**9), st.sampled_from(KINDS))
def test_fast_engine_equals_plain_engine_anywhere(seed: int, kind: str) -> None:
    problem = drafted_problem(seed, kind)
    args = problem.workload, problem.config, problem.step_time
    assert_equal(reference.run(*args), core.run(*args))


@pytest.mark.parametrize("seed", range(20))
def test_hopeless_drafts_cost_steps_nothing_but_room(seed: int) -> None:
    """With a length of 1 and room for everything, every request ends when it would without drafts."""
    problem = drafted_problem(seed, "nocache")
    roomy = replace(problem.config, num_blocks=10_000, max_num_batched_tokens=10_000)
    drafted = replace(roomy, drafting=Drafting.of(problem.config.drafting.tokens, 1.0))  # pyright: ignore[reportOptionalMemberAccess]
    plain, slow = (core.run(problem.workload, c, STEP).records for c in (replace(roomy, drafting=None), drafted))
    np.testing.assert_array_equal(plain.finish_s, slow.finish_s)


def test_above_tiers_the_plain_engine_runs() -> None:
    turns = Workload(requests_from_rows([Row([(0, 100)], 20, 0), Row([(0, 150)], 20, 0, after=(0,))]))
    config = EngineConfig(16, 16, 4, 512, 4096, tiers=(TierConfig(100, "eager", 1e-3, 1e-3, block_bytes=7),),
                          drafting=Drafting.of(3, 2.5))
    assert core.needs_plain(config)
    assert not core.needs_plain(replace(config, tiers=()))
    fast, plain = core.run(turns, config, STEP), reference.run(turns, config, STEP)
    assert fast.records.finish_s.tolist() == plain.records.finish_s.tolist()


def test_time_passes_in_jumps() -> None:
    rows = requests_from_rows([Row([(i, 100)], 20_000, 0) for i in range(4)])
    config = EngineConfig(100_000, 16, 8, 8192, 100_000, drafting=Drafting.of(7, 3.84))
    done = core.run(Workload(rows), config, LinearStepTime(0.01, 1e-5, 1e-4))
    assert done.totals.counters["jumps"] <= 8
    assert done.totals.steps == pytest.approx(19_999 / 3.84, abs=3)
