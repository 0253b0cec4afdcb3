"""By what it costs to compute again what a block lets one skip."""

from __future__ import annotations

from kvsim.cache.eviction.base import Facts, Name, Rank, Ranked, Release


class CostAware(Ranked):
    """GreedyDual-Size over prefixes: the time to compute a prefix again for each block that holds it.

    A block given back gets ``L + recompute time of the prefix / blocks of the prefix`` [s]; the least goes first, and
    ``L`` rises to it, so that what is not used ages. All blocks of a prefix are worth the same, since without one of
    them those behind it are worth nothing; the last one goes first. Blocks have one size, so this is time per byte.

    Notes
    -----
    Where every prefix costs the same per block this is LRU. Long contexts cost more per block, since attention grows;
    for models with state checkpoints short ones also need more blocks per token.

    Source: P. Cao and S. Irani, Cost-aware WWW proxy caching algorithms, USITS 1997.

    Examples
    --------
    >>> facts = Facts(9, lambda: 0.0, session=[0, 1], priority=[0, 0], recompute_s=lambda tokens: tokens**2 / 1e3)
    >>> policy = CostAware(facts)
    >>> for row, tokens in ((0, 320), (1, 16)):
    ...     policy.releasing(Release(row, tokens, tokens // 16, 1, True, True))
    ...     policy.freed(row, (0, row))
    >>> policy.evict(), policy.evict()
    (1, 0)
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._recompute_s = facts.recompute_s
        self._level_s = self._worth_s = 0.0

    def releasing(self, release: Release | None) -> None:
        """What its prefix is worth."""
        super().releasing(release)
        if release is not None:
            self._worth_s = self._recompute_s(release.tokens) / max(release.prefix_blocks, 1)

    def rank(self, block: int, name: Name) -> Rank:
        """Its worth above the present level."""
        del block, name
        return (self._level_s + self._worth_s,)

    def evict(self) -> int:
        """The least; the level rises to it."""
        block = super().evict()
        self._level_s = max(self._level_s, self._ranks[block][0])
        return block
