"""Step time with drafts: what verifying reads and computes, what the draft costs, where it pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.layout import Layout
from kvsim.memory.drafter import draft_weight_bytes, drafter_model
from kvsim.memory.drafts import parse_draft
from kvsim.steptime.base import step_s
from kvsim.steptime.drafting import DraftedStepTime, build_drafter, with_draft
from kvsim.steptime.pipeline import Stages, pipelined
from tests.steptime.support import STORE, build, chunk, decode, engine

K3_PARAMS = 4e9


def drafted(draft: str, model: str = "kimi-k3", profile: str = "ideal", tp: int = 8,
            reuse_frac: float = 0.0) -> DraftedStepTime:
    parsed, layout, target = parse_draft(draft), Layout(tp=tp), STORE.get("model", model)
    params = K3_PARAMS if parsed.kind == "dspark" else None
    plain = build(model, "b300", profile, layout, kv_dtype="fp8")
    drafter = build_drafter(drafter_model(target, parsed, params), STORE.get("gpu", "b300"), layout, "fp8",
                            engine(profile))
    return with_draft(plain, drafter, parsed, reuse_frac)


SPARK = drafted("dspark-fp8-k7", profile="sglang-2026-08")


def test_experts_for_all_rows_and_weights_once() -> None:
    # 8 rows touch 896 (1 - (1 - 16/896)^8) = 120.3 of 896 experts, 1 row 16; other weights are read once.
    model = drafted("dspark-fp8-k7")
    experts = model.plain.work.experts
    assert experts is not None
    assert 896 * experts.touched_frac(8) == pytest.approx(120.3, abs=0.1)
    plain = {c.name: c.memory_s for c in model.plain.costs(decode(1), 1000)}
    wide = {c.name: c.memory_s for c in model.verify.costs(decode(8), 1000)}
    assert wide["experts"] / plain["experts"] == pytest.approx(120.28 / 16, rel=1e-3)
    assert wide["lm_head"] == pytest.approx(plain["lm_head"], rel=1e-9)


@pytest.mark.parametrize(("reuse_frac", "rows"), [(0.0, 8.0), (0.5, 4.5), (1.0, 1.0)])
def test_rows_that_choose_the_experts_of_those_before_touch_fewer(reuse_frac: float, rows: float) -> None:
    model = drafted("dspark-fp8-k7", reuse_frac=reuse_frac)
    costs = {c.name: c for c in model.verify.costs(decode(8), 1000)}
    plain = {c.name: c for c in drafted("dspark-fp8-k7").verify.costs(decode(8), 1000)}
    share = 1 - (1 - 16 / 896) ** rows
    assert costs["experts"].memory_s / plain["experts"].memory_s == pytest.approx(share / (1 - (1 - 16 / 896) ** 8))
    assert costs["experts"].compute_s == plain["experts"].compute_s


def test_kv_is_read_once_a_sequence_and_states_are_written_for_every_row() -> None:
    model = drafted("dspark-fp8-k3")
    plain = {c.name: c for c in model.plain.costs(decode(4), 400_000)}
    wide = {c.name: c for c in model.verify.costs(decode(16), 400_000)}
    assert wide["decode_attention"].memory_s == pytest.approx(plain["decode_attention"].memory_s, rel=1e-9)
    # Read once, written 1 + 3 times, against read and written once.
    assert wide["state_decode"].memory_s / plain["state_decode"].memory_s == pytest.approx(5 / 2, rel=1e-9)


def test_queries_cost_flops() -> None:
    model = drafted("dspark-fp8-k7")
    part, wide = model.plain.work.decode[0], model.verify.work.decode[0]
    assert wide.rows == 8
    assert wide.flops_per_token == 8 * part.flops_per_token
    assert wide.bytes_per_token == part.bytes_per_token


def test_one_pass_or_as_many_as_tokens() -> None:
    for kind, passes in (("mtp", 3), ("eagle3", 3), ("dflash", 1)):
        assert parse_draft(f"{kind}-k3").num_passes == passes
    batch, context = decode(8), 8 * 10_000
    one, three = (drafted(f"eagle3-k{k}", "llama-3.1-8b", "vllm-0.33", 1) for k in (1, 3))
    later = step_s(three.later, batch, context)
    assert three.draft_s(batch, context) == pytest.approx(step_s(three.first, decode(32), context) + 2 * later)
    assert three.draft_s(batch, context) > 2 * one.draft_s(batch, context)
    block = drafted("dflash-k3", "llama-3.1-8b", "vllm-0.33", 1)
    assert block.draft_s(batch, context) == pytest.approx(step_s(block.first, decode(32), context))


@given(st.integers(1, 64), st.integers(1, 200_000), st.integers(0, 8192))
def test_a_step_is_never_faster_than_its_parts_and_floors(seqs: int, context_each: int, prefill: int) -> None:
    batch = chunk(prefill, 0, seqs) if prefill else decode(seqs)
    context = seqs * context_each
    seconds = step_s(SPARK, batch, context)
    assert seconds >= step_s(SPARK.plain, batch, context)
    assert seconds >= SPARK.floor_s(batch, context)
    assert sum(SPARK.shares(batch, context).values()) == pytest.approx(seconds, rel=1e-9)
    assert sum(c.total_s for c in SPARK.costs(batch, context)) == pytest.approx(seconds, rel=1e-9)
    assert SPARK.pieces(batch) == SPARK.pieces(batch)


@given(st.integers(1, 64), st.integers(1, 100_000))
def test_more_drafts_take_longer(seqs: int, context_each: int) -> None:
    times = [step_s(drafted_k3(k), decode(seqs), seqs * context_each) for k in (1, 3, 7)]
    assert times == sorted(times)


MODELS = {k: drafted(f"dspark-fp8-k{k}", profile="vllm-day0") for k in (1, 3, 7)}


def drafted_k3(tokens: int) -> DraftedStepTime:
    return MODELS[tokens]


def test_break_even_rises_until_all_experts_are_read() -> None:
    # Verifying 8 rows a sequence: cheap at batch 1, dearest where it touches experts that a plain step would not.
    found = [SPARK.break_even_length(seqs, seqs * 8_700) for seqs in (1, 4, 8, 16, 64)]
    assert found[0] < found[1] < found[2]
    assert found[2] > found[3] > found[4]
    assert all(1.0 < length < 8.0 for length in found)
    assert SPARK.break_even_length(1, 8_700) == step_s(SPARK, decode(1), 8_700) / step_s(SPARK.plain, decode(1), 8_700)


def test_verify_step_of_k3_on_vllm() -> None:
    # aiconfigurator's Kimi-K3 ledger, B300: 13.94 ms a step without drafts, 19.8 ms verifying 8. 25 %, since experts
    # are taken to be chosen uniformly.
    model = MODELS[7]
    assert 1e3 * step_s(model.plain, decode(1), 8_193) == pytest.approx(13.94, rel=0.25)
    assert 1e3 * step_s(model.verify, decode(8), 8_193) == pytest.approx(19.8, rel=0.25)


def test_pipelines_keep_their_kind() -> None:
    layout, target, draft = Layout(tp=8, pp=2), STORE.get("model", "kimi-k3"), parse_draft("dspark-fp8-k3")
    plain = pipelined(build("kimi-k3", "b200", "vllm-0.33", layout, kv_dtype="fp8"), Stages(2, 8192, 1e-6))
    drafter = build_drafter(drafter_model(target, draft, K3_PARAMS), STORE.get("gpu", "b200"), layout, "fp8",
                            engine("vllm-0.33"))
    model = with_draft(plain, drafter, draft)
    assert type(model.verify) is type(plain)
    assert step_s(model, decode(8), 80_000) > step_s(plain, decode(8), 80_000)


@pytest.mark.parametrize(("model", "draft", "params", "gigabytes"), [
    ("kimi-k3", "dspark-fp8-k7", K3_PARAMS, 8.0), ("llama-3.1-8b", "eagle3-k3", None, 0.436),
])
def test_weights_of_a_draft(model: str, draft: str, params: float | None, gigabytes: float) -> None:
    # 4B in bf16; one Llama layer of 218M. On one rank: the latent's down-projections are repeated under TP.
    drafter = drafter_model(STORE.get("model", model), parse_draft(draft), params)
    assert draft_weight_bytes(drafter, Layout()) / 1e9 == pytest.approx(gigabytes, rel=0.01)
    split = draft_weight_bytes(drafter, Layout(tp=8))
    assert draft_weight_bytes(drafter, Layout()) / 8 <= split < draft_weight_bytes(drafter, Layout()) / 4


def test_an_mtp_layer_has_the_targets_experts() -> None:
    target = STORE.get("model", "qwen3.5-397b-a17b")
    drafter = drafter_model(target, parse_draft("mtp-k3"))
    assert drafter.moe == target.moe
    assert drafter.num_layers == 1
