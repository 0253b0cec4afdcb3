"""What binds a run: shares of its time by the resource that would have to be larger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.types import REFUSED, EngineConfig, EngineRun
from kvsim.report.metrics import Window

RESOURCES = ("hbm_bandwidth", "compute", "collectives", "kv_capacity", "transfer", "host", "queue")


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the window's time, 0 to 1; what is missing from 1 is time in which the engine had nothing to do.

    ``transfer`` is time in which the engine computes nothing because loads or stores are under way. A load behind which
    others compute holds up its own request alone: that is in the TTFT, and in `kvsim.report.transfers.TierUse`.
    """

    hbm_bandwidth: float
    compute: float
    collectives: float
    kv_capacity: float
    transfer: float
    host: float
    queue: float


@dataclass(frozen=True, slots=True)
class Limits:
    """``binding`` is the resource with the largest share ("idle" when there is none above the idle time)."""

    binding: str
    shares: Shares


@dataclass(frozen=True, slots=True)
class StepSplit:
    """How the time of a run's steps divides.

    Attributes
    ----------
    prefill_frac : float
        Share of it that prefill adds.
    recomputed_frac : float
        Share of the prefilled tokens that an infinite cache would have held.
    prefill, decode : mapping of str to float
        Shares of ``hbm_bandwidth, compute, collectives, host`` in each part; each sums to 1.
    """

    prefill_frac: float
    recomputed_frac: float
    prefill: Mapping[str, float]
    decode: Mapping[str, float]


def limits(run: EngineRun, window: Window, split: StepSplit, config: EngineConfig) -> Limits:
    """Shares of the window by what held the engine back.

    Parameters
    ----------
    run : EngineRun
        Its timeline says when requests waited.
    window : Window
        Measured part.
    split : StepSplit
        What the steps spend their time on.
    config : EngineConfig
        The engine's pool and limits.

    Notes
    -----
    ``kv_capacity`` is what a larger cache would give back: the time in which requests wait for blocks, and the time in
    which prompts are computed again that an infinite cache would have held. Requests wait for blocks while the pool's
    free ones (cached ones included) do not hold the whole prompt of the first in line; a prompt found in blocks that
    others hold needs fewer than is assumed here. Waiting for one of ``max_num_seqs`` slots is ``queue``. The
    rest of the busy time is divided as the steps' time is, also while requests wait for a share of the token budget.
    ``transfer`` comes off before: the window is taken to have the whole run's share of it.
    """
    blocked, queued, busy = _waiting_shares(run, window, config)
    rest = max(busy - blocked - queued, 0.0)
    within, between = _stalled_fracs(run)
    moving = min(rest, busy * within)
    rest, moving, busy = rest - moving, moving + (1.0 - busy) * between, busy + (1.0 - busy) * between
    fresh = rest * split.prefill_frac * (1.0 - split.recomputed_frac)
    again, decode = rest * split.prefill_frac - fresh, rest * (1.0 - split.prefill_frac)
    parts = {name: fresh * split.prefill.get(name, 0.0) + decode * split.decode.get(name, 0.0)
             for name in ("hbm_bandwidth", "compute", "collectives", "host")}
    shares = Shares(**parts, kv_capacity=blocked + again, transfer=moving, queue=queued)
    named = {name: getattr(shares, name) for name in RESOURCES}
    largest = max(named, key=lambda name: named[name])
    return Limits(largest if named[largest] > 1.0 - busy else "idle", shares)


def _stalled_fracs(run: EngineRun) -> tuple[float, float]:
    """Shares in which transfers left nothing to compute: of the time with running or waiting requests, of all other.

    A request whose load is under way neither runs nor waits in the timeline.
    """
    totals = run.totals
    if not totals.stalled_s:
        return 0.0, 0.0
    lengths = np.diff(np.append(run.timeline.time_s, totals.makespan_s))
    busy_s = float(lengths[(run.timeline.running > 0) | (run.timeline.waiting > 0)].sum())
    within_s = min(totals.stalled_s, max(busy_s - totals.busy_s, 0.0))
    idle_s = totals.makespan_s - busy_s
    return (within_s / busy_s if busy_s else 0.0,
            min((totals.stalled_s - within_s) / idle_s, 1.0) if idle_s > 0 else 0.0)


def mean_limits(parts: Sequence[Limits]) -> Limits:
    """What binds several replicas on average."""
    if len(parts) == 1:
        return parts[0]
    named = {name: sum(getattr(part.shares, name) for part in parts) / len(parts) for name in RESOURCES}
    largest = max(named, key=lambda name: named[name])
    return Limits(largest if named[largest] > 1.0 - sum(named.values()) else "idle", Shares(**named))


def _waiting_shares(run: EngineRun, window: Window, config: EngineConfig) -> tuple[float, float, float]:
    """Shares of the window in which requests wait for blocks, wait for slots, or anything runs."""
    times = run.timeline.time_s
    if not len(times) or window.duration_s <= 0:
        return 0.0, 0.0, 0.0
    starts = np.clip(times, window.start_s, window.end_s)
    length = np.diff(np.append(starts, window.end_s))
    waits = run.timeline.waiting > 0
    full = run.timeline.running >= config.max_num_seqs
    short = config.num_blocks - 1 - run.timeline.used_blocks < _blocks_of_first_waiting(run, config)
    busy = (run.timeline.running > 0) | waits
    total = window.duration_s
    return (float(length[waits & ~full & short].sum() / total), float(length[waits & full].sum() / total),
            float(length[busy].sum() / total))


def _blocks_of_first_waiting(run: EngineRun, config: EngineConfig) -> NDArray[np.float64]:
    """Blocks of the whole prompt of the oldest request not yet admitted, at every row of the timeline.

    inf where all have been admitted once: what waits then was preempted for want of blocks.
    """
    records = run.records
    order = np.argsort(records.arrival_s, kind="stable")
    left_queue = np.where(records.status == REFUSED, records.arrival_s, records.admitted_s)[order]
    admitted = np.nan_to_num(left_queue, nan=np.inf)
    first = np.searchsorted(np.maximum.accumulate(admitted), run.timeline.time_s, side="right")
    attention_groups = 1 + config.extra_attention_groups
    blocks = attention_groups * np.ceil(records.prompt_tokens[order] / config.block_tokens) + config.state_groups
    return np.append(blocks, np.inf)[first]
