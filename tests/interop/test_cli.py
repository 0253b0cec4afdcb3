"""The three commands as users meet them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from kvsim.scenario import load_scenario
from tests.cli.helpers import Shell

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8k --max-num-seqs 8 --port 8000"


def test_a_command_becomes_a_run(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"
    done = kvsim("import-command", LLAMA, "--gpu", "h100", "-o", str(path), "--set", "workload.fixed.num_requests=4")
    assert done.code == 0
    assert done.out == f"wrote {path}\n"
    assert "--port 8000" in done.err
    ran = kvsim("run", str(path))
    assert ran.code == 0, ran.err


def test_the_scenario_is_printed_and_the_flags_are_told(kvsim: Shell, tmp_path: Path) -> None:
    json_file = tmp_path / "x.json"
    done = kvsim("import-command", LLAMA, "--gpu", "h100", "--json", str(json_file))
    path = tmp_path / "printed.yaml"
    path.write_text(done.out)
    assert load_scenario(path).engine.max_num_seqs == 8
    flags = {f["flag"]: f["status"] for f in json.loads(json_file.read_text())["flags"]}
    assert flags["--port"] == "no effect"


def test_words_without_quotes_a_file_and_standard_input(kvsim: Shell, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = kvsim("import-command", LLAMA, "--gpu", "h100").out
    assert kvsim("import-command", "--gpu", "h100", "--", *LLAMA.split()).out == quoted
    script = tmp_path / "serve.sh"
    script.write_text(f"#!/bin/bash\nset -e\n{LLAMA} &\nwait\n")
    assert kvsim("import-command", str(script), "--gpu", "h100").out == quoted
    monkeypatch.setattr(sys, "stdin", io.StringIO(LLAMA))
    assert kvsim("import-command", "-", "--gpu", "h100").out == quoted


def test_a_recipe_by_name(kvsim: Shell) -> None:
    done = kvsim("import-command", "kimi-k3-b300-vllm-day0-dram")
    assert done.code == 0
    assert "gpu: b300" in done.out
    assert "profile: vllm-day0" in done.out


@pytest.mark.parametrize(("arguments", "said"), [
    (["import-command", LLAMA], "--gpu: missing"), (["import-command", "ls", "--gpu", "h100"], "vllm serve MODEL"),
    (["import-command", "vllm serve moonshotai/Kimi-K9 -tp x", "--gpu", "b300"], "kimi-k3"),
    (["export-command", "k3-b300"], "no such scenario"), (["import-log", "nothing.log"], "No such file"),
    (["export-command", "k3-b300-study", "--set", "engine.profile=ideal"], "vllm or sglang"),
    (["import-command", "nothing.sh"], "no such file or recipe"),
    (["import-command", "kimi-k3-b300-vllm-day1"], "did you mean 'kimi-k3-b300-vllm-day0'?"),
    (["import-command", "trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8"], "TensorRT-LLM has no engine profile"),
    (["import-command", "vllm serve a/B", "--gpu", "h100"], "kvsim profiles import config.json"),
])
def test_errors_are_messages(kvsim: Shell, arguments: list[str], said: str) -> None:
    done = kvsim(*arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_binary_files_are_refused(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"vllm serve\0")
    assert "a binary file" in kvsim("import-command", str(path), "--gpu", "h100").err
    assert "a binary file" in kvsim("import-log", str(path)).err


def test_export_and_back(kvsim: Shell, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    assert kvsim("export-command", "k3-b300-dram", "-o", str(script)).code == 0
    done = kvsim("import-command", str(script), "--gpu", "b300", "--engine-profile", "vllm-day0")
    assert done.code == 0, done.err
    assert "SimpleCPUOffloadConnector" in kvsim("export-command", "k3-b300-dram").out
    assert "sglang.launch_server" in kvsim("export-command", "k3-b300-dram", "--engine", "sglang").out


def test_a_log_sets_the_pool(kvsim: Shell, tmp_path: Path) -> None:
    log, out = tmp_path / "server.log", tmp_path / "set.yaml"
    log.write_text("Available KV cache memory: 42.23 GiB\nGPU KV cache size: 3,249,215 tokens\n")
    json_file = tmp_path / "l.json"
    done = kvsim("import-log", str(log), "--scenario", "k3-b300-cliff", "-o", str(out), "--json", str(json_file))
    assert done.code == 0, done.err
    assert "KV than predicted: 42.23 GiB per GPU" in done.out
    assert load_scenario(out).engine.num_blocks == 2135
    assert json.loads(json_file.read_text())["logged"]["kv_tokens"] == 3_249_215
