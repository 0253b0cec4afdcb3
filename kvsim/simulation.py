"""One scenario from start to report: the function behind all three doors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from kvsim.billing import (
    api_price,
    demand_turns_per_hour,
    gpus_per_node,
    hourly_bill,
    look_up_prices,
    market,
    trust_mark,
)
from kvsim.cache.tiers.config import TierConfig
from kvsim.engine import core, reference
from kvsim.engine.types import UNFINISHED, EngineConfig, EngineRun, Progress
from kvsim.errors import Problem, ScenarioError, SimulationError
from kvsim.profiles.calibration import CalibrationUse
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.cost import Cost, CostTerms, Sales, cost
from kvsim.report.ledger import ledger_of
from kvsim.report.limits import StepSplit, limits
from kvsim.report.metrics import (
    Bools,
    billed_tokens,
    count_refused,
    good_requests_per_s,
    hit_rate,
    ideal_tokens_billed,
    latency,
    recomputed_frac,
    throughput,
    window_of,
)
from kvsim.report.report import Report, RunInfo
from kvsim.report.slo import Classes, good_requests, goodput_by_class
from kvsim.report.statistics import steady_from
from kvsim.report.transfers import tier_use
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario, load_scenario
from kvsim.steptime.base import LinearStepTime, StepBatch, StepTimeModel, step_s
from kvsim.steptime.calibrated import physics_digest, with_calibration
from kvsim.steptime.roofline import RooflineStepTime, build_step_time
from kvsim.traffic import build_workload
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.requests import Workload


class EngineFunction(Protocol):
    """What both engines are: a workload, settings and a step-time model in, a run out."""

    def __call__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None = None) -> EngineRun:
        """Run the workload to its end."""
        ...


ENGINES: Mapping[str, EngineFunction] = MappingProxyType({"core": core.run, "reference": reference.run})
"""Engines by ``engine.fidelity``: the fast one and the executable specification."""

SECONDS_PER_HOUR = 3600.0
SHOWN_REFUSALS = 3


def simulate(scenario: Scenario | str | Mapping[str, Any], progress: Progress | None = None,
             store: ProfileStore | None = None) -> Report:
    """Simulate one scenario.

    Parameters
    ----------
    scenario : Scenario, str or mapping
        A scenario, the path or shipped name of one, or plain data.
    progress : callable, optional
        Called with the finished share, 0 to 1.
    store : ProfileStore, optional
        Where profiles are found.

    Returns
    -------
    Report
        Equal for equal scenario, seed and version but for ``run.wall_s``.

    Raises
    ------
    ScenarioError, ProfileError, TraceError
        Something in the input is wrong.
    InfeasibleError
        The model does not fit.
    SimulationError
        A conservation law or a physics floor was broken: a bug of kvsim.

    Examples
    --------
    >>> report = simulate({"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 20}, "concurrency": 4}})
    >>> report.run.num_requests, report.preemptions
    (8, 0)
    """
    began = time.perf_counter()
    checked = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    _refuse_unsupported(checked)
    store = store or default_store()
    resolved = resolve(checked, store)
    look_up_prices(resolved, store)
    workload = build_workload(checked)
    model = step_time_of(resolved)
    config = replace(resolved.engine, tiers=with_recompute_time(resolved.engine, model))
    run = ENGINES[checked.engine.fidelity](workload, config, model, progress)
    return _report(_Outcome(resolved, workload, model, run, store), began)


def step_time_of(resolved: Resolved) -> StepTimeModel:
    """The step-time model of a scenario: given coefficients, or physics."""
    given = resolved.scenario.engine
    if given.step_time is not None:
        return LinearStepTime(given.step_time.base_s, given.step_time.per_prefill_token_s,
                              given.step_time.per_decode_seq_s)
    physics = build_step_time(resolved.model, resolved.gpu, resolved.layout, given.kv_dtype,
                              resolved.engine_profile, given.async_scheduling)
    if given.calibration is None:
        return physics
    from kvsim.calibrate.overlay import load_calibration

    use = CalibrationUse(resolved.gpu.name, resolved.model.name, given.kv_dtype, resolved.engine_profile.name,
                         given.async_scheduling, physics_digest(physics))
    return with_calibration(physics, load_calibration(given.calibration), use)


def with_recompute_time(config: EngineConfig, model: StepTimeModel) -> tuple[TierConfig, ...]:
    """Tiers that load only what is faster than computing it again, told how fast a full prefill step computes."""
    tokens = config.max_num_batched_tokens
    chunk = StepBatch(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0)
    return tuple(replace(t, recompute_s_per_token=step_s(model, chunk, 0) / tokens) for t in config.tiers)


class _Outcome:
    """A finished run and what it was made of."""

    def __init__(self, resolved: Resolved, workload: Workload, model: StepTimeModel, run: EngineRun,
                 store: ProfileStore) -> None:
        self.resolved, self.workload, self.model, self.run, self.store = resolved, workload, model, run, store
        self.scenario = resolved.scenario
        warm_s = warmed_s(workload, run)
        from_s = warm_s + workload.measure_from_s
        if self.scenario.workload.measure == "auto":
            from_s = max(from_s, steady_from(run.records).from_s)
        self.window = window_of(run, from_s, warm_s + workload.until_s)
        order = np.argsort(run.records.arrival_s, kind="stable")
        arrived = order[np.isfinite(run.records.arrival_s[order])]
        self.ideal = ideal_cached_tokens(workload.requests, arrived)

    def step_split(self) -> StepSplit:
        batch, context = mean_step(self.run)
        decode = StepBatch(0, 0, 0, 0, batch.decode_seqs)
        whole_s, decode_s = step_s(self.model, batch, context), step_s(self.model, decode, context)
        prefill_frac = 1.0 - decode_s / whole_s if batch.decode_seqs else 1.0
        prefill = StepBatch(batch.prefill_tokens, batch.prefill_chunks, batch.prefill_pairs,
                            batch.prefill_context_tokens, 0)
        return StepSplit(prefill_frac, recomputed_frac(self.run.records, self.ideal, self.window),
                         self._shares(prefill, 0), self._shares(decode, context))

    def _shares(self, batch: StepBatch, context: int) -> dict[str, float]:
        if not isinstance(self.model, RooflineStepTime):
            return {"compute": 1.0}
        seconds = self.model.shares(batch, context)
        return {k: v / max(sum(seconds.values()), 1e-300) for k, v in seconds.items()}

    def cost(self) -> Cost:
        records, good = self.run.records, self.earns()
        started = self.window.holds(records.first_token_s)
        sales = Sales(billed_tokens(records, self.window), billed_tokens(records, self.window, good),
                      int(started.sum()), self.window.duration_s / SECONDS_PER_HOUR,
                      ideal_tokens_billed(records, self.window, self.ideal, good), int((started & good).sum()))
        bill, prices = hourly_bill(self.resolved, self.store), self.scenario.prices
        terms = CostTerms(bill, self.step_split().prefill_frac, prices.attribution, prices.revenue,
                          demand_turns_per_hour(self.scenario), market(self.resolved.model.name, self.store),
                          trust_mark(self.resolved))
        nodes = bill.units.billed_gpus / gpus_per_node(self.resolved, self.store)
        api = api_price(self.scenario, self.resolved.model.name, self.store)
        return cost(bill.usd_per_hour, nodes, sales, api, terms)

    def earns(self) -> Bools:
        """Which requests earn: those within the SLO, or all that were served."""
        return self.good() if self.scenario.prices.only_slo_earns else np.ones(len(self.run.records.status), bool)

    def good(self) -> Bools:
        """Which requests keep the SLO of their class."""
        return good_requests(self.run.records, self.window.end_s, self.scenario.slo.model_dump(), self.classes())

    def classes(self) -> Classes:
        """Traffic classes of the requests; priming ones count as none."""
        requests = self.workload.requests
        return Classes(requests.traffic_class, requests.class_names)


def warmed_s(workload: Workload, run: EngineRun) -> float:
    """When the last warming request ended; 0 without any, the end of the run when some did not end."""
    ends = run.records.finish_s[workload.warming]
    if np.isfinite(ends).all():
        return float(ends.max(initial=0.0))
    return run.totals.makespan_s


def mean_step(run: EngineRun) -> tuple[StepBatch, int]:
    """An average step of a run and its decoders' context, for saying what its steps spend their time on."""
    totals, records = run.totals, run.records
    steps = max(totals.steps, 1)
    computed = records.prompt_tokens - records.cached_tokens
    prefill = round(totals.prefill_tokens_computed / steps)
    seqs = round(totals.decode_tokens / steps)
    mean_prompt = float(records.prompt_tokens.mean()) if len(records.prompt_tokens) else 0.0
    offset = float(records.cached_tokens.mean() + computed.mean() / 2) if len(computed) else 0.0
    batch = StepBatch(prefill, 1 if prefill else 0, round(prefill * offset), round(offset) if prefill else 0, seqs)
    return batch, round(seqs * mean_prompt)


def _report(outcome: _Outcome, began: float) -> Report:
    run, window, scenario = outcome.run, outcome.window, outcome.scenario
    _guard(outcome)
    return Report(
        name=scenario.name,
        throughput=throughput(run.records, window, scenario.hardware.num_gpus),
        hit_rate=hit_rate(run, window, outcome.ideal),
        latency=latency(run.records, window),
        capacity=outcome.resolved.capacity,
        cost=outcome.cost(),
        goodput_requests_per_s=good_requests_per_s(run.records, window, outcome.good()),
        goodput_by_class=goodput_by_class(run.records, window, outcome.good(), outcome.classes()),
        preemptions=run.totals.preemptions,
        limits=limits(run, window, outcome.step_split(), outcome.resolved.engine),
        run=_run_info(outcome, began),
        ledger=ledger_of(outcome.resolved.profiles),
        scenario=scenario.to_dict(),
        records=run.records,
        timeline=run.timeline,
        tiers=tier_use(run.totals),
    )


def _run_info(outcome: _Outcome, began: float) -> RunInfo:
    records, totals = outcome.run.records, outcome.run.totals
    return RunInfo(
        num_requests=int(outcome.window.holds(records.first_token_s).sum()),
        num_unfinished=int((np.isfinite(records.arrival_s) & (records.status == UNFINISHED)).sum()),
        num_refused=count_refused(records),
        simulated_s=totals.makespan_s,
        measured_from_s=outcome.window.start_s,
        wall_s=time.perf_counter() - began,
        seed=outcome.scenario.seed,
        digest=outcome.scenario.digest,
        version=package_version(),
        profiles={p.name: outcome.store.digest(p)[:16] for p in outcome.resolved.profiles
                  if p is not outcome.resolved.engine_profile},
        refusals=tuple(f"request {outcome.workload.requests.name(i)}: {why}"
                       for i, why in list(records.refusals.items())[:SHOWN_REFUSALS]),
        counters={"steps": totals.steps, **totals.counters},
    )


def package_version() -> str:
    """Version of the installed package, "unknown" when it runs from a folder that is not installed."""
    try:
        return version("kvsim")
    except PackageNotFoundError:
        return "unknown"


def _guard(outcome: _Outcome) -> None:
    """Laws that every result must keep beside those that the engine checks: hits, window, physics floors."""
    records = outcome.run.records
    broken: list[Problem] = []
    if (records.cached_tokens > np.maximum(records.prompt_tokens - 1, 0)).any():
        broken.append(Problem("run", "cached_tokens", "more than prompt - 1", "at most prompt - 1"))
    if outcome.window.duration_s < 0:
        broken.append(Problem("run", "window", f"{outcome.window}", "an end after its start"))
    broken += _floor_problems(outcome)
    if broken:
        name = f"{outcome.scenario.name} (digest {outcome.scenario.digest}, seed {outcome.scenario.seed})"
        raise SimulationError(f"a law was broken in {name}", broken)


def _floor_problems(outcome: _Outcome) -> list[Problem]:
    """Steps of this run's kind that would be faster than their FLOPs and bytes allow."""
    model = outcome.model
    if not isinstance(model, RooflineStepTime):
        return []
    batch, context = mean_step(outcome.run)
    tokens = outcome.resolved.engine.max_num_batched_tokens
    steps = [(batch, context), (StepBatch(0, 0, 0, 0, max(batch.decode_seqs, 1)), context),
             (StepBatch(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0), 0)]
    return [Problem("run", "step time", f"{step_s(model, b, c):.6f} s for {b}", f"at least {model.floor_s(b, c):.6f} s")
            for b, c in steps if step_s(model, b, c) < model.floor_s(b, c) * (1 - 1e-9)]


def _refuse_unsupported(scenario: Scenario) -> None:
    """Say at once what this version can describe but not simulate."""
    asked = {
        "replicas": (scenario.replicas, 1, "1"),
        "layout.dp": (scenario.layout.dp, 1, "1; 'kvsim capacity' answers for more"),
        "engine.draft": (scenario.engine.draft, "none", "none; 'kvsim capacity' answers for drafts"),
    }
    problems = [Problem(scenario.origin, field, f"{given}, which is not simulated yet", accepted)
                for field, (given, simulated, accepted) in asked.items() if given != simulated]
    if problems:
        raise ScenarioError("this scenario cannot be simulated", problems)
