"""The parts of the fast engine: content trie, block runs, decoding sequences, clock."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.blocks import PrefixKeys
from kvsim.cache.content_trie import build_trie
from kvsim.cache.runs import CheckpointIndex, FreePool, Held, RunIndex
from kvsim.engine.core_clock import FEW_STEPS, Clock
from kvsim.engine.core_decoders import Decoders
from kvsim.engine.core_records import MANY_ROWS, TimelineColumns
from kvsim.engine.core_sequence import Sequence
from kvsim.errors import SimulationError
from kvsim.steptime.base import LinearStepTime, StepBatch, StepTimeModel, step_s
from kvsim.workload.requests import Row, requests_from_rows
from tests.engine.strategies import ThreePieces, random_problem


@pytest.mark.parametrize("seed", range(200))
def test_trie_names_the_same_blocks_as_chained_keys(seed: int) -> None:
    problem = random_problem(seed)
    requests, block = problem.workload.requests, problem.config.block_tokens
    trie, keys = build_trie(requests, block), PrefixKeys(block)
    names: dict[int, tuple[int, int]] = {}
    for i in range(len(requests)):
        blocks: list[tuple[int, int]] = []
        for chain, end in trie.path(i):
            assert trie.start_block[chain] == len(blocks) < end
            blocks += [(chain, at) for at in range(len(blocks), end)]
        assert len(blocks) == (requests.prompt_tokens[i] + requests.output_tokens[i] - 1) // block
        for key, name in zip(keys.chain(requests.full(i)), blocks, strict=False):
            assert names.setdefault(key, name) == name
    assert len(set(names.values())) == len(names)


def test_a_growing_session_is_one_chain_whatever_its_turns_generated() -> None:
    turns = requests_from_rows([Row([(7, 1000 * t)], 300, output_content=90 + t) for t in range(1, 60)])
    trie = build_trie(turns, 16)
    assert [len(trie.path(i)) for i in range(59)] == [2] * 58 + [1]
    assert trie.users[trie.path(58)[0][0]] == 59


class Pool:
    """One attention group over a pool, with chain 0 of any depth."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = FreePool(num_blocks)
        self.index = RunIndex(self.pool)

    def write(self, lo: int, hi: int) -> Held:
        held: Held = []
        self.pool.take(hi - lo)
        self.index.add(held, 0, lo, hi)
        return held

    def hit(self, limit: int) -> int:
        return self.index.leading([(0, 100)], limit)[1]


def test_eviction_eats_a_release_from_its_end() -> None:
    it = Pool(10)
    it.index.release(it.write(0, 8))
    assert (it.pool.num_free, it.pool.num_cached, it.hit(100)) == (10, 8, 8)
    it.pool.take(5)
    assert (it.hit(100), it.pool.num_evicted) == (5, 3)
    it.pool.check(5)


def test_a_hit_splits_a_run_and_leaves_the_rest_in_its_place() -> None:
    it = Pool(10)
    it.index.release(it.write(0, 8))
    held = it.index.leading([(0, 100)], 3)[0]
    it.index.hold(held)
    assert [(run.lo, run.hi, end) for run, end in held] == [(0, 3, 3)]
    it.pool.take(6)
    assert it.hit(100) == 4
    it.index.release(held)
    it.pool.check(6)
    it.pool.take(1)
    assert it.hit(100) == 3


def test_of_two_copies_the_older_is_found_and_the_younger_replaces_it() -> None:
    it = Pool(12)
    older = it.write(0, 6)
    younger = it.write(2, 6)
    assert [run.refs for run, _ in it.index.leading([(0, 100)], 100)[0]] == [1]
    it.index.release(older)
    it.index.hold(it.index.leading([(0, 100)], 2)[0])
    it.pool.take(6)
    runs, length = it.index.leading([(0, 100)], 100)
    assert length == 6
    assert all(run.refs for run, _ in runs), "the younger copy is in use"
    it.index.release(younger)
    it.pool.check(8)


def test_taking_too_much_is_an_error() -> None:
    it = Pool(4)
    with pytest.raises(SimulationError, match="more blocks taken"):
        it.pool.take(5)


def test_a_checkpoint_needs_a_block_in_every_group() -> None:
    pool = FreePool(4)
    pool.take(4)
    index = CheckpointIndex(pool, 2)
    index.release(index.write(0, 3))
    assert index.last([(0, 9)], 2) == (0, [])
    assert index.last([(0, 9)], 3)[0] == 3
    pool.take(1)
    assert index.last([(0, 9)], 3) == (0, [])
    pool.take(1)
    pool.check(4)


