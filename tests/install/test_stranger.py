"""What somebody who has just installed kvsim types from an empty folder, mistakes included."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import load_scenario
from tests.cli.conftest import kvsim as kvsim  # the command line as a fixture
from tests.cli.helpers import Shell

CONFIGS = Path(__file__).resolve().parent.parent / "data" / "hf_configs"
GPU = {"schema": "kvsim/gpu/1", "name": "mine"}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing here but what a test puts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVSIM_PROFILES", raising=False)
    return tmp_path


def test_a_config_json_of_mine(kvsim: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(CONFIGS / "qwen3-30b-a3b.json", "config.json")
    Path("mine").mkdir()
    assert kvsim("profiles", "import", "config.json", "--name", "my-moe", "-o", "mine/my-moe.yaml").code == 0
    monkeypatch.setenv("KVSIM_PROFILES", "mine")
    done = kvsim("capacity", "--model", "my-moe", "--gpu", "h100", "--num-gpus", "2", "--tp", "2")
    assert done.code == 0, done.err
    assert "pool:" in done.out


def test_a_launch_command_of_mine(kvsim: Shell) -> None:
    done = kvsim("import-command", "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k -tp 2", "--gpu",
                 "h100", "-o", "mine.yaml")
    assert done.code == 0, done.err
    run = kvsim("run", "mine.yaml")
    assert run.code == 0
    assert "prices.api names no price" in run.out


def test_a_model_of_mine_is_served(kvsim: Shell) -> None:
    shutil.copy(CONFIGS / "qwen3-30b-a3b.json", "config.json")
    line = "vllm serve /models/my-moe --max-model-len 32k -tp 2"
    unknown = kvsim("import-command", line, "--gpu", "h100", "--model", "config.json")
    assert unknown.code == 2
    assert "kvsim profiles import config.json" in unknown.err
    assert kvsim("profiles", "import", "config.json", "--name", "my-moe", "-o", "my-moe.yaml").code == 0
    done = kvsim("import-command", line, "--gpu", "h100", "--model", "my-moe.yaml", "-o", "mine.yaml")
    assert done.code == 0, done.err
    assert kvsim("run", "mine.yaml", "--set", "workload.fixed.num_requests=4").code == 0


@pytest.mark.parametrize("name", ["config.json", "."])
def test_a_config_json_in_place_of_a_profile(kvsim: Shell, name: str) -> None:
    shutil.copy(CONFIGS / "qwen3-30b-a3b.json", "config.json")
    done = kvsim("capacity", "--model", name, "--gpu", "h100")
    assert done.code == 2
    assert "'kvsim profiles import config.json -o mine.yaml' makes a profile of it" in done.err


def test_lengths_as_engines_write_them(kvsim: Shell) -> None:
    small = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "32k")
    assert "at max_model_len 32,000" in small.out
    large = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "32K")
    assert "at max_model_len 32,768" in large.out
    wrong = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "32Q")
    assert wrong.code == 2
    assert "'32Q' is not a number of tokens from 1, e.g. 8000, 32k (32,000) or 32K (32,768)" in wrong.err
    data = {"name": "x", "model": "llama-3.1-8b", "hardware": {"gpu": "h100", "num_gpus": 1},
            "engine": {"max_model_len": "32K"}, "workload": {
                "fixed": {"num_requests": 2, "input_tokens": "4k", "output_tokens": 100}, "concurrency": 1}}
    scenario = load_scenario(data)
    assert scenario.workload.fixed is not None
    assert (scenario.engine.max_model_len, scenario.workload.fixed.input_tokens) == (32768, 4000)


def test_gpus_follow_from_the_degrees(kvsim: Shell) -> None:
    done = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "2", "--pp", "2")
    assert done.code == 0
    assert done.out.startswith("llama-3.1-8b on 4 x h100-sxm, TP2 x PP2")


def test_names_in_python_are_corrected() -> None:
    import kvsim as package

    with pytest.raises(AttributeError, match="did you mean 'simulate'"):
        _ = package.simulte  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType,reportUnknownVariableType]
    with pytest.raises(KvsimError, match=r"accepted: tp, pp, ep, dp, dcp, .*did you mean 'tp'"):
        package.kv_capacity("kimi-k3", "b300", 8, tpp=8)
    assert load_scenario("k3-b300-dram", "seed=3").seed == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_no_bug() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "kvsim.cli", "profiles", "list", "gpu"], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_from_a_pipe_or_packed(packed: bool) -> None:
    text = (b"INFO non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 32768}\n"
            b"INFO GPU KV cache size: 449,792 tokens\n")
    data = gzip.compress(text) if packed else text
    Path("v.log.gz").write_bytes(data)
    command = [sys.executable, "-m", "kvsim.cli", "import-log"]
    piped = subprocess.run([*command, "-", "--gpu", "h100"], input=data, capture_output=True, timeout=60, check=False)
    named = subprocess.run([*command, "v.log.gz", "--gpu", "h100"], capture_output=True, timeout=60, check=False)
    assert (piped.returncode, named.returncode) == (0, 0), piped.stderr
    assert piped.stdout.splitlines()[1:] == named.stdout.splitlines()[1:]


def test_why_cases_of_a_sweep_failed(kvsim: Shell) -> None:
    sweep = {"schema": "kvsim/sweep/1", "name": "mine", "base": "llama-chat-burst",
             "axes": [{"grid": {"engine.kv_dtype": ["fp9"], "seed": [0, 1]}}, {"list": [{"replicas": 0}]}]}
    Path("s.yaml").write_text(json.dumps(sweep))
    none = kvsim("sweep", "s.yaml", "-o", "out")
    assert none.code == 2
    assert "engine.kv_dtype: got 'fp9'" in none.err
    fixed = {"name": "b", "model": "llama-3.1-8b", "hardware": {"gpu": "h100", "num_gpus": 1}, "workload": {
        "fixed": {"num_requests": 2, "input_tokens": 10, "output_tokens": 10}, "concurrency": 1}}
    sweep |= {"base": fixed, "axes": [{"grid": {"engine.kv_dtype": ["bf16", "fp9"]}}]}
    Path("s.yaml").write_text(json.dumps(sweep))
    half = kvsim("sweep", "s.yaml", "-o", "out", "--executor", "inline")
    assert half.code == 1
    assert "2 cases: 1 computed, 0 there already, 1 failed" in half.out
    assert "input: case 1: engine.kv_dtype: got 'fp9'; accepted: 'bf16', 'fp8'" in half.out
    Path("s.yaml").write_text(json.dumps({**sweep, "base": "nosuch"}))
    assert "s.yaml: base: got 'nosuch'" in kvsim("sweep", "s.yaml", "-o", "out2").err


def test_a_log_of_requests_of_mine(kvsim: Shell) -> None:
    Path("mine.csv").write_text("time,in,out\n" + "".join(f"{i},{100 + i},{10 + i}\n" for i in range(20)))
    unnamed = kvsim("trace", "info", "mine.csv")
    assert unnamed.code == 2
    assert "CSV columns in, out, time" in unnamed.err
    assert "mapping" in unnamed.err
    named = kvsim("trace", "info", "mine.csv", "--mapping", "timestamp=time,input_tokens=in,output_tokens=out")
    assert named.code == 0
    assert named.out.startswith("mine.csv: 20 requests")


def test_a_gpu_of_mine_lacks_all_fields_at_once(kvsim: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine").mkdir()
    Path("mine/mine.yaml").write_text(json.dumps(GPU))
    checked = kvsim("profiles", "check", "mine")
    assert checked.code == 2
    assert {"hbm_usable", "flops", "host_link"} <= {line.split(": ")[1] for line in checked.err.splitlines()
                                                   + checked.out.splitlines() if line.count(": ") > 1}
    monkeypatch.setenv("KVSIM_PROFILES", "no-such-folder")
    wrong = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h100")
    assert wrong.code == 2
    assert "no-such-folder: got no such folder" in wrong.err


@pytest.mark.parametrize(("words", "hint"), [
    (["run", "k3-cliff-sweep"], "'kvsim sweep' takes such files"),
    (["sweep", "k3-b300-dram", "--dry-run"], "'kvsim run' takes such files"),
    (["run", "config.json"], "'kvsim profiles import' makes a model of it"),
    (["run", "gpu.yaml"], "'kvsim profiles check' takes such files"),
    (["report", "nosuch", "-o", "x.html"], "nosuch: got no such folder"),
    (["run", "k3-b300-cliffs"], "did you mean 'k3-b300-cliff'?"),
    (["rnu", "k3-b300-cliff"], "did you mean 'run'?"),
])
def test_what_was_mixed_up_is_named(kvsim: Shell, words: list[str], hint: str) -> None:
    Path("config.json").write_text('{"model_type": "llama"}')
    Path("gpu.yaml").write_text(json.dumps(GPU))
    done = kvsim(*words)
    assert done.code == 2
    assert hint in done.err
    assert len(done.err.splitlines()) <= 4


def test_traces_that_nobody_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    monkeypatch.setattr("kvsim.traffic.data_root", lambda: tmp_path)
    scenario = load_scenario("k3-b300-sessions", ["study=null", "workload.trace=nosuch.jsonl"])
    from kvsim.traffic import build_workload

    with pytest.raises(KvsimError, match=r"one inside KVSIM_TRACES \(not set\)"):
        build_workload(scenario)


@pytest.mark.slow
def test_the_dashboard_starts_from_an_empty_folder() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "kvsim.cli", "app", "--port", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert answers(f"http://127.0.0.1:{port}/_stcore/health", server) == b"ok"
    finally:
        server.terminate()
        server.wait(20)
    assert not list(Path().iterdir())


def answers(url: str, server: subprocess.Popen[bytes], patience_s: float = 60.0) -> bytes:
    """What a server that is starting says."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.3)
    return b""
