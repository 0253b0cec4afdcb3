"""Tiers by themselves: links, levels, write policies, presets."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.blocks import BlockPool, find_prefix
from kvsim.cache.tiers.config import TierConfig, tier_problems
from kvsim.cache.tiers.links import Link
from kvsim.cache.tiers.presets import PRESETS, LinkRate, make_tier
from kvsim.cache.tiers.stack import PoolShape, TierStack
from kvsim.cache.tiers.writers import Computed, StepView
from kvsim.errors import ScenarioError, SimulationError

NOTHING = StepView([], [], [])
SHAPE = PoolShape(num_attention=1, num_states=0, block_tokens=16, scan_blocks=4)


def filled(pool: BlockPool, keys: list[int]) -> dict[int, int]:
    """A table of blocks that hold a prefix."""
    table = dict(enumerate(pool.take(len(keys))))
    for position, block in table.items():
        pool.give_name(block, (0, keys[position]))
    return table


def step_with(row: int, table: dict[int, int]) -> StepView:
    """A step in which one request goes on, all its blocks computed."""
    return StepView([Computed(row, len(table), len(table), [table])], [], [])


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 10)), min_size=1, max_size=20), st.floats(0, 1),
       st.floats(0, 1))
def test_a_link_carries_one_transfer_after_the_other(asked: list[tuple[int, float]], s_per_block: float,
                                                    start_s: float) -> None:
    link, now_s, last_s = Link(s_per_block, start_s), 0.0, 0.0
    for num_blocks, gap_s in asked:
        now_s += gap_s
        arrival_s = link.send(num_blocks, now_s)
        assert arrival_s >= max(last_s, now_s) + num_blocks * s_per_block - 1e-9
        last_s = arrival_s
    assert link.busy_s == pytest.approx(sum(start_s + n * s_per_block for n, _ in asked))
    assert link.busy_s <= last_s + 1e-9
    assert link.num_blocks == sum(n for n, _ in asked)


def test_nothing_is_found_before_it_has_arrived() -> None:
    pool = BlockPool(10)
    tiers = TierStack(pool, [TierConfig(10, store_s_per_block=1.0)], SHAPE)
    table = filled(pool, [5, 6])
    tiers.plan(step_with(0, table), 0.0)
    assert tiers.issue_stores(3.0)
    assert tiers.next_s() == 5.0
    tiers.take_arrived(4.999)
    assert tiers.match(1, [5, 6], 4.999) == 0
    tiers.take_arrived(5.0)
    assert tiers.match(1, [5, 6], 5.0) == 2
    assert tiers.match(1, [6], 5.0) == 1
    assert tiers.match(1, [7], 5.0) == 0


def test_a_store_holds_its_blocks_until_it_is_over() -> None:
    pool = BlockPool(3)
    tiers = TierStack(pool, [TierConfig(10, store_s_per_block=1.0)], SHAPE)
    table = filled(pool, [5, 6])
    tiers.finish(Computed(0, 2, 2, [table]), 0.0)
    pool.release(table.values())
    assert pool.num_free == 0
    tiers.plan(NOTHING, 0.0)
    tiers.issue_stores(0.0)
    tiers.take_arrived(2.0)
    assert (pool.num_free, pool.num_cached) == (2, 2)


def test_a_hit_is_held_until_the_request_asks_again() -> None:
    pool = BlockPool(10)
    tiers = TierStack(pool, [TierConfig(3)], SHAPE)
    tiers.plan(step_with(0, filled(pool, [5, 6])), 0.0)
    tiers.issue_stores(0.0)
    tiers.take_arrived(0.0)
    assert tiers.match(1, [5], 0.0) == 1
    tiers.plan(step_with(2, filled(pool, [8, 9])), 0.0)  # room for one block only: the other is held
    tiers.issue_stores(0.0)
    tiers.take_arrived(0.0)
    assert tiers.match(1, [5], 0.0) == 1
    assert (tiers.levels[0].has((0, 6)), tiers.levels[0].has((0, 8))) == (False, True)
    assert tiers.match(1, [], 0.0) == 0
    assert tiers.levels[0].room == 2


def test_lower_tiers_get_what_arrives_above() -> None:
    pool = BlockPool(10)
    configs = [TierConfig(10, store_s_per_block=1.0), TierConfig(10, store_s_per_block=2.0, kind="pool")]
    tiers = TierStack(pool, configs, SHAPE)
    tiers.plan(step_with(0, filled(pool, [5, 6])), 0.0)
    tiers.issue_stores(0.0)
    tiers.take_arrived(2.0)
    assert not tiers.levels[1].has((0, 5))
    tiers.plan(NOTHING, 3.0)
    tiers.issue_stores(3.0)
    assert tiers.next_s() == 7.0
    tiers.take_arrived(7.0)
    assert [level.has((0, 6)) for level in tiers.levels] == [True, True]
    assert [total.blocks_resident for total in tiers.totals()] == [2, 2]


def test_evictions_run_down_the_levels() -> None:
    pool = BlockPool(3)
    tiers = TierStack(pool, [TierConfig(3, "on-eviction"), TierConfig(10, "on-eviction", kind="nvme")], SHAPE)
    for keys in ([1, 2], [3, 4], [5, 6]):
        pool.release(reversed(filled(pool, keys).values()))
        tiers.plan(NOTHING, 0.0)
        tiers.issue_stores(0.0)
        tiers.take_arrived(0.0)
    assert [[level.has((0, key)) for key in range(1, 7)] for level in tiers.levels] == [
        [False, False, True, True, False, False], [True, True, False, False, False, False]]


def test_of_equal_blocks_only_the_last_eviction_counts() -> None:
    pool = BlockPool(3)
    seen: list[tuple[int, int]] = []
    pool.on_evict = seen.append
    both = pool.take(2)
    for block in both:
        pool.give_name(block, (0, 7))
    pool.release(both)
    pool.take(1)
    assert seen == []
    pool.take(1)
    assert seen == [(0, 7)]


def test_blocks_that_get_lost_are_noticed() -> None:
    tiers = TierStack(BlockPool(4), [TierConfig(4)], SHAPE)
    tiers.levels[0].pool.give_name(tiers.levels[0].pool.take(1)[0], (0, 1))
    with pytest.raises(SimulationError, match="0 blocks came in, 0 went out, 1 are there"):
        tiers.totals()


def test_checkpoints_and_attention_may_lie_in_different_tiers() -> None:
    where = {(0, 1): "dram", (0, 2): "nvme", (1, 2): "nvme", (1, 1): "dram"}
    found = find_prefix(where.get, 1, 1, [1, 2, 3])
    assert (found.length, found.blocks) == (2, [{0: "dram", 1: "nvme"}, {1: "nvme"}])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_make_tiers_that_can_work(name: str) -> None:
    tier = make_tier(name, 1e9, 1_000_000, LinkRate(50e9, 0.5, 1e-4), LinkRate(25e9))
    assert tier_problems([tier]) == []
    assert (tier.num_blocks, tier.load_s_per_block, tier.store_s_per_block) == (1000, 4e-5, 4e-5)
    rules = {"num_blocks": 0, "block_bytes": 0, "load_s_per_block": 0.0, "store_s_per_block": 0.0, "load_start_s": 0.0}
    assert dataclasses.replace(tier, **rules) == PRESETS[name].config
    assert PRESETS[name].note


@pytest.mark.parametrize(("changes", "field"), [
    ({"preset": "lmcahe"}, "did you mean 'lmcache'"), ({"capacity_bytes": -1.0}, "capacity_bytes"),
    ({"read": LinkRate(0.0)}, "read.bytes_per_s.*no bandwidth"), ({"write": LinkRate(1e9, 0.0)}, "write.efficiency"),
    ({"block_bytes": 0}, "block_bytes"), ({"write": LinkRate(1e9, 1.0, math.inf)}, "write.start_s")])
def test_impossible_tiers_are_explained(changes: dict[str, object], field: str) -> None:
    good: dict[str, object] = {"preset": "lmcache", "capacity_bytes": 1e9, "block_bytes": 1000, "read": LinkRate(1e9),
                               "write": LinkRate(1e9)}
    with pytest.raises(ScenarioError, match=field):
        make_tier(**{**good, **changes})  # pyright: ignore[reportArgumentType]


def test_a_tier_without_room_for_a_block_is_none() -> None:
    assert make_tier("trtllm", 999, 1000, LinkRate(1e9), LinkRate(1e9)).num_blocks == 0
