"""Routers: laws for all of them, and each one's rule on numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.base import Router
from kvsim.cluster.routers.registry import KINDS, RouterSpec, check_router, make_router
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec
from kvsim.cluster.view import RoutedPrefixes, View
from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.scenario import RouterName
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ROUTERS, STEP, chats, check_conserved, cluster, uncapped

REPLICA = ReplicaSpec(CONFIG, STEP)


def play(workload: Workload, router: RouterSpec | str, num: int = 4, seed: int = 0) -> ClusterRun:
    spec = RouterSpec(router) if isinstance(router, str) else router
    return run(workload, ClusterSpec((REPLICA,) * num, spec, seed=seed))


def hit_frac(done: ClusterRun) -> float:
    records = done.run.records
    return float(records.cached_tokens.sum() / records.prompt_tokens.sum())


def router_of(workload: Workload, spec: RouterSpec, num: int = 2) -> tuple[Router, View, Fleet]:
    fleet = Fleet(workload, (REPLICA,) * num)
    router, view = make_router(spec, fleet, 0)
    return router, view, fleet


def test_scenarios_accept_exactly_the_registered_routers() -> None:
    assert set(RouterName.__args__) == set(KINDS)


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=st.integers(0, 10**6), num=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_every_request_is_served_once(router: str, seed: int, num: int) -> None:
    problem = uncapped(seed)
    workload = replace(problem.workload, until_s=float("inf"))
    try:
        done = cluster(replace(problem, workload=workload), num, router)
    except InfeasibleError:
        return
    records = done.run.records
    check_conserved(records)
    assert ((done.replica_of >= 0) == (records.status == 0)).all()
    served = [len(done.part(r).records.status) for r in range(num)]
    assert sum(served) == int((records.status == 0).sum())


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=6, deadline=None)
def test_the_same_seed_gives_the_same_run(router: str, seed: int) -> None:
    once, again = (play(chats(9, 3), router, 3, seed) for _ in range(2))
    for name in ("arrival_s", "first_token_s", "finish_s", "cached_tokens"):
        assert getattr(once.run.records, name).tobytes() == getattr(again.run.records, name).tobytes()
    assert once.replica_of.tobytes() == again.replica_of.tobytes()


@given(seed=st.integers(0, 10**6), age_s=st.sampled_from([0.0, 0.01, 1.0]))
@settings(max_examples=30, deadline=None)
def test_least_loaded_never_takes_a_more_loaded_one_as_far_as_it_sees(seed: int, age_s: float) -> None:
    """Loads are counted here from the records, at the time that the router's snapshot is of."""
    problem = uncapped(seed, "full")
    workload = replace(problem.workload, until_s=float("inf"), ties_by_finish=False)
    replica = ReplicaSpec(problem.config, problem.step_time)
    done = run(workload, ClusterSpec((replica,) * 3, RouterSpec("least_loaded", age_s)))
    records, sent = done.run.records, done.replica_of
    rows = [i for i in np.lexsort((np.arange(len(sent)), records.arrival_s)) if sent[i] >= 0]
    for k, i in enumerate(rows):
        at_s = records.arrival_s[i] - age_s
        earlier = [j for j in rows[:k] if records.arrival_s[j] <= at_s and records.finish_s[j] > at_s]
        # Requests that come at one moment are handed on in the order of their lanes, which the records do not tell.
        beside = [j for j in rows[k + 1:] if records.arrival_s[j] == records.arrival_s[i] and not age_s]
        loads = [sum(1 for j in earlier if sent[j] == r) for r in range(3)]
        before = sum(1 for j in earlier if records.arrival_s[j] == records.arrival_s[i] and sent[j] == sent[i])
        assert loads[sent[i]] - before <= min(loads[r] + sum(1 for j in beside if sent[j] == r) for r in range(3))


def test_round_robin_goes_round() -> None:
    rows = [Row([(i, 50)], 5, 100 + i, arrival_s=0.1 * i) for i in range(7)]
    assert play(Workload(requests_from_rows(rows)), "round_robin", 3).replica_of.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_session_stays_where_it_is() -> None:
    workload = chats(12, 5)
    done = play(workload, "session_affinity")
    for s in range(12):
        assert len(set(done.replica_of[workload.requests.session == s].tolist())) == 1
    assert len(set(done.replica_of.tolist())) == 4


@pytest.mark.parametrize("router", ["session_affinity", "prefix_aware", "sglang", "dynamo", "llm_d"])
def test_affinity_finds_more_than_round_robin(router: str) -> None:
    workload = chats(13, 6)
    assert hit_frac(play(workload, router)) > hit_frac(play(workload, "round_robin")) + 0.1


def test_prefix_aware_follows_the_cache_or_what_it_sent() -> None:
    workload = chats(13, 6)
    index, routed = (play(workload, RouterSpec("prefix_aware", params={"sees": sees})) for sees in ("index", "routed"))
    assert hit_frac(index) == pytest.approx(hit_frac(routed), abs=0.05)


def test_power_of_two_takes_the_emptier_of_two() -> None:
    router, view, _ = router_of(chats(2, 1), RouterSpec("power_of_two"), 2)
    view.note(0, 5, 0.0)
    assert {router.choose(0, 0.0, [0, 1]) for _ in range(20)} == {1}
    assert router.choose(0, 0.0, [0]) == 0


def shared(num: int) -> Workload:
    """Prompts that share 320 of 400 tokens."""
    return Workload(requests_from_rows([Row([(0, 320), (1 + i, 80)], 5, 100 + i) for i in range(num)]))


