"""Sweep: run a batch of scenarios beside the pages, stop it, go on with it, and look at one that has finished."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvsim.batch.findings import findings_of, groups_of
from kvsim.batch.folder import Folder
from kvsim.batch.points import trace_lines
from kvsim.batch.spec import Batch, load_batch, shipped_sweeps
from kvsim.batch.sweep import Status, open_sweep, status_of
from kvsim.batch.table import SweepTable
from kvsim.dashboard import show, state, sweeps
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.controls import sidebar
from kvsim.dashboard.findings_view import show_findings
from kvsim.dashboard.jobs import Job
from kvsim.dashboard.start import NEEDS_SESSIONS
from kvsim.dashboard.sweep_page import sweep_page
from kvsim.errors import KvsimError

CONTROLS, SHIPPED, UPLOAD, OPEN = ("the configuration in the sidebar", "a sweep that comes with kvsim",
                                   "a sweep file of yours", "a folder with results")
REFRESH_S = 0.5
"""How often progress is drawn."""


def page() -> None:
    """The whole page."""
    choices = sidebar("Sweep")
    st.title("Sweep")
    st.caption("Many scenarios at once. A sweep runs beside the pages, keeps every finished case, and can be stopped "
               "and gone on with; kvsim sweep and kvsim report read the same folders.")
    source = st.radio("What to run or open", (CONTROLS, SHIPPED, UPLOAD, OPEN), key="sweep source")
    try:
        found = chosen(source, choices)
        if found is not None:
            show_sweep(*found)
    except KvsimError as err:
        show.error(err)


def chosen(source: str, choices: Choices) -> tuple[Batch, Path] | None:
    """The sweep that was asked for and its folder, once there is one."""
    if source == OPEN:
        return opened_folder()
    batch = chosen_batch(source, choices)
    return None if batch is None else (batch, sweeps.folder_of(batch))


def chosen_batch(source: str, choices: Choices) -> Batch | None:
    """The sweep of the controls, a shipped one, or an uploaded one."""
    if source == CONTROLS and choices.is_open:
        st.info(NEEDS_SESSIONS, icon=":material/schedule:")
        return None
    if source == CONTROLS:
        with_dram = st.toggle("Each point with and without the DRAM tier", True, key="sweep dram")
        return sweeps.bounded(sweeps.batch_of_choices(choices, with_dram=with_dram))
    if source == SHIPPED:
        names = shipped_sweeps()
        batch = load_batch(st.selectbox("Sweep", tuple(names), key="sweep name"))
        st.caption(batch.description)
        return sweeps.bounded(batch)
    file = st.file_uploader("Sweep (YAML, as kvsim sweep takes it)", type=["yaml", "yml"], key="sweep upload",
                            max_upload_size=1)
    return None if file is None else sweeps.uploaded_batch(file.name, file.getvalue())


def opened_folder() -> tuple[Batch, Path] | None:
    """A folder that kvsim sweep, or this page, has written."""
    kept = sweeps.kept_folders()
    known = st.selectbox("Run here before", [str(p) for p in kept], index=None, key="sweep kept",
                         placeholder="none chosen" if kept else "none yet")
    path = st.text_input("Or the path of a folder that kvsim sweep -o wrote", key="sweep path") or known
    if not path:
        return None
    return Folder(path).batch(), Path(path)


def show_sweep(batch: Batch, folder: Path) -> None:
    """Its state, what can be done with it, and its results so far."""
    name = f"sweep {folder.absolute()}"
    job = state.jobs().find(name)
    if job is not None and job.state == "running":
        st.fragment(watch, run_every=REFRESH_S)(name)
        return
    status = status_of(batch, folder)
    st.markdown(f"**{batch.name}**: {status.total} cases, {status.ok + status.failed} finished, "
                f"{status.missing} to run. Results: `{folder}`")
    if status.missing:
        st.button("Go on" if status.ok + status.failed else "Run the sweep", icon=":material/play_arrow:",
                  type="primary", on_click=start, args=(name, batch, folder))
    show_end(job)
    if status.ok + status.failed:
        show_table(open_sweep(folder), batch, status)


def start(name: str, batch: Batch, folder: Path) -> None:
    """Run what is missing of a sweep beside the pages."""
    state.jobs().start(name, sweeps.work_of(batch, folder))


def watch(name: str) -> None:
    """Progress of a running sweep, drawn again and again until it ends."""
    job = state.jobs().find(name)
    if job is None or job.state != "running":
        st.rerun()
    left = f"; about {sweeps.duration(job.left_s)} left" if job.left_s is not None else ""
    st.progress(job.share, f"{job.text} ({sweeps.duration(job.elapsed_s)} so far{left})")
    st.button("Stopping …" if job.stopping else "Cancel", icon=":material/stop:", on_click=job.cancel,
              disabled=job.stopping)


def show_end(job: Job | None) -> None:
    """How the last run of this session ended."""
    if job is None:
        return
    if job.state == "cancelled":
        st.info("Stopped. Finished cases are kept: the sweep goes on from there.", icon=":material/pause:")
    if job.state == "done":
        st.success(f"Finished in {sweeps.duration(job.elapsed_s)}.", icon=":material/check:")
    if job.error is not None:
        show.error(job.error)


def show_table(table: SweepTable, batch: Batch, status: Status) -> None:
    """Results of the finished cases."""
    if status.missing:
        st.caption(f"Of the {len(table)} cases that have finished:")
    found, groups = findings_of(table), groups_of(table)
    if found is not None:
        show_findings(found)
    for title, figure in sweeps.clear_figures(table, found).items():
        st.subheader(title)
        show.chart(figure, f"sweep {title}", f"{title}; the same figures stand in the table of points.")
    st.subheader("Every point")
    show.grid(sweeps.point_rows(groups), "Points of the sweep, means over their seeds")
    show.lost_rows(trace_lines(table))
    if table.failed:
        st.subheader("Failed cases")
        show.grid(sweeps.failure_rows(table), "Cases without a result")
    st.download_button("Report (HTML)", lambda: sweep_page(table, batch), "report.html", "text/html",
                       on_click="ignore", icon=":material/download:")
