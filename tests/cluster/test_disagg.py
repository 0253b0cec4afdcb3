"""Prefill and decode apart: what is conserved, and what equals replicas that do both."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from kvsim.cluster.disagg import SplitSpec, run_split
from kvsim.cluster.disagg_links import Links, LinkSpec, Parcel, Pull
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run
from kvsim.cluster.spec import ClusterSpec
from kvsim.engine import core
from kvsim.engine.types import FINISHED, REFUSED, EngineConfig
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ENDED, STEP, alone, chats, check_conserved
from tests.engine.strategies import Problem, random_problem

SEEDS = range(60)
ROOM = EngineConfig(100_000, 16, 64, 4096, 100_000)


def random_spec(problem: Problem, seed: int) -> SplitSpec:
    """Some replicas of a problem's engine on both sides, and some network."""
    rng = random.Random(seed)
    replica = ReplicaSpec(problem.config, problem.step_time)
    decode = replace(replica, config=replace(problem.config, prefix_caching=rng.random() < 0.5))
    link = LinkSpec(rng.choice([math.inf, 100.0, 5.0]), rng.choice([0.0, 0.3]), rng.random() < 0.7,
                    rng.choice(["whole", "layerwise"]))
    parcel = Parcel(3.0, 2.0, 2, 4, 5, checkpoint_bytes=0.5)
    return SplitSpec((replica,) * rng.randint(1, 3), (decode,) * rng.randint(1, 3), parcel, link,
                     RouterSpec(rng.choice(["round_robin", "session_affinity"])), RouterSpec("least_loaded"),
                     rng.choice([0, 0, problem.config.block_tokens * 2]), seed)


def undrafted(seed: int) -> Problem:
    """A random problem without drafts."""
    kind = random.Random(seed).choice(["full", "hybrid", "nocache", "priority"])
    return random_problem(seed, kind)


