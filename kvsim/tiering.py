"""Cache tiers of a scenario in the engine's terms: blocks, and seconds a block on the link."""

from __future__ import annotations

import math
from dataclasses import replace

from kvsim.cache.tiers.config import TierConfig, WritePolicy
from kvsim.cache.tiers.presets import PRESETS, LinkRate, make_tier
from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.memory.geometry import KvGeometry
from kvsim.profiles.hardware import NIC_EFFICIENCY, GpuProfile, NodeProfile
from kvsim.scenario import Scenario, Tier

NIC_START_S = 4e-4
"""Start of an RDMA transfer [s]: Mooncake's three published points."""
DEFAULT_PRESET = "vllm-simple-eager"
"""Rules of a tier that names none."""


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
    bandwidth, which all GPUs share, is not a limit here. A tier of capacity 0 is no tier. What a shared tier keeps on
    other nodes goes over the network cards of both, at the share of their rate that RDMA reaches.

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
        return found + (self._sharing_problems() if tier.shared and tier.capacity else [])

    def _sharing_problems(self) -> list[Problem]:
        """What keeps replicas from sharing this tier."""
        found = list[Problem]()
        if any(other.capacity for other in self.scenario.tiers[self.i + 1:]):
            found.append(self._problem("shared", "true above another tier", "a shared tier as the last one"))
        if self._write() == "on-eviction":
            found.append(self._problem("write", "on-eviction in a shared tier",
                                       "eager, lazy, on-reuse or none: what one replica loads stays there for all"))
        if self.scenario.autoscale is not None:
            found.append(self._problem("shared", "true with autoscale, whose nodes come and go with their memory",
                                       "false, or no autoscale"))
        if self._network() is None:
            found.append(self._problem("network_bandwidth_per_gpu", "",
                                       "a rate, since no node profile states that of its network cards here"))
        return found

    def _write(self) -> WritePolicy:
        """When the tier stores."""
        preset = PRESETS.get(self.tier.preset or DEFAULT_PRESET)
        return self.tier.write or (preset.config.write if preset else "eager")

    def config(self) -> TierConfig:
        """The tier for the engine; `problems` has found none."""
        tier = self.tier
        read, write = self._rate("read"), self._rate("write")
        assert read is not None
        assert write is not None
        preset = tier.preset or DEFAULT_PRESET
        made = make_tier(preset, tier.capacity / self.num_gpus, self.block_bytes, read, write)
        if tier.write is not None:
            made = replace(made, write=tier.write)
        if tier.load is not None:
            made = replace(made, load_mode=tier.load)
        network = self._network() if tier.shared else None
        if network is not None:
            made = replace(made, shared=True, network_start_s=network.start_s,
                           network_s_per_block=network.s_per_block(self.block_bytes))
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

    def _network(self) -> LinkRate | None:
        """One direction of a GPU's network card between the nodes that share a tier."""
        tier = self.tier
        if tier.network_bandwidth_per_gpu is not None:
            return LinkRate(tier.network_bandwidth_per_gpu, start_s=tier.network_latency_s or 0.0)
        return self._nic_rate(tier.network_latency_s)

    def _nic_rate(self, latency_s: float | None) -> LinkRate | None:
        """What RDMA gets out of a GPU's network card."""
        if self.node is None or self.node.nic_bandwidth_per_gpu is None:
            return None
        start_s = NIC_START_S if latency_s is None else latency_s
        return LinkRate(self.node.nic_bandwidth_per_gpu.base, NIC_EFFICIENCY, start_s)

    def _node_rate(self, direction: str) -> LinkRate | None:
        node = self.node
        if self.tier.kind == "pool":
            return self._nic_rate(self.tier.latency_s)
        flash = node.nvme if node is not None else None
        rate = flash and (flash.read_bandwidth if direction == "read" else flash.write_bandwidth)
        if node is None or rate is None:
            return None
        return LinkRate(rate.base / node.num_gpus.base, start_s=self.tier.latency_s or 0.0)

    def _problem(self, field: str, given: str, accepted: str, hint: str = "") -> Problem:
        return Problem(self.scenario.origin, f"tiers.{self.i}.{field}", given, accepted, hint)
