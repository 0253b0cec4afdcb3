"""The fast engine: the plain engine's answers, at a cost that does not grow with tokens, steps or blocks.

`kvsim.engine.reference` is the specification; the fast engine jumps from event to event (`kvsim.engine.core_loop`).
"""

from __future__ import annotations

from kvsim.engine import reference
from kvsim.engine.core_drafts import DraftedCore
from kvsim.engine.core_loop import Core
from kvsim.engine.core_tiers import TieredCore
from kvsim.engine.garbage import paused_collector
from kvsim.engine.policies import has_policy
from kvsim.engine.reference import check_config, has_tiers
from kvsim.engine.types import EngineConfig, EngineRun, Progress
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.requests import Workload


def run(workload: Workload, config: EngineConfig, step_time: StepTimeModel,
        progress: Progress | None = None) -> EngineRun:
    """Play a workload through one engine replica, from event to event.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.
    config : EngineConfig
        Limits, pool and cache settings.
    step_time : StepTimeModel
        How long a step takes.
    progress : callable, optional
        Called with the share of requests that have ended (0 to 1), at most about 100 times.

    Returns
    -------
    EngineRun
        Records (a row a request), totals and timeline, equal to those of `kvsim.engine.reference.run`.
        ``totals.counters`` tell the work done: ``jumps``, ``planned_steps`` and ``chunk_steps`` (each O(what
        changes)), ``touched_runs`` of the prefix index, and ``chains`` of the content trie.

    Raises
    ------
    ScenarioError
        The configuration is impossible (all problems at once).
    SimulationError
        A conservation law was broken: a defect of kvsim.

    Notes
    -----
    With tiers below the pool, or another eviction policy than LRU, a block is an object of its own
    (`kvsim.engine.core_tiers`): the cost still does not grow with steps, but with the blocks of a prompt.

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> turns = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 10, 0, after=(0,), think_s=2.0)])
    >>> done = run(Workload(turns), EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.008, 5e-5, 4e-4))
    >>> done.records.cached_tokens.tolist(), round(done.totals.makespan_s, 6), done.totals.counters["jumps"]
    ([0, 96], 2.1749, 2)
    """
    check_config(config)
    if needs_plain(config):
        return reference.run(workload, config, step_time, progress)
    with paused_collector():
        return core_kind(config)(workload, config, step_time, progress).run()


def needs_plain(config: EngineConfig) -> bool:
    """Whether only the plain engine knows a configuration: stores that slow steps, or drafts above tiers and policies.

    >>> needs_plain(EngineConfig(64, 16, 8, 512, 4096))
    False
    """
    if any(tier.step_cost_frac for tier in config.tiers):
        return True
    return config.drafting is not None and (has_tiers(config) or has_policy(config))


def core_kind(config: EngineConfig) -> type[Core]:
    """The fast engine for a configuration: runs of blocks where they do, else single blocks."""
    if config.drafting is not None:
        return DraftedCore
    return TieredCore if has_tiers(config) or has_policy(config) else Core
