"""The HBM budget line by line, and its laws."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.capacity import capacity_text, kv_capacity
from kvsim.errors import InfeasibleError
from kvsim.layout import Layout
from kvsim.memory.budget import MemoryBudget, activation_bytes_per_token, mla_workspace_bytes
from kvsim.memory.capacity import Pool, fit_at
from kvsim.profiles.store import default_store
from tests.memory.helpers import geometry, k3_on_b300, model

UTILIZATION = st.floats(0.5, 1.0)


def lines(budget: MemoryBudget) -> dict[str, float]:
    """Bytes by name."""
    return {line.name: line.num_bytes for line in budget.lines}


def test_lines_by_hand() -> None:
    found = kv_capacity("llama-3.1-8b", "h200", gpu_memory_utilization=0.9, max_num_seqs=256,
                        max_num_batched_tokens=8192)
    gpu, reserve, budget = found.gpu, found.engine_profile.reserve, lines(found.budget)
    seen = gpu.hbm_usable.base * gpu.engine_visible_frac.base
    assert budget["HBM usable"] + budget["driver reserve"] == pytest.approx(seen)
    assert budget["left outside the engine"] == pytest.approx(-0.1 * seen)
    assert budget["weights"] == -found.budget.weights.per_gpu_bytes
    assert budget["context, collectives"] == -reserve.non_torch_single.base
    assert budget["logits"] == -256 * 128_256 * 4
    assert budget["latent prefill workspace"] == 0
    assert budget["activations"] == -8192 * 102_400 * reserve.activation_copies.base


def test_activations_by_hand() -> None:
    """Llama: residual and its copy, then the wider of attention and the gated MLP of 3 x 14,336."""
    assert activation_bytes_per_token(model("llama-3.1-8b"), Layout()) == 2 * (2 * 4096 + 3 * 14_336)
    assert activation_bytes_per_token(model("llama-3.1-8b"), Layout(tp=2)) == 2 * (2 * 4096 + 3 * 14_336 / 2)


@pytest.mark.parametrize(("max_len", "rows"), [(1024, 8192), (1_048_576, 65_536)])
def test_workspace_of_latents(max_len: int, rows: int) -> None:
    """8 x max_model_len rows, at most 64k; each holds the latent and its expansion for the rank's heads."""
    found = k3_on_b300(max_model_len=max_len, max_num_seqs=1)
    width = 96 / 8 * (128 + 128) + 512 + 64
    assert lines(found.budget)["latent prefill workspace"] == -2 * rows * width


def test_older_engines_reserve_a_page_a_sequence() -> None:
    found = k3_on_b300(max_model_len=1024, max_num_seqs=64)
    older = found.engine_profile.reserve.model_copy(update={"mla_workspace_covers_pages": True})
    rows = mla_workspace_bytes(found.model, found.layout, found.limits, older, 1536) / (2 * (12 * 256 + 576))
    assert rows == 64 * 1536


@given(st.sampled_from(default_store().names("gpu")), UTILIZATION, st.sampled_from(["llama-3.1-8b", "kimi-k3"]))
def test_lines_sum_to_the_pool(gpu: str, utilization: float, name: str) -> None:
    """Also where the model does not fit: a given pool leaves the predicted budget as it is."""
    budget = kv_capacity(name, gpu, gpu_memory_utilization=utilization, num_blocks=2).budget
    assert sum(line.num_bytes for line in budget.lines) == budget.kv_bytes
    assert sum(line.low for line in budget.lines) == budget.kv_bytes_range[0]
    assert sum(line.high for line in budget.lines) == budget.kv_bytes_range[1]
    assert all(line.low <= line.num_bytes <= line.high for line in budget.lines)
    assert budget.lines[0].num_bytes == default_store().get("gpu", gpu).hbm_usable.base


@given(UTILIZATION, UTILIZATION)
def test_capacity_never_grows_when_utilization_falls(one: float, other: float) -> None:
    low, high = (k3_on_b300(gpu_memory_utilization=u, max_model_len=4096, num_blocks=2) for u in sorted((one, other)))
    assert low.budget.kv_bytes <= high.budget.kv_bytes


@given(st.integers(1, 65_536), st.integers(0, 65_536))
def test_capacity_never_grows_with_the_token_budget(tokens: int, more: int) -> None:
    few, many = (k3_on_b300(max_num_batched_tokens=t, num_blocks=2) for t in (tokens, tokens + more))
    assert many.budget.kv_bytes <= few.budget.kv_bytes
    assert many.budget.kv_bytes_range[0] <= few.budget.kv_bytes_range[0]


