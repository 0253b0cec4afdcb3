"""Fields that contradict each other, units that are none, files of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError, ProfileError, ScenarioError
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.units import parse, to_base
from tests.scenario.helpers import small
from tests.scenario.test_scenario import problems

DRAFTED: dict[str, Any] = {"draft": "dspark-fp8-k7", "kv_dtype": "fp8"}
OWN = {"kind": "own", "source": "a guess"}
FIXED = {"fixed": {"num_requests": 2, "input_tokens": 10, "output_tokens": 2}}


@pytest.mark.parametrize(("changes", "said"), [
    ({"prices": {"owned": {}, "usd_per_gpu_hour": {"h200-sxm": 2}}}, "owned and usd_per_gpu_hour both set"),
    ({"workload": {**FIXED, "preset": "claude-code", "concurrency": 1}}, "preset and fixed; accepted: exactly one of"),
    ({"engine": {**DRAFTED, "draft_acceptance": {"kind": "golden", "length": 3}}}, "length with golden"),
    ({"engine": {**DRAFTED, "draft_acceptance": {"kind": "golden", "source": "me"}}}, "source with golden"),
    ({"engine": {**DRAFTED, "draft_acceptance": OWN}}, "own with source; accepted: source, and one of"),
    ({"engine": {**DRAFTED, "draft_acceptance": {"kind": "own", "length": 3}}}, "own with length; accepted: source"),
    ({"engine": {**DRAFTED, "draft_acceptance": {"kind": "own"}}}, "own with nothing; accepted: source"),
    ({"engine": {**DRAFTED, "draft_acceptance": {**OWN, "per_position": [0.5, 0.6]}}}, "per_position that rises"),
])
def test_fields_that_exclude_each_other(changes: dict[str, Any], said: str) -> None:
    found = problems(small(**changes))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(("changes", "said"), [
    ({"workload": {**FIXED, "concurrency": 2, "rate_per_s": 1}}, "workload.rate_per_s: got it in a workload that is "),
    ({"engine": {"eviction": {"kind": "ttl", "ttl_s": 0}}}, "eviction.ttl_s"),
    ({"engine": {"admission": {"max_live_sessions": 0}}}, "admission.max_live_sessions"),
    ({"engine": {"admission": {"max_context_frac": 0}}}, "admission.max_context_frac"),
    ({"engine": {"admission": {"max_context_frac": 0.5, "expected_tokens": -1}}}, "admission.expected_tokens"),
    ({"engine": {"draft": "dspark-bf16-k7", "draft_acceptance": {"kind": "golden"}}}, "numbers of your own"),
    ({"engine": {"draft": "dspark-bf16-k2", "draft_acceptance": {**OWN, "length": 3.5}}}, "a length up to 3"),
    ({"engine": {"draft": "dspark-bf16-k2", "draft_acceptance": {**OWN, "rates": [0.5]}}}, "1 numbers with 2 draft"),
    ({"engine": {"draft_acceptance": {**OWN, "length": 2}}}, "engine.draft beside it"),
    ({"engine": {"draft": "dspark-bf16-k2", "draft_acceptance": {"kind": "golden", "preset": "kimi-k3-dspak"}}},
     "did you mean 'kimi-k3-dspark'?"),
])
def test_settings_that_no_engine_can_have(changes: dict[str, Any], said: str) -> None:
    """Refused when read or when resolved, and before a step is simulated."""
    with pytest.raises(KvsimError) as caught:
        simulate(small(**changes))
    assert caught.value.exit_code == 2
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "kind", "hint"), [
    ("schema: kvsim/sweep/1\nname: s\n", "is not a scenario", "'kvsim sweep' takes such files"),
    ("schema: kvsim/gpu/1\nname: g\n", "is not a scenario", "kvsim profiles check"),
    ("model_type: llama\n", "is not a scenario", "'kvsim profiles import' makes a model of it"),
])
def test_files_of_another_kind(tmp_path: Path, text: str, kind: str, hint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert f"{path} {kind}" in str(caught.value)
    assert hint in str(caught.value)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.mkdir()
    with pytest.raises(ScenarioError, match=str(path)):
        load_scenario(path)


@pytest.mark.parametrize(("given", "dimension", "said"), [
    ("5 GiBs", "B", "unknown unit 'GiBs'; accepted: .*GiB"), ("5 GB/s", "B", "measures B/s"),
    (5, "B", "missing unit; accepted: a number with one of"), ("5", "B", "missing unit"),
    ("many GB", "B", "is not a number with a unit"), (float("inf"), "s", "missing unit"),
])
def test_numbers_without_a_unit_that_fits(given: str | float, dimension: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(given, dimension)


def test_numbers_with_a_unit() -> None:
    assert parse("1,889 GB", "B") == 1_889e9
    assert parse("5", "s", bare="min") == 300
    assert parse(2, "s", bare="ms") == 0.002
    with pytest.raises(ValueError, match="nan is not a finite number"):
        to_base(float("nan"), "s", "s")


def test_live_sessions_take_the_place_of_a_rate() -> None:
    asked = Scenario.from_dict(small(workload={**FIXED, "rate_per_s": 1}))
    assert asked.at(3, 0).workload == Scenario.from_dict(small(workload={**FIXED, "concurrency": 3})).workload


def test_a_draft_that_an_engine_refuses_with_pipeline_stages() -> None:
    """vLLM 0.33 refuses some drafts with pipeline parallelism; the engine profile says which and since when."""
    profile = {"engine": {"draft": "dspark-bf16-k2", "profile": "vllm-day0",
                          "draft_acceptance": {**OWN, "length": 2}},
               "hardware": {"gpu": "h200", "num_gpus": 2}, "layout": {"pp": 2}}
    with pytest.raises((ScenarioError, ProfileError), match=r"dspark with layout.pp 2, which vllm .* refuses"):
        simulate(Scenario.from_dict(small(**profile)))
