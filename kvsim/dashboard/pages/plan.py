"""Plan: what fits, how much of it is reused, what binds, and what it earns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvsim.agents import Step, why_fewer
from kvsim.billing import api_price
from kvsim.dashboard import figures, gauge_figure, next_steps, results, show, state, verdict
from kvsim.dashboard.choices import Choices, scenario_of
from kvsim.dashboard.controls import sidebar
from kvsim.dashboard.headroom import headroom
from kvsim.dashboard.open_figure import load_alt, load_curve
from kvsim.dashboard.open_traffic import load_rows, load_sentence, loads_of, simulate_loads
from kvsim.dashboard.pages import compare
from kvsim.dashboard.simulate import Bar, simulate_point, simulate_points
from kvsim.dashboard.takeaway import take_along
from kvsim.dashboard.uploads import shelf
from kvsim.errors import InfeasibleError, KvsimError
from kvsim.memory.capacity import Capacity
from kvsim.profiles.store import default_store
from kvsim.report.ledger import LedgerEntry, ledger_of
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario
from kvsim.study import Row
from kvsim.units import gib, si

BANNERS = {"safe": st.success, "edge": st.warning, "collapsed": st.error}


@dataclass(slots=True)
class Slots:
    """Places that are filled when the simulations are done, above what is known at once."""

    verdict: DeltaGenerator = field(default_factory=st.empty)
    progress: DeltaGenerator = field(default_factory=st.empty)
    metrics: DeltaGenerator = field(default_factory=st.empty)


def page() -> None:
    """The whole page."""
    choices = sidebar("Plan")
    st.title("Plan")
    st.caption("How much KV cache fits, how much of it is reused, what binds, and what it earns.")
    try:
        scenario = scenario_of(choices)
        resolved = resolve(scenario)
    except InfeasibleError as err:
        show.error(err)
        show_shortfall(choices)
    except KvsimError as err:
        show.error(err)
    else:
        if choices.is_open:
            show_open(choices, resolved)
        else:
            show_plan(choices, resolved)


def show_shortfall(choices: Choices) -> None:
    """The budget of what does not fit."""
    budget = resolve(with_any_pool(scenario_of(choices))).budget
    st.subheader("HBM of the fullest GPU")
    show.chart(figures.hbm_waterfall(budget), "waterfall", figures.waterfall_alt(budget))


def with_any_pool(scenario: Scenario) -> Scenario:
    """The scenario with the smallest pool given, since a budget is only refused where the pool is predicted."""
    engine = scenario.engine.model_copy(update={"num_blocks": 2, "kv_bytes_per_gpu": None})
    return scenario.model_copy(update={"engine": engine})


def begin(resolved: Resolved, title: str) -> tuple[Slots, DeltaGenerator]:
    """What is known at once, around the places of what has to be simulated: the verdict, and a chart under a title."""
    slots = Slots()
    slots.verdict.info(f"{verdict.capacity_sentence(resolved)}. Simulating traffic …", icon=":material/memory:")
    show_capacity_metrics(resolved)
    st.subheader(title)
    place = st.empty()
    place.caption("Simulating …")
    st.subheader("HBM of the fullest GPU")
    show_waterfall(resolved)
    show_fits(resolved)
    return slots, place


def not_simulated(resolved: Resolved, err: KvsimError, slots: Slots, place: DeltaGenerator) -> None:
    """Traffic that cannot be simulated leaves capacity standing."""
    slots.progress.empty()
    slots.verdict.info(f"{verdict.capacity_sentence(resolved)}. The traffic was not simulated.",
                       icon=":material/memory:")
    with place.container():
        show.error(err)


def show_plan(choices: Choices, resolved: Resolved) -> None:
    """Everything about a machine on which the model fits: what is known at once first, then simulations."""
    slots, curve = begin(resolved, "Prefix reuse and output by live sessions")
    st.subheader("How many agents, and why not more")
    show_steps(resolved, choices)
    show_ledger(ledger_of(resolved.profiles))
    try:
        rows = simulate_points(choices, resolved.scenario, slots.progress,
                               lambda found: show_curve(curve, found, choices, last=False),
                               lambda found: show_first(resolved, found[0], choices, slots))
    except KvsimError as err:
        not_simulated(resolved, err, slots, curve)
    else:
        show_curve(curve, rows, choices, last=True)
        show_results(choices, resolved, rows, slots)
        next_steps.show_platforms(choices)
        next_steps.show_dollar(resolved.scenario)
        take_along(choices, resolved.scenario, next(r for r in rows if r.concurrency == choices.sessions))


def show_open(choices: Choices, resolved: Resolved) -> None:
    """A trace at its recorded times: live sessions do not apply, the load is varied instead."""
    slots, place = begin(resolved, "The trace, slower and faster")
    show_ledger(ledger_of(resolved.profiles))
    try:
        loads = simulate_loads(resolved.scenario, loads_of(choices.rate_factor), slots.progress)
    except KvsimError as err:
        not_simulated(resolved, err, slots, place)
        return
    row = loads[choices.rate_factor]
    with slots.verdict:
        BANNERS[results.zone_of(results.reached_frac(row))](load_sentence(choices, resolved, loads),
                                                            icon=":material/memory:")
    with place.container():
        show.chart(load_curve(loads, choices.rate_factor, resolved.scenario), "loads", load_alt(loads))
        show.table(load_rows(loads, resolved.scenario), "The trace at several rates")
        st.caption("One run a rate: a trace at its own times has no chance in it. How much of the trace is played is "
                   "set under Length of the simulation. Dotted lines: the rate chosen, and the SLO's limit of TTFT.")
    with slots.metrics.container():
        show_traffic_metrics(row, resolved, st.empty(), None)
        show_doubts([row])
    take_along(choices, resolved.scenario, row)


def show_first(resolved: Resolved, row: Row, choices: Choices, slots: Slots) -> None:
    """The chosen point after its first seed: an answer at once, which the other seeds and points then complete."""
    traffic = verdict.traffic_sentence(resolved, [row], choices.sessions).rpartition("; ")[0]
    others = "The other points" if choices.seeds == 1 else f"The first of {choices.seeds} seeds; the others"
    slots.verdict.info(f"{verdict.capacity_sentence(resolved)}; {traffic}. {others} are being simulated …",
                       icon=":material/memory:")
    with slots.metrics.container():
        show_traffic_metrics(row, resolved, st.empty(), None)


def show_curve(place: DeltaGenerator, rows: Sequence[Row], choices: Choices, *, last: bool) -> None:
    """The curve so far, with its caption and numbers once it is complete."""
    ordered = sorted(rows, key=lambda row: row.concurrency or 0)
    with place.container():
        show.chart(figures.hit_curve(ordered, choices.sessions), f"curve {len(rows)}", figures.curve_alt(ordered))
        if last:
            st.caption(curve_caption(choices))
            with st.expander("All simulated points as a table"):
                show.grid([point_row(row) for row in ordered], "Simulated points, one a row")


def curve_caption(choices: Choices) -> str:
    """What the curve shows, on what it rests, and where its zones lie."""
    zones = ", ".join(f"{zone}: {text}" for zone, text in results.ZONE_TEXT.items())
    runs = "one seed" if choices.seeds == 1 else f"the median of {choices.seeds} seeds with their extremes"
    return (f"Points are simulations of {choices.traffic} traffic, {choices.duration_s:,} s after a warm-up of "
            f"{choices.warmup_s:,} s, {runs}; lines between them are drawn for the eye. The dotted line marks "
            f"{choices.sessions} live sessions. Zones: {zones}; their borders are interpolated.")


def point_row(row: Row) -> dict[str, Any]:
    """One simulated point as a row of the table; units stand in the column names."""
    def middle(pick: results.Pick, digits: int) -> float:
        return round(results.median(row, pick), digits)

    return {
        "Live sessions": row.concurrency,
        "Hit rate (%)": round(100 * results.median(row, results.HIT), 1),
        "HBM hits (%)": round(100 * results.tier_hits(row)["hbm"], 1),
        "DRAM hits (%)": round(100 * results.tier_hits(row)["dram"], 1),
        "Ideal (%)": round(100 * results.median(row, results.IDEAL), 1),
        "Output (tokens/s)": middle(results.OUTPUT, 1),
        "Binds": results.RESOURCE_TEXT[results.binding(row)],
        "Contribution ($/node-h)": middle(results.CONTRIBUTION, 2),
        "TTFT p95 (s)": middle(results.TTFT_P95, 2),
        "All tokens (tokens/s/GPU)": middle(lambda r: r.throughput.total_tokens_per_s_per_gpu, 0),
        "TTFT p50 (s)": middle(lambda r: r.latency.ttft_s.p50, 2),
        "TPOT p50 (ms)": round(1e3 * results.median(row, lambda r: r.latency.tpot_s.p50), 1),
        "Blended ($/Mtok)": middle(lambda r: r.cost.usd_per_mtok.blended, 3),
        "Output, all in ($/Mtok)": middle(lambda r: r.cost.usd_per_mtok.output_all_in, 2),
        "Requests measured": sum(r.run.num_requests for r in row.reports),
        "Refused": sum(r.run.num_refused for r in row.reports),
        "Preemptions": sum(r.preemptions for r in row.reports),
    }


def show_results(choices: Choices, resolved: Resolved, rows: Sequence[Row], slots: Slots) -> None:
    """Verdict and metrics of the chosen number of live sessions."""
    row = next(r for r in rows if r.concurrency == choices.sessions)
    api = api_price(resolved.scenario, resolved.model.name, default_store())
    zone = results.zone_of(results.reached_frac(row))
    with slots.verdict:
        BANNERS[zone](verdict.verdict(resolved, rows, choices.sessions, api), icon=":material/memory:")
    pinned = state.pinned(default_store())
    with slots.metrics.container():
        place = st.empty()
        show_traffic_metrics(row, resolved, place, None)
        show_gauge(rows, choices.sessions)
        pin_buttons(choices, pinned)
        show_doubts(rows)
    if pinned is not None:
        show_traffic_metrics(row, resolved, place, pinned_row(pinned, slots.progress))


def show_doubts(rows: Sequence[Row]) -> None:
    """What a reader must know before trusting the points."""
    refused = sum(r.run.num_refused for row in rows for r in row.reports)
    empty = [row.concurrency for row in rows if not any(r.run.num_requests for r in row.reports)]
    if refused:
        st.warning(f"{refused:,} requests were refused: longer than the longest request, or than the whole pool.")
    if empty:
        st.warning(f"No request got its first token inside the measured time at {empty} live sessions: measure longer.")
    show.not_as_recorded(r for row in rows for r in row.reports)


def show_capacity_metrics(resolved: Resolved) -> None:
    """Figures of the pool, known without a simulation."""
    capacity = resolved.capacity
    per_gpu = capacity.num_blocks * max(capacity.geometry.block_bytes)
    predicted = resolved.predicted
    ahead = None if predicted is None else f"prediction {predicted.num_blocks / capacity.num_blocks - 1:+.1%}"
    with st.container(horizontal=True):
        show.metric("KV cache (tokens)", si(capacity.kv_tokens, ""),
                    f"As the engine logs it at {capacity.max_model_len:,} tokens a request.")
        st.metric("KV pool per GPU", gib(per_gpu), ahead, delta_color="off", delta_arrow="off", width=show.METRIC_WIDTH,
                  help=f"{capacity.num_blocks:,} blocks of {capacity.geometry.block_capacity_tokens:,} tokens.")
        fit = figures.compared_fit(capacity)
        show.metric(f"Sessions at {fit.context_tokens / 1e3:.0f}k", f"{fit.sessions:,}",
                    f"Sessions of {fit.context_tokens:,} tokens each that fit at once.")
        show.metric("KV per token", f"{capacity.bytes_per_token / 1e3:,.1f} kB", "Whole model, before replication.")


def pinned_row(pinned: Choices, progress: DeltaGenerator) -> Row | None:
    """The chosen point of the pinned configuration; None where it cannot be simulated."""
    try:
        bar = Bar(progress, "Simulating the pinned configuration", 0.9)
        row = simulate_point(resolve(scenario_of(pinned)).scenario, pinned.sessions, pinned.seeds, bar)
    except KvsimError:
        return None
    progress.empty()
    return row


def pin_buttons(choices: Choices, pinned: Choices | None) -> None:
    """Pin the present configuration, and forget the pinned one."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Pin as A" if pinned is None else "Pin this instead", on_click=state.pin, args=(choices,),
                  icon=":material/push_pin:", help="Figures above then show how far they are from it; page Compare "
                                                   "has the rest.")
        if pinned is not None:
            st.button("Unpin A", on_click=state.unpin)
            st.caption(f"Differences are from A: {compare.title(pinned)}.", width="content")


