"""Eviction policies at work in an engine: what they may know of it, and the order that the offline bound knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvsim.cache.eviction.base import Eviction, Facts, Future
from kvsim.cache.eviction.config import EvictionConfig
from kvsim.cache.eviction.make import make_eviction
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.errors import Problem, ScenarioError
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.workload.admission import SessionGate
from kvsim.workload.requests import Requests, Workload


def has_policy(config: EngineConfig) -> bool:
    """Whether cached blocks are lost in another order than vLLM's."""
    return config.prefix_caching and config.eviction.kind != "lru"


def policy_of(config: EngineConfig, requests: Requests, step_time: StepTimeModel, now_s: Callable[[], float],
              future: Future | None) -> Eviction | None:
    """The policy of an engine's pool; None for vLLM's own order, which the pool has built in."""
    if not has_policy(config):
        return None
    facts = Facts(config.num_blocks, now_s, requests.session.tolist(), requests.priority.tolist(),
                  _Recompute(step_time), future)
    return make_eviction(config.eviction, facts)


def gate_of(config: EngineConfig, workload: Workload) -> SessionGate | None:
    """Who keeps sessions waiting outside; None where all are let in."""
    if config.admission is None:
        return None
    attention = 1 + config.extra_attention_groups

    def blocks_of(tokens: int) -> int:
        return -(-tokens // config.block_tokens) * attention + config.state_groups

    return SessionGate(config.admission, workload, blocks_of, config.num_blocks - 1)


def knows_future(config: EngineConfig, is_fed: bool) -> bool:
    """Whether the pool's policy needs to know what will be asked.

    Raises
    ------
    ScenarioError
        The engine is one of several that are handed their requests: nobody knows theirs, and sessions are not its own.
    """
    needs = has_policy(config) and config.eviction.kind == "belady"
    problems = [Problem("engine", "eviction", "belady on one of several replicas", "belady on one replica")] * needs
    if config.admission is not None:
        problems.append(Problem("engine", "admission", "sessions of one of several replicas", "one replica"))
    if is_fed and problems:
        raise ScenarioError("the engine cannot start", problems)
    return needs


def without_policy(config: EngineConfig) -> EngineConfig:
    """The same engine with vLLM's own order."""
    return replace(config, eviction=EvictionConfig())


def admission_order(done: EngineRun) -> list[int]:
    """Rows in the order in which a run admitted them: when what they find in the cache is needed."""
    admitted_s = done.records.admitted_s
    order: list[int] = np.argsort(admitted_s, kind="stable")[:int(np.isfinite(admitted_s).sum())].tolist()
    return order


class _Recompute:
    """Time to compute a prompt again, alone and at once."""

    def __init__(self, step_time: StepTimeModel) -> None:
        self._step_time = step_time
        self._known_s: dict[int, float] = {}

    def __call__(self, tokens: int) -> float:
        known_s = self._known_s.get(tokens)
        if known_s is None:
            chunk = StepBatch(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0)
            known_s = self._known_s[tokens] = step_s(self._step_time, chunk, 0)
        return known_s
