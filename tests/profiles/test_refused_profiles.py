"""Mistakes in profile files that are someone's own: each is told with its field and what is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvsim.calibrate.overlay import load_calibration
from kvsim.errors import ProfileError
from kvsim.profiles.lint import check_paths
from kvsim.profiles.paths import data_root
from kvsim.profiles.store import load_profile
from tests.cli.conftest import kvsim as kvsim  # the command line as a fixture
from tests.cli.helpers import Shell
from tests.profiles.test_engine_profiles import check, figure, speed, tiny
from tests.profiles.test_huggingface_import import changed, imported, refusal


def edited(folder: Path, shipped: str, old: str, new: str) -> Path:
    """A copy of a shipped profile in which a pattern is replaced once."""
    source = data_root() / shipped
    text, count = re.subn(old, new, source.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    assert count == 1
    (folder / source.name).write_text(text, encoding="utf-8")
    return folder / source.name


@pytest.mark.parametrize(("shipped", "old", "new", "said"), [
    ("hardware_profiles/gpus/b300-sxm.yaml", r"^  value: 7672$", "  value: 8000",
     "accepted: one inside the range [7672.0, 7750.0]"),
    ("models/llama-3.1-8b.yaml", r"pattern: \[\w+\]", "pattern: [sliding]", "layers name attention 'sliding'"),
    ("models/llama-3.1-8b.yaml", r"^shape_source: .*", "shape_source: rumour", "shape_source 'rumour'; accepted:"),
    ("models/llama-3.1-8b.yaml", r"^hidden: .*", "hidden: wide", "hidden: got 'wide'; accepted: a whole number"),
    ("engine_profiles/drafts/kimi-k3-dspark.yaml", r"unit: tokens", "unit: frac", "accepted: tokens"),
    ("engine_profiles/drafts/kimi-k3-dspark.yaml", r"value: [\d.]+, unit: tokens", "value: 9.5, unit: tokens",
     "length 9.5 of 1 drafted; accepted: 1 to 2 tokens"),
    ("engine_profiles/drafts/kimi-k3-dspark.yaml", r"drafted: 8\b", "drafted: 7", "accepted: ascending, each once"),
])
def test_a_file_with_one_mistake(tmp_path: Path, shipped: str, old: str, new: str, said: str) -> None:
    path = edited(tmp_path, shipped, old, new)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert said in "; ".join(f"{p.field}: got {p.given}; accepted: {p.accepted}" for p in caught.value.problems)
    assert {p.where for p in caught.value.problems} == {str(path)}


@pytest.mark.parametrize(("shipped", "old", "new", "field", "said"), [
    ("hardware_profiles/prices/api/moonshot-k3.yaml", r"^cached_input: +\{value: [\d.]+", "cached_input: {value: 4",
     "cached_input", "at most input, 3"),
    ("hardware_profiles/prices/api/moonshot-k3.yaml", r"^model: .*", "model: kimi-k33", "model", "kimi-k3"),
    ("hardware_profiles/nodes/hgx-b300-8.yaml", r"(unit: node\n  num_gpus: \{value:) 8",
     r"\1 12", "buying_unit.num_gpus", "a multiple of num_gpus, 8"),
    ("hardware_profiles/gpus/b300-sxm.yaml", r"^    value: 13500", "    value: 90000", "flops.fp4", ""),
])
def test_a_figure_that_contradicts_another(tmp_path: Path, shipped: str, old: str, new: str, field: str,
                                           said: str) -> None:
    count, problems = check_paths([edited(tmp_path, shipped, old, new)])
    assert count == 1
    found, = problems
    assert found.field == field
    assert said in found.accepted


def test_a_calibration_cannot_make_a_part_free(tmp_path: Path) -> None:
    path = edited(tmp_path, "calibrations/h200-llama-8b.yaml", r"value: 0\.9721((?:\n.*){4}\n    - )0\.5072",
                  r"value: 0.0\g<1>0.0")
    with pytest.raises(ProfileError, match=r"host_step of 0; accepted: factors above 0"):
        load_calibration(path)


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"\xff", "byte 0 is not UTF-8")])
def test_a_calibration_that_cannot_be_read(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match=said) as caught:
        load_calibration(path)
    assert caught.value.problems[0].where == str(path)


def test_a_file_of_bytes_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"schema: kvsim/gpu/1\nname: \xff\n")
    with pytest.raises(ProfileError, match=r"byte 26 is not UTF-8; accepted: UTF-8 text"):
        load_profile(path)


def test_a_unit_that_the_field_does_not_take_is_told_at_the_command_line(kvsim: Shell, tmp_path: Path) -> None:
    path = edited(tmp_path, "hardware_profiles/gpus/b300-sxm.yaml", r"(value: 7672\n  unit: )GB/s", r"\1GB")
    done = kvsim("profiles", "check", str(path))
    assert done.code == 2
    assert "hbm_bandwidth: got" in done.out
    assert "TB/s" in done.out.split("accepted:", 1)[1]


@pytest.mark.parametrize(("kernel", "said"), [
    ({"component": "gqa_decode", "speeds": [speed(0.5, gpus=["x"], single_sm=figure(0.0))]}, "a single_sm of 0"),
    ({"component": "gemm", "speeds": [speed(0.5, gpus=["x"], single_sm=figure(0.1))]},
     "on gqa_decode and mla_decode only"),
])
def test_single_sm_shares(kernel: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(tiny(kernels=[{"kernel": "k", **kernel}]))


def test_some_gpu_must_have_the_least_token_limit() -> None:
    limits = [{"hbm_at_least": figure(70, "GiB"), "tokens": figure(8192, "count")}]
    with pytest.raises(ValueError, match="one entry with hbm_at_least 0 B"):
        check(tiny(defaults=tiny()["defaults"] | {"max_num_batched_tokens": limits}))


def test_what_a_profile_does_not_cover_is_named() -> None:
    launch = [{"time": figure(2, "us"), "gpus": ["h100-sxm"]}]
    profile = check(tiny(overheads=tiny()["overheads"] | {"launch": launch}))
    assert profile.launch_s(("h100-sxm", "hopper")) == pytest.approx(2e-6)
    with pytest.raises(ProfileError, match=r"overheads.launch: got b300-sxm"):
        profile.launch_s(("b300-sxm", "blackwell"))


@pytest.mark.parametrize(("config", "keys", "said"), [
    ("deepseek-v4-pro", {"compress_ratios": ...}, "compress_ratios: missing; accepted: a list of 4 and 128"),
    ("deepseek-v4-pro", {"compress_ratios": 4}, "compress_ratios: got 4; accepted: a list"),
    ("deepseek-v3", {"n_shared_experts": -1}, "n_shared_experts: got -1; accepted: a whole number of 0 or more"),
    ("llama-3.1-8b", {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 128}}}}},
     "got 4-bit float, group size 128; accepted: int of 4 or 8 bits"),
])
def test_configs_with_one_mistake(config: str, keys: dict[str, object], said: str) -> None:
    assert said in refusal(changed(config, **keys))


def test_mxfp4_groups_of_compressed_tensors() -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}}
    quantized = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert imported(changed("llama-3.1-8b", quantization_config=quantized)).weights.default == "mxfp4"
