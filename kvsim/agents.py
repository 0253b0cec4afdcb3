"""Why a pool serves fewer agents than its size divided by a median context."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.memory.geometry import KvGeometry
from kvsim.resolve import Resolved
from kvsim.rng import stream
from kvsim.traffic import session_trees
from kvsim.workload.sessions import SessionTree, capped_clock_s
from kvsim.workload.trees import AGENTX

Floats = NDArray[np.float64]
LOOKS = 64
"""Moments at which each session is looked at."""
SAFE = 0.9
"""Share of the moments in which the sessions must fit together to be called safe."""
DRAWS = 10_000
"""Random gatherings, to each of which sessions come one by one; the share of them that fits is off by 0.3 points."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the explanation: how many live sessions the pool holds once ``what`` is counted."""

    what: str
    sessions: float


@dataclass(frozen=True, slots=True)
class Live:
    """What live sessions hold at random moments, in blocks of the pool; arrays of equal length.

    ``main`` counts the main stream, ``subagents`` the sub-agents at work, ``busy`` is 1 where a request is in flight.
    """

    main: Floats
    subagents: Floats
    busy: Floats


def why_fewer(resolved: Resolved) -> tuple[Step, ...]:
    """From the naive number of agents to the number that is safe, step by step.

    Parameters
    ----------
    resolved : Resolved
        A scenario whose workload has sessions and whose pool is known.

    Returns
    -------
    tuple of Step
        Each adds one thing that the step before left out. Every figure comes from the pool's geometry and
        the scenario's own sessions.

    Notes
    -----
    A live session keeps its whole context and the state checkpoint at its end also while it thinks; otherwise
    its next turn starts cold. Sessions are looked at on the clock of `capped_clock_s`, where each moment is equally
    likely; the last step draws gatherings of n sessions and asks that `SAFE` of them fit.
    """
    geometry, blocks = resolved.capacity.geometry, resolved.capacity.num_blocks - 1
    trees = session_trees(resolved.scenario)
    median = float(np.median(np.concatenate([t.prompt_tokens for t in trees])))
    whole = math.ceil(median / geometry.block_capacity_tokens)
    steps = [Step(f"pool / median request: {resolved.capacity.kv_tokens:,} tokens as logged / {median:,.0f}",
                  resolved.capacity.kv_tokens / median),
             Step(f"in whole blocks: {blocks:,} blocks / {whole} each", blocks / whole)]
    if geometry.state_groups:
        steps += _state_steps(geometry, blocks, whole)
    seed = resolved.scenario.seed
    return (*steps, *_live_steps(live_blocks(trees, geometry, seed), blocks, seed))


def live_blocks(trees: list[SessionTree], geometry: KvGeometry, seed: int) -> Live:
    """What sessions hold at `LOOKS` random moments of each, weighted by how long the sessions live."""
    rng = stream(seed, "moments of live sessions")
    parts = [_looks(tree, geometry, rng) for tree in trees]
    life = np.array([capped_clock_s(t, AGENTX.gap_cap_s)[-1] for t in trees])
    picked = rng.choice(len(trees), size=len(trees) * LOOKS, p=life / life.sum())
    looks = rng.integers(LOOKS, size=len(picked))
    main, subagents, busy = (np.stack([part[c] for part in parts]) for c in range(3))
    return Live(main[picked, looks], subagents[picked, looks], busy[picked, looks])


def _state_steps(geometry: KvGeometry, blocks: int, whole: int) -> list[Step]:
    groups = geometry.state_groups
    kept, running = whole + groups, whole + groups * geometry.state_blocks
    return [
        Step(f"each keeps a state checkpoint at its end: {groups} blocks more", blocks / kept),
        Step(f"and a running state while a request is in flight: {groups * (geometry.state_blocks - 1)} more",
             blocks / running),
    ]


def _live_steps(live: Live, blocks: int, seed: int) -> list[Step]:
    together = live.main + live.subagents
    busy, kept = float(live.busy.mean()), blocks / float(together.mean())
    dropped = blocks / float((together * live.busy).mean()) if busy else kept
    return [
        Step("contexts have a long tail: the mean over time counts, not the median request",
             blocks / float(live.main.mean())),
        Step(f"sub-agents hold contexts of their own: {live.subagents.mean():.0f} blocks per session on average", kept),
        Step(f"a request is in flight only {busy:.0%} of a session's time: if thinking sessions could be dropped",
             dropped),
        Step("but a dropped session's next turn starts cold, so thinking sessions keep theirs", kept),
        Step(f"sessions do not peak together, but often enough: {SAFE:.0%} of all moments must fit",
             safe_sessions(together, blocks, stream(seed, "gatherings of live sessions"))),
    ]


def safe_sessions(held: Floats, blocks: int, rng: np.random.Generator) -> float:
    """The largest number of sessions of which `SAFE` of all random gatherings fit.

    Parameters
    ----------
    held : float array
        What a session holds at moments that are equally likely [blocks].
    blocks : int
        What the pool holds [blocks].
    rng : Generator
        Draws the gatherings.

    Examples
    --------
    >>> safe_sessions(np.full(5, 3.0), 10, stream(0, "example"))
    3.0
    """
    fits, total = 0, np.zeros(DRAWS)
    for n in range(1, 1 + int(3 * blocks / held.mean())):
        total += rng.choice(held, size=DRAWS)
        if (total <= blocks).mean() < SAFE:
            break
        fits = n
    return float(fits)


def _looks(tree: SessionTree, geometry: KvGeometry, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Blocks of the main stream, of working sub-agents, and whether anything is in flight, at random moments."""
    clock = capped_clock_s(tree, AGENTX.gap_cap_s)
    moments = np.sort(rng.uniform(0.0, max(float(clock[-1]), 1e-9), LOOKS))
    held = np.ceil((tree.prompt_tokens + tree.output_tokens) / geometry.block_capacity_tokens) + geometry.state_groups
    main = _held_at(clock, held, np.flatnonzero(tree.stream == 0), moments, forever=True)
    subagents = np.zeros(LOOKS)
    for s in np.unique(tree.stream[tree.stream > 0]).tolist():
        subagents += _held_at(clock, held, np.flatnonzero(tree.stream == s), moments, forever=False)
    return main, subagents, _in_flight(tree, clock, moments)


def _held_at(clock: Floats, held: Floats, rows: NDArray[np.int64], moments: Floats, forever: bool) -> Floats:
    """What one stream holds: its latest context; a sub-agent's is given up after its last request."""
    latest = np.searchsorted(clock[rows], moments, side="right") - 1
    blocks = np.where(latest >= 0, held[rows][np.maximum(latest, 0)], 0.0)
    return blocks if forever else np.where(moments <= clock[rows][-1], blocks, 0.0)


def _in_flight(tree: SessionTree, clock: Floats, moments: Floats) -> Floats:
    """1 where the main stream's latest request is still being answered at the recorded speed."""
    rows = np.flatnonzero(tree.stream == 0)
    starts = clock[rows]
    ends = np.append(starts[1:] - np.minimum(tree.gap_s[rows][1:], AGENTX.gap_cap_s), starts[-1])
    latest = np.maximum(np.searchsorted(starts, moments, side="right") - 1, 0)
    return (moments < ends[latest]).astype(np.float64)
