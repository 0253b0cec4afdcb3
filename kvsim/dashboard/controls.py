"""The sidebar: controls whose values become a scenario."""

from __future__ import annotations

from typing import Any, cast

import streamlit as st

from kvsim.dashboard import reuse, shipped, show, state
from kvsim.dashboard.choices import (
    CLOSED,
    CURVE_POINTS,
    LOGGED,
    NO_API_PRICE,
    OPEN,
    PREDICTED,
    RANGES,
    Choices,
    options,
)
from kvsim.dashboard.uploads import Kept, shelf
from kvsim.errors import KvsimError
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.scenario import shipped_scenarios

Options = dict[str, tuple[Any, ...]]
UPLOAD, _REFUSED = "trace upload", "trace refused"
PACE_TEXT = {CLOSED: "live sessions, or clients of single requests", OPEN: "at its recorded times"}
DEFAULT = "default"
"""Shown where nothing is chosen, so that the model's or the engine profile's own value holds."""


def sidebar(page: str) -> Choices:
    """Draw the controls on a page; returns what they say."""
    store = default_store()
    choices, problems = state.current(store, page)
    listed = options(choices, store)
    with st.sidebar:
        if problems:
            show.problems("The page's address asks for what is not available", problems)
        _start_from(store)
        _hardware(choices, listed)
        _engine(listed)
        _pool(choices)
        _tier(choices)
        _traffic(choices, listed)
        _slo()
        _prices(choices, store, listed)
    state.drawn(page)
    return choices


def _start_from(store: ProfileStore) -> None:
    """Set all controls as a shipped scenario has them."""
    with st.expander("Start from a shipped scenario"):
        names = tuple(shipped_scenarios())
        name = st.selectbox("Scenario", names, index=None, key="start from", placeholder="none chosen",
                            label_visibility="collapsed")
        if name is None:
            return
        found = shipped.opened(name, store)
        if found.obstacle:
            st.caption(f"Not for these controls: {found.obstacle}. The command kvsim run {name} takes it.")
            return
        assert found.choices is not None
        st.button("Set the controls", key="start", on_click=state.adopt, args=(found.choices,))
        if found.left_out:
            st.caption("What the controls do not say, and the pages leave out: " + ", ".join(found.left_out) + ".")


def _hardware(choices: Choices, listed: Options) -> None:
    st.subheader("Model and hardware")
    _select("model", "Model", listed)
    _select("gpu", "GPU", listed)
    _select("num_gpus", "GPUs of one replica", listed)
    left, right = st.columns(2)
    with left:
        _select("tp", "TP", listed, "Tensor parallel degree. Pipeline stages take the GPUs that are left.")
        _select("ep", "EP", listed, "Expert parallel degree; 1 splits experts by tensor parallelism.")
    with right:
        _select("dp", "DP", listed, "Attention data parallel degree: ranks with KV pools of their own.")
        _select("dcp", "DCP", listed, "Decode context parallel degree: KV striped over the TP group.")
    st.caption(f"Pipeline stages: PP{choices.pp}")
    with st.expander("Several replicas", expanded=choices.replicas > 1):
        _whole("replicas", "Replicas", 1)
        _select("router", "Router", listed, "Which replica a request goes to. By default one after the other; vLLM's "
                                            "own where a replica has attention-DP ranks.")
        st.caption("Live sessions, tokens/s and bill are those of all replicas together; HBM, pool and DRAM those of "
                   "one.")


def _engine(listed: Options) -> None:
    st.subheader("Engine")
    _select("kv_dtype", "KV dtype", listed)
    low, high = RANGES["gpu_memory_utilization"]
    st.slider("GPU memory utilization", low, high, step=0.01, key="gpu_memory_utilization",
              help="Share of the GPU's memory that the engine may use.")
    with st.expander("More engine settings"):
        _select("profile", "Engine profile", listed, "Kernels, overheads and defaults of an engine version.")
        _select("max_model_len", "Longest request (tokens)", listed, "By default the model's maximum.")
        _select("max_num_batched_tokens", "Token budget of a step", listed)
        _select("max_num_seqs", "Most running requests", listed)
        st.toggle("Prefix caching", key="prefix_caching")


