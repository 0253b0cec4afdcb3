"""``--json`` of every command, and help for every option."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kvsim.cli import COMMANDS, cli
from tests.cli.helpers import Shell

DATA = Path(__file__).parents[1] / "data"
RUNS = DATA / "gpu_runs.llama-8b.jsonl.gz"
HEADER = "id,model,tp,pp,dcp,kv_dtype,prefix_caching,draft,available_gib_per_gpu,num_blocks,max_model_len," \
         "log_formula,block_tokens,capacity_tokens,max_concurrency"
BATCH = {"schema": "kvsim/sweep/1", "name": "tiny", "axes": [{"grid": {"workload.concurrency": [1, 2]}}], "base": {
    "name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 5}, "concurrency": 1}}}


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command, or those of a group, with the whole name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for sub in command.list_commands(context):
        found = command.get_command(context, sub)
        assert found is not None
        yield from commands(found, f"{name} {sub}".strip())


ALL = dict(commands(cli, ""))


@pytest.mark.parametrize("name", [name for name in ALL if name != "app"])
def test_every_command_writes_json(name: str) -> None:
    assert any("--json" in option.opts for option in ALL[name].params)


@pytest.mark.parametrize("name", list(ALL))
def test_every_option_has_help(name: str) -> None:
    assert [option.name for option in ALL[name].params if isinstance(option, click.Option) and not option.help] == []


def test_all_commands_are_looked_at() -> None:
    assert {name.split()[0] for name in ALL} == set(COMMANDS)
    helps = {option.help for command in ALL.values() for option in command.params
             if isinstance(option, click.Option) and "--workers" in option.opts}
    assert len(helps) == 1, "one wording of --workers"


def written(kvsim: Shell, tmp_path: Path, *arguments: str, code: int = 0) -> Any:
    """What a command writes as JSON."""
    target = tmp_path / "out.json"
    done = kvsim(*arguments, "--json", str(target))
    assert done.code == code, done.err
    return json.loads(target.read_text())


def test_capacity_cases(kvsim: Shell, tmp_path: Path) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_text(f"{HEADER}\nright,llama-3.1-8b,1,1,1,bf16,on,none,,101,1600,uniform,16,1616,1.01\n"
                     "wrong,llama-3.1-8b,1,1,1,bf16,on,none,,101,1600,uniform,16,1617,\n")
    found = written(kvsim, tmp_path, "validate", "capacity", str(cases), code=1)
    right, wrong = found["cases"]
    assert right == {"name": "right", "exact": True, "difference": None}
    assert wrong["difference"] == "capacity_tokens: expected 1,617, got 1,616"
    assert (wrong["exact"], found["exact"], found["total"]) == (False, 1, 2)


def test_capacity_says_which_engine_it_is_of(kvsim: Shell, tmp_path: Path) -> None:
    asked = ("capacity", "--model", "llama-3.1-8b", "--gpu", "NVIDIA H100 80GB HBM3")
    assert written(kvsim, tmp_path, *asked)["engine_profile"] == "vllm-day0"
    assert written(kvsim, tmp_path, *asked, "--engine-profile", "vllm-0.33")["engine_profile"] == "vllm-0.33"


def test_engine_cases(kvsim: Shell, tmp_path: Path) -> None:
    found = written(kvsim, tmp_path, "validate", "engine", str(DATA / "engine_cases.jsonl.gz"), "--kinds", "priority")
    assert found["exact"] == found["total"] == len(found["cases"]) > 0
    assert all(case["exact"] and case["difference"] is None for case in found["cases"])


def test_calibration(kvsim: Shell, tmp_path: Path) -> None:
    made = tmp_path / "made.yaml"
    found = written(kvsim, tmp_path, "calibrate", str(RUNS), "--labels", "fixed-c1", "-o", str(made))
    residuals = found.pop("residuals")
    assert found == yaml.safe_load(made.read_text()) | {"sources": found["sources"]}
    assert residuals
    assert {"regime", "steps", "before_frac", "after_frac"} == set(residuals[0])


def test_sweep_and_its_page(kvsim: Shell, tmp_path: Path) -> None:
    batch, out = tmp_path / "tiny.yaml", tmp_path / "o"
    batch.write_text(yaml.safe_dump(BATCH))
    planned = written(kvsim, tmp_path, "sweep", str(batch), "--dry-run", "--workers", "3")
    assert ([case["case"] for case in planned["cases"]], planned["missing"], planned["workers"]) == ([0, 1], 2, 3)
    assert planned["estimate_s"] > 0
    kvsim("sweep", str(batch), "-o", str(out), "--executor", "inline")
    state = written(kvsim, tmp_path, "sweep", "-o", str(out), "--status")
    assert (state["name"], state["total"], state["ok"], state["failed"], state["missing"]) == ("tiny", 2, 2, 0, 0)
    page = written(kvsim, tmp_path, "report", str(out), "-o", str(tmp_path / "page.html"), "--uncertainty", "0")
    assert (page["name"], page["doubts"]) == ("tiny", None)
    assert [case["run.num_requests"] for case in page["cases"]] == [4, 4]


def test_profiles(kvsim: Shell, tmp_path: Path) -> None:
    names = written(kvsim, tmp_path, "profiles", "list", "gpu")
    assert "b300-sxm" in names["gpu"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("schema: kvsim/gpu/1\nname: wrong\n")
    found = written(kvsim, tmp_path, "profiles", "check", str(wrong), code=2)
    assert found["checked"] == 1
    assert any("architecture: missing" in problem for problem in found["problems"])
    config = next(iter(sorted((DATA / "hf_configs").rglob("*.json"))))
    model = written(kvsim, tmp_path, "profiles", "import", str(config), "--name", "mine")
    assert (model["schema"], model["name"]) == ("kvsim/model/1", "mine")


def test_converted_trace(kvsim: Shell, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    log = tmp_path / "log.jsonl"
    log.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}\nnonsense\n')
    found = written(kvsim, tmp_path, "trace", "convert", str(log), "-o", str(tmp_path / "t.parquet"))
    assert (found["num_requests"], len(found["bad"])) == (1, 1)
