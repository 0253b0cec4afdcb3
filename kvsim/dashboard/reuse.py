"""Hit rates of traffic by capacity and policy, without any timing: from a preset or from an uploaded trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvsim.cache.curves.curves import Curves, Play, run_curves
from kvsim.cache.curves.paths import paths_of
from kvsim.errors import Problem, TraceError
from kvsim.scenario import Scenario
from kvsim.traffic import session_trees
from kvsim.workload.readers.read import read_trace
from kvsim.workload.table import Trace, trace_of_trees

MAX_UPLOAD_BYTES, MAX_REQUESTS = 50_000_000, 100_000
"""More takes minutes: ``kvsim cache`` has no such limits."""
MAX_SESSIONS = 40
"""Sessions of a preset that are played."""
BLOCK_TOKENS = 256
"""Tokens of a block where the traffic has no blocks of its own."""
NUM_CAPACITIES = 14
SMALLEST_FRAC = 1 / 500
"""Smallest capacity drawn, as a share of all distinct blocks."""


def preset_trace(scenario: Scenario) -> Trace:
    """The first sessions of a scenario's preset.

    Raises
    ------
    ScenarioError
        The workload has no sessions.
    """
    return trace_of_trees(session_trees(scenario)[:MAX_SESSIONS], BLOCK_TOKENS, scenario.workload.preset or "sessions")


def uploaded_trace(name: str, data: bytes) -> Trace:
    """A trace of any known format from an uploaded file.

    Raises
    ------
    TraceError
        Too large, or as `kvsim.workload.readers.read.read_trace`; messages name the file as uploaded.
    """
    own = Path(name).name or "upload"
    if len(data) > MAX_UPLOAD_BYTES:
        raise TraceError("the file is too large for the dashboard", [
            Problem(own, "", f"{len(data) / 1e6:,.0f} MB", f"at most {MAX_UPLOAD_BYTES / 1e6:,.0f} MB; "
                    "the command kvsim cache takes any size")])
    with TemporaryDirectory() as folder:
        path = Path(folder) / own
        path.write_bytes(data)
        try:
            trace = read_trace(path)[0]
        except TraceError as err:
            raise TraceError(err.message.replace(str(path), own), [
                replace(p, where=p.where.replace(str(path), own)) for p in err.problems]) from None
    if len(trace) > MAX_REQUESTS:
        raise TraceError("the trace is too long for the dashboard", [
            Problem(own, "", f"{len(trace):,} requests", f"at most {MAX_REQUESTS:,}; kvsim cache takes any number")])
    return replace(trace, label=own)


def curves_of(trace: Trace, policies: Sequence[str], live: int) -> Curves:
    """Hit rates by policy and capacity, from a small share of all distinct blocks to all of them.

    Parameters
    ----------
    trace : Trace
        One without a common clock is played as `live` sessions side by side, any other in its recorded order.
    policies : sequence of str
        Of `kvsim.cache.curves.curves.POLICIES`.
    live : int
        Live sessions, >= 1.

    Raises
    ------
    TraceError
        A trace that knows lengths only.
    """
    distinct = paths_of(trace).num_blocks
    spaced = np.geomspace(max(distinct * SMALLEST_FRAC, 1.0), max(distinct, 1), NUM_CAPACITIES)
    capacities = [*sorted({float(round(c)) for c in spaced})]
    return run_curves(trace, policies, capacities, Play(live if trace.clock == "session" else None))


def ideal_frac(found: Curves) -> float:
    """Token-weighted hit rate with room for everything; nan without rows."""
    return max((row.token_hit_rate for row in found.rows), default=math.nan)
