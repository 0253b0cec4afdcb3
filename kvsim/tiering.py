"""Cache tiers of a scenario in the engine's terms: blocks, and seconds a block on the link."""

from __future__ import annotations

from kvsim.cache.tiers.config import TierConfig
from kvsim.errors import Problem, ScenarioError
from kvsim.memory.geometry import KvGeometry
from kvsim.profiles.hardware import GpuProfile
from kvsim.scenario import Scenario, Tier

SIMULATED_KINDS = ("dram",)
SIMULATED_WRITES = ("eager", "lazy")


def tier_configs(scenario: Scenario, gpu: GpuProfile, geometry: KvGeometry) -> tuple[TierConfig, ...]:
    """Tiers below HBM, nearest first.

    Notes
    -----
    Every rank keeps its own copies, as connectors do: a tier of C bytes on a replica of n GPUs holds
    ``C / (n x bytes of a block on one rank)`` blocks. A latent that is replicated over the tensor-parallel ranks
    is therefore stored n times. Each GPU has a host link of its own in each direction, so a block takes its bytes on
    one rank divided by the rate that copies reach (measured where the GPU's profile has it, else the nominal one).
    Host DRAM bandwidth, which all GPUs share, is not a limit here.

    Raises
    ------
    ScenarioError
        Tiers that cannot be simulated yet, or one that holds less than a block.
    """
    problems: list[Problem] = []
    found: list[TierConfig] = []
    for i, tier in enumerate(scenario.tiers):
        problems += _unsupported(scenario, i, tier)
        num_blocks = int(tier.capacity / (scenario.hardware.num_gpus * max(geometry.block_bytes)))
        found.append(_config(tier, num_blocks, gpu, geometry))
    if len(scenario.tiers) > 1:
        problems.append(Problem(scenario.origin, "tiers", f"{len(scenario.tiers)} tiers", "one tier"))
    if problems:
        raise ScenarioError("these tiers cannot be simulated", problems)
    return tuple(t for t in found if t.num_blocks > 0)


def _unsupported(scenario: Scenario, i: int, tier: Tier) -> list[Problem]:
    found: list[Problem] = []
    if tier.kind not in SIMULATED_KINDS:
        found.append(Problem(scenario.origin, f"tiers.{i}.kind", repr(tier.kind), ", ".join(SIMULATED_KINDS)))
    if tier.write not in SIMULATED_WRITES:
        found.append(Problem(scenario.origin, f"tiers.{i}.write", repr(tier.write), ", ".join(SIMULATED_WRITES)))
    return found


def _config(tier: Tier, num_blocks: int, gpu: GpuProfile, geometry: KvGeometry) -> TierConfig:
    link, size = gpu.host_link, max(geometry.block_bytes)
    load = tier.read_bandwidth_per_gpu or (link.to_gpu or link.bandwidth).base
    store = tier.write_bandwidth_per_gpu or (link.from_gpu or link.bandwidth).base
    write = "lazy" if tier.write == "lazy" else "eager"
    return TierConfig(num_blocks, write, size / load, size / store, tier.kind)
