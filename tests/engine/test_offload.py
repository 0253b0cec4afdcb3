"""The plain engine with tiers, on workloads small enough to work out by hand, and laws that hold on all of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.tiers.config import TierConfig, WritePolicy
from kvsim.engine.reference import run
from kvsim.engine.types import FINISHED, UNFINISHED, EngineConfig, EngineRun
from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.steptime.base import LinearStepTime
from kvsim.validate.engine_cases import find_cases
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.strategies import random_problem

SECOND = LinearStepTime(1.0, 0.0, 0.0)
DATA = Path(__file__).parents[1] / "data"
EDGE, STANDSTILL = DATA / "offload_cases.jsonl.gz", DATA / "offload_standstill.jsonl.gz"


def engine(num_blocks: int, *tiers: TierConfig, **changes: object) -> EngineConfig:
    given_: dict[str, object] = {"num_blocks": num_blocks, "block_tokens": 4, "max_num_seqs": 8,
                                 "max_num_batched_tokens": 64, "max_model_len": 1000, "tiers": tiers, **changes}
    return EngineConfig(**given_)  # pyright: ignore[reportArgumentType]


def play(rows: list[Row], config: EngineConfig, until_s: float = math.inf) -> EngineRun:
    return run(Workload(requests_from_rows(rows), until_s=until_s), config, SECOND)


def returning(*prompts: int, gap_s: float = 50.0) -> list[Row]:
    """One-token requests, `gap_s` apart, each with 40 tokens of one of several contents."""
    return [Row([(prompt, 40)], 1, 100 + i, arrival_s=gap_s * i) for i, prompt in enumerate(prompts)]


def test_a_load_holds_its_blocks_and_the_request_joins_later() -> None:
    # 10 blocks a prompt, a pool of 13: the second prompt evicts the first, which then comes back from the host.
    done = play(returning(0, 1, 0), engine(14, TierConfig(100, "eager", load_s_per_block=0.25)))
    records = done.records
    assert records.cached_tokens.tolist() == [0, 0, 36]
    assert records.external_tokens.tolist() == [0, 0, 36]
    assert records.admitted_s.tolist() == [0.0, 50.0, 100.0]
    # 9 blocks take 2.25 s, nothing else is to be done meanwhile; then a step of one second.
    assert records.first_token_s.tolist() == [1.0, 51.0, 103.25]
    assert (done.totals.steps, done.totals.stalled_s, done.totals.load_wait_s) == (3, 2.25, 2.25)
    tier = done.totals.tiers[0]
    assert (tier.hit_tokens, tier.blocks_loaded, tier.load_busy_s) == (36, 9, 2.25)


def test_stores_of_a_finished_request_start_with_the_next_step() -> None:
    config = engine(14, TierConfig(100, "eager", store_s_per_block=0.5, block_bytes=1000))
    alone, followed = play(returning(0), config), play(returning(0, 1), config)
    assert alone.totals.tiers[0].blocks_stored == 0
    tier = followed.totals.tiers[0]
    assert (tier.blocks_stored, tier.bytes_stored, tier.store_busy_s) == (10, 10_000, 5.0)


def test_transfers_that_end_while_the_engine_idles_are_seen_after_the_next_step() -> None:
    rows = [*returning(0, 1), Row([(1, 40)], 1, 102, arrival_s=50.5), Row([(0, 40)], 1, 103, arrival_s=80.0)]
    done = play(rows, engine(14, TierConfig(100, "lazy", store_s_per_block=0.5)))
    assert done.records.external_tokens.tolist()[-1] == 0
    fast = play(rows, engine(14, TierConfig(100, "lazy")))
    assert fast.totals.prompt_tokens_hit >= done.totals.prompt_tokens_hit


def test_by_tier_hits_come_from_the_first_tier_that_has_them() -> None:
    # The host keeps the last 5 blocks or so, the drive below it everything.
    dram, nvme = TierConfig(6, "eager"), TierConfig(1000, "eager", kind="nvme")
    done = play(returning(0, 1, 2, 0, 3, 0), engine(14, dram, nvme))
    assert sum(tier.hit_tokens for tier in done.totals.tiers) == done.records.external_tokens.sum() > 0
    assert done.totals.tiers[1].hit_tokens > 0
    assert [tier.kind for tier in done.totals.tiers] == ["dram", "nvme"]


def test_an_exclusive_tier_gives_what_it_has_away() -> None:
    done = play(returning(0, 1, 0, 1, 0), engine(14, TierConfig(100, "on-eviction")))
    # Eviction takes a prompt's tail: 7 of 10 blocks go down, 6 of those are asked for again.
    assert done.records.cached_tokens.tolist() == [0, 0, 36, 36, 36]
    assert done.records.external_tokens.tolist() == [0, 0, 24, 24, 24]
    inclusive = play(returning(0, 1, 0, 1, 0), engine(14, TierConfig(100, "eager")))
    assert done.totals.tiers[0].blocks_stored > inclusive.totals.tiers[0].blocks_stored


def test_on_reuse_stores_what_is_asked_for_again() -> None:
    config = engine(14, TierConfig(100, "on-reuse", reuse_threshold=2))
    assert play(returning(0, 1, 2, 3), config).totals.tiers[0].blocks_stored == 0
    assert play(returning(0, 1, 0, 1, 0), config).records.external_tokens.tolist() == [0, 0, 0, 0, 36]


def test_prompts_only_tier_forgets_outputs() -> None:
    rows = [Row([(0, 16)], 24, 1), Row([(2, 40)], 1, 3, arrival_s=60), Row([(0, 16), (1, 24)], 1, 4, arrival_s=120)]
    assert play(rows, engine(14, TierConfig(100))).records.cached_tokens.tolist() == [0, 0, 36]
    assert play(rows, engine(14, TierConfig(100, stores_outputs=False))).records.cached_tokens.tolist() == [0, 0, 16]


def test_break_even_recomputes_what_would_come_too_late() -> None:
    slow = TierConfig(100, load_s_per_block=1.0, load_rule="break-even", recompute_s_per_token=0.1)
    done = play(returning(0, 1, 0), engine(14, slow))
    assert done.records.external_tokens.tolist() == [0, 0, 0]
    done = play(returning(0, 1, 0), engine(14, dataclasses.replace(slow, recompute_s_per_token=0.3)))
    assert done.records.external_tokens.tolist() == [0, 0, 36]


def test_break_even_leaves_the_slow_tier_out() -> None:
    dram = TierConfig(100, "eager", load_rule="break-even", recompute_s_per_token=0.1, offline_from_s=90.0)
    nvme = TierConfig(100, "eager", kind="nvme", load_s_per_block=9.0, load_rule="break-even",
                      recompute_s_per_token=0.1)
    rows = returning(0, 1, 0)
    assert play(rows, engine(14, dram, nvme)).records.external_tokens.tolist() == [0, 0, 0]
    assert play(rows, engine(14, dataclasses.replace(dram, offline_from_s=math.inf), nvme)).totals.tiers[0].hit_tokens


def test_a_tier_that_goes_offline_is_not_asked_any_more() -> None:
    config = engine(14, TierConfig(100, offline_from_s=120.0))
    done = play(returning(0, 1, 0, 1, 0), config)
    assert done.records.external_tokens.tolist() == [0, 0, 36, 0, 0]
    assert (done.records.status == FINISHED).all()


def test_short_hits_may_be_left_alone() -> None:
    config = engine(14, TierConfig(100, min_load_tokens=37))
    assert play(returning(0, 1, 0), config).records.external_tokens.tolist() == [0, 0, 0]


def test_checkpoints_move_with_their_blocks_and_a_one_group_tier_has_none() -> None:
    rows = returning(0, 1, 0)
    hybrid = engine(22, TierConfig(100), state_groups=2)
    assert play(rows, hybrid).records.external_tokens.tolist() == [0, 0, 36]
    one_group = dataclasses.replace(hybrid, tiers=(TierConfig(100, multi_group=False),))
    done = play(rows, one_group)
    assert (done.records.external_tokens.sum(), done.totals.tiers[0].blocks_stored) == (0, 0)


def test_a_tier_smaller_than_a_checkpoint_gives_nothing_and_does_not_hang() -> None:
    for write in ("eager", "lazy", "on-eviction"):
        done = play(returning(0, 1, 0, 1), engine(22, TierConfig(3, write), state_groups=3))
        assert (done.records.status == FINISHED).all()
        assert done.records.external_tokens.sum() == 0


@pytest.mark.parametrize("bad", [
    {"load_s_per_block": math.inf}, {"store_s_per_block": math.nan}, {"load_start_s": -1.0}, {"num_blocks": -1},
    {"reuse_threshold": 0}])
def test_impossible_tiers_are_refused(bad: dict[str, float]) -> None:
    tier: TierConfig = dataclasses.replace(TierConfig(10), **bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ScenarioError, match=rf"tiers\.1\.{next(iter(bad))}"):
        play(returning(0), engine(14, TierConfig(10), tier))


def test_the_time_may_be_up_during_a_load() -> None:
    done = play(returning(0, 1, 0), engine(14, TierConfig(100, load_s_per_block=0.25)), until_s=101.0)
    assert done.records.status.tolist() == [FINISHED, FINISHED, UNFINISHED]
    assert done.records.cached_tokens.tolist() == [0, 0, 36]
    assert done.totals.makespan_s == 100.0


@pytest.mark.parametrize(("name", "word"), [
    ("standstill-stores", "again and again"), ("standstill-preemptions", "preemptions and no token")])
def test_an_engine_that_stands_still_says_so(name: str, word: str) -> None:
    # The real scheduler goes round in circles for ever here: stores hold what the next request or a running one needs.
    case = next(case for case in find_cases([STANDSTILL]) if case.name == name)
    with pytest.raises(InfeasibleError, match=f"stands still.*{word}"):
        run(case.workload, case.config, case.step_time)


def finished(problem_seed: int, tiers: tuple[TierConfig, ...], kind: str = "") -> EngineRun | str:
    """A random problem's run with some tiers, or why it cannot end."""
    problem = random_problem(problem_seed, kind)
    try:
        return run(problem.workload, dataclasses.replace(problem.config, tiers=tiers), problem.step_time)
    except InfeasibleError as err:
        return str(err)


