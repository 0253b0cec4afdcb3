"""Rebuild a measured run: its workload, its engine's settings, and what each of its steps computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.presets import LinkRate, make_tier
from kvsim.calibrate.runs import LoopSpec, MeasuredEngine, MeasuredRun, MeasuredStep
from kvsim.engine import reference
from kvsim.engine.types import EngineConfig, RunRecords
from kvsim.errors import Problem, TraceError
from kvsim.layout import Layout
from kvsim.memory.geometry import KvGeometry, KvSpec, kv_geometry
from kvsim.profiles.engine_profile import resolve_base
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.store import ProfileStore
from kvsim.steptime.base import Piece, StepBatch
from kvsim.steptime.calibrated import with_alike_experts
from kvsim.steptime.roofline import RooflineStepTime, build_step_time
from kvsim.workload.requests import Row, Workload, requests_from_rows

ALIASES = {"llama-8b": "llama-3.1-8b", "kimi-linear-48b": "kimi-linear-48b-a3b"}
"""Names in files of runs -> model profiles, where they differ."""

CORRECTION_BIAS = ("kimi-linear", "kimi-k2", "kimi-k3", "deepseek-v3", "deepseek-r1", "glm-", "minimax-m2")
"""Models (first letters of their names) whose router adds a correction bias to its scores."""

ROUNDED_SCORES = ("deepseek-v2",)
"""Models whose router rounds softmax scores to bf16 before it chooses."""

ASYNC_DELAY_S = 1e-9
"""With asynchronous scheduling the next step is planned before a client hears of the last one: clients come this
much too late for it."""

CLIENT_S_PER_REQUEST, CLIENT_S_PER_NEW_TOKEN, CLIENT_S_PER_BLOCK = 1.4e-4, 2.1e-7, 3e-6
"""What the loop that drives an engine in its own process takes between steps: to build a prompt's new tokens, and to
hand the prompt over, which hashes all of its blocks. Least squares over short runs that are never scored (labels ``p``,
``d``, ``k-`` and ``l-``); a served engine does this in another process."""

_REFUSED = {
    "kv_transfer_config": "needs a KV connector",
    "speculative_config": "needs speculative decoding",
}
_KV_DTYPES = {"auto": "bf16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs were made on: GPU and engine profiles by name, and where they are found."""

    store: ProfileStore
    gpu: str = "h200"
    engine_profile: str = "vllm-0.24-h200"


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step: what it computed and how long it took."""

    label: str
    batch: StepBatch
    context_tokens: int
    duration_s: float


def why_not_simulated(engine: MeasuredEngine) -> str:
    """Why an engine's runs cannot be simulated; empty if they can.

    Examples
    --------
    >>> why_not_simulated(MeasuredEngine("llama-8b", {"kv_transfer_config": {"kv_role": "kv_both"}}, 6000, 16, ()))
    'needs a KV connector: not simulated'
    """
    reasons = [why for name, why in _REFUSED.items() if engine.args.get(name)]
    if int(engine.args.get("tensor_parallel_size", 1)) > 1:
        reasons.append("runs on several GPUs")
    return f"{reasons[0]}: not simulated" if reasons else ""


def model_of(engine: MeasuredEngine, store: ProfileStore) -> ModelProfile:
    """Model profile of a file's model name."""
    return store.get("model", ALIASES.get(engine.model, engine.model))


def kv_dtype_of(engine: MeasuredEngine) -> str:
    """KV format that an engine's arguments ask for.

    Raises
    ------
    TraceError
        A format that kvsim does not know.
    """
    given = str(engine.args.get("kv_cache_dtype", "auto"))
    if given not in _KV_DTYPES:
        problem = Problem("engine record", "args.kv_cache_dtype", repr(given), ", ".join(_KV_DTYPES))
        raise TraceError("a measured run that cannot be rebuilt", [problem])
    return _KV_DTYPES[given]


