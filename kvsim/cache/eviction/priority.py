"""By the urgency of traffic classes."""

from __future__ import annotations

from kvsim.cache.eviction.base import Facts, Name, Rank, Ranked


class ByPriority(Ranked):
    """What the least urgent requests gave back goes first; among equals as LRU.

    A block has the priority of the request that gave it back last (lower numbers are more urgent).

    Examples
    --------
    >>> from kvsim.cache.eviction.base import Release
    >>> policy = ByPriority(Facts(9, lambda: 0.0, session=[0, 1], priority=[5, 0], recompute_s=lambda n: 0.0))
    >>> for row, block in ((1, 4), (0, 3)):
    ...     policy.releasing(Release(row, 16, 1, 1, True, True))
    ...     policy.freed(block, (0, block))
    >>> policy.evict(), policy.evict()
    (3, 4)
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._priority = facts.priority

    def rank(self, block: int, name: Name) -> Rank:
        """The largest priority number first."""
        del block, name
        return (-self._priority[self.release.row],) if self.release is not None else ()
