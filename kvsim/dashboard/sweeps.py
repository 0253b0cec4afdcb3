"""Sweeps that the dashboard runs: where they come from, where their results go, and their tables; no Streamlit."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from kvsim.batch.executors import usable_cores
from kvsim.batch.findings import Findings, Group, groups_of
from kvsim.batch.folder import MANIFEST
from kvsim.batch.points import cell, columns_of
from kvsim.batch.spec import Batch, load_batch
from kvsim.batch.sweep import SweepOptions, SweepProgress, sweep
from kvsim.batch.table import SweepTable
from kvsim.dashboard.choices import OFFLOAD, Choices, scenario_of
from kvsim.dashboard.jobs import Job, Work
from kvsim.dashboard.sweep_page import sweep_figures
from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.yamlio import parse_yaml
from kvsim.scenario import load_scenario, shipped_scenarios

MAX_SWEEP_BYTES, MAX_CASES = 200_000, 1_000
"""A sweep's file is short; more cases than this take hours here: ``kvsim sweep`` takes any number."""
SWEEPS_VARIABLE = "KVSIM_SWEEPS"
"""Environment variable that names the folder below which the dashboard keeps the results of its sweeps."""
CLEAR = "rgba(0,0,0,0)"


def sweeps_root() -> Path:
    """Folder below which results are kept: ``KVSIM_SWEEPS``, else the user's data folder."""
    named = os.environ.get(SWEEPS_VARIABLE)
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(named) if named else home / "kvsim" / "sweeps"


def folder_of(batch: Batch) -> Path:
    """Where the results of a sweep go: the same folder for the same sweep, so that it can be gone on with.

    Examples
    --------
    >>> folder_of(load_batch("k3-cliff-sweep")).name[:14]
    'k3-cliff-sweep'
    """
    name = re.sub(r"[^a-z0-9.]+", "-", batch.name.lower()).strip("-.")[:60] or "sweep"
    return sweeps_root() / f"{name}-{batch.digest[:8]}"


def kept_folders() -> list[Path]:
    """Folders of sweeps that were run here, the newest first."""
    found = [path for path in sweeps_root().glob("*") if (path / MANIFEST).is_file()]
    return sorted(found, key=lambda p: -(p / MANIFEST).stat().st_mtime)


def batch_of_choices(choices: Choices, *, with_dram: bool) -> Batch:
    """The controls' configuration at all points of the curve; on request each with and without the DRAM tier."""
    base = {k: v for k, v in scenario_of(choices).to_dict().items() if k not in ("study", "name", "description")}
    axes: list[dict[str, Any]] = [{"grid": {"workload.concurrency": list(choices.points)}}]
    if with_dram:
        tier = load_scenario(OFFLOAD).to_dict()["tiers"][0]
        dram = scenario_of(replace(choices, dram=True)).to_dict().get("tiers") or [tier]
        axes.append({"list": [{"tiers": []}, {"tiers": dram}]})
    return load_batch({"name": f"{choices.model} on {choices.num_gpus} x {choices.gpu}", "base": base, "axes": axes,
                       "replications": choices.seeds})


def uploaded_batch(name: str, data: bytes) -> Batch:
    """A sweep from an uploaded file; its base is a shipped scenario or written in the file.

    Raises
    ------
    ScenarioError
        Too large, not YAML, not a sweep, or one with too many cases.
    """
    own = Path(name).name or "sweep.yaml"
    if len(data) > MAX_SWEEP_BYTES:
        raise ScenarioError("the file is too large for a sweep", [
            Problem(own, "", f"{len(data):,} bytes", f"at most {MAX_SWEEP_BYTES:,}")])
    try:
        written = parse_yaml(data.decode("utf-8"), own, ScenarioError)
    except UnicodeDecodeError:
        raise ScenarioError(f"cannot read {own}", [Problem(own, "", "bytes that are not UTF-8", "YAML")]) from None
    base = written.get("base")
    if isinstance(base, str) and base not in shipped_scenarios():
        raise ScenarioError("the base is not known here", [
            Problem(own, "base", repr(base), f"one of {', '.join(shipped_scenarios())}, or a scenario written inline")])
    return bounded(load_batch(written))


def bounded(batch: Batch) -> Batch:
    """The sweep itself, unless it has too many cases for the dashboard.

    Raises
    ------
    ScenarioError
        It has.
    """
    if most_cases(batch) > MAX_CASES:
        raise ScenarioError("the sweep is too large for the dashboard", [
            Problem(batch.name, "axes", f"up to {most_cases(batch):,} cases", f"at most {MAX_CASES:,}; "
                    "the command kvsim sweep takes any number")])
    return batch


def most_cases(batch: Batch) -> int:
    """Cases of a sweep where every axis applies everywhere.

    Examples
    --------
    >>> most_cases(load_batch("k3-cliff-sweep"))
    24
    """
    sizes = [math.prod(len(v) for v in a.grid.values()) if a.grid else len(a.points()) for a in batch.axes]
    return batch.replications * math.prod(sizes)


def work_of(batch: Batch, folder: Path) -> Work:
    """What runs a sweep as a job, on all cores but the one that serves the pages."""
    def work(job: Job) -> SweepTable:
        def progress(at: SweepProgress) -> None:
            if job.first_share is None:
                job.first_share = at.reused / at.total
            job.tell((at.reused + at.done) / at.total, progress_text(at))

        job.text = "Starting"
        return sweep(batch, folder, SweepOptions(workers=max(usable_cores() - 1, 1)), progress)

    return work


def progress_text(at: SweepProgress) -> str:
    """How far a sweep is.

    >>> progress_text(SweepProgress(24, 4, 2, 1, "concurrency=8 seed=0"))
    '6 of 24 cases, 4 of them found, 1 failed; last: concurrency=8 seed=0'
    """
    found = f", {at.reused} of them found" if at.reused else ""
    failed = f", {at.failed} failed" if at.failed else ""
    return f"{at.reused + at.done} of {at.total} cases{found}{failed}; last: {at.label}"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(90), duration(7200)
    ('42 s', '1.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def point_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Points of a sweep as rows of a table, means over their seeds."""
    columns = columns_of(groups)
    return [{"Point": g.label, "Seeds": len(g.rows), **{c[0]: cell(g, c, "–") for c in columns},
             "Binds": str(g.rows[0].get("limits.binding", "–"))} for g in groups]


def failure_rows(table: SweepTable) -> list[dict[str, str]]:
    """Cases without a result as rows of a table."""
    return [{"Case": row["label"], "Kind": row["error.kind"], "Error": row["error.message"]} for row in table.failed]


def clear_figures(table: SweepTable, found: Findings | None) -> dict[str, go.Figure]:
    """The charts of ``kvsim report``, on the page's own background."""
    figures = sweep_figures(found, groups_of(table))
    for figure in figures.values():
        figure.update_layout(  # pyright: ignore[reportUnknownMemberType]
            paper_bgcolor=CLEAR, plot_bgcolor=CLEAR, xaxis_gridcolor=None, yaxis_gridcolor=None)
    return figures
