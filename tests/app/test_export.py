"""Files and commands that a page hands out say what the page simulated."""

from __future__ import annotations

import ast
import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvsim.comparison import compare
from kvsim.dashboard import choices as c
from kvsim.dashboard import export
from kvsim.profiles.store import default_store
from kvsim.report.report import Report
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.study import Row
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.reading import ReadOptions
from tests.app.conftest import MakeRow
from tests.app.test_compare_page import TINY

DEFAULT = c.default_choices(default_store())
CHOICES = [
    DEFAULT,
    replace(DEFAULT, dram=True, sessions=16, curve=(4, 8)),
    replace(DEFAULT, pool=c.PREDICTED, max_num_seqs=None, model="llama-3.1-8b", api=c.NO_API_PRICE, seeds=1),
]


@pytest.mark.parametrize("choices", CHOICES)
def test_command_and_file_repeat_the_page(choices: c.Choices) -> None:
    scenario = c.scenario_of(choices)
    words = shlex.split(export.command(choices, scenario).replace("\\\n", " "))
    assert words[:3] == ["kvsim", "run", c.REFERENCE]
    assert set(words[3::2]) == {"--set"}
    again = load_scenario(c.REFERENCE, words[4::2])
    assert again.study is not None
    assert (again.study.concurrency, again.study.replications) == (choices.points, choices.seeds)
    assert again.at(choices.sessions, 0).digest == scenario.at(choices.sessions, 0).digest
    file = Scenario.from_dict(yaml.safe_load(export.scenario_yaml(choices, scenario)))
    assert file.digest == again.digest


@pytest.mark.parametrize("choices", CHOICES)
def test_python_loads_the_scenario(choices: c.Choices) -> None:
    scenario = c.scenario_of(choices)
    calls = [n for n in ast.walk(ast.parse(export.python(scenario))) if isinstance(n, ast.Call)]
    load = next(call for call in calls if ast.unparse(call.func) == "kvsim.load_scenario")
    source, sets = (ast.literal_eval(argument) for argument in load.args)
    assert load_scenario(source, sets).digest == scenario.digest


def test_report_has_a_case_a_seed(make_row: MakeRow) -> None:
    data = json.loads(export.report_json(make_row(8, 0.5, 0.6)))
    assert [case["report"]["hit_rate"]["total"] for case in data["cases"]] == [0.5, 0.6]
    assert {case["concurrency"] for case in data["cases"]} == {8}


def test_report_file_is_what_compare_takes(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(export.report_json(Row(8, (simulate({**TINY, "seed": 0}), simulate({**TINY, "seed": 1})))))
    found = compare(str(file), str(file))
    assert (found.num_pairs, found.changes) == (2, ())


def test_requests_are_read_back_as_they_were(make_row: MakeRow, tmp_path: Path) -> None:
    row = make_row(4, 0.5, 0.6)
    text = export.requests_csv(row)
    rows = list(csv.DictReader(io.StringIO(text)))
    records = row.reports[0].records
    assert np.isfinite(records.arrival_s).all()
    assert len(rows) == 2 * len(records.status)
    assert [int(r["prompt_tokens"]) for r in rows[:len(records.status)]] == records.prompt_tokens.tolist()
    assert float(rows[0]["first_token_s"]) == records.first_token_s[0]
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "requests.parquet"
    path.write_bytes(export.requests_parquet(row))
    table = parquet.read_table(path).to_pydict()
    assert list(table) == list(rows[0])
    assert table["prompt_tokens"] == [int(r["prompt_tokens"]) for r in rows]


def test_requests_are_a_trace_for_the_readers(make_row: MakeRow, tmp_path: Path) -> None:
    row = make_row(4, 0.5)
    path = tmp_path / "requests.csv"
    path.write_text(export.requests_csv(row), encoding="utf-8")
    columns = {"input_tokens": "prompt_tokens", "output_tokens": "output_tokens", "timestamp": "arrival_s"}
    trace, _ = read_trace(path, ReadOptions(mapping=columns))
    assert sorted(trace.input_tokens.tolist()) == sorted(row.reports[0].records.prompt_tokens.tolist())


def test_launch_line_is_the_engine_s() -> None:
    text = export.launch_line(load_scenario("k3-b300-study"))
    assert text.startswith("vllm serve moonshotai/Kimi-K3")
    assert "--tensor-parallel-size 8" in text


def test_turns_that_never_came_have_no_row(report: Report) -> None:
    came = np.arange(len(report.records.status)) % 2 == 0
    arrival_s = np.where(came, report.records.arrival_s, np.nan)
    cut = replace(report, records=replace(report.records, arrival_s=arrival_s))
    columns = export.request_columns(Row(4, (cut,)))
    assert {len(c) for c in columns.values()} == {int(came.sum())}
    assert columns["prompt_tokens"].tolist() == report.records.prompt_tokens[came].tolist()
