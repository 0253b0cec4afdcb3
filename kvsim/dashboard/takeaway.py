"""What every page hands out at its end: files that kvsim reads back, and the same run elsewhere."""

from __future__ import annotations

import importlib.util

import streamlit as st

from kvsim.dashboard import export
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.uploads import shelf
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.study import Row


def take_along(choices: Choices, scenario: Scenario, row: Row | None = None) -> None:
    """The scenario, the results of one number of live sessions, and how to repeat them from a shell or in Python."""
    kept = shelf().find(choices.trace)
    if kept is not None:
        workload = scenario.workload.model_copy(update={"trace": kept.file_name})
        scenario = scenario.model_copy(update={"workload": workload})
    st.subheader("Take it along")
    if kept is not None:
        st.caption(f"Scenario and commands look for {kept.file_name} where they run, or in KVSIM_TRACES.")
    with st.container(horizontal=True):
        st.download_button("Scenario (YAML)", lambda: export.scenario_yaml(choices, scenario), "scenario.yaml",
                           "application/yaml", on_click="ignore", icon=":material/download:")
        if row is not None:
            _results(row)
    with st.expander("Copy as a command, as Python, or as a launch line"):
        st.code(export.command(choices, scenario), language="bash", wrap_lines=True)
        st.code(export.python(scenario), language="python", wrap_lines=True)
        _launch(scenario)


def _results(row: Row) -> None:
    st.download_button("Report (JSON)", lambda: export.report_json(row), "report.json", "application/json",
                       on_click="ignore", icon=":material/download:")
    st.download_button("Requests (CSV)", lambda: export.requests_csv(row), "requests.csv", "text/csv",
                       on_click="ignore", icon=":material/download:")
    if importlib.util.find_spec("pyarrow") is not None:
        st.download_button("Requests (Parquet)", lambda: export.requests_parquet(row), "requests.parquet",
                           "application/vnd.apache.parquet", on_click="ignore", icon=":material/download:")


def _launch(scenario: Scenario) -> None:
    """The engine's own command line, and what it cannot say."""
    try:
        st.code(export.launch_line(scenario), language="bash", wrap_lines=True)
    except KvsimError as err:
        st.caption(f"No launch line: {err.message.splitlines()[0]}")
