"""The fast engine: equal to the plain one and the real scheduler, whatever the workload, at a cost that stays flat."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.runs import FreePool
from kvsim.cache.tiers.config import TierConfig, WritePolicy
from kvsim.engine import core, reference
from kvsim.engine.case import EngineCase
from kvsim.engine.core_loop import Core
from kvsim.engine.types import FINISHED, REFUSED, UNFINISHED, EngineConfig, EngineRun
from kvsim.errors import InfeasibleError, ScenarioError, SimulationError
from kvsim.steptime.base import LinearStepTime
from kvsim.validate.engine_cases import check_case, find_cases
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.same import assert_same_steps
from tests.engine.strategies import KINDS, TIER_KINDS, Problem, ThreePieces, random_problem

PACKED = Path(__file__).parents[1] / "data" / "engine_cases.jsonl.gz"
BATCHES = 20
BATCH = int(os.environ.get("KVSIM_FUZZ", "2000")) // BATCHES
TIER_BATCH = max(BATCH // 2, len(TIER_KINDS))


def assert_equal(plain: EngineRun, fast: EngineRun) -> None:
    """Every decision, count and time; ``busy_s`` is a sum in another order."""
    for part, skipped in (("records", {"refusals"}), ("totals", {"counters", "busy_s", "step_sums"}),
                          ("timeline", set[str]())):
        ours, theirs = getattr(fast, part), getattr(plain, part)
        for name in theirs.__dataclass_fields__.keys() - skipped:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), f"{part}.{name}")
    assert fast.records.refusals == plain.records.refusals
    assert fast.totals.busy_s == pytest.approx(plain.totals.busy_s, rel=1e-9)
    assert plain.totals.counters.items() <= fast.totals.counters.items()
    assert_same_steps(plain.totals.step_sums, fast.totals.step_sums)


def both(problem: Problem) -> EngineRun:
    """Run both engines, compare them, return the fast one's run."""
    fast = core.run(problem.workload, problem.config, problem.step_time)
    assert_equal(reference.run(problem.workload, problem.config, problem.step_time), fast)
    return fast


def outcome(problem: Problem) -> EngineRun | None:
    """`both` where stores may bring an engine to a standstill: then both must say the same."""
    try:
        plain = reference.run(problem.workload, problem.config, problem.step_time)
    except InfeasibleError as err:
        with pytest.raises(InfeasibleError, match=re.escape(str(err))):
            core.run(problem.workload, problem.config, problem.step_time)
        return None
    fast = core.run(problem.workload, problem.config, problem.step_time)
    assert_equal(plain, fast)
    return fast


@pytest.mark.parametrize("case", [*find_cases([PACKED])], ids=lambda case: case.name)
def test_fast_engine_decides_as_the_real_scheduler(case: EngineCase) -> None:
    result = check_case(case, core.run)
    assert result.exact, str(result.difference)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_workloads_end_as_in_the_plain_engine(batch: int) -> None:
    preempting = hitting = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = random_problem(seed)
        try:
            done = both(problem)
        except AssertionError as err:
            raise AssertionError(f"random_problem({seed}) is {problem.workload.label}: {err}") from err
        preempting += done.totals.preemptions > 0
        hitting += done.totals.prompt_tokens_hit > 0
    assert preempting >= BATCH // 20, "the workloads are too tame to show anything"
    assert hitting >= BATCH // 5, "the workloads are too tame to show anything"


@settings(max_examples=100)
@given(st.integers(10**6, 10**9), st.sampled_from(KINDS))
def test_any_kind_of_workload_ends_as_in_the_plain_engine(seed: int, kind: str) -> None:
    both(random_problem(seed, kind))


def test_a_session_whose_lane_has_stopped_is_let_go_in_the_same_step() -> None:
    """Its next request would come after the stop; what another of its agents would ask before is not asked either."""
    done = both(random_problem(2006712, "hybrid"))
    assert done.records.status[6] == UNFINISHED


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_tiers_end_as_in_the_plain_engine(batch: int) -> None:
    loading = storing = jumping = 0
    for seed in range(batch * TIER_BATCH, (batch + 1) * TIER_BATCH):
        problem = random_problem(seed, TIER_KINDS[seed % len(TIER_KINDS)])
        try:
            done = outcome(problem)
        except AssertionError as err:
            raise AssertionError(f"random_problem of {problem.workload.label}: {err}") from err
        if done is not None:
            loading += any(tier.blocks_loaded for tier in done.totals.tiers)
            storing += any(tier.blocks_stored for tier in done.totals.tiers)
            jumping += done.totals.counters["jumps"] > 0
    assert loading >= TIER_BATCH // 25, "the workloads are too tame to show anything"
    assert storing >= TIER_BATCH // 3, "the workloads are too tame to show anything"
    assert jumping >= TIER_BATCH // 12, "the workloads are too tame to show anything"


