"""One scenario from start to report: the function behind all three doors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from kvsim.billing import cost_of, look_up_prices
from kvsim.cache.tiers.config import TierConfig
from kvsim.cluster.disagg import SplitSpec
from kvsim.cluster.result import ClusterRun
from kvsim.deployment import Group, cluster_spec, group_hardware, is_cluster, router_spec
from kvsim.disaggregation import ROLES, Role, role_scenario, split_spec
from kvsim.engine import core, reference
from kvsim.engine.garbage import paused_collector
from kvsim.engine.types import UNFINISHED, EngineConfig, EngineRun, Progress
from kvsim.errors import Problem, SimulationError
from kvsim.memory.acceptance import require_acceptance
from kvsim.memory.drafts import parse_draft
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.profiles.calibration import CalibrationUse
from kvsim.profiles.engine_profile import EngineProfile
from kvsim.profiles.figure import Profile
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.report.classes import ClassUse, class_uses
from kvsim.report.cost import Cost
from kvsim.report.disaggregation import DisaggregationUse, disaggregation_use, link_limits
from kvsim.report.drafting import DraftUse, draft_use
from kvsim.report.groups import GroupUse, group_uses
from kvsim.report.kv_throughput import LENGTHS, KvThroughput, kv_throughput
from kvsim.report.ledger import ledger_of
from kvsim.report.limits import Limits, StepSplit, limits, mean_limits
from kvsim.report.lost import lost_by
from kvsim.report.metrics import (
    Bools,
    HitRate,
    count_refused,
    good_requests_per_s,
    hit_rate,
    latency,
    recomputed_frac,
    throughput,
    window_of,
)
from kvsim.report.pipeline import PipelineUse, pipeline_use
from kvsim.report.replicas import cluster_use, parts_of, tracks_of
from kvsim.report.report import Report, RunInfo
from kvsim.report.sales import sales_of
from kvsim.report.scaling import scaling_of
from kvsim.report.slo import Classes, good_requests, goodput_by_class
from kvsim.report.statistics import steady_from
from kvsim.report.steps import floor_problems, step_split
from kvsim.report.transfers import tier_use
from kvsim.resolve import Resolved, resolve, resolve_groups
from kvsim.scenario import Scenario, load_scenario
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.steptime.calibrated import physics_digest, with_calibration
from kvsim.steptime.drafting import build_drafter, with_draft
from kvsim.steptime.given import given_step_time
from kvsim.steptime.pipeline import pipelined, stages_of
from kvsim.steptime.roofline import RooflineStepTime, build_step_time
from kvsim.steptime.table import Reach
from kvsim.traffic import build_workload, trace_accounts
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.requests import Workload
from kvsim.workload.trees import FASTEST_TOKEN_S


class EngineFunction(Protocol):
    """What both engines are: a workload, settings and a step-time model in, a run out."""

    def __call__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None = None) -> EngineRun:
        """Run the workload to its end."""
        ...


ENGINES: Mapping[str, EngineFunction] = MappingProxyType({"core": core.run, "reference": reference.run})
"""Engines by ``engine.fidelity``: the fast one and the executable specification."""

SHOWN_REFUSALS = 3


@paused_collector()
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
    router_spec(checked)
    store = store or default_store()
    if checked.disaggregation is not None:
        return _report(_run_split(checked, store, progress), began)
    roles = _roles(checked, store)
    resolved, model, config = replace(roles[0].resolved, scenario=checked), roles[0].step_time, roles[0].config
    workload = build_workload(checked, min(fastest_token_s(r.resolved, r.step_time) for r in roles))
    if is_cluster(checked):
        from kvsim.cluster.run import run as run_cluster

        groups = [Group.of(role, part) for role, part in zip(roles, checked.groups, strict=True)]
        done = run_cluster(workload, cluster_spec(checked, groups, workload.requests.class_names), progress)
        outcome = _Outcome(resolved, workload, model, done.run, store, done)
        if len(set(map(id, roles))) > 1:
            each = [role for role, g in zip(roles, groups, strict=True) for _ in range(g.count * g.ranks)]
            outcome = _MixedOutcome(each, resolved, workload, done, store)
        return _report(outcome, began)
    run = ENGINES[checked.engine.fidelity](workload, config, model, progress)
    return _report(_Outcome(resolved, workload, model, run, store), began)


def _roles(scenario: Scenario, store: ProfileStore) -> list[Role]:
    """Every group of replicas with every number known; groups that are alike share one."""
    found = resolve_groups(scenario, store)
    for one in found:
        require_acceptance(one.scenario, one.model.name, parse_draft(one.scenario.engine.draft), store)
    look_up_prices(replace(found[0], scenario=scenario), store)
    kinds = [one.scenario.kind_digest for one in found]
    roles = {kind: _role_of(found[kinds.index(kind)]) for kind in dict.fromkeys(kinds)}
    return [roles[kind] for kind in kinds]


def _run_split(scenario: Scenario, store: ProfileStore, progress: Progress | None) -> _SplitOutcome:
    """Simulate a scenario with prefill and decode replicas apart."""
    from kvsim.cluster.disagg import run_split

    prefill, decode = (_role(role_scenario(scenario, name), store) for name in ROLES)
    resolved = replace(prefill.resolved, scenario=scenario)
    look_up_prices(resolved, store)
    spec = split_spec(scenario, prefill, decode)
    workload = build_workload(scenario)
    return _SplitOutcome((prefill, decode), spec, resolved, workload, run_split(workload, spec, progress), store)


def _role(scenario: Scenario, store: ProfileStore) -> Role:
    """A prefill or decode replica with every number known."""
    return _role_of(resolve(scenario, store))


def _role_of(resolved: Resolved) -> Role:
    """A kind of replica with its step time."""
    model = step_time_of(resolved)
    return Role(resolved, replace(resolved.engine, tiers=with_recompute_time(resolved.engine, model)), model)


def step_time_of(resolved: Resolved) -> StepTimeModel:
    """The step-time model of a scenario: given coefficients or measurements, or physics."""
    given = resolved.scenario.engine
    if given.step_time is not None:
        limits = resolved.limits
        reach = Reach(limits.max_num_seqs, limits.max_model_len, limits.max_num_batched_tokens)
        return given_step_time(given.step_time, reach, resolved.scenario.origin)
    physics = build_step_time(resolved.model, resolved.gpu, resolved.layout, given.kv_dtype,
                              resolved.engine_profile, given.async_scheduling)
    stages = stages_of(resolved.layout, resolved.gpu, resolved.node, resolved.model.hidden,
                       resolved.limits.max_num_batched_tokens)
    if given.calibration is None:
        return _with_draft(resolved, pipelined(physics, stages))
    from kvsim.calibrate.overlay import load_calibration

    use = CalibrationUse(resolved.gpu.name, resolved.model.name, given.kv_dtype, resolved.engine_profile.name,
                         given.async_scheduling, physics_digest(physics))
    return _with_draft(resolved, pipelined(with_calibration(physics, load_calibration(given.calibration), use), stages))


def _with_draft(resolved: Resolved, plain: RooflineStepTime) -> StepTimeModel:
    """The target's step time, with its draft's where it has one."""
    if resolved.drafter is None:
        return plain
    draft = parse_draft(resolved.scenario.engine.draft)
    drafter = build_drafter(resolved.drafter, resolved.gpu, resolved.layout,
                            draft.kv_dtype or resolved.scenario.engine.kv_dtype, resolved.engine_profile)
    return with_draft(plain, drafter, draft, resolved.scenario.engine.draft_expert_reuse)


def fastest_token_s(resolved: Resolved, model: StepTimeModel) -> float:
    """A time [s] in which no sequence gets its next token: half of the smallest step; drafts give several a step."""
    if resolved.scenario.engine.draft != "none":
        return FASTEST_TOKEN_S
    smallest = (StepBatch(0, 0, 0, 0, 1), StepBatch(1, 1, 1, 1, 0))
    return max(min(step_s(model, batch, 0) for batch in smallest) / 2, FASTEST_TOKEN_S)


def with_recompute_time(config: EngineConfig, model: StepTimeModel) -> tuple[TierConfig, ...]:
    """Tiers that load only what is faster than computing it again, told how fast a full prefill step computes."""
    tokens = config.max_num_batched_tokens
    chunk = StepBatch(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0)
    return tuple(replace(t, recompute_s_per_token=step_s(model, chunk, 0) / tokens) for t in config.tiers)


class _Outcome:
    """A finished run and what it was made of."""

    def __init__(self, resolved: Resolved, workload: Workload, model: StepTimeModel, run: EngineRun,
                 store: ProfileStore, cluster_run: ClusterRun | None = None) -> None:
        self.cluster_run = cluster_run
        self.resolved, self.workload, self.model, self.run, self.store = resolved, workload, model, run, store
        self.scenario = resolved.scenario
        warm_s = warmed_s(workload, run)
        from_s = warm_s + workload.measure_from_s
        if self.scenario.workload.measure == "auto":
            from_s = max(from_s, steady_from(run.records).from_s)
        self.window = window_of(run, from_s, warm_s + workload.until_s)
        order = np.argsort(run.records.arrival_s, kind="stable")
        arrived = order[np.isfinite(run.records.arrival_s[order])]
        requests = workload.requests
        self.ideal = (ideal_cached_tokens(requests, arrived) if run.trie is None
                      else run.trie.ideal_tokens(requests.prompt_tokens, arrived.tolist()))

    def hit_rate(self) -> HitRate:
        """Hits, and what they lack of the ideal: of one engine."""
        found = hit_rate(self.run, self.window, self.ideal)
        if self.cluster_run is not None:
            return found
        lost = lost_by(self.run, self.window, self.ideal, self.workload.requests, self.resolved.engine)
        return replace(found, lost_by=lost)

    def limits(self) -> Limits:
        """What binds: of one engine, or of all replicas on average."""
        config, split = self.resolved.engine, self.step_split
        parts = [self.run] if self.cluster_run is None else parts_of(self.cluster_run)
        return mean_limits([limits(part, self.window, split, config) for part in parts])

    @cached_property
    def step_split(self) -> StepSplit:
        """How the time of all steps divides."""
        lost = recomputed_frac(self.run.records, self.ideal, self.window)
        return step_split(self.run.totals.step_sums, self.model, lost)

    def cost(self) -> Cost:
        classes = self.classes() if self.scenario.workload.classes else None
        sales = sales_of(self.run.records, self.window, self.ideal, self.earns(), classes)
        if self.cluster_run is not None and self.cluster_run.autoscale is not None:
            counts = [group.count for group in self.scenario.groups]
            sales = replace(sales, scaling=scaling_of(self.cluster_run, self.window, counts))
        return cost_of(self.resolved, self.store, sales, self.step_split.prefill_frac)

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

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Profiles whose figures the result rests on."""
        return self.resolved.profiles

    def class_uses(self) -> dict[str, ClassUse]:
        """What each traffic class got, where the scenario speaks of classes or limits."""
        if not self.scenario.workload.classes and not self.scenario.limits:
            return {}
        limited = None if self.cluster_run is None else self.cluster_run.limited
        return class_uses(self.run.records, self.window, self.classes(), limited)

    def groups(self) -> tuple[GroupUse, ...]:
        """What each group of replicas did, where there are several."""
        if self.cluster_run is None or len(self.scenario.groups) == 1:
            return ()
        return group_uses(self.cluster_run, group_hardware(self.scenario, self.store), self.window)

    def drafting(self) -> DraftUse | None:
        """What drafts gave, where there are some."""
        return draft_use(self.resolved.acceptance, parse_draft(self.scenario.engine.draft).tokens, self.model,
                         self.run.totals.step_sums)

    def pipeline(self) -> PipelineUse | None:
        """What its stages did, where there are several."""
        return pipeline_use(self.model, self.run.totals.step_sums)

    def floor_problems(self) -> list[Problem]:
        """Steps that are faster than physics allows."""
        return floor_problems(self.run.totals.step_sums, self.model, self.resolved.engine.max_num_batched_tokens)

    @property
    def num_tiered(self) -> int:
        """Engines that have tiers below their pools."""
        run = self.cluster_run
        return 1 if run is None else max(sum(bool(one.totals.tiers) for one in run.replicas), 1)

    def disaggregation(self) -> DisaggregationUse | None:
        """What was handed over between prefill and decode replicas, where they are apart."""
        return None


