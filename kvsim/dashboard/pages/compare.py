"""Compare: one configuration pinned as A, the controls as B, on the same random numbers."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvsim.dashboard import compare_figures, pairs, show, state
from kvsim.dashboard.choices import Choices, scenario_of
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.errors import KvsimError
from kvsim.profiles.store import default_store
from kvsim.study import Row


def page() -> None:
    """The whole page."""
    begun = opened("Compare", "Pin a configuration as A, then change the controls: they are B.")
    if begun is None:
        return
    choices = begun[0]
    pinned = state.pinned(default_store())
    with st.container(horizontal=True):
        st.button("Pin the current configuration as A" if pinned is None else "Pin B as the new A",
                  on_click=state.pin, args=(choices,), icon=":material/push_pin:")
        if pinned is not None:
            st.button("Unpin A", on_click=state.unpin)
    if pinned is None:
        st.info("Nothing is pinned yet.", icon=":material/compare_arrows:")
        return
    st.caption(f"A: {title(pinned)}. B: {title(choices)}. The page's address holds both.")
    show_comparison(pinned, choices)


def title(choices: Choices) -> str:
    """A configuration in a few words; the table of changes says the rest."""
    dram = f", DRAM {choices.dram_gb:,.0f} GB" if choices.dram and choices.dram_gb else ""
    several = f"{choices.replicas} replicas of " if choices.replicas > 1 else ""
    return (f"{choices.model} on {several}{choices.num_gpus} x {choices.gpu}, {choices.kv_dtype} KV{dram}, "
            f"{choices.sessions} live sessions")


def show_comparison(pinned: Choices, choices: Choices) -> None:
    """What differs in inputs and results."""
    same_seeds = replace(pinned, seeds=choices.seeds)
    try:
        a, b = (simulate_points(c, scenario_of(c), st.empty(), lambda _rows: None) for c in (same_seeds, choices))
        found = pairs.paired(chosen(a, pinned), chosen(b, choices))
    except KvsimError as err:
        show.error(err)
        return
    st.subheader("Inputs that differ")
    if found.changes:
        show.table(pairs.change_rows(found.changes), "Inputs that differ between A and B")
    else:
        st.info("No input differs: change a control.", icon=":material/drag_handle:")
    st.subheader("What that changes")
    show.table(pairs.difference_rows(found), "Figures of A and B and their paired differences")
    count = "one pair" if found.num_pairs == 1 else f"{found.num_pairs} pairs"
    st.caption(f"Means over {count} of runs with the same seeds, hence the same traffic: its noise cancels. The "
               "interval is Student's t over the pairs; a star marks one without 0. It covers the traffic alone, not "
               "the assumptions.")
    show.not_as_recorded((*chosen(a, pinned).reports, *chosen(b, choices).reports))
    st.subheader("By live sessions")
    show.chart(compare_figures.curves(a, b), "comparison", compare_figures.curves_alt(a, b))
    take_along(choices, scenario_of(choices), chosen(b, choices))


def chosen(rows: list[Row], choices: Choices) -> Row:
    """The point that a configuration is about."""
    return next(row for row in rows if row.concurrency == choices.sessions)
