"""The plain engine on workloads small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.blocks import BlockPool, PrefixKeys
from kvsim.engine.kv_cache import Holding, KvCache
from kvsim.engine.reference import check_config, check_times, max_blocks, run
from kvsim.engine.types import FINISHED, REFUSED, UNFINISHED, EngineConfig, EngineRun
from kvsim.errors import ScenarioError, SimulationError
from kvsim.steptime.base import LinearStepTime, Piece, StepBatch
from kvsim.workload.requests import Row, Workload, requests_from_rows

SECOND = LinearStepTime(1.0, 0.0, 0.0)


def play(rows: list[Row], config: EngineConfig, until_s: float = math.inf, idle_cap_s: float = math.inf) -> EngineRun:
    return run(Workload(requests_from_rows(rows), until_s=until_s, idle_cap_s=idle_cap_s), config, SECOND)


def small(num_blocks: int = 100, **changes: object) -> EngineConfig:
    settings_: dict[str, object] = {"num_blocks": num_blocks, "block_tokens": 4, "max_num_seqs": 8,
                                    "max_num_batched_tokens": 64, "max_model_len": 1000, **changes}
    return EngineConfig(**settings_)  # pyright: ignore[reportArgumentType]


def test_one_request_takes_a_step_a_token() -> None:
    done = play([Row([(0, 10)], 5, 1, arrival_s=2.0)], small())
    assert done.records.admitted_s.tolist() == [2.0]
    assert done.records.first_token_s.tolist() == [3.0]
    assert done.records.finish_s.tolist() == [7.0]
    totals = done.totals
    assert (totals.steps, totals.prefill_tokens_computed, totals.decode_tokens) == (5, 10, 4)
    assert (totals.makespan_s, totals.busy_s) == (7.0, 5.0)


def test_hit_ends_before_the_last_token_even_if_all_blocks_are_cached() -> None:
    done = play([Row([(0, 12)], 1, 1), Row([(0, 12)], 1, 2, after=(0,))], small())
    assert done.records.cached_tokens.tolist() == [0, 8]


def test_outputs_are_content_but_the_last_token_is_never_cached() -> None:
    turns = [Row([(0, 6)], 6, 1), Row([(0, 6), (1, 6), (2, 3)], 1, 3, after=(0,)),
             Row([(0, 6)], 7, 4), Row([(0, 6), (4, 7), (2, 3)], 1, 5, after=(2,))]
    assert play(turns[:2], small()).records.cached_tokens.tolist() == [0, 8]      # 11 computed tokens fill 2 blocks
    rows = [turns[2], Row([(0, 6), (4, 7), (2, 3)], 1, 5, after=(0,))]
    assert play(rows, small()).records.cached_tokens.tolist() == [0, 12]          # 12 computed tokens fill 3


def test_same_step_admissions_share_attention_blocks() -> None:
    done = play([Row([(0, 20)], 1, 1), Row([(0, 20), (7, 3)], 1, 2)], small())
    assert done.records.admitted_s.tolist() == [0.0, 0.0]
    assert done.records.cached_tokens.tolist() == [0, 20]


def test_a_checkpoint_is_readable_one_step_after_it_was_written() -> None:
    rows = [Row([(0, 9)], 3, 1), Row([(0, 9), (7, 3)], 1, 2)]
    done = play(rows, small(state_groups=1))
    # step 1 computes tokens 0-7 and writes the checkpoint at 8; the second request hits it in step 2
    assert done.records.admitted_s.tolist() == [0.0, 1.0]
    assert done.records.cached_tokens.tolist() == [0, 8]


def test_retention_zero_keeps_the_prompt_end_and_not_the_middle() -> None:
    rows = [Row([(0, 17)], 1, 1), Row([(0, 9), (7, 9)], 1, 2, after=(0,)), Row([(0, 17), (8, 4)], 1, 3, after=(1,))]
    assert play(rows, small(state_groups=2)).records.cached_tokens.tolist() == [0, 0, 16]


def test_dense_retention_keeps_every_chunk_end() -> None:
    rows = [Row([(0, 17)], 1, 1), Row([(0, 9), (7, 9)], 1, 2, after=(0,))]
    dense = small(state_groups=1, retention_interval_tokens=None, max_num_batched_tokens=4)
    assert play(rows, dense).records.cached_tokens.tolist() == [0, 8]
    every_8 = small(state_groups=1, retention_interval_tokens=8, max_num_batched_tokens=4)
    assert play(rows, every_8).records.cached_tokens.tolist() == [0, 8]
    every_12 = small(state_groups=1, retention_interval_tokens=12, max_num_batched_tokens=4)
    assert play(rows, every_12).records.cached_tokens.tolist() == [0, 0]


def test_second_sight_of_a_shared_prefix_makes_a_checkpoint_for_the_third() -> None:
    siblings = [Row([(0, 12), (10 + i, 9)], 1, 20 + i, after=(i - 1,) if i else ()) for i in range(3)]
    done = play(siblings, small(state_groups=1))
    assert done.records.cached_tokens.tolist() == [0, 0, 12]
    # chunks: 20+1, then junction 12 + 8 + 1, then 8 + 1
    assert done.totals.steps == 2 + 3 + 2


def test_chunks_of_hybrid_models_end_on_block_boundaries() -> None:
    done = play([Row([(0, 30)], 1, 1)], small(state_groups=1, max_num_batched_tokens=10))
    assert done.totals.steps == 5          # 8, 8, 8, 4 and the last 2
    assert play([Row([(0, 30)], 1, 1)], small(max_num_batched_tokens=10)).totals.steps == 3


def test_a_block_wider_than_the_budget_is_filled_in_several_chunks() -> None:
    done = play([Row([(0, 9)], 1, 1)], small(state_groups=1, max_num_batched_tokens=3))
    assert done.totals.steps == 5          # 3, 1, 3, 1 and the last 1


def test_preemption_takes_the_newest_and_it_finds_its_prefix_again() -> None:
    rows = [Row([(0, 12)], 9, 1), Row([(5, 12)], 9, 2)]
    done = play(rows, small(num_blocks=9))
    assert done.records.preemptions.tolist() == [0, 1]
    assert done.records.cached_tokens.tolist() == [0, 0]
    assert done.totals.preemptions == 1
    assert done.totals.counters["rehit_tokens"] > 0
    assert done.totals.prompt_tokens_queried == 24


def test_priority_overtakes_and_preempts_the_least_urgent() -> None:
    rows = [Row([(0, 12)], 9, 1, priority=2), Row([(5, 12)], 9, 2, priority=1)]
    assert play(rows, small(num_blocks=9, policy="priority")).records.preemptions.tolist() == [1, 0]
    late = [Row([(0, 8)], 4, 1), Row([(1, 8)], 4, 2, priority=3), Row([(2, 8)], 4, 3, priority=1)]
    done = play(late, small(max_num_seqs=1, policy="priority"))
    assert np.argsort(done.records.finish_s).tolist() == [0, 2, 1]


def test_whole_prompt_must_fit_before_admission() -> None:
    rows = [Row([(0, 20)], 8, 1), Row([(5, 20)], 1, 2)]
    done = play(rows, small(num_blocks=10, max_num_batched_tokens=24))
    assert done.records.admitted_s[1] == done.records.finish_s[0]


def test_impossible_requests_are_refused_and_followers_go_on() -> None:
    rows = [Row([(0, 990)], 11, 1, arrival_s=1.5), Row([(0, 100)], 1, 2, after=(0,), think_s=2.0),
            Row([(0, 12)], 2, 3, after=(1,), think_s=1.0)]
    done = play(rows, small(num_blocks=20))
    assert done.records.status.tolist() == [REFUSED, REFUSED, FINISHED]
    assert done.records.refusals == {0: "prompt and output have 1001 tokens; max_model_len is 1000",
                                     1: "needs 25 blocks at its longest; the pool has 19"}
    assert done.records.arrival_s.tolist() == [1.5, 3.5, 4.5]
    assert math.isnan(done.records.finish_s[0])


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("states", [0, 1, 3])
@pytest.mark.parametrize("total", [2, 4, 5, 9, 13, 30, 33])
def test_the_largest_request_that_is_not_refused_gets_through(states: int, total: int, caching: bool) -> None:
    config = small(state_groups=states, prefix_caching=caching, max_num_batched_tokens=8)
    exact = small(1 + max_blocks(config, total), state_groups=states, prefix_caching=caching, max_num_batched_tokens=8)
    done = play([Row([(0, total // 2)], total - total // 2, 1)], exact)
    assert done.records.status.tolist() == [FINISHED]
    assert max(done.timeline.used_blocks) <= exact.num_blocks - 1


def test_stop_time_ends_a_run_after_the_step_that_reaches_it() -> None:
    rows = [Row([(0, 8)], 10, 1), Row([(1, 8)], 3, 2, arrival_s=100.0)]
    done = play(rows, small(), until_s=3.5)
    assert done.totals.makespan_s == 4.0
    assert done.records.status.tolist() == [UNFINISHED, UNFINISHED]
    assert done.records.output_tokens.tolist() == [4, 0]
    assert math.isnan(done.records.arrival_s[1])
    idle = play(rows, small(), until_s=50.0)
    assert idle.totals.makespan_s == 10.0


def test_idle_cap_shortens_a_gap() -> None:
    rows = [Row([(0, 8)], 1, 1), Row([(1, 8)], 1, 2, arrival_s=100.0)]
    done = play(rows, small(), idle_cap_s=10.0)
    assert done.records.arrival_s.tolist() == [0.0, 11.0]


def test_timeline_rows_are_change_points_in_order() -> None:
    done = play([Row([(0, 8)], 2, 1), Row([(1, 4)], 4, 2)], small(max_num_seqs=1))
    timeline = done.timeline
    assert timeline.time_s.tolist() == [0.0, 2.0, 6.0]
    assert timeline.running.tolist() == [1, 1, 0]
    assert timeline.waiting.tolist() == [1, 0, 0]
    assert timeline.used_blocks.tolist() == [2, 1, 0]
    assert timeline.cached_blocks.tolist() == [0, 2, 3]


def test_empty_workload() -> None:
    done = play([], small())
    assert (done.totals.steps, len(done.records.status), len(done.timeline.time_s)) == (0, 0, 0)


def test_progress_reaches_one() -> None:
    seen: list[float] = []
    rows = [Row([(i, 8)], 1, 100 + i) for i in range(5)]
    run(Workload(requests_from_rows(rows)), small(), SECOND, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_step_sums_handed_to_the_time_model() -> None:
    class Spy:
        def __init__(self) -> None:
            self.batches: list[StepBatch] = []

        def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
            self.batches.append(batch)
            return ((1.0, 0.25),)

    spy = Spy()
    rows = [Row([(0, 8)], 3, 1), Row([(0, 6), (9, 1)], 1, 2, arrival_s=0.5)]
    done = run(Workload(requests_from_rows(rows)), small(), spy)
    assert spy.batches == [StepBatch(8, 1, 36, 8, 0), StepBatch(3, 1, 18, 7, 1), StepBatch(0, 0, 0, 0, 1)]
    assert done.totals.makespan_s == 1.0 + (1 + 9 / 4) + (1 + 10 / 4)


@pytest.mark.parametrize("change", [
    {"num_blocks": 1}, {"block_tokens": 0}, {"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"max_model_len": 0},
    {"retention_interval_tokens": -4}, {"retention_interval_tokens": 6}])
def test_impossible_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ScenarioError) as caught:
        check_config(small(**change))
    assert [problem.field for problem in caught.value.problems] == list(change)


def test_broken_laws_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: KvCache, holding: Holding, is_over: bool = False) -> None:
        del is_over
        holding.tables = []

    def lose(self: BlockPool, blocks: object) -> None:
        del blocks
        self.num_used = 0

    rows = [Row([(0, 8)], 2, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "release", lose)
        with pytest.raises(SimulationError, match="used"):
            play(rows, small())
    monkeypatch.setattr(KvCache, "release", forget)
    with pytest.raises(SimulationError, match=r"nothing can be scheduled|taken"):
        play([Row([(0, 8)], 2, 1), Row([(1, 40)], 2, 2, after=(0,))], small(num_blocks=12))


def test_times_out_of_order_are_an_error() -> None:
    records = play([Row([(0, 8)], 2, 1)], small()).records
    records.first_token_s[0] = 99.0
    with pytest.raises(SimulationError, match="out of order"):
        check_times(records)


def test_pool_reuses_nameless_blocks_first_then_the_longest_released() -> None:
    pool = BlockPool(6)
    a, b, c, d, e = pool.take(5)
    for block in (a, b, c):
        pool.give_name(block, (0, block))
    pool.release([c, d, b])
    pool.release([e, a])
    assert (pool.num_used, pool.num_free, pool.num_cached) == (0, 5, 3)
    assert pool.take(5) == [e, d, c, b, a]
    assert pool.num_evicted == 3
    pool.check_all()


def test_pool_hits_leave_the_queue_and_keep_their_name() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.give_name(a, (0, 7))
    pool.release([a, b])
    pool.touch([a])
    assert (pool.find((0, 7)), pool.is_free(a), pool.num_cached) == (a, False, 0)
    assert pool.take(1) == [b]
    with pytest.raises(SimulationError, match="1 blocks taken, 0 are free"):
        pool.take(1)


def test_of_equal_blocks_the_first_named_is_found() -> None:
    pool = BlockPool(4)
    a, b = pool.take(2)
    pool.give_name(b, (0, 7))
    pool.give_name(a, (0, 7))
    assert pool.find((0, 7)) == b
    pool.release([b])
    pool.take(2)
    assert pool.find((0, 7)) == a
    with pytest.raises(SimulationError, match="cannot be named"):
        pool.give_name(a, (0, 8))


pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(pieces, pieces, st.integers(1, 5))
def test_keys_are_equal_exactly_where_all_leading_tokens_are(
        one: list[tuple[int, int]], two: list[tuple[int, int]], block: int) -> None:
    rows = requests_from_rows([Row(p[:-1] or p, p[-1][1], p[-1][0]) for p in (one, two)])
    keys = PrefixKeys(block)
    chains = [keys.chain(rows.full(i)) for i in range(2)]
    tokens = [[(c, t) for c, n in rows.full(i) for t in range(n)] for i in range(2)]
    for j, (a, b) in enumerate(zip(*chains, strict=False), 1):
        assert (a == b) == (tokens[0][:j * block] == tokens[1][:j * block])
    assert [len(chain) for chain in chains] == [len(t) // block for t in tokens]
