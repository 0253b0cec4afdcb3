"""Least frequently used."""

from __future__ import annotations

from kvsim.cache.eviction.base import Name, Rank, Ranked


class Lfu(Ranked):
    """By how many requests have found a block since it is in the cache; among equals as LRU.

    Counts never age: a session of many turns outlives its end.

    Examples
    --------
    >>> policy = Lfu()
    >>> for block in (5, 3):
    ...     policy.freed(block, (0, block))
    >>> policy.taken(5)
    >>> policy.used(5, row=7)
    >>> policy.freed(5, (0, 5))
    >>> policy.freed(4, (0, 4))
    >>> [policy.evict() for _ in range(3)]
    [3, 4, 5]
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, int] = {}

    def used(self, block: int, row: int) -> None:
        """Count it."""
        del row
        self._uses[block] = self._uses.get(block, 0) + 1

    def freed(self, block: int, name: Name) -> None:
        """Queue it by its count."""
        self._ranks.pop(block, None)
        super().freed(block, name)

    def rank(self, block: int, name: Name) -> Rank:
        """Its count."""
        del name
        return (self._uses.get(block, 0),)

    def forgotten(self, block: int) -> None:
        """It begins anew."""
        super().forgotten(block)
        self._uses.pop(block, None)
