"""What is measured: primitives, the engine, and whole scenarios from a trace file to a result.

Every benchmark returns counters that say how much work was done. They are the same on every machine, so they
can gate a change; seconds are measured beside them and only reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import workloads
from kvsim.cache.content_trie import build_trie
from kvsim.cache.runs import FreePool, RunIndex
from kvsim.engine import core, reference
from kvsim.engine.core_clock import Clock
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from kvsim.steptime.base import LinearStepTime, Piece, StepBatch, StepTimeModel
from kvsim.workload.requests import Workload

Counters = dict[str, int]


@dataclass(frozen=True, slots=True)
class ThreePieces:
    """A step time shaped like a roofline (memory, compute, host) without a profile's cost; no machine in particular."""

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Bytes read, products made, launches."""
        tokens = batch.prefill_tokens + batch.decode_seqs
        return ((4e-3 + 2e-9 * batch.prefill_context_tokens, 2e-9),
                (6e-6 * tokens + 1e-12 * batch.prefill_pairs, 1e-10), (3e-3 + 1e-5 * tokens, 0.0))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One row of the table.

    `prepare` is not measured and returns what `work` gets. `target_s` is the design's budget on one core, if it
    has one; `trace` names the file without which the row is left out.
    """

    name: str
    group: str
    prepare: Callable[[], object]
    work: Callable[[object], Counters]
    target_s: float | None = None
    trace: str = ""
    repeats: int = field(default=3)


FULL = EngineConfig(40_000, 16, 256, 8192, 200_000)
LARGE = EngineConfig(140_000, 16, 256, 8192, 500_000)
HUGE = EngineConfig(400_000, 16, 256, 8192, 1_000_000)
SMALL = EngineConfig(14_000, 16, 256, 8192, 200_000)
K3_NODE = EngineConfig(2135, 1536, 64, 16_384, 1_048_576, state_groups=3)
DENSE = EngineConfig(40_000, 16, 256, 8192, 200_000, state_groups=3, retention_interval_tokens=None)
CONTENDED = EngineConfig(12_000, 16, 256, 8192, 200_000)
H200: dict[str, Any] = {"name": "h200", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
                        "engine": {"profile": "vllm-0.24-h200"}}
B300: dict[str, Any] = {
    "name": "b300", "model": "kimi-k3", "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
    "engine": {"profile": "vllm-day0", "kv_dtype": "fp8", "max_model_len": 1_048_576, "max_num_batched_tokens": 16_384,
               "max_num_seqs": 64, "kv_bytes_per_gpu": "42.23 GiB"}}
LENGTHS = {"num_requests": 10_000, "input_tokens": 4000, "output_tokens": 300}
SPREAD = {"input_sigma": 1.0, "output_sigma": 0.8}
K3_STEP = LinearStepTime(0.012, 3e-5, 3e-4)
ROOFLINE = ThreePieces()


def counters_of(done: EngineRun) -> Counters:
    """The work that a run took, and enough of its result to see that it is the same run."""
    counters, totals = done.totals.counters, done.totals
    named = {name: counters[name] for name in ("jumps", "planned_steps", "chunk_steps", "touched_runs", "chains")}
    return {"requests": len(done.records.status), "steps": totals.steps, "hit_tokens": totals.prompt_tokens_hit,
            "preemptions": totals.preemptions, "evicted_blocks": counters["evicted_blocks"], **named}


def engine(name: str, build: Callable[[], Workload], config: EngineConfig,
           model: StepTimeModel = ROOFLINE) -> Benchmark:
    """The engine alone on a workload."""
    def work(workload: object) -> Counters:
        assert isinstance(workload, Workload)
        return counters_of(core.run(workload, config, model))

    return Benchmark(name, "engine", build, work)


def scenario(name: str, described: dict[str, Any], target_s: float | None = None, trace: str = "",
             repeats: int = 7) -> Benchmark:
    """A whole scenario: profiles, trace file or generator, memory, physics, engine, report; traces are read anew.

    Its counters say only what does not depend on the profiles' figures.
    """
    def prepare() -> dict[str, Any] | None:
        if not trace:
            return described
        path = workloads.trace(trace)
        return path and {**described, "workload": {**described["workload"], "trace": str(workloads.own_copy(path))}}

    def work(prepared: object) -> Counters:
        given = Scenario.model_validate(prepared)
        if given.workload.trace is not None:
            workloads.forget(Path(given.workload.trace))
        done = simulate(given)
        assert done.records is not None
        return {"requests": len(done.records.status)}

    return Benchmark(name, "scenario", prepare, work, target_s, trace, repeats)


