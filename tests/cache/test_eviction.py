"""Eviction policies at a pool of blocks: hand-made orders, and laws over every policy on fixed streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.blocks import BlockPool
from kvsim.cache.curves.curves import run_curves
from kvsim.cache.eviction.base import Eviction, Facts, Release
from kvsim.cache.eviction.config import KINDS, EvictionConfig, EvictionKind
from kvsim.cache.eviction.future import ChainFuture, PlainFuture
from kvsim.cache.eviction.lru import Lru
from kvsim.cache.eviction.make import make_eviction
from kvsim.cache.eviction.pinning import PinSessions
from kvsim.workload.table import Entry, TraceBuilder

STREAMS = st.lists(st.integers(0, 9), min_size=1, max_size=60)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


class Stream:
    """A cache of single blocks: one request an access, a second apart; a miss is always let in."""

    def __init__(self, keys: Sequence[int], capacity: int, config: EvictionConfig) -> None:
        self.now_s = 0.0
        future = PlainFuture((row, [key]) for row, key in enumerate(keys))
        facts = Facts(capacity + 1, lambda: self.now_s, [key % 3 for key in keys], [key % 2 for key in keys],
                      lambda tokens: 1e-3 * tokens * (1 + tokens), future)
        self.policy = make_eviction(config, facts)
        self.pool = BlockPool(capacity + 1, self.policy)
        self.hits = self.misses = 0
        for row, key in enumerate(keys):
            self.now_s = float(row)
            self.access(row, key)

    def access(self, row: int, key: int) -> None:
        self.pool.expire()
        block = self.pool.find((0, key))
        if block is not None:
            self.hits += 1
            self.pool.touch([block])
            self.policy.used(block, row)
            self.policy.admitted(row)
        else:
            self.misses += 1
            self.policy.admitted(row)
            block = self.pool.take(1)[0]
            self.pool.give_name(block, (0, key))
        self.policy.releasing(Release(row, 16 * (1 + key), 1 + key, 1, True, True))
        self.pool.release([block])
        self.policy.releasing(None)
        self.policy.ended(row)
        self.pool.check_all()


def hits(keys: Sequence[int], capacity: int, kind: EvictionKind, **parameters: float) -> int:
    return Stream(keys, capacity, EvictionConfig(kind, **parameters)).hits  # pyright: ignore[reportArgumentType]


@EVERY_KIND
@settings(max_examples=40)
@given(keys=STREAMS, capacity=st.integers(1, 10))
def test_what_came_in_went_out_or_is_there(kind: EvictionKind, keys: list[int], capacity: int) -> None:
    done = Stream(keys, capacity, EvictionConfig(kind, ttl_s=7.0))
    assert done.misses == done.pool.num_evicted + done.pool.num_named
    assert done.pool.num_named <= capacity


@EVERY_KIND
@settings(max_examples=60)
@given(keys=STREAMS, capacity=st.integers(1, 8))
def test_nobody_beats_the_one_who_knows_the_future(kind: EvictionKind, keys: list[int], capacity: int) -> None:
    assert hits(keys, capacity, kind) <= hits(keys, capacity, "belady")


@settings(max_examples=60)
@given(STREAMS, st.integers(1, 8))
def test_more_capacity_never_costs_hits_of_lru_or_the_bound(keys: list[int], capacity: int) -> None:
    for kind in ("lru", "belady"):
        assert hits(keys, capacity, kind) <= hits(keys, capacity + 1, kind)


@EVERY_KIND
@settings(max_examples=20)
@given(keys=STREAMS)
def test_with_room_for_all_every_policy_finds_all(kind: EvictionKind, keys: list[int]) -> None:
    assert hits(keys, 10, kind, ttl_s=1e9) == len(keys) - len(set(keys))


@settings(max_examples=60)
@given(STREAMS, st.integers(1, 8), st.floats(0.5, 70.0))
def test_a_time_to_live_only_takes_away(keys: list[int], capacity: int, ttl_s: float) -> None:
    assert hits(keys, capacity, "ttl", ttl_s=ttl_s) <= hits(keys, capacity, "lru")
    assert hits(keys, capacity, "ttl", ttl_s=1e9) == hits(keys, capacity, "lru")


def hits_of_lru_by_stack_distance(keys: Sequence[int], capacity: int) -> int:
    found = 0
    for i, key in enumerate(keys):
        earlier = keys[:i]
        if key in earlier:
            last = i - 1 - earlier[::-1].index(key)
            found += len(set(keys[last + 1:i])) < capacity
    return found


@settings(max_examples=60)
@given(STREAMS, st.integers(1, 8))
def test_lru_is_stack_distance(keys: list[int], capacity: int) -> None:
    assert hits(keys, capacity, "lru") == hits_of_lru_by_stack_distance(keys, capacity)


@settings(max_examples=60)
@given(STREAMS, st.integers(1, 8))
def test_a_pool_and_a_curve_mean_the_same_by_s3fifo(keys: list[int], capacity: int) -> None:
    builder = TraceBuilder()
    for i, key in enumerate(keys):
        builder.add(Entry(float(i), 16, 1, "a", [(key, 16)], 1000 + i))
    trace = replace(builder.build("")[0], knowledge="blocks", block_tokens=16)
    row = run_curves(trace, ["s3fifo"], [capacity]).rows[0]
    expected = len(keys) - len(set(keys)) if capacity >= len(set(keys)) else hits(keys, capacity, "s3fifo")
    assert row.plain_hits == row.hit_blocks == expected


OPERATIONS = st.lists(st.tuples(st.sampled_from(["take", "release", "touch"]), st.integers(0, 20)), max_size=60)


@settings(max_examples=80)
@given(OPERATIONS)
def test_the_pools_own_order_is_lru(operations: list[tuple[str, int]]) -> None:
    pools = [BlockPool(7), BlockPool(7, Lru())]
    held: list[list[tuple[int, int]]] = [[], []]
    for step, (what, number) in enumerate(operations):
        for pool, mine in zip(pools, held, strict=True):
            operate(pool, mine, what, number, step)
        own, policys = ([name for name in range(60) if pool.find((0, name)) is not None] for pool in pools)
        assert own == policys
        assert pools[0].num_cached == pools[1].num_cached


def operate(pool: BlockPool, held: list[tuple[int, int]], what: str, number: int, step: int) -> None:
    """Take and name a block, give one back, or refer to a named one again; (name, block) are held."""
    if what == "take" and pool.num_free:
        block = pool.take(1)[0]
        pool.give_name(block, (0, step))
        held.append((step, block))
    elif what == "release" and held:
        pool.release([held.pop(number % len(held))[1]])
    elif what == "touch":
        named = [name for name in range(step) if pool.find((0, name)) is not None]
        if named:
            block = pool.find((0, named[number % len(named)]))
            assert block is not None
            pool.touch([block])
            held.append((named[number % len(named)], block))


def queue(policy: Eviction, row: int, *blocks: int, is_over: bool = True) -> None:
    """A request gives blocks back, last one first."""
    policy.releasing(Release(row, 16 * len(blocks), len(blocks), len(blocks), True, is_over))
    for block in blocks:
        policy.freed(block, (0, block))
    policy.releasing(None)


def order(policy: Eviction, count: int) -> list[int]:
    """What would be lost, first to last."""
    found: list[int] = []
    for _ in range(count):
        found.append(policy.evict())
        policy.forgotten(found[-1])
    return found


def find_again(policy: Eviction, row: int, *blocks: int) -> None:
    for block in blocks:
        policy.taken(block)
        policy.used(block, row)
    policy.admitted(row)


def facts(now_s: Callable[[], float] = lambda: 0.0, num_blocks: int = 21, future: PlainFuture | None = None) -> Facts:
    return Facts(num_blocks, now_s, [0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 3, 3, 1, 1], lambda n: n * n / 1e6, future)


def test_s3fifo_keeps_what_was_found_twice_and_remembers_what_it_lost() -> None:
    policy = make_eviction(EvictionConfig("s3fifo", small_frac=0.1), facts())
    queue(policy, 0, 1, 2, 3)
    for _ in range(2):
        find_again(policy, 1, 2)
        queue(policy, 1, 2)
    assert order(policy, 1) == [1]
    queue(policy, 3, 8)
    policy.releasing(Release(3, 16, 1, 1, True, True))
    policy.freed(9, (0, 1))  # a block with the lost name enters the main queue at once, before 2 moves there
    # The small queue has more than its share (2 of 20) until 3 is lost; then it is the main queue's turn.
    assert order(policy, 4) == [3, 9, 2, 8]


def test_a_pinned_session_loses_nothing_to_others_until_it_ends() -> None:
    policy = PinSessions(facts(num_blocks=11), share_frac=0.5, ttl_s=60.0)
    queue(policy, 0, 3, 2, 1)
    queue(policy, 3, 6, 5, 4)    # three more do not fit into half of ten blocks
    assert (policy.num_reserved(3), policy.num_reserved(1)) == (3, 0)
    assert order(policy, 4) == [6, 5, 4, 3]
    for row in (0, 1, 2):
        policy.ended(row)
    assert policy.num_reserved(3) == 0


def test_a_pin_keeps_its_room_while_its_session_computes() -> None:
    policy = PinSessions(facts(num_blocks=11), share_frac=0.5, ttl_s=60.0)
    queue(policy, 0, 3, 2, 1)
    find_again(policy, 1, 1, 2, 3)
    queue(policy, 3, 6, 5, 4)
    assert policy.num_reserved(1) == 0
    queue(policy, 1, 7, 3, 2, 1)
    assert policy.num_reserved(4) == 4


def test_pins_end_in_time_and_blocks_go_back_to_their_place() -> None:
    now = [0.0]
    policy = PinSessions(facts(lambda: now[0], num_blocks=11), share_frac=0.5, ttl_s=60.0)
    queue(policy, 0, 2, 1)
    now[0] = 10.0
    queue(policy, 3, 6, 5, 4, 3)
    assert policy.next_s() == 60.0
    now[0] = 60.0
    assert (policy.expire(), policy.num_reserved(3)) == ([], 0)
    assert order(policy, 6) == [2, 1, 6, 5, 4, 3]


def test_what_a_transfer_takes_comes_back_pinned() -> None:
    policy = PinSessions(facts(num_blocks=11), share_frac=0.5, ttl_s=60.0)
    queue(policy, 0, 2, 1)
    policy.taken(1)
    assert policy.num_reserved(3) == 1
    policy.freed(1, (0, 1))
    assert policy.num_reserved(3) == 2


def test_what_was_preempted_is_needed_first() -> None:
    future = PlainFuture([(0, [1, 2]), (1, [1]), (2, [7])])
    policy = make_eviction(EvictionConfig("belady"), facts(future=future))
    policy.admitted(0)
    queue(policy, 0, 2, 1, is_over=False)
    policy.releasing(Release(6, 16, 1, 1, True, True))
    policy.freed(7, (0, 7))
    assert order(policy, 3) == [7, 2, 1]


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8))
def test_chains_know_the_same_future(prompts: list[list[int]]) -> None:
    """A prompt is a path in the ternary tree; each edge is a chain of one block."""
    names: dict[tuple[int, ...], int] = {}
    keys = [[names.setdefault(tuple(p[:n + 1]), len(names)) for n in range(len(p))] for p in prompts]
    plain = PlainFuture(enumerate(keys))
    chains = ChainFuture(enumerate([[(key, n + 1) for n, key in enumerate(path)] for path in keys]), 100)
    for row in range(len(prompts)):
        for path in keys:
            for n, key in enumerate(path):
                assert plain.next_use(key) == chains.next_use(100 * key + n)
        assert plain.admitted(row) == chains.admitted(row)


def test_the_bound_needs_a_future() -> None:
    with pytest.raises(ValueError, match="future"):
        make_eviction(EvictionConfig("belady"), facts())