def _pool(choices: Choices) -> None:
    st.radio("KV pool", (PREDICTED, LOGGED), key="pool", horizontal=True,
             help="Predicted from the HBM budget, or the size that an engine logged. A logged size belongs to the "
                  "machine it was logged on: changing model, hardware, layout or engine limits goes back to predicted.")
    low, high = RANGES["logged_gib"]
    st.number_input("Logged pool (GiB per GPU)", low, high, step=0.01, key="logged_gib",
                    disabled=choices.pool != LOGGED)


def _tier(choices: Choices) -> None:
    st.toggle("DRAM tier", key="dram",
              help="Host memory behind the HBM pool: blocks are copied down as they are computed and loaded back when "
                   "a prompt needs them, over the GPUs' host links.")
    low, high = RANGES["dram_gb"]
    st.number_input("DRAM capacity (GB, whole replica)", low, high, step=1.0, key="dram_gb", format="%.0f",
                    disabled=not choices.dram, help="0 = none.")


def _traffic(choices: Choices, listed: Options) -> None:
    st.subheader("Traffic")
    _select("preset", "Sessions of", listed,
            "agentx-v1: long coding sessions with sub-agents in a 1M window; agentx-v1-logs: the same as published "
            "logs show it; claude-code: live traffic, mostly in a 200k window.", disabled=bool(choices.trace))
    _trace(choices, listed)
    low, high = (int(bound) for bound in RANGES["sessions"])
    st.slider("Live sessions", low, high, key="sessions", disabled=choices.is_open,
              help="Agent sessions that are open at the same time, thinking or not, with their sub-agents.")
    st.multiselect("Also simulate", CURVE_POINTS, key="curve", disabled=choices.is_open,
                   help="Further points of the curve, in live sessions.")
    with st.expander("Length of the simulation"):
        _whole("duration_s", "Measured time (s)", 60)
        _whole("warmup_s", "Warm-up (s)", 60)
        _whole("seeds", "Seeds for each point", 1)
        st.caption("Near the edge, runs differ much from seed to seed: several seeds show the spread.")


def _trace(choices: Choices, listed: Options) -> None:
    """A trace of one's own in place of the preset, and how it is played."""
    kept = shelf().find(choices.trace)
    with st.expander("A trace of your own", expanded=kept is not None):
        st.file_uploader("Trace (any known format)", key=UPLOAD, on_change=_keep_trace,
                         max_upload_size=reuse.MAX_UPLOAD_BYTES // 1_000_000,
                         help="At most 50 MB and 100,000 requests. It stays on this server while it runs: a link to "
                              "this page finds it there, another server does not.")
        if _REFUSED in st.session_state:
            show.error(cast("KvsimError", st.session_state[_REFUSED]))
        if kept is None:
            return
        st.caption(trace_note(kept))
        st.radio("How it is played", listed["pace"], key="pace", format_func=lambda pace: PACE_TEXT[pace])
        low, high = RANGES["rate_factor"]
        st.number_input("Rate factor", low, high, step=0.1, key="rate_factor", format="%g",
                        disabled=not choices.is_open, help="2 lets requests in twice as fast as they were recorded.")
        st.button("Back to the preset", on_click=_drop_trace)


def trace_note(kept: Kept) -> str:
    """What an uploaded trace holds."""
    kind = (f"requests in {kept.num_sessions:,} sessions" if kept.has_turns else
            "single requests, each by a client of its own")
    clock = f"over {kept.duration_s:,.0f} s" if kept.has_clock else "without a common clock"
    return f"{kept.file_name}: {kept.num_requests:,} {kind}, {clock}."