class _MixedOutcome(_Outcome):
    """A run of replicas that differ: each is measured with its own engine and steps; `roles` has one for each."""

    def __init__(self, roles: Sequence[Role], resolved: Resolved, workload: Workload, done: ClusterRun,
                 store: ProfileStore) -> None:
        super().__init__(resolved, workload, roles[0].step_time, done.run, store, done)
        self.done, self.roles = done, roles

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return tuple({profile.name: profile for role in self.roles for profile in role.resolved.profiles}.values())

    @cached_property
    def splits(self) -> list[StepSplit]:
        """How the time of each replica's steps divides."""
        lost = recomputed_frac(self.run.records, self.ideal, self.window)
        return [step_split(one.totals.step_sums, role.step_time, lost)
                for one, role in zip(self.done.replicas, self.roles, strict=True)]

    def limits(self) -> Limits:
        return mean_limits([limits(part, self.window, split, role.config) for part, split, role in
                            zip(parts_of(self.done), self.splits, self.roles, strict=True)])

    @cached_property
    def step_split(self) -> StepSplit:
        busy_s = [one.totals.busy_s for one in self.done.replicas]
        prefill_s = sum([busy * split.prefill_frac for busy, split in zip(busy_s, self.splits, strict=True)])
        return replace(super().step_split, prefill_frac=prefill_s / sum(busy_s) if sum(busy_s) else 0.0)

    def floor_problems(self) -> list[Problem]:
        return [problem for one, role in zip(self.done.replicas, self.roles, strict=True) for problem in
                floor_problems(one.totals.step_sums, role.step_time, role.config.max_num_batched_tokens)]

    def drafting(self) -> DraftUse | None:
        """Steps of replicas with different drafts cannot be told apart in sums."""
        return None

    def pipeline(self) -> PipelineUse | None:
        """Nor those of replicas with different stages."""
        return None


