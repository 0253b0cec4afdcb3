"""Least recently used, with a time to live."""

from __future__ import annotations

import math
from collections import OrderedDict

from kvsim.cache.eviction.base import Eviction, Facts, Name


class Ttl(Eviction):
    """As LRU, and what nobody has used for a time is forgotten although there is room.

    Forgetting frees no block that LRU would not have taken first, so this never finds more than LRU: it is how
    providers bill caches, not a way to find more.

    Examples
    --------
    >>> now_s = 0.0
    >>> policy = Ttl(Facts(9, lambda: now_s, [], [], lambda n: 0.0), ttl_s=60.0)
    >>> policy.freed(5, (0, 5))
    >>> now_s = 30.0
    >>> policy.freed(3, (0, 3))
    >>> now_s = 60.0
    >>> policy.next_s(), policy.expire(), policy.next_s()
    (60.0, [5], 90.0)
    """

    def __init__(self, facts: Facts, ttl_s: float) -> None:
        self._now_s, self._ttl_s = facts.now_s, ttl_s
        self._until_s: OrderedDict[int, float] = OrderedDict()

    def freed(self, block: int, name: Name) -> None:
        """Its time runs."""
        del name
        self._until_s[block] = self._now_s() + self._ttl_s

    def taken(self, block: int) -> None:
        """Its time stops."""
        del self._until_s[block]

    def evict(self) -> int:
        """The first one given back."""
        return self._until_s.popitem(last=False)[0]

    def next_s(self) -> float:
        """When the first one's time is over."""
        return next(iter(self._until_s.values()), math.inf)

    def expire(self) -> list[int]:
        """Those whose time is over."""
        now_s, gone = self._now_s(), list[int]()
        while self.next_s() <= now_s:
            gone.append(self.evict())
        return gone
