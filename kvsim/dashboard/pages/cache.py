"""Cache: how much of the traffic could be reused with how much cache, and which tier it comes from."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvsim.cache.curves.curves import Curves
from kvsim.dashboard import cache_figures, reuse, show
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.errors import KvsimError
from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
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
    show_tiers(choices, resolved)
    st.subheader("Hit rate by capacity and policy")
    show_curves(choices, resolved)


def show_tiers(choices: Choices, resolved: Resolved) -> None:
    """What the simulated runs found in each tier."""
    try:
        rows = simulate_points(choices, resolved.scenario, st.empty(), lambda _rows: None)
    except KvsimError as err:
        show.error(err)
        return
    show.chart(cache_figures.tiers_by_sessions(rows), "tiers", cache_figures.tiers_alt(rows))
    off = "" if resolved.scenario.tiers else " Switch the DRAM tier on in the sidebar to see what it would serve."
    st.caption(f"Simulated, with all queueing and transfers; medians over {choices.seeds} seeds.{off}")


def show_curves(choices: Choices, resolved: Resolved) -> None:
    """Hit rates without timing, of the preset or of an uploaded trace."""
    left, right = st.columns(2)
    source = left.radio("Traffic", (PRESET, UPLOAD), key="cache source")
    policies = right.multiselect("Policies", tuple(cache_figures.POLICY_TEXT), QUICK_POLICIES, key="cache policies",
                                 format_func=lambda p: cache_figures.POLICY_TEXT[p],
                                 help="LFU and the optimum may take a minute.")
    try:
        trace = _uploaded() if source == UPLOAD else preset(resolved.scenario)
        if trace is None or not policies:
            st.info("Choose a file." if trace is None else "Choose a policy.", icon=":material/upload_file:")
            return
        with st.spinner("Counting reuses …"):
            found = curves(trace, tuple(policies), choices.sessions)
    except KvsimError as err:
        show.error(err)
    else:
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


def _uploaded() -> Trace | None:
    """The uploaded trace, once there is one."""
    file = st.file_uploader("Trace (any known format, at most 50 MB)", key="cache upload",
                            max_upload_size=reuse.MAX_UPLOAD_BYTES // 1_000_000,
                            help="JSON lines with block hashes, session logs, CSV: the format is found from the "
                                 "content. It stays on this server, in memory, until others take its place.")
    return None if file is None else uploaded(file.name, file.getvalue())


@st.cache_resource(max_entries=2, show_spinner="Reading the trace …")
def uploaded(name: str, data: bytes) -> Trace:
    """A trace that was read once; errors are not kept."""
    return reuse.uploaded_trace(name, data)


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
