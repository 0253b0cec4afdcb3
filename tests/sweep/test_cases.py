"""What a sweep expands to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.batch.cases import brief, expand
from kvsim.batch.spec import load_batch, shipped_sweeps
from kvsim.errors import ScenarioError
from kvsim.scenario import Scenario, load_scenario
from tests.sweep.helpers import batch, tiny

LIVE = "workload.concurrency"


def settings(*axes: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [case.settings for case in expand(load_batch(batch(*axes, **changes)))]


def test_grids_multiply_the_first_axis_slowest() -> None:
    found = settings({"grid": {LIVE: [1, 2]}}, {"grid": {"seed": [5, 6], "engine.max_num_seqs": [4]}})
    assert [(s[LIVE], s["seed"]) for s in found] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert {s["engine.max_num_seqs"] for s in found} == {4}


def test_an_axis_of_seeds_is_named_once() -> None:
    """By the seed that a case really has: further replications count on from the axis's."""
    cases = expand(load_batch(batch({"grid": {"seed": [5, 9], LIVE: [1]}}, replications=2)))
    assert [case.label for case in cases] == [f"concurrency=1 seed={seed}" for seed in (5, 6, 9, 10)]


def test_zip_steps_together() -> None:
    assert settings({"zip": {LIVE: [1, 2, 3], "engine.max_num_seqs": [7, 8, 9]}}) == [
        {LIVE: a, "engine.max_num_seqs": b} for a, b in ((1, 7), (2, 8), (3, 9))]


def test_list_sets_several_fields_an_entry() -> None:
    points = [{LIVE: 1}, {LIVE: 4, "engine.kv_dtype": "fp8"}]
    assert settings({"list": points}) == points


def test_when_leaves_an_axis_out_elsewhere() -> None:
    found = settings({"grid": {LIVE: [1, 2, 3]}}, {"grid": {"engine.max_num_seqs": [4, 8]}, "when": {LIVE: [2, 3]}})
    assert [s.get("engine.max_num_seqs") for s in found] == [None, 4, 8, 4, 8]


def test_when_compares_with_lists_too() -> None:
    tiers = [{"kind": "dram", "capacity": "1 GB"}]
    found = settings({"list": [{"tiers": []}, {"tiers": tiers}]}, {"grid": {LIVE: [1, 2]}, "when": {"tiers": []}})
    assert [s.get(LIVE) for s in found] == [1, 2, None]


def test_every_case_is_a_whole_scenario_with_its_digest() -> None:
    cases = expand(load_batch(batch({"grid": {LIVE: [1, 3]}}, replications=2, set={"engine.kv_dtype": "fp8"})))
    for case in cases:
        scenario = Scenario.from_dict({"name": "any", **case.data})
        assert (scenario.digest, scenario.seed) == (case.digest, case.seed)
        assert scenario.engine.kv_dtype == "fp8"
    assert [case.seed for case in cases] == [0, 1, 0, 1]
    assert len({case.digest for case in cases}) == 4
    assert expand(load_batch(batch({"grid": {LIVE: [1]}})))[0].digest == Scenario.from_dict(
        tiny(workload={**tiny()["workload"], "concurrency": 1})).digest


def test_impossible_combination_is_a_case_with_a_fault() -> None:
    cases = expand(load_batch(batch({"grid": {LIVE: [1, -1]}})))
    assert [case.fault is None for case in cases] == [True, False]
    assert "greater than 0" in str(cases[1].fault)


def test_sweep_without_one_valid_case_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="max_num_seq"):
        expand(load_batch(batch({"grid": {"engine.max_num_seq": [1, 2]}})))


@pytest.mark.parametrize(("data", "said"), [
    (batch({"grid": {LIVE: [1]}, "zip": {LIVE: [1]}}), "exactly one of grid, zip, list"),
    (batch({"zip": {LIVE: [1, 2], "seed": [1]}}), "one length"),
    (batch({"grid": {LIVE: []}}), "axes.0.grid"),
    (batch(replication=3), "replications"),
])
def test_mistakes_are_named(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        load_batch(data)


def test_base_by_path_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(tiny()))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(batch(base="base.yaml")))
    assert load_batch(tmp_path / "s.yaml").base == tiny()


def test_base_by_shipped_name_loses_its_study() -> None:
    cases = expand(load_batch(batch(base="k3-b300-study")))
    assert [case.digest for case in cases] == [load_scenario("k3-b300-study", ["study=null"]).digest]


@pytest.mark.parametrize("name", sorted(shipped_sweeps()))
def test_shipped_sweeps_are_whole(name: str) -> None:
    found = load_batch(name)
    assert found.name == name
    assert found.description
    assert all(case.fault is None for case in expand(found))


def test_written_and_read_back_it_has_the_same_cases() -> None:
    """A field set to nothing too, which is not the same as one that is left alone."""
    base = tiny(engine={"max_num_seqs": 8})
    wanted = load_batch(batch({"list": [{"engine.max_num_seqs": None}, {LIVE: 1}]}, base=base, set={"tiers": []}))
    again = load_batch(json.loads(json.dumps(wanted.to_dict())))
    assert [case.digest for case in expand(again)] == [case.digest for case in expand(wanted)]
    assert len({case.digest for case in expand(again)}) == 2
    assert again.digest == wanted.digest


def test_unknown_sweep_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="k3-cliff-sweep"):
        load_batch("k3-clif-sweep")


@pytest.mark.parametrize(("value", "shown"), [([], "none"), (3, "3"), ({"a": 1}, '{"a": 1}')])
def test_brief(value: object, shown: str) -> None:
    assert brief(value) == shown
