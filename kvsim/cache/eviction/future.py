"""What will be asked, for the bound that may know it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvsim.cache.eviction.base import NEVER


class PlainFuture:
    """Every request's prompt blocks, one after the other, in the order of requests.

    Parameters
    ----------
    prompts : iterable of (int, sequence of int)
        Requests in the order in which they will be asked, each with the prefix keys of its prompt.

    Examples
    --------
    >>> future = PlainFuture([(4, [0, 1]), (2, [0, 7]), (3, [0, 1])])
    >>> future.next_use(1), future.admitted(4), future.next_use(1), future.next_use(0)
    (0, 0, 2, 1)
    """

    def __init__(self, prompts: Iterable[tuple[int, Sequence[int]]]) -> None:
        self._place: dict[int, int] = {}
        self._uses: dict[int, list[int]] = {}
        for place, (row, keys) in enumerate(prompts):
            self._place[row] = place
            for key in keys:
                self._uses.setdefault(key, []).append(place)
        for uses in self._uses.values():
            uses.reverse()
        self._done: set[int] = set()

    def next_use(self, key: int) -> int:
        """Place of the next request with that block, of those that were not admitted yet."""
        uses = self._uses.get(key, [])
        while uses and uses[-1] in self._done:
            uses.pop()
        return uses[-1] if uses else NEVER

    def admitted(self, row: int) -> int:
        """It has got what it found; requests that the order does not know have place `NEVER`."""
        place = self._place.get(row, NEVER)
        self._done.add(place)
        return place


class ChainFuture:
    """The same from chains of blocks, where a prompt is a few chains with the block at which it leaves each.

    Parameters
    ----------
    prompts : iterable of (int, sequence of (int, int))
        Requests in the order in which they will be asked, each with (chain, end block) of its prompt.
    keys_per_chain : int
        Block ``j`` of chain ``c`` has the prefix key ``c * keys_per_chain + j``.

    Examples
    --------
    >>> future = ChainFuture([(4, [(0, 2)]), (2, [(0, 1), (1, 2)]), (3, [(0, 2)])], 100)
    >>> future.next_use(1), future.admitted(4), future.next_use(1), future.next_use(0)
    (0, 0, 2, 1)
    """

    def __init__(self, prompts: Iterable[tuple[int, Sequence[tuple[int, int]]]], keys_per_chain: int) -> None:
        self._place: dict[int, int] = {}
        self._uses: dict[int, list[tuple[int, int]]] = {}
        self._keys_per_chain = keys_per_chain
        for place, (row, path) in enumerate(prompts):
            self._place[row] = place
            for chain, end in path:
                self._uses.setdefault(chain, []).append((place, end))
        for uses in self._uses.values():
            uses.reverse()
        self._done: set[int] = set()

    def next_use(self, key: int) -> int:
        """Place of the next request with that block, of those that were not admitted yet."""
        chain, block = divmod(key, self._keys_per_chain)
        uses = self._uses.get(chain, [])
        while uses and uses[-1][0] in self._done:
            uses.pop()
        return next((place for place, end in reversed(uses) if end > block and place not in self._done), NEVER)

    def admitted(self, row: int) -> int:
        """It has got what it found; requests that the order does not know have place `NEVER`."""
        place = self._place.get(row, NEVER)
        self._done.add(place)
        return place
