"""What a launch line says, in the scenario's terms, whichever engine it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.interop.flags import Parsed
from kvsim.profiles.model import MlaAttention, ModelProfile

MTP_METHODS = frozenset(("mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp", "ernie_mtp",
                         "mimo_mtp", "pangu_ultra_moe_mtp", "longcat_flash_mtp", "nextn"))
"""Drafting methods that use the checkpoint's own multi-token-prediction layers."""

MODELLED_DRAFTS = ("mtp", "eagle3", "dflash", "dspark")
"""Kinds of drafts that a scenario can have; launch lines may say them in capitals."""


@dataclass(slots=True)
class Reading:
    """Parts of a scenario that a launch line decides; keys as in the scenario file, unset ones left out.

    ``world`` is the number of GPUs of one replica.
    """

    layout: dict[str, int] = field(default_factory=dict[str, int])
    world: int = 1
    replicas: int = 1
    engine: dict[str, Any] = field(default_factory=dict[str, Any])
    tiers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def set(self, name: str, value: Any) -> None:
        """Set an engine field, if the line says anything."""
        if value is not None:
            self.engine[name] = value


@dataclass(frozen=True, slots=True)
class Asked:
    """A launch line that is being read: its flags, its environment, and the model."""

    parsed: Parsed
    env: Mapping[str, str]
    model: ModelProfile

    @property
    def hybrid(self) -> bool:
        """Whether the model has layers with constant state."""
        return any(spec.kind in ("kda", "gdn", "mamba") for spec in self.model.attention.values())

    @property
    def several_kinds(self) -> bool:
        """Whether layers differ in what they keep: states or windows beside full attention."""
        return self.hybrid or any(getattr(spec, "window", None) for spec in self.model.attention.values())

    @property
    def sparse(self) -> bool:
        """Whether the model's latent attention picks tokens with an indexer."""
        return any(isinstance(s, MlaAttention) and s.indexer_head_dim for s in self.model.attention.values())


def kv_dtype_of(given: str, asked: Asked) -> str | None:
    """The scenario's KV format of an engine's name for it; None where there is none.

    vLLM stores DeepSeek's sparse latent in a format of its own (``fp8_ds_mla``) when fp8 is asked for.
    """
    name = given.lower()
    if name in ("auto", "bfloat16", "bf16", "float16", "half"):
        return "bf16"
    if name == "fp8_ds_mla" or (name.startswith("fp8") and asked.sparse):
        return "fp8_ds_mla"
    return "fp8" if name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc") else None


def read_kv_dtype(asked: Asked, reading: Reading) -> None:
    """Read ``--kv-cache-dtype``."""
    given = asked.parsed.values.get("kv-cache-dtype")
    if given is None:
        return
    found = kv_dtype_of(str(given), asked)
    if found is None:
        asked.parsed.note("kv-cache-dtype", "not modelled", "bf16, fp8 and fp8_ds_mla are; bf16 is taken instead")
        return
    reading.engine["kv_dtype"] = found
    asked.parsed.note("kv-cache-dtype", "modelled", f"engine.kv_dtype: {found}")


def read_block_size(name: str, asked: Asked, reading: Reading) -> None:
    """Read the block or page size; for hybrid models the engine chooses its own."""
    if asked.hybrid:
        asked.parsed.note(name, "no effect", "a hybrid model's block is sized by the state it has to hold")
        return
    reading.set("block_tokens", asked.parsed.number(name, "engine.block_tokens"))


def method_of(model: str) -> str:
    """The drafting method that a draft model's name tells, as vLLM tells it; empty where it tells none.

    >>> method_of("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), method_of("x/y")
    ('eagle3', '')
    """
    return next((name for name in MODELLED_DRAFTS if name in model.lower()), "")


def why_no_draft(method: str) -> str:
    """What is said of a draft that cannot be simulated."""
    if method in MTP_METHODS or method in MODELLED_DRAFTS:
        return f"{method} drafts without a number of tokens of at least 1"
    return f"{method or 'such'} drafts; MTP, EAGLE3, DFlash and DSpark are modelled"


def draft_name(method: str, tokens: int, kv_dtype: str) -> str | None:
    """The scenario's name of a draft; None for methods that are not modelled.

    >>> draft_name("deepseek_mtp", 2, "fp8"), draft_name("dspark", 7, "fp8"), draft_name("eagle3", 3, "fp8")
    ('mtp-k2', 'dspark-fp8-k7', 'eagle3-k3')
    >>> draft_name("ngram", 3, "fp8") is None
    True
    """
    name = "mtp" if method.lower() in MTP_METHODS else method.lower()
    if tokens < 1 or name not in MODELLED_DRAFTS:
        return None
    return f"{name}-{'bf16' if kv_dtype == 'bf16' else 'fp8'}-k{tokens}" if name == "dspark" else f"{name}-k{tokens}"