def test_a_checkpoint_can_be_resumed_from_blocks_of_two_copies() -> None:
    """The first group's block of the older copy is eaten: the younger copy's takes its place, the others stay."""
    pool = FreePool(7)
    pool.take(6)
    index = CheckpointIndex(pool, 3)
    older, younger = index.write(0, 5), index.write(0, 5)
    index.release(older)
    pool.take(2)
    assert index.last([(0, 9)], 9)[0] == 5
    found = index.last([(0, 9)], 9)[1]
    assert [(run.lo, end, run.refs) for run, end in found] == [(0, 2, 0), (2, 3, 1)]
    index.hold(found)
    index.release(younger)
    index.release(found)
    pool.check(2)
    pool.take(5)
    assert index.last([(0, 9)], 9) == (0, [])


def test_several_checkpoints_are_released_group_after_group() -> None:
    pool = FreePool(6)
    pool.take(6)
    index = CheckpointIndex(pool, 3)
    first, second = index.write(0, 1), index.write(0, 2)
    index.release_by_group([second, first])
    pool.take(2)
    assert index.last([(0, 9)], 9) == (0, [])
    assert [index.leading([(key, 3)], 3)[1] for key in (1, 2)] == [2, 2]


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=9),
       st.integers(0, 40), st.integers(1, 80), st.integers(0, 60))
def test_blocks_begun_are_those_that_one_step_after_the_other_begins(
        block: int, lengths: list[tuple[int, int]], done: int, steps: int, free: int) -> None:
    decoders = Decoders(block, True)
    for i, (computed, left) in enumerate(lengths):
        seq = Sequence(i, computed, left, [])
        seq.order = i
        decoders.add(seq, computed, done, done + left)
    begun = [sum((computed + k) % block == 0 for computed, _ in lengths) for k in range(steps)]
    assert [decoders.num_begun(done, k) for k in range(1, steps + 1)] == np.cumsum(begun).tolist()
    assert [decoders.count_beginning(done + 1 + k) for k in range(steps)] == begun
    assert decoders.num_fitting(done, steps, free) == int((np.cumsum(begun) <= free).sum())
    quiet = decoders.num_quiet(done, False)
    assert not any(decoders.due(done + 1 + k, False) for k in range(quiet))
    assert decoders.due(done + 1 + quiet, False)
    assert decoders.next_end() == done + min(left for _, left in lengths)


@pytest.mark.parametrize("model", [LinearStepTime(0.1, 0.0, 0.003), ThreePieces(1e-3), ThreePieces(0.7)])
@pytest.mark.parametrize("seed", range(30))
def test_clock_adds_as_one_step_after_the_other_does(model: StepTimeModel, seed: int) -> None:
    rng = random.Random(seed)
    clock, now_s = Clock(model), 0.0
    for _ in range(20):
        num, context = rng.randint(1, 40), rng.randint(1, 5000)
        steps = rng.choice([1, 3, FEW_STEPS, FEW_STEPS + 1, 400])
        bound_s = now_s + rng.random() * rng.choice([0.5, 50.0, 1e9])
        made, before_s = clock.decode(steps, num, context, bound_s), now_s
        for k in range(made):
            before_s, now_s = now_s, now_s + step_s(model, StepBatch(0, 0, 0, 0, num), context + k * num)
        assert (clock.before_s, clock.now_s) == (before_s, now_s)
        assert 1 <= made <= steps
        assert before_s < bound_s


def test_a_long_timeline_is_the_same_row_by_row_and_as_columns() -> None:
    """Older rows are packed; one of the last instant is replaced, wherever the border between them lies."""
    columns, num = TimelineColumns(), 2 * MANY_ROWS + 5
    for k in range(num):
        columns.note((0.5 * k, -1, -1, -1, -1))
        columns.note((0.5 * k, k, 0, 2 * k, 3))
    timeline = columns.timeline()
    assert len(columns) == len(timeline.time_s) == num
    assert [columns.row(k) for k in range(num)] == [(0.5 * k, k, 2 * k) for k in range(num)]
    assert timeline.running.tolist() == list(range(num))
    assert timeline.cached_blocks.tolist() == [3] * num