def same(one: EngineRun, other: EngineRun) -> bool:
    """Whether two runs have the same records, totals and timelines."""
    pairs = [(one.records, other.records), (one.timeline, other.timeline)]
    arrays = all(np.array_equal(getattr(a, f.name), getattr(b, f.name), equal_nan=True)
                 for a, b in pairs for f in dataclasses.fields(a) if f.name != "refusals")
    return arrays and one.totals == other.totals


@given(st.integers(0, 10**6), st.sampled_from(["eager", "lazy", "on-eviction", "on-reuse", "none"]))
@settings(max_examples=60)
def test_a_tier_of_no_size_is_no_tier(seed: int, write: WritePolicy) -> None:
    kind = ["full", "hybrid", "priority", "drafts"][seed % 4]
    without, with_ = finished(seed, (), kind), finished(seed, (TierConfig(0, write, 1.0, 1.0),), kind)
    assert isinstance(without, EngineRun)
    assert isinstance(with_, EngineRun)
    assert same(without, with_)


@st.composite
def some_tiers(draw: st.DrawFn) -> tuple[TierConfig, ...]:
    """One to three tiers of any kind."""
    times = st.sampled_from([0.0, 0.001, 0.02, 0.5])
    tier = st.builds(
        TierConfig, num_blocks=st.sampled_from([1, 2, 7, 30, 1000]),
        write=st.sampled_from(["eager", "eager", "lazy", "on-eviction", "on-reuse", "none"]),
        load_s_per_block=times, store_s_per_block=times, kind=st.sampled_from(["dram", "nvme", "pool"]),
        load_start_s=times, store_start_s=times, load_rule=st.sampled_from(["always", "break-even"]),
        recompute_s_per_token=times, reuse_threshold=st.integers(1, 3), min_load_tokens=st.sampled_from([0, 0, 20]),
        stores_outputs=st.booleans(), multi_group=st.sampled_from([True, True, False]),
        offline_from_s=st.sampled_from([math.inf, math.inf, 0.4]))
    return tuple(draw(st.lists(tier, min_size=1, max_size=3)))


