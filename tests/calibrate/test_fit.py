"""The fit: it finds what made the steps, leaves alone what they do not show, and stays physical."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest

from kvsim.calibrate.fit import PRIOR_WIDTH, active_factors, fit, predicted_s, without_spikes
from kvsim.calibrate.replay import Setting, StepSample, physics_of
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.calibrated import Factors, calibrated, physics_digest
from kvsim.steptime.roofline import RooflineStepTime

from .conftest import runs_of


@pytest.fixture(scope="module")
def llama(setting: Setting) -> RooflineStepTime:
    return physics_of(runs_of("llama-8b")[0].engine, setting)


@pytest.fixture(scope="module")
def kimi(setting: Setting) -> RooflineStepTime:
    return physics_of(runs_of("kimi-linear-48b")[0].engine, setting)


def steps_of(model: RooflineStepTime, runs: int = 40) -> list[StepSample]:
    """Steps over a range of batches, contexts and chunks, as long as the model says; the same in every run."""
    labels = [str(run) for run in range(runs)]
    shapes = [(StepBatch(0, 0, 0, 0, seqs), seqs * context) for seqs in (1, 4, 16, 64, 256)
              for context in (500, 4_000, 30_000)]
    shapes += [(StepBatch(tokens, 1, tokens * offset + tokens * (tokens + 1) // 2, offset + tokens, seqs), seqs * 4_000)
               for tokens in (600, 2_000, 8_000) for offset in (0, 20_000) for seqs in (0, 32)]
    return [StepSample(label, batch, context, step_s(model, batch, context)) for label in labels
            for batch, context in shapes]


def test_it_finds_the_coefficients_that_made_the_steps(llama: RooflineStepTime) -> None:
    truth = Factors(host_sequence=2.0, gemm_compute=1.12, decode_attention=1.1, prefill_attention=1.15)
    found = fit(llama, steps_of(calibrated(llama, truth))).factors
    assert found.host_sequence == pytest.approx(2.0, rel=0.05)
    assert found.gemm_compute == pytest.approx(1.12, rel=0.03)
    assert found.decode_attention == pytest.approx(1.1, rel=0.03)
    assert found.prefill_attention == pytest.approx(1.15, rel=0.05)


def test_steps_that_physics_explains_change_nothing(llama: RooflineStepTime) -> None:
    assert asdict(fit(llama, steps_of(llama)).factors) == pytest.approx(asdict(Factors()), abs=1e-3)


def test_terms_that_the_steps_do_not_show_stay(llama: RooflineStepTime) -> None:
    slow = calibrated(llama, Factors(host_step=2.0))
    done = fit(llama, [s for s in steps_of(slow) if not s.batch.prefill_tokens])
    assert done.factors.prefill_attention == pytest.approx(1.0, abs=1e-6)
    assert done.spread["prefill_attention"] == pytest.approx(PRIOR_WIDTH["prefill_attention"])
    assert not done.informed("prefill_attention")
    assert done.factors.host_step == pytest.approx(2.0, rel=0.2)


def test_many_runs_inform_what_they_show(llama: RooflineStepTime) -> None:
    few, many = fit(llama, steps_of(llama, 1)), fit(llama, steps_of(llama, 40))
    assert many.informed("host_sequence")
    assert many.informed("gemm_compute")
    assert not few.informed("gemm_compute")
    assert all(many.spread[name] <= few.spread[name] for name in few.spread)


def test_a_slow_host_shows_in_eager_steps(kimi: RooflineStepTime) -> None:
    found = fit(kimi, steps_of(calibrated(kimi, Factors(eager=3.0)))).factors
    assert found.eager == pytest.approx(3.0, rel=0.1)


def test_one_spike_does_not_move_the_fit(llama: RooflineStepTime) -> None:
    samples = steps_of(llama)
    at = max(range(len(samples)), key=lambda i: samples[i].batch.prefill_tokens)
    spiked = [replace(s, duration_s=10 * s.duration_s) if i == at else s for i, s in enumerate(samples)]
    assert len(without_spikes(spiked)) == len(samples) - 1
    assert fit(llama, spiked).factors.gemm_compute == pytest.approx(1.0, abs=0.02)


def test_only_terms_of_the_model_are_fitted(llama: RooflineStepTime, kimi: RooflineStepTime) -> None:
    assert set(active_factors(kimi)) - set(active_factors(llama)) == {"experts", "state_decode", "state_prefill"}


def test_nothing_gets_faster_than_the_floor(llama: RooflineStepTime, kimi: RooflineStepTime) -> None:
    for model in (llama, kimi):
        fastest = calibrated(model, Factors(*[1e-3] * len(fields(Factors))))
        for sample in steps_of(model):
            assert step_s(fastest, sample.batch, sample.context_tokens) >= model.floor_s(
                sample.batch, sample.context_tokens) * (1 - 1e-9)


def test_slower_terms_make_every_step_slower_or_equal(kimi: RooflineStepTime) -> None:
    samples = steps_of(kimi)
    for name in active_factors(kimi):
        slower = predicted_s(calibrated(kimi, replace(Factors(), **{name: 1.5})), samples)
        assert (slower >= predicted_s(kimi, samples) * (1 - 1e-12)).all()
        assert (slower > predicted_s(kimi, samples) * (1 + 1e-6)).any(), name


def test_the_digest_follows_the_coefficients(llama: RooflineStepTime) -> None:
    assert physics_digest(llama) == physics_digest(calibrated(llama, Factors()))
    assert physics_digest(llama) != physics_digest(calibrated(llama, Factors(launches=1.01)))
