"""Small engine runs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from kvsim.cache.tiers.config import TierKind, TierTotals
from kvsim.engine.types import FINISHED, EngineRun, RunRecords, RunTotals, Timeline


@dataclass(frozen=True)
class Served:
    """One request: times [s] and tokens."""

    arrival_s: float = 0.0
    first_token_s: float = nan
    finish_s: float = nan
    prompt: int = 100
    cached: int = 0
    external: int = 0
    output: int = 10
    status: int = FINISHED
    admitted_s: float = nan


def records_of(rows: Sequence[Served]) -> RunRecords:
    """Columns of hand-written requests."""
    def floats(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(r, name) for r in rows], np.float64)

    def ints(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(r, name) for r in rows], np.int64)

    return RunRecords(
        arrival_s=floats("arrival_s"), admitted_s=floats("admitted_s"), first_token_s=floats("first_token_s"),
        finish_s=floats("finish_s"), prompt_tokens=ints("prompt"), cached_tokens=ints("cached"),
        external_tokens=ints("external"), output_tokens=ints("output"), preemptions=np.zeros(len(rows), np.int64),
        status=ints("status"))


def run_of(rows: Sequence[Served], states: Sequence[tuple[float, int, int, int]] = (),
           makespan_s: float = 100.0, tiers: Sequence[tuple[TierKind, int]] = ()) -> EngineRun:
    """A run of these requests; states are (time [s], running, waiting, used blocks), tiers (kind, tokens hit)."""
    table = np.array(states, np.float64).reshape(-1, 4)
    running, waiting, used = (table[:, i].astype(np.int64) for i in (1, 2, 3))
    timeline = Timeline(table[:, 0], running, waiting, used, np.zeros(len(table), np.int64))
    used_tiers = tuple(TierTotals(kind, 10, tokens, 0, 0, 0, 0, 0.0, 0.0, 0) for kind, tokens in tiers)
    totals = RunTotals(10, 100, 100, 100, 0, 0, makespan_s, makespan_s, tiers=used_tiers)
    return EngineRun(records_of(rows), totals, timeline)
