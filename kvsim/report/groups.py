"""Groups of unlike replicas in a run: what each has, costs and does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.cluster.result import ClusterRun, rows_of
from kvsim.memory.budget import MemoryBudget
from kvsim.memory.capacity import Capacity
from kvsim.report.metrics import Window, latency, throughput
from kvsim.units import gib


@dataclass(frozen=True, slots=True)
class GroupHardware:
    """What a group of replicas is: its GPUs and layout, its HBM, and the $ per hour of its replicas bought alone.

    ``is_logged``: the scenario states the pool, so that the budget's prediction is not used.
    """

    name: str
    replicas: int
    ranks: int
    gpu: str
    num_gpus: int
    layout: str
    budget: MemoryBudget
    capacity: Capacity
    usd_per_hour: float
    is_logged: bool = False


@dataclass(frozen=True, slots=True)
class GroupUse:
    """A group of replicas in the measured window.

    ``num_gpus`` and pool are those of one replica, all else is the whole group's. ``hbm_bytes`` are the lines of the
    HBM budget of its fullest GPU, which sum to the bytes for the pool.
    """

    name: str
    replicas: int
    gpu: str
    num_gpus: int
    layout: str
    hbm_bytes: dict[str, float]
    num_blocks: int
    block_tokens: int
    kv_tokens: float
    usd_per_hour: float
    requests: int
    hit_rate: float
    output_tokens_per_s: float
    total_tokens_per_s_per_gpu: float
    ttft_s_p50: float
    ttft_s_p95: float
    busy_frac: float


def group_uses(done: ClusterRun, groups: Sequence[GroupHardware], window: Window) -> tuple[GroupUse, ...]:
    """What every group did; `groups` in the order of the run's replicas."""
    found: list[GroupUse] = []
    first = 0
    for group in groups:
        found.append(_use(done, group, range(first, first + group.replicas * group.ranks), window))
        first += group.replicas * group.ranks
    return tuple(found)


def _use(done: ClusterRun, group: GroupHardware, ranks: range, window: Window) -> GroupUse:
    records = rows_of(done.run.records, np.flatnonzero(np.isin(done.replica_of, ranks)))
    held = window.holds(records.first_token_s)
    prompt, cached = int(records.prompt_tokens[held].sum()), int(records.cached_tokens[held].sum())
    ttft, rates = latency(records, window).ttft_s, throughput(records, window, group.num_gpus * group.replicas)
    busy_s = sum([done.replicas[r].totals.busy_s for r in ranks]) / max(len(ranks), 1)
    return GroupUse(
        group.name, group.replicas, group.gpu, group.num_gpus, group.layout,
        {line.name: line.num_bytes for line in group.budget.lines}, group.capacity.num_blocks,
        group.capacity.geometry.block_capacity_tokens, group.capacity.kv_tokens, group.usd_per_hour, int(held.sum()),
        cached / prompt if prompt else 0.0, rates.output_tokens_per_s, rates.total_tokens_per_s_per_gpu, ttft.p50,
        ttft.p95, busy_s / max(done.run.totals.makespan_s, 1e-12))


def groups_text(groups: Sequence[GroupUse]) -> str:
    """The groups as a table."""
    width = max([len(g.name) for g in groups])
    lines = [f"{'group':<{width}}  replicas  GPUs each  KV tokens  $/hour  requests  hit rate  output tok/s  "
             "tok/s/GPU  TTFT p50 s  p95 s  busy"]
    lines += [f"{g.name:<{width}}  {g.replicas:>8}  {g.num_gpus:>9}  {g.kv_tokens:>9,.0f}  {g.usd_per_hour:>6.2f}  "
              f"{g.requests:>8}  {g.hit_rate:>8.1%}  {g.output_tokens_per_s:>12.1f}  "
              f"{g.total_tokens_per_s_per_gpu:>9,.0f}  {g.ttft_s_p50:>10.2f}  {g.ttft_s_p95:>5.2f}  {g.busy_frac:>4.0%}"
              for g in groups]
    return "\n".join(lines)


def group_head(group: GroupHardware) -> str:
    """Hardware and HBM budget of a group as text."""
    pool, given = group.capacity, " (as stated, not as predicted)" if group.is_logged else ""
    return (f"{group.name}: {group.replicas} x ({group.num_gpus} x {group.gpu}, {group.layout}), pool of "
            f"{pool.num_blocks:,} blocks of {pool.geometry.block_capacity_tokens:,} tokens, "
            f"{gib(pool.num_blocks * max(pool.geometry.block_bytes))} per GPU{given}\n{group.budget.text()}")
