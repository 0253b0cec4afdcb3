"""KV capacity as a question of its own: no traffic, no simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvsim.errors import KvsimError, Problem, nearest
from kvsim.memory.capacity import Capacity
from kvsim.profiles.store import ProfileStore
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario
from kvsim.units import gib, si

_HARDWARE, _LAYOUT = ("gpu", "num_gpus"), ("tp", "pp", "ep", "dp", "dcp")


def kv_capacity(model: str, gpu: str, num_gpus: int = 1, *, store: ProfileStore | None = None,
                **settings: Any) -> Resolved:
    """How much KV cache fits on one replica.

    Parameters
    ----------
    model, gpu : str
        Profile names or aliases.
    num_gpus : int
        GPUs of the replica.
    store : ProfileStore, optional
        Where profiles are found.
    **settings
        ``tp, pp, ep, dp, dcp`` and the engine settings of a scenario: ``kv_dtype``, ``gpu_memory_utilization``,
        ``max_model_len``, ``max_num_seqs``, ``max_num_batched_tokens``, ``prefix_caching``, ``draft``, ``profile``,
        ``num_blocks``, ``kv_bytes_per_gpu``, ``block_tokens``. None means the engine profile's default.

    Returns
    -------
    Resolved
        ``.capacity`` has blocks, tokens and sessions by context length, ``.budget`` the HBM budget.

    Raises
    ------
    ScenarioError, ProfileError
        Unknown names or settings, a layout that cannot be built.
    InfeasibleError
        It does not fit; carries the budget and what would fit.

    Examples
    --------
    >>> answer = kv_capacity("kimi-k3", "b300", 8, tp=8, kv_dtype="fp8", kv_bytes_per_gpu="42.23 GiB")
    >>> answer.capacity.num_blocks, answer.capacity.kv_tokens
    (2135, 3249215)
    """
    given = {k: v for k, v in settings.items() if v is not None}
    layout = {k: given.pop(k) for k in _LAYOUT if k in given}
    asked = {
        "name": "capacity", "model": model, "hardware": {"gpu": gpu, "num_gpus": num_gpus}, "layout": layout,
        "engine": given,
        "workload": {"fixed": {"num_requests": 1, "input_tokens": 1, "output_tokens": 1}, "concurrency": 1},
    }
    try:
        return resolve(Scenario.from_dict(asked, "kv_capacity"), store)
    except KvsimError as err:
        message = err.message.replace("kv_capacity is not a valid scenario", "that cannot be answered")
        raise type(err)(message, map(_argument, err.problems)) from None


def _argument(problem: Problem) -> Problem:
    """A problem of the scenario behind the question as one of the argument that was given."""
    if problem.where != "kv_capacity":
        return problem
    if problem.given == "an unknown key":
        known = [*_LAYOUT, *problem.accepted.split(", ")]
        problem = replace(problem, accepted=", ".join(known), hint=nearest(problem.field.rpartition(".")[2], known))
    return replace(problem, field="num_gpus" if problem.field == "layout" else problem.field.rpartition(".")[2])


def capacity_text(answer: Resolved) -> str:
    """The answer of `kv_capacity` as text: budget, pool, bytes, and what fits at each context length."""
    capacity, scenario = answer.capacity, answer.scenario
    head = (f"{answer.model.name} on {scenario.hardware.num_gpus} x {answer.gpu.name}, {answer.layout}, "
            f"{scenario.engine.kv_dtype} KV, engine profile {answer.engine_profile.name}")
    return "\n".join([head, "", "HBM of the fullest GPU", answer.budget.text(), "", *pool_lines(capacity), "",
                      *fit_lines(capacity)])


def pool_lines(capacity: Capacity) -> list[str]:
    """Pool, logged size, and the three kinds of bytes, a line each."""
    geometry = capacity.geometry
    per_gpu = max(geometry.block_bytes)
    pools = f" in each of {capacity.num_pools} pools" if capacity.num_pools > 1 else ""
    lines = [
        f"pool: {capacity.num_blocks:,} blocks of {geometry.block_capacity_tokens:,} tokens{pools}, "
        f"{gib(capacity.num_blocks * per_gpu)} per GPU, {len(geometry.groups)} KV cache groups",
        f"as the engine would log it at max_model_len {capacity.max_model_len:,}: KV cache size "
        f"{capacity.kv_tokens:,} tokens, maximum concurrency {capacity.max_concurrency:.2f}x",
        f"bytes per token {capacity.bytes_per_token:,.0f} B (whole model, before replication)",
    ]
    if capacity.state_bytes_per_sequence:
        state = capacity.state_bytes_per_sequence / 2**20
        lines += [f"bytes per sequence {state:,.2f} MiB of state, constant in context",
                  f"bytes per checkpoint {capacity.checkpoint_bytes / 1e6:,.1f} MB, "
                  f"{geometry.state_groups} blocks of the pool"]
    if capacity.window_bytes_per_sequence:
        lines.append(f"bytes per sequence {capacity.window_bytes_per_sequence / 2**20:,.2f} MiB of full windows")
    return lines


def fit_lines(capacity: Capacity) -> list[str]:
    """What fits when every session has the same context length: a table."""
    rows = [f"  {'context':>10}  {'blocks each':>11}  {'sessions':>8}  {'tokens held':>12}"]
    rows += [f"  {f.context_tokens:>10,}  {f.blocks_per_session:>11,}  {f.sessions:>8,}  {si(f.tokens, ''):>12}"
             for f in capacity.fits]
    return ["fits, by context length", *rows]
