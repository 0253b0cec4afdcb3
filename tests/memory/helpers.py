"""Shared by the memory tests: shipped profiles, and answers with a default that a test may change."""

from __future__ import annotations

from typing import Any

from kvsim.capacity import kv_capacity
from kvsim.layout import Layout
from kvsim.memory.drafts import NO_DRAFT, Draft
from kvsim.memory.geometry import KvGeometry, KvSpec, kv_geometry
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved


def model(name: str) -> ModelProfile:
    """A shipped model."""
    return default_store().get("model", name)


def geometry(name: str, kv_dtype: str = "bf16", *, tp: int = 1, pp: int = 1, dcp: int = 1,
             prefix_caching: bool = True, draft: Draft = NO_DRAFT) -> KvGeometry:
    """Geometry of a shipped model."""
    return kv_geometry(model(name), KvSpec(Layout(tp=tp, pp=pp, dcp=dcp), kv_dtype, prefix_caching, draft))


def k3_on_b300(**changes: Any) -> Resolved:
    """Kimi K3 on 8 x B300, TP8, fp8 KV, with changed settings."""
    settings: dict[str, Any] = {"num_gpus": 8, "tp": 8, "kv_dtype": "fp8", **changes}
    return kv_capacity("kimi-k3", "b300", **settings)
