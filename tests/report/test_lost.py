"""Why hits fall short of the ideal ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.tiers.config import TierConfig
from kvsim.engine import core
from kvsim.engine.types import EngineConfig, RunRecords
from kvsim.report.lost import lost_by, unlimited_tokens
from kvsim.report.metrics import LostBy, Window
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.requests import Requests, Row, Workload, requests_from_rows
from tests.engine.strategies import random_problem

Prefix = tuple[tuple[int, int], ...]
SECOND = LinearStepTime(1.0, 0.0, 0.0)
WHOLE = Window(0.0, math.inf)


def asking(*prompts: int, gap_s: float = 50.0) -> Workload:
    return Workload(requests_from_rows(
        [Row([(prompt, 40)], 1, 100 + i, arrival_s=gap_s * i) for i, prompt in enumerate(prompts)]))


def lost(workload: Workload, config: EngineConfig) -> LostBy:
    run = core.run(workload, config, SECOND)
    order = np.argsort(run.records.arrival_s, kind="stable").tolist()
    ideal = ideal_cached_tokens(workload.requests, order)
    return lost_by(run, WHOLE, ideal, workload.requests, config)


def shares(found: LostBy) -> tuple[float, float, float]:
    return found.capacity, found.policy, found.bandwidth


def test_what_was_evicted_is_capacity_and_part_of_a_block_is_policy() -> None:
    # The third prompt could find 39 of 40 tokens; 36 are in whole blocks, 12 are left in the pool.
    found = lost(asking(0, 1, 0), EngineConfig(14, 4, 8, 64, 1000))
    assert shares(found) == pytest.approx((24 / 120, 3 / 120, 0.0))
    assert found.bound_by == "capacity"


def test_with_room_for_all_only_policy_is_left() -> None:
    found = lost(asking(0, 1, 0), EngineConfig(1000, 4, 8, 64, 1000))
    assert shares(found) == pytest.approx((0.0, 3 / 120, 0.0))
    assert found.bound_by == "policy"
    assert lost(asking(0, 1, 2), EngineConfig(1000, 4, 8, 64, 1000)) == LostBy(0.0, 0.0, 0.0, "none")


def test_a_missing_checkpoint_is_policy() -> None:
    # Two prompts branch after 24 tokens, where nobody left a checkpoint; the third finds the one at that junction.
    rows = [Row([(0, 24), (1 + i, 16)], 1, 100 + i, arrival_s=50.0 * i) for i in range(3)]
    workload = Workload(requests_from_rows(rows))
    config = EngineConfig(1000, 4, 8, 64, 1000, state_groups=1)
    run = core.run(workload, config, SECOND)
    assert run.records.cached_tokens.tolist() == [0, 0, 24]
    assert unlimited_tokens(workload.requests, run.records, config, np.ones(3, bool)).tolist() == [0, 0, 24]
    found = lost(workload, config)
    assert shares(found) == pytest.approx((0.0, 24 / 120, 0.0))
    assert found.bound_by == "policy"


def test_without_its_checkpoint_attention_is_lost_to_capacity() -> None:
    config = EngineConfig(16, 4, 8, 64, 1000, state_groups=1)
    workload = asking(0, 1, 0)
    run = core.run(workload, config, SECOND)
    assert run.records.cached_tokens.tolist() == [0, 0, 0]
    found = lost(workload, config)
    assert shares(found) == pytest.approx((36 / 120, 3 / 120, 0.0))
    assert found.bound_by == "capacity"


def test_what_is_not_worth_its_load_is_bandwidth() -> None:
    slow = TierConfig(100, load_s_per_block=1.0, load_rule="break-even", recompute_s_per_token=0.1)
    found = lost(asking(0, 1, 0), EngineConfig(14, 4, 8, 64, 1000, tiers=(slow,)))
    # Stores give the first blocks back first, so that nothing useful is left in the pool itself.
    assert shares(found) == pytest.approx((0.0, 3 / 120, 36 / 120))
    assert found.bound_by == "bandwidth"


def test_what_is_still_on_its_way_down_is_bandwidth() -> None:
    crawling = TierConfig(100, "on-eviction", store_s_per_block=50.0)
    found = lost(asking(0, 1, 0), EngineConfig(14, 4, 8, 64, 1000, tiers=(crawling,)))
    assert found.bound_by == "bandwidth"
    assert found.bandwidth > 20 / 120


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["full", "hybrid", "drafts", "any tiers", "eager"]))
def test_the_parts_make_up_the_difference(seed: int, kind: str) -> None:
    problem = random_problem(seed, kind)
    workload = dataclasses.replace(problem.workload, warming=np.zeros(0, np.int64))
    run = core.run(workload, problem.config, problem.step_time)
    order = np.argsort(run.records.arrival_s, kind="stable")
    ideal = ideal_cached_tokens(workload.requests, order[np.isfinite(run.records.arrival_s[order])])
    found = lost_by(run, WHOLE, ideal, workload.requests, problem.config)
    held = np.isfinite(run.records.first_token_s)
    prompt = run.records.prompt_tokens[held].sum()
    missing = np.maximum(ideal - run.records.cached_tokens, 0)[held].sum()
    assert min(shares(found)) >= 0
    assert sum(shares(found)) * prompt == pytest.approx(missing)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(["full", "hybrid"]))
def test_a_pool_without_limits_loses_nothing_to_capacity(seed: int, kind: str) -> None:
    problem = random_problem(seed, kind)
    workload = dataclasses.replace(problem.workload, warming=np.zeros(0, np.int64))
    config = dataclasses.replace(problem.config, num_blocks=100_000)
    run = core.run(workload, config, problem.step_time)
    assert not run.totals.counters["evicted_blocks"]
    order = np.argsort(run.records.arrival_s, kind="stable")
    ideal = ideal_cached_tokens(workload.requests, order[np.isfinite(run.records.arrival_s[order])])
    assert lost_by(run, WHOLE, ideal, workload.requests, config).capacity == 0.0


def block_by_block(requests: Requests, records: RunRecords, config: EngineConfig) -> list[int]:
    """`unlimited_tokens` with a set of blocks, each known by all tokens up to its end."""
    step = 1 if config.retention_interval_tokens is None else config.retention_interval_tokens // config.block_tokens
    written, checkpoints = set[Prefix](), set[Prefix]()
    found, junction = [0] * len(requests), [0] * len(requests)
    events = [(t, kind, i) for kind, times_s in enumerate((records.first_token_s, records.finish_s, records.admitted_s))
              for i, t in enumerate(times_s.tolist()) if math.isfinite(t)]
    for _, kind, i in sorted(events):
        prompt_tokens = int(requests.prompt_tokens[i])
        last = (prompt_tokens - 1) // config.block_tokens
        if kind == 2:
            path = prefixes(requests, i, last, config.block_tokens)
            at = next((k for k, block in enumerate(path) if block not in written), last)
            kept = [k for k in range(1, at + 1) if path[k - 1] in checkpoints] if config.state_groups else [at]
            found[i] = max(kept, default=0) * config.block_tokens
            junction[i] = at
            continue
        tokens = prompt_tokens + (int(requests.output_tokens[i]) - 1 if kind else 0)
        path = prefixes(requests, i, tokens // config.block_tokens, config.block_tokens)
        written |= set(path)
        left = {last, junction[i], *(range(step, len(path) + 1, step) if step else ())}
        checkpoints |= {path[k - 1] for k in left if 0 < k <= len(path)}
    return found


def prefixes(requests: Requests, i: int, num_blocks: int, block_tokens: int) -> list[Prefix]:
    """Blocks of a request, each as the pieces of all tokens up to its end."""
    return [cut(requests.full(i), k * block_tokens) for k in range(1, num_blocks + 1)]


def cut(pieces: list[tuple[int, int]], tokens: int) -> Prefix:
    kept: list[tuple[int, int]] = []
    for content, length in pieces:
        if tokens > 0:
            kept.append((content, min(length, tokens)))
        tokens -= length
    return tuple(kept)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["full", "hybrid"]), st.sampled_from([0, 1, 3, None]))
def test_a_pool_without_limits_finds_what_single_blocks_say(seed: int, kind: str, step: int | None) -> None:
    problem = random_problem(seed, kind)
    requests, config = problem.workload.requests, problem.config
    records = core.run(problem.workload, config, problem.step_time).records
    config = dataclasses.replace(config, retention_interval_tokens=step and step * config.block_tokens)
    found = unlimited_tokens(requests, records, config, np.ones(len(requests), bool))
    assert found.tolist() == block_by_block(requests, records, config)
