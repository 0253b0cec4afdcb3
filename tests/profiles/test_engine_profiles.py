"""Engine profiles: every shipped file holds together, and figures are looked up exact GPU, architecture, anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.errors import ProfileError
from kvsim.profiles.engine_profile import Component, EngineProfile, resolve_base
from kvsim.profiles.store import default_store, load_profile

STORE = default_store()
ENGINES = STORE.names("engine")
WEIGHT_FORMATS = ("bf16", "fp16", "fp8", "int8", "fp4", "mxfp4", "nvfp4", "int4", "fp32")
KV_FORMATS = ("bf16", "fp8", "fp8_ds_mla")


def raw(name: str) -> EngineProfile:
    return STORE.get("engine", name)


def engine(name: str) -> EngineProfile:
    return resolve_base(raw(name), raw)


def figure(value: float, unit: str = "frac", **more: Any) -> dict[str, Any]:
    return {"value": value, "unit": unit, "kind": "measured", "source": "s"} | more


def assumed(value: float, unit: str = "frac") -> dict[str, Any]:
    return figure(value, unit, kind="assumed", why="a test", range=[value, value])


def speed(share: float, **where: Any) -> dict[str, Any]:
    number = figure(share) if where else assumed(share)
    return {"lane": "bf16", "flops": number, "bandwidth": number, **where}


def tiny(**changes: Any) -> dict[str, Any]:
    """A complete engine profile as plain data."""
    ideal: dict[str, Any] = yaml.safe_load(STORE.path_of("engine", "ideal").read_text(encoding="utf-8"))
    source = {"title": "a test", "accessed": "2026-11-30"}
    speeds = [speed(0.4), speed(0.6, architectures=["blackwell"]), speed(0.8, gpus=["b300-sxm"])]
    kernels = [{"component": "gemm", "formats": ["bf16"], "kernel": "test", "speeds": speeds}]
    return ideal | {"name": "tiny", "kernels": kernels, "sources": ideal["sources"] | {"s": source}} | changes


def check(data: dict[str, Any]) -> EngineProfile:
    return EngineProfile.model_validate(data)


@pytest.mark.parametrize("name", ENGINES)
def test_every_shipped_profile_loads_and_resolves(name: str) -> None:
    found = engine(name)
    assert found.name == name
    assert found.base == ""
    assert found.costs.launch
    assert found.reserve.activation_copies.base >= 1
    assert found.links.latency.base >= 0


@pytest.mark.parametrize("gpu", STORE.names("gpu"))
@pytest.mark.parametrize("name", ENGINES)
def test_every_kernel_is_found_on_every_gpu(name: str, gpu: str) -> None:
    profile, place = engine(name), (gpu, STORE.get("gpu", gpu).architecture)
    matrices: tuple[Component, ...] = ("gemm", "moe")
    attention: tuple[Component, ...] = ("prefill_attention", "gqa_decode", "mla_decode")
    found = [profile.speed(c, f, place) for c in matrices for f in WEIGHT_FORMATS]
    found += [profile.speed(c, f, place, h) for c in attention for f in KV_FORMATS for h in (1, 16, 17, 128, 999)]
    found += [profile.speed("state_decode", "", place), profile.speed("elementwise", "", place)]
    assert all(0 < s.flops.base <= 1 and 0 < s.bandwidth.base <= 1 for s in found)
    assert profile.scan(place).serial.base >= 0
    assert profile.launch_s(place) >= 0


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x", "tpu7x", "gaudi3"])
def test_a_gpu_without_measured_rows_gets_an_assumed_figure_with_a_band(gpu: str) -> None:
    place = (gpu, STORE.get("gpu", gpu).architecture)
    needed: list[tuple[Component, str]] = [("gemm", "bf16"), ("moe", "mxfp4"), ("mla_decode", "fp8")]
    for component, fmt in needed:
        found = engine("vllm-0.33").speed(component, fmt, place)
        for share in (found.flops, found.bandwidth):
            assert share.kind == "assumed"
            assert share.base_range[1] > 1.2 * share.base_range[0]


@pytest.mark.parametrize(("name", "gpu", "lane"), [
    ("vllm-day0", "b300-sxm", "bf16"), ("vllm-day0", "gb200", "bf16"), ("vllm-day0", "h100-sxm", "bf16"),
    ("sglang-2026-08", "b300-sxm", "fp8"), ("sglang-2026-08", "h200-sxm", "bf16"), ("vllm-0.33", "b300-sxm", "fp8"),
    ("ideal", "b300-sxm", "fp4"),
])
def test_storage_never_implies_compute(name: str, gpu: str, lane: str) -> None:
    assert engine(name).speed("moe", "mxfp4", (gpu, STORE.get("gpu", gpu).architecture)).lane == lane


def test_measured_shares_are_those_of_the_kernel_tables() -> None:
    """Published medians: 1712.61 of 2250 TFLOP/s, 3817.83 of 4800 GB/s, 5962.8 GB/s for 12 heads of fp8 latents."""
    place = ("b300-sxm", "blackwell")
    assert engine("vllm-0.33").speed("gemm", "bf16", place).flops.base == pytest.approx(1712.61 / 2250, abs=1e-4)
    hopper = engine("vllm-0.33").speed("gemm", "bf16", ("h200-sxm", "hopper"))
    assert hopper.bandwidth.base == pytest.approx(3817.83 / 4800, abs=1e-4)
    latents = engine("sglang-2026-08").speed("mla_decode", "fp8", place, 12).bandwidth.base
    assert latents * STORE.get("gpu", "b300").hbm_bandwidth.base == pytest.approx(5962.8e9, rel=1e-3)


def test_exact_gpu_wins_over_architecture_over_anywhere() -> None:
    profile = check(tiny())
    shares = [profile.speed("gemm", "bf16", place).flops.base
              for place in (("b300-sxm", "blackwell"), ("b200-sxm", "blackwell"), ("mi300x", "cdna3"))]
    assert shares == [0.8, 0.6, 0.4]


def test_a_narrow_entry_for_few_heads_wins_over_a_wide_one() -> None:
    families = [{"component": "mla_decode", "kernel": k, "speeds": [speed(share)], **more}
                for k, share, more in (("wide", 0.5, {}), ("narrow", 0.7, {"max_heads": 16}))]
    profile = check(tiny(kernels=families))
    assert [profile.speed("mla_decode", "fp8", ("x", "hopper"), h).flops.base for h in (16, 17)] == [0.7, 0.5]


def test_token_budget_follows_the_size_of_the_hbm() -> None:
    budget = raw("vllm-0.33").defaults.batched_tokens
    assert [budget(g * 1e9) for g in (40, 80, 192, 288)] == [2048, 8192, 16384, 16384]


def test_defaults_that_scripts_rely_on() -> None:
    new, old = raw("vllm-0.33").defaults, raw("vllm-0.24-h200").defaults
    assert new.gpu_memory_utilization.base == 0.92
    assert new.retention_interval is not None
    assert new.retention_interval.base == 0
    assert old.retention_interval is None
    assert new.log_formula == old.log_formula == "product"


@pytest.mark.parametrize(("changes", "said"), [
    ({"kernels": [{"component": "gemm", "kernel": "k", "speeds": [{"lane": "bf16", "flops": figure(0.5),
                                                                  "bandwidth": figure(0.5)}]}]}, "must be assumed"),
    ({"kernels": [{"component": "gemm", "kernel": "k", "speeds": [speed(1.5, gpus=["x"])]}]}, "0 to 1"),
    ({"kernels": [{"component": "gemm", "kernel": "k", "speeds": [speed(0.0, gpus=["x"])]}]}, "above 0"),
    ({"kernels": [{"component": "gqa_decode", "kernel": "k",
                   "speeds": [speed(0.5, gpus=["x"], overlap=figure(0.5))]}]}, "gemm and moe only"),
    ({"kernels": [{"component": "gemm", "kernel": "k", "max_heads": 4, "speeds": [speed(0.5)]}]}, "mla_decode only"),
    ({"scans": []}, "lacks scans"),
    ({"support": [{"feature": "f", "supported": True, "version": "1", "date": "2026-01", "source": "none"}]}, "none"),
])
def test_a_wrong_profile_says_what_is_wrong(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(tiny(**changes))


def test_all_reduce_points_ascend() -> None:
    points = [{"message": figure(size, "KiB"), "time": figure(5, "us")} for size in (128, 16)]
    table = {"gpus": ["x"], "ranks": 8, "points": points}
    collectives = tiny()["collectives"] | {"all_reduce": [table]}
    with pytest.raises(ValueError, match="ascending"):
        check(tiny(collectives=collectives))


def test_own_entries_win_over_the_base_and_the_rest_is_inherited() -> None:
    base = check(tiny())
    own = [{"component": "gemm", "formats": ["bf16"], "kernel": "own", "speeds": [speed(0.9, gpus=["b300-sxm"])]}]
    child = check(tiny(name="child", base="tiny", kernels=own, scans=[], overheads=None, collectives=None, memory=None))
    joined = resolve_base(child, lambda _: base)
    assert joined.speed("gemm", "bf16", ("b300-sxm", "blackwell")).flops.base == 0.9
    assert joined.speed("gemm", "bf16", ("b200-sxm", "blackwell")).flops.base == 0.6
    assert joined.costs == base.costs
    with pytest.raises(ProfileError, match="waits for its base"):
        assert child.costs


def test_bases_form_no_ring_and_share_no_source_key_with_two_meanings() -> None:
    child = check(tiny(name="a", base="b"))
    with pytest.raises(ProfileError, match="its own base"):
        resolve_base(child, lambda name: check(tiny(name=name, base="a")))
    other = tiny(name="b")
    other["sources"] = other["sources"] | {"s": {"title": "another", "accessed": "2026-11-30"}}
    with pytest.raises(ProfileError, match="disagree on sources"):
        resolve_base(child, lambda _: check(other))


def test_an_unknown_format_names_what_is_accepted() -> None:
    with pytest.raises(ProfileError, match=r"bf17.*\n.*accepted: bf16"):
        check(tiny()).speed("gemm", "bf17", ("b300-sxm", "blackwell"))


def test_a_file_with_an_unknown_component_is_refused_with_the_nearest(tmp_path: Path) -> None:
    data = tiny(kernels=[{"component": "gem", "kernel": "k", "speeds": [speed(0.5)]}])
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ProfileError, match="did you mean 'gemm'"):
        load_profile(path)