def handed_over(done: ClusterRun) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows whose KV was pulled."""
    assert done.split is not None
    was = (done.split.prefill_of >= 0) & np.isfinite(done.split.decode_records.admitted_s)
    return np.flatnonzero(was)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_once_and_every_byte_arrives(seed: int) -> None:
    problem = undrafted(seed)
    spec = random_spec(problem, seed)
    done = run_split(replace(problem.workload, until_s=math.inf), spec)
    records, split = done.run.records, done.split
    assert split is not None
    check_conserved(records)
    ended = records.status == FINISHED
    assert (records.output_tokens[ended] == problem.workload.requests.output_tokens[ended]).all()
    rows = handed_over(done)
    assert split.num_handed_over == len(rows) == len(split.wait_s)
    assert split.num_handed_over + split.num_local == int(ended.sum())
    block = problem.config.block_tokens
    whole = int((-(-records.prompt_tokens[rows] // block)).sum())
    assert split.num_blocks == whole - split.local_tokens // block
    moved = split.num_blocks * 3.0 + len(rows) * 2.0 + split.num_checkpoints * 0.5
    assert sum(one.num_bytes for one in split.received) == pytest.approx(moved)
    keeps = spec.decode[0].config.prefix_caching and problem.config.state_groups > 0
    assert split.num_checkpoints <= len(rows) * keeps
    assert sum(one.num_bytes for one in split.sent) == pytest.approx(sum(one.num_bytes for one in split.received))
    assert sum(one.transfers for one in split.sent[:split.num_prefill]) == len(rows)
    assert (split.wait_s >= spec.link.latency_s * 0.999).all()


@pytest.mark.parametrize("seed", range(12))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    problem = undrafted(seed)
    one, two = (run_split(problem.workload, random_spec(problem, seed)) for _ in range(2))
    for name in ENDED:
        assert np.array_equal(getattr(one.run.records, name), getattr(two.run.records, name), equal_nan=True)
    assert one.split is not None
    assert two.split is not None
    assert one.split.received == two.split.received


@pytest.mark.parametrize("seed", SEEDS)
def test_decode_replicas_that_prefill_everything_equal_replicas_that_do_both(seed: int) -> None:
    problem = undrafted(seed)
    replica = ReplicaSpec(problem.config, problem.step_time)
    router = RouterSpec("session_affinity")
    split = run_split(problem.workload, SplitSpec((replica,), (replica,) * 2, Parcel(1.0), decode_router=router,
                                                  local_tokens=10**9))
    both = run(problem.workload, ClusterSpec((replica,) * 2, router))
    for name in ENDED:
        assert np.array_equal(getattr(split.run.records, name), getattr(both.run.records, name), equal_nan=True), name
    assert split.split is not None
    assert split.split.num_handed_over == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prefill_replica_equals_an_engine_that_gives_one_token(seed: int) -> None:
    problem = undrafted(seed)
    problem = replace(problem, workload=replace(problem.workload, max_in_flight=(), until_s=math.inf))
    done = run_split(problem.workload, replace(random_spec(problem, seed), local_tokens=0))
    assert done.split is not None
    first = done.split.prefill_records
    rows = np.flatnonzero(done.split.prefill_of == 0).tolist()
    if not rows:
        return
    asked = alone(problem.workload, rows, first.arrival_s)
    single = replace(asked.requests, output_tokens=np.ones(len(rows), np.int64))
    engine = core.run(Workload(single), problem.config, problem.step_time).records
    assert engine.cached_tokens.tolist() == first.cached_tokens[rows].tolist()
    assert engine.finish_s.tolist() == first.finish_s[rows].tolist()


def spaced(seed: int, shares_outputs: bool) -> Workload:
    """Requests one after the other, whose prompts begin with shared contents or with an earlier prompt and output."""
    rng, rows = random.Random(seed), list[Row]()
    for i in range(rng.randint(5, 40)):
        prompt = [(rng.randrange(3), rng.randrange(1, 200)), (10 + i, rng.randrange(1, 100))]
        if shares_outputs and rows and rng.random() < 0.6:
            before = rng.choice(rows)
            prompt = [*before.prompt, (before.output_content, before.output_tokens), (10 + i, rng.randrange(1, 50))]
        rows.append(Row(prompt, rng.randrange(1, 60), 1000 + i, session=rng.randrange(4), arrival_s=100.0 * i))
    return Workload(requests_from_rows(rows))


@pytest.mark.parametrize("seed", range(30))
def test_an_infinite_link_reproduces_the_hits_of_replicas_that_do_both(seed: int) -> None:
    """Fixed dispatch by session, room for everything; prefill replicas never see outputs, decode replicas do."""
    replica, router = ReplicaSpec(ROOM, STEP), RouterSpec("session_affinity")
    spec = SplitSpec((replica,) * 2, (replica,) * 2, Parcel(1.0), router=router, decode_router=router)
    for shares_outputs in (False, True):
        workload = spaced(seed, shares_outputs)
        both = run(workload, ClusterSpec((replica,) * 2, router)).run.records.cached_tokens
        done = run_split(workload, spec)
        assert done.split is not None
        blocks = -(-done.run.records.prompt_tokens // ROOM.block_tokens)
        assert done.split.local_tokens == int(both.sum())
        assert done.split.num_blocks == int(blocks.sum()) - int(both.sum()) // ROOM.block_tokens
        if not shares_outputs:
            assert done.run.records.cached_tokens.tolist() == both.tolist()
        else:
            assert (done.run.records.cached_tokens <= both).all()


def test_later_turns_transfer_only_what_is_new() -> None:
    workload, router = chats(6, 4), RouterSpec("session_affinity")
    replica = ReplicaSpec(replace(CONFIG, num_blocks=4000), STEP)
    bare = replace(replica, config=replace(replica.config, prefix_caching=False))
    blocks: list[int] = []
    for decode in (bare, replica):
        done = run_split(workload, SplitSpec((replica,), (decode,) * 2, Parcel(1.0), router=router,
                                             decode_router=router))
        assert done.split is not None
        blocks.append(done.split.num_blocks)
    assert blocks[0] == sum(-(-p // 16) for p in workload.requests.prompt_tokens.tolist())
    assert blocks[1] < blocks[0] / 2


def growing(num_sessions: int, num_turns: int) -> Workload:
    """Sessions that share nothing; each turn is the one before and more."""
    rows: list[Row] = []
    for s in range(num_sessions):
        for t in range(num_turns):
            rows.append(Row([(s, 150 + 37 * t)], 20, 100 + len(rows), session=s, think_s=3.0,
                            after=(len(rows) - 1,) if t else (), arrival_s=5.0 * s))
    return Workload(requests_from_rows(rows))


def test_checkpoints_let_the_decode_side_of_a_hybrid_find_what_replicas_that_do_both_find() -> None:
    workload, router = growing(5, 6), RouterSpec("session_affinity")
    replica = ReplicaSpec(replace(ROOM, state_groups=3), STEP)
    both = run(workload, ClusterSpec((replica,) * 2, router)).run.records.cached_tokens
    done = run_split(workload, SplitSpec((replica,) * 2, (replica,) * 2, Parcel(7.0, 5.0, checkpoint_bytes=3.0),
                                         router=router, decode_router=router))
    split = done.split
    assert split is not None
    assert split.local_tokens == int(both.sum()) > 0
    prompts = workload.requests.prompt_tokens
    blocks = int((-(-prompts // 16)).sum()) - split.local_tokens // 16
    # A prompt one token longer than whole blocks goes on from its checkpoint: no second state is sent for it.
    more = int(((prompts - 1) % 16 > 0).sum())
    assert (split.num_blocks, split.num_checkpoints) == (blocks, more)
    assert sum(one.num_bytes for one in split.received) == 7.0 * blocks + 5.0 * len(prompts) + 3.0 * more


def test_a_checkpoint_that_is_there_is_not_sent_again() -> None:
    rows = [Row([(0, 150)], 5, 1), Row([(0, 150)], 5, 2, arrival_s=9.0), Row([(0, 145)], 5, 3, arrival_s=18.0)]
    replica = ReplicaSpec(replace(ROOM, state_groups=1), STEP)
    for caching, found, sent in ((True, 2 * 144, 1), (False, 0, 0)):
        decode = replace(replica, config=replace(replica.config, prefix_caching=caching))
        split = run_split(Workload(requests_from_rows(rows)), SplitSpec((replica,), (decode,), Parcel(1.0))).split
        assert split is not None
        assert (split.local_tokens, split.num_checkpoints) == (found, sent)


def test_a_slow_link_delays_the_first_token_and_layers_hide_it() -> None:
    workload, replica = chats(4, 2), ReplicaSpec(CONFIG, STEP)
    spec = SplitSpec((replica,), (replica,), Parcel(1e6, num_layers=50))
    links = LinkSpec(), LinkSpec(1e9), LinkSpec(1e9, transfer="layerwise")
    fast, whole, layers = (float(run_split(workload, replace(spec, link=link)).run.records.first_token_s.mean())
                           for link in links)
    assert fast <= layers < whole


def test_transfers_of_a_replica_wait_for_each_other_unless_links_are_not_shared() -> None:
    for is_shared, second_s in ((True, 4.0), (False, 2.0)):
        links = Links(LinkSpec(10.0, shared=is_shared), Parcel(40.0, prefill_gpus=2, decode_gpus=4), 4)
        assert [links.send(0, target, Pull(1, 0, 0.0), 0.0) for target in (2, 3)] == [2.0, second_s]
        assert links.send(1, 2, Pull(1, 0, 0.0), 0.0) == second_s
        assert links.sent[0].num_bytes == 80.0


def test_what_no_replica_can_hold_is_refused_before_it_is_prefilled() -> None:
    workload = Workload(requests_from_rows([Row([(0, 600)], 20, 0), Row([(1, 100)], 20, 1)]))
    small = ReplicaSpec(replace(CONFIG, num_blocks=30), STEP)
    done = run_split(workload, SplitSpec((ReplicaSpec(CONFIG, STEP),), (small,), Parcel(1.0)))
    assert done.run.records.status.tolist() == [REFUSED, FINISHED]
    assert "blocks" in done.run.records.refusals[0] or "tokens" in done.run.records.refusals[0]
    assert done.split is not None
    assert done.split.prefill_of.tolist() == [-1, 0]
