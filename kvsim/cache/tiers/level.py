"""One tier at work: its blocks, its two links, and what is on its way into it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from kvsim.cache.blocks import BlockPool, Name
from kvsim.cache.tiers.config import TierConfig, TierTotals
from kvsim.cache.tiers.links import Link
from kvsim.errors import SimulationError


class Copy(NamedTuple):
    """A block on its way down: what it holds, where it comes from (None if that block is not held), where it goes."""

    name: Name
    source: int | None
    target: int


class Level:
    """A tier at work.

    Attributes
    ----------
    pool : BlockPool
        Its blocks: used while a transfer needs them, else free and, once something has arrived in them, findable.
    load_link, store_link : Link
        The way out of the tier and the way into it.
    online : bool
        Whether it answers.
    hit_tokens : int
        Tokens that first admissions got from here.
    """

    def __init__(self, config: TierConfig, num_states: int, pool: BlockPool | None = None) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks) if pool is None else pool
        self.load_link = Link(config.load_s_per_block, config.load_start_s)
        self.store_link = Link(config.store_s_per_block, config.store_start_s)
        self.hit_tokens = 0
        self.online = self._able = config.multi_group or not num_states
        self._on_the_way: deque[tuple[float, Sequence[Copy]]] = deque()
        self._coming: Counter[Name] = Counter()
        self._num_arrived = self._num_dropped = 0

    def set_time(self, now_s: float) -> None:
        """Go offline when it is time to."""
        self.online = self._able and now_s < self.config.offline_from_s

    @property
    def room(self) -> int:
        """Blocks that could be stored now."""
        return self.pool.num_free if self.online else 0

    def has(self, name: Name) -> bool:
        """Whether a block of that name has arrived and is still there."""
        return self.pool.find(name) is not None

    def expects(self, name: Name) -> bool:
        """Whether a block of that name is on its way here."""
        return self._coming[name] > 0

    def load_arrival_s(self, blocks: Sequence[int], at_s: float) -> float:
        """When a load of `blocks` asked for at `at_s` would have arrived [s]."""
        return self.load_link.arrival_s(len(blocks), at_s)

    def load(self, blocks: Sequence[int], at_s: float) -> float:
        """Start to load `blocks`, as one transfer; returns when it has arrived [s]."""
        return self.load_link.send(len(blocks), at_s)

    def send(self, copies: Sequence[Copy], at_s: float) -> None:
        """Start to store `copies`, as one transfer."""
        if copies:
            self._coming.update(copy.name for copy in copies)
            self._on_the_way.append((self.store_link.send(len(copies), at_s), copies))

    def next_s(self, default_s: float) -> float:
        """When the next store arrives [s]."""
        return self._on_the_way[0][0] if self._on_the_way else default_s

    def take_arrived(self, now_s: float) -> list[Sequence[Copy]]:
        """Transfers that have arrived by `now_s`: their blocks can be found from now on."""
        arrived: list[Sequence[Copy]] = []
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            arrived.append(self._on_the_way.popleft()[1])
            for copy in arrived[-1]:
                self.pool.give_name(copy.target, copy.name)
                self._coming[copy.name] -= 1
                if not self._coming[copy.name]:
                    del self._coming[copy.name]
            self._num_arrived += len(arrived[-1])
            self.pool.release(copy.target for copy in arrived[-1])
        return arrived

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """Copies that never started, and those that never arrive, are none: their engine is gone."""
        self.pool.release(copy.target for copy in copies)

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget what some used blocks hold: it has moved up."""
        self._num_dropped += sum(self.pool.forget(block) for block in blocks)

    def check(self) -> None:
        """Raise `SimulationError` unless what came in has gone out or is still there."""
        self.pool.check_all()
        gone = self.pool.num_evicted + self._num_dropped
        if self._num_arrived != gone + self.pool.num_named:
            raise SimulationError(f"tier {self.config.kind}: {self._num_arrived} blocks came in, {gone} went out, "
                                  f"{self.pool.num_named} are there")

    def totals(self) -> TierTotals:
        """What it did."""
        loaded, stored, size = self.load_link.num_blocks, self.store_link.num_blocks, self.config.block_bytes
        return TierTotals(self.config.kind, self.config.num_blocks, self.hit_tokens, loaded, stored, loaded * size,
                          stored * size, self.load_link.busy_s, self.store_link.busy_s, self.pool.num_named)