class _SplitOutcome(_MixedOutcome):
    """A run with prefill and decode replicas apart."""

    def __init__(self, roles: tuple[Role, Role], spec: SplitSpec, resolved: Resolved, workload: Workload,
                 done: ClusterRun, store: ProfileStore) -> None:
        counts = len(spec.prefill), len(spec.decode)
        each = [role for role, count in zip(roles, counts, strict=True) for _ in range(count)]
        super().__init__(each, resolved, workload, done, store)
        self.spec = spec

    def disaggregation(self) -> DisaggregationUse:
        """What was handed over."""
        spec, role = self.spec, self.roles[0]
        block, longest = self.roles[-1].config.block_tokens, role.resolved.limits.max_model_len
        keeps = int(self.roles[-1].config.prefix_caching and self.roles[-1].config.state_groups > 0)
        sizes = [(n, spec.parcel.bytes_of(-(-n // block), keeps)) for n in LENGTHS if n <= longest]
        found = link_limits(role.step_time, role.config.max_num_batched_tokens, sizes,
                            spec.link.bytes_per_s * spec.parcel.prefill_gpus)
        return disaggregation_use(self.done, spec.link, spec.parcel, found)


def warmed_s(workload: Workload, run: EngineRun) -> float:
    """When the last warming request ended; 0 without any, the end of the run when some did not end."""
    ends = run.records.finish_s[workload.warming]
    if np.isfinite(ends).all():
        return float(ends.max(initial=0.0))
    return run.totals.makespan_s


def _report(outcome: _Outcome, began: float) -> Report:
    run, window, scenario = outcome.run, outcome.window, outcome.scenario
    _guard(outcome)
    return Report(
        name=scenario.name,
        throughput=throughput(run.records, window, scenario.num_gpus),
        hit_rate=outcome.hit_rate(),
        latency=latency(run.records, window, run.totals.step_sums),
        capacity=outcome.resolved.capacity,
        cost=outcome.cost(),
        goodput_requests_per_s=good_requests_per_s(run.records, window, outcome.good()),
        goodput_by_class=goodput_by_class(run.records, window, outcome.good(), outcome.classes()),
        preemptions=run.totals.preemptions,
        limits=outcome.limits(),
        run=_run_info(outcome, began),
        ledger=ledger_of(outcome.profiles),
        scenario=scenario.to_dict(),
        records=run.records,
        timeline=run.timeline,
        tiers=tier_use(run.totals, outcome.num_tiered),
        kv_throughput=_kv_throughput(outcome),
        drafting=outcome.drafting(),
        cluster=None if outcome.cluster_run is None else cluster_use(outcome.cluster_run, window),
        disaggregation=outcome.disaggregation(),
        traffic_classes=outcome.class_uses(),
        groups=outcome.groups(),
        tracks=() if outcome.cluster_run is None else tracks_of(outcome.cluster_run),
        pipeline=outcome.pipeline(),
        traces=tuple(account for account in trace_accounts(scenario) if not account.is_whole),
    )


def _kv_throughput(outcome: _Outcome) -> tuple[KvThroughput, ...]:
    """KV throughput at the usual lengths that the engine takes, at its longest where it takes none of them."""
    resolved, longest = outcome.resolved, outcome.resolved.limits.max_model_len
    return kv_throughput(
        outcome.model, model_bytes_per_token(resolved.model, resolved.scenario.engine.kv_dtype),
        model_state_bytes(resolved.model), resolved.engine.max_num_batched_tokens,
        [n for n in LENGTHS if n <= longest] or [longest])


def _run_info(outcome: _Outcome, began: float) -> RunInfo:
    records, totals = outcome.run.records, outcome.run.totals
    limited = outcome.cluster_run.limited if outcome.cluster_run is not None else None
    rejected: set[int] = set() if limited is None else set(np.flatnonzero(limited.rejected).tolist())
    refusals = {i: why for i, why in records.refusals.items() if i not in rejected}
    return RunInfo(
        num_requests=int(outcome.window.holds(records.first_token_s).sum()),
        num_unfinished=int((np.isfinite(records.arrival_s) & (records.status == UNFINISHED)).sum()),
        num_refused=count_refused(records) - len(rejected),
        simulated_s=totals.makespan_s,
        measured_from_s=outcome.window.start_s,
        wall_s=time.perf_counter() - began,
        seed=outcome.scenario.seed,
        digest=outcome.scenario.digest,
        version=package_version(),
        profiles={p.name: outcome.store.digest(p)[:16] for p in outcome.profiles
                  if not isinstance(p, EngineProfile)},
        refusals=tuple(f"request {outcome.workload.requests.name(i)}: {why}"
                       for i, why in list(refusals.items())[:SHOWN_REFUSALS]),
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
    broken += outcome.floor_problems()
    if broken:
        name = f"{outcome.scenario.name} (digest {outcome.scenario.digest}, seed {outcome.scenario.seed})"
        raise SimulationError(f"a law was broken in {name}", broken)
