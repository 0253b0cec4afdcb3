"""What runs say beside their headline figures: rows of traces not played as recorded, and pipeline bubbles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.batch.findings import groups_of
from kvsim.batch.points import columns_of, trace_lines
from kvsim.batch.spec import load_batch
from kvsim.batch.sweep import sweep
from kvsim.dashboard import reuse, uploads
from kvsim.dashboard.choices import CLOSED, Choices, default_choices, scenario_of
from kvsim.dashboard.pages.plan import traffic_figures
from kvsim.dashboard.sweep_page import sweep_page
from kvsim.profiles.store import default_store
from kvsim.report.pipeline import PipelineUse
from kvsim.report.report import NOT_AS_RECORDED, Report
from kvsim.resolve import resolve
from kvsim.simulation import simulate
from kvsim.study import Row
from tests.app.test_own_traffic import long_prompts
from tests.app.test_plan_page import metrics, open_app
from tests.sweep.helpers import INLINE, tiny

BAD = b'\n{"timestamp": 3, "input_length": -4}\n<b>nonsense</b>'
LINE = "mine.jsonl: 2 of 42 rows are bad and were skipped"


@pytest.fixture
def kept() -> uploads.Kept:
    """An uploaded trace with two bad rows."""
    return uploads.shelf().keep("mine.jsonl", long_prompts() + BAD)


def told(app: AppTest) -> str:
    """The lines below the warning; the warning must be there."""
    assert any(warning.value == f"{NOT_AS_RECORDED}:" for warning in app.warning)
    return next(code.value for code in app.code if "rows are bad" in code.value)


def test_messages_have_the_names_of_uploads(kept: uploads.Kept, tmp_path: Path) -> None:
    assert uploads.shelf().told(f"{kept.path}:41: x") == "mine.jsonl:41: x"
    assert uploads.Shelf(tmp_path).told(f"{tmp_path}/other.jsonl") == f"{tmp_path}/other.jsonl"


@pytest.mark.parametrize("pace", ["open", "closed"])
def test_plan_tells_them_next_to_its_figures(repo_root: Path, kept: uploads.Kept, pace: str) -> None:
    app = open_app(repo_root, trace=kept.name, pace=pace, duration_s="60")
    assert not app.exception
    lines = told(app).splitlines()
    assert lines[0] == LINE
    assert lines[1].startswith("  mine.jsonl:41: input_length: got -4")
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["cache", "latency", "cost", "cluster"])
def test_so_do_the_other_pages(kept: uploads.Kept, name: str) -> None:
    app = AppTest.from_function(_page, default_timeout=120, args=(name,))
    for key, value in {"trace": kept.name, "pace": CLOSED, "curve": "2", "sessions": "2", "duration_s": "60",
                       "warmup_s": "0", "seeds": "1"}.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    assert told(app).startswith(LINE)


def _page(name: str) -> None:
    import importlib

    importlib.import_module(f"kvsim.dashboard.pages.{name}").page()


def test_a_whole_trace_has_nothing_to_tell(repo_root: Path) -> None:
    app = open_app(repo_root, trace=uploads.shelf().keep("mine.jsonl", long_prompts()).name, pace="open")
    assert not app.exception
    assert not app.warning


def test_an_upload_of_the_cache_page_is_accounted_for() -> None:
    trace, account = reuse.read_upload("../mine.jsonl", long_prompts() + BAD)
    assert (len(trace), account.path) == (40, "mine.jsonl")
    assert account.lines()[0] == LINE


@pytest.fixture(scope="module")
def staged() -> Report:
    """A lone sequence on two stages: each waits half of the time."""
    return simulate(tiny(hardware={"gpu": "h200", "num_gpus": 2}, layout={"pp": 2}))


def test_bubble_in_the_plan(staged: Report) -> None:
    choices: Choices = replace(default_choices(default_store()), num_gpus=16)
    resolved = resolve(scenario_of(choices))
    with_, without = Row(4, (staged,)), Row(4, (replace(staged, pipeline=None),))
    shown, about = next((s, a) for s, a in traffic_figures(with_, resolved) if s.label == "Pipeline bubble")
    assert staged.pipeline is not None
    assert shown.text(shown.pick(staged)) == f"{staged.pipeline.bubble_frac:.0%}"
    assert "2 pipeline stages" in about
    assert shown.delta(with_, without) is None
    more = Row(4, (replace(staged, pipeline=PipelineUse(2, staged.pipeline.bubble_frac - 0.1)),))
    assert shown.delta(with_, more) == "+10 from A"
    assert all(s.label != "Pipeline bubble" for s, _ in traffic_figures(without, resolved))


def test_bubble_on_the_page(repo_root: Path) -> None:
    app = open_app(repo_root, num_gpus="16", tp="8")
    assert not app.exception
    assert metrics(app)["Pipeline bubble"].endswith("%")
    assert "Pipeline bubble" not in metrics(open_app(repo_root))


def test_notebook_table_has_both(staged: Report, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(long_prompts() + BAD)
    whole = staged._repr_html_()
    assert staged.pipeline is not None
    assert f"2 stages, {staged.pipeline.bubble_frac:.0%} of their time without a batch" in whole
    assert NOT_AS_RECORDED not in whole
    assert "<th scope='row'>Contribution [$/node-hour]</th><td>not known</td>" in whole
    html = simulate(tiny(workload={"trace": str(log), "concurrency": 2}))._repr_html_()
    assert f"<p>{NOT_AS_RECORDED}</p><ul><li>{log}: 2 of 42 rows are bad and were skipped</li>" in html
    assert "&lt;b&gt;nonsense" in html


def test_sweep_and_its_page_have_both(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(long_prompts() + BAD)
    batch = load_batch({"schema": "kvsim/sweep/1", "name": "both", "axes": [{"grid": {"layout.pp": [1, 2]}}],
                        "base": tiny(hardware={"gpu": "h200", "num_gpus": 2}, layout={"dp": 1},
                                     workload={"trace": str(log), "concurrency": 2})})
    table = sweep(batch, None, INLINE)
    first = f"{log}: 2 of 42 rows are bad and were skipped, the first: {log}:41: input_length: got -4"
    lines = trace_lines(table)
    assert len(lines) == 1
    assert lines[0].startswith(first)
    assert "pipeline bubble" in [title for title, _, _ in columns_of(groups_of(table))]
    page = sweep_page(table, batch)
    assert f"<h2>{NOT_AS_RECORDED}</h2><ul><li>{log}: 2 of 42" in page
    assert "<th>pipeline bubble</th>" in page
    assert "Charts</h2>" not in page
