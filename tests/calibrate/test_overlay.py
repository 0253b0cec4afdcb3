"""Calibrations as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kvsim
from kvsim.calibrate.overlay import Calibration, calibrate, load_calibration
from kvsim.calibrate.replay import Setting
from kvsim.errors import ProfileError, TraceError
from kvsim.profiles.calibration import CalibrationProfile, CalibrationUse
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.calibrated import calibrated, physics_digest, with_calibration

from .conftest import DATA

LLAMA = DATA / "gpu_runs.llama-8b.jsonl.gz"


@pytest.fixture(scope="module")
def done(setting: Setting) -> Calibration:
    return calibrate([LLAMA], ["fixed-c1", "fixed-c8", "fixed-c64"], setting)


@pytest.fixture
def stored(done: Calibration, tmp_path: Path) -> CalibrationProfile:
    path = tmp_path / "c.yaml"
    path.write_text(done.to_yaml())
    return load_calibration(path)


def use_of(profile: CalibrationProfile) -> CalibrationUse:
    return CalibrationUse(profile.gpu, profile.model, profile.kv_dtype, profile.engine_profile,
                          profile.async_scheduling, profile.physics_digest)


def test_the_file_holds_what_was_fitted_and_from_what(done: Calibration, stored: CalibrationProfile) -> None:
    assert stored.model == "llama-3.1-8b"
    assert stored.gpu == "h200-sxm"
    assert not stored.async_scheduling
    assert stored.steps.base == done.num_steps == 128 + 128 + 264
    assert "gpu_runs.llama-8b.jsonl.gz (fixed-c1, fixed-c8, fixed-c64)" in stored.sources["runs"].title
    kinds = {name: figure.kind for name, figure in stored.factors.items()}
    assert kinds == {name: "measured" if done.fit.informed(str(name)) else "assumed" for name in kinds}
    assert kinds["eager"] == "assumed"


def test_a_stored_calibration_gives_the_fitted_step_times(done: Calibration, stored: CalibrationProfile) -> None:
    batch, context = StepBatch(0, 0, 0, 0, 64), 70_000
    again = with_calibration(done.physics, stored, use_of(stored))
    fitted = calibrated(done.physics, done.factors)
    assert step_s(again, batch, context) == pytest.approx(step_s(fitted, batch, context), rel=1e-3)


@pytest.mark.parametrize(("field", "value"), [
    ("gpu", "b200-sxm"), ("model", "kimi-k3"), ("kv_dtype", "fp8"), ("engine_profile", "vllm-0.33"),
    ("async_scheduling", True), ("physics_digest", "0" * 16)])
def test_it_refuses_another_use(done: Calibration, stored: CalibrationProfile, field: str, value: object) -> None:
    other = replace(use_of(stored), **{field: value})
    with pytest.raises(ProfileError, match=field) as caught:
        with_calibration(done.physics, stored, other)
    assert len(caught.value.problems) == 1


def test_the_text_tells_what_moved(done: Calibration) -> None:
    text = done.text()
    assert "host_sequence" in text
    assert "us a sequence" in text
    assert "residuals, decode" in text


@pytest.mark.parametrize(("old", "new", "said"), [
    ("kvsim/calibration/1", "kvsim/calibration/9", "schema"),
    ("gemm_compute:", "gem_compute:", "gem_compute"),
    ("physics_digest:", "digest:", "physics_digest"),
])
def test_a_wrong_file_is_refused(done: Calibration, tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(done.to_yaml().replace(old, new, 1))
    with pytest.raises(ProfileError, match=said):
        load_calibration(path)


def test_several_engines_are_refused(setting: Setting) -> None:
    with pytest.raises(TraceError, match="one model"):
        calibrate([LLAMA, DATA / "gpu_runs.llama-8b-async.jsonl.gz"], ["fixed-c8"], setting)


def test_an_unknown_label_is_named(setting: Setting) -> None:
    with pytest.raises(TraceError, match="fixed-c9"):
        calibrate([LLAMA], ["fixed-c9"], setting)


def test_runs_that_need_a_tier_cannot_be_fitted(setting: Setting) -> None:
    with pytest.raises(TraceError, match="no step whose work is known"):
        calibrate([DATA / "gpu_runs.llama-8b-pool6000-dram40.jsonl.gz"], None, setting)


@pytest.mark.golden
@pytest.mark.parametrize(("name", "runs", "labels"), [
    ("h200-llama-8b", "llama-8b", ("fixed-c1", "fixed-c8", "fixed-c64")),
    ("h200-llama-8b-async", "llama-8b-async", ("fixed-c8", "fixed-c64"))])
def test_shipped_calibrations_are_what_a_fit_gives_today(name: str, runs: str, labels: tuple[str, ...]) -> None:
    """Fit again with 'kvsim calibrate' once an engine or GPU profile has changed; see docs/step_time.md."""
    shipped = load_calibration(name)
    again = calibrate([DATA / f"gpu_runs.{runs}.jsonl.gz"], labels)
    assert shipped.physics_digest == physics_digest(again.physics)
    for factor, figure in shipped.factors.items():
        assert figure.value == pytest.approx(getattr(again.factors, factor), rel=2e-3), factor


def test_a_scenario_names_a_shipped_calibration() -> None:
    data = {"name": "t", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
            "engine": {"profile": "vllm-0.24-h200", "calibration": "h200-llama-8b", "async_scheduling": False},
            "workload": {"fixed": {"num_requests": 2, "input_tokens": 100, "output_tokens": 5}, "concurrency": 2}}
    report = kvsim.simulate(data)
    assert report.cost.trust == "calibrated here"


def test_an_unknown_calibration_names_the_nearest() -> None:
    with pytest.raises(ProfileError, match="did you mean 'h200-llama-8b'"):
        load_calibration("h200-llama-8")