def test_sglang_takes_the_shortest_queue_when_loads_are_uneven() -> None:
    router, view, _ = router_of(shared(9), RouterSpec("sglang"))
    first = router.choose(0, 0.0, [0, 1])
    assert router.choose(1, 0.0, [0, 1]) == first            # 80 % match
    view.note(first, 65, 0.0)
    assert router.choose(2, 0.0, [0, 1]) == 1 - first          # 65 more than the other, and more than 1.5 x as many
    view.note(1 - first, 50, 0.0)
    assert router.choose(3, 0.0, [0, 1]) in (0, 1)             # 65 against 50: even enough
    router.lost(first)
    assert router.choose(4, 0.0, [0, 1]) == 1 - first          # only there the prefix is remembered


def test_sglang_takes_the_smallest_tree_when_nothing_matches() -> None:
    router, _, _ = router_of(Workload(requests_from_rows([Row([(i, 100 * (i + 1))], 5, 9) for i in range(4)])),
                             RouterSpec("sglang"))
    assert [router.choose(i, 0.0, [0, 1]) for i in (3, 0, 1, 2)] == [0, 1, 1, 1]


def test_dynamo_adds_prefill_and_decode_blocks() -> None:
    """400 tokens queued at one cost 25 blocks of prefill and as many of decode; the other costs nothing."""
    router, _, fleet = router_of(shared(4), RouterSpec("dynamo"))
    first = router.choose(0, 0.0, [0, 1])
    assert router.choose(1, 0.0, [0, 1]) == 1 - first
    fleet.columns.first_token_s[0] = 1.0
    router.ended(0, first, 2.0)
    assert router.choose(2, 2.0, [0, 1]) == first


def test_dynamo_draws_with_a_temperature() -> None:
    router, _, _ = router_of(shared(60), RouterSpec("dynamo", params={"temperature": 1e9}))
    assert len({router.choose(i, 0.0, [0, 1]) for i in range(20)}) == 2


def test_llm_d_weighs_prefix_queue_and_kv() -> None:
    """A full match (3) outweighs the longest queue (-2); nothing matched, the queue decides."""
    router, view, _ = router_of(shared(9), RouterSpec("llm_d", 0.0))
    first = router.choose(0, 0.0, [0, 1])
    view.note(first, 3, 0.0)
    assert router.choose(1, 0.0, [0, 1]) == first             # 3 x 20/25 + 0 against 0 + 2
    router.lost(first)
    assert router.choose(2, 0.0, [0, 1]) == 1 - first


def test_llm_d_sees_the_first_tokens_only() -> None:
    """What lies behind `max_prefix_tokens` looks alike: with 16 of them, every prompt here is the same."""
    far = Workload(requests_from_rows([Row([(0, 16), (1 + i % 2, 384)], 5, 100 + i) for i in range(6)]))
    near, far_sighted = (router_of(far, RouterSpec("llm_d", 0.0, {"max_prefix_tokens": n})) for n in (16.0, 1e9))
    view = far_sighted[1]
    picks = [far_sighted[0].choose(i, 0.0, [0, 1]) for i in range(1)]
    view.note(picks[0], 3, 0.0)
    assert far_sighted[0].choose(1, 0.0, [0, 1]) != picks[0]
    first = near[0].choose(0, 0.0, [0, 1])
    near[1].note(first, 3, 0.0)
    assert near[0].choose(1, 0.0, [0, 1]) == first


def test_vllm_ranks_count_waiting_four_times() -> None:
    router, view, _ = router_of(shared(4), RouterSpec("vllm_dp"))
    view.note(0, 1, 0.0)
    view.look(0.1)
    assert router.choose(0, 0.1, [0, 1]) == 1
    assert router.choose(1, 0.1, [0, 1]) == 0     # both have one that waits: the other's was sent just now


def test_snapshots_are_as_old_as_stated() -> None:
    _, view, _ = router_of(shared(4), RouterSpec("least_loaded", 2.0))
    view.note(0, 1, at_s=10.0)
    view.look(11.9)
    assert view.load == [0, 0]
    view.look(12.0)
    assert view.load == [1, 0]
    assert view.status(0, 12.0).waiting == 1


def test_a_router_forgets_the_least_recent_prefix() -> None:
    workload = Workload(requests_from_rows([Row([(i, 160)], 5, 100 + i) for i in range(4)] * 2))
    view = router_of(workload, RouterSpec("round_robin"), 1)[1]
    sent = RoutedPrefixes(view, [330.0])
    for i in (0, 1, 2):
        sent.note(sent.path(i), 0)
    assert [sent.matched_blocks(sent.path(i), 0) for i in range(4)] == [0, 10, 10, 0]
    assert sent.num_blocks == [20]


@pytest.mark.parametrize(("spec", "match"), [
    (RouterSpec("rround_robin"), "did you mean 'round_robin'"),
    (RouterSpec("least_loaded", params={"slack": 1.0}), "no parameters"),
    (RouterSpec("prefix_aware", params={"sees": 3.0}), "a str"),
])
def test_wrong_routers_are_named(spec: RouterSpec, match: str) -> None:
    with pytest.raises(ScenarioError, match=match):
        check_router(spec, "x.yaml")


def test_all_parameters_are_accepted() -> None:
    able: Sequence[int] = [0, 1]
    for kind in KINDS:
        router, _, _ = router_of(shared(3), RouterSpec(kind))
        assert router.choose(0, 0.0, able) in able