def show_gauge(rows: Sequence[Row], live: int) -> None:
    """Distance to the edge of the cliff: a figure, and where it comes from."""
    ordered = sorted(rows, key=lambda row: row.concurrency or 0)
    found = headroom(ordered, live)
    where = "not reached" if found.edge is None else f"at {found.edge:.1f} live sessions"
    st.metric("Headroom to the edge", found.text(), where, delta_color="off", delta_arrow="off", width="content",
              help="More live sessions that fit before the hit rate falls below "
                   f"{results.SAFE_FRAC:.0%} of the ideal, in % of those now; negative beyond the edge.")
    show.chart(gauge_figure.gauge(ordered, live), "gauge", gauge_figure.gauge_alt(ordered, live))


@dataclass(frozen=True, slots=True)
class Shown:
    """How a figure of the traffic is told: its name, where it is found, its text, and the text of a difference."""

    label: str
    pick: results.Pick
    text: Callable[[float], str]
    difference: str
    scale: float = 1.0

    def delta(self, row: Row, base: Row | None) -> str | None:
        """Difference from the pinned configuration; None without one, or where it has no such figure."""
        if base is None:
            return None
        change = self.scale * (results.median(row, self.pick) - results.median(base, self.pick))
        return None if math.isnan(change) else f"{change:{self.difference}} from A".replace("-", "−")


