"""What the microbenchmark wrote, in GPU profiles: imported, shipped, and used where nothing better is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import ProfileError
from kvsim.profiles.engine_profile import Component, resolve_base
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.measurements import measured_profile, read_measurements
from kvsim.profiles.store import default_store, load_text
from kvsim.steptime.rates import rate_of

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "measured" / "h200-sxm-2026-11-30.yaml"
STORE = default_store()


def imported(gpu: str = "h200-sxm") -> GpuProfile:
    """The profile of `gpu` with the measurements of the H200."""
    measured = read_measurements(MEASURED).model_copy(update={"gpu": gpu})
    profile = load_text(measured_profile(measured, STORE), "imported")
    assert isinstance(profile, GpuProfile)
    return profile


def test_the_shipped_h200_carries_what_was_measured() -> None:
    shipped, again = STORE.get("gpu", "h200"), imported()
    assert shipped.reached is not None
    assert again.reached is not None
    for name in ("hbm_read", "hbm_copy", "weight_read", "gemm_sustained", "kernel_in_graph", "eager_launch"):
        mine, theirs = getattr(shipped.reached, name), getattr(again.reached, name)
        assert (mine.value, mine.unit, mine.kind) == (theirs.value, theirs.unit, "measured")
    assert shipped.host_link.to_gpu == again.host_link.to_gpu
    assert shipped.host_link.from_gpu == again.host_link.from_gpu


def test_an_import_keeps_everything_else_and_only_the_sources_in_use() -> None:
    before, after = STORE.get("gpu", "l40s"), imported("l40s")
    assert after.name == before.name
    assert after.flops == before.flops
    assert after.hbm_usable == before.hbm_usable
    assert "microbench" in after.sources


@pytest.mark.parametrize(("component", "share"), [("gemm", 3807e9), ("elementwise", 4269e9)])
def test_measured_rates_serve_where_the_engine_has_none_for_the_gpu(component: Component, share: float) -> None:
    engine = resolve_base(STORE.get("engine", "vllm-0.24-h200"), lambda name: STORE.get("engine", name))
    fmt = "bf16" if component == "gemm" else ""
    plain, measured = STORE.get("gpu", "mi300x"), imported("mi300x")
    speed = engine.speed(component, fmt, (plain.name, plain.architecture))
    assert plain.name not in speed.gpus
    assert rate_of(engine, plain, component, fmt).byte_s == pytest.approx(
        1 / (plain.hbm_bandwidth.base * speed.bandwidth.base))
    assert rate_of(engine, measured, component, fmt).byte_s == pytest.approx(1 / share)


def test_kernels_measured_on_the_gpu_go_first() -> None:
    engine = resolve_base(STORE.get("engine", "vllm-0.24-h200"), lambda name: STORE.get("engine", name))
    assert rate_of(engine, imported(), "gemm", "bf16").byte_s == pytest.approx(1 / (4.8e12 * 0.7954))


def test_a_scenario_runs_on_the_written_file(tmp_path: Path) -> None:
    file = tmp_path / "h200-sxm.yaml"
    done = CliRunner().invoke(cli, ["profiles", "import-measurements", str(MEASURED), "-o", str(file)])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, ["profiles", "show", str(file), "--kind", "gpu"])
    assert "reached.gemm_sustained" in shown.output
    text = ("{name: t, model: llama-3.1-8b, hardware: {gpu: " + str(file) + ", num_gpus: 1}, "
            "workload: {fixed: {num_requests: 2, input_tokens: 100, output_tokens: 5}, concurrency: 2}}")
    scenario = tmp_path / "t.yaml"
    scenario.write_text(text)
    ran = CliRunner().invoke(cli, ["run", str(scenario)])
    assert ran.exit_code == 0, ran.output


def test_a_broken_file_is_told_by_field(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(MEASURED.read_text().replace("unit: TFLOPS", "unit: GB/s", 1))
    with pytest.raises(ProfileError, match="gemm_sustained"):
        read_measurements(file)
    with pytest.raises(ProfileError, match="cannot read"):
        read_measurements(tmp_path / "none.yaml")
