"""Batches and models that the step-time tests share."""

from __future__ import annotations

from kvsim.layout import Layout
from kvsim.profiles.engine_profile import EngineProfile, resolve_base
from kvsim.profiles.store import default_store
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.roofline import RooflineStepTime, build_step_time

STORE = default_store()


def engine(name: str) -> EngineProfile:
    return resolve_base(STORE.get("engine", name), lambda other: STORE.get("engine", other))


def build(model: str, gpu: str, engine_name: str, layout: Layout | None = None, *,
          kv_dtype: str = "bf16", asynchronous: bool = True) -> RooflineStepTime:
    return build_step_time(STORE.get("model", model), STORE.get("gpu", gpu), layout or Layout(), kv_dtype,
                           engine(engine_name), asynchronous)


def decode(seqs: int) -> StepBatch:
    return StepBatch(0, 0, 0, 0, seqs)


def chunk(tokens: int, offset: int = 0, seqs: int = 0) -> StepBatch:
    return StepBatch(tokens, 1, tokens * offset + tokens * (tokens + 1) // 2, offset + tokens, seqs)


def prompt_s(model: RooflineStepTime, tokens: int, budget: int = 16384) -> float:
    """Seconds to prefill one prompt alone in chunks of `budget`."""
    starts = range(0, tokens, budget)
    return sum(step_s(model, chunk(min(budget, tokens - start), start), 0) for start in starts)