def traffic_figures(row: Row, resolved: Resolved) -> list[tuple[Shown, str]]:
    """The figures of a simulated point, each with what it means."""
    slo, bill = resolved.scenario.slo, row.reports[0].cost.usd_per_hour
    ideal = f"An unlimited cache would reach {results.median(row, results.IDEAL):.1%}."
    return [
        (Shown("Prompt tokens reused", results.HIT, lambda v: f"{v:.1%}", "+,.1f", 100.0), ideal),
        (Shown("Output (tokens/s)", results.OUTPUT, lambda v: f"{v:,.0f}", "+,.0f"), "Of the whole replica."),
        (Shown("TTFT p95", results.TTFT_P95, verdict.seconds, "+,.2f"), _goal(slo.ttft_s.get("p95"))),
        (Shown("TPOT p95", results.TPOT_P95, lambda v: f"{1e3 * v:,.1f} ms", "+,.1f", 1e3),
         _goal(slo.tpot_s.get("p95"))),
        (Shown("$ per M output tokens", _ALL_IN, lambda v: f"${v:,.2f}", "+,.2f"),
         f"The whole bill of ${bill:,.2f} an hour on the output tokens alone."),
        (Shown("Contribution ($/node-h)", results.CONTRIBUTION, lambda v: verdict.usd(v).replace("\\", ""), "+,.2f"),
         "Revenue of the requests inside the SLO less the hardware's price."),
        *_pipeline(row),
    ]


