"""S3-FIFO: a small queue for newcomers, a main one, and a memory of what was lost."""

from __future__ import annotations

from collections import OrderedDict, deque

from kvsim.cache.eviction.base import Eviction, Facts, Name

MOST_USES = 3


class S3Fifo(Eviction):
    """Three FIFO queues; blocks that were found at least twice move from the small one to the main one.

    Newcomers pass through the small queue. Who comes back after having been lost from it, as the ghost queue
    remembers, enters the main one at once. At the main queue's head a block that was found since stays for another
    round. A block enters when it is first given back; one that somebody refers to goes round.

    Notes
    -----
    The ghost queue remembers as many names as the main queue may hold blocks.

    Source: J. Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, Algorithm 1.

    Examples
    --------
    >>> policy = S3Fifo(Facts(21, lambda: 0.0, [], [], lambda n: 0.0), small_frac=0.1)
    >>> for block in range(1, 6):
    ...     policy.freed(block, (0, block))
    >>> policy.taken(1)
    >>> for _ in range(2):
    ...     policy.used(1, row=0)
    >>> policy.freed(1, (0, 1))
    >>> [policy.evict() for _ in range(3)]
    [2, 3, 4]
    """

    def __init__(self, facts: Facts, small_frac: float) -> None:
        self._least_small = small_frac * (facts.num_blocks - 1)
        self._num_ghosts = round((1 - small_frac) * (facts.num_blocks - 1))
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[Name, None] = OrderedDict()
        self._uses: dict[int, int] = {}
        self._name: dict[int, Name] = {}
        self._free: set[int] = set()
        self._left: dict[int, int] = {}

    def used(self, block: int, row: int) -> None:
        """Count it, up to three."""
        del row
        if block in self._uses:
            self._uses[block] = min(self._uses[block] + 1, MOST_USES)

    def freed(self, block: int, name: Name) -> None:
        """Let it in if it is new."""
        self._free.add(block)
        if block in self._uses:
            return
        self._uses[block], self._name[block] = 0, name
        if name in self._ghosts:
            del self._ghosts[name]
            self._main.append(block)
        else:
            self._small.append(block)

    def taken(self, block: int) -> None:
        """It cannot be lost now."""
        self._free.remove(block)

    def forgotten(self, block: int) -> None:
        """Out of its queue, if it is still in one."""
        if block in self._uses:
            queue = self._small if block in self._small else self._main
            queue.remove(block)
            self._drop(block)

    def evict(self) -> int:
        """From the small queue while it has its share, else from the main one; where nothing is free, the other."""
        is_small = len(self._small) >= self._least_small or not self._main
        for queue in ((self._small, self._main) if is_small else (self._main, self._small)):
            block = self._from_small() if queue is self._small else self._from_main()
            if block is not None:
                self._drop(block)
                return block
        return self.evict()

    def _from_small(self) -> int | None:
        """The oldest newcomer that was not found twice; those that were move on."""
        for _ in range(len(self._small)):
            block = self._small.popleft()
            if self._uses[block] > 1:
                self._uses[block] = 0
                self._main.append(block)
            elif block in self._free:
                self._ghosts[self._name[block]] = None
                if len(self._ghosts) > self._num_ghosts:
                    self._ghosts.popitem(last=False)
                return block
            else:
                self._small.append(block)
        return None

    def _from_main(self) -> int | None:
        """The oldest that was not found since it was last looked at."""
        for _ in range((MOST_USES + 1) * len(self._main)):
            block = self._main.popleft()
            if block in self._free and not self._uses[block]:
                return block
            self._uses[block] = max(self._uses[block] - 1, 0)
            self._main.append(block)
        return None

    def _drop(self, block: int) -> None:
        del self._uses[block], self._name[block]
        self._free.discard(block)
