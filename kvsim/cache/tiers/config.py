"""What a tier is, and what it did in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WritePolicy = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A tier below the pool, in base units.

    Attributes
    ----------
    num_blocks : int
        Blocks that it can keep.
    write : "eager" or "lazy"
        A block is stored as soon as it is computed, or when it nears the head of the pool's free queue.
    load_s_per_block, store_s_per_block : float
        Time [s] that one block occupies the link from the tier, and the link to it.
    kind : str
        dram, nvme or pool: where its hits are reported.
    """

    num_blocks: int
    write: WritePolicy
    load_s_per_block: float
    store_s_per_block: float
    kind: Literal["dram", "nvme", "pool"] = "dram"
