"""Mamba-2 layers, which no shipped model has: parameters and state by hand, as mamba2-130m is published."""

from __future__ import annotations

import yaml

from kvsim.layout import Layout
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.profiles.engine_profile import resolve_base
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.parameters import component_params
from kvsim.profiles.paths import data_root
from kvsim.profiles.store import default_store
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.roofline import build_step_time

LAYERS, HIDDEN, VOCAB = 24, 768, 50_288


def mamba2_130m() -> ModelProfile:
    """state-spaces/mamba2-130m (config.json and mamba_ssm 2): expand 2, head 64, one group of 128 states, conv 4."""
    data = yaml.safe_load((data_root() / "models" / "llama-3.1-8b.yaml").read_text(encoding="utf-8"))
    mixer = {"kind": "mamba", "num_heads": 24, "head_dim": 64, "state_dim": 128, "num_groups": 1, "conv_kernel": 4}
    return ModelProfile.model_validate(data | {
        "name": "mamba2-130m", "hidden": HIDDEN, "vocab": VOCAB, "tied_embeddings": True, "dense_intermediate": 0,
        "attention": {"mixer": mixer}, "layers": [{"pattern": ["mixer"], "repeat": LAYERS}]})


def test_parameters_of_a_mixer() -> None:
    # in_proj 768 x (2 x 1536 + 2 x 128 + 24), conv 1792 x 4 with bias, dt bias, A, D of 24 heads, norm, out_proj.
    mixer = HIDDEN * 3_352 + 1_792 * 5 + 3 * 24 + 1_536 + 1_536 * HIDDEN
    assert mixer == 3_764_552
    assert component_params(mamba2_130m())["attention"] == LAYERS * mixer


def test_nothing_grows_with_the_context() -> None:
    assert model_bytes_per_token(mamba2_130m(), "bf16") == 0
    assert model_state_bytes(mamba2_130m()) == LAYERS * (24 * 64 * 128 * 4 + 1_792 * 3 * 2)


def test_a_decode_step_takes_as_long_at_every_context() -> None:
    store = default_store()
    profile = resolve_base(store.get("engine", "vllm-0.33"), lambda name: store.get("engine", name))
    model = build_step_time(mamba2_130m(), store.get("gpu", "h200"), Layout(), "bf16", profile, True)
    few, many = StepBatch(0, 0, 0, 0, 8), StepBatch(0, 0, 0, 0, 512)
    assert step_s(model, few, 8_000) == step_s(model, few, 800_000)
    assert step_s(model, many, 8_000) > step_s(model, few, 8_000)
