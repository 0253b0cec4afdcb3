"""Scenarios as written: units, round trips, digests, overrides, and every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ProfileError, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.scenario import Scenario, apply_override, find_scenario, load_scenario, naming, shipped_scenarios
from tests.scenario.helpers import TEXT, small


def problems(data: dict[str, Any]) -> list[str]:
    """What is wrong with plain data, a line each."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(data)
    return [str(p) for p in caught.value.problems]


def test_units_become_base_units() -> None:
    tiers = [{"kind": "dram", "capacity": "1889 GB"}]
    scenario = Scenario.from_dict(small(
        tiers=tiers, engine={"kv_bytes_per_gpu": "42.23 GiB"},
        workload={"preset": "agentx-v1", "concurrency": 8, "duration_s": "1 h", "warmup_s": "10 min"},
        slo={"ttft_s": {"p95": "500 ms"}}))
    assert scenario.tiers[0].capacity == 1.889e12
    assert scenario.engine.kv_bytes_per_gpu == 42.23 * 2**30
    assert (scenario.workload.duration_s, scenario.workload.warmup_s) == (3600, 600)
    assert scenario.slo.ttft_s == {"p95": 0.5}


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_shipped_scenarios_round_trip(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    again = Scenario.from_dict(yaml.safe_load(yaml.safe_dump(scenario.to_dict())))
    assert again == scenario
    assert again.digest == scenario.digest
    assert scenario.description


def test_equal_wherever_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    read, built = load_scenario(path), Scenario.from_dict(small())
    assert read == built
    assert (read.origin, built.origin) == (str(path), "scenario")
    assert load_scenario(path, ["seed=3"]).origin == f"{path} --set seed=3"
    assert built != Scenario.from_dict(small(seed=1))
    assert built != "small"


def test_digest_ignores_names_and_nothing_else() -> None:
    plain = Scenario.from_dict(small())
    assert plain.digest == Scenario.from_dict(small(name="other", description="words")).digest
    changes: list[dict[str, Any]] = [
        {"seed": 1}, {"model": "kimi-k3"}, {"engine": {"kv_dtype": "fp8"}}, {"slo": {"ttft_s": {"p95": 1}}},
        {"hardware": {"gpu": "h200", "num_gpus": 2}}, {"prices": {"compute": "owned-2026-07"}}, {"replicas": 2},
    ]
    digests = {Scenario.from_dict(small(**c)).digest for c in changes}
    assert len(digests | {plain.digest}) == len(changes) + 1


def test_at_changes_sessions_and_seed_only() -> None:
    study = load_scenario("k3-b300-study")
    case = study.at(16, 2)
    assert (case.workload.concurrency, case.seed, case.study) == (16, 2, None)
    assert case.at(8, 0) == study.at(8, 0)
    assert case.origin == study.origin


def test_values_do_not_change_after_checking() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Scenario.from_dict(small()).seed = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_every_problem_at_once() -> None:
    engine = {"kv_dtyp": "fp8", "max_num_seqs": 0}
    found = problems(small(engine=engine, hardware={"gpu": "h200"}, router="round-robin"))
    assert found == [
        "scenario: hardware.num_gpus: missing; accepted: a value for 'num_gpus'",
        "scenario: engine.max_num_seqs: got 0; accepted: greater than 0",
        next(line for line in found if "kv_dtyp:" in line),
        next(line for line in found if "router:" in line),
    ]
    assert found[2].endswith("(did you mean 'kv_dtype'?)")
    assert found[3].endswith("(did you mean 'round_robin'?)")


@pytest.mark.parametrize(("changes", "said"), [
    ({"engine": "fast"}, "engine: got 'fast'; accepted: a mapping of keys to values"),
    ({"tiers": {"kind": "dram"}}, "tiers: got {'kind': 'dram'}; accepted: a list"),
    ({"tiers": [{"kind": "dram", "capacity": "2 TB/s"}]}, "got '2 TB/s', unit 'TB/s', which measures B/s; accepted: B"),
    ({"seed": "three"}, "seed: got 'three'; accepted: a whole number"),
    ({"seed": 1.5}, "seed: got 1.5; accepted: a whole number"),
    ({"name": 3}, "name: got 3; accepted: text"),
    ({"engine": {"prefix_caching": "maybe"}}, "prefix_caching: got 'maybe'; accepted: true or false"),
    ({"slo": {"ttft_s": {"p96": 1}}}, "slo.ttft_s.p96: got 'p96'; accepted: 'mean', 'p50', 'p90', 'p95' or 'p99'"),
    ({"engine": {"gpu_memory_utilization": float("inf")}}, "got inf; accepted: a finite number"),
    ({"schema": "kvsim/scenario/2"}, "schema: got 'kvsim/scenario/2'; accepted: 'kvsim/scenario/1'"),
    ({"study": {"concurrency": []}}, "study.concurrency"),
    ({"workload": {"preset": "agentx-v1"}}, "got a preset without duration_s"),
    ({"workload": {}}, "workload: got none of them; accepted: exactly one of preset, "),
])
def test_one_problem_says_what_is_accepted(changes: dict[str, Any], said: str) -> None:
    found = problems(small(**changes))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(("text", "expected"), [
    ("seed=3", {"seed": 3}), ("engine.kv_dtype=fp8", {"engine": {"kv_dtype": "fp8"}}),
    ("tiers=[]", {"tiers": []}), ("a.b.c=1e9", {"a": {"b": {"c": 1e9}}}), ("x=", {"x": None}),
    ("name=a=b", {"name": "a=b"}), ("tiers.0={kind: dram}", {"tiers": [{"kind": "dram"}]}),
    ("tiers.0.capacity=2TB", {"tiers": [{"capacity": "2TB"}]}),
])
def test_overrides(text: str, expected: dict[str, Any]) -> None:
    assert apply_override({}, text) == expected


def test_overrides_reach_into_lists_and_leave_their_input_alone() -> None:
    data = {"tiers": [{"kind": "dram", "capacity": "1 GB"}]}
    assert apply_override(data, "tiers.0.capacity=2TB")["tiers"] == [{"kind": "dram", "capacity": "2TB"}]
    assert len(apply_override(data, "tiers.1.kind=nvme")["tiers"]) == 2
    assert data == {"tiers": [{"kind": "dram", "capacity": "1 GB"}]}
    for text in ("tiers.2.kind=nvme", "tiers.x.kind=nvme", "tiers.-1.kind=nvme"):
        with pytest.raises(ScenarioError, match="a position from 0 to 1"):
            apply_override(data, text)


@pytest.mark.parametrize("text", ["seed", "=3", "name=[1", "name=a: b: c"])
def test_overrides_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ScenarioError, match="--set"):
        apply_override({}, text)


