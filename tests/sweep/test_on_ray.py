"""The same grid on Ray, started on this machine by the sweep itself; in a process of its own, which ends with its Ray.

One test, in a group of its own, so that one worker of a parallel run has one Ray at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import open_sweep, status_of, sweep
from tests.sweep.helpers import INLINE

LIMIT_S = 300.0
"""Starting Ray takes 5 s on an idle machine, and as many times that as others share its cores."""
pytestmark = pytest.mark.xdist_group("ray")


def cliff_grid() -> dict[str, Any]:
    """The grid of k3-cliff-sweep at its edge, minutes of traffic a case; one point that cannot be."""
    whole = load_batch("k3-cliff-sweep")
    points = [*whole.axes[1].points(), {"layout.tp": 3}]
    return {**whole.to_dict(), "set": {"workload.warmup_s": 60, "workload.duration_s": 120}, "replications": 1,
            "axes": [{"grid": {"workload.concurrency": [4, 12]}}, {"list": points}]}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose path is short, since Ray keeps sockets in it; what still runs from it is ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvs"))
    yield folder
    for pid in running_from(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def running_from(folder: Path) -> list[int]:
    """Processes that name a folder on their command line."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def none_left(folder: Path) -> bool:
    """Whether all processes of a folder end within a minute."""
    deadline = time.monotonic() + 60
    while running_from(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not running_from(folder)


def test_ray_gives_the_table_of_one_process(place: Path) -> None:
    """Byte for byte, failures included, with two workers under a time limit; nothing of Ray runs on."""
    (place / "s.yaml").write_text(yaml.safe_dump(cliff_grid()))
    environment = {**os.environ, "RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
                   "RAY_memory_monitor_refresh_ms": "0"}  # other tests' memory is no reason to end a worker
    command = [sys.executable, "-m", "kvsim.cli", "sweep", str(place / "s.yaml"), "-o", str(place / "b"),
               "--executor", "ray", "--workers", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "6 computed, 0 there already, 2 failed" in done.stdout
    assert none_left(place)
    sweep(cliff_grid(), place / "a", INLINE)
    assert (place / "a/cases.parquet").read_bytes() == (place / "b/cases.parquet").read_bytes()
    assert open_sweep(place / "b")["error.kind"] == [None, None, "input"] * 2
    assert status_of(load_batch(cliff_grid()), place / "b").peak_bytes < 500e6
