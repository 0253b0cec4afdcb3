"""Flags and settings that have no counterpart are spoken of, never dropped; those that have one come back."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import ScenarioError
from kvsim.interop import ImportOptions, export_command, import_command
from kvsim.interop.importing import ImportedCommand
from kvsim.scenario import Scenario
from tests.cli.helpers import Shell
from tests.interop.test_export_command import round_trip
from tests.interop.test_import_command import sglang, vllm

GIB = 2**30
FIXED = {"fixed": {"num_requests": 1, "input_tokens": 1, "output_tokens": 1}, "concurrency": 1}


def serving(model: str = "llama-3.1-8b", tp: int = 8, **parts: Any) -> Scenario:
    return Scenario.from_dict({"name": "mine", "model": model, "hardware": {"gpu": "b300", "num_gpus": tp},
                               "layout": {"tp": tp}, "workload": FIXED, **parts})


def unsaid(found: ImportedCommand) -> dict[str, str]:
    """Flags that are not modelled, and what is said of them."""
    return {note.flag: note.text for note in found.of("not modelled")}


@pytest.mark.parametrize(("flags", "flag", "said"), [
    ("--tp 8 --ep 4", "--ep", "experts split 4 ways and then by TP; 8 ways taken"),
    ("--tp 8 --schedule-policy lpm", "--schedule-policy", "served in order of arrival or by priority"),
    ("--tp 8 --chunked-prefill-size -1", "--chunked-prefill-size", "always computed in chunks"),
    ("--tp 8 --disaggregation-mode prefill", "--disaggregation-mode", "with prefill and decode"),
    ("--tp 8 --enable-hierarchical-cache --hicache-ratio 2", "--hicache-ratio", "a multiple of the pool"),
    ("--tp 8 --enable-hierarchical-cache --hicache-size 100 --hicache-storage-backend file",
     "--hicache-storage-backend", "its size is not in the launch line"),
    ("--tp 8 --kv-cache-dtype fp4_e2m1", "--kv-cache-dtype", "bf16 is taken instead"),
])
def test_sglang_flags_that_are_not_modelled(flags: str, flag: str, said: str) -> None:
    assert said in unsaid(sglang(flags))[flag]


def test_attention_ranks_must_divide_the_tensor_parallel_group() -> None:
    with pytest.raises(ScenarioError, match=r"got 3; accepted: a divisor of --tp 8 with --enable-dp-attention"):
        sglang("--tp 8 --dp 3 --enable-dp-attention")


def test_a_mooncake_store_below_hicache() -> None:
    line = ("MOONCAKE_GLOBAL_SEGMENT_SIZE=100gb python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 "
            "--tp 8 --enable-hierarchical-cache --hicache-size 64 --hicache-storage-backend mooncake")
    dram, pool = import_command(line, ImportOptions(gpu="b200")).scenario.tiers
    assert (dram.kind, dram.preset, dram.capacity) == ("dram", "hicache", 8 * 64 * GIB)
    assert (pool.kind, pool.preset, pool.shared) == ("pool", "hicache-l3", True)
    assert pool.capacity in (8 * 100 * GIB, 8 * 100e9)


def test_one_manager_of_a_model_with_windows() -> None:
    windows = vllm("--disable-hybrid-kv-cache-manager", model="openai/gpt-oss-120b")
    assert "shrinks the pool" in unsaid(windows)["--disable-hybrid-kv-cache-manager"]
    plain = vllm("--disable-hybrid-kv-cache-manager", model="meta-llama/Llama-3.1-8B-Instruct")
    assert "--disable-hybrid-kv-cache-manager" not in unsaid(plain)


def test_several_launches_and_an_unknown_gpu() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct\nvllm serve moonshotai/Kimi-K3"
    found = import_command(line, ImportOptions(gpu="b300"))
    assert found.scenario.model == "llama-3.1-8b"
    assert "the first launch is read" in unsaid(found)["further commands"]
    with pytest.raises(ScenarioError, match=r"--gpu: got 'b301'; accepted: .*b300-sxm"):
        import_command(line, ImportOptions(gpu="b301"))


def test_a_launch_without_a_model_asks_for_one() -> None:
    with pytest.raises(ScenarioError, match="a model behind 'vllm serve' or --model-path"):
        import_command("python -m sglang.launch_server --tp 8", ImportOptions(gpu="b300"))


@pytest.mark.parametrize("tier", [
    {"kind": "dram", "capacity": 8 * 64 * GIB, "preset": "hicache"},
    {"kind": "dram", "capacity": 8 * 64 * GIB, "preset": "hicache", "write": "on-reuse"},
    {"kind": "dram", "capacity": 8 * 64 * GIB, "preset": "hicache", "write": "on-eviction"},
])
def test_hicache_comes_back(tier: dict[str, Any]) -> None:
    scenario = serving(tiers=[tier])
    assert "--hicache-size 64" in export_command(scenario, "sglang").command.replace(" \\\n ", "")
    round_trip(scenario, "sglang")


def test_lmcache_comes_back() -> None:
    scenario = serving(tiers=[{"kind": "dram", "capacity": 8 * 80 * GIB, "preset": "lmcache"}])
    line = export_command(scenario, "vllm")
    assert line.env["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "80"
    round_trip(scenario, "vllm")


@pytest.mark.parametrize(("tier", "engine", "said"), [
    ({"kind": "dram", "capacity": "100 GB", "preset": "hicache"}, "sglang", "HiCache takes whole GiB a rank"),
    ({"kind": "dram", "capacity": "1 TB", "preset": "hicache", "write": "lazy"}, "sglang", "no write policy lazy"),
    ({"kind": "dram", "capacity": "1 TB"}, "sglang", "only host memory with preset hicache"),
    ({"kind": "pool", "capacity": "1 TB"}, "vllm", "only Mooncake's store is written as a pool"),
    ({"kind": "nvme", "capacity": "1 TB"}, "vllm", "no size of their own in a launch line"),
    ({"kind": "dram", "capacity": "1 TB", "shared": True}, "vllm", "only Mooncake's store is shared by a flag"),
])
def test_tiers_that_no_launch_line_says(tier: dict[str, Any], engine: str, said: str) -> None:
    notes = {note.flag: note.text for note in export_command(serving(tiers=[tier]), engine).notes}
    assert said in notes["tiers.0"]


def test_a_shared_store_comes_back_shared() -> None:
    pool = {"kind": "pool", "capacity": "1 TB", "preset": "mooncake-store"}
    shared = export_command(serving(tiers=[{**pool, "shared": True}]), "vllm")
    assert import_command(shared.command, ImportOptions(gpu="b300")).scenario.tiers[0].shared
    private = export_command(serving(tiers=[pool], replicas=2), "vllm")
    assert "cache_prefix of its own" in {note.flag: note.text for note in private.notes}["tiers.0.shared"]


@pytest.mark.parametrize(("engine", "field", "said"), [
    ({"eviction": "fifo"}, "engine.eviction", "by its own rule"),
    ({"admission": {"max_live_sessions": 4}}, "engine.admission", "clients or a gateway"),
    ({"step_time": {"kind": "linear", "base_s": 0.01, "per_prefill_token_s": 1e-5, "per_decode_seq_s": 1e-4}},
     "engine.step_time", "how fast the engine is"),
    ({"draft": "eagle3-k3", "draft_acceptance": {"kind": "own", "source": "a guess", "length": 2}},
     "engine.draft", "whose name a scenario does not have"),
    ({"retention_interval": 1536}, "engine.retention_interval", "only hybrid models keep states"),
])
def test_settings_that_no_launch_line_says(engine: dict[str, Any], field: str, said: str) -> None:
    line = export_command(serving(engine=engine), "vllm")
    notes = {note.flag: note.text for note in line.notes}
    assert said in notes[field]
    assert f"#   {field}" in line.text()


def test_the_command_is_asked_for_where_nobody_writes_one(kvsim: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    done = kvsim("import-command")
    assert done.code == 2
    assert "give the command in quotes, a file, or -" in done.err


def test_files_that_hold_no_command(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_bytes(b"vllm serve \xff")
    done = kvsim("import-command", str(path))
    assert done.code == 2
    assert "byte 11 is not UTF-8; accepted: UTF-8 text" in done.err
