"""From names to numbers: defaults of engine profiles, given pools, prices, and who is told about a wrong name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.billing import api_price, gpus_per_node, usd_per_gpu_hour
from kvsim.errors import KvsimError, ProfileError, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved, longest_context, resolve
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from tests.memory.helpers import geometry
from tests.scenario.helpers import small


def resolved(**changes: Any) -> Resolved:
    """The small scenario with changed parts, resolved."""
    return resolve(Scenario.from_dict(small(**changes)))


def failure(**changes: Any) -> KvsimError:
    """What simulating the small scenario with changed parts says."""
    with pytest.raises(KvsimError) as caught:
        simulate(small(**changes))
    return caught.value


def test_defaults_come_from_the_engine_profile_and_the_model() -> None:
    found = resolved(engine={"profile": "vllm-0.33"})
    defaults = found.engine_profile.defaults
    assert found.limits.gpu_memory_utilization == defaults.gpu_memory_utilization.base == 0.92
    assert found.limits.max_num_seqs == defaults.max_num_seqs.base
    assert found.limits.max_num_batched_tokens == defaults.batched_tokens(found.gpu.hbm_usable.base) == 8192
    assert found.limits.max_model_len == found.model.max_positions
    assert found.predicted is None
    assert found.engine.num_blocks == found.capacity.num_blocks


def test_large_gpus_get_a_larger_token_budget() -> None:
    assert resolved(hardware={"gpu": "b300", "num_gpus": 1}).limits.max_num_batched_tokens == 16_384
    assert resolved(hardware={"gpu": "l40s", "num_gpus": 1}, engine={"max_model_len": 4096}
                    ).limits.max_num_batched_tokens == 2048


def test_what_is_written_wins() -> None:
    asked = {"gpu_memory_utilization": 0.5, "max_model_len": 4096, "max_num_batched_tokens": 512, "max_num_seqs": 7}
    limits = resolved(engine=asked).limits
    assert {name: getattr(limits, name) for name in asked} == asked


@pytest.mark.parametrize(("engine", "blocks"), [({"num_blocks": 100}, 100), ({"kv_bytes_per_gpu": "1 GiB"}, 512)])
def test_a_given_pool_replaces_the_predicted_one(engine: dict[str, Any], blocks: int) -> None:
    found = resolved(engine=engine)
    assert found.capacity.num_blocks == found.engine.num_blocks == blocks
    assert found.predicted is not None
    assert found.predicted.num_blocks == resolved().capacity.num_blocks


def test_a_logged_pool_of_a_model_that_is_predicted_not_to_fit() -> None:
    found = resolved(model="kimi-k3", engine={"num_blocks": 100})
    assert found.budget.kv_bytes < 0
    assert found.predicted is None


def test_a_given_pool_needs_two_blocks() -> None:
    err = failure(engine={"kv_bytes_per_gpu": 42.23})
    assert err.exit_code == 2
    assert [(p.field, p.given) for p in err.problems] == [("engine.kv_bytes_per_gpu", "42 B")]
    assert "two blocks" in str(err)
    assert "counts bytes" in str(err)


def test_engine_settings_of_hybrids_and_context_parallel() -> None:
    hardware, layout = {"gpu": "b300", "num_gpus": 8}, {"tp": 8, "dcp": 8}
    found = resolved(model="kimi-k3", hardware=hardware, layout=layout, engine={"kv_dtype": "fp8"}).engine
    assert (found.state_groups, found.block_tokens, found.extra_attention_groups) == (3, 8 * 1536, 0)
    assert found.retention_interval_tokens == 0
    dense = resolved(engine={"retention_interval": "dense"}).engine
    assert dense.retention_interval_tokens is None
    drafted = resolved(model="kimi-k3", hardware=hardware, layout={"tp": 8},
                       engine={"kv_dtype": "fp8", "draft": "dspark-bf16-k2"}).engine
    assert (drafted.state_groups, drafted.extra_attention_groups) == (14, 5)


@settings(max_examples=50)
@given(st.sampled_from(["llama-3.1-8b", "kimi-k3", "gpt-oss-120b", "deepseek-v4-pro"]), st.integers(20, 5000))
def test_the_longest_context_is_the_longest(name: str, blocks: int) -> None:
    found = geometry(name)
    longest = longest_context(found, blocks)
    assert found.blocks_for(longest) <= blocks - 1 or longest == 0
    assert found.blocks_for(longest + 1) > blocks - 1


@pytest.mark.parametrize(("changes", "field", "hint"), [
    ({"model": "lama-3.1-8b"}, "model", "llama-3.1-8b"),
    ({"hardware": {"gpu": "h20O", "num_gpus": 1}}, "hardware.gpu", "h20"),
    ({"hardware": {"gpu": "h200", "num_gpus": 1, "node": "hgx-h200-4"}}, "hardware.node", "hgx-h200-8"),
    ({"engine": {"profile": "vllm-dayO"}}, "engine.profile", "vllm-day0"),
    ({"prices": {"compute": "rental-2026-10"}}, "prices.compute", "rental-2026-09"),
    ({"prices": {"api": "moonshot-k4"}}, "prices.api", "moonshot-k3"),
    ({"workload": {"preset": "agentx-v2", "concurrency": 1, "duration_s": 1}}, "workload.preset", "agentx-v1"),
])
def test_an_unknown_name_is_told_with_its_field_and_the_nearest(changes: dict[str, Any], field: str, hint: str) -> None:
    err = failure(**changes)
    assert [(p.where, p.field) for p in err.problems] == [("scenario", field)]
    assert err.problems[0].hint == f"did you mean {hint!r}?"


def test_prices_are_looked_up_before_anything_is_simulated() -> None:
    """A workload that would take hours fails at once for a misspelt price."""
    long = {"fixed": {"num_requests": 10**9, "input_tokens": 10**6, "output_tokens": 10**6}, "concurrency": 64}
    assert failure(workload=long, prices={"compute": "nobody"}).problems[0].field == "prices.compute"


def test_a_price_list_without_the_gpu() -> None:
    found = resolved(hardware={"gpu": "ascend-950pr", "num_gpus": 1}, engine={"max_model_len": 4096})
    with pytest.raises(ProfileError, match="does not cover 'ascend-950pr'") as caught:
        usd_per_gpu_hour(found, default_store())
    assert caught.value.problems[0].field == "prices.compute"


def test_prices_and_nodes_by_alias() -> None:
    found = resolved(model="kimi-k3", hardware={"gpu": "b300", "num_gpus": 8}, layout={"tp": 8})
    store = default_store()
    assert gpus_per_node(found, store) == 8
    price = api_price(found.scenario, "kimi-k3", store)
    assert price is not None
    assert (price.input.base, price.cached_input.base, price.output.base) == (3.0, 0.3, 15.0)
    assert api_price(found.scenario, "llama-3.1-8b", store) is None
    assert gpus_per_node(resolved(hardware={"gpu": "gb300", "num_gpus": 1}), store) in (4, 72)


@pytest.mark.parametrize(("changes", "fields"), [
    ({"layout": {"tp": 2}}, ["layout"]), ({"layout": {"tp": 3}}, ["layout", "layout.tp"]),
    ({"layout": {"ep": 2}}, ["layout.ep"]),
    ({"replicas": 2, "engine": {"draft": "mtp-k1"}}, ["engine.draft_acceptance"]),
    ({"tiers": [{"kind": "nvme", "capacity": "1 kB"}]},
     ["tiers.0.capacity", "tiers.0.read_bandwidth_per_gpu", "tiers.0.write_bandwidth_per_gpu"]),
    ({"workload": {"preset": "agentx-v1", "duration_s": 9}}, ["workload.concurrency"]),
    ({"workload": {"fixed": {"num_requests": 1, "input_tokens": 1, "output_tokens": 1}, "mode": "open"}},
     ["workload.rate_per_s"]),
    ({"workload": {"preset": "agentx-v1", "duration_s": 9, "concurrency": 1, "mode": "open"}}, ["workload.mode"]),
    ({"workload": {"trace": "none.jsonl.gz", "concurrency": 1}}, ["workload.trace"]),
    ({"engine": {"draft": "eagle"}}, ["engine.draft"]),
])
def test_what_cannot_be_simulated_is_said_before_the_run(changes: dict[str, Any], fields: list[str]) -> None:
    err = failure(**changes)
    assert isinstance(err, ScenarioError)
    assert [p.field for p in err.problems] == fields
    assert {p.where for p in err.problems} == {"scenario"}


def test_the_same_answer_whatever_the_store_has_loaded() -> None:
    once, again = resolved(), resolved()
    assert replace(once, scenario=again.scenario) == again
