"""Commands that work: exit codes, what they print, ``--json``, ``--set`` and ``--seed``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvsim.simulation
from kvsim.engine.types import EngineRun
from kvsim.errors import SimulationError
from kvsim.profiles.store import KINDS, default_store
from tests.cli.helpers import Shell
from tests.scenario.helpers import TEXT

K3 = ("capacity", "--model", "kimi-k3", "--gpu", "b300", "--num-gpus", "8", "--tp", "8", "--kv-dtype", "fp8")


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Path of a scenario that runs at once."""
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return str(path)


def test_run(kvsim: Shell, small: str, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    done = kvsim("run", small, "--json", str(target))
    assert done.code == 0
    assert "6 requests measured" in done.out
    assert done.err == ""
    report = json.loads(target.read_text())
    assert report["run"]["num_requests"] == 6
    assert report["scenario"]["name"] == "small"


def test_run_with_changes(kvsim: Shell, small: str, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    arguments = ["--set", "workload.fixed.num_requests=3", "--set", "engine.kv_dtype=fp8", "--set", "tiers=[]"]
    assert kvsim("run", small, *arguments, "--seed", "5", "--json", str(target)).code == 0
    report = json.loads(target.read_text())
    assert report["run"]["num_requests"] == 3
    assert report["run"]["seed"] == report["scenario"]["seed"] == 5
    assert report["scenario"]["engine"]["kv_dtype"] == "fp8"
    assert kvsim("run", small, "--set", "seed=5").out == kvsim("run", small, "--seed", "5").out


def test_a_study_as_json(kvsim: Shell, small: str, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    done = kvsim("run", small, "--set", "study={concurrency: [1, 2]}", "--json", str(target))
    assert done.code == 0
    assert [c["concurrency"] for c in json.loads(target.read_text())["cases"]] == [1, 2]


def test_capacity(kvsim: Shell, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    done = kvsim(*K3, "--json", str(target))
    assert done.code == 0
    for said in ("= KV pool", "weights", "blocks of 1,536 tokens", "maximum concurrency", "bytes per checkpoint",
                 "142,016", "1,048,576"):
        assert said in done.out
    answer = json.loads(target.read_text())
    assert answer["kv_tokens"] == answer["num_blocks"] * 1_048_576 // 689
    assert answer["bytes_per_token"] == 13_824
    assert [f["sessions"] for f in answer["fits"]] == sorted((f["sessions"] for f in answer["fits"]), reverse=True)


@pytest.mark.parametrize("arguments", [
    ("--dcp", "8"), ("--ep", "8"), ("--no-prefix-caching",), ("--draft", "dspark-fp8-k2"),
    ("--max-model-len", "131072"), ("--max-num-seqs", "16"), ("--max-num-batched-tokens", "4096"),
    ("--gpu-memory-utilization", "0.95"),
    ("--engine-profile", "vllm-0.33"),
])
def test_every_flag_changes_the_answer(kvsim: Shell, arguments: tuple[str, ...]) -> None:
    plain, changed = kvsim(*K3), kvsim(*K3, *arguments)
    assert changed.code == 0
    assert changed.out != plain.out


def test_what_does_not_fit_exits_with_3_and_says_what_would(kvsim: Shell) -> None:
    done = kvsim("capacity", "--model", "kimi-k3", "--gpu", "b200", "--num-gpus", "8", "--tp", "8", "--kv-dtype", "fp8")
    assert done.code == 3
    assert "does not fit" in done.err
    assert "weights" in done.err
    assert "fits on 16 GPUs" in done.err
    assert done.out == ""


def test_profiles_list(kvsim: Shell) -> None:
    everything = kvsim("profiles", "list")
    assert everything.code == 0
    assert [line.split(":")[0] for line in everything.out.splitlines()] == list(KINDS)
    assert kvsim("profiles", "list", "gpu").out == f"gpu: {', '.join(default_store().names('gpu'))}\n"


def test_profiles_show(kvsim: Shell, tmp_path: Path) -> None:
    target = tmp_path / "b300.json"
    done = kvsim("profiles", "show", "b300", "--kind", "gpu", "--json", str(target))
    assert done.code == 0
    assert "hbm_usable" in done.out
    assert "sources" in done.out
    assert json.loads(target.read_text())["name"] == "b300-sxm"
    assert kvsim("profiles", "show", "kimi-k3").code == 0
    assert kvsim("profiles", "show", "b300-sxm").out == done.out


def test_profiles_check(kvsim: Shell, tmp_path: Path) -> None:
    done = kvsim("profiles", "check")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("0 problems")
    (tmp_path / "bad.yaml").write_text("schema: kvsim/gpu/1\nname: bad\n")
    bad = kvsim("profiles", "check", str(tmp_path))
    assert bad.code == 2
    assert "bad.yaml: vendor: missing" in bad.out
    assert bad.out.splitlines()[-1].startswith("profiles: 1 checked, ")


def test_profiles_import(kvsim: Shell, repo_root: Path, tmp_path: Path) -> None:
    config = str(repo_root / "tests" / "data" / "hf_configs" / "kimi-k2.json")
    printed = kvsim("profiles", "import", config, "--name", "my-k2")
    assert printed.code == 0
    target = tmp_path / "my-k2.yaml"
    assert kvsim("profiles", "import", config, "--name", "my-k2", "-o", str(target)).out == f"wrote {target}\n"
    assert target.read_text() == printed.out
    assert kvsim("profiles", "check", str(target)).code == 0
    answer = kvsim("capacity", "--model", str(target), "--gpu", "h200", "--num-gpus", "8", "--tp", "8",
                   "--max-model-len", "131072")
    assert answer.code == 0


def test_validate_capacity(kvsim: Shell, repo_root: Path) -> None:
    done = kvsim("validate", "capacity", str(repo_root / "tests" / "data" / "capacity_cases.csv"))
    assert (done.code, done.out.splitlines()[-1]) == (0, "capacity cases: 12/12 exact")


def test_help_and_version(kvsim: Shell) -> None:
    assert kvsim("--version").out.startswith("kvsim, version ")
    for command in ((), ("run",), ("capacity",), ("profiles",), ("validate",), ("app",)):
        done = kvsim(*command, "-h")
        assert done.code == 0
        assert done.out.startswith("Usage: kvsim")


def broken(*_: Any, **__: Any) -> EngineRun:
    """An engine that breaks a law."""
    raise SimulationError("a law was broken in small (digest 0, seed 0)")


def crashing(*_: Any, **__: Any) -> EngineRun:
    """An engine with a bug."""
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("engine", [broken, crashing])
def test_a_bug_exits_with_70_and_a_traceback(kvsim: Shell, small: str, monkeypatch: pytest.MonkeyPatch,
                                             engine: Any) -> None:
    monkeypatch.setattr(kvsim_simulation(), "ENGINES", {"core": engine, "reference": engine})
    done = kvsim("run", small)
    assert done.code == 70
    assert "Traceback" in done.err


def kvsim_simulation() -> Any:
    """The module that names the engines."""
    return kvsim.simulation


def test_as_a_program() -> None:
    script = Path(sys.executable).parent / "kvsim"
    if not script.exists():
        pytest.skip("kvsim is not installed in this environment")
    good = subprocess.run([script, *K3], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    none = subprocess.run([script, "capacity", "--model", "kimi-k4", "--gpu", "b300"], capture_output=True, text=True,
                          check=False)
    assert none.returncode == 2
    assert "did you mean 'kimi-k3'?" in none.stderr
    assert "Traceback" not in none.stderr
