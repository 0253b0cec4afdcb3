"""``-`` as the name of a file to write: standard output, which then holds that file and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click
import pytest
import yaml

from kvsim.cli import main
from kvsim.commands.common import OutputFile
from kvsim.workload.readers.read import read_trace
from tests.cli.helpers import Shell
from tests.cli.test_json import ALL, BATCH, DATA, HEADER

CAPACITY = ("capacity", "--model", "llama-3.1-8b", "--gpu", "h200")
FIT = ("trace", "fit", "sessions.csv", "--mapping", "timestamp=t,input_tokens=i,output_tokens=o,session=s", "-o")
LAUNCH = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
CONFIG = DATA / "hf_configs" / "llama-3.1-8b.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with the inputs of some commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(BATCH["base"]))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(BATCH))
    (tmp_path / "cases.csv").write_text(f"{HEADER}\none,llama-3.1-8b,1,1,1,bf16,on,none,,101,1600,uniform,16,1617,\n")
    (tmp_path / "log.jsonl").write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}\nnonsense\n')
    (tmp_path / "sessions.csv").write_text("t,i,o,s\n0,100,10,a\n60,200,10,a\n10,120,9,b\n90,230,9,b\n")
    return tmp_path


def files_of(command: click.Command) -> list[click.Option]:
    """Options that name a file to write."""
    return [option for option in command.params if isinstance(option, click.Option)
            and isinstance(option.type, click.Path) and option.name != "out"]


@pytest.mark.parametrize("name", [name for name in ALL if name != "app"])
def test_every_file_that_is_written_may_be_standard_output_and_says_so(name: str) -> None:
    for option in files_of(ALL[name]):
        assert isinstance(option.type, OutputFile), option.name
        assert (name, option.name) == ("cache", "chart") or "; - " in str(option.help), option.name


@pytest.mark.parametrize(("arguments", "code"), [
    (CAPACITY, 0), (("run", "tiny.yaml"), 0), (("compare", "tiny.yaml", "tiny.yaml", "--replications", "1"), 0),
    (("sweep", "sweep.yaml", "--dry-run"), 0), (("validate", "capacity", "cases.csv"), 1),
    (("profiles", "check", "cases.csv"), 2), (("profiles", "list", "gpu"), 0), (("profiles", "import", str(CONFIG)), 0),
    (("trace", "info", "log.jsonl"), 0), ((*FIT, "fit.yaml"), 0),
    (("import-command", LAUNCH, "--gpu", "h200"), 0), (("export-command", "tiny.yaml"), 0),
    (("load-or-recompute", "k3-b300-dram", "--lengths", "1024"), 0),
], ids=lambda part: " ".join(part[:2]) if isinstance(part, tuple) else str(part))
def test_json_alone(kvsim: Shell, folder: Path, arguments: tuple[str, ...], code: int) -> None:
    done = kvsim(*arguments, "--json", "-")
    assert done.code == code, done.err
    piped = json.loads(done.out)
    kvsim(*arguments, "--json", "kept.json")
    assert without_times(json.loads((folder / "kept.json").read_text())) == without_times(piped)
    assert not (folder / "-").exists()


def without_times(found: Any) -> Any:
    """The same without the time that computing takes."""
    if isinstance(found, dict):
        members = cast("dict[str, Any]", found)
        return {key: without_times(value) for key, value in members.items() if key not in ("wall_s", "estimate_s")}
    return [without_times(value) for value in cast("list[Any]", found)] if isinstance(found, list) else found


def test_notes_stay_on_standard_error(kvsim: Shell, folder: Path) -> None:
    done = kvsim("trace", "info", "log.jsonl", "--json", "-")
    assert "gap CV" not in done.out + done.err
    assert "skipped log.jsonl:2" in done.err


def test_rows_as_csv(kvsim: Shell, folder: Path) -> None:
    done = kvsim("cache", "log.jsonl", "--policies", "lru", "--capacity-blocks", "1,inf", "--csv", "-")
    assert [line.split(",")[0] for line in done.out.splitlines()] == ["policy", "lru", "lru"]


def is_yaml(text: str) -> bool:
    """Whether it is a mapping of YAML."""
    return isinstance(yaml.safe_load(text), dict)


@pytest.mark.parametrize(("arguments", "is_right"), [
    (FIT, is_yaml), (("profiles", "import", str(CONFIG), "-o"), is_yaml),
    (("import-command", LAUNCH, "--gpu", "h200", "-o"), is_yaml),
    (("export-command", "tiny.yaml", "-o"), lambda text: text.startswith("#!/usr/bin/env bash\n")),
    (("run", "tiny.yaml", "--trace-events"), lambda text: "traceEvents" in json.loads(text)),
    (("load-or-recompute", "k3-b300-dram", "--lengths", "1024", "--chart"), lambda text: "<html" in text[:200]),
], ids=lambda part: " ".join(part[:2]) if isinstance(part, tuple) else "")
def test_a_written_file_alone(kvsim: Shell, folder: Path, arguments: tuple[str, ...],
                              is_right: Callable[[str], bool]) -> None:
    if "--chart" in arguments:
        pytest.importorskip("plotly")
    before = sorted(folder.iterdir())
    done = kvsim(*arguments, "-")
    assert done.code == 0, done.err
    assert is_right(done.out)
    assert sorted(folder.iterdir()) == before
    assert "wrote" not in done.err


def test_text_of_a_command_whose_file_is_piped(kvsim: Shell, folder: Path) -> None:
    assert "ttft" in kvsim("run", "tiny.yaml", "--trace-events", "-").err.lower()


def test_parquet(folder: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(sys, "argv", ["kvsim", "trace", "convert", "log.jsonl", "-o", "-"])
    main()
    (folder / "common.parquet").write_bytes(capsysbinary.readouterr().out)
    assert len(read_trace(folder / "common.parquet")[0]) == 1


def test_parquet_is_not_for_a_terminal(kvsim: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = kvsim("trace", "convert", "log.jsonl", "-o", "-")
    assert (done.code, done.out) == (2, "")
    assert "redirect standard output" in done.err


def test_one_file_only(kvsim: Shell, folder: Path) -> None:
    done = kvsim("cache", "log.jsonl", "--csv", "-", "--json", "-")
    assert (done.code, done.out) == (2, "")
    assert "goes to standard output (-) already" in done.err


def test_a_folder_and_a_chart_without_a_name_are_refused(kvsim: Shell, folder: Path) -> None:
    assert "a folder of files" in kvsim("sweep", "sweep.yaml", "-o", "-").err
    assert ".svg, .html, .png" in kvsim("cache", "log.jsonl", "--chart", "-").err
    assert not (folder / "-").exists()


def test_a_file_of_that_name(kvsim: Shell, folder: Path) -> None:
    done = kvsim(*CAPACITY, "--json", "./-")
    assert "HBM usable" in done.out
    assert "num_blocks" in json.loads((folder / "-").read_text())