@given(st.recursive(st.integers() | st.booleans() | st.text("abc", min_size=1),
                    lambda inner: st.lists(inner, max_size=3)))
def test_an_override_sets_what_it_says(value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    assert apply_override({"a": {"b": 1, "c": 2}}, f"a.b={text}") == {"a": {"b": value, "c": 2}}


def test_finding_scenarios(tmp_path: Path) -> None:
    assert find_scenario("k3-b300-study").name == "k3-b300-study.yaml"
    for missing in ("k3-b300-stud", str(tmp_path), str(tmp_path / "none.yaml")):
        with pytest.raises(ScenarioError, match="no such scenario"):
            find_scenario(missing)
    with pytest.raises(ScenarioError, match="did you mean 'k3-b300-study'"):
        find_scenario("k3-b300-studi")


def test_names_of_profiles_are_reported_as_the_field_that_names_them() -> None:
    scenario = Scenario.from_dict(small())
    with pytest.raises(ProfileError) as caught, naming(scenario, "hardware.gpu"):
        default_store().get("gpu", "h2000")
    assert [(p.where, p.field, p.given) for p in caught.value.problems] == [("scenario", "hardware.gpu", "'h2000'")]


def test_problems_inside_a_profile_keep_their_place(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text("schema: kvsim/gpu/2\n")
    with pytest.raises(ProfileError) as caught, naming(Scenario.from_dict(small()), "hardware.gpu"):
        default_store().get("gpu", str(path))
    assert caught.value.problems[0].where == str(path)
