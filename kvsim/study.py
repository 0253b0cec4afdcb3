"""A scenario at several numbers of live sessions, each with several seeds; and how results are told."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvsim.agents import Step, why_fewer
from kvsim.capacity import fit_lines, pool_lines
from kvsim.deployment import group_hardware
from kvsim.profiles.store import default_store
from kvsim.report.classes import classes_text
from kvsim.report.cost import Cost, mode_of
from kvsim.report.groups import group_head, groups_text
from kvsim.report.limits import RESOURCES
from kvsim.report.replicas import cluster_text
from kvsim.report.report import NOT_AS_RECORDED, Report, plain, trace_lines
from kvsim.report.scaling import scaling_text
from kvsim.report.statistics import median_interval
from kvsim.report.transfers import TierUse
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario
from kvsim.simulation import simulate

StudyProgress = Callable[[str, float], None]
"""Called with the name of the case and its finished share."""


@dataclass(frozen=True, slots=True)
class Row:
    """All replications at one number of live sessions (None: the scenario states none)."""

    concurrency: int | None
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Everything a study found; ``steps`` explains the number of sessions where there are sessions."""

    resolved: Resolved
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """One report as it is; several as ``{"cases": [...]}`` with concurrency and seed beside each."""
        reports = [r for row in self.rows for r in row.reports]
        if len(reports) == 1:
            return reports[0].to_dict()
        cases = [{"concurrency": row.concurrency, "seed": r.run.seed, "report": r.to_dict()}
                 for row in self.rows for r in row.reports]
        return {"name": self.resolved.scenario.name, "cases": cases, "intervals": self.intervals()}

    def intervals(self) -> list[dict[str, Any]]:
        """Medians over the seeds with bootstrap intervals, where there are three seeds or more."""
        return [{"concurrency": row.concurrency, **{name: plain(median_interval([pick(r) for r in row.reports]))
                                                    for name, pick in MEASURES.items()}}
                for row in self.rows if len(row.reports) >= MIN_SEEDS]


def run_study(scenario: Scenario, progress: StudyProgress | None = None) -> StudyResult:
    """Run every case of a scenario: one, or its study's numbers of live sessions times its seeds.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    resolved = resolve(scenario)
    study = scenario.study
    if study is None:
        rows = (Row(scenario.workload.concurrency, (_simulate(scenario, progress),)),)
        return StudyResult(resolved, rows, ())
    rows = tuple(Row(c, tuple(_simulate(scenario.at(c, scenario.seed + k), progress)
                              for k in range(study.replications))) for c in study.concurrency)
    return StudyResult(resolved, rows, why_fewer(resolved) if scenario.workload.has_sessions else ())


def run_text(result: StudyResult) -> str:
    """A study, or one run, as text."""
    reports = [r for row in result.rows for r in row.reports]
    parts = [head_text(result.resolved), rows_text(result.rows)]
    if len(reports) == 1:
        parts.append(report_text(reports[0]))
    sure = [intervals_text(row) for row in result.rows if len(row.reports) >= MIN_SEEDS]
    if sure:
        parts.append("\n".join(["Intervals of the medians (bootstrap over the seeds)", *sure]))
    if result.steps:
        parts.append(steps_text(result.steps))
    lost = trace_lines(reports)
    if lost:
        parts.append("\n".join([NOT_AS_RECORDED, *lost]))
    return "\n\n".join(parts)


def head_text(resolved: Resolved) -> str:
    """What is simulated, the HBM budget, and the pool: predicted, and as logged where a log is given."""
    scenario = resolved.scenario
    if len(scenario.groups) > 1:
        return _groups_head(resolved)
    lines = [f"{scenario.name}: {resolved.model.name} on {scenario.hardware.num_gpus} x {resolved.gpu.name}, "
             f"{resolved.layout}, {scenario.engine.kv_dtype} KV, engine profile {resolved.engine_profile.name}"]
    if scenario.description:
        lines.append(scenario.description.strip())
    lines += ["", "HBM of the fullest GPU, predicted", resolved.budget.text(), ""]
    if resolved.predicted is not None:
        ratio = resolved.predicted.num_blocks / resolved.capacity.num_blocks
        lines += ["Predicted " + line for line in pool_lines(resolved.predicted)[:2]]
        lines.append(f"The pool as logged is used instead (the prediction is {ratio:.1%} of it):")
    return "\n".join([*lines, *pool_lines(resolved.capacity), "", *fit_lines(resolved.capacity)])


def _groups_head(resolved: Resolved) -> str:
    """What is simulated where replicas differ: budget and pool of each group."""
    scenario = resolved.scenario
    groups = group_hardware(scenario, default_store())
    parts = [f"{scenario.name}: {resolved.model.name} on {scenario.num_replicas} replicas of {len(groups)} kinds"]
    if scenario.description:
        parts[0] += f"\n{scenario.description.strip()}"
    return "\n\n".join([*parts, "HBM of each group's fullest GPU, predicted", *(group_head(g) for g in groups)])


MIN_SEEDS = 3
"""Fewer runs say nothing about an interval."""
MEASURES: Mapping[str, Callable[[Report], float]] = MappingProxyType({
    "hit_rate": lambda r: r.hit_rate.total,
    "output_tokens_per_s": lambda r: r.throughput.output_tokens_per_s,
    "ttft_s_p50": lambda r: r.latency.ttft_s.p50,
    "ttft_s_p95": lambda r: r.latency.ttft_s.p95,
    "usd_per_mtok_output": lambda r: r.cost.usd_per_mtok.output,
})
"""What a study gives intervals for."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a study's table: the median over the seeds of what `pick` takes from a report."""

    title: str
    unit: str
    width: int
    form: str
    pick: Callable[[Report], float]

    def cell(self, reports: tuple[Report, ...]) -> str:
        """The median over the reports, formatted; "-" where nothing happened or no price is known."""
        value = statistics.median(self.pick(r) for r in reports)
        return ("-" if math.isnan(value) else f"{value:{self.form}}").rjust(self.width)


