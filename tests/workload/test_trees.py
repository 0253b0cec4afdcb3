"""Session trees as workloads: the replay rules, with times and contents worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.workload.agentic import make_trees
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.presets import AGENTX_V1
from kvsim.workload.sessions import MAIN, PRIMER, SUBAGENT, WARMUP, SessionTree, Turn, capped_clock_s, tree_from_turns
from kvsim.workload.trees import (
    ReplayRules,
    build_closed_loop,
    build_open_loop,
    resume,
    shortest_life_s,
)
from tests.workload.helpers import forked, line, play

FROM_FIRST_TURN = ReplayRules(start_frac=None)
COLD = ReplayRules(warmup_requests=0)


def test_joined_turn_waits_for_its_subagent_and_not_for_the_background() -> None:
    w = build_closed_loop([forked()], 1, rules=ReplayRules(start_frac=None, idle_cap_s=math.inf))
    # Service 2 s: 0-2 main; sub-agents at 10 and 11; second inner turn at 12 + 8; parent joins at 22 + 8.
    assert play(w, np.full(5, 2.0)).tolist() == [0.0, 10.0, 11.0, 20.0, 30.0]
    # A background request of 100 s holds nobody back; a joined one of 100 s does.
    assert play(w, np.array([2.0, 2.0, 100.0, 2.0, 2.0])).tolist() == [0.0, 10.0, 11.0, 20.0, 30.0]
    assert play(w, np.array([2.0, 100.0, 2.0, 2.0, 2.0])).tolist() == [0.0, 10.0, 11.0, 118.0, 128.0]


def test_gaps_and_idle_time_are_capped() -> None:
    tree = line(3, period_s=1002.0)
    w = build_closed_loop([tree], 1, rules=ReplayRules(start_frac=None, idle_cap_s=math.inf))
    assert play(w, np.full(3, 2.0)).tolist() == [0.0, 302.0, 604.0]
    w = build_closed_loop([tree], 1, rules=FROM_FIRST_TURN)
    assert play(w, np.full(3, 2.0)).tolist() == [0.0, 12.0, 24.0]


def test_lane_goes_on_with_the_next_session_at_once() -> None:
    w = build_closed_loop([line(2), line(3), line(1)], 2, rules=FROM_FIRST_TURN)
    assert (w.lane_sessions, w.recycle) == (((0,), (1,)), (2,))
    assert play(w, np.full(6, 2.0)).tolist() == [0.0, 10.0, 0.0, 10.0, 20.0, 12.0]


def test_background_work_keeps_the_lane() -> None:
    w = build_closed_loop([forked(), line(1)], 1, rules=FROM_FIRST_TURN)
    arrival = play(w, np.array([2.0, 2.0, 500.0, 2.0, 2.0, 2.0]))
    assert arrival[5] == 511.0


def test_session_played_twice_finds_nothing_of_the_first_time() -> None:
    w = build_closed_loop([line(2)], 1, rules=ReplayRules(start_frac=None, num_plays=3))
    assert w.requests.session.tolist() == [0, 0, 1, 1, 2, 2]
    assert ideal_cached_tokens(w.requests, range(6)).tolist() == [0, 110, 0, 110, 0, 110]


def test_shared_contents_stay_shared() -> None:
    tree = tree_from_turns("s", [Turn(((0, 70), (1, 30)), 10, 1, 0.0, 0.0)], num_contents=2, num_shared=1)
    w = build_closed_loop([tree], 1, rules=ReplayRules(start_frac=None, num_plays=3))
    assert ideal_cached_tokens(w.requests, range(3)).tolist() == [0, 70, 70]


def test_resume_primes_the_last_skipped_turn_of_every_stream_that_goes_on() -> None:
    rest = resume(forked(), 0.5, COLD)  # 15 s of 30: one inner turn is left, and the joined main turn
    assert rest.kind.tolist() == [PRIMER, PRIMER, SUBAGENT, MAIN]
    assert rest.stream.tolist() == [0, 1, 1, 0]
    assert rest.prompt_tokens.tolist() == [100, 30, 60, 150]
    assert rest.output_tokens.tolist() == [1, 1, 5, 10]
    assert rest.gap_s.tolist() == [0.0, 0.0, 5.0, 8.0]
    assert [rest.dep_index[a:b].tolist() for a, b in zip(rest.dep_offsets[:-1], rest.dep_offsets[1:], strict=True)] \
        == [[], [], [0, 1], [0, 1, 2]]


def test_resume_plays_warmup_requests_back_to_back() -> None:
    rest = resume(line(6), 0.75, ReplayRules(warmup_requests=2))  # 37.5 s of 50: turns 2 and 3 warm up
    assert rest.kind.tolist() == [PRIMER, WARMUP, WARMUP, MAIN, MAIN]
    assert rest.prompt_tokens.tolist() == [150, 200, 250, 300, 350]
    assert rest.gap_s.tolist() == [0.0, 0.0, 0.0, 2.5, 8.0]


def test_capped_clock_places_the_start() -> None:
    tree = line(3, period_s=1000.0)
    assert capped_clock_s(tree, 300.0).tolist() == [0.0, 300.0, 600.0]
    assert resume(tree, 0.4, COLD).prompt_tokens.tolist() == [100, 150, 200]
    assert resume(tree, 0.6, COLD).gap_s.tolist() == [0.0, 240.0]


def test_no_lane_begins_before_all_are_warm() -> None:
    w = build_closed_loop([line(9), line(9, 500)], 2, seed=1,
                          rules=ReplayRules(idle_cap_s=math.inf, warmup_requests=0))
    r = w.requests
    primers = np.flatnonzero(r.traffic_class == PRIMER)
    service = np.where(r.prompt_tokens > 450, 60.0, 1.0)
    arrival = play(w, service)
    assert len(primers) == 2
    assert (arrival[primers] == 0.0).all()
    assert arrival[r.traffic_class == MAIN].min() >= 60.0
    loose = build_closed_loop([line(9), line(9, 500)], 2, seed=1,
                              rules=ReplayRules(idle_cap_s=math.inf, warmup_requests=0, barrier=False))
    assert play(loose, service)[r.traffic_class == MAIN].min() < 60.0


def test_starts_are_between_the_given_shares() -> None:
    w = build_closed_loop([line(101)] * 200, 200, rules=COLD)
    first = w.requests.prompt_tokens[np.searchsorted(w.requests.session, np.arange(200))]
    turn = (first - 100) // 50
    assert turn.min() >= 24
    assert turn.max() <= 75
    assert 45 < turn.mean() < 55


def test_enough_sessions_for_the_window() -> None:
    rules = ReplayRules(start_frac=None, until_s=500.0)
    w = build_closed_loop([line(2), line(4)], 3, rules=rules)
    arrival = play(w, np.full(len(w.requests), 0.002))
    last_s = [arrival[w.requests.session == s].max() + 0.002 for s in range(len(w.recycle) + 3)]
    over = sum(end < 500.0 for end in last_s)  # nan: not all of its requests came
    assert 80 < over <= len(last_s) - 3  # every lane still had a session when the window closed


def test_shortest_life_is_gaps_and_tokens() -> None:
    assert shortest_life_s(line(3, period_s=1000.0), 10.0) == pytest.approx(20.0 + 30 * 1e-4)
    assert shortest_life_s(line(3, period_s=1000.0), 10.0, 0.01) == pytest.approx(20.0 + 30 * 0.01)
    assert shortest_life_s(line(1), 10.0) > 0


def test_open_loop_keeps_recorded_times() -> None:
    w = build_open_loop([forked(), line(2)], [100.0, 105.0])
    assert w.requests.arrival_s.tolist() == [100.0, 105.0, 110.0, 111.0, 115.0, 120.0, 130.0]
    assert w.requests.session.tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert w.requests.prompt_tokens.tolist() == [100, 100, 30, 40, 150, 60, 150]
    assert len(w.requests.dep_index) == 0
    assert w.lane_sessions is None


def test_impossible_loops_are_refused() -> None:
    with pytest.raises(ScenarioError):
        build_closed_loop([], 4)
    with pytest.raises(ScenarioError):
        build_closed_loop([line()], 0)
    with pytest.raises(ScenarioError):
        build_open_loop([line()], [0.0, 1.0])


@st.composite
def random_trees(draw: st.DrawFn) -> SessionTree:
    """A session whose turns wait for any earlier ones."""
    turns: list[Turn] = []
    for k in range(draw(st.integers(1, 7))):
        after = tuple(sorted(draw(st.sets(st.integers(0, k - 1), max_size=2)))) if k else ()
        start_s = max((turns[d].start_s for d in after), default=0.0) + draw(st.floats(0, 400))
        turns.append(Turn(((draw(st.integers(0, 3)), draw(st.integers(1, 90))),), draw(st.integers(1, 9)), 0, start_s,
                          draw(st.floats(0, 400)), stream=draw(st.integers(0, 2)), after=after))
    return tree_from_turns("random", turns, 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(random_trees(), min_size=1, max_size=5), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_every_session_is_played_and_nobody_overtakes(trees: list[SessionTree], lanes: int, middle: bool,
                                                      warmup: int) -> None:
    rules = ReplayRules(start_frac=(0.25, 0.75) if middle else None, warmup_requests=warmup)
    w = build_closed_loop(trees, lanes, rules=rules)
    service = 0.5 + w.requests.output_tokens / 10
    arrival = play(w, service)
    assert np.isfinite(arrival).all()
    assert sorted([s for lane in w.lane_sessions or () for s in lane] + list(w.recycle)) \
        == list(range(max(len(trees), lanes)))
    for i in range(len(arrival)):
        waited = [arrival[d] + service[d] for d in w.requests.deps(i)]
        assert arrival[i] >= max(waited, default=0.0) - 1e-9


@settings(max_examples=30, deadline=None)
@given(random_trees(), st.floats(0.01, 0.99), st.integers(0, 3))
def test_resume_keeps_every_request_from_the_start_on(tree: SessionTree, frac: float, warmup: int) -> None:
    rest = resume(tree, frac, ReplayRules(warmup_requests=warmup))
    clock = capped_clock_s(tree, 300.0)
    kept = clock >= frac * clock[-1]
    regular = rest.kind < PRIMER
    assert rest.prompt_tokens[regular].tolist() == tree.prompt_tokens[kept].tolist()
    assert set(rest.stream[rest.kind == PRIMER].tolist()) <= set(rest.stream[rest.kind != PRIMER].tolist())
    rows = np.repeat(np.arange(len(rest)), np.diff(rest.dep_offsets))
    assert (rest.dep_index < rows).all()


def test_same_seed_same_workload() -> None:
    trees = make_trees(AGENTX_V1, 6, seed=3)
    one, two, other = (build_closed_loop(trees, 4, seed=s).requests for s in (1, 1, 2))
    assert np.array_equal(one.piece_tokens, two.piece_tokens)
    assert np.array_equal(one.think_s, two.think_s)
    assert not np.array_equal(one.think_s, other.think_s)