def plain(name: str, build: Callable[[], Workload], config: EngineConfig) -> Benchmark:
    """The plain engine, for comparison."""
    def work(workload: object) -> Counters:
        assert isinstance(workload, Workload)
        return {"steps": reference.run(workload, config, ROOFLINE).totals.steps}

    return Benchmark(name, "engine", build, work, repeats=1)


def _trie(workload: object) -> Counters:
    assert isinstance(workload, Workload)
    trie = build_trie(workload.requests, 16)
    return {"chains": len(trie.start_block), "path_chains": sum(len(trie.path(i)) for i in range(len(trie.leaf)))}


def _prefix_index(_: object) -> Counters:
    """10,000 turns of a session whose prefix is 25,000 blocks long: look up, hold, write, release."""
    pool = FreePool(40_000)
    index, end = RunIndex(pool), 25_000
    for turn in range(10_000):
        found, length = index.leading([(0, end + 1)], end)
        index.hold(found)
        pool.take(end - length + 1)
        index.add(found, 0, length, end + 1)
        index.release(found)
        end = 25_000 + turn % 100
    return {"touched_runs": pool.num_touched, "evicted_blocks": pool.num_evicted}


def _clock(_: object) -> Counters:
    """10,000 jumps of 100 decode steps of 64 sequences."""
    clock = Clock(ROOFLINE)
    made = 0
    for jump in range(10_000):
        made += clock.decode(100, 64, 250_000 + 640 * (jump % 100), float("inf"))
    return {"steps": made}


@cache
def suite() -> tuple[Benchmark, ...]:
    """All benchmarks in the order of the table."""
    log = workloads.lognormal
    return (
        Benchmark("content trie, 200 sessions x 40 turns", "primitive",
                  lambda: workloads.sessions(200, 40, 8000), _trie),
        Benchmark("prefix index, 10k turns on 25k blocks", "primitive", lambda: None, _prefix_index),
        Benchmark("clock, 10k jumps of 100 steps", "primitive", lambda: None, _clock),
        engine("10k x 4,000/300, 64 clients", lambda: workloads.fixed(10_000, 64), FULL),
        engine("10k lognormal, 64 clients", lambda: log(10_000, 64), FULL),
        engine("10k lognormal, 256 clients", lambda: log(10_000, 256), FULL),
        engine("10k lognormal, a third of the pool", lambda: log(10_000, 64), SMALL),
        plain("1k x 4,000/300, 64 clients, plain engine", lambda: workloads.fixed(1000, 64), FULL),
        engine("2k x 100,000/300, 16 clients", lambda: workloads.long_prompts(2000, 100_000, 16), LARGE),
        engine("8 sessions x 100 turns from 4k", lambda: workloads.sessions(8, 100, 4000), HUGE),
        engine("8 sessions x 100 turns from 400k", lambda: workloads.sessions(8, 100, 400_000), HUGE),
        engine("K3 node, 16 sessions x 65 turns from 60k", lambda: workloads.sessions(16, 65, 60_000), K3_NODE,
               K3_STEP),
        engine("slowest: checkpoints at every block of 16", lambda: workloads.fixed(1000, 64), DENSE),
        engine("slowest: equal outputs side by side", lambda: workloads.shared_outputs(400), CONTENDED),
        scenario("10k x 4,000/300, 64 clients, llama-3.1-8b on H200",
                 {**H200, "workload": {"fixed": LENGTHS, "concurrency": 64}}, 0.2),
        scenario("10k lognormal, 64 clients, llama-3.1-8b on H200",
                 {**H200, "workload": {"fixed": {**LENGTHS, **SPREAD}, "concurrency": 64}}, 0.3),
        scenario("1M lognormal, 64 clients, llama-3.1-8b on H200",
                 {**H200, "workload": {"fixed": {**LENGTHS, **SPREAD, "num_requests": 1_000_000}, "concurrency": 64}},
                 30.0, repeats=1),
        scenario("Mooncake conversation, llama-3.1-8b on H200", {**H200, "workload": {"mode": "open"}}, 0.6,
                 workloads.MOONCAKE),
        scenario("710 Claude Code sessions, 16 live, kimi-k3 on 8 x B300",
                 {**B300, "workload": {"mode": "closed", "concurrency": 16}}, 5.0, workloads.WEKA, repeats=3),
        scenario("1 h of AgentX, 24 live, kimi-k3 on 8 x B300 with host DRAM",
                 {**B300, "tiers": [{"kind": "dram", "capacity": "1889 GB", "write": "eager"}],
                  "workload": {"preset": "agentx-v1", "concurrency": 24, "duration_s": 3600}}, 3.0),
    )
