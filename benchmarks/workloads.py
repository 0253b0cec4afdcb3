"""Workloads that the benchmarks play, built from seeds or from the published traces."""

from __future__ import annotations

import os
import shutil
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kvsim.workload.fixed import Clients, build_fixed
from kvsim.workload.lengths import LogNormal
from kvsim.workload.requests import Row, Workload, requests_from_rows

MOONCAKE = "mooncake_fast25_conversation.jsonl.gz"
WEKA = "kvcache_tester_all710_rle.jsonl.gz"


def trace(name: str) -> Path | None:
    """A published trace below KVSIM_TRACES, if it is there."""
    default = Path(__file__).resolve().parents[1] / "../shared/traces"
    path = Path(os.environ.get("KVSIM_TRACES", default)) / name
    return path if path.exists() else None


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder that is removed at the end."""
    return TemporaryDirectory(prefix="kvsim-benchmarks-")


def own_copy(path: Path) -> Path:
    """A copy of a trace whose time of change may be set."""
    return Path(shutil.copy(path, _folder().name))


def forget(path: Path) -> None:
    """Make a trace look changed, so that the next simulation reads it again."""
    os.utime(path, ns=(time.time_ns(), time.time_ns()))


def fixed(num_requests: int, concurrency: int) -> Workload:
    """4,000 tokens in, 300 out, closed loop."""
    return build_fixed(num_requests, 4000, 300, Clients(concurrency))


def lognormal(num_requests: int, concurrency: int) -> Workload:
    """About 4,000 tokens in and 300 out, log-normal, closed loop."""
    inputs, outputs = LogNormal(4000.0, 1.0, 1.0, 1e5), LogNormal(300.0, 0.8, 1.0, 4e3)
    return build_fixed(num_requests, inputs, outputs, Clients(concurrency))


def long_prompts(num_requests: int, input_tokens: int, concurrency: int) -> Workload:
    """Long prompts that share nothing, 300 tokens out."""
    return build_fixed(num_requests, input_tokens, 300, Clients(concurrency))


def sessions(num_sessions: int, num_turns: int, first_tokens: int) -> Workload:
    """Growing sessions side by side: 2,000 new tokens a turn, 300 out, found again by the next turn."""
    rows: list[Row] = []
    for s in range(num_sessions):
        for t in range(num_turns):
            rows.append(Row([(s, first_tokens + 2300 * t)], 300, output_content=s, session=s, think_s=1.0,
                            after=(len(rows) - 1,) if t else (), arrival_s=0.5 * s))
    return Workload(requests_from_rows(rows))


def shared_outputs(num_requests: int) -> Workload:
    """Equal prompts whose equal outputs are written side by side: every block has many copies."""
    return Workload(requests_from_rows([Row([(i % 4, 2048)], 600, output_content=i % 4, arrival_s=0.02 * i)
                                        for i in range(num_requests)]))
