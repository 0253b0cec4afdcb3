"""Cache tiers of a scenario in the engine's terms: blocks, and seconds a block on the link."""

from __future__ import annotations

import math
from dataclasses import replace

from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.presets import PRESETS, LinkRate, make_tier
from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.memory.geometry import KvGeometry
from kvsim.profiles.hardware import GpuProfile, NodeProfile
from kvsim.scenario import Scenario, Tier

NIC_EFFICIENCY, NIC_START_S = 0.71, 4e-4
"""Share of the NIC's rate and start of a transfer that RDMA reaches: Mooncake's three published points."""


def tier_configs(scenario: Scenario, gpu: GpuProfile, node: NodeProfile | None,
                 geometry: KvGeometry) -> tuple[TierConfig, ...]:
    """Tiers below HBM, nearest first.

    Parameters
    ----------
    scenario : Scenario
        Its ``tiers``.
    gpu, node : GpuProfile, NodeProfile or None
        Rates of links that the scenario does not state: the GPU's host link for DRAM, the node's flash shared by its
        GPUs, its NIC for a pool.
    geometry : KvGeometry
        Block size.

    Notes
    -----
    Every rank keeps its own copies, as connectors do: a tier of C bytes on a replica of n GPUs holds
    ``C / (n x bytes of a block on one rank)`` blocks. A latent that is replicated over the tensor-parallel ranks
    is therefore stored n times. Each GPU has a link of its own in each direction, so a block takes its bytes on
    one rank divided by the rate that copies reach (measured where a profile has it, else the nominal one). Host DRAM
    bandwidth, which all GPUs share, is not a limit here. A tier of capacity 0 is no tier.

    Raises
    ------
    ScenarioError
        An unknown preset, a rate that nobody states, or a tier that holds less than a block: all problems at once.
    """
    places = [_Place(scenario, i, gpu, node, geometry) for i in range(len(scenario.tiers))]
    problems = [p for place in places for p in place.problems()]
    if problems:
        raise ScenarioError("these tiers cannot be simulated", problems)
    return tuple(place.config() for place in places if place.tier.capacity)


class _Place:
    """One tier of a scenario and what its rates are looked up in."""

    def __init__(self, scenario: Scenario, i: int, gpu: GpuProfile, node: NodeProfile | None,
                 geometry: KvGeometry) -> None:
        self.scenario, self.i, self.gpu, self.node = scenario, i, gpu, node
        self.tier: Tier = scenario.tiers[i]
        self.block_bytes = math.ceil(max(geometry.block_bytes))
        self.num_gpus = scenario.hardware.num_gpus

    def problems(self) -> list[Problem]:
        """What keeps this tier from working."""
        tier, found = self.tier, list[Problem]()
        if tier.preset is not None and tier.preset not in PRESETS:
            found.append(self._problem("preset", repr(tier.preset), ", ".join(PRESETS),
                                       nearest(tier.preset, list(PRESETS))))
        least = 2 * self.block_bytes * self.num_gpus
        if 0 < tier.capacity < least:
            found.append(self._problem("capacity", f"{tier.capacity / 1e9:.3g} GB",
                                       f"0, or at least {least / 1e9:.3g} GB: two blocks on every GPU"))
        for name in ("read", "write"):
            if self._rate(name) is None:
                found.append(self._problem(f"{name}_bandwidth_per_gpu", "",
                                           f"a rate, since no profile states one for {tier.kind} here"))
        return found

    def config(self) -> TierConfig:
        """The tier for the engine; `problems` has found none."""
        tier = self.tier
        read, write = self._rate("read"), self._rate("write")
        assert read is not None
        assert write is not None
        preset = tier.preset or "vllm-simple-eager"
        made = make_tier(preset, tier.capacity / self.num_gpus, self.block_bytes, read, write)
        if tier.write is not None:
            made = replace(made, write=tier.write)
        if tier.load is not None:
            made = replace(made, load_mode=tier.load)
        return replace(made, kind=tier.kind, reuse_threshold=tier.reuse_threshold,
                       load_rule="break-even" if tier.load_rule == "break_even" else "always",
                       offline_from_s=math.inf if tier.offline_from_s is None else tier.offline_from_s)

    def _rate(self, direction: str) -> LinkRate | None:
        stated = self.tier.read_bandwidth_per_gpu if direction == "read" else self.tier.write_bandwidth_per_gpu
        if stated is not None:
            return LinkRate(stated, start_s=self.tier.latency_s or 0.0)
        if self.tier.kind == "dram":
            link = self.gpu.host_link
            rate = (link.to_gpu if direction == "read" else link.from_gpu) or link.bandwidth
            return LinkRate(rate.base, start_s=self.tier.latency_s or 0.0)
        return self._node_rate(direction)

    def _node_rate(self, direction: str) -> LinkRate | None:
        node = self.node
        if self.tier.kind == "pool":
            if node is None or node.nic_bandwidth_per_gpu is None:
                return None
            start_s = NIC_START_S if self.tier.latency_s is None else self.tier.latency_s
            return LinkRate(node.nic_bandwidth_per_gpu.base, NIC_EFFICIENCY, start_s)
        flash = node.nvme if node is not None else None
        rate = flash and (flash.read_bandwidth if direction == "read" else flash.write_bandwidth)
        if node is None or rate is None:
            return None
        return LinkRate(rate.base / node.num_gpus.base, start_s=self.tier.latency_s or 0.0)

    def _problem(self, field: str, given: str, accepted: str, hint: str = "") -> Problem:
        return Problem(self.scenario.origin, f"tiers.{self.i}.{field}", given, accepted, hint)
