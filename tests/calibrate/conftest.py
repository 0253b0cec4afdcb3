"""Our own measured runs on one H200, compressed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvsim.calibrate.replay import Setting
from kvsim.calibrate.runs import MeasuredRun, read_runs
from kvsim.profiles.store import default_store

DATA = Path(__file__).resolve().parent.parent / "data"
FILES = ("llama-8b", "llama-8b-async", "llama-8b-pool6000", "kimi-linear-48b")


@cache
def runs_of(name: str) -> list[MeasuredRun]:
    """Runs of one file, read once."""
    return read_runs(DATA / f"gpu_runs.{name}.jsonl.gz")


@pytest.fixture(scope="session")
def setting() -> Setting:
    return Setting(default_store())


@pytest.fixture(params=FILES)
def measured(request: pytest.FixtureRequest) -> list[MeasuredRun]:
    return runs_of(request.param)
