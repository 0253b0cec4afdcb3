"""Method: the equations in words, every figure they are fed with, and what is not modelled."""

from __future__ import annotations

import streamlit as st

from kvsim.dashboard import method, show
from kvsim.dashboard.pages.plan import ledger_row
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.profiles.figure import Profile
from kvsim.report.ledger import ORDER, ledger_of


def page() -> None:
    """The whole page."""
    begun = opened("Method", "How results are computed, on which figures they rest, and what they leave out.",
                   needs_sessions=False)
    st.subheader("Equations in words")
    for step in method.STEPS:
        st.markdown(f"**{step.title}:** {step.equation}")
        st.caption(f"Limits: {step.limits}")
    if begun is not None:
        show_figures(begun[1].profiles)
    st.subheader("Not modelled")
    st.markdown("\n".join(f"- {what}" for what in method.NOT_MODELLED))
    if begun is not None:
        take_along(begun[0], begun[1].scenario)


def show_figures(profiles: tuple[Profile, ...]) -> None:
    """The ledger of the configured machine, assumed figures first."""
    entries = ledger_of(profiles)
    st.subheader("Assumptions ledger")
    kinds = st.multiselect("Kinds of figures", ORDER, ORDER, key="method kinds")
    shown = [e for e in entries if e.kind in kinds]
    st.caption(f"{len(shown)} of {len(entries)} figures that the configuration in the sidebar rests on, assumed first. "
               "An assumed figure has a range and a reason; a derived one follows from others.")
    show.grid([ledger_row(e) for e in shown], "Figures used, assumed first")
