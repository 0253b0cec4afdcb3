"""Cache: how much of the traffic could be reused with how much cache, and which tier it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from kvsim.cache.curves.curves import Curves
from kvsim.dashboard import cache_figures, reuse, show, tier_figures
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.results import TIER_TEXT
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.errors import KvsimError
from kvsim.load_or_recompute import load_or_recompute
from kvsim.report.transfers import TierUse
from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
from kvsim.study import Row
from kvsim.workload.table import Trace

QUICK_POLICIES = ("lru", "lru_tail")
"""Drawn unless others are asked for: the optimum and LFU take a minute on a hundred thousand long prompts."""
PRESET, UPLOAD = "the chosen preset", "a trace of your own"


def page() -> None:
    """The whole page."""
    begun = opened("Cache", "How much of the traffic could be reused with how much cache, and which tier serves it.")
    if begun is None:
        return
    choices, resolved = begun
    st.subheader("Hit rate by tier and live sessions")
    row = show_tiers(choices, resolved)
    if row is not None:
        show.not_as_recorded(row.reports)
        show_run(row)
    st.subheader("Load or recompute")
    show_reload(resolved)
    st.subheader("Hit rate by capacity and policy")
    show_curves(choices, resolved)
    take_along(choices, resolved.scenario, row)


def show_run(row: Row) -> None:
    """The pool and the tiers over the first seed's run."""
    report = row.reports[0]
    st.subheader(f"The pool over time, at {row.concurrency} live sessions")
    show.chart(tier_figures.occupancy(report), "occupancy", tier_figures.occupancy_alt(report))
    st.caption(f"Seed {report.run.seed}. What is neither held nor cached is empty. Where held blocks reach the top, "
               "requests wait or are preempted; where cached ones are squeezed, prompts lose their prefix.")
    st.subheader("Transfers")
    if report.tiers:
        show.table([transfer_row(use) for use in report.tiers], "What the tiers below HBM did in the run")
    else:
        st.caption("No tier below HBM, so nothing is transferred: switch the DRAM tier on in the sidebar.")


def transfer_row(use: TierUse) -> dict[str, str]:
    """What one tier did, as a row; bytes are those of one GPU."""
    return {"Tier": TIER_TEXT[use.kind], "Capacity (GB/GPU)": f"{use.capacity_bytes / 1e9:,.0f}",
            "Filled (GB/GPU)": f"{use.resident_bytes / 1e9:,.0f}", "Tokens served": f"{use.hit_tokens:,}",
            "Loaded (GB/GPU)": f"{use.bytes_loaded / 1e9:,.1f}", "Stored (GB/GPU)": f"{use.bytes_stored / 1e9:,.1f}",
            "Load link busy": f"{use.load_link_utilisation_frac:.1%}",
            "Store link busy": f"{use.store_link_utilisation_frac:.1%}", "Short of": use.verdict}


def show_reload(resolved: Resolved) -> None:
    """Whether a context is loaded faster than it is computed again, from every tier whose rates are known."""
    try:
        found = load_or_recompute(resolved)
    except KvsimError as err:
        show.error(err)
        return
    show.chart(tier_figures.reload_figure(found.rows), "reload", tier_figures.reload_alt(found.rows))
    said = ", ".join(f"{TIER_TEXT[kind]} " + (f"from {n:,} tokens on" if n else "nowhere")
                     for kind, n in found.break_even_tokens.items())
    st.caption(f"Loading is faster: {said or 'no tier is known here'}. An idle engine and an idle link; all of the "
               "context is found in the tier. Tiers that the configuration lacks are drawn with the profiles' rates.")


def show_tiers(choices: Choices, resolved: Resolved) -> Row | None:
    """What the simulated runs found in each tier; returns the chosen number of live sessions."""
    try:
        rows = simulate_points(choices, resolved.scenario, st.empty(), lambda _rows: None)
    except KvsimError as err:
        show.error(err)
        return None
    show.chart(cache_figures.tiers_by_sessions(rows), "tiers", cache_figures.tiers_alt(rows))
    off = "" if resolved.scenario.tiers else " Switch the DRAM tier on in the sidebar to see what it would serve."
    over = "one seed" if choices.seeds == 1 else f"medians over {choices.seeds} seeds"
    st.caption(f"Simulated, with all queueing and transfers; {over}.{off}")
    return next(r for r in rows if r.concurrency == choices.sessions)


