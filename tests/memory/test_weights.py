"""Weight bytes of a rank: by hand for small cases, laws for every model and layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.layout import Layout
from kvsim.memory.layout_check import layout_problems
from kvsim.memory.weights import computed_weight_bytes, element_bytes, expert_shards, weight_bytes
from kvsim.profiles.parameters import component_params
from kvsim.profiles.store import default_store
from tests.memory.helpers import model

MODELS = st.sampled_from(default_store().names("model"))
DEGREES = st.sampled_from([1, 2, 4, 8])


def test_a_dense_model_by_hand() -> None:
    llama = model("llama-3.1-8b")
    norms = (2 * 32 + 1) * 4096
    params = 2 * 128_256 * 4096 + 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336) + norms
    assert computed_weight_bytes(llama) == 2 * params
    whole = weight_bytes(llama, Layout())
    assert whole.per_gpu_bytes == whole.total_bytes == pytest.approx(llama.checkpoint.base if llama.checkpoint
                                                                     else 2 * params, rel=1e-3)
    assert whole.replicated_bytes == pytest.approx(2 * norms, rel=1e-3)


def test_tp_divides_all_but_what_is_replicated() -> None:
    llama = model("llama-3.1-8b")
    one, eight = weight_bytes(llama, Layout()), weight_bytes(llama, Layout(tp=8))
    assert eight.per_gpu_bytes == pytest.approx((one.per_gpu_bytes - one.replicated_bytes) / 8 + one.replicated_bytes)


def test_k3_repeats_what_its_latent_experts_need() -> None:
    """Down-projections of the latents, routers and latent expert projections stay whole on every rank."""
    k3 = weight_bytes(model("kimi-k3"), Layout(tp=8))
    assert k3.total_bytes == pytest.approx(1.560936e12)
    assert k3.replicated_bytes > 92 * 2 * 7168 * 3584 * 2  # into and out of the latent width, 92 layers, bf16
    assert k3.per_gpu_bytes == pytest.approx((k3.total_bytes - k3.replicated_bytes) / 8 + k3.replicated_bytes)


def test_formats_of_components() -> None:
    k3 = model("kimi-k3")
    assert element_bytes(k3, "routed_experts") == 4.25 / 8
    assert element_bytes(k3, "attention") == 2.0
    int4 = k3.model_copy(update={"weights": k3.weights.model_copy(update={"routed_experts": "int4"})})
    assert element_bytes(int4, "routed_experts") == 0.5 + 2 / 128


@pytest.mark.parametrize(("layout", "shards"), [
    (Layout(tp=8), 8), (Layout(tp=8, ep=8), 8), (Layout(tp=1, dp=8, ep=8), 8),
    (Layout(tp=2, dp=4), 8),  # vLLM: without EP the experts form one tensor-parallel group of DP x TP ranks
    (Layout(tp=4, pp=2), 4),
])
def test_ranks_that_share_the_experts(layout: Layout, shards: int) -> None:
    assert expert_shards(layout) == shards


def test_attention_dp_repeats_attention_but_not_experts() -> None:
    k3 = model("kimi-k3")
    experts = component_params(k3)["routed_experts"] * 4.25 / 8
    tp8, dp8 = weight_bytes(k3, Layout(tp=8)), weight_bytes(k3, Layout(dp=8, ep=8))
    scale = tp8.total_bytes / computed_weight_bytes(k3)
    rest = tp8.total_bytes - scale * experts
    assert dp8.per_gpu_bytes == pytest.approx(rest + scale * experts / 8)
    assert dp8.per_gpu_bytes > tp8.per_gpu_bytes


@given(MODELS, DEGREES, st.sampled_from([1, 2, 4]))
def test_doubling_tp_never_adds_weight_to_a_gpu(name: str, tp: int, pp: int) -> None:
    once, twice = (weight_bytes(model(name), Layout(tp=t, pp=pp)) for t in (tp, 2 * tp))
    assert once.per_gpu_bytes / 2 <= twice.per_gpu_bytes <= once.per_gpu_bytes


@given(MODELS, DEGREES, st.sampled_from([1, 2, 4]))
def test_ranks_together_hold_the_model_at_least_once(name: str, tp: int, pp: int) -> None:
    found = weight_bytes(model(name), Layout(tp=tp, pp=pp))
    assert len(found.by_stage) == pp
    assert found.per_gpu_bytes == max(found.by_stage)
    assert tp * sum(found.by_stage) >= found.total_bytes * (1 - 1e-12)
    assert found.total_bytes == pytest.approx(weight_bytes(model(name), Layout()).total_bytes)


@given(MODELS, DEGREES)
def test_expert_parallelism_holds_as_much_as_tensor_parallelism(name: str, tp: int) -> None:
    both = [weight_bytes(model(name), Layout(tp=tp, ep=ep)).per_gpu_bytes for ep in (1, tp)]
    assert both[0] == pytest.approx(both[1])


def test_layouts_that_cannot_be_built() -> None:
    k3, llama = model("kimi-k3"), model("llama-3.1-8b")
    cases = {
        "layout.tp": layout_problems(k3, Layout(tp=7), 7),
        "layout.pp": layout_problems(k3, Layout(pp=94), 94),
        "layout.dcp": layout_problems(k3, Layout(tp=8, dcp=3), 8),
        "layout.ep": layout_problems(k3, Layout(tp=8, ep=4), 8),
        "layout": layout_problems(k3, Layout(tp=4), 8),
    }
    assert {field: [p.field for p in problems] for field, problems in cases.items()} == {f: [f] for f in cases}
    assert "no experts" in str(layout_problems(llama, Layout(tp=2, ep=2), 2)[0])
    assert "896 experts" in str(layout_problems(k3, Layout(tp=3, ep=3), 3)[0])


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_kv_heads_may_be_repeated(tp: int) -> None:
    assert layout_problems(model("llama-3.1-8b"), Layout(tp=tp), tp) == []


@given(MODELS, st.integers(1, 40))
def test_the_accepted_degrees_are_accepted(name: str, tp: int) -> None:
    """What the message offers can be built, and nothing else up to the number of heads."""
    problems = layout_problems(model(name), Layout(tp=tp), tp)
    if problems:
        offered = [int(t) for t in problems[0].accepted.split(", ")]
        assert tp not in offered
        assert not [t for t in offered if layout_problems(model(name), Layout(tp=t), t)]
