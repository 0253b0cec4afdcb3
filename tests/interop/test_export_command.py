"""Launch lines of scenarios, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.interop import ImportOptions, export_command, import_command
from kvsim.interop.exporting import ENGINES, expressed
from kvsim.interop.plans import load_scenario_or_plan
from kvsim.interop.shell import EngineName
from kvsim.profiles.store import default_store
from kvsim.scenario import Scenario, load_scenario, shipped_scenarios


def round_trip(scenario: Scenario, engine: EngineName) -> None:
    line = export_command(scenario, engine)
    options = ImportOptions(gpu=scenario.hardware.gpu, engine_profile=scenario.engine.profile)
    found = import_command(line.command, options)
    assert expressed(found.scenario, engine) == expressed(scenario, engine), line.command
    assert not [n for n in found.of("not modelled") if not n.flag.startswith("--kv-transfer")], found.text()
    assert export_command(found.scenario, engine).command == line.command


@pytest.mark.parametrize("name", shipped_scenarios())
@pytest.mark.parametrize("engine", ENGINES)
def test_shipped_scenarios_come_back(name: str, engine: EngineName) -> None:
    scenario = load_scenario(name)
    if len(scenario.groups) > 1:
        with pytest.raises(ScenarioError, match="replicas that differ"):
            export_command(scenario, engine)
    else:
        round_trip(scenario, engine)


DEGREES = st.sampled_from([1, 2, 4, 8])
SIZES = st.integers(10**9, 4 * 10**12)
TIERS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("dram"), "capacity": SIZES,
                           "write": st.sampled_from(["eager", "lazy", "none"])}),
    st.fixed_dictionaries({"kind": st.just("dram"), "capacity": SIZES, "preset": st.sampled_from(
        ["vllm-native", "vllm-simple-lazy", "lmcache", "hicache", "trtllm"])}),
    st.fixed_dictionaries({"kind": st.just("dram"), "capacity": SIZES, "preset": st.just("vllm-native"),
                           "write": st.just("on-reuse"), "reuse_threshold": st.integers(2, 5)}),
    st.fixed_dictionaries({"kind": st.just("pool"), "capacity": SIZES, "preset": st.just("mooncake-store")}),
    st.fixed_dictionaries({"kind": st.just("nvme"), "capacity": SIZES}))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    tp, pp, dp = draw(DEGREES), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 8]))
    layout = {"tp": tp, "pp": pp, "dp": dp, "dcp": draw(st.sampled_from([1, tp])),
              "ep": draw(st.sampled_from([1, tp * dp]))}
    maybe: dict[str, Any] = {
        "gpu_memory_utilization": st.floats(0.1, 1.0), "max_model_len": st.integers(1, 2**20),
        "max_num_seqs": st.integers(1, 2000), "max_num_batched_tokens": st.integers(1, 10**6),
        "block_tokens": st.sampled_from([16, 64, 128]), "num_blocks": st.integers(2, 10**6)}
    engine = {name: draw(values) for name, values in maybe.items() if draw(st.booleans())}
    if "num_blocks" not in engine and draw(st.booleans()):
        engine["kv_bytes_per_gpu"] = draw(st.integers(10**9, 2 * 10**11))
    engine |= {
        "kv_dtype": draw(st.sampled_from(["bf16", "fp8", "fp8_ds_mla"])), "prefix_caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])), "async_scheduling": draw(st.booleans()),
        "retention_interval": draw(st.sampled_from([0, 1536, "dense"])),
        "draft": draw(st.sampled_from(["none", "mtp-k2", "dspark-fp8-k7", "dspark-bf16-k3"]))}
    return Scenario.from_dict({
        "name": "any", "model": draw(st.sampled_from(default_store().names("model"))),
        "hardware": {"gpu": "b300", "num_gpus": tp * pp * dp}, "layout": layout, "engine": engine,
        "tiers": draw(st.lists(TIERS, max_size=2)),
        "workload": {"fixed": {"num_requests": 1, "input_tokens": 1, "output_tokens": 1}, "concurrency": 1}})


@settings(max_examples=150)
@given(scenarios(), st.sampled_from(ENGINES))
def test_any_scenario_comes_back(scenario: Scenario, engine: EngineName) -> None:
    round_trip(scenario, engine)


def test_k3_line() -> None:
    line = export_command(load_scenario("k3-b300-dram"))
    assert line.words[:3] == ("vllm", "serve", "moonshotai/Kimi-K3")
    for text in ("--tensor-parallel-size 8", "--kv-cache-dtype fp8", "--enable-prefix-caching",
                 "SimpleCPUOffloadConnector", '"cpu_bytes_to_use":1889000000000'):
        assert text in line.command
    assert "engine.calibration" not in line.text()


def test_what_no_flag_says_is_listed() -> None:
    scenario = load_scenario("k3-b300-study", ["engine.kv_bytes_per_gpu=null", "engine.block_tokens=3072", "replicas=3",
                                               "tiers=[{kind: nvme, capacity: 1 TB}]", "engine.draft=dspark-bf16-k2"])
    said = {n.flag for n in export_command(scenario).notes}
    assert said == {"engine.block_tokens", "engine.draft", "replicas", "tiers.0"}
    said = {n.flag for n in export_command(load_scenario("k3-b300-study"), "sglang").notes}
    assert said == {"engine.kv_bytes_per_gpu"}


def test_an_engine_without_commands_is_refused() -> None:
    with pytest.raises(ScenarioError, match="vllm or sglang"):
        export_command(load_scenario("k3-b300-study", ["engine.profile=ideal"]))
    assert export_command(load_scenario("k3-b300-study", ["engine.profile=ideal"]), "vllm").engine == "vllm"


def test_a_plan_s_winner(tmp_path: Path) -> None:
    chosen = load_scenario("k3-b300-dram")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"options": [{"name": "a", "scenario": chosen.to_dict()}, {"name": "b"}]}))
    assert load_scenario_or_plan(str(path)) == chosen
    assert load_scenario_or_plan(str(path), ["layout.dcp=8"]).layout.dcp == 8
    path.write_text(json.dumps({"options": []}))
    with pytest.raises(ScenarioError, match="kvsim plan"):
        load_scenario_or_plan(str(path))
    path.write_text("{")
    with pytest.raises(ScenarioError, match="cannot read the plan"):
        load_scenario_or_plan(str(path))


def test_a_plan_carries_its_scenarios() -> None:
    from kvsim.planning import plan

    data = {"name": "p", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
            "slo": {"ttft_s": {"p95": 30}},
            "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 8}, "concurrency": 2},
            "plan": {"live_sessions": 2, "max_sessions_per_replica": 2}}
    option = plan(Scenario.from_dict(data)).to_dict()["options"][0]
    assert Scenario.from_dict(option["scenario"]).hardware.gpu == "h200"