def _pipeline(row: Row) -> list[tuple[Shown, str]]:
    """The bubble of a pipeline, where there is one."""
    use = row.reports[0].pipeline
    if use is None:
        return []
    return [(Shown("Pipeline bubble", _BUBBLE, lambda v: f"{v:.0%}", "+,.0f", 100.0),
             f"Share of their time in which the {use.stages} pipeline stages have no batch.")]


def show_traffic_metrics(row: Row, resolved: Resolved, place: DeltaGenerator, base: Row | None) -> None:
    """Figures of the simulated traffic, and how far each is from the pinned configuration."""
    with place.container(horizontal=True):
        for shown, about in traffic_figures(row, resolved):
            show.metric(shown.label, shown.text(results.median(row, shown.pick)), about, shown.delta(row, base))
        show.metric("What binds", results.RESOURCE_TEXT[results.binding(row)],
                    "The resource with the largest share of the time.")


_BUBBLE: results.Pick = lambda r: r.pipeline.bubble_frac if r.pipeline else math.nan  # noqa: E731
_ALL_IN: results.Pick = lambda r: r.cost.usd_per_mtok.output_all_in  # noqa: E731


def _goal(limit_s: float | None) -> str:
    return "No objective is set." if limit_s is None else f"The objective is {limit_s:g} s."


