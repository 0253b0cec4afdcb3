"""Files and commands that a page hands out say what the page simulated."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kvsim.comparison import compare
from kvsim.dashboard import choices as c
from kvsim.dashboard import export
from kvsim.profiles.store import default_store
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.study import Row
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
