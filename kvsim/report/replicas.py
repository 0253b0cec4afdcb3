"""How the replicas of a cluster shared a run: load, hits and latency of each, and how uneven they were."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.result import ClusterRun
from kvsim.engine.types import EngineRun, RunRecords, Timeline
from kvsim.report.metrics import Window, latency, throughput


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """One replica in the measured window.

    ``requests`` are those whose first token it gave, ``in_flight`` the mean number that ran or waited in its engine,
    ``busy_frac`` the share of the whole run in which it made steps, ``up_frac`` that in which it was up.
    """

    kind: str
    requests: int
    hit_rate: float
    prompt_tokens_computed: int
    output_tokens_per_s: float
    ttft_s_p50: float
    ttft_s_p95: float
    in_flight: float
    busy_frac: float
    up_frac: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """All replicas of a run.

    ``imbalance`` is the largest replica's part over the mean, of prompt tokens computed and of requests in flight;
    1 = even. ``retries`` are requests that were taken from a failed replica and began again. ``mean_replicas`` were up
    or starting, of which a perfect autoscaler needed ``least_replicas``.
    """

    router: str
    snapshot_age_s: float
    imbalance_computed: float
    imbalance_in_flight: float
    retries: int
    mean_replicas: float
    least_replicas: float
    replicas: tuple[ReplicaUse, ...]


@dataclass(frozen=True, slots=True)
class ReplicaTrack:
    """What one replica did over time: ``rows`` of the requests that it served last, its timeline, when it was up [s].

    ``name`` is its number, or its role and number where prefill and decode are apart.
    """

    name: str
    rows: NDArray[np.int64]
    timeline: Timeline
    up_s: tuple[tuple[float, float], ...]


def tracks_of(done: ClusterRun) -> tuple[ReplicaTrack, ...]:
    """Each replica over time."""
    split = done.split
    found: list[ReplicaTrack] = []
    for r, one in enumerate(done.replicas):
        is_prefill = split is not None and r < split.num_prefill
        where = split.prefill_of if split is not None and is_prefill else done.replica_of
        role = "" if split is None else "prefill " if is_prefill else "decode "
        found.append(ReplicaTrack(f"{role}{r}", np.flatnonzero(where == r), one.timeline, one.up_s))
    return tuple(found)


def cluster_use(done: ClusterRun, window: Window) -> ClusterUse:
    """The table of a run's replicas."""
    replicas = tuple(_use(done, r, window) for r in range(len(done.replicas)))
    return ClusterUse(done.router.kind, done.router.snapshot_age_s,
                      imbalance([r.prompt_tokens_computed for r in replicas]),
                      imbalance([r.in_flight for r in replicas]), done.run.totals.counters["retries"],
                      done.mean_replicas, done.least_replicas, replicas)


def imbalance(parts: list[int] | list[float]) -> float:
    """The largest part over the mean; nan if all are 0.

    >>> imbalance([1, 1, 4])
    2.0
    """
    mean = sum(parts) / max(len(parts), 1)
    return max(parts) / mean if mean else math.nan


def _use(done: ClusterRun, r: int, window: Window) -> ReplicaUse:
    part, whole_s = done.part(r), max(done.run.totals.makespan_s, 1e-12)
    records, totals = part.records, part.totals
    held = window.holds(records.first_token_s)
    prompt, cached = int(records.prompt_tokens[held].sum()), int(records.cached_tokens[held].sum())
    ttft = latency(records, window).ttft_s
    up_s = sum(min(end_s, whole_s) - begin_s for begin_s, end_s in done.replicas[r].up_s)
    return ReplicaUse(done.replicas[r].kind, int(held.sum()), cached / prompt if prompt else 0.0, prompt - cached,
                      throughput(records, window, 1).output_tokens_per_s, ttft.p50, ttft.p95,
                      mean_in_flight(part.timeline, window), totals.busy_s / whole_s, up_s / whole_s,
                      totals.preemptions)


def hits_in(records: RunRecords, window: Window, rows: NDArray[np.int64] | None = None) -> float:
    """Token-weighted hit rate of the requests (or of some rows) with their first token in a window; nan without any."""
    first, prompt, cached = records.first_token_s, records.prompt_tokens, records.cached_tokens
    if rows is not None:
        first, prompt, cached = first[rows], prompt[rows], cached[rows]
    held = window.holds(first)
    asked = int(prompt[held].sum())
    return float(cached[held].sum()) / asked if asked else math.nan


def mean_in_flight(timeline: Timeline, window: Window) -> float:
    """Requests that run or wait, averaged over the window's time."""
    if not len(timeline.time_s) or window.duration_s <= 0:
        return 0.0
    starts = np.clip(timeline.time_s, window.start_s, window.end_s)
    length = np.diff(np.append(starts, window.end_s))
    return float((length * (timeline.running + timeline.waiting)).sum() / window.duration_s)


def cluster_text(use: ClusterUse) -> str:
    """The table as text."""
    head = (f"router {use.router}, snapshots {use.snapshot_age_s * 1e3:g} ms old; largest replica over the mean: "
            f"{use.imbalance_computed:.2f} x prompt tokens computed, {use.imbalance_in_flight:.2f} x in flight")
    if use.retries:
        head += f"; {use.retries} requests began again after a failure"
    if use.mean_replicas < len(use.replicas):
        head += (f"; {use.mean_replicas:.2f} replicas up or starting on average, a perfect autoscaler needs "
                 f"{use.least_replicas:.2f}")
    lines = [head, "replica  requests  hit rate  computed Mtok  output tok/s  TTFT p50 s  p95 s  in flight  busy    up"]
    for i, r in enumerate(use.replicas):
        lines.append(f"{i:>7}  {r.requests:>8}  {r.hit_rate:>8.1%}  {r.prompt_tokens_computed / 1e6:>13.2f}  "
                     f"{r.output_tokens_per_s:>12.1f}  {r.ttft_s_p50:>10.2f}  {r.ttft_s_p95:>5.2f}  "
                     f"{r.in_flight:>9.1f}  {r.busy_frac:>4.0%}  {r.up_frac:>4.0%}  {r.kind}")
    return "\n".join(lines)


def parts_of(done: ClusterRun) -> list[EngineRun]:
    """Each replica's run."""
    return [done.part(r) for r in range(len(done.replicas))]