def physics_of(engine: MeasuredEngine, setting: Setting) -> RooflineStepTime:
    """Step time of an engine from physics alone.

    Notes
    -----
    Runs with random weights (``load_format: dummy``) of a model whose router adds a correction bias choose the
    same experts for all tokens: the random bias differs between experts by about 1e-3, the scores by 1e-5. So do
    models that round softmax scores to bf16: the scores of random weights tie. Measured on DeepSeek-V2-Lite: the expert
    kernels of 8 and of 64 tokens take 35 and 50 us a layer, the time of 6 experts and not of 35 or 64.
    """
    store = setting.store
    model = model_of(engine, store)
    profile = resolve_base(store.get("engine", setting.engine_profile), lambda name: store.get("engine", name))
    physics = build_step_time(model, store.get("gpu", setting.gpu), Layout(), kv_dtype_of(engine), profile,
                              engine.asynchronous)
    alike = engine.args.get("load_format") == "dummy" and model.name.startswith(CORRECTION_BIAS + ROUNDED_SCORES)
    return with_alike_experts(physics) if alike else physics


def engine_config_of(run: MeasuredRun, setting: Setting) -> EngineConfig:
    """Settings of a run's engine, its logged pool included.

    Notes
    -----
    This engine version keeps a checkpoint of constant state at every block. It aligns no chunk of a prompt that is
    shorter than a block, as if nothing were cached: then nothing can be.
    """
    engine, store = run.engine, setting.store
    args = engine.args
    caching = bool(args.get("enable_prefix_caching", True))
    geometry = kv_geometry(model_of(engine, store), KvSpec(Layout(), kv_dtype_of(engine), caching))
    short = geometry.state_groups > 0 and run.spec.longest_tokens < engine.block_tokens
    return EngineConfig(
        num_blocks=engine.num_blocks, block_tokens=engine.block_tokens,
        max_num_seqs=int(args["max_num_seqs"]), max_num_batched_tokens=int(args["max_num_batched_tokens"]),
        max_model_len=int(args["max_model_len"]), prefix_caching=caching and not short,
        policy="priority" if args.get("scheduling_policy") == "priority" else "fcfs",
        state_groups=geometry.state_groups, retention_interval_tokens=None,
        tiers=_tiers(args, geometry, store.get("gpu", setting.gpu)))


def _tiers(args: Mapping[str, Any], geometry: KvGeometry, gpu: GpuProfile) -> tuple[TierConfig, ...]:
    """The host tier of vLLM's own offloading connector, at the rates that pinned copies reach."""
    if not args.get("kv_offloading_size"):
        return ()
    link = gpu.host_link
    read, write = LinkRate((link.to_gpu or link.bandwidth).base), LinkRate((link.from_gpu or link.bandwidth).base)
    size = float(args["kv_offloading_size"]) * 2**30
    return (make_tier("vllm-native", size, math.ceil(max(geometry.block_bytes)), read, write),)


def workload_of(spec: LoopSpec, asynchronous: bool) -> Workload:
    """The closed loop of a run: clients take sessions in order, a turn follows the one before at once.

    Examples
    --------
    >>> workload_of(LoopSpec(1, 2, 2, first=100, growth=20, out=10, shared=30), False).requests.prompt_tokens.tolist()
    [100, 130, 100, 130]
    """
    delay_s = ASYNC_DELAY_S if asynchronous else 0.0
    rows: list[Row] = []
    for session in range(spec.sessions):
        rows += _session_rows(spec, session, len(rows), delay_s)
    clients = min(spec.concurrency, spec.sessions)
    return Workload(
        requests_from_rows(rows), lane_sessions=tuple((s,) for s in range(clients)),
        lane_start_s=np.zeros(clients), recycle=tuple(range(clients, spec.sessions)), ties_by_finish=True)


def _session_rows(spec: LoopSpec, session: int, start: int, delay_s: float) -> Iterator[Row]:
    """Turns of one session, the first of which is request `start`."""
    stream, own = session + 1, spec.first - spec.shared
    head = [(0, spec.shared)] if spec.shared else []
    waits_s = delay_s if session >= spec.concurrency else 0.0
    for turn in range(spec.turns):
        yield Row([*head, (stream, own)], spec.out, stream, arrival_s=waits_s, session=session,
                  after=(start + turn - 1,) if turn else (), think_s=delay_s if turn else 0.0)
        own += spec.out + spec.growth


