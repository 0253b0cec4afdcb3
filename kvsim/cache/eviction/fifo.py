"""First in, first out."""

from __future__ import annotations

from kvsim.cache.eviction.base import Name, Rank, Ranked


class Fifo(Ranked):
    """In the order of the first release: being found again does not save a block.

    Notes
    -----
    A queue in the order in which blocks are *written* would lose every prefix from its beginning, and what lies behind
    a missing block is worth nothing. A request's blocks queue up together when it first gives them back, last one
    first, which is what a queue at vLLM's pool would do.

    Examples
    --------
    >>> policy = Fifo()
    >>> for block in (5, 3):
    ...     policy.freed(block, (0, block))
    >>> policy.taken(5)
    >>> policy.freed(5, (0, 5))
    >>> policy.evict(), policy.evict()
    (5, 3)
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, int] = {}

    def rank(self, block: int, name: Name) -> Rank:
        """The number of its first release."""
        del name
        return (self._first.setdefault(block, self.order.num_put + 1),)

    def forgotten(self, block: int) -> None:
        """It begins anew."""
        super().forgotten(block)
        self._first.pop(block, None)