@given(st.integers(0, 10**6), some_tiers())
@settings(max_examples=120)
def test_nothing_is_lost_or_found_too_early_in_any_tiers(seed: int, tiers: tuple[TierConfig, ...]) -> None:
    # Inside, the run checks that blocks are used or free and that what came into a tier left it or is still there.
    done = finished(seed, tiers)
    if isinstance(done, str):
        assert "stands still" in done
        return
    records = done.records
    assert (records.external_tokens <= records.cached_tokens).all()
    assert (records.cached_tokens < records.prompt_tokens).all()
    admitted = ~np.isnan(records.admitted_s)
    assert sum(tier.hit_tokens for tier in done.totals.tiers) == records.external_tokens[admitted].sum()
    assert done.totals.prompt_tokens_hit == records.cached_tokens.sum()
    for tier in done.totals.tiers:
        assert tier.blocks_loaded == 0 or tier.blocks_stored > 0
        assert tier.blocks_resident < max(tier.num_blocks, 1)
    assert same(done, run_again(seed, tiers))


def run_again(seed: int, tiers: tuple[TierConfig, ...]) -> EngineRun:
    again = finished(seed, tiers)
    assert isinstance(again, EngineRun)
    return again


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(0, 20), st.sampled_from([0, 1, 2]))
@settings(max_examples=60)
def test_an_instant_and_endless_host_gives_every_hit_there_is(prompts: list[int], spare: int, groups: int) -> None:
    # One request at a time and a checkpoint at every block (with sparse ones, what a lookup finds in the pool alone
    # decides where the next are kept): as if the pool itself were endless.
    rows = [dataclasses.replace(row, prompt=(*row.prompt, (row.prompt[0][0] + 10, 1 + i % 3 * 5)))
            for i, row in enumerate(returning(*prompts))]
    endless = play(rows, engine(5000, state_groups=groups, retention_interval_tokens=None))
    done = play(rows, engine(16 + 2 * groups + spare, TierConfig(5000), state_groups=groups,
                             retention_interval_tokens=None))
    assert done.records.cached_tokens.tolist() == endless.records.cached_tokens.tolist()