COLUMNS = (
    Column("ideal", "", 6, ".1%", lambda r: r.hit_rate.ideal),
    Column("output", "tok/s", 7, ".1f", lambda r: r.throughput.output_tokens_per_s),
    Column("total", "tok/s/GPU", 9, ",.0f", lambda r: r.throughput.total_tokens_per_s_per_gpu),
    Column("TTFT p50", "s", 8, ".2f", lambda r: r.latency.ttft_s.p50),
    Column("TTFT p95", "s", 8, ".2f", lambda r: r.latency.ttft_s.p95),
    Column("TPOT p50", "ms", 8, ".1f", lambda r: 1e3 * r.latency.tpot_s.p50),
    Column("$/M", "blended", 7, ".3f", lambda r: r.cost.usd_per_mtok.blended),
    Column("$/M out", "all in", 7, ".2f", lambda r: r.cost.usd_per_mtok.output_all_in),
    Column("contrib.", "$/node-h", 8, ".2f", lambda r: r.cost.contribution_usd_per_node_hour),
)
"""Columns between the hit rate and what binds."""


def rows_text(rows: tuple[Row, ...]) -> str:
    """One line a number of live sessions: medians over the seeds, hit rates with their extremes."""
    head = " ".join(["live".rjust(4), "hit rate".rjust(16), *(c.title.rjust(c.width) for c in COLUMNS), " binds"])
    unit = " ".join([" " * 4, "median [min-max]", *(c.unit.rjust(c.width) for c in COLUMNS)])
    return "\n".join([head, unit, *(_row_text(row) for row in rows)])


def intervals_text(row: Row) -> str:
    """How sure the medians of one row are."""
    live = "-" if row.concurrency is None else str(row.concurrency)
    found = {name: median_interval([pick(r) for r in row.reports]) for name, pick in MEASURES.items()}
    level = min(interval.level_frac for interval in found.values())
    return (f"{live:>4} live, {len(row.reports)} seeds, {level:.0%} sure: "
            + ", ".join(f"{name} {interval.text()}" for name, interval in found.items()))


def report_text(report: Report) -> str:
    """The rest of one report: counts, cost, what binds, assumed figures."""
    run = report.run
    shares = ", ".join(f"{name} {getattr(report.limits.shares, name):.0%}" for name in _share_names(report))
    assumed = [e for e in report.ledger if e.kind == "assumed"]
    lines = [
        f"{run.num_requests} requests measured from {run.measured_from_s:.0f} s to {run.simulated_s:.0f} s, "
        f"{run.num_unfinished} unfinished, {run.num_refused} refused, {report.preemptions} preemptions",
        *(f"refused {reason}" for reason in run.refusals),
        f"${report.cost.usd_per_hour:.2f} per hour{_basis_text(report.cost)}; {_earning_text(report.cost)}",
        *([scaling_text(report.cost.scaling)] if report.cost.scaling else []),
        *_sales_lines(report.cost),
        *_lost_lines(report),
        f"time: {shares}",
        *([report.drafting.text()] if report.drafting else []),
        *([report.pipeline.text()] if report.pipeline else []),
        *(_tier_text(t, report) for t in report.tiers),
        *([cluster_text(report.cluster)] if report.cluster else []),
        *([report.disaggregation.text()] if report.disaggregation else []),
        *([groups_text(report.groups)] if report.groups else []),
        *([classes_text(report.traffic_classes)] if report.traffic_classes else []),
        f"{len(report.ledger)} figures used, {len(assumed)} of them assumed; seed {run.seed}, digest {run.digest}",
    ]
    return "\n".join(lines)