def show_waterfall(resolved: Resolved) -> None:
    """The budget as a chart, and as text for copying."""
    budget = resolved.budget
    show.chart(figures.hbm_waterfall(budget, resolved.capacity), "waterfall", figures.waterfall_alt(budget))
    st.caption("Each bar takes from what the bars above it leave; whiskers are the ranges of measured and assumed "
               "figures. Hover for kind and source.")
    with st.expander("The budget as text"):
        st.code(budget.text(), language=None)


def show_fits(resolved: Resolved) -> None:
    """What fits at each context length."""
    st.subheader("What fits, by context length")
    show.table(fit_rows(resolved.capacity), "Sessions and tokens that fit, by context length")


def fit_rows(capacity: Capacity) -> list[dict[str, str]]:
    """Rows of the table of what fits."""
    return [{"Context (tokens)": f"{f.context_tokens:,}", "Sessions": f"{f.sessions:,}",
             "Tokens held": si(f.tokens, "") if f.tokens else "0", "Blocks a session": f"{f.blocks_per_session:,}"}
            for f in capacity.fits]


def show_steps(resolved: Resolved, choices: Choices) -> None:
    """From the naive number of agents of one replica to the safe one."""
    kept = shelf().find(choices.trace)
    if kept is not None and not kept.has_turns:
        st.caption("The trace has single requests only: no session keeps a context for a next turn.")
        return
    try:
        steps = why_fewer(resolved)
    except KvsimError as err:
        show.error(err)
        return
    show.table(step_rows(steps), "Live sessions that the pool holds, step by step")


def step_rows(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Rows of the table of steps."""
    return [{"Live sessions": f"{step.sessions:,.1f}", "Once this is counted": step.what} for step in steps]


def show_ledger(entries: Sequence[LedgerEntry]) -> None:
    """Every figure behind the results, assumed ones first."""
    assumed = sum(e.kind == "assumed" for e in entries)
    with st.expander(f"Assumptions: {len(entries)} figures used, {assumed} of them assumed"):
        show.grid([ledger_row(e) for e in entries], "Figures used, assumed first")


def ledger_row(entry: LedgerEntry) -> dict[str, str]:
    """One figure of the ledger as a row."""
    span = f"{entry.low:,g} to {entry.high:,g}" if entry.high > entry.low else ""
    return {"Kind": entry.kind, "Figure": entry.name, "Value": f"{entry.value:,g}", "Unit": entry.unit, "Range": span,
            "Source": entry.source, "Why": entry.why}
