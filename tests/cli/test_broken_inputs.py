"""Broken files and flags: one clear message each, with the place, what was given and what is accepted; exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import Outcome, Shell
from tests.scenario.helpers import TEXT

# name: (what is replaced, by what, the message). An empty first text appends. {file} is the file's path.
SCENARIOS = {
    "unknown model": ("llama-3.1-8b", "lama-3.1-8b",
                      "{file}: model: got 'lama-3.1-8b'; accepted: * (did you mean 'llama-3.1-8b'?)"),
    "unknown GPU": ("gpu: h200", "gpu: h2000", "{file}: hardware.gpu: got 'h2000'; accepted: * (did you mean 'h200'?)"),
    "duplicate key": ("", "name: again", "{file}: name: got the key a second time in line 6; accepted: each key once"),
    "negative value": ("concurrency: 2", "concurrency: -2",
                       "{file}: workload.concurrency: got -2; accepted: greater than 0"),
    "NaN": ("", "engine: {gpu_memory_utilization: .nan}",
            "{file}: engine.gpu_memory_utilization: got nan; accepted: a finite number"),
    "utilization above 1": ("", "engine: {gpu_memory_utilization: 90}",
                            "{file}: engine.gpu_memory_utilization: got 90; accepted: less than or equal to 1"),
    "TP that does not divide heads": ("num_gpus: 1}", "num_gpus: 3}\nlayout: {tp: 3}",
                                      "{file}: layout.tp: got 3; accepted: 1, 2, 4, 8, 16, 32 "
                                      "(llama-3.1-8b has 32 heads and 8 KV heads)"),
    "GPUs that are not the product": ("", "layout: {tp: 2}",
                                      "{file}: layout: got tp 2 x pp 1 x dp 1 = 2 GPUs; accepted: a product of 1, "
                                      "the hardware's num_gpus"),
    "unknown key": ("", "engine: {kv_dtyp: fp8}",
                    "{file}: engine.kv_dtyp: got an unknown key; accepted: * (did you mean 'kv_dtype'?)"),
    "two pools": ("", "engine: {kv_bytes_per_gpu: 10 GiB, num_blocks: 100}",
                  "{file}: engine: got kv_bytes_per_gpu and num_blocks both set; accepted: one of them"),
    "bytes as bandwidth": ("", "engine: {kv_bytes_per_gpu: 10 GB/s}",
                           "{file}: engine.kv_bytes_per_gpu: got '10 GB/s', unit 'GB/s', which measures B/s; "
                           "accepted: B, kB, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB"),
    "pool of a few bytes": ("", "engine: {kv_bytes_per_gpu: 42.23}",
                            "{file}: engine.kv_bytes_per_gpu: got 42 B; accepted: at least 4,194,304 B, two blocks "
                            "(a number without a unit counts bytes)"),
    "no YAML": (TEXT, "name: [1, 2\nmodel: }", "{file}: got * at line 2, column *; accepted: YAML"),
    "a list": (TEXT, "- name: x\n- model: y", "{file}: got a list; accepted: a mapping of keys to values"),
    "empty": (TEXT, "", "{file}: got an empty file; accepted: a mapping of keys to values"),
    "two workloads": ("workload: {", "workload: {preset: agentx-v1, ",
                      "{file}: workload: got preset and fixed; accepted: exactly one of preset, *"),
    "missing trace": ("fixed: {num_requests: 6, input_tokens: 200, output_tokens: 10}", "trace: none.jsonl.gz",
                      "{file}: workload.trace: got 'none.jsonl.gz'; accepted: a file, or one inside KVSIM_TRACES (*)"),
    "no concurrency": (", concurrency: 2", "", "{file}: workload.concurrency: missing; accepted: live session trees *"),
    "another schema": ("scenario/1", "scenario/9", "{file}: schema: got 'kvsim/scenario/9'; accepted: "
                                                   "'kvsim/scenario/1' *"),
    "unknown price": ("", "prices: {compute: rental-2026-10}",
                      "{file}: prices.compute: got 'rental-2026-10'; accepted: * (did you mean 'rental-2026-09'?)"),
    "not simulated yet": ("", "replicas: 3\nengine: {eviction: belady}",
                          "{file}: engine.eviction: got belady with replicas 3, which is not simulated yet; "
                          "accepted: it with replicas 1"),
    "unknown router": ("", "replicas: 3\nrouter: round", "{file}: router: got 'round'; accepted: *"),
    "a key that is a list": ("", "? [a]\n: 1", "{file}: got a key that is not text at line *"),
    "a date that does not exist": ("", "description: 2026-13-45", "{file}: got a date or number that does not exist*"),
}

# The same for a GPU profile.
PROFILES = {
    "missing unit": ("{value: 288, unit: GB,", "{value: 288,",
                     "{file}: hbm_marketed.unit: missing; accepted: a unit: B, *"),
    "wrong dimension": ("{value: 288, unit: GB,", "{value: 288, unit: GB/s,",
                        "{file}: hbm_marketed: got unit 'GB/s', which measures B/s; accepted: B, *"),
    "unknown unit": ("{value: 288, unit: GB,", "{value: 288, unit: Gb,",
                     "{file}: hbm_marketed: got unknown unit 'Gb'; *"),
    "sparse FLOPS": ("bf16: {value: 2250", "bf16: {value: 4500",
                     "{file}: flops.bf16: got 4500 TFLOPS; accepted: dense, about 2.46P FLOP/s (looks like a sparse *"),
    "negative figure": ("bf16: {value: 2250", "bf16: {value: -2250",
                        "{file}: flops.bf16: got value -2250; accepted: a finite number that is not negative"),
    "NaN figure": ("bf16: {value: 2250", "bf16: {value: .nan",
                   "{file}: flops.bf16.value: got nan; accepted: a finite *"),
    "assumed without a range": ("kind: nominal, source: gpu-specs, note: dense}",
                                "kind: assumed, source: gpu-specs, note: dense, why: guess}",
                                "{file}: flops.bf16: got kind 'assumed' alone; accepted: 'why' and 'range: *"),
    "unknown source": ("source: gpu-specs}", "source: gpu-spec}",
                       "{file}: hbm_marketed.source: got 'gpu-spec'; accepted: * (did you mean 'gpu-specs'?)"),
    "another name than the file": ("name: b300-sxm", "name: b300", "{file}: name: got b300; accepted: *'b300-sxm'"),
    "text for a number": ("{value: 288,", "{value: '288',",
                          "{file}: hbm_marketed.value: got '288'; accepted: a number"),
}

K3 = ("capacity", "--model", "kimi-k3", "--gpu", "b300", "--num-gpus", "8", "--tp", "8")
FLAGS = [
    (("run", "k3-b300-studi"), "scenario: got 'k3-b300-studi'; accepted: * (did you mean 'k3-b300-study'?)"),
    (("run", "k3-b300-study", "--set", "seed"), "--set: got 'seed'; accepted: path=value, e.g. seed=3"),
    (("run", "k3-b300-study", "--set", "engine.kv_dtype=fp9"),
     "* --set engine.kv_dtype=fp9: engine.kv_dtype: got 'fp9'; accepted: 'bf16', 'fp8' or 'fp8_ds_mla' *"),
    ((*K3[:2], "kimi-k4", *K3[3:]), "--model: got 'kimi-k4'; accepted: * (did you mean 'kimi-k3'?)"),
    ((*K3[:4], "b3000", *K3[5:]), "--gpu: got 'b3000'; accepted: * (did you mean 'b300'?)"),
    ((*K3, "--kv-dtype", "fp4"), "--kv-dtype: got 'fp4'; accepted: 'bf16', 'fp8' or 'fp8_ds_mla' *"),
    ((*K3, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization: got nan; accepted: a finite number"),
    ((*K3, "--draft", "eagle"), "--draft: got 'eagle'; accepted: none, mtp-kN, *"),
    ((*K3, "--engine-profile", "vllm-day9"),
     "--engine-profile: got 'vllm-day9'; accepted: * (did you mean 'vllm-day0'?)"),
    ((*K3, "--dcp", "3"), "--dcp: got 3; accepted: a divisor of tp 8"),
    ((*K3[:5], "--num-gpus", "1", "--tp", "8"),
     "--num-gpus: got tp 8 x pp 1 x dp 1 = 8 GPUs; accepted: a product of 1, *"),
    (("profiles", "show", "b301"), "profiles show: name: got 'b301'; accepted: * (did you mean *"),
    (("profiles", "show", "b300", "--kind", "model"), "model profile: got 'b300'; accepted: *"),
    (("profiles", "import", "none.json"), "none.json: got *; accepted: a config.json"),
    (("validate", "capacity", "none.csv"), "none.csv: got *; accepted: a CSV file"),
]


def fits(line: str, expected: str) -> bool:
    """Whether a line is the expected one, where each ``*`` stands for any text."""
    parts = expected.split("*")
    at = 0
    for i, part in enumerate(parts):
        found = line.find(part, at)
        if found < 0 or (i == 0 and found) or (i == len(parts) - 1 and part and not line.endswith(part)):
            return False
        at = found + len(part)
    return len(parts) > 1 or line == expected


def check(done: Outcome, lines: list[str], expected: str) -> None:
    """One problem, the expected one; code 2; no traceback."""
    assert done.code == 2
    assert len(lines) == 1, lines
    assert fits(lines[0], expected), lines[0]
    assert "Traceback" not in done.err + done.out


@pytest.mark.parametrize("case", SCENARIOS)
def test_scenarios(kvsim: Shell, tmp_path: Path, case: str) -> None:
    old, new, expected = SCENARIOS[case]
    path = tmp_path / "broken.yaml"
    path.write_text(TEXT.replace(old, new) if old else f"{TEXT}{new}\n")
    assert path.read_text() != TEXT
    done = kvsim("run", str(path))
    check(done, [line.strip() for line in done.err.splitlines()[1:]], expected.replace("{file}", str(path)))
    assert done.out == ""


@pytest.mark.parametrize("case", PROFILES)
def test_gpu_profiles(kvsim: Shell, tmp_path: Path, repo_root: Path, case: str) -> None:
    old, new, expected = PROFILES[case]
    whole = (repo_root / "hardware_profiles" / "gpus" / "b300-sxm.yaml").read_text()
    path = tmp_path / "b300-sxm.yaml"
    path.write_text(whole.replace(old, new, 1))
    assert path.read_text() != whole
    done = kvsim("profiles", "check", str(path))
    check(done, done.out.splitlines()[:-1], expected.replace("{file}", str(path)))
    answer = kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", str(path))
    assert answer.code == 2
    assert str(path) in answer.err


@pytest.mark.parametrize(("arguments", "expected"), FLAGS)
def test_flags(kvsim: Shell, arguments: tuple[str, ...], expected: str) -> None:
    done = kvsim(*arguments)
    check(done, [line.strip() for line in done.err.splitlines()[1:]], expected)


@pytest.mark.parametrize("arguments", [
    ("runn",), ("run",), ("run", "k3-b300-study", "--seed", "-1"), ("capacity", "--model", "kimi-k3"),
    (*K3, "--tp", "0"), (*K3, "--pp", "two"), ("profiles", "list", "gpus"),
    ("profiles", "check", "no/such/folder"), ("app", "--port", "0"),
    ("run", "k3-b300-study", "--json", "no/such/folder/x.json"), (*K3, "--json", "no/such/folder/x.json"), ("--nope",),
    ("profiles", "import", "config.json", "-o", "no/such/folder/x.yaml"),
])
def test_usage(kvsim: Shell, arguments: tuple[str, ...]) -> None:
    done = kvsim(*arguments)
    assert done.code == 2
    assert "Usage: kvsim" in done.err
    assert "Error: " in done.err
    assert "Traceback" not in done.err


def test_files_that_are_no_text(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    done = kvsim("run", str(path))
    check(done, [line.strip() for line in done.err.splitlines()[1:]],
          f"{path}: got byte 0 is not UTF-8; accepted: YAML as UTF-8 text")


def test_a_result_that_cannot_be_written(kvsim: Shell, tmp_path: Path) -> None:
    scenario = tmp_path / "small.yaml"
    scenario.write_text(TEXT)
    (tmp_path / "folder").mkdir()
    done = kvsim("run", str(scenario), "--json", str(tmp_path / "folder"))
    assert done.code == 2
    assert "is a directory" in done.err


def test_all_problems_of_a_file_at_once(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(TEXT.replace("num_gpus: 1", "num_gpus: 0") + "engine: {kv_dtyp: fp8}\nseed: -1\nrouter: robin\n")
    done = kvsim("run", str(path))
    assert done.code == 2
    assert [line.split(": ")[1] for line in done.err.splitlines()[1:]] == [
        "hardware.num_gpus", "engine.kv_dtyp", "router", "seed"]
