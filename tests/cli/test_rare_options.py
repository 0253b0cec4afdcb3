"""Options and moments that few users meet: pictures, terminals, Ctrl-C, missing packages."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kvsim.calibrate.overlay import load_calibration
from kvsim.cli import COMMANDS
from tests.cli.helpers import Shell
from tests.scenario.helpers import TEXT

DATA = Path(__file__).parents[1] / "data"
COST = ("--sessions", "1,2", "--prices", "rental-2026-09", "--workers", "1")


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Path of a scenario that runs at once."""
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a command's module believe that plotly is not installed."""
    return lambda module: monkeypatch.setattr(importlib.import_module(module), "find_spec", lambda package: None)


class Terminal(io.StringIO):
    """Standard error that says somebody watches."""

    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_leaves_the_answer_alone(kvsim: Shell, small: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = kvsim("cost", small, *COST)
    watched = Terminal()
    monkeypatch.setattr(sys, "stderr", watched)
    done = kvsim("cost", small, *COST)
    assert (quiet.code, done.code) == (0, 0)
    assert done.out == quiet.out
    assert quiet.err == ""
    assert "%" in watched.getvalue()


def test_the_cost_table_as_csv_and_as_a_page(kvsim: Shell, small: str, tmp_path: Path) -> None:
    table, page = tmp_path / "cost.csv", tmp_path / "cost.html"
    done = kvsim("cost", small, *COST, "--csv", str(table), "--chart", str(page))
    assert done.code == 0, done.err
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["sessions"] for row in rows} == {"1", "2"}
    assert page.read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(("words", "said"), [
    (("cost", "{}", "--chart", "cost.pdf"), "the chart is a page of HTML"),
    (("cost", "{}", "--sessions", "1,none"), "none: expected whole numbers from 1 on"),
    (("cost", "{}", "--sessions", "0"), "0: expected whole numbers from 1 on"),
    (("load-or-recompute", "{}", "--chart", "chart.svg"), "the chart is a page of HTML"),
    (("cost", "{}", "--csv", "no-such-folder/cost.csv"), "no-such-folder"),
])
def test_options_are_refused_before_anything_is_simulated(kvsim: Shell, small: str, monkeypatch: pytest.MonkeyPatch,
                                                          words: tuple[str, ...], said: str) -> None:
    monkeypatch.setattr("kvsim.simulation.simulate", None)
    done = kvsim(*(word.format(small) for word in words))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("module", "words"), [
    ("kvsim.commands.cost", ("cost", "{}", "--chart", "c.html")),
    ("kvsim.commands.report", ("report", "folder", "-o", "page.html")),
    ("kvsim.dashboard.launch", ("app",)),
])
def test_what_needs_the_dashboard_extra_names_it(kvsim: Shell, small: str, without_plotly: Callable[[str], None],
                                                 module: str, words: tuple[str, ...]) -> None:
    without_plotly(module)
    done = kvsim(*(word.format(small) for word in words))
    assert done.code == 2
    assert "plotly: missing" in done.err
    assert "pip install 'kvsim[dashboard]'" in done.err


def test_the_dashboard_gets_its_port_and_gives_its_exit_code(kvsim: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("kvsim.dashboard.launch.launch", lambda port: asked.append(port) or 1)
    assert kvsim("app", "--port", "9000").code == 1
    assert asked == [9000]
    assert kvsim("app", "--port", "70000").code == 2


def test_ctrl_c_is_no_bug(kvsim: Shell, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.study.run_study", interrupted)
    done = kvsim("run", small)
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err


def test_load_or_recompute_without_a_picture(kvsim: Shell, small: str) -> None:
    done = kvsim("load-or-recompute", "k3-b300-dram", "--lengths", "1024,65536")
    assert done.code == 0, done.err
    assert "65,536" in done.out


def test_a_run_says_what_its_tiers_did(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(TEXT.replace("{fixed: {num_requests: 6, input_tokens: 200, output_tokens: 10}, concurrency: 2}",
                                 "{preset: claude-code, concurrency: 2, duration_s: 300}"))
    done = kvsim("run", str(path), "--set", "engine.num_blocks=6000", "--set", "tiers=[{kind: dram, capacity: 200 GB}]")
    assert done.code == 0, done.err
    line, = (line for line in done.out.splitlines() if line.startswith("dram: "))
    assert "of prompt tokens" in line
    assert float(line.split("%")[0].removeprefix("dram: ")) > 0


def test_calibrate_writes_what_a_scenario_takes(kvsim: Shell, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    runs = str(DATA / "gpu_runs.llama-8b.jsonl.gz")
    done = kvsim("calibrate", runs, "--labels", "fixed-c1,fixed-c8", "-o", str(target))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"wrote {target}"
    found = load_calibration(target)
    assert (found.model, found.gpu) == ("llama-3.1-8b", "h200-sxm")
    small = yaml.safe_load(TEXT) | {"model": found.model, "hardware": {"gpu": found.gpu, "num_gpus": 1}}
    small["engine"] = {"kv_dtype": found.kv_dtype, "profile": found.engine_profile, "async_scheduling": False,
                       "calibration": str(target)}
    small.pop("layout", None)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    assert kvsim("run", str(tmp_path / "small.yaml")).code == 0


def test_calibrate_asks_for_runs(kvsim: Shell, tmp_path: Path) -> None:
    done = kvsim("calibrate", "-o", str(tmp_path / "mine.yaml"))
    assert done.code == 2
    assert "name the measured runs to fit, or --microbench" in done.err
    assert not (tmp_path / "mine.yaml").exists()


def test_a_command_of_another_name_gets_the_nearest(kvsim: Shell) -> None:
    done = kvsim("calibrat")
    assert done.code == 2
    assert "did you mean 'calibrate'?" in done.err
    assert set(COMMANDS) <= set(kvsim("--help").out.split())