def _keep_trace() -> None:
    """Take an uploaded trace for the traffic; what is none is told at the control."""
    st.session_state.pop(_REFUSED, None)
    file = st.session_state[UPLOAD]
    if file is None:
        return
    try:
        kept = shelf().keep(file.name, file.getvalue())
    except KvsimError as err:
        st.session_state[_REFUSED] = err
        return
    st.session_state["trace"] = kept.name
    st.session_state["pace"] = OPEN if kept.has_clock and not kept.has_turns else CLOSED


def _drop_trace() -> None:
    st.session_state["trace"] = ""


def _slo() -> None:
    st.subheader("SLO")
    left, right = st.columns(2)
    for place, key, label, step in ((left, "ttft_p95_s", "TTFT p95 (s)", 1.0),
                                    (right, "tpot_p95_ms", "TPOT p95 (ms)", 5.0)):
        low, high = RANGES[key]
        place.number_input(label, low, high, step=step, key=key, format="%g", help="0 = no limit. Only requests inside "
                                                                                   "all limits earn.")


def _prices(choices: Choices, store: ProfileStore, listed: Options) -> None:
    st.subheader("Prices")
    _select("compute", "GPU price profile", listed)
    low, high = RANGES["usd_per_gpu_hour"]
    usual = store.get("price", choices.compute).usd_per_gpu_hour.get(choices.gpu)
    st.number_input("$ per GPU-hour", low, high, value=None, step=0.05, key="usd_per_gpu_hour", format="%.2f",
                    placeholder=f"{usual.base:.2f} (profile)" if usual else "none known",
                    help="A price of yours in place of the profile's; empty takes the profile's. It belongs to a GPU: "
                         "another GPU or price profile empties it.")
    st.caption(price_note(choices, store))
    _select("api", "API price profile", listed)
    st.caption(api_note(choices, store))


def price_note(choices: Choices, store: ProfileStore) -> str:
    r"""The GPU's price with its source, basis and date.

    Examples
    --------
    >>> from kvsim.dashboard.choices import default_choices
    >>> price_note(default_choices(default_store()), default_store())[:31]
    '\\$4.25 per GPU-hour (nominal), '
    """
    if choices.usd_per_gpu_hour is not None:
        return f"\\${choices.usd_per_gpu_hour:,.2f} per GPU-hour, as stated here."
    price = store.get("price", choices.compute)
    if choices.gpu not in price.usd_per_gpu_hour:
        return f"No price profile covers {choices.gpu}: capacity is shown, cost is not."
    figure = price.usd_per_gpu_hour[choices.gpu]
    return (f"\\${figure.base:,.2f} per GPU-hour ({figure.kind}), {price.provider}, {price.basis}, {price.as_of}. "
            f"Source: {price.sources[figure.source].title}")


def api_note(choices: Choices, store: ProfileStore) -> str:
    """The API's prices with source and date."""
    if choices.api == NO_API_PRICE:
        return "No API price of this model is known: contribution cannot be shown."
    api = store.get("api-price", choices.api)
    source = api.sources[api.input.source].title
    return (f"\\${api.input.base:g} input, \\${api.cached_input.base:g} cached, \\${api.output.base:g} output "
            f"per million tokens, {api.provider}, {api.as_of}. Source: {source}")


def _select(key: str, label: str, listed: Options, help_text: str | None = None, *, disabled: bool = False) -> None:
    st.selectbox(label, listed[key], key=key, help=help_text, format_func=_shown, placeholder=DEFAULT,
                 disabled=disabled)


def _whole(key: str, label: str, step: int) -> None:
    low, high = (int(bound) for bound in RANGES[key])
    st.number_input(label, low, high, step=step, key=key)


def _shown(option: Any) -> str:
    if option is None:
        return DEFAULT
    return f"{option:,}" if isinstance(option, int) else str(option)
