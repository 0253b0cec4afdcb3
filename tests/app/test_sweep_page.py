"""The Sweep page: batches from the controls and from files; run, stopped, gone on with, opened."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from kvsim.batch.cases import expand
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import SweepOptions, open_sweep, status_of, sweep
from kvsim.dashboard import sweeps
from kvsim.dashboard.choices import default_choices
from kvsim.dashboard.jobs import Jobs
from kvsim.errors import ScenarioError
from kvsim.profiles.store import default_store
from kvsim.simulation import simulate

TINY = {"name": "tiny", "replications": 2, "axes": [{"grid": {"workload.concurrency": [1, 2, 4]}}],
        "base": {"name": "b", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
                 "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 20},
                              "concurrency": 1}}}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sweeps.SWEEPS_VARIABLE, str(tmp_path / "sweeps"))


def test_controls_become_a_sweep_over_sessions_and_tiers() -> None:
    choices = replace(default_choices(default_store()), curve=(4, 16), sessions=8, seeds=2)
    cases = expand(sweeps.batch_of_choices(choices, with_dram=True))
    assert len(cases) == 3 * 2 * 2
    assert {len(case.data.get("tiers", [])) for case in cases} == {0, 1}
    assert all(case.fault is None for case in cases)
    alone = sweeps.batch_of_choices(choices, with_dram=False)
    assert sweeps.most_cases(alone) == 6
    assert sweeps.folder_of(alone) != sweeps.folder_of(sweeps.batch_of_choices(choices, with_dram=True))


def test_case_of_the_sweep_is_the_page_s_own_run() -> None:
    choices = replace(default_choices(default_store()), curve=(), sessions=4, seeds=1, duration_s=120, warmup_s=0)
    from kvsim.dashboard.choices import scenario_of

    case = expand(sweeps.batch_of_choices(choices, with_dram=False))[0]
    there, here = simulate({"name": "x", **case.data}), simulate(scenario_of(choices))
    assert there.run.digest == here.run.digest


@pytest.mark.parametrize(("data", "said"), [
    (b"x" * (sweeps.MAX_SWEEP_BYTES + 1), "too large"),
    (b"\xff\xfe\x00", "cannot read"),
    (b"a: [", "not YAML"),
    (b"base: /etc/passwd\nname: x", "base is not known here"),
    (b"base: k3-b300-study\nname: x\naxes: [{gird: {seed: [1]}}]", "not a valid sweep"),
    (b"base: k3-b300-study\nname: x\nreplications: 2000", "too large for the dashboard"),
])
def test_wrong_files_are_told(data: bytes, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        sweeps.uploaded_batch("../mine.yaml", data)
    assert said in caught.value.message
    assert all("/" not in p.where for p in caught.value.problems)


def test_file_is_the_sweep_that_the_command_line_takes() -> None:
    data = yaml.safe_dump(TINY).encode()
    assert sweeps.uploaded_batch("tiny.yaml", data).digest == load_batch(TINY).digest


def test_cancelled_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    batch, folder, jobs = load_batch(TINY), tmp_path / "out", Jobs()

    def short(job: object) -> object:
        def progress(_at: object) -> None:
            job.cancel()  # type: ignore[attr-defined]
            job.tell(0.5, "")  # type: ignore[attr-defined]

        return sweep(batch, folder, SweepOptions("inline"), progress)

    job = jobs.start("x", short)
    while job.state == "running":
        time.sleep(0.01)
    assert job.state == "cancelled"
    assert status_of(batch, folder).ok == 1
    job = jobs.start("x", sweeps.work_of(batch, folder))
    while job.state == "running":
        time.sleep(0.05)
    assert job.state == "done", job.error
    assert job.result.computed == 5
    assert status_of(batch, folder).missing == 0


def test_charts_have_units_and_no_background_of_their_own(tmp_path: Path) -> None:
    sweep(TINY, tmp_path / "out", SweepOptions("inline"))
    table = open_sweep(tmp_path / "out")
    figures = sweeps.clear_figures(table, None)
    assert list(figures) == ["Hit rate against live sessions", "Output against live sessions",
                             "Contribution against live sessions"]
    for figure in figures.values():
        drawn: Any = figure
        assert drawn.layout.paper_bgcolor == sweeps.CLEAR
        assert drawn.layout.xaxis.gridcolor is None
        assert drawn.layout.xaxis.title.text == "Live sessions"


def show_sweep_page() -> None:
    from kvsim.dashboard.pages import sweep as page

    page.page()


def opened() -> AppTest:
    app = AppTest.from_function(show_sweep_page, default_timeout=120)
    for name, value in {"curve": "4", "sessions": "6", "duration_s": "60", "warmup_s": "0", "seeds": "1"}.items():
        app.query_params[name] = value
    return app.run()


def test_page_offers_the_controls_and_shipped_sweeps() -> None:
    app = opened()
    assert not app.exception
    assert any("4 cases, 0 finished" in m.value for m in app.markdown)
    app.radio(key="sweep source").set_value("a sweep that comes with kvsim").run()
    app.selectbox(key="sweep name").set_value("k3-cliff-sweep").run()
    assert not app.exception
    assert any("24 cases" in m.value for m in app.markdown)


def test_page_opens_a_folder_and_tells_what_is_none(tmp_path: Path) -> None:
    sweep(TINY, tmp_path / "out", SweepOptions("inline"))
    app = opened()
    app.radio(key="sweep source").set_value("a folder with results").run()
    app.text_input(key="sweep path").set_value(str(tmp_path / "out")).run()
    assert not app.exception
    assert any("6 cases, 6 finished, 0 to run" in m.value for m in app.markdown)
    assert len(app.get("plotly_chart")) == 3
    app.text_input(key="sweep path").set_value(str(tmp_path)).run()
    assert "not the folder of a sweep" in app.error[0].value


def test_folders_of_the_dashboard_are_found_newest_first() -> None:
    sweep(TINY, sweeps.folder_of(load_batch(TINY)), SweepOptions("inline"))
    assert [p.name for p in sweeps.kept_folders()] == [sweeps.folder_of(load_batch(TINY)).name]
    assert sweeps.kept_folders()[0].name.startswith("tiny-")
