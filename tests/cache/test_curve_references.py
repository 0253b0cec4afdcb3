"""Published traces: every integer of an independent simulation.

The numbers in ``data/`` were computed block by block by another program; the plain hits of LRU, FIFO, LFU and Belady
were also obtained with libCacheSim 0.3.5 (24 runs and one of 12,287,493 accesses, no difference). Blocks of
``lmcache_agent_bytes256`` are local to a session there. Hit counts must be equal; rates are printed with six digits.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from kvsim.cache.curves.curves import POLICIES, CurveRow, Play, run_curves
from kvsim.workload.readers.read import read_trace
from kvsim.workload.table import Trace

DATA = Path(__file__).parent / "data"
FILES = {
    "mooncake_conversation": "mooncake_fast25_conversation.jsonl.gz",
    "mooncake_synthetic": "mooncake_fast25_synthetic.jsonl.gz",
    "kvcache_tester_openloop100": "kvcache_tester_openloop100.jsonl.gz",
    "lmcache_agent_bytes256": "lmcache_agent_bytes256.jsonl.gz",
    "all": "kvcache_tester_all710_rle.jsonl.gz",
}
RATES = {"block_prefix": "block_hit_rate", "token_any": "token_hit_rate", "token_full": "token_full_hit_rate",
         "block_plain": "block_plain_hit_rate"}

pytestmark = pytest.mark.golden


def reference(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


@cache
def recorded(folder: Path, name: str) -> Trace:
    return read_trace(folder / FILES[name])[0]


def differences(row: CurveRow, wanted: dict[str, str]) -> Iterable[str]:
    """What is not as published."""
    if row.hit_blocks != int(wanted["hit_blocks"]):
        yield f"{row.policy} at {row.capacity_blocks}: {row.hit_blocks} hit blocks, not {wanted['hit_blocks']}"
    if row.plain_hits != int(wanted.get("plain_hits", row.plain_hits)):
        yield f"{row.policy} at {row.capacity_blocks}: {row.plain_hits} plain hits, not {wanted['plain_hits']}"
    for theirs, ours in RATES.items():
        if theirs in wanted and abs(getattr(row, ours) - float(wanted[theirs])) > 5.1e-7:
            yield f"{row.policy} at {row.capacity_blocks}: {ours} {getattr(row, ours):.6f}, not {wanted[theirs]}"


def compare(trace: Trace, wanted: list[dict[str, str]], policies: Iterable[str], play: Play | None = None) -> None:
    capacities = sorted({float(w["capacity_blocks"]) for w in wanted})
    curves = run_curves(trace, list(policies), capacities, play)
    rows = {(r.policy, r.capacity_blocks): r for r in curves.rows}
    found: list[str] = []
    for w in wanted:
        asked = policies if w["policy"] == "any" else ["belady" if w["policy"] == "opt" else w["policy"]]
        found += [text for p in asked for text in differences(rows[p, float(w["capacity_blocks"])], w)]
    assert not found
    assert curves.num_blocks == int(wanted[0]["blocks"])
    assert curves.num_unique_blocks == int(wanted[0].get("unique_blocks", curves.num_unique_blocks))


@pytest.mark.parametrize("name", [n for n in FILES if n != "all"])
def test_every_policy_and_capacity(traces: Path, name: str) -> None:
    wanted = [w for w in reference("trace_reference.csv") if w["trace"] == name]
    assert len(wanted) >= 26
    compare(recorded(traces, name), wanted, POLICIES)


@pytest.mark.parametrize("lanes", [1, 8, 32, 128, 512])
def test_live_sessions(traces: Path, lanes: int) -> None:
    wanted = [w for w in reference("trace_reference_lanes.csv") if w["lanes"] == str(lanes)]
    assert len(wanted) == 25
    compare(recorded(traces, "all"), wanted, ("lru", "lru_tail", "fifo"), Play(lanes=lanes))


@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic", "kvcache_tester_openloop100"])
def test_delayed_blocks(traces: Path, name: str) -> None:
    wanted = [w for w in reference("trace_reference_delay.csv") if w["trace"] == name]
    assert len(wanted) == 8
    for w in wanted:
        strict = w["delay_s"] == "strict"
        play = Play(strict=strict, delay_s=None if strict else float(w["delay_s"]))
        row = run_curves(recorded(traces, name), play=play).rows[0]
        assert (w["delay_s"], row.hit_blocks) == (w["delay_s"], int(w["hit_blocks"]))
        assert row.token_hit_rate == pytest.approx(float(w["token_any"]), abs=5.1e-7)


@pytest.mark.timed
def test_a_whole_trace_takes_seconds(traces: Path) -> None:
    start = time.process_time()
    trace = read_trace(traces / FILES["mooncake_conversation"])[0]
    run_curves(trace, POLICIES, [300, 1_000, 3_000, 10_000, 30_000, math.inf])
    assert time.process_time() - start < 5.0
