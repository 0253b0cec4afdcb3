"""How every page about one configuration begins: sidebar, title, and the library's own message where nothing fits."""

from __future__ import annotations

import streamlit as st

from kvsim.dashboard import show
from kvsim.dashboard.choices import Choices, scenario_of
from kvsim.dashboard.controls import sidebar
from kvsim.errors import KvsimError
from kvsim.resolve import Resolved, resolve

NEEDS_SESSIONS = ("The trace is played at its recorded times: there is no number of live sessions to vary. Plan shows "
                  "this traffic; this page needs live sessions, or clients, which the sidebar offers under the trace.")


def opened(title: str, caption: str, *, needs_sessions: bool = True) -> tuple[Choices, Resolved] | None:
    """Draw sidebar and title; what the controls describe, or None where it was shown why that is not possible."""
    choices = sidebar(title)
    st.title(title)
    st.caption(caption)
    if choices.is_open and needs_sessions:
        st.info(NEEDS_SESSIONS, icon=":material/schedule:")
        return None
    try:
        return choices, resolve(scenario_of(choices))
    except KvsimError as err:
        show.error(err)
        return None
