"""The tiers below a pool, as an engine sees them: what they can give, transfers under way, what has arrived."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvsim.cache.blocks import BlockPool, Name, find_prefix
from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.level import Level
from kvsim.cache.tiers.writers import Computed, Copy, EagerWriter, LazyWriter, StepView, Writer


class _Load(NamedTuple):
    """Blocks on their way to a request."""

    row: int
    pool_blocks: list[int]
    tier_blocks: list[int]


class TierStack:
    """One tier below a pool."""

    def __init__(self, pool: BlockPool, config: TierConfig, groups: tuple[int, int], scan_blocks: int) -> None:
        self._pool, self._groups = pool, groups
        self.level = Level(config)
        self._writer: Writer = (EagerWriter(pool, self.level) if config.write == "eager"
                                else LazyWriter(pool, self.level, scan_blocks))
        self._pinned: dict[int, list[dict[int, int]]] = {}
        self._new_loads: list[_Load] = []
        self._new_copies: list[Copy] = []
        self._loads: list[tuple[float, list[_Load]]] = []
        self._stores: list[tuple[float, list[Copy]]] = []

    def match(self, row: int, keys: Sequence[int]) -> int:
        """Leading positions of `keys` that the tiers can give to a request; holds their blocks until the next call."""
        self._level_unpin(row)
        found = find_prefix(self.level.pool.find, *self._groups, keys)
        if found.length:
            for blocks in found.blocks:
                self.level.pool.touch(blocks.values())
            self._pinned[row] = found.blocks
        return found.length

    def start_load(self, row: int, first: int, tables: Sequence[Mapping[int, int]]) -> None:
        """Load what `match` has found to the blocks at positions `first` and on of a request's tables."""
        pairs = [(table[first + position], block) for table, blocks in zip(tables, self._pinned.pop(row), strict=True)
                 for position, block in blocks.items()]
        self._pool.touch(pool_block for pool_block, _ in pairs)
        self._new_loads.append(_Load(row, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))

    def plan(self, step: StepView) -> None:
        """Choose what to store; a step has been planned."""
        self._new_copies = self._writer.plan(step)

    def finish(self, request: Computed) -> None:
        """A request has ended and is about to release its blocks."""
        self._writer.finish(request)

    def issue_loads(self, at_s: float) -> None:
        """Start the loads of a step as one transfer."""
        if self._new_loads:
            arrival_s = self.level.load_link.send(sum(len(load.pool_blocks) for load in self._new_loads), at_s)
            self._loads.append((arrival_s, self._new_loads))
            self._new_loads = []

    def issue_stores(self, at_s: float) -> None:
        """Start the stores of a step as one transfer."""
        if self._new_copies:
            self._stores.append((self.level.store_link.send(len(self._new_copies), at_s), self._new_copies))
            self._new_copies = []

    def next_s(self) -> float:
        """When the next transfer arrives [s]; inf without any."""
        return min((arrival_s for arrival_s, _ in [*self._loads, *self._stores]), default=math.inf)

    def take_arrived(self, now_s: float) -> list[int]:
        """Finish the transfers that have arrived by `now_s`; returns the rows whose loads are over."""
        arrived: list[_Load] = []
        while self._loads and self._loads[0][0] <= now_s:
            arrived += self._loads.pop(0)[1]
        for load in reversed(arrived):
            self.level.pool.release(load.tier_blocks)
            self._pool.release(load.pool_blocks)
        while self._stores and self._stores[0][0] <= now_s:
            self._store(self._stores.pop(0)[1])
        return [load.row for load in arrived]

    def _store(self, copies: list[Copy]) -> None:
        """Make what has arrived findable, let go of both ends."""
        self._writer.arrived(copies)
        for source, target in copies:
            self.level.pool.give_name(target, self._name(source))
        self.level.pool.release(target for _, target in copies)
        self._pool.release(source for source, _ in copies)

    def _name(self, block: int) -> Name:
        name = self._pool.name_of(block)
        assert name is not None
        return name

    def _level_unpin(self, row: int) -> None:
        """Let go of what an earlier lookup has found for a request that could not start."""
        if row in self._pinned:
            self.level.pool.release(block for blocks in self._pinned.pop(row) for block in blocks.values())
