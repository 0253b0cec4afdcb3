"""Tiers as engines and connectors have them, as settings of one machinery, and tiers from sizes and rates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.cache.tiers.config import TierConfig
from kvsim.errors import Problem, ScenarioError, nearest


@dataclass(frozen=True, slots=True)
class TierPreset:
    """How one connector behaves.

    Attributes
    ----------
    config : TierConfig
        Its rules; sizes and times are left open.
    exact : bool
        Whether kvsim decides as the real code does (checked against recordings).
    note : str
        What is left out, or where it was read.
    """

    config: TierConfig
    exact: bool
    note: str


_VLLM = "vLLM 0.33.0, SimpleCPUOffloadConnector"

PRESETS: Mapping[str, TierPreset] = {
    "vllm-simple-eager": TierPreset(TierConfig(0, "eager"), True, f"{_VLLM}, its default"),
    "vllm-simple-lazy": TierPreset(TierConfig(0, "lazy"), True, f"{_VLLM}, lazy_offload"),
    "vllm-native": TierPreset(
        TierConfig(0, "eager", step_cost_frac=1.0), False,
        "vLLM's OffloadingConnector: inclusive, written after the step that computed a block; its ARC eviction and its "
        "synchronous loads are not modelled; on one H200 prefill steps took longer by about the time of the copies "
        "they start (own runs of vLLM 0.24.0), store_threshold n is write on-reuse with reuse_threshold n "
        "(https://vllm.ai/blog/2026-01-08-kv-offloading-connector)"),
    "lmcache": TierPreset(
        TierConfig(0, "eager", stores_outputs=False), False,
        "LMCache 0.5.6: inclusive, prompts only; its chunks of 256 tokens and sweeps of 20 % at a watermark are not "
        "modelled; loads layer by layer, which it offers, are load layerwise (https://docs.lmcache.ai)"),
    "hicache": TierPreset(
        TierConfig(0, "eager", load_mode="layerwise"), False,
        "SGLang HiCache's host tier, write_through, loads layer by layer under the prefill; host slots of states "
        "split off by bytes are not modelled (https://docs.sglang.io/advanced_features/hicache_design.html)"),
    "hicache-l3": TierPreset(
        TierConfig(0, "eager", kind="pool", min_load_tokens=257), False,
        "SGLang HiCache's third level: fetched only for hits of more than 256 tokens; its time limit of prefetches is "
        "not modelled (https://docs.sglang.io/advanced_features/hicache_design.html)"),
    "trtllm": TierPreset(
        TierConfig(0, "on-eviction"), False,
        "TensorRT-LLM: copied to the host when evicted from the GPU, exclusive; priorities, eviction of leaves only "
        "and partial blocks are not modelled (https://nvidia.github.io/TensorRT-LLM/latest/features/kvcache.html)"),
    "mooncake-store": TierPreset(
        TierConfig(0, "eager", kind="pool"), False,
        "Mooncake Store straight from GPU memory, with other replicas' writes where the tier is shared; its own "
        "eviction is not modelled (https://vllm.ai/blog/2026-05-06-mooncake-store)"),
    "no-multi-group": TierPreset(
        TierConfig(0, "eager", multi_group=False), False,
        "a connector that handles one group of layers only: nothing is kept for hybrid models. Real engines may also "
        "switch the hybrid allocator off, which shrinks the pool; that is not modelled here"),
}
"""Presets by name."""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """One direction of a link.

    Attributes
    ----------
    bytes_per_s : float
        Bandwidth [bytes/s], > 0.
    efficiency : float
        Share of it that large transfers reach, 0 to 1.
    start_s : float
        Time [s] that every transfer takes besides.
    """

    bytes_per_s: float
    efficiency: float = 1.0
    start_s: float = 0.0

    def s_per_block(self, block_bytes: int) -> float:
        """Time [s] that one block occupies the link; inf without bandwidth.

        >>> LinkRate(50e9, 0.8).s_per_block(21_233_664)
        0.0005308416
        """
        rate = self.bytes_per_s * self.efficiency
        return block_bytes / rate if rate > 0 else math.inf


def make_tier(preset: str, capacity_bytes: float, block_bytes: int, read: LinkRate, write: LinkRate) -> TierConfig:
    """A tier from its size and its links.

    Parameters
    ----------
    preset : str
        One of `PRESETS`.
    capacity_bytes : float
        Size of the tier [bytes]; a null block is taken from it.
    block_bytes : int
        Size of a block [bytes], >= 1, of all ranks if capacity and rates are of all ranks.
    read, write : LinkRate
        The way out of the tier and the way into it.

    Returns
    -------
    TierConfig
        The tier; without room for a block it has ``num_blocks`` 0 and is no tier.

    Raises
    ------
    ScenarioError
        The preset is unknown, a size is impossible, or a link has no bandwidth.

    Notes
    -----
    A transfer of n blocks takes ``start_s + n * block_bytes / (efficiency * bytes_per_s)``.

    Examples
    --------
    >>> tier = make_tier("lmcache", 64e9, 21_233_664, LinkRate(50e9), LinkRate(40e9, start_s=1e-4))
    >>> tier.num_blocks, tier.store_start_s, tier.stores_outputs
    (3014, 0.0001, False)
    """
    problems = _problems(preset, capacity_bytes, block_bytes, {"read": read, "write": write})
    if problems:
        raise ScenarioError("this tier cannot work", problems)
    return dataclasses.replace(
        PRESETS[preset].config, num_blocks=int(capacity_bytes // block_bytes), block_bytes=block_bytes,
        load_s_per_block=read.s_per_block(block_bytes), store_s_per_block=write.s_per_block(block_bytes),
        load_start_s=read.start_s, store_start_s=write.start_s)


def _problems(preset: str, capacity_bytes: float, block_bytes: int, links: Mapping[str, LinkRate]) -> list[Problem]:
    """Everything wrong with a tier."""
    problems: list[Problem] = []
    if preset not in PRESETS:
        problems.append(Problem("tier", "preset", preset, ", ".join(PRESETS), nearest(preset, list(PRESETS))))
    if not 0 <= capacity_bytes < math.inf:
        problems.append(Problem("tier", "capacity_bytes", str(capacity_bytes), "0 or more"))
    if block_bytes < 1:
        problems.append(Problem("tier", "block_bytes", str(block_bytes), "1 or more"))
    for name, link in links.items():
        if not 0 < link.bytes_per_s < math.inf:
            problems.append(Problem("tier", f"{name}.bytes_per_s", str(link.bytes_per_s), "more than 0",
                                    "no bandwidth, no transfer"))
        if not 0 < link.efficiency <= 1:
            problems.append(Problem("tier", f"{name}.efficiency", str(link.efficiency), "more than 0, at most 1"))
        if not 0 <= link.start_s < math.inf:
            problems.append(Problem("tier", f"{name}.start_s", str(link.start_s), "0 or more"))
    return problems