def show_curves(choices: Choices, resolved: Resolved) -> None:
    """Hit rates without timing, of the preset or of an uploaded trace."""
    left, right = st.columns(2)
    source = left.radio("Traffic", (PRESET, UPLOAD), key="cache source")
    policies = right.multiselect("Policies", tuple(cache_figures.POLICY_TEXT), QUICK_POLICIES, key="cache policies",
                                 format_func=lambda p: cache_figures.POLICY_TEXT[p],
                                 help="LFU and the optimum may take a minute.")
    try:
        trace, lost = _uploaded() if source == UPLOAD else (preset(resolved.scenario), ())
        if trace is None or not policies:
            st.info("Choose a file." if trace is None else "Choose a policy.", icon=":material/upload_file:")
            return
        with st.spinner("Counting reuses …"):
            found = curves(trace, tuple(policies), choices.sessions)
    except KvsimError as err:
        show.error(err)
    else:
        show.lost_rows(lost)
        show_found(found, resolved)


def show_found(found: Curves, resolved: Resolved) -> None:
    """Chart and table of hit rates by capacity."""
    pool = float(resolved.capacity.kv_tokens)
    show.chart(cache_figures.capacity_curves(found, pool), "curves", cache_figures.curves_alt(found))
    st.caption(f"{found.label}: {found.num_requests:,} requests, {found.num_blocks:,} blocks of {found.block_tokens} "
               f"tokens, {found.num_unique_blocks:,} distinct; {found.played}. One request at a time, without service "
               "time, prompts only: an upper bound of what an engine reaches, since it also holds outputs, running "
               "requests and states. The dotted line is the configured pool, in tokens as an engine logs them.")
    with st.expander("All capacities as a table"):
        show.grid([curve_row(found, k) for k in range(len(found.rows))], "Hit rates, a row a capacity and policy")
    st.download_button("Hit rates (CSV)", found.to_csv, "hit_rates.csv", "text/csv", on_click="ignore",
                       icon=":material/download:")


def curve_row(found: Curves, number: int) -> dict[str, Any]:
    """One capacity and policy as a row; units stand in the column names."""
    row = found.rows[number]
    return {"Policy": cache_figures.POLICY_TEXT[row.policy], "Capacity (blocks)": int(row.capacity_blocks),
            "Capacity (tokens)": int(row.capacity_blocks) * found.block_tokens,
            "Tokens reused (%)": round(100 * row.token_hit_rate, 2),
            "Blocks reused (%)": round(100 * row.block_hit_rate, 2)}


def _uploaded() -> tuple[Trace | None, Sequence[str]]:
    """The uploaded trace, once there is one, and what of it was not taken as recorded."""
    file = st.file_uploader("Trace (any known format, at most 50 MB)", key="cache upload",
                            max_upload_size=reuse.MAX_UPLOAD_BYTES // 1_000_000,
                            help="JSON lines with block hashes, session logs, CSV: the format is found from the "
                                 "content. It stays on this server, in memory, until others take its place.")
    return (None, ()) if file is None else uploaded(file.name, file.getvalue())


@st.cache_resource(max_entries=2, show_spinner="Reading the trace …")
def uploaded(name: str, data: bytes) -> tuple[Trace, Sequence[str]]:
    """A trace that was read once, and what of it was not taken as recorded; errors are not kept."""
    trace, report = reuse.read_upload(name, data)
    return trace, report.lines()


def preset(scenario: Scenario) -> Trace:
    """The sessions of the chosen preset."""
    return _preset(scenario.digest, scenario)


@st.cache_resource(max_entries=2, show_spinner=False)
def _preset(digest: str, _scenario: Scenario) -> Trace:
    return reuse.preset_trace(_scenario)


def curves(trace: Trace, policies: tuple[str, ...], live: int) -> Curves:
    """Hit rates, counted once.

    Raises
    ------
    TraceError
        The trace knows lengths only, so that what its prompts share cannot be told.
    """
    key = (trace.label, len(trace), int(trace.piece_tokens.sum()), int(trace.piece_content.sum()))
    return _curves(key, trace, policies, live)


@st.cache_resource(max_entries=8, show_spinner=False)
def _curves(key: tuple[str, int, int, int], _trace: Trace,
            policies: tuple[str, ...], live: int) -> Curves:
    return reuse.curves_of(_trace, policies, live)