def test_more_room_in_the_host_never_hurts_a_fixed_stream() -> None:
    # LRU's inclusion property. It needs one order of use for all sizes: requests of one cached block, one at a time,
    # none twice in a row, and a pool that keeps nothing from one to the next. Prefixes of several blocks and requests
    # that overlap in time can lose hits by a larger tier, as timing and order of use change with the hits.
    rng = np.random.default_rng(5)
    stream = [int(c) for c in rng.zipf(1.4, 300) % 40]
    stream = [c for i, c in enumerate(stream) if not i or c != stream[i - 1]]
    rows = [Row([(c, 5)], 1, 1000 + i, arrival_s=50.0 * i) for i, c in enumerate(stream)]
    hits = [play(rows, engine(3, TierConfig(size))).totals.prompt_tokens_hit for size in (1, 2, 4, 8, 16, 32, 64)]
    assert hits == sorted(hits)
    assert hits[0] < hits[2] < hits[-1]


def test_slower_links_never_lose_a_request() -> None:
    for case in find_cases([EDGE]):
        tiers = tuple(dataclasses.replace(tier, load_s_per_block=5.0, store_s_per_block=5.0)
                      for tier in case.config.tiers)
        try:
            done = run(case.workload, dataclasses.replace(case.config, tiers=tiers), case.step_time)
        except InfeasibleError:
            continue
        assert (done.records.status == FINISHED).all()
