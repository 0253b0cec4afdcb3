"""Sessions keep their blocks while they think."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import NamedTuple

from kvsim.cache.eviction.base import Eviction, Facts, Name, Queue, Release


class _Pin(NamedTuple):
    """A block that a session keeps: whose it is, its place in the order of release, when the pin ends [s]."""

    session: int
    number: int
    until_s: float


class PinSessions(Eviction):
    """What a live session gave back is kept for it until its next request, up to a share of the pool.

    First come, first kept: a session is pinned if its blocks fit into the share beside those already pinned, and
    keeps its room from turn to turn. Others go as LRU. A session is live until its last request has ended; a pin also
    ends `ttl_s` after its block was given back, which frees what ended sub-agents leave. No request is admitted into
    blocks that others keep, unless nothing else holds a block; running requests that need more take them all the same,
    from the session pinned last.

    Notes
    -----
    Like Continuum (https://arxiv.org/abs/2511.02230) with one time to live for all.

    Parameters
    ----------
    facts : Facts
        Sessions, clock, pool.
    share_frac : float
        Largest share of the pool that is kept.
    ttl_s : float
        Longest time [s] that a block is kept.

    Examples
    --------
    >>> policy = PinSessions(Facts(11, lambda: 0.0, [0, 0, 1, 1], [0] * 4, lambda n: 0.0), 0.5, 60.0)
    >>> for row, blocks in ((0, (5, 4, 3)), (2, (8, 7, 6))):
    ...     policy.releasing(Release(row, 48, 3, 3, True, True))
    ...     for block in blocks:
    ...         policy.freed(block, (0, block))
    ...     policy.releasing(None)
    >>> policy.num_reserved(row=3), [policy.evict() for _ in range(4)]
    (3, [8, 7, 6, 5])
    """

    def __init__(self, facts: Facts, share_frac: float, ttl_s: float) -> None:
        self._session, self._now_s, self._ttl_s = facts.session, facts.now_s, ttl_s
        self._limit = math.floor(share_frac * (facts.num_blocks - 1))
        self._left = Counter(facts.session)
        self._loose = Queue()
        self._pins: OrderedDict[int, _Pin] = OrderedDict()
        self._lent: dict[int, int] = {}
        self._kept: dict[int, OrderedDict[int, None]] = {}
        self._room: dict[int, int] = {}
        self._num_granted = self._count = 0
        self._busy: dict[int, set[int]] = {}
        self._release: Release | None = None
        self._owner: int | None = None

    def admitted(self, row: int) -> None:
        """The session's room stays its own as long as one of its requests is in the engine."""
        self._busy.setdefault(self._session[row], set()).add(row)

    def used(self, block: int, row: int) -> None:
        """The session will give it back again."""
        del row
        self._lent.pop(block, None)

    def releasing(self, release: Release | None) -> None:
        """Decide whether the session may keep what its request gives back."""
        self._release, self._owner = release, None
        if release is None:
            return
        session = self._session[release.row]
        busy = self._busy.get(session, set())
        if release.is_all:
            busy.discard(release.row)
        kept = len(self._kept.get(session, ()))
        room = self._room.get(session, 0)
        wanted = max(kept + release.num_blocks, room if busy else 0)
        is_live = self._left[session] > release.is_over
        if is_live and self._num_granted - room + wanted <= self._limit:
            self._owner = session
            self._grant(session, wanted)
        elif not busy:
            self._grant(session, kept)

    def freed(self, block: int, name: Name) -> None:
        """Keep it for its session, or queue it."""
        del name
        self._count += 1
        lender = self._lent.pop(block, None)
        owner = self._owner if self._release is not None else lender
        if owner is None or owner not in self._room:
            self._loose.put(block, (self._count,))
            return
        self._pins[block] = _Pin(owner, self._count, self._now_s() + self._ttl_s)
        self._kept.setdefault(owner, OrderedDict())[block] = None

    def taken(self, block: int) -> None:
        """It cannot be lost now; what a transfer takes comes back to its session."""
        pin = self._pins.get(block)
        if pin is None:
            self._loose.remove(block)
        else:
            self._lent[block] = pin.session
            self._unpin(block)

    def forgotten(self, block: int) -> None:
        """It is of no use to its session."""
        self._lent.pop(block, None)
        self._loose.discard(block)
        if block in self._pins:
            self._unpin(block)

    def evict(self) -> int:
        """What nobody keeps, else of the session pinned last, what it gave back first."""
        if self._loose:
            return self._loose.pop()
        session = next(session for session in reversed(self._room) if self._kept.get(session))
        block = next(iter(self._kept[session]))
        self._unpin(block)
        return block

    def ended(self, row: int) -> None:
        """After its last request a session keeps nothing."""
        session = self._session[row]
        self._left[session] -= 1
        if not self._left[session]:
            for block in list(self._kept.get(session, ())):
                self._loosen(block)
            self._grant(session, 0)
            self._busy.pop(session, None)

    def next_s(self) -> float:
        """When the oldest pin ends."""
        return next(iter(self._pins.values())).until_s if self._pins else math.inf

    def expire(self) -> list[int]:
        """Pins end; their blocks queue where they would be without."""
        now_s = self._now_s()
        while self.next_s() <= now_s:
            self._loosen(next(iter(self._pins)))
        return []

    def num_reserved(self, row: int) -> int:
        """What other sessions keep."""
        return len(self._pins) - len(self._kept.get(self._session[row], ()))

    def _grant(self, session: int, num_blocks: int) -> None:
        """Set a session's room; without any it comes last when it asks again."""
        self._num_granted += num_blocks - self._room.get(session, 0)
        if num_blocks:
            self._room[session] = num_blocks
        else:
            self._room.pop(session, None)

    def _unpin(self, block: int) -> _Pin:
        pin = self._pins.pop(block)
        del self._kept[pin.session][block]
        return pin

    def _loosen(self, block: int) -> None:
        """From its session to the queue, at the place of its release."""
        self._loose.put(block, (self._unpin(block).number,))