@settings(max_examples=60)
@given(st.integers(10**6, 10**9), st.sampled_from(TIER_KINDS))
def test_any_kind_of_tiers_ends_as_in_the_plain_engine(seed: int, kind: str) -> None:
    outcome(random_problem(seed, kind))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 30), st.integers(0, 3)),
                min_size=1, max_size=8),
       st.integers(0, 2), st.sampled_from([0, 8, None]), st.integers(0, 40))
def test_equal_prompts_at_once(rows: list[tuple[int, int, int, int]], states: int, interval: int | None,
                               spare: int) -> None:
    """Duplicate prefixes computed side by side; shrinks to a readable workload when it fails."""
    requests = requests_from_rows([Row([(content, prompt)], output, output_content=content, arrival_s=0.25 * late)
                                   for content, prompt, output, late in rows])
    worst = int((requests.prompt_tokens + requests.output_tokens).max())
    config = EngineConfig(-(-worst // 8) + 2 * states + 1 + spare, 8, 4, 24, 128, state_groups=states,
                          retention_interval_tokens=interval)
    both(Problem(Workload(requests), config, LinearStepTime(0.25, 0.0, 0.0)))


def mooncake(path: Path, num_requests: int) -> Workload:
    """The first requests of a Mooncake trace: block ids of 512 tokens are content, outputs are unique."""
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, num_requests)]
    return Workload(requests_from_rows([
        Row([(block, 512) for block in row["hash_ids"][:-1]]
            + [(row["hash_ids"][-1], row["input_length"] - 512 * (len(row["hash_ids"]) - 1))],
            max(row["output_length"], 1), output_content=10**9 + i, arrival_s=row["timestamp"] / 1000)
        for i, row in enumerate(rows)]))


@pytest.mark.slow
def test_mooncake_trace_ends_as_in_the_plain_engine(traces: Path) -> None:
    workload = mooncake(traces / "mooncake_fast25_conversation.jsonl.gz", 300)
    done = both(Problem(workload, EngineConfig(9000, 16, 64, 8192, 131072), ThreePieces(2e-3)))
    assert done.totals.preemptions > 0
    assert done.totals.prompt_tokens_hit > 0


def one_session(num_turns: int, first_tokens: int) -> Workload:
    """A growing session: each turn's prompt goes on where the last output ended."""
    return Workload(requests_from_rows([
        Row([(0, first_tokens + 400 * turn)], 100, output_content=0, after=(turn - 1,) if turn else (), think_s=1.0)
        for turn in range(num_turns)]))


@pytest.mark.parametrize("states", [0, 3])
def test_work_does_not_depend_on_context(states: int) -> None:
    def work(first_tokens: int) -> int:
        config = EngineConfig(40_000, 16, 8, 1 << 20, 1 << 20, state_groups=states)
        counters = core.run(one_session(20, first_tokens), config, LinearStepTime(0.01, 1e-6, 0.0)).totals.counters
        return sum(counters[name] for name in ("jumps", "planned_steps", "chunk_steps", "touched_runs"))

    assert work(400_000) <= 1.05 * work(4_000)


def test_work_does_not_depend_on_output_length() -> None:
    def segments(output_tokens: int) -> int:
        workload = Workload(requests_from_rows([Row([(i, 64)], output_tokens, 100 + i) for i in range(8)]))
        config = EngineConfig(1 << 16, 16, 8, 8192, 1 << 20)
        counters = core.run(workload, config, ThreePieces(1e-6)).totals.counters
        return counters["jumps"] + counters["planned_steps"]

    assert segments(30_000) <= segments(300) + 2


