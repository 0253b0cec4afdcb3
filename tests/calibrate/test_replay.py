"""Rebuilding measured runs: every step of the real scheduler, in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.calibrate.replay import (
    Setting,
    busy_steps,
    engine_config_of,
    held_up,
    kv_dtype_of,
    physics_of,
    step_samples,
    why_not_simulated,
    workload_of,
)
from kvsim.calibrate.runs import LoopSpec, MeasuredEngine, MeasuredRun, MeasuredStep
from kvsim.engine import reference
from kvsim.engine.types import FINISHED, EngineConfig
from kvsim.errors import TraceError
from kvsim.steptime.base import LinearStepTime
from kvsim.steptime.calibrated import AlikeExperts

from .conftest import runs_of

pytestmark = pytest.mark.golden


def test_every_step_has_the_composition_of_the_real_one(measured: list[MeasuredRun], setting: Setting) -> None:
    same = {run.label: (len(step_samples(run, setting)), busy_steps(run)) for run in measured}
    assert all(found == steps > 100 for found, steps in same.values()), same


def test_contexts_are_those_of_the_decoding_sequences(setting: Setting) -> None:
    run = next(r for r in runs_of("llama-8b") if r.label == "agent-c4")
    samples = step_samples(run, setting)
    assert all(s.context_tokens >= s.batch.decode_seqs for s in samples)
    assert all(s.context_tokens == 0 for s in samples if not s.batch.decode_seqs)


def test_cached_tokens_are_exact(measured: list[MeasuredRun], setting: Setting) -> None:
    for run in measured:
        if not run.complete:
            continue
        done = reference.run(workload_of(run.spec, run.engine.asynchronous), engine_config_of(run, setting),
                             LinearStepTime(0.01, 0.0, 0.0)).records
        turns = run.spec.turns
        expected = {r.session * turns + r.turn: r.cached_tokens for r in run.requests}
        assert (done.status == FINISHED).all()
        assert {row: int(done.cached_tokens[row]) for row in expected} == expected, run.label
        assert int(done.cached_tokens.sum()) == run.cached_tokens


def test_the_hybrid_has_the_groups_and_block_of_its_log(setting: Setting) -> None:
    config = engine_config_of(runs_of("kimi-linear-48b")[-1], setting)
    assert (config.state_groups, config.block_tokens, config.num_blocks) == (3, 1888, 1917)
    assert config.prefix_caching
    assert config.retention_interval_tokens is None


def test_asynchronous_steps_last_from_result_to_result(setting: Setting) -> None:
    engine = MeasuredEngine("llama-8b", {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64,
                                         "async_scheduling": True}, 64, 16, ())
    rows = [(10, 0, 10, 0.003), (0, 1, 11, 0.020), (0, 0, 0, 0.007), (10, 0, 10, 0.004), (0, 1, 11, 0.021),
            (0, 0, 0, 0.006)]
    run = MeasuredRun(engine, "a", LoopSpec(1, 2, 1, 10, 0, 2), 0.1, True, 2, 20, 0, 4, (),
                      tuple(MeasuredStep(*row) for row in rows))
    assert [s.duration_s for s in step_samples(run, setting)] == pytest.approx([0.023, 0.007, 0.025, 0.006])


def test_a_client_that_holds_the_engine_up_delays_all_that_comes_after() -> None:
    workload = workload_of(LoopSpec(2, 2, 2, first=100, growth=20, out=10), False)
    config = EngineConfig(64, 16, 8, 512, 4096)
    plain = reference.run(workload, config, LinearStepTime(0.01, 0.0, 0.0)).records
    late = held_up(plain, np.array([0.001, 0.02, 0.003, 0.04]))
    assert (late.arrival_s - plain.arrival_s).tolist() == pytest.approx([0.001, 0.024, 0.004, 0.064])
    assert (late.first_token_s - plain.first_token_s).tolist() == pytest.approx([0.004, 0.064, 0.004, 0.064])
    assert (late.finish_s - plain.finish_s).tolist() == pytest.approx([0.004, 0.064, 0.004, 0.064])


def test_clients_play_sessions_one_after_the_other() -> None:
    workload = workload_of(LoopSpec(2, 3, 2, first=100, growth=20, out=10, shared=30), False)
    requests = workload.requests
    assert requests.prompt_tokens.tolist() == [100, 130] * 3
    assert [requests.deps(i) for i in range(6)] == [[], [0], [], [2], [], [4]]
    assert requests.prompt(1) == [(0, 30), (1, 100)]
    assert workload.lane_sessions == ((0,), (1,))
    assert workload.recycle == (2,)


def test_connectors_and_several_gpus_are_not_simulated() -> None:
    engine = MeasuredEngine("llama-8b", {}, 10, 16, ())
    assert why_not_simulated(engine) == ""
    assert why_not_simulated(replace(engine, args={"kv_offloading_size": 40})) == ""
    assert "KV connector" in why_not_simulated(replace(engine, args={"kv_transfer_config": {"kv_role": "kv_both"}}))
    assert "several GPUs" in why_not_simulated(replace(engine, args={"tensor_parallel_size": 2}))


def test_an_unknown_kv_format_is_named() -> None:
    with pytest.raises(TraceError, match="fp7"):
        kv_dtype_of(MeasuredEngine("llama-8b", {"kv_cache_dtype": "fp7"}, 10, 16, ()))


def test_random_weights_make_routers_with_a_bias_choose_alike(setting: Setting) -> None:
    kimi = runs_of("kimi-linear-48b")[0].engine
    assert isinstance(physics_of(kimi, setting).work.experts, AlikeExperts)
    real = replace(kimi, args={k: v for k, v in kimi.args.items() if k != "load_format"})
    assert not isinstance(physics_of(real, setting).work.experts, AlikeExperts)