def client_s(spec: LoopSpec, block_tokens: int) -> NDArray[np.float64]:
    """Time [s] for which the client holds the engine up before each request, in the order of `workload_of`.

    Examples
    --------
    >>> client_s(LoopSpec(1, 1, 2, first=1600, growth=100, out=10), 16).round(6).tolist()
    [0.000776, 0.000479]
    """
    turn = np.tile(np.arange(spec.turns), spec.sessions)
    prompt_tokens = spec.first + turn * (spec.growth + spec.out)
    new_tokens = np.where(turn == 0, spec.first, spec.growth)
    return (CLIENT_S_PER_REQUEST + CLIENT_S_PER_NEW_TOKEN * new_tokens
            + CLIENT_S_PER_BLOCK * (prompt_tokens // block_tokens))


def held_up(records: RunRecords, held_s: NDArray[np.float64]) -> RunRecords:
    """Records of a run whose engine stood still for `held_s` [s] before it took each request.

    Notes
    -----
    Exact where what the engine decides does not depend on durations, as in a closed loop without think time and tiers:
    all that comes after a request's arrival comes so much later. A request's own waiting begins when it is handed over.
    """
    order = np.argsort(records.arrival_s, kind="stable")
    arrival_s, passed_s = records.arrival_s[order], np.cumsum(held_s[order])
    before_s = np.concatenate([[0.0], passed_s])

    def later(times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return times_s + before_s[np.searchsorted(arrival_s, times_s, side="left")]

    handed_over_s = np.empty_like(arrival_s)
    handed_over_s[order] = arrival_s + passed_s
    return replace(records, arrival_s=handed_over_s, admitted_s=later(records.admitted_s),
                   first_token_s=later(records.first_token_s), finish_s=later(records.finish_s))


def step_samples(run: MeasuredRun, setting: Setting) -> list[StepSample]:
    """What every step of a run computed, as far as the engine can be followed.

    Parameters
    ----------
    run : MeasuredRun
        A run; in a closed loop without think time the plan of its steps does not depend on their durations.
    setting : Setting
        Where models are found.

    Returns
    -------
    list of StepSample
        From the first step to the last that has the same composition in our engine and in the real one. None with a
        tier below the pool: there the plan depends on when transfers arrive.
    """
    config = engine_config_of(run, setting)
    if config.tiers:
        return []
    measured = list(_durations(run))
    plan = _plan(run, len(measured), config)
    samples: list[StepSample] = []
    for batch, (step, duration_s) in zip(plan, measured, strict=False):
        if (batch.prefill_tokens, batch.decode_seqs) != (step.prefill_tokens, step.decode_seqs):
            break
        context = step.context_tokens - batch.prefill_context_tokens
        samples.append(StepSample(run.label, batch, context, duration_s))
    return samples


def busy_steps(run: MeasuredRun) -> int:
    """Number of steps that computed something and whose duration is known."""
    return sum(1 for _ in _durations(run))


def _durations(run: MeasuredRun) -> Iterator[tuple[MeasuredStep, float]]:
    """(step, duration in s) of all steps with work.

    With asynchronous scheduling a call hands out the result of the step before: a step lasts from there to its own
    result, and from its own launch if nothing was in flight.
    """
    steps = run.steps
    if not run.engine.asynchronous:
        yield from ((step, step.duration_s) for step in steps if not step.empty)
        return
    for i, step in enumerate(steps[:-1]):
        if not step.empty:
            launched = i == 0 or steps[i - 1].empty
            yield step, steps[i + 1].duration_s + (step.duration_s if launched else 0.0)


class _Recorder:
    """A step-time model of one second a step that notes every batch it is asked for."""

    def __init__(self) -> None:
        self.batches: list[StepBatch] = []

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        self.batches.append(batch)
        return ((1.0, 0.0),)


def _plan(run: MeasuredRun, num_steps: int, config: EngineConfig) -> list[StepBatch]:
    """Compositions of the first `num_steps` steps."""
    workload = replace(workload_of(run.spec, run.engine.asynchronous), until_s=num_steps - 0.5)
    recorder = _Recorder()
    reference.run(workload, config, recorder)
    return recorder.batches