@pytest.mark.parametrize("write", ["eager", "lazy"])
def test_steps_with_tiers_are_planned_for_blocks_not_for_tokens(write: WritePolicy) -> None:
    """60 turns in blocks of 1,536: about 200 prompt blocks and as many checkpoints, whatever a turn generates."""
    def planned(output_tokens: int) -> tuple[int, int]:
        rows = [Row([(s, 20_000 + 1000 * t)], output_tokens, output_content=100 + 20 * s + t, think_s=5.0,
                    after=(20 * s + t - 1,) if t else ()) for s in range(3) for t in range(20)]
        config = EngineConfig(60, 1536, 8, 16_384, 1 << 20, state_groups=3,
                              tiers=(TierConfig(2000, write, 1e-3, 1e-3),))
        done = core.run(Workload(requests_from_rows(rows)), config, LinearStepTime(0.01, 1e-6, 0.0))
        assert done.totals.tiers[0].blocks_loaded > 0
        return done.totals.counters["planned_steps"], done.totals.steps

    few, many = planned(100), planned(1000)
    assert many[1] > 6 * few[1]
    assert many[0] - few[0] < (many[1] - few[1]) / 5


def test_a_run_can_be_cut_short() -> None:
    """One step lasts 0.25 s: the first request is through, the second has two of its tokens, the third is not seen."""
    requests = requests_from_rows([Row([(0, 16)], 2, 9), Row([(1, 16)], 9, 9, arrival_s=0.4),
                                   Row([(2, 16)], 9, 9, arrival_s=0.9)])
    done = core.run(Workload(requests, until_s=0.8), EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.25, 0.0, 0.0))
    assert done.records.status.tolist() == [FINISHED, UNFINISHED, UNFINISHED]
    assert done.records.output_tokens.tolist() == [2, 2, 0]
    assert done.totals.makespan_s == 1.0
    assert np.isnan(done.records.arrival_s[2])


def test_what_can_never_be_served_is_refused_and_its_followers_go_on() -> None:
    requests = requests_from_rows([Row([(0, 5000)], 10, 9), Row([(1, 900)], 10, 9),
                                   Row([(2, 40)], 10, 9, after=(0, 1), think_s=0.5)])
    done = core.run(Workload(requests), EngineConfig(16, 16, 8, 512, 4096), LinearStepTime(0.25, 0.0, 0.0))
    assert done.records.status.tolist() == [REFUSED, REFUSED, FINISHED]
    assert done.records.refusals == {0: "prompt and output have 5010 tokens; max_model_len is 4096",
                                     1: "needs 57 blocks at its longest; the pool has 15"}
    assert done.records.arrival_s.tolist() == [0.0, 0.0, 0.5]


def test_progress_is_told() -> None:
    seen: list[float] = []
    core.run(Workload(requests_from_rows([Row([(i, 40)], 3, 99) for i in range(500)])),
             EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.01, 0.0, 0.0), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert 90 <= len(seen) <= 101


def test_impossible_settings_are_named() -> None:
    with pytest.raises(ScenarioError, match="num_blocks"):
        core.run(one_session(1, 100), EngineConfig(1, 16, 8, 512, 4096), LinearStepTime(0.01, 0.0, 0.0))


def test_nothing_to_do() -> None:
    done = core.run(Workload(requests_from_rows([])), EngineConfig(9, 16, 8, 512, 4096), LinearStepTime(0.01, 0.0, 0.0))
    assert (done.totals.steps, done.totals.makespan_s, len(done.timeline.time_s)) == (0, 0.0, 0)


def test_a_leaked_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    give = FreePool.give_nameless
    monkeypatch.setattr(FreePool, "give_nameless", lambda pool, count: give(pool, count - 1))
    with pytest.raises(SimulationError, match="used"):
        core.run(one_session(1, 100), EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.01, 0.0, 0.0))


def test_a_token_too_many_is_found() -> None:
    engine = Core(one_session(2, 100), EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.01, 0.0, 0.0), None)
    engine.hit_tokens = 1
    with pytest.raises(SimulationError, match="798 tokens were asked for, 799 were found or computed"):
        engine.run()


def test_seeds_give_different_workloads_of_every_kind() -> None:
    labels = {random_problem(seed).workload.label.split("-")[0] for seed in range(60)}
    assert labels == set(KINDS)
    assert random_problem(5).config == random_problem(5).config != random_problem(6).config
