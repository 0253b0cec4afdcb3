"""What binds: waiting for blocks, for slots, or for the step itself."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.types import REFUSED, UNFINISHED, EngineConfig, EngineRun
from kvsim.report.limits import StepSplit, limits
from kvsim.report.metrics import Window
from kvsim.simulation import simulate
from tests.report.helpers import Served, run_of

SPLIT = StepSplit(0.5, 0.0, {"compute": 0.5, "host": 0.5}, {"hbm_bandwidth": 1.0})
"""Half of a step's time is prefill, none of it for want of cache."""
CONFIG = EngineConfig(num_blocks=101, block_tokens=10, max_num_seqs=4, max_num_batched_tokens=100, max_model_len=1000)
WINDOW = Window(0.0, 10.0)
WAITS = Served(0.0, nan, nan, prompt=500, status=UNFINISHED)
"""Needs 50 of the 100 usable blocks."""


@pytest.mark.parametrize(("state", "expected"), [
    ((0.0, 2, 1, 60), {"kv_capacity": 1.0}),  # 40 blocks are free, 50 are needed
    ((0.0, 2, 1, 50), {"hbm_bandwidth": 0.5, "compute": 0.25, "host": 0.25}),  # it fits: the step's tokens are shared
    ((0.0, 4, 1, 60), {"queue": 1.0}),  # no slot is free
    ((0.0, 2, 0, 60), {"hbm_bandwidth": 0.5, "compute": 0.25, "host": 0.25}),
    ((0.0, 0, 0, 0), {}),
])
def test_one_state_for_the_whole_window(state: tuple[float, int, int, int], expected: dict[str, float]) -> None:
    found = limits(run_of([WAITS], [state]), WINDOW, SPLIT, CONFIG)
    named = dict(zip(found.shares.__slots__, astuple(found.shares), strict=True))
    assert {k: v for k, v in named.items() if v} == expected
    assert found.binding == (max(expected, key=lambda k: expected[k]) if expected else "idle")


def test_state_groups_need_blocks_too() -> None:
    hybrid = EngineConfig(101, 10, 4, 100, 1000, state_groups=1)
    run = run_of([WAITS], [(0.0, 2, 1, 50)])
    assert limits(run, WINDOW, SPLIT, hybrid).binding == "kv_capacity"


def test_what_was_preempted_waits_for_blocks() -> None:
    """Everyone has been admitted once, and still somebody waits."""
    run = run_of([Served(0.0, 2.0, nan, admitted_s=1.0, status=UNFINISHED)], [(5.0, 1, 1, 10)])
    assert limits(run, Window(5, 10), SPLIT, CONFIG).binding == "kv_capacity"


def test_refused_requests_do_not_wait() -> None:
    refused = Served(0.0, nan, nan, prompt=10**6, status=REFUSED)
    run = run_of([refused, Served(1.0, nan, nan, prompt=100, status=UNFINISHED)], [(2.0, 1, 1, 10)])
    assert limits(run, Window(2, 10), SPLIT, CONFIG).shares.kv_capacity == 0


def test_shares_are_of_the_window() -> None:
    states = [(0.0, 2, 1, 90), (4.0, 2, 0, 90), (8.0, 0, 0, 0)]
    computes = StepSplit(1.0, 0.0, {"compute": 1.0}, {})
    found = limits(run_of([WAITS], states), WINDOW, computes, CONFIG)
    assert (found.shares.kv_capacity, found.shares.compute) == (0.4, 0.4)
    later = limits(run_of([WAITS], states), Window(6, 10), computes, CONFIG)
    assert (later.shares.kv_capacity, later.shares.compute, later.binding) == (0.0, 0.5, "idle")
    assert limits(run_of([]), WINDOW, SPLIT, CONFIG).binding == "idle"


def test_recomputed_prompts_are_what_a_larger_cache_would_save() -> None:
    split = StepSplit(0.8, 0.75, {"compute": 1.0}, {"hbm_bandwidth": 1.0})
    found = limits(run_of([WAITS], [(0.0, 2, 0, 60)]), WINDOW, split, CONFIG)
    assert found.shares.kv_capacity == pytest.approx(0.6)
    assert (found.shares.compute, found.shares.hbm_bandwidth) == pytest.approx((0.2, 0.2))
    assert found.binding == "kv_capacity"


def stalled(states: list[tuple[float, int, int, int]], busy_s: float, stalled_s: float) -> EngineRun:
    """A run of 10 s in which transfers leave nothing to compute for a while."""
    run = run_of([WAITS], states, makespan_s=10.0)
    return replace(run, totals=replace(run.totals, busy_s=busy_s, stalled_s=stalled_s))


def test_time_in_which_only_transfers_go_on() -> None:
    """Requests run from 0 to 8 s; steps take 6 s of it, transfers hold up the other 2, and 1 s after it."""
    found = limits(stalled([(0.0, 2, 0, 60), (8.0, 0, 0, 0)], 6.0, 3.0), WINDOW, SPLIT, CONFIG)
    assert found.shares.transfer == pytest.approx(0.3)
    assert sum(astuple(found.shares)) == pytest.approx(0.9)
    assert found.shares.hbm_bandwidth == pytest.approx(0.3)
    slow = limits(stalled([(0.0, 1, 0, 60)], 1.0, 9.0), WINDOW, SPLIT, CONFIG)
    assert (slow.binding, slow.shares.transfer) == ("transfer", pytest.approx(0.9))


@pytest.mark.parametrize("how", ["async", "layerwise"])
@pytest.mark.parametrize("fidelity", ["core", "reference"])
def test_a_slow_tier_holds_the_engine_up(how: str, fidelity: str) -> None:
    """Four chats, more than the pool holds, come back over a link of 1 GB/s; over a fast one nothing is held up."""
    def transfer(link: str) -> float:
        chat = {"turns": 6, "system_tokens": 8000, "user_tokens": 1000, "output_tokens": 20, "think_s": 0.5}
        return simulate({
            "name": "slow", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
            "engine": {"num_blocks": 1500, "max_model_len": 20_000, "fidelity": fidelity},
            "tiers": [{"kind": "dram", "capacity": "400 GB", "load": how, "read_bandwidth_per_gpu": link}],
            "workload": {"chat": chat, "concurrency": 4, "duration_s": 30}}).limits.shares.transfer

    slow, fast = transfer("1 GB/s"), transfer("1000 GB/s")
    assert slow > 0.05
    assert fast < slow / 20


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5), st.integers(0, 3), st.integers(0, 100)), max_size=12),
       st.floats(0, 10), st.floats(0, 10))
def test_shares_never_exceed_the_window(states: list[tuple[float, int, int, int]], busy_s: float,
                                        stalled_s: float) -> None:
    found = limits(stalled(sorted(states), busy_s, stalled_s), WINDOW, SPLIT, CONFIG)
    shares = astuple(found.shares)
    assert min(shares) >= 0
    assert sum(shares) <= 1 + 1e-9


def load(**changes: Any) -> str:
    """What binds Llama 8B on one H200 when 200 prompts of 1,000 tokens arrive at once."""
    fixed = {"num_requests": 200, "input_tokens": 1000, "output_tokens": 2}
    return simulate({"name": "load", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
                     "workload": {"fixed": fixed, "rate_per_s": 1e4}, **changes}).limits.binding


def test_a_burst_is_bound_by_compute_until_the_pool_or_the_slots_are_scarce() -> None:
    assert load() == "compute"
    assert load(engine={"num_blocks": 130}) == "kv_capacity"
    assert load(engine={"max_num_seqs": 1}) == "queue"
