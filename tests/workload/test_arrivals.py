"""Limits of requests in flight, lanes that start and stop, pools side by side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import core, reference
from kvsim.engine.types import EngineConfig
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.fixed import Clients, Poisson, build_fixed
from kvsim.workload.lengths import LogNormal
from kvsim.workload.mix import TrafficKind, mix
from kvsim.workload.requests import Floats, Row, Workload, requests_from_rows
from kvsim.workload.sessions import SessionTree, Turn, tree_from_turns
from kvsim.workload.synthetic import Chat
from kvsim.workload.trees import ReplayRules, build_closed_loop, build_session_arrivals
from tests.engine.strategies import random_problem
from tests.workload.helpers import play


def singles(arrivals: list[float], limit: float = math.inf) -> Workload:
    rows = [Row([(k, 10)], 5, k, arrival_s=t, session=k) for k, t in enumerate(arrivals)]
    return Workload(requests_from_rows(rows), max_in_flight=(limit,))


def in_flight(arrival_s: Floats, service_s: Floats) -> int:
    """Most requests in flight at once; who ends when another comes has left."""
    seen = np.isfinite(arrival_s)
    start, end = arrival_s[seen], arrival_s[seen] + service_s[seen]
    return max((int(((start <= t) & (end > t)).sum()) for t in start), default=0)


def line(turns: int, gap_s: float = 10.0) -> SessionTree:
    return tree_from_turns("line", [Turn(((0, 100 + 50 * k),), 10, 0, gap_s * k, gap_s if k else 0.0,
                                         after=(k - 1,) if k else ()) for k in range(turns)], 1)


def test_who_would_be_too_many_comes_when_one_ends() -> None:
    found = play(singles([0.0, 0.0, 1.0, 2.0, 50.0], limit=2), np.full(5, 10.0))
    assert found.tolist() == [0.0, 0.0, 10.0, 10.0, 50.0]


def test_without_a_limit_nobody_waits() -> None:
    arrivals = [0.0, 0.5, 0.7]
    assert play(singles(arrivals), np.full(3, 10.0)).tolist() == arrivals


@settings(max_examples=60)
@given(st.lists(st.floats(0, 50), min_size=1, max_size=25), st.integers(1, 6), st.integers(0, 10_000))
def test_the_limit_holds_and_everybody_comes(arrivals: list[float], limit: int, seed: int) -> None:
    service = np.random.default_rng(seed).exponential(5.0, len(arrivals))
    found = play(singles(arrivals, limit), service)
    assert np.isfinite(found).all()
    assert (found >= np.array(arrivals)).all()
    assert in_flight(found, service) <= limit


def test_live_sessions_follow_the_steps() -> None:
    rules = ReplayRules(start_frac=None, idle_cap_s=math.inf, steps=((100.0, 5), (200.0, 1)), until_s=300.0)
    w = build_closed_loop([line(4)], 2, rules=rules)
    found = play(w, np.full(len(w.requests), 1.0))
    session = w.requests.session
    # A session takes 34 s: in every window of that length each live lane asks something.
    live = [len(set(session[(found >= t) & (found < t + 11.5)].tolist())) for t in (50.0, 150.0, 250.0)]
    assert live[0] in (2, 3, 4)
    assert 5 <= live[1] <= 8
    assert live[2] in (1, 2)
    after = (found > 201.0) & (found < 300.0)
    assert np.isfinite(found).sum() > 40
    assert after.sum() == pytest.approx(4 * 99 / 34, abs=2)


def test_a_session_ends_in_the_middle_when_its_lane_stops() -> None:
    rules = ReplayRules(start_frac=None, idle_cap_s=math.inf, steps=((15.0, 0),), until_s=1000.0)
    w = build_closed_loop([line(9)], 1, rules=rules)
    found = play(w, np.full(len(w.requests), 1.0))
    assert found[:3].tolist()[:2] == [0.0, 11.0]
    assert np.isnan(found[2:]).all()


def test_steps_count_from_the_end_of_the_warm_up() -> None:
    rules = ReplayRules(start_frac=(0.5, 0.5), warmup_requests=0, idle_cap_s=math.inf, steps=((20.0, 2),), until_s=60.0)
    w = build_closed_loop([line(9)], 1, rules=rules)
    found = play(w, np.full(len(w.requests), 7.0))
    warm_s = float(found[w.warming].max()) + 7.0
    second = found[w.requests.session == 1]
    assert np.nanmin(second) == warm_s + 20.0


def after_a_refusal(*later: Row) -> Arrivals:
    """Request 0 ends at 5 s, and only then does the engine see that request 1, which came at 3 s, is refused."""
    rows = [Row([(0, 10)], 5, 0, arrival_s=1.0), Row([(1, 10)], 5, 1, arrival_s=3.0), *later]
    recycled = tuple({row.session for row in later} - {0})
    arrivals = Arrivals(Workload(requests_from_rows(rows), lane_sessions=((0,),), lane_start_s=np.zeros(1),
                                 recycle=recycled, warming=np.array([0, 1]), until_s=100.0))
    assert arrivals.pop_until(3.0) == [0, 1]
    arrivals.finish(0, 5.0)
    arrivals.finish(1, 3.0)
    return arrivals


def test_what_waits_for_a_refused_request_waits_for_the_others_too() -> None:
    follower = after_a_refusal(Row([(2, 10)], 5, 2, after=(0, 1), think_s=10.0))
    assert follower.next_s() == 15.0
    assert (follower.clock_start_s, follower.until_s) == (5.0, 105.0)
    assert after_a_refusal(Row([(2, 10)], 5, 2, session=1)).next_s() == 5.0


def test_sessions_that_begin_by_themselves_keep_their_order() -> None:
    w = build_session_arrivals([line(3)], [0.0, 5.0, 6.0])
    found = play(w, np.full(9, 2.0)).reshape(3, 3)
    assert found.tolist() == [[0, 12, 24], [5, 17, 29], [6, 18, 30]]


def test_kinds_side_by_side_do_not_take_each_other_s_sessions() -> None:
    chat = build_closed_loop([line(3)], 2, rules=ReplayRules(start_frac=None, idle_cap_s=math.inf, until_s=100.0))
    alone = build_fixed(20, 500, 20, Poisson(1.0), seed=1)
    jobs = replace(build_fixed(30, 900, 20, Clients(3)), max_in_flight=(2.0,))
    both = mix([TrafficKind("chat", 0, chat), TrafficKind("alone", 1, alone), TrafficKind("jobs", 2, jobs)])
    service = np.full(len(both.requests), 1.0)
    together = play(both, service)
    kind = both.requests.traffic_class
    assert both.requests.class_names[:3] == ("chat", "alone", "jobs")
    for k, part in enumerate((chat, alone, jobs)):
        expected = play(replace(part, until_s=100.0), np.full(len(part.requests), 1.0))
        assert np.array_equal(together[kind == k], expected, equal_nan=True)
    assert sorted(set(both.requests.priority.tolist())) == [0, 1, 2]


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_both_engines_agree_with_limits_steps_and_pools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chat = Chat(LogNormal(4, 0.5, 1, 9), 64, LogNormal(40, 0.8), LogNormal(12, 0.8, 1, 60), LogNormal(1.0, 1.0))
    times = rng.uniform([1, 11], [10, 20]).tolist()
    steps = ((times[0], int(rng.integers(0, 6))), (times[1], int(rng.integers(0, 4))))
    rules = ReplayRules(start_frac=(0.0, 1.0), warmup_requests=1, idle_cap_s=math.inf, steps=steps, until_s=30.0)
    closed = build_closed_loop(chat.trees(6, seed), 3, seed, rules)
    limited = replace(build_fixed(25, LogNormal(200, 0.5), 9, Poisson(2.0), seed), max_in_flight=(2.0,))
    both = mix([TrafficKind("chat", 0, closed), TrafficKind("limited", 0, limited)])
    config = EngineConfig(num_blocks=120, block_tokens=16, max_num_seqs=6, max_num_batched_tokens=128,
                          max_model_len=1500, prefix_caching=True, policy="fcfs", state_groups=0,
                          retention_interval_tokens=None, extra_attention_groups=0)
    model = LinearStepTime(0.02, 1e-4, 1e-3)
    fast, plain = core.run(both, config, model).records, reference.run(both, config, model).records
    for name in ("arrival_s", "first_token_s", "finish_s"):
        np.testing.assert_allclose(getattr(fast, name), getattr(plain, name), rtol=1e-9, err_msg=name)
    assert fast.cached_tokens.tolist() == plain.cached_tokens.tolist()


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_nobody_comes_before_what_is_said_to_be_soon(seed: int) -> None:
    """On a server that takes a second for everything, with lanes, stops, caps and chains drawn at random."""
    arrivals = Arrivals(random_problem(seed).workload)
    now_s, serving = 0.0, list[tuple[float, int]]()
    for _ in range(200):
        soon_s = arrivals.soon_s
        assert soon_s <= arrivals.next_s()
        due = [(end_s, row) for end_s, row in serving if end_s <= now_s]
        for end_s, row in sorted(due):
            arrivals.finish(row, end_s)
            assert arrivals.soon_s <= arrivals.next_s()
        serving = [one for one in serving if one not in due]
        came = arrivals.pop_until(now_s)
        assert soon_s <= now_s or not came or due
        serving += [(now_s + 1.0, row) for row in came]
        now_s = now_s + 0.05 if serving else arrivals.wake_s(now_s)
        if not math.isfinite(now_s):
            return
