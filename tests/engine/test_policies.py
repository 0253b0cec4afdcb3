"""Eviction and admission in the engines: equal in both, hand-made cases, and laws over every policy."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.eviction.config import KINDS, EvictionConfig, EvictionKind
from kvsim.cache.tiers.config import TierConfig
from kvsim.engine import core, reference
from kvsim.engine.policies import knows_future
from kvsim.engine.types import FINISHED, EngineConfig, EngineRun
from kvsim.errors import ScenarioError
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.admission import AdmissionConfig
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.strategies import KINDS as WORKLOADS
from tests.engine.strategies import TIER_KINDS, Problem, random_problem
from tests.engine.test_core import outcome

ONE_TURN = ("workload={fixed: {num_requests: 4, input_tokens: 100, output_tokens: 5}, concurrency: 2}",)
SECOND = LinearStepTime(1.0, 0.0, 0.0)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
ADMISSIONS = (None, None, AdmissionConfig(1), AdmissionConfig(2), AdmissionConfig(None, 0.5),
              AdmissionConfig(3, 1.0, 20))


def with_policies(seed: int, kind: EvictionKind) -> Problem:
    """A random problem, with or without tiers, under a policy and perhaps admission control."""
    rng = random.Random(seed)
    problem = random_problem(seed, rng.choice([*WORKLOADS, *TIER_KINDS]))
    tiers = tuple(dataclasses.replace(tier, load_mode=rng.choice(("async", "layerwise")),
                                      write="eager" if tier.write == "lazy" else tier.write)
                  for tier in problem.config.tiers)
    eviction = EvictionConfig(kind, ttl_s=rng.choice([0.05, 0.3, 1.0, 5.0, 1e9]),
                              share_frac=rng.choice([0.0, 0.3, 0.8, 1.0]), small_frac=rng.choice([0.0, 0.1, 0.5]))
    config = dataclasses.replace(problem.config, eviction=eviction, tiers=tiers, admission=rng.choice(ADMISSIONS))
    return dataclasses.replace(problem, config=config)


@EVERY_KIND
def test_random_workloads_end_as_in_the_plain_engine(kind: EvictionKind) -> None:
    evicting = hitting = 0
    for seed in range(40):
        done = outcome(with_policies(seed, kind))
        if done is not None:
            evicting += done.totals.counters["evicted_blocks"] > 0
            hitting += done.totals.prompt_tokens_hit > 0
    assert min(evicting, hitting) > 8, "the workloads are too tame to show anything"


@settings(max_examples=80)
@given(st.integers(10**6, 10**9), st.sampled_from(KINDS))
def test_any_workload_ends_as_in_the_plain_engine(seed: int, kind: EvictionKind) -> None:
    outcome(with_policies(seed, kind))


def engine(num_blocks: int, kind: EvictionKind = "lru", **changes: object) -> EngineConfig:
    config = EngineConfig(num_blocks, 4, 8, 64, 1000, eviction=EvictionConfig(kind))
    return dataclasses.replace(config, **changes)  # pyright: ignore[reportArgumentType]


def play(rows: list[Row], config: EngineConfig, until_s: float = math.inf) -> EngineRun:
    problem = Problem(Workload(requests_from_rows(rows), until_s=until_s), config, SECOND)
    done = outcome(problem)
    assert done is not None
    return done


def asking(*prompts: int, gap_s: float = 50.0, priorities: tuple[int, ...] = ()) -> list[Row]:
    """One-token requests of 40 tokens each, `gap_s` apart; a content is a session."""
    return [Row([(prompt, 40)], 1, 100 + i, arrival_s=gap_s * i, session=prompt,
                priority=priorities[prompt] if priorities else 0) for i, prompt in enumerate(prompts)]


def cached(rows: list[Row], config: EngineConfig) -> list[int]:
    return play(rows, config).records.cached_tokens.tolist()


def test_priority_keeps_what_urgent_requests_left() -> None:
    # Ten blocks a prompt, room for two: LRU loses prompt 0, which is urgent.
    rows = asking(0, 1, 2, 0, priorities=(0, 5, 5))
    assert cached(rows, engine(21)) == [0, 0, 0, 0]
    assert cached(rows, engine(21, "priority")) == [0, 0, 0, 36]


def test_a_time_to_live_forgets_although_there_is_room() -> None:
    rows = asking(0, 1, 0, 1)
    assert cached(rows, engine(100, eviction=EvictionConfig("ttl", ttl_s=99.5))) == [0, 0, 36, 36]
    assert cached(rows, engine(100, eviction=EvictionConfig("ttl", ttl_s=98.5))) == [0, 0, 0, 0]


def test_pinned_sessions_keep_the_cache_and_make_others_wait() -> None:
    rows = [Row([(0, 40)], 1, 9, session=0), Row([(1, 40)], 1, 9, session=1, arrival_s=50.0),
            Row([(2, 40)], 1, 9, session=2, arrival_s=100.0), Row([(0, 40)], 1, 9, session=0, arrival_s=150.0)]
    assert cached(rows, engine(21)) == [0, 0, 0, 0]
    assert cached(rows, engine(21, "pin_sessions")) == [0, 0, 0, 36]
    whole = play(rows, engine(15, eviction=EvictionConfig("pin_sessions", share_frac=1.0, ttl_s=1e9)))
    # Nobody holds a block at 50 s: the pin of session 0 gives way, since nothing else could ever go on.
    assert whole.records.admitted_s.tolist() == [0.0, 50.0, 100.0, 150.0]


def test_a_request_waits_for_pinned_blocks_while_others_run() -> None:
    rows = [Row([(0, 40)], 1, 9, session=0), Row([(5, 8)], 30, 9, session=5, arrival_s=10.0),
            Row([(1, 40)], 1, 9, session=1, arrival_s=18.0), Row([(0, 40)], 1, 9, session=0, arrival_s=200.0)]

    def admitted_s(ttl_s: float) -> float:
        eviction = EvictionConfig("pin_sessions", share_frac=0.5, ttl_s=ttl_s)
        return float(play(rows, engine(21, eviction=eviction)).records.admitted_s[2])

    # 20 blocks: 10 are pinned from 1 s on, a long answer holds some up to 40 s, and 10 are wanted.
    assert (admitted_s(20.0), admitted_s(1e9)) == (21.0, 40.0)
    assert play(rows, engine(21)).records.admitted_s[2] == 18.0


def test_cost_aware_keeps_what_is_dear_per_block() -> None:
    # A step costs 0.1 s and 0.01 s a token: 10 blocks of 40 tokens cost 0.05 s each, 40 blocks of 160 only 0.0425 s.
    rows = [Row([(0, 40)], 1, 9), Row([(1, 160)], 1, 9, arrival_s=50.0), Row([(2, 40)], 1, 9, arrival_s=100.0),
            Row([(0, 40)], 1, 9, arrival_s=150.0)]
    slow = LinearStepTime(0.1, 0.01, 0.0)

    def last(kind: EvictionKind) -> int:
        config = engine(56, kind, max_num_batched_tokens=1000)
        return int(reference.run(Workload(requests_from_rows(rows)), config, slow).records.cached_tokens[-1])

    assert (last("lru"), last("cost_aware")) == (20, 36)


def test_fifo_does_not_renew_and_lfu_counts() -> None:
    # Room for two prompts; 0 is asked for again and again, then a third one comes.
    rows = asking(0, 1, 0, 2, 0)
    assert cached(rows, engine(21, "lru"))[-1] == 36
    assert cached(rows, engine(21, "fifo"))[-1] == 0
    assert cached(asking(0, 0, 1, 2, 0), engine(21, "lfu"))[-1] == 36
    assert cached(asking(0, 0, 1, 2, 0), engine(21, "lru"))[-1] == 0


def test_the_bound_beats_lru_on_a_loop() -> None:
    loop = asking(*(0, 1, 2) * 6)
    found = {kind: sum(cached(loop, engine(21, kind))) for kind in ("lru", "belady")}
    assert found["lru"] == 0
    assert found["belady"] > 0.4 * 36 * 15


@EVERY_KIND
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost_and_nothing_found_twice(kind: EvictionKind, seed: int) -> None:
    problem = with_policies(seed, kind)
    config = dataclasses.replace(problem.config, tiers=())
    workload = dataclasses.replace(problem.workload, until_s=math.inf, lane_stop_s=np.zeros(0))
    records = core.run(workload, config, problem.step_time).records
    came = np.isfinite(records.arrival_s)
    served = records.status == FINISHED
    assert (served | (records.status == 2))[came].all()
    order = np.argsort(records.admitted_s, kind="stable")
    ideal = ideal_cached_tokens(workload.requests, [i for i in order.tolist() if served[i]])
    first = served & (records.preemptions == 0)
    assert (records.cached_tokens[first] <= records.prompt_tokens[first] - 1).all()
    assert records.cached_tokens.sum() <= ideal.sum() + records.prompt_tokens[~first].sum()


@EVERY_KIND
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_a_tier_without_room_is_no_tier(kind: EvictionKind, seed: int) -> None:
    problem = with_policies(seed, kind)
    bare = dataclasses.replace(problem.config, tiers=())
    none = dataclasses.replace(problem.config, tiers=(TierConfig(0),))
    one, other = (core.run(problem.workload, c, problem.step_time).records for c in (bare, none))
    np.testing.assert_array_equal(one.finish_s, other.finish_s)


@EVERY_KIND
def test_an_infinite_fast_tier_finds_what_an_infinite_pool_finds(kind: EvictionKind) -> None:
    rows = asking(*(0, 1, 2, 3) * 4)
    # Stored a step after it was computed; nothing else is to be done between two requests, so stores have all the time.
    rows += [Row([(90, 4)], 1, 9, arrival_s=50.0 * i + 25.0, session=90) for i in range(16)]
    rows.sort(key=lambda row: row.arrival_s)
    ideal = cached(rows, engine(1000))
    assert cached(rows, engine(21, kind, tiers=(TierConfig(10_000),))) == ideal
    assert sum(cached(rows, engine(21, kind))) < sum(ideal)


def test_lazy_writing_walks_along_lrus_queue_only() -> None:
    with pytest.raises(ScenarioError, match="fifo above a tier with write lazy"):
        core.run(Workload(requests_from_rows(asking(0))), engine(21, "fifo", tiers=(TierConfig(9, "lazy"),)), SECOND)


def test_one_of_several_replicas_knows_neither_the_future_nor_whole_sessions() -> None:
    with pytest.raises(ScenarioError, match="belady on one of several"):
        knows_future(engine(21, "belady"), is_fed=True)
    with pytest.raises(ScenarioError, match="admission"):
        knows_future(engine(21, admission=AdmissionConfig(1)), is_fed=True)
    for change in ("engine.eviction=belady", "engine.admission.max_live_sessions=2"):
        with pytest.raises(ScenarioError, match="with replicas 4, which is not simulated yet"):
            simulate(load_scenario("cluster-llama-mooncake", (*ONE_TURN, change)))
    assert knows_future(engine(21, "belady"), is_fed=False)


def turns(session: int, count: int, arrival_s: float, think_s: float = 5.0) -> list[Row]:
    """A session of growing prompts, as rows of its own."""
    return [Row([(session, 20 * (k + 1))], 2, 100 + session, session=session, arrival_s=arrival_s,
                after=(k - 1,) if k else (), think_s=think_s if k else 0.0) for k in range(count)]


def together(*sessions: list[Row]) -> list[Row]:
    """Sessions one after the other in the list, their dependencies moved along."""
    rows: list[Row] = []
    for session in sessions:
        base = len(rows)
        rows += [dataclasses.replace(row, after=tuple(base + i for i in row.after)) for row in session]
    return rows


def test_a_session_waits_outside_and_its_waiting_counts() -> None:
    rows = together(turns(0, 3, 0.0), turns(1, 2, 1.0))
    free = play(rows, engine(100))
    one = play(rows, engine(100, admission=AdmissionConfig(1)))
    assert free.records.admitted_s[3] == 1.0
    # Three turns of two steps and two pauses of five seconds: the second session comes in at 16 s.
    assert one.records.finish_s[2] == 16.0
    assert (one.records.arrival_s[3], one.records.admitted_s[3]) == (1.0, 16.0)
    assert (one.records.status == FINISHED).all()


def test_contexts_decide_who_fits() -> None:
    rows = together(turns(0, 2, 0.0), turns(1, 2, 1.0))
    # The first session holds 5 blocks, then 10; the second wants 5 of its own.
    assert play(rows, engine(13, admission=AdmissionConfig(None, 1.0))).records.admitted_s[2] == 1.0
    assert play(rows, engine(13, admission=AdmissionConfig(None, 0.8))).records.admitted_s[2] == 9.0
    expecting = AdmissionConfig(None, 1.0, expected_tokens=40)
    assert play(rows, engine(13, admission=expecting)).records.admitted_s[2] == 9.0


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_never_more_sessions_inside_than_allowed(seed: int, most: int) -> None:
    problem = random_problem(seed, "full")
    workload = dataclasses.replace(problem.workload, until_s=math.inf, lane_stop_s=np.zeros(0),
                                   warming=np.zeros(0, np.int64), max_in_flight=())
    config = dataclasses.replace(problem.config, admission=AdmissionConfig(most))
    records, session = core.run(workload, config, problem.step_time).records, workload.requests.session
    come = np.isfinite(records.admitted_s)
    spans = [(records.admitted_s[come & (session == s)].min(), records.finish_s[session == s].max())
             for s in np.unique(session[come])]
    if np.isfinite(records.finish_s[come]).all() and not crosses_sessions(workload):
        for start_s, _ in spans:
            assert sum(a <= start_s < b for a, b in spans) <= most
    assert (records.status[np.isfinite(records.arrival_s)] != 1).all()


def crosses_sessions(workload: Workload) -> bool:
    """Whether a request waits for one of another session: then those inside may have nothing to ask."""
    requests = workload.requests
    return any(requests.session[j] != requests.session[i] for i in range(len(requests)) for j in requests.deps(i))
