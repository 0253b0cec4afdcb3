"""Belady's rule, which knows the future."""

from __future__ import annotations

from kvsim.cache.eviction.base import NEVER, Future, Name, Rank, Ranked


class Belady(Ranked):
    """The block whose next use lies furthest ahead goes first: a bound for other policies, not something to build.

    Notes
    -----
    The future is the order in which a run with LRU admits requests. Where arrivals do not depend on the engine, that
    is what comes, but for a few that overtake; in a closed loop it is a guess, since who is answered sooner asks
    sooner. It is the best that can be done for single blocks, not for prefixes, and it does not know which checkpoint
    a prompt will resume at: on a fixed stream of blocks it is a bound, in a closed loop with a hybrid model it is not.

    Source: L. A. Belady, A study of replacement algorithms, IBM Systems Journal 5 (1966).
    """

    def __init__(self, future: Future) -> None:
        super().__init__()
        self._future = future
        self._keys: dict[int, int] = {}
        self._wanted: dict[int, set[int]] = {}

    def rank(self, block: int, name: Name) -> Rank:
        """Furthest first; what a request needs that was preempted and comes back is needed first."""
        self._keys[block] = name[1]
        if self.release is not None and self.release.is_all and not self.release.is_over:
            return (1,)
        return self._place(block)

    def admitted(self, row: int) -> None:
        """What waited for this request and is still free waits for a later one."""
        for block in self._wanted.pop(self._future.admitted(row), ()):
            if block in self.order:
                self._ranks[block] = self._place(block)
                self.order.put(block, self._ranks[block])

    def forgotten(self, block: int) -> None:
        """Nobody finds it."""
        super().forgotten(block)
        self._keys.pop(block, None)

    def _place(self, block: int) -> Rank:
        use = self._future.next_use(self._keys[block])
        if use != NEVER:
            self._wanted.setdefault(use, set()).add(block)
        return (-use,)
