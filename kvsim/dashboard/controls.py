"""The sidebar: controls whose values become a scenario."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvsim.dashboard import show, state
from kvsim.dashboard.choices import (
    CURVE_POINTS,
    LOGGED,
    NO_API_PRICE,
    PREDICTED,
    RANGES,
    Choices,
    options,
)
from kvsim.profiles.store import ProfileStore, default_store

Options = dict[str, tuple[Any, ...]]
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
        _hardware(choices, listed)
        _engine(listed)
        _pool(choices)
        _tier(choices)
        _traffic(listed)
        _prices(choices, store, listed)
    return choices


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


def _traffic(listed: Options) -> None:
    st.subheader("Traffic")
    _select("preset", "Sessions of", listed,
            "agentx-v1: long coding sessions with sub-agents in a 1M window; agentx-v1-logs: the same as published "
            "logs show it; claude-code: live traffic, mostly in a 200k window.")
    low, high = (int(bound) for bound in RANGES["sessions"])
    st.slider("Live sessions", low, high, key="sessions",
              help="Agent sessions that are open at the same time, thinking or not, with their sub-agents.")
    st.multiselect("Also simulate", CURVE_POINTS, key="curve", help="Further points of the curve, in live sessions.")
    with st.expander("Length of the simulation"):
        _whole("duration_s", "Measured time (s)", 60)
        _whole("warmup_s", "Warm-up (s)", 60)
        _whole("seeds", "Seeds for each point", 1)
        st.caption("Near the edge, runs differ much from seed to seed: several seeds show the spread.")


def _prices(choices: Choices, store: ProfileStore, listed: Options) -> None:
    st.subheader("Prices")
    _select("compute", "GPU price profile", listed)
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


def _select(key: str, label: str, listed: Options, help_text: str | None = None) -> None:
    st.selectbox(label, listed[key], key=key, help=help_text, format_func=_shown, placeholder=DEFAULT)


def _whole(key: str, label: str, step: int) -> None:
    low, high = (int(bound) for bound in RANGES[key])
    st.number_input(label, low, high, step=step, key=key)


def _shown(option: Any) -> str:
    if option is None:
        return DEFAULT
    return f"{option:,}" if isinstance(option, int) else str(option)
