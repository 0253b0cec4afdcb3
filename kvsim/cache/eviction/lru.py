"""Least recently used: vLLM's order. The pool has it built in; this class says the same in a policy's words."""

from __future__ import annotations

from kvsim.cache.eviction.base import Name, Rank, Ranked


class Lru(Ranked):
    """In the order of release, a request's last block first.

    Examples
    --------
    >>> policy = Lru()
    >>> for block in (5, 3):
    ...     policy.freed(block, (0, block))
    >>> policy.taken(5)
    >>> policy.freed(5, (0, 5))
    >>> policy.evict(), policy.evict()
    (3, 5)
    """

    def rank(self, block: int, name: Name) -> Rank:
        """All alike."""
        del block, name
        return ()
