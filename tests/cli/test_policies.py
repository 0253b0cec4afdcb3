"""Eviction, admission and load mode where users meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim import simulate
from kvsim.errors import ScenarioError
from kvsim.resolve import resolve
from kvsim.scenario import EvictionPart, Scenario, load_scenario
from tests.cli.helpers import Shell

SMALL = ("workload.duration_s=300", "workload.concurrency=6", "engine.num_blocks=700", "engine.max_model_len=null",
         "engine.kv_bytes_per_gpu=null")


@pytest.mark.parametrize("kind", ["lru", "fifo", "lfu", "s3fifo", "belady", "ttl", "pin_sessions", "priority",
                                  "cost_aware"])
def test_every_policy_runs_from_the_command_line(kvsim: Shell, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "report.json"
    sets = [part for change in (*SMALL, f"engine.eviction={kind}") for part in ("--set", change)]
    done = kvsim("run", "k3-b300-cliff", *sets, "--json", str(target))
    assert done.code == 0, done.err
    assert "cache bound by" in done.out
    assert f'"eviction": "{kind}"' in target.read_text()


def test_admission_control_moves_the_cliff() -> None:
    def hits(*changes: str) -> float:
        return simulate(load_scenario("k3-b300-cliff", ("workload.duration_s=900", *changes))).hit_rate.total

    assert hits() < 0.2
    assert hits("engine.admission.max_live_sessions=8") > 0.85


def test_the_report_says_what_was_lost() -> None:
    report = simulate(load_scenario("k3-b300-cliff", ("workload.duration_s=900",)))
    lost = report.to_dict()["hit_rate"]["lost_by"]
    assert lost["bound_by"] == "capacity"
    total = lost["capacity"] + lost["policy"] + lost["bandwidth"]
    assert total == pytest.approx(report.hit_rate.ideal - report.hit_rate.total, abs=0.01)


def test_how_loads_come_is_the_presets_unless_stated() -> None:
    def mode(*changes: str) -> str:
        return resolve(load_scenario("k3-b300-dram", changes)).engine.tiers[0].load_mode

    assert (mode(), mode("tiers.0.load=layerwise")) == ("async", "layerwise")
    assert (mode("tiers.0.preset=hicache"), mode("tiers.0.preset=hicache", "tiers.0.load=async")) \
        == ("layerwise", "async")


@pytest.mark.parametrize(("change", "says"), [
    ("engine.eviction=lur", "did you mean 'lru'"),
    ("engine.eviction={kind: lru, ttl_s: 5}", "ttl_s with lru; accepted: no parameters"),
    ("engine.eviction={kind: ttl, ttl_s: 0 s}", "ttl_s"),
    ("engine.admission={}", "max_live_sessions, max_context_frac or both"),
    ("engine.admission.max_live_sessions=0", "max_live_sessions"),
    ("tiers=[{kind: dram, capacity: 1 TB, load: lazy}]", "layerwise"),
])
def test_mistakes_are_told(change: str, says: str) -> None:
    with pytest.raises(ScenarioError, match="not a valid scenario") as caught:
        load_scenario("k3-b300-cliff", (change,))
    assert says in str(caught.value)


def test_a_policy_is_written_as_short_as_it_was() -> None:
    plain = load_scenario("k3-b300-cliff").to_dict()
    assert plain["engine"]["eviction"] == "lru"
    assert "admission" not in plain["engine"]
    given = load_scenario("k3-b300-cliff", ("engine.eviction={kind: ttl, ttl_s: 60 s}",))
    assert given.to_dict()["engine"]["eviction"] == {"kind": "ttl", "ttl_s": 60.0}
    assert Scenario.from_dict(given.to_dict()) == given
    assert given.engine.eviction == EvictionPart(kind="ttl", ttl_s=60.0)
