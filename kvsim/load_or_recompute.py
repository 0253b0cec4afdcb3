"""Load a context from a tier, or compute it again? By context length, a line a tier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kvsim.cache.tiers.config import TierConfig
from kvsim.errors import Problem, ScenarioError
from kvsim.memory.geometry import KvGeometry
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.report.kv_throughput import KvThroughput, kv_throughput
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario, Tier
from kvsim.simulation import step_time_of
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.prompts import prefill_s
from kvsim.tiering import tier_configs

LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
"""Context lengths [tokens] that are looked at, as far as the engine takes them."""

KINDS = ("dram", "nvme", "pool")
"""Tiers that are looked at: those of the scenario, and others whose rates the profiles know."""

ROOM = 2.0**60
"""Capacity [bytes] of a tier that the scenario does not have; it plays no part here."""


@dataclass(frozen=True, slots=True)
class ContextCost:
    """One context length.

    Attributes
    ----------
    context_tokens : int
        Length [tokens].
    moved_bytes_per_gpu : float
        What a tier sends to each GPU: whole blocks and one state checkpoint [bytes].
    recompute_s : float
        Time to compute it again, alone, in chunks [s].
    load_s : mapping of str to float
        Time to load it from each tier over an idle link [s].
    """

    context_tokens: int
    moved_bytes_per_gpu: float
    recompute_s: float
    load_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoadOrRecompute:
    """Where loading pays, for one scenario.

    Attributes
    ----------
    name : str
        The scenario's name.
    rows : tuple of ContextCost
        By context length, ascending.
    break_even_tokens : mapping of str to int or None
        From which length on loading from a tier is faster than computing; None where it never is.
    link_bytes_per_s : mapping of str to float
        Rate at which each tier's link fills one GPU.
    kv_throughput : tuple of KvThroughput
        KV throughput at the same lengths.
    """

    name: str
    rows: tuple[ContextCost, ...]
    break_even_tokens: Mapping[str, int | None]
    link_bytes_per_s: Mapping[str, float]
    kv_throughput: tuple[KvThroughput, ...]

    def text(self) -> str:
        """A table for people, and the break-even lengths."""
        tiers = list(self.link_bytes_per_s)
        rates = "; ".join(f"{t} {self.link_bytes_per_s[t] / 1e9:.1f} GB/s a GPU" for t in tiers) or "no tier known"
        head = (f"{'context':>10s} {'MiB a GPU':>10s} {'KV GB/s':>8s} {'recompute s':>12s}"
                + "".join(f" {'load ' + t + ' s':>12s}" for t in tiers))
        lines = [f"{self.name}: load or recompute ({rates})", head]
        for row, made in zip(self.rows, self.kv_throughput, strict=True):
            loads = "".join(f" {row.load_s[t]:12.4f}" for t in tiers)
            lines.append(f"{row.context_tokens:10,} {row.moved_bytes_per_gpu / 2**20:10.1f} "
                         f"{made.bytes_per_s / 1e9:8.3f} {row.recompute_s:12.4f}{loads}")
        return "\n".join([*lines, *(_break_even_line(t, self.break_even_tokens[t]) for t in tiers)])


def load_or_recompute(scenario: Scenario | Resolved, lengths: Iterable[int] = LENGTHS) -> LoadOrRecompute:
    """Time to load contexts from each tier against time to compute them.

    Parameters
    ----------
    scenario : Scenario or Resolved
        Model, hardware, layout, engine; its tiers' rates where it has tiers.
    lengths : iterable of int
        Context lengths [tokens]; those above ``max_model_len`` are left out.

    Returns
    -------
    LoadOrRecompute
        With ``.text()`` and plain data for charts.

    Raises
    ------
    ScenarioError
        No length is left, or a length below 1.

    Notes
    -----
    A load is one transfer over an idle link, of what the engine moves: whole blocks, a copy for every tensor-parallel
    rank, and for constant state one checkpoint. Recomputing is the prefill of the whole context with nothing else in
    the engine. Neither waits for others: loads that share a link take longer, and so does prefill beside decoding.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> found = load_or_recompute(load_scenario("k3-b300-dram"), [32_768])
    >>> found.rows[0].load_s["dram"] < found.rows[0].recompute_s
    True
    """
    resolved = scenario if isinstance(scenario, Resolved) else resolve(scenario)
    asked = sorted(set(lengths))
    kept = [tokens for tokens in asked if tokens <= resolved.limits.max_model_len]
    if not kept or asked[0] < 1:
        problem = Problem(resolved.scenario.origin, "lengths", ", ".join(map(str, asked)) or "none",
                          f"context lengths from 1 to {resolved.limits.max_model_len:,}, the longest request")
        raise ScenarioError("no such context lengths", [problem])
    view = _View(resolved, step_time_of(resolved), _tiers(resolved))
    return LoadOrRecompute(
        resolved.scenario.name, tuple(view.row(tokens) for tokens in kept),
        {tier.kind: view.break_even_tokens(tier) for tier in view.tiers},
        {tier.kind: tier.block_bytes / tier.load_s_per_block for tier in view.tiers},
        kv_throughput(view.model, model_bytes_per_token(resolved.model, resolved.scenario.engine.kv_dtype),
                      model_state_bytes(resolved.model), view.budget_tokens, kept))


class _View:
    """A resolved scenario with what both ways take."""

    def __init__(self, resolved: Resolved, model: StepTimeModel, tiers: tuple[TierConfig, ...]) -> None:
        self.model, self.tiers = model, tiers
        self.geometry: KvGeometry = resolved.capacity.geometry
        self.budget_tokens = resolved.engine.max_num_batched_tokens
        self.longest_tokens = resolved.limits.max_model_len

    def row(self, tokens: int) -> ContextCost:
        moved = self._blocks(tokens) * max(self.geometry.block_bytes)
        return ContextCost(tokens, moved, prefill_s(self.model, tokens, self.budget_tokens),
                           {tier.kind: self.load_s(tier, tokens) for tier in self.tiers})

    def load_s(self, tier: TierConfig, tokens: int) -> float:
        """Time [s] of one transfer."""
        return tier.load_start_s + self._blocks(tokens) * tier.load_s_per_block

    def break_even_tokens(self, tier: TierConfig) -> int | None:
        """Shortest context from which on loading is faster up to the longest one, to one block."""
        step = self.geometry.block_capacity_tokens
        if not self._pays(tier, self.longest_tokens):
            return None
        low, high = 0, math.ceil(self.longest_tokens / step)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._pays(tier, middle * step) else (middle, high)
        return min(high * step, self.longest_tokens)

    def _pays(self, tier: TierConfig, tokens: int) -> bool:
        return self.load_s(tier, tokens) < prefill_s(self.model, tokens, self.budget_tokens)

    def _blocks(self, tokens: int) -> int:
        """Blocks of a context and of the checkpoint at its end."""
        attention = sum(group.kind != "state" for group in self.geometry.groups)
        return attention * math.ceil(tokens / self.geometry.block_capacity_tokens) + self.geometry.state_groups


def _tiers(resolved: Resolved) -> tuple[TierConfig, ...]:
    """The scenario's tiers, and one of every other kind whose rates are known."""
    scenario, found = resolved.scenario, list(resolved.engine.tiers)
    for kind in KINDS:
        if kind in {tier.kind for tier in found}:
            continue
        alone = scenario.model_copy(update={"tiers": (Tier(kind=kind, capacity=ROOM),)})
        try:
            found += tier_configs(alone, resolved.gpu, resolved.node, resolved.capacity.geometry)
        except ScenarioError:
            continue
    block_bytes = math.ceil(max(resolved.capacity.geometry.block_bytes))
    known = [replace(tier, block_bytes=block_bytes) for tier in found if tier.load_s_per_block > 0]
    return tuple(sorted(known, key=lambda tier: KINDS.index(tier.kind)))


def _break_even_line(tier: str, tokens: int | None) -> str:
    if tokens is None:
        return f"{tier}: computing again is faster at every length"
    return f"{tier}: loading is faster from {tokens:,} tokens on"
