"""Hit-rate curves against a simulation block by block, over random trees of prompts."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.curves.curves import POLICIES, Play, parse_capacities, run_curves
from kvsim.cache.curves.delay import delayed_hits
from kvsim.cache.curves.lanes import lanes_order
from kvsim.cache.curves.paths import paths_of, segments_of
from kvsim.errors import TraceError
from kvsim.workload.requests import merge
from kvsim.workload.table import Entry, Trace, TraceBuilder

Prompt = list[tuple[int, int]]
BLOCK = 16


def trace_of(prompts: Sequence[Prompt], times: Sequence[float] | None = None, extra_tokens: int = 0) -> Trace:
    """A trace of prompts given as (content, blocks); `extra_tokens` are appended to each as an incomplete block."""
    builder = TraceBuilder(num_contents=1000)
    for k, prompt in enumerate(prompts):
        pieces = [(c, n * BLOCK) for c, n in prompt]
        pieces += [(builder.fresh(), extra_tokens)] if extra_tokens else []
        builder.add(Entry(times[k] if times else k, sum(n for _, n in pieces), 1, str(k), pieces, builder.fresh()))
    return replace(builder.build("test")[0], knowledge="blocks", block_tokens=BLOCK)


def blocks_of(prompt: Prompt) -> list[Hashable]:
    """Every block of a prompt, known by its whole prefix."""
    merged = merge(prompt)
    return [(tuple(merged[:k]), content, j) for k, (content, n) in enumerate(merged) for j in range(n)]


class Cache:
    """One block at a time: the rules as they are written, without any cleverness."""

    def __init__(self, policy: str, capacity: float, stream: list[Hashable]) -> None:
        self.policy, self.capacity = policy, capacity
        self.held: OrderedDict[Hashable, int] = OrderedDict()
        self.stream, self.clock = stream, 0
        self.used: dict[Hashable, int] = {}

    def access(self, block: Hashable) -> bool:
        """Use a block; returns whether it was there."""
        self.clock += 1
        hit = block in self.held
        if hit:
            self.held[block] += 1
            if self.policy in ("lru", "lru_tail"):
                self.held.move_to_end(block)
        else:
            if len(self.held) >= self.capacity:
                del self.held[self.victim()]
            self.held[block] = 1
        self.used[block] = self.clock
        return hit

    def victim(self) -> Hashable:
        """The block to be evicted."""
        if self.policy == "lfu":
            return min(self.held, key=lambda b: (self.held[b], self.used[b]))
        if self.policy == "belady":
            return max(self.held, key=self.next_use)
        return next(iter(self.held))

    def next_use(self, block: Hashable) -> float:
        """Place of the next use in the stream, from the access in hand on."""
        try:
            return self.stream.index(block, self.clock)
        except ValueError:
            return math.inf


def by_hand(prompts: Sequence[Prompt], policy: str, capacity: float) -> tuple[int, int]:
    """Blocks of leading resident runs, and hits one by one."""
    paths = [blocks_of(p) for p in prompts]
    cache = Cache(policy, capacity, [b for path in paths for b in path])
    prefix = plain = 0
    for path in paths:
        for block in path:
            if block not in cache.held:
                break
            prefix += 1
        plain += sum(cache.access(block) for block in (reversed(path) if policy == "lru_tail" else path))
    return prefix, plain


prompts_strategy = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=0, max_size=4),
                            min_size=1, max_size=14)


@pytest.mark.theory
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=120, deadline=None)
@given(prompts_strategy, st.integers(1, 12))
def test_policies_agree_with_a_simulation_block_by_block(policy: str, prompts: list[Prompt], capacity: int) -> None:
    row = run_curves(trace_of(prompts), [policy], [capacity]).rows[0]
    assert (row.hit_blocks, row.plain_hits) == by_hand(prompts, policy, capacity)


@settings(max_examples=80, deadline=None)
@given(prompts_strategy, st.lists(st.integers(0, 4), min_size=14, max_size=14), st.integers(0, 6))
def test_delay_agrees_with_first_times(prompts: list[Prompt], steps: list[int], delay: int) -> None:
    times = np.cumsum(steps[:len(prompts)]).astype(float).tolist()
    for delay_s in (float(delay), None):
        first: dict[Hashable, float] = {}
        expected: list[int] = []
        for prompt, now in zip(prompts, times, strict=True):
            path = blocks_of(prompt)
            late = [k for k, b in enumerate(path) if b not in first or not (
                now > first[b] if delay_s is None else now >= first[b] + delay_s)]
            expected.append(late[0] if late else len(path))
            for block in path:
                first.setdefault(block, now)
        trace = trace_of(prompts, times)
        found = delayed_hits(paths_of(trace), np.arange(len(trace)), np.array(times), delay_s)
        assert found.tolist() == expected


@settings(max_examples=60, deadline=None)
@given(prompts_strategy, st.integers(0, 15))
def test_laws_of_every_curve(prompts: list[Prompt], extra_tokens: int) -> None:
    capacities = [1, 2, 3, 5, 8, 13, 21, math.inf]
    trace = trace_of(prompts, extra_tokens=extra_tokens)
    rows = {(r.policy, r.capacity_blocks): r for r in run_curves(trace, POLICIES, capacities).rows}
    for policy in POLICIES:
        mine = [rows[policy, c] for c in capacities]
        assert all(r.hit_blocks <= rows["lru", math.inf].hit_blocks for r in mine)
        assert all(0 <= r.token_full_hit_rate <= r.token_hit_rate <= 1 for r in mine)
        assert all(r.hit_blocks <= r.plain_hits for r in mine if policy != "lru_tail")
        # Tail first is another stream of accesses, for which this Belady is no bound.
        assert all(r.plain_hits <= rows["belady", r.capacity_blocks].plain_hits for r in mine if policy != "lru_tail")
    # More room never hurts a stack algorithm.
    for policy in ("lru", "lru_tail"):
        hits = [rows[policy, c].hit_blocks for c in capacities]
        assert hits == sorted(hits)
    assert all(rows["lru", c].hit_blocks == rows["lru", c].plain_hits for c in capacities)


def test_segments_cover_the_tree_once() -> None:
    paths = paths_of(trace_of([[(0, 5), (1, 2)], [(0, 3), (2, 2)], [(0, 5)], [(0, 8)]]))
    cut = segments_of(paths)
    assert int(cut.length.sum()) == paths.num_blocks == 8 + 2 + 2
    assert [int(cut.length[cut.of(paths, i)].sum()) for i in range(4)] == [7, 5, 5, 8]


def test_branch_inside_a_block_makes_the_block_another_one() -> None:
    builder = TraceBuilder(num_contents=9)
    for pieces in ([(0, 40)], [(0, 20), (1, 20)], [(0, 24), (1, 16)], [(0, 20), (1, 30)]):
        builder.add(Entry(0.0, sum(n for _, n in pieces), 1, "a", pieces, 8))
    trace = replace(builder.build("")[0], knowledge="sessions")
    rows = run_curves(trace, ["lru"], [math.inf], block_tokens=16).rows
    # Blocks of 16: the second block ends at 32, beyond the branches at 20 and 24.
    assert rows[0].hit_blocks == 0 + 1 + 1 + 2


def test_incomplete_last_blocks_count_where_the_record_counts_them() -> None:
    builder = TraceBuilder(num_contents=9)
    for _ in range(2):
        builder.add(Entry(0.0, 40, 1, "a", [(0, 40)], 8))
    full = replace(builder.build("")[0], knowledge="blocks", block_tokens=16)
    row = run_curves(full, ["lru"], [math.inf]).rows[0]
    assert (row.hit_blocks, row.token_hit_rate) == (2, 32 / 80)
    row = run_curves(replace(full, partial_blocks=True), ["lru"], [math.inf]).rows[0]
    assert (row.hit_blocks, row.token_hit_rate, row.token_full_hit_rate) == (3, 40 / 80, 32 / 80)


def sessions_of_turns(gaps: Sequence[Sequence[float]]) -> Trace:
    builder = TraceBuilder()
    for s, times in enumerate(gaps):
        content = builder.fresh()
        for k, t in enumerate(np.cumsum(times).tolist()):
            builder.add(Entry(t, BLOCK * (k + 1), 1, str(s), [(content, BLOCK * (k + 1))], content))
    trace = builder.build("sessions")[0]
    order = np.lexsort((trace.time_s, trace.session))
    return replace(trace, clock="session", knowledge="blocks", block_tokens=BLOCK, session=trace.session[order],
                   time_s=trace.time_s[order], piece_content=trace.piece_content[order],
                   piece_tokens=trace.piece_tokens[order], input_tokens=trace.input_tokens[order])


def test_lanes_take_sessions_in_turn_with_capped_gaps() -> None:
    trace = sessions_of_turns([[0, 10, 1000], [0, 5], [0, 7]])
    order, time_s = lanes_order(trace, 2)
    assert time_s.tolist() == [0.0, 10.0, 310.0, 0.0, 5.0, 5.0, 12.0]
    # At 5 s the lower place in its session comes first: the new session's first request.
    assert order.tolist() == [0, 3, 5, 4, 1, 6, 2]
    with pytest.raises(TraceError):
        lanes_order(trace, 0)


def test_more_lanes_share_the_cache() -> None:
    trace = sessions_of_turns([[0, *[10.0] * 9]] * 6)
    hits = [run_curves(trace, ["lru"], [12], Play(lanes=n)).rows[0].hit_blocks for n in (1, 2, 6)]
    assert hits[0] == 6 * 45
    assert hits[0] > hits[1] > hits[2] >= 0


def test_results_as_data_and_text() -> None:
    trace = trace_of([[(0, 4)], [(1, 4)], [(0, 4)]])
    curves = run_curves(trace, ["opt", "lru"], [4, math.inf])
    data = json.loads(json.dumps(curves.to_dict()))
    assert [(r["policy"], r["capacity_blocks"]) for r in data["rows"]] == [
        ("belady", 4), ("lru", 4), ("belady", "inf"), ("lru", "inf")]
    assert set(data["rows"][0]) == {
        "policy", "capacity_blocks", "block_hit_rate", "token_hit_rate", "token_full_hit_rate",
        "block_plain_hit_rate", "hit_blocks", "plain_hits"}
    assert data["rows"][2]["hit_blocks"] == 4
    assert curves.to_csv().splitlines()[0].startswith("policy,capacity_blocks,")
    assert len(curves.to_csv().splitlines()) == 5
    assert "33.3333%" in curves.text()
    delayed = run_curves(trace, play=Play(strict=True))
    assert [(r.policy, r.capacity_blocks, r.hit_blocks) for r in delayed.rows] == [("any", math.inf, 4)]


def test_mistakes_are_explained() -> None:
    trace = trace_of([[(0, 4)]])
    with pytest.raises(TraceError, match="lru_tail"):
        run_curves(trace, ["lru_tial"])
    with pytest.raises(TraceError, match="at least one block"):
        run_curves(trace, ["lru"], [0])
    with pytest.raises(TraceError, match="no block ids and no sessions"):
        run_curves(replace(trace, knowledge="nothing"))
    with pytest.raises(TraceError, match="of 16 tokens"):
        run_curves(trace, block_tokens=32)
    with pytest.raises(TraceError, match="several sizes"):
        run_curves(replace(trace, block_tokens=0))
    with pytest.raises(TraceError, match="one clock"):
        run_curves(replace(trace, clock="session"), play=Play(delay_s=1.0))
    for text in ("many", "80 GiB", "3 s"):
        with pytest.raises(TraceError):
            parse_capacities([text])
