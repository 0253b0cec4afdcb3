"""Small trees and a server without limits, for tests of workloads."""

from __future__ import annotations

import heapq
import math
import os
from pathlib import Path

import numpy as np
import pytest

from kvsim.workload.arrivals import Arrivals
from kvsim.workload.readers.report import ReadReport, read_rows
from kvsim.workload.readers.weka_rle import session_tree
from kvsim.workload.requests import Floats, Workload
from kvsim.workload.sessions import SessionTree, Turn, tree_from_turns

TRACES = Path(os.environ.get("KVSIM_TRACES", Path(__file__).parents[2] / ".." / "shared" / "traces"))


def trace(name: str) -> Path:
    """A recorded trace, or the test is skipped."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no trace {name} in {TRACES} (set KVSIM_TRACES)")
    return path


def read_sessions(path: Path, output_in_next_prompt: bool = True,
                  max_bad_rows: int = 10) -> tuple[list[SessionTree], ReadReport]:
    """Sessions of a file of kv-cache-tester as they are, and what was skipped and adjusted."""
    report = ReadReport(str(path))
    trees = list(read_rows(path, report, lambda row: session_tree(row, report, output_in_next_prompt), max_bad_rows))
    report.num_sessions, report.num_requests = len(trees), sum(len(tree) for tree in trees)
    return trees, report


def line(num_turns: int = 5, start_tokens: int = 100, new_tokens: int = 50, period_s: float = 10.0) -> SessionTree:
    """A session of one stream: a turn every `period_s`, each answered in 2 s."""
    turns = [Turn(((0, start_tokens + new_tokens * k),), 10, 0, period_s * k, period_s - 2.0 if k else 0.0,
                  after=(k - 1,) if k else ()) for k in range(num_turns)]
    return tree_from_turns("line", turns, 1)


def forked() -> SessionTree:
    """Two main turns, a sub-agent of two turns between them that the second one joins, and a background one."""
    return tree_from_turns("forked", [
        Turn(((0, 100),), 10, 0, 0.0, 0.0),
        Turn(((1, 30),), 5, 1, 10.0, 8.0, stream=1, after=(0,)),
        Turn(((1, 60),), 5, 1, 20.0, 8.0, stream=1, after=(1,)),
        Turn(((2, 40),), 5, 2, 11.0, 9.0, stream=2, after=(0,)),
        Turn(((0, 150),), 10, 0, 30.0, 8.0, after=(0, 2)),
    ], num_contents=3)


def play(workload: Workload, service_s: Floats) -> Floats:
    """Arrival times [s] of all requests on a server without limits; nan for those that never came."""
    arrivals = Arrivals(workload)
    finishing: list[tuple[float, int]] = []
    now = 0.0
    while now < arrivals.until_s:
        pending = arrivals.next_s() if finishing else arrivals.wake_s(now)
        now = min(pending, finishing[0][0] if finishing else math.inf)
        if math.isinf(now):
            break
        while finishing and finishing[0][0] <= now:
            arrivals.finish(heapq.heappop(finishing)[1], now)
        for i in arrivals.pop_until(now):
            heapq.heappush(finishing, (now + float(service_s[i]), i))
    return np.array(arrivals.arrival_s)


def time_order(arrival_s: Floats) -> list[int]:
    """Rows that arrived, in order."""
    return [i for i in np.argsort(arrival_s, kind="stable").tolist() if math.isfinite(arrival_s[i])]