@given(st.integers(1, 4096), st.integers(0, 4096))
def test_capacity_never_grows_with_running_requests(seqs: int, more: int) -> None:
    few, many = (k3_on_b300(max_num_seqs=n, num_blocks=2) for n in (seqs, seqs + more))
    assert many.budget.kv_bytes <= few.budget.kv_bytes


@given(st.integers(1_000, 1_048_576), st.integers(0, 100_000))
def test_sessions_never_grow_with_max_model_len(length: int, more: int) -> None:
    short, long = (k3_on_b300(max_model_len=n, num_blocks=2135).capacity for n in (length, length + more))
    assert long.max_concurrency <= short.max_concurrency


@pytest.mark.parametrize(("blocks", "sessions"), [(512, 0), (513, 1), (1024, 1), (1025, 2)])
def test_the_null_block_holds_nothing(blocks: int, sessions: int) -> None:
    assert fit_at(geometry("llama-3.1-8b"), Pool(blocks), 512 * 16).sessions == sessions


def test_a_request_of_all_usable_blocks_fits_and_a_larger_one_does_not() -> None:
    usable = kv_capacity("llama-3.1-8b", "h200").capacity.num_blocks - 1
    assert kv_capacity("llama-3.1-8b", "h200", max_model_len=16 * usable).capacity.num_blocks == usable + 1
    with pytest.raises(InfeasibleError, match="one request of max_model_len does not fit"):
        kv_capacity("llama-3.1-8b", "h200", max_model_len=16 * usable + 1)


def test_sessions_fall_as_contexts_grow() -> None:
    fits = k3_on_b300(gpu_memory_utilization=0.9).capacity.fits
    assert [f.context_tokens for f in fits] == [8_192, 32_768, 142_016, 300_000, 1_048_576]
    assert all(a.sessions >= b.sessions and a.blocks_per_session <= b.blocks_per_session for a, b in pairwise(fits))
    assert all(f.tokens == f.sessions * f.context_tokens for f in fits)


def test_latents_are_held_eight_times_by_a_node_and_states_once() -> None:
    """K3 at TP8: every rank keeps the whole latent, and an eighth of the state."""
    found = k3_on_b300(num_blocks=2135)
    geometry, capacity = found.capacity.geometry, found.capacity
    attention = next(g for g in geometry.groups if g.kind == "attention")
    node_bytes_per_token = 8 * len(attention.layers) * geometry.page_bytes / geometry.block_tokens
    assert node_bytes_per_token == 8 * capacity.bytes_per_token == 8 * 13_824
    assert capacity.state_bytes_per_sequence == 449_372_160
    assert capacity.checkpoint_bytes == 3 * 24 * 884_736 * 8
    assert capacity.checkpoint_bytes >= capacity.state_bytes_per_sequence


def test_attention_dp_has_a_pool_a_rank() -> None:
    one = kv_capacity("llama-3.1-8b", "h200")
    two = kv_capacity("llama-3.1-8b", "h200", 2, dp=2)
    assert two.capacity.num_pools == 2
    assert two.capacity.kv_tokens == 2 * two.capacity.num_blocks * 16
    assert two.capacity.num_blocks <= one.capacity.num_blocks
    assert "in each of 2 pools" in capacity_text(two)


def test_what_does_not_fit_is_an_answer_with_its_budget_and_a_way_out() -> None:
    with pytest.raises(InfeasibleError) as caught:
        kv_capacity("kimi-k3", "b200", 8, tp=8, kv_dtype="fp8")
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert "weights" in text
    assert "GiB per GPU missing" in text
    assert "fits on 16 GPUs as TP8 x PP2" in text
    assert kv_capacity("kimi-k3", "b200", 16, tp=8, pp=2, kv_dtype="fp8").capacity.num_blocks > 0


def test_nothing_helps_a_model_that_is_too_large() -> None:
    with pytest.raises(InfeasibleError, match=r"no multiple of this hardware up to 8 x fits"):
        kv_capacity("kimi-k3", "l40s", 1, kv_dtype="fp8")


def test_one_request_must_fit() -> None:
    with pytest.raises(InfeasibleError) as caught:
        kv_capacity("llama-3.1-8b", "l40s", max_num_seqs=64, max_num_batched_tokens=2048, kv_dtype="bf16",
                    gpu_memory_utilization=0.5)
    problem = caught.value.problems[0]
    assert problem.field == "engine.max_model_len"
    longest = int(problem.accepted.split()[2].replace(",", ""))
    again = kv_capacity("llama-3.1-8b", "l40s", max_num_seqs=64, max_num_batched_tokens=2048, kv_dtype="bf16",
                        gpu_memory_utilization=0.5, max_model_len=longest)
    assert again.capacity.num_blocks - 1 == again.capacity.geometry.blocks_for(longest)
