"""What a cluster's run was: the whole as one engine run, and each replica's part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.tiers.config import TierTotals
from kvsim.cluster.disagg_links import Sent
from kvsim.cluster.fleet import Fleet
from kvsim.cluster.limits import LimitedRun
from kvsim.cluster.replica import Replica
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.shared import end_steps
from kvsim.cluster.spec import Autoscale, ClusterSpec
from kvsim.engine.step_log import merged_steps
from kvsim.engine.types import EngineRun, RunRecords, RunTotals, Timeline

Ints = NDArray[np.int64]
Spans = tuple[tuple[float, float], ...]
"""Times [s] from when to when something was so."""


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """One replica over all its lives.

    Attributes
    ----------
    kind : str
        Name of its hardware.
    totals, timeline : RunTotals, Timeline
        What it did.
    up_s : tuple of (float, float)
        When it was up [s].
    """

    kind: str
    totals: RunTotals
    timeline: Timeline
    up_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class SplitRun:
    """What prefill and decode replicas did apart.

    Attributes
    ----------
    num_prefill : int
        The first so many replicas prefill.
    prefill_of : int array [n]
        Replica that prefilled each request for another one; -1 = none.
    prefill_records, decode_records : RunRecords
        Requests as both kinds of replicas saw them: on prefill replicas they end with their first token, on decode
        replicas those that were handed over arrive then.
    sent, received : tuple of Sent
        What each replica has sent and received.
    num_handed_over, num_local, num_blocks : int
        Requests whose KV was sent, those that were prefilled where they are decoded, and the blocks (the decode
        side's) that were transferred.
    local_tokens : int
        Prompt tokens of these requests that the decode side had already.
    wait_s : float array [num_handed_over]
        From the end of each prefill to the arrival of its KV [s], time without room on the decode side included.
    num_checkpoints : int
        Checkpoints that were transferred besides the states to go on from.
    """

    num_prefill: int
    prefill_of: Ints
    prefill_records: RunRecords
    decode_records: RunRecords
    sent: tuple[Sent, ...]
    received: tuple[Sent, ...]
    num_handed_over: int
    num_local: int
    num_blocks: int
    local_tokens: int
    wait_s: NDArray[np.float64]
    num_checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run of several replicas.

    Attributes
    ----------
    run : EngineRun
        All requests; sums over all replicas (the makespan is the longest); running, waiting, used and cached blocks
        of all replicas together.
    replicas : tuple of ReplicaRun
        Each replica's part.
    replica_of : int array [n]
        Replica that served each request last; -1 = none.
    router : RouterSpec
        Who chose it.
    mean_replicas, least_replicas : float
        Replicas that were up or starting, averaged over the run; and what a perfect autoscaler would have needed, which
        starts them at once and knows the load at every moment. Equal to all replicas without autoscaling.
    split : SplitRun or None
        What prefill and decode replicas did, where they are apart.
    paid_s : tuple of Spans
        When each replica (with all its ranks) was up or starting [s]; inf ends with the run.
    autoscale : Autoscale or None
        What decided that.
    limited : LimitedRun or None
        What the limits before the router did, where there are any.
    """

    run: EngineRun
    replicas: tuple[ReplicaRun, ...]
    replica_of: Ints
    router: RouterSpec
    mean_replicas: float
    least_replicas: float
    split: SplitRun | None = None
    paid_s: tuple[Spans, ...] = ()
    autoscale: Autoscale | None = None
    limited: LimitedRun | None = None

    def needed(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """From when on [s] a perfect autoscaler runs how many replicas; empty without one."""
        rule, timeline = self.autoscale, self.run.timeline
        if rule is None:
            return np.zeros(0), np.zeros(0)
        in_flight = np.concatenate([[0], timeline.running + timeline.waiting])
        wanted = np.clip(np.ceil(in_flight / rule.target_in_flight), rule.min_replicas, len(self.paid_s))
        return np.concatenate([[0.0], timeline.time_s]), wanted

    def part(self, r: int) -> EngineRun:
        """The run of one replica, with the records of the requests that it served last."""
        one, records, where = self.replicas[r], self.run.records, self.replica_of
        if self.split is not None:
            is_prefill = r < self.split.num_prefill
            records = self.split.prefill_records if is_prefill else self.split.decode_records
            where = self.split.prefill_of if is_prefill else where
        return EngineRun(rows_of(records, np.flatnonzero(where == r)), one.totals, one.timeline)


def rows_of(records: RunRecords, rows: Ints) -> RunRecords:
    """Some rows of records; without the reasons of refusals."""
    columns = {name: getattr(records, name)[rows] for name in RunRecords.__dataclass_fields__ if name != "refusals"}
    return RunRecords(**columns)


def result_of(fleet: Fleet, spec: ClusterSpec, counters: Mapping[str, int],
              paid_s: tuple[Spans, ...] | None = None) -> ClusterRun:
    """End all lives and sum up; `paid_s` where not all replicas are up all the time."""
    end_steps([replica.driver for replica in fleet.replicas])
    last_s = max([fleet.now_s, *(r.engine.now_s for r in fleet.replicas if r.engine is not None)])
    replicas = tuple(_replica_run(replica, last_s) for replica in fleet.replicas)
    records = fleet.columns.records(fleet.source.arrival_s)
    totals = merged_totals([r.totals for r in replicas])
    trie = fleet.trie(fleet.replicas[0].spec.config.block_tokens)
    extra = {"refused_requests": len(records.refusals), "chains": len(trie.start_block), **counters}
    # A request that was refused last is an event too, but no engine knows of it.
    end_s = max(totals.makespan_s, fleet.now_s)
    totals = replace(totals, counters={**totals.counters, **extra}, makespan_s=end_s)
    timeline = merged_timeline([r.timeline for r in replicas])
    done = ClusterRun(EngineRun(records, totals, timeline), replicas, np.array(fleet.replica_of, np.int64),
                      spec.router, float(len(spec.replicas)), float(len(spec.replicas)),
                      paid_s=paid_s or (((0.0, math.inf),),) * len(spec.replicas), autoscale=spec.autoscale)
    return done if spec.autoscale is None or end_s <= 0 else _with_mean_replicas(done, end_s)


def _with_mean_replicas(done: ClusterRun, end_s: float) -> ClusterRun:
    """With the mean replicas that were up or starting, and those of a perfect autoscaler."""
    paid_s = sum([min(stop_s, end_s) - begin_s for spans in done.paid_s for begin_s, stop_s in spans
                  if begin_s < end_s])
    since_s, wanted = done.needed()
    length = np.diff(np.append(np.minimum(since_s, end_s), end_s))
    return replace(done, mean_replicas=paid_s / end_s, least_replicas=float((wanted * length).sum() / end_s))


def _replica_run(replica: Replica, end_s: float) -> ReplicaRun:
    """End a replica's life with the run; one that came up after all was over was never up."""
    is_up = replica.is_up
    replica.end(end_s)
    totals = merged_totals([totals for totals, _ in replica.lives])
    if replica.lives:
        last = replica.lives[-1][0].tiers
        totals = replace(totals, tiers=tuple(replace(
            tier, num_blocks=now.num_blocks, blocks_resident=_resident(replica, i, now, is_up))
            for i, (tier, now) in enumerate(zip(totals.tiers, last, strict=True))))
    return ReplicaRun(replica.spec.kind, totals, _joined([timeline for _, timeline in replica.lives]),
                      tuple((begin_s, stop_s) for begin_s, stop_s in replica.up_s if begin_s < stop_s))


def _resident(replica: Replica, tier: int, last: TierTotals, is_up: bool) -> int:
    """Blocks of a replica's tier that can be found at the end: its own are lost with it, its part of a pool is not."""
    member = replica.member
    if member is not None and tier == len(replica.lives[-1][0].tiers) - 1:
        return member.tier.resident_of(member.index)
    return last.blocks_resident if is_up else 0


def merged_totals(parts: Sequence[RunTotals]) -> RunTotals:
    """Sums of counts and of times in which something was done; the latest end."""
    if len(parts) == 1:
        return parts[0]
    counters: dict[str, int] = {}
    for part in parts:
        for name, count in part.counters.items():
            counters[name] = counters.get(name, 0) + count
    summed = ("steps", "prefill_tokens_computed", "decode_tokens", "prompt_tokens_queried", "prompt_tokens_hit",
              "preemptions", "busy_s", "stalled_s", "load_wait_s")
    sums = {name: sum(getattr(part, name) for part in parts) for name in summed}
    return RunTotals(**sums, makespan_s=max([part.makespan_s for part in parts], default=0.0), counters=counters,
                     tiers=_merged_tiers([part.tiers for part in parts if part.tiers]),
                     step_sums=merged_steps([part.step_sums for part in parts]))


def _merged_tiers(parts: Sequence[tuple[TierTotals, ...]]) -> tuple[TierTotals, ...]:
    """Tiers of one kind summed up: the nearest of each replica, then the next one of that kind."""
    found: dict[tuple[str, int], list[TierTotals]] = {}
    for part in parts:
        kinds = [tier.kind for tier in part]
        for i, tier in enumerate(part):
            found.setdefault((tier.kind, kinds[:i].count(tier.kind)), []).append(tier)
    names = [n for n in TierTotals.__dataclass_fields__ if n != "kind"]
    return tuple(TierTotals(same[0].kind, **{n: sum(getattr(t, n) for t in same) for n in names})
                 for same in found.values())


COUNTS = ("running", "waiting", "used_blocks", "cached_blocks")


def _joined(parts: Sequence[Timeline]) -> Timeline:
    """Lives of one replica one after the other; between them it has nothing."""
    if len(parts) == 1:
        return parts[0]
    times = [part.time_s for part in parts]
    columns = [np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, np.int64)]) for name in COUNTS]
    return Timeline(np.concatenate(times or [np.zeros(0)]), *columns)


def merged_timeline(parts: Sequence[Timeline]) -> Timeline:
    """Sums over replicas at every instant at which one of them changes.

    Examples
    --------
    >>> one = Timeline(np.array([0.0, 2.0]), *[np.array([1, 0])] * 4)
    >>> two = Timeline(np.array([1.0, 2.0]), *[np.array([3, 2])] * 4)
    >>> both = merged_timeline([one, two])
    >>> both.time_s.tolist(), both.running.tolist()
    ([0.0, 1.0, 2.0], [1, 4, 2])
    """
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([part.time_s for part in parts])
    order = np.argsort(times, kind="stable")
    last = np.append(np.diff(times[order]) > 0, True) if len(times) else np.zeros(0, bool)
    columns: list[Ints] = []
    for name in COUNTS:
        changes = np.concatenate([np.diff(getattr(part, name), prepend=0) for part in parts])
        columns.append(np.cumsum(changes[order])[last])
    return Timeline(times[order][last], *columns)
