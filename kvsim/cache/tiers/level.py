"""One tier: its blocks, its two links."""

from __future__ import annotations

from kvsim.cache.blocks import BlockPool, Name
from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.links import Link


class Level:
    """A tier at work.

    Attributes
    ----------
    pool : BlockPool
        Its blocks: used while a transfer needs them, else free and, once something has arrived in them, findable.
    load_link, store_link : Link
        The way out of the tier and the way into it.
    """

    def __init__(self, config: TierConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks + 1)
        self.load_link = Link(config.load_s_per_block)
        self.store_link = Link(config.store_s_per_block)

    def has(self, name: Name) -> bool:
        """Whether a block of that name has arrived and is still there."""
        return self.pool.find(name) is not None
