"""What the dashboard's tests share: one real report, and rows made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvsim.report.metrics import HitRate, TierShares
from kvsim.report.report import Report
from kvsim.simulation import simulate
from kvsim.study import Row

MakeRow = Callable[..., Row]


@pytest.fixture(scope="session")
def report() -> Report:
    """A finished run that is made in milliseconds."""
    return simulate({
        "name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
        "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 20}, "concurrency": 4},
    })


@pytest.fixture(scope="session")
def make_row(report: Report) -> MakeRow:
    """A row at a number of live sessions with these hit rates, one a seed, what binds, and DRAM's part of the hits."""
    def make(concurrency: int, *hits: float, ideal: float = 1.0, binding: str = "compute", dram: float = 0.0) -> Row:
        reports = [replace(report, hit_rate=HitRate(hit, ideal, TierShares(hit * (1 - dram), hit * dram)),
                           limits=replace(report.limits, binding=binding)) for hit in hits]
        return Row(concurrency, tuple(reports))

    return make
