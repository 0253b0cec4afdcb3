"""Measured step times that a scenario states: `engine.step_time` of kind table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.errors import ScenarioError
from tests.scenario.helpers import small

BASE_S, PER_TOKEN_S = 0.01, 1e-4
LIMITS = {"max_model_len": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 512}
LINEAR = {"kind": "linear", "base_s": BASE_S, "per_prefill_token_s": PER_TOKEN_S, "per_decode_seq_s": 0}
DECODE = {"sequences": [1, 8], "context_tokens": [0, 1000], "times_s": [[BASE_S] * 2] * 2}
PREFILL = {"tokens": [1, 512], "offset_tokens": [0, 1000],
           "times_s": [[BASE_S + n * PER_TOKEN_S] * 2 for n in (1, 512)]}


def with_step(step_time: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A small scenario with step times of its own."""
    return small(engine={**LIMITS, "step_time": step_time, **changes})


def table(**changes: Any) -> dict[str, Any]:
    """Measurements, with changed parts of either grid: ``decode__times_s=...``."""
    found: dict[str, Any] = {"kind": "table", "decode": dict(DECODE), "prefill": dict(PREFILL)}
    for name, value in changes.items():
        grid, _, field = name.partition("__")
        found[grid][field] = value
    return found


@pytest.mark.parametrize("fidelity", ["core", "reference"])
def test_measurements_of_a_linear_engine_give_its_run(fidelity: str) -> None:
    given = kvsim.simulate(with_step(LINEAR, fidelity=fidelity))
    measured = kvsim.simulate(with_step(table(), fidelity=fidelity))
    np.testing.assert_allclose(measured.records.finish_s, given.records.finish_s, rtol=1e-12)
    np.testing.assert_allclose(measured.records.first_token_s, given.records.first_token_s, rtol=1e-12)
    assert measured.cost.trust == given.cost.trust == "coefficients given"


def test_context_slows_decode_down_as_measured() -> None:
    """Two sequences of 200 to 209 tokens, twice as slow at 1,000 as at none."""
    slower = table(decode__times_s=[[0.01, 0.02]] * 2)
    flat, steep = (kvsim.simulate(with_step(t)) for t in (table(), slower))
    ratio = steep.latency.tpot_s.p50 / flat.latency.tpot_s.p50
    assert ratio == pytest.approx(1 + 0.2055, abs=0.01)


@pytest.mark.parametrize(("step_time", "field", "accepted"), [
    (table(decode__sequences=[1, 4]), "engine.step_time.decode.sequences", "1 to 8"),
    (table(decode__context_tokens=[0, 900]), "engine.step_time.decode.context_tokens", "1,000"),
    (table(prefill__tokens=[2, 512]), "engine.step_time.prefill.tokens", "1 to 512"),
    (table(prefill__offset_tokens=[5, 1000]), "engine.step_time.prefill.offset_tokens", "0 to 999"),
    (table(prefill__offset_tokens=[0, 0]), "engine.step_time.prefill.offset_tokens", "ascending"),
    (table(decode__times_s=[[0.01, 0.01]]), "engine.step_time.decode.times_s", "2 rows of 2"),
    (table(decode__times_s=[[0.01, 0.0]] * 2), "engine.step_time.decode.times_s.0.1", ""),
    ({"kind": "tabel"}, "engine.step_time.kind", "'linear', 'table'"),
    ({"base_s": 1}, "engine.step_time.kind", "a value for 'kind'"),
    ({**LINEAR, "per": 2}, "engine.step_time.per", "base_s, kind, per_decode_seq_s, per_prefill_token_s"),
    ({"kind": "table", "decode": DECODE}, "engine.step_time.prefill", ""),
])
def test_what_is_no_table_of_this_engine_is_refused(step_time: dict[str, Any], field: str, accepted: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        kvsim.simulate(with_step(step_time))
    problem = next(p for p in caught.value.problems if p.field.startswith(field))
    assert accepted in problem.accepted


def test_times_are_written_with_units_too_and_survive_a_round_trip() -> None:
    scenario = kvsim.load_scenario(with_step(table(decode__times_s=[["10 ms", "10 ms"]] * 2)))
    assert scenario == kvsim.load_scenario(with_step(table()))
    assert kvsim.load_scenario(scenario.to_dict()) == scenario