def _lost_lines(report: Report) -> list[str]:
    """What the hits lack of the ideal ones; nothing where there is nothing to find, or several replicas."""
    lost = report.hit_rate.lost_by
    if lost is None or not report.hit_rate.ideal:
        return []
    parts = ", ".join(f"{name} {getattr(lost, name):.1%}" for name in ("capacity", "policy", "bandwidth"))
    bound = "nothing much" if lost.bound_by == "none" else lost.bound_by
    return [f"lost of the ideal {report.hit_rate.ideal:.1%} hits: {parts} of prompt tokens; cache bound by {bound}"]


def _basis_text(cost: Cost) -> str:
    """What the bill and the speed behind it rest on."""
    bill = cost.bill
    return f" ({bill.basis} as of {bill.as_of}, {bill.units.text()}; speed: {cost.trust})" if bill else ""


def _tier_text(tier: TierUse, report: Report) -> str:
    share, moved = getattr(report.hit_rate.by_tier, tier.kind), tier.bytes_loaded + tier.bytes_stored
    far = (tier.bytes_loaded_remote + tier.bytes_stored_remote) / moved if moved else 0.0
    remote = f"{far:.0%} of it over the network ({tier.network_utilisation_frac:.1%} busy), " if far else ""
    return (f"{tier.kind}: {share:.1%} of prompt tokens, {tier.bytes_loaded / 1e9:,.0f} GB in and "
            f"{tier.bytes_stored / 1e9:,.0f} GB out per GPU, links {tier.load_link_utilisation_frac:.0%} and "
            f"{tier.store_link_utilisation_frac:.0%} busy, {remote}bound by {tier.verdict}")


def _earning_text(cost: Cost) -> str:
    if math.isnan(cost.contribution_usd_per_node_hour):
        return "what it earns is not known: prices.api names no price"
    if math.isnan(cost.break_even_frac):
        return "nothing earned: no measured request keeps the SLO"
    return f"margin {cost.margin_frac:.0%}, break-even at {cost.break_even_frac:.0%} of the API price"


def _sales_lines(cost: Cost) -> list[str]:
    """Revenue by traffic class and the demand in seats, where there are any."""
    seats, lines = cost.seats, list[str]()
    if cost.revenue_by_class and not math.isnan(cost.revenue_usd_per_hour.hits):
        lines.append("revenue by class: " + ", ".join(
            f"{name} ${mode_of(r, cost.revenue_mode):,.2f} an hour" for name, r in cost.revenue_by_class.items()))
    if math.isfinite(seats.served) and seats.served:
        lines.append(f"{seats.served:,.1f} seats served inside the SLO, {seats.per_node:,.1f} a node, "
                     f"${seats.usd_per_month:,.2f} a seat and month")
    return lines


def steps_text(steps: tuple[Step, ...]) -> str:
    """Why fewer sessions fit than a first division says."""
    rows = [f"  {step.sessions:>6.1f}  {step.what}" for step in steps]
    return "\n".join(["How many agents, and why not more", *rows])


def _row_text(row: Row) -> str:
    hits = sorted(r.hit_rate.total for r in row.reports)
    spread = f" [{hits[0]:.0%}-{hits[-1]:.0%}]" if len(hits) > 1 else ""
    live = "-" if row.concurrency is None else str(row.concurrency)
    binding = statistics.mode(r.limits.binding for r in row.reports)
    cells = [c.cell(row.reports) for c in COLUMNS]
    return " ".join([live.rjust(4), f"{statistics.median(hits):.1%}{spread}".rjust(16), *cells, f" {binding}"])


def _share_names(report: Report) -> list[str]:
    return [n for n in RESOURCES if getattr(report.limits.shares, n) >= 0.005]


def _simulate(scenario: Scenario, progress: StudyProgress | None) -> Report:
    label = f"{scenario.workload.concurrency} live, seed {scenario.seed}"
    return simulate(scenario, (lambda share: progress(label, share)) if progress else None)
