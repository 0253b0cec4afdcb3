"""Where a run's time goes, summed over all its steps, and the floors that none of them may beat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.engine import core
from kvsim.engine.step_log import NO_STEPS, StepLog, StepSums
from kvsim.engine.types import EngineConfig
from kvsim.report.steps import floor_problems, step_split
from kvsim.steptime.base import LinearStepTime, StepBatch, step_s
from kvsim.steptime.roofline import RooflineStepTime
from kvsim.workload.fixed import Clients, build_fixed
from kvsim.workload.lengths import LogNormal
from tests.steptime.support import build

CONFIG = EngineConfig(20_000, 16, 64, 8192, 131_072)


def model() -> RooflineStepTime:
    return build("llama-3.1-8b", "h200", "vllm-0.24-h200")


def logged(step_time: RooflineStepTime | LinearStepTime) -> StepSums:
    workload = build_fixed(200, LogNormal(4000.0, 1.0, 1.0, 1e5), LogNormal(300.0, 0.8, 1.0, 4e3), Clients(16))
    return core.run(workload, CONFIG, step_time).totals.step_sums


class EveryStep:
    """A model that keeps the true seconds of every step by resource."""

    def __init__(self, inner: RooflineStepTime) -> None:
        self.inner, self.seconds = inner, dict[str, float]()

    def play(self, steps: list[tuple[StepBatch, int]]) -> dict[str, float]:
        for batch, context in steps:
            for name, part in self.inner.shares(batch, context).items():
                self.seconds[name] = self.seconds.get(name, 0.0) + part
        total = sum(self.seconds.values())
        return {name: part / total for name, part in self.seconds.items()}


def test_bins_attribute_as_steps_one_by_one_do() -> None:
    physics = model()
    batches = [StepBatch(t, 1, t * 3000 + t * (t + 1) // 2, t + 3000, n) for t in range(200, 8000, 67) for n in (8, 50)]
    steps = [(b, 5000 * b.decode_seqs) for b in batches]
    steps += [(StepBatch(0, 0, 0, 0, n), n * c) for n in range(1, 64) for c in (500, 4000, 9000)]
    log, now_s = StepLog(), 0.0
    for batch, context in steps:
        seconds = step_s(physics, batch, context)
        now_s += seconds
        log.note((now_s, seconds, seconds, 1, batch.decode_seqs, *batch, context))
    split = step_split(log.sums(), physics, 0.0)
    added = split.prefill_frac
    for name, share in EveryStep(physics).play(steps).items():
        assert added * split.prefill[name] + (1 - added) * split.decode[name] == pytest.approx(share, abs=0.01), name


def test_parts_sum_to_one_and_prefill_adds_what_it_adds() -> None:
    split = step_split(logged(model()), model(), 0.25)
    assert sum(split.prefill.values()) == pytest.approx(1.0)
    assert sum(split.decode.values()) == pytest.approx(1.0)
    assert 0.2 < split.prefill_frac < 0.9
    assert split.recomputed_frac == 0.25
    given = LinearStepTime(0.01, 1e-4, 0.0)
    sums = logged(given)
    prefill_s = 1e-4 * sums.sums[:, 2].sum()
    steps = step_split(sums, given, 0.0)
    alone_s = 0.01 * sums.sums[(sums.sums[:, 2] > 0) & (sums.sums[:, 6] == 0), 0].sum()
    assert steps.prefill_frac == pytest.approx((prefill_s + alone_s) / sums.sums[:, 1].sum(), rel=0.01)


def test_nothing_done_binds_nothing() -> None:
    split = step_split(NO_STEPS, model(), 0.0)
    assert (split.prefill_frac, split.prefill, split.decode) == (0.0, {}, {})


def test_steps_that_beat_physics_are_found() -> None:
    physics, sums = model(), logged(model())
    assert floor_problems(sums, physics, 8192) == []
    assert floor_problems(sums, LinearStepTime(1e-9, 0.0, 0.0), 8192) == []
    faster = replace(sums, sums=sums.sums.copy())
    faster.sums[3, 1] *= 0.5
    assert "decode_seqs" in floor_problems(faster, physics, 8192)[0].given
    rates = physics.rates
    swift = replace(rates, dense=tuple((replace(r, byte_s=r.byte_s / 9, flop_s=r.flop_s / 9), *rest)
                                       for r, *rest in rates.dense))
    unphysical = RooflineStepTime(physics.work, swift, physics.scans, physics.links, physics.host, 1.0)
    assert len(floor_problems(logged(unphysical), unphysical, 8192)) > 3
