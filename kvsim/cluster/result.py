"""What a cluster's run was: the whole as one engine run, and each replica's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.tiers.config import TierTotals
from kvsim.cluster.disagg_links import Sent
from kvsim.cluster.fleet import Fleet
from kvsim.cluster.replica import Replica
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.spec import ClusterSpec
from kvsim.engine.step_log import merged_steps
from kvsim.engine.types import EngineRun, RunRecords, RunTotals, Timeline

Ints = NDArray[np.int64]


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
    """

    run: EngineRun
    replicas: tuple[ReplicaRun, ...]
    replica_of: Ints
    router: RouterSpec
    mean_replicas: float
    least_replicas: float
    split: SplitRun | None = None

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


def result_of(fleet: Fleet, spec: ClusterSpec, counters: Mapping[str, int]) -> ClusterRun:
    """End all lives and sum up."""
    replicas = tuple(_replica_run(replica) for replica in fleet.replicas)
    records = fleet.columns.records(fleet.source.arrival_s)
    totals = merged_totals([r.totals for r in replicas])
    trie = fleet.trie(fleet.replicas[0].spec.config.block_tokens)
    extra = {"refused_requests": len(records.refusals), "chains": len(trie.start_block), **counters}
    # A request that was refused last is an event too, but no engine knows of it.
    end_s = max(totals.makespan_s, fleet.now_s)
    totals = replace(totals, counters={**totals.counters, **extra}, makespan_s=end_s)
    timeline = merged_timeline([r.timeline for r in replicas])
    mean, least = _replicas_used(fleet, spec, timeline, end_s)
    return ClusterRun(EngineRun(records, totals, timeline), replicas, np.array(fleet.replica_of, np.int64),
                      spec.router, mean, least)


def _replicas_used(fleet: Fleet, spec: ClusterSpec, timeline: Timeline, end_s: float) -> tuple[float, float]:
    """Mean replicas that were up or starting, and those of a perfect autoscaler."""
    rule, count = spec.autoscale, float(len(spec.replicas))
    if rule is None or end_s <= 0:
        return count, count
    lives = [life for group in fleet.groups for life in fleet.replicas[group[0]].up_s]
    paid_s = sum([min(stop_s, end_s) - begin_s + (rule.startup_s if begin_s else 0.0) for begin_s, stop_s in lives])
    in_flight = np.concatenate([[0], timeline.running + timeline.waiting])
    wanted = np.clip(np.ceil(in_flight / rule.target_in_flight), rule.min_replicas, count)
    length = np.diff(np.concatenate([[0.0], np.minimum(timeline.time_s, end_s), [end_s]]))
    return paid_s / end_s, float((wanted * length).sum() / end_s)


def _replica_run(replica: Replica) -> ReplicaRun:
    end_s = replica.engine.now_s if replica.engine is not None else 0.0
    replica.end(end_s)
    totals = merged_totals([totals for totals, _ in replica.lives])
    return ReplicaRun(replica.spec.kind, totals, _joined([timeline for _, timeline in replica.lives]),
                      tuple(replica.up_s))


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
    """Tiers of equal rank summed up."""
    found: list[TierTotals] = []
    for same in zip(*parts, strict=True):
        names = [n for n in TierTotals.__dataclass_fields__ if n != "kind"]
        found.append(TierTotals(same[0].kind, **{n: sum(getattr(t, n) for t in same) for n in names}))
    return tuple(found)


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
