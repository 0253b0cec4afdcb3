"""Controls to scenario, to address and back, without a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.dashboard import choices as c
from kvsim.layout import Layout
from kvsim.memory.layout_check import layout_problems
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario

STORE = default_store()
DEFAULT = c.default_choices(STORE)


def test_default_is_the_reference_scenario_but_for_length() -> None:
    reference, scenario = load_scenario(c.REFERENCE), c.scenario_of(DEFAULT)
    assert resolve(scenario).engine == resolve(reference).engine
    assert scenario.slo == reference.slo
    assert scenario.prices == reference.prices
    shorter = {"duration_s": c.DURATION_S, "warmup_s": c.WARMUP_S}
    assert scenario.workload == reference.workload.model_copy(update=shorter)


def test_every_choice_reaches_the_scenario() -> None:
    changed = replace(DEFAULT, num_gpus=16, kv_dtype="bf16", pool=c.PREDICTED, sessions=12, max_num_seqs=32, dcp=2,
                      preset="claude-code", compute="owned-2026-07", prefix_caching=False, dram=True, dram_gb=512.0)
    scenario = c.scenario_of(changed)
    assert (scenario.layout.tp, scenario.layout.pp, scenario.layout.dcp) == (8, 2, 2)
    assert scenario.engine.kv_bytes_per_gpu is None
    assert (scenario.engine.kv_dtype, scenario.engine.max_num_seqs) == ("bf16", 32)
    assert not scenario.engine.prefix_caching
    assert (scenario.workload.preset, scenario.workload.concurrency) == ("claude-code", 12)
    assert scenario.prices.compute == "owned-2026-07"
    assert [(t.kind, t.capacity, t.write) for t in scenario.tiers] == [("dram", 512e9, "eager")]


def test_dram_is_the_shipped_tier_unless_empty_or_off() -> None:
    on = replace(DEFAULT, dram=True)
    assert c.scenario_of(on).tiers == load_scenario(c.OFFLOAD).tiers
    assert c.scenario_of(replace(on, dram_gb=0.0)).tiers == ()
    assert c.scenario_of(replace(on, dram=False)).tiers == ()
    assert c.reconcile(on, DEFAULT, STORE).pool == c.LOGGED


@pytest.mark.parametrize("change", [{"gpu": "b200-sxm"}, {"gpu_memory_utilization": 0.92}, {"num_gpus": 16},
                                    {"max_num_batched_tokens": 8192}, {"model": "kimi-k2"}])
def test_logged_pool_belongs_to_its_machine(change: dict[str, Any]) -> None:
    elsewhere = c.reconcile(replace(DEFAULT, **change), DEFAULT, STORE)
    assert elsewhere.pool == c.PREDICTED
    insisted = c.reconcile(replace(elsewhere, pool=c.LOGGED), elsewhere, STORE)
    assert insisted.pool == c.LOGGED
    back = replace(insisted, **{name: getattr(DEFAULT, name) for name in c.MACHINE})
    assert c.reconcile(back, insisted, STORE).pool == c.LOGGED


def test_traffic_leaves_the_logged_pool() -> None:
    assert c.reconcile(replace(DEFAULT, sessions=20, preset="claude-code"), DEFAULT, STORE).pool == c.LOGGED


def test_prices_follow_model_and_gpu() -> None:
    other = c.reconcile(replace(DEFAULT, model="deepseek-v4-pro", gpu="b200-sxm"), DEFAULT, STORE)
    assert STORE.get("api-price", other.api).model == "deepseek-v4-pro"
    assert "b200-sxm" in STORE.get("price", other.compute).usd_per_gpu_hour
    assert c.reconcile(replace(DEFAULT, model="llama-3.1-8b"), DEFAULT, STORE).api == c.NO_API_PRICE


def choices() -> st.SearchStrategy[c.Choices]:
    """Any reachable choices."""
    change = st.fixed_dictionaries({}, optional={
        "model": st.sampled_from(STORE.names("model")), "gpu": st.sampled_from(STORE.names("gpu")),
        "num_gpus": st.sampled_from(c.NUM_GPUS), "tp": st.integers(1, 16), "dp": st.integers(1, 16),
        "ep": st.integers(1, 16), "dcp": st.integers(1, 16), "kv_dtype": st.sampled_from(c.KV_DTYPES),
        "gpu_memory_utilization": st.integers(50, 99).map(lambda n: n / 100),
        "pool": st.sampled_from([c.PREDICTED, c.LOGGED]),
        "max_model_len": st.sampled_from(c.MODEL_LENGTHS), "sessions": st.integers(1, 128),
        "curve": st.sets(st.sampled_from(c.CURVE_POINTS)).map(lambda s: tuple(sorted(s))),
        "prefix_caching": st.booleans(), "dram": st.booleans(),
        "dram_gb": st.integers(0, 100_000).map(float), "logged_gib": st.integers(50, 30_000).map(lambda n: n / 100),
    })
    return change.map(lambda made: c.reconcile(replace(DEFAULT, **made), DEFAULT, STORE))


@given(choices())
@settings(max_examples=60)
def test_address_restores_the_choices(made: c.Choices) -> None:
    assert c.from_query(c.to_query(made, STORE), STORE) == (made, ())


@given(choices())
@settings(max_examples=60)
def test_reconciled_layouts_use_every_gpu(made: c.Choices) -> None:
    layout = Layout(made.tp, made.pp, made.ep, made.dp, made.dcp)
    assert layout.num_gpus == made.num_gpus
    complaints = [p.field for p in layout_problems(STORE.get("model", made.model), layout, made.num_gpus)]
    assert "layout" not in complaints


def test_wrong_address_is_told_and_left_aside() -> None:
    found, problems = c.from_query({"gpu": "b30", "sessions": "0", "curve": "4,5", "tp": "3", "dp": "x",
                                    "prefix_caching": "maybe", "other": "1"}, STORE)
    assert found == DEFAULT
    assert {p.field for p in problems} == {"gpu", "sessions", "curve", "tp", "dp", "prefix_caching"}
    assert "b300-sxm" in next(p for p in problems if p.field == "gpu").accepted


def test_points_hold_the_chosen_sessions_once() -> None:
    assert replace(DEFAULT, sessions=12, curve=(4, 16)).points == (4, 12, 16)
    assert replace(DEFAULT, sessions=4, curve=(4, 16)).points == (4, 16)
