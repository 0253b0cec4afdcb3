"""How much context fits: blocks, tokens and sessions, as a function of context length."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.memory.budget import MemoryBudget
from kvsim.memory.geometry import KvGeometry, LogFormula
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes, model_window_bytes
from kvsim.profiles.model import ModelProfile

CONTEXTS = (8_192, 32_768, 142_016, 300_000, 1_048_576)
"""Context lengths [tokens] that a capacity answer is given at: 8k, 32k, the agentic median, 300k, 1M."""


@dataclass(frozen=True, slots=True)
class FitAtContext:
    """What fits when every session has the same context length.

    ``sessions`` may be 0: one request of that length does not fit.
    """

    context_tokens: int
    blocks_per_session: int
    sessions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV capacity of one replica.

    Attributes
    ----------
    budget : MemoryBudget or None
        HBM budget; None when the pool was given (a logged one).
    geometry : KvGeometry
        Block geometry.
    num_blocks : int
        Blocks of one pool, the null block included (as engines log it).
    num_pools : int
        Attention-DP ranks, each with a pool of its own.
    kv_tokens : int
        The "KV cache size" that the engine would log at ``max_model_len``; not physical for hybrids.
    max_concurrency : float
        Sessions of ``max_model_len`` that fit, as the engine logs it.
    max_model_len : int
        Context length that the two figures above refer to.
    bytes_per_token, state_bytes_per_sequence, window_bytes_per_sequence : float
        Whole model, before replication: growing KV; constant state; full sliding windows.
    checkpoint_bytes : float
        One kept state checkpoint, padded to pages, all ranks together; 0 without state groups.
    fits : tuple of FitAtContext
        The answer by context length.
    """

    budget: MemoryBudget | None
    geometry: KvGeometry
    num_blocks: int
    num_pools: int
    kv_tokens: int
    max_concurrency: float
    max_model_len: int
    bytes_per_token: float
    state_bytes_per_sequence: float
    window_bytes_per_sequence: float
    checkpoint_bytes: float
    fits: tuple[FitAtContext, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of blocks: how many, how many of them, and the log it is described in."""

    num_blocks: int
    num_pools: int = 1
    max_model_len: int = 1_048_576
    log_formula: LogFormula = "product"


def capacity(model: ModelProfile, geometry: KvGeometry, pool: Pool, kv_dtype: str, tp: int,
             budget: MemoryBudget | None = None) -> Capacity:
    """Capacity of a replica with a pool of `pool.num_blocks` blocks.

    Notes
    -----
    Sessions at a context are ``floor((N - 1) / blocks_for(context))``: the null block is not usable. The logged
    figures use N, as engines do.
    """
    need = geometry.blocks_for(pool.max_model_len)
    formula = pool.log_formula if geometry.hybrid else "uniform"
    return Capacity(
        budget=budget,
        geometry=geometry,
        num_blocks=pool.num_blocks,
        num_pools=pool.num_pools,
        kv_tokens=pool.num_pools * geometry.logged_tokens(pool.num_blocks, pool.max_model_len, formula),
        max_concurrency=pool.num_pools * pool.num_blocks / need,
        max_model_len=pool.max_model_len,
        bytes_per_token=model_bytes_per_token(model, kv_dtype),
        state_bytes_per_sequence=model_state_bytes(model, geometry.draft_tokens),
        window_bytes_per_sequence=model_window_bytes(model, kv_dtype),
        checkpoint_bytes=geometry.state_groups * sum(geometry.block_bytes) * tp,
        fits=tuple(fit_at(geometry, pool, c) for c in CONTEXTS if c <= max(pool.max_model_len, CONTEXTS[0])),
    )


def fit_at(geometry: KvGeometry, pool: Pool, context_tokens: int) -> FitAtContext:
    """Sessions and tokens that fit when every session has `context_tokens`.

    Examples
    --------
    >>> from kvsim.layout import Layout
    >>> from kvsim.memory.geometry import KvSpec, kv_geometry
    >>> from kvsim.profiles.store import default_store
    >>> k3 = kv_geometry(default_store().get("model", "kimi-k3"), KvSpec(Layout(tp=8), "fp8"))
    >>> fit_at(k3, Pool(2135), 142_016).sessions
    21
    """
    need = geometry.blocks_for(context_tokens)
    sessions = pool.num_pools * ((pool.num_blocks - 1) // need)
    return FitAtContext(context_tokens, need, sessions, sessions * context_tokens)
