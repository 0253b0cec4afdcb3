"""Charts, tables and errors as every page shows them; each with a text for those who cannot see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from kvsim.dashboard.uploads import shelf
from kvsim.errors import KvsimError, Problem
from kvsim.report.report import NOT_AS_RECORDED, Report, trace_lines

CHART_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}
METRIC_WIDTH, MAX_METRIC_CHARS = 190, 10
"""Metrics stand in columns of this many pixels; a value with more characters takes the room it needs."""


def chart(figure: go.Figure, key: str, alt: str) -> None:
    """A figure over the whole width, in the colours of the page's theme."""
    st.plotly_chart(figure, key=key, config=CHART_CONFIG, alt=alt)  # pyright: ignore[reportUnknownMemberType]


def table(rows: Sequence[dict[str, Any]], alt: str) -> None:
    """A short table, all of it."""
    st.table(list(rows), hide_index=True, alt=alt)  # pyright: ignore[reportUnknownMemberType]


def grid(rows: Sequence[dict[str, Any]], alt: str) -> None:
    """A long or wide table that scrolls, sorts and can be downloaded."""
    st.dataframe(list(rows), hide_index=True, alt=alt)  # pyright: ignore[reportUnknownMemberType]


def metric(label: str, value: str, help_text: str, delta: str | None = None) -> None:
    """One figure with its unit, what it means, and how far it is from that of the pinned configuration."""
    width = METRIC_WIDTH if len(value) <= MAX_METRIC_CHARS else "content"
    # Grey: whether more is better depends on the figure, and colour alone must not say it.
    st.metric(label, value, delta, delta_color="off", help=help_text, width=width)


def error(err: KvsimError) -> None:
    """The library's own message: what failed, the problems with what is accepted, and the budget if it has one."""
    first, *budget = err.message.splitlines()
    st.error(first, icon=":material/block:")
    if err.problems:
        st.code("\n".join(str(problem) for problem in err.problems), language=None, wrap_lines=True)
    if budget:
        st.code("\n".join(budget), language=None)


def not_as_recorded(reports: Iterable[Report]) -> None:
    """What became of rows of traces that runs did not play as recorded; nothing where all were."""
    lost_rows([shelf().told(line) for line in trace_lines(reports)])


def lost_rows(lines: Sequence[str]) -> None:
    """Lines about rows of a trace that were not taken as recorded, if there are any."""
    if lines:
        st.warning(f"{NOT_AS_RECORDED}:", icon=":material/rule:")
        st.code("\n".join(lines), language=None, wrap_lines=True)


def problems(message: str, found: Sequence[Problem]) -> None:
    """Something that was not followed, and what would have been."""
    st.warning("\n".join([f"{message}:", *(f"- {problem}" for problem in found)]))
