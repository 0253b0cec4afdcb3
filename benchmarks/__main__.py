"""Run the benchmarks: ``python -m benchmarks [--check | --update] [--record] [--only TEXT]``.

``--check`` compares the counters with benchmarks/counters.json and fails when a run does more than `SLACK` more
or less work than recorded; ``--update`` writes that file; ``--record`` writes seconds to benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.suite import Benchmark, Counters, suite

HERE = Path(__file__).resolve().parent
COUNTERS, RESULTS = HERE / "counters.json", HERE / "RESULTS.md"
SLACK = 0.02
"""Share by which a counter may differ: libraries may round or draw differently in the last digit."""

TOO_LONG_TO_CHECK = ("1M lognormal, 64 clients, llama-3.1-8b on H200",)


@dataclass(frozen=True, slots=True)
class Result:
    """Counters, processor seconds and wall seconds (the least of the repeats) of one benchmark."""

    benchmark: Benchmark
    counters: Counters
    seconds: float
    wall_s: float
    peak_mb: float


def measure(benchmark: Benchmark, repeats: int) -> Result | None:
    """Run one benchmark; None when its trace is missing."""
    prepared = benchmark.prepare()
    if benchmark.trace and prepared is None:
        return None
    seconds = wall_s = float("inf")
    counters = Counters()
    for _ in range(repeats):
        start, start_wall = time.process_time(), time.perf_counter()
        counters = benchmark.work(prepared)
        seconds, wall_s = min(seconds, time.process_time() - start), min(wall_s, time.perf_counter() - start_wall)
    return Result(benchmark, counters, seconds, wall_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def differences(expected: Counters, got: Counters) -> list[str]:
    """Counters that are not what was recorded."""
    names = sorted(expected.keys() | got.keys())
    return [f"{name}: {got.get(name)}, recorded {expected.get(name)}" for name in names
            if name not in expected or name not in got
            or abs(got[name] - expected[name]) > SLACK * max(abs(expected[name]), 1)]


def check(results: Sequence[Result]) -> int:
    """Number of benchmarks whose counters differ from the recorded ones."""
    recorded: dict[str, Counters] = json.loads(COUNTERS.read_text(encoding="utf-8"))
    failed = 0
    for result in results:
        wrong = differences(recorded.get(result.benchmark.name, {}), result.counters)
        failed += bool(wrong)
        for line in wrong:
            print(f"FAILED {result.benchmark.name}: {line}")
    print(f"counters: {len(results) - failed}/{len(results)} as recorded")
    return failed


def update(results: Sequence[Result]) -> None:
    """Record the counters."""
    recorded: dict[str, Counters] = json.loads(COUNTERS.read_text(encoding="utf-8")) if COUNTERS.exists() else {}
    recorded |= {result.benchmark.name: result.counters for result in results}
    recorded = {benchmark.name: recorded[benchmark.name] for benchmark in suite() if benchmark.name in recorded}
    COUNTERS.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    """What the seconds were measured on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return (f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()}, "
            f"Python {platform.python_version()}, numpy {np.__version__}; loop of 5M additions: {loop_s():.2f} s")


def loop_s() -> float:
    """Seconds of a plain loop, to compare machines and busy hours by."""
    start, total = time.process_time(), 0
    for i in range(5_000_000):
        total += i
    return time.process_time() - start


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table."""
    rows = ["| group | benchmark | seconds | wall | budget | us a request | segments a request "
            "| runs touched a request | peak MB so far |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for result in results:
        counters, n = result.counters, result.counters.get("requests", 0)
        segments = sum(counters.get(name, 0) for name in ("jumps", "planned_steps", "chunk_steps"))
        work = [f"{segments / n:.2f}", f"{counters['touched_runs'] / n:.1f}"] if "jumps" in counters else ["", ""]
        budget = f"{result.benchmark.target_s:g}" if result.benchmark.target_s else ""
        each = f"{result.seconds / n * 1e6:.1f}" if n else ""
        rows.append("| " + " | ".join([result.benchmark.group, result.benchmark.name, f"{result.seconds:.3f}",
                                       f"{result.wall_s:.3f}", budget,
                                       each, *work, f"{result.peak_mb:.0f}"]) + " |")
    return "\n".join(rows)


def record(results: Sequence[Result]) -> None:
    """Write the table with the machine it was measured on."""
    about = ("Processor and wall seconds, least of the repeats; budgets are the design's for one idle core. A "
             "scenario's are those of the whole `simulate` call, which its report calls `run.wall_s`. Written by "
             "`python -m benchmarks --record`.")
    text = f"# Benchmark results\n\n{about}\n\nMachine: {machine()}\n\n{table(results)}\n"
    RESULTS.write_text(text, encoding="utf-8")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument("--check", action="store_true", help="one run each; fail when the work done has changed")
    parser.add_argument("--update", action="store_true", help="record the counters in counters.json")
    parser.add_argument("--record", action="store_true", help="write seconds to RESULTS.md")
    parser.add_argument("--only", default="", help="benchmarks whose name contains this text")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 when a check failed."""
    chosen = options(arguments)
    results: list[Result] = []
    for benchmark in suite():
        if chosen.only not in benchmark.name or (chosen.check and benchmark.name in TOO_LONG_TO_CHECK):
            continue
        result = measure(benchmark, 1 if chosen.check or benchmark.name in TOO_LONG_TO_CHECK else benchmark.repeats)
        if result is None:
            print(f"skipped {benchmark.name}: {benchmark.trace} is not below KVSIM_TRACES")
            continue
        results.append(result)
        print(f"{benchmark.name}: {result.seconds:.3f} s, wall {result.wall_s:.3f} s {json.dumps(result.counters)}",
              flush=True)
    if chosen.update:
        update(results)
    if chosen.record:
        record(results)
    return 1 if chosen.check and check(results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
