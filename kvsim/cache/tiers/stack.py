"""The tiers below a pool, as an engine sees them: what they can give, transfers under way, what has arrived."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvsim.cache.blocks import BlockPool, Found, Name, find_prefix
from kvsim.cache.tiers.config import TierConfig, TierTotals
from kvsim.cache.tiers.level import Copy, Level
from kvsim.cache.tiers.writers import Computed, StepView, make_writer

Place = tuple[int, int]
"""(tier, block)."""


class PoolShape(NamedTuple):
    """What tiers must know of the pool above: groups, tokens of a block, blocks that lazy writing scans in a step."""

    num_attention: int
    num_states: int
    block_tokens: int
    scan_blocks: int


class _Load(NamedTuple):
    """Blocks on their way to a request, which computes behind them already if they stream."""

    row: int
    pool_blocks: list[int]
    places: list[Place]
    streams: bool


class TierStack:
    """Tiers below a pool, from the nearest to the farthest, each fed from the level above it.

    Parameters
    ----------
    pool : BlockPool
        The pool that requests compute in.
    configs : sequence of TierConfig
        The tiers.
    shape : PoolShape
        What they must know of the pool.

    Attributes
    ----------
    is_shared : bool
        Whether the last tier is shared with other replicas, whose doings change it between two steps.
    num_late : int
        Positions behind what the last `match` gave that are in the pool or a tier, or on their way there, but come too
        late: not arrived, or not worth their load.

    Notes
    -----
    In a step the engine calls `match` and `start_load` while it admits, `plan` when it has scheduled, `issue_loads` at
    the start and `issue_stores` at the end of the step, `finish` for every request that ends in it, and then
    `take_arrived`. docs/tier_rules.md has the rules in words.

    Examples
    --------
    A block is stored from the pool, evicted there, and found in the tier:

    >>> pool = BlockPool(3)
    >>> tiers = TierStack(pool, [TierConfig(8, "lazy", 0.5, 0.5)], PoolShape(1, 0, 16, 4))
    >>> block = pool.take(1)[0]
    >>> pool.give_name(block, (0, 77))
    >>> pool.release([block])
    >>> tiers.plan(StepView([], [], []), now_s=0.0)
    >>> tiers.issue_stores(at_s=1.0)
    True
    >>> tiers.next_s(), tiers.take_arrived(1.5), tiers.match(0, [77, 78], now_s=1.5)
    (1.5, [], 1)
    """

    def __init__(self, pool: BlockPool, configs: Sequence[TierConfig], shape: PoolShape) -> None:
        self._pool, self._shape = pool, shape
        self.levels = [Level(config, shape.num_states) for config in configs]
        above = [pool, *(level.pool for level in self.levels)]
        self._writers = [make_writer(source, level, source is pool, shape.scan_blocks)
                         for source, level in zip(above, self.levels, strict=False)]
        self._sources = above[:-1]
        self._pinned: dict[int, list[dict[int, Place]]] = {}
        self._new_loads: list[_Load] = []
        self._new_copies: list[list[Copy]] = [[] for _ in configs]
        self._loads: list[tuple[float, list[_Load]]] = []
        self._load_cost_s = 0.0
        self._due_s = -math.inf
        self.num_late = 0
        self._last_asked: tuple[object, ...] | None = None
        self._last_length = 0
        self.is_shared = False

    def join(self, port: Level) -> None:
        """Put a replica's way into a shared tier in the place of its last tier; nothing has happened yet."""
        source = self._sources[-1]
        self.levels[-1], self.is_shared = port, True
        self._writers[-1] = make_writer(source, port, source is self._pool, self._shape.scan_blocks)

    def abandon(self, now_s: float) -> None:
        """The engine is gone: let go of everything that it held in the last tier."""
        self._set_time(now_s)
        last, level = len(self.levels) - 1, self.levels[-1]
        loads = [load for _, loads in self._loads for load in loads] + self._new_loads
        places = [place for load in loads for place in load.places]
        places += [place for blocks in self._pinned.values() for found in blocks for place in found.values()]
        level.pool.release(block for tier, block in places if tier == last)
        level.withdraw([*self._new_copies[-1], *self._writers[-1].withdraw()])

    def match(self, row: int, keys: Sequence[int], now_s: float) -> int:
        """Leading positions of `keys` that the tiers can give to a request; held until its next call or its load.

        Each block comes from the nearest tier that has it. If loading is not worth its time, farther tiers are left
        out one after the other.
        """
        self._set_time(now_s)
        asked = self._asked(row, keys)
        if asked is not None and asked == self._last_asked:
            self.num_late = self._num_known(keys[self._last_length:])
            return self._last_length
        self._last_asked, self._last_length = asked, self._match(row, keys, now_s)
        # What is found is known: only what follows needs a look.
        self.num_late = self._num_known(keys[self._last_length:])
        return self._last_length

    def _asked(self, row: int, keys: Sequence[int]) -> tuple[object, ...] | None:
        """What an answer of `match` depends on; None where that is the time too.

        The head of a full queue asks again in every step.
        """
        if any(level.config.load_rule == "break-even" for level in self.levels):
            return None
        return row, keys, [(level.online, level.pool.num_changes) for level in self.levels]

    def _match(self, row: int, keys: Sequence[int], now_s: float) -> int:
        """As `match`, looked up."""
        if row in self._pinned:
            self._release([place for blocks in self._pinned.pop(row) for place in blocks.values()])
        for count in range(len(self.levels), 0, -1):
            found = self._find_in(self.levels[:count], keys)
            if found.length and self._is_worth(found, now_s):
                for place in (place for blocks in found.blocks for place in blocks.values()):
                    self.levels[place[0]].pool.touch([place[1]])
                self._pinned[row] = found.blocks
                return found.length
        return 0

    def num_leading(self, keys: Sequence[int]) -> int:
        """Leading positions of `keys` that are in the tiers now, whether loading them is worth it or not."""
        return self._find_in(self.levels, keys).length

    def streams(self, row: int) -> bool:
        """Whether what `match` has found for a request comes layer by layer."""
        tiers = {place[0] for blocks in self._pinned[row] for place in blocks.values()}
        return all(self.levels[tier].config.load_mode == "layerwise" for tier in tiers)

    def start_load(self, row: int, first: int, tables: Sequence[Mapping[int, int]], is_counted: bool) -> None:
        """Load what `match` has found to the blocks at positions `first` and on of a request's tables."""
        streams, found = self.streams(row), self._pinned.pop(row)
        self._last_asked = None
        pairs = [(table[first + position], place) for table, blocks in zip(tables, found, strict=True)
                 for position, place in blocks.items()]
        self._pool.touch(pool_block for pool_block, _ in pairs)
        self._new_loads.append(_Load(row, [pair[0] for pair in pairs], [pair[1] for pair in pairs], streams))
        for tier, _ in found[0].values():
            self.levels[tier].hit_tokens += self._shape.block_tokens * is_counted

    def plan(self, step: StepView, now_s: float) -> None:
        """Choose what to store; a step has been planned."""
        self._set_time(now_s)
        self._new_copies = [writer.plan(step) for writer in self._writers]

    def finish(self, request: Computed, now_s: float) -> None:
        """A request has ended and is about to release its blocks."""
        self._set_time(now_s)
        for writer in self._writers:
            writer.finish(request)

    def issue_loads(self, at_s: float) -> None:
        """Start the loads of a step: one transfer a tier, over when the last of them is; those that stream go first."""
        loads, self._new_loads = self._new_loads, []
        if loads:
            self._load_cost_s = 0.0
        streaming = [load for load in loads if load.streams]
        if streaming:
            self._due_s = self._send(streaming, at_s)
        if len(streaming) < len(loads):
            self._send([load for load in loads if not load.streams], at_s)

    def _send(self, loads: list[_Load], at_s: float) -> float:
        """Start some loads together; returns when they are over."""
        parts = _by_tier(place for load in loads for place in load.places)
        arrivals_s = [self.levels[tier].load(blocks, at_s) for tier, blocks in parts.items()]
        self._load_cost_s += sum(self.levels[tier].config.step_cost_frac * self.levels[tier].config.load_s_per_block
                                 * len(blocks) for tier, blocks in parts.items())
        self._loads.append((max(arrivals_s), loads))
        return max(arrivals_s)

    def take_due_s(self) -> float:
        """The step planned now ends no sooner than this [s]: its requests compute behind loads that stream."""
        due_s, self._due_s = self._due_s, -math.inf
        return due_s

    def issue_stores(self, at_s: float) -> bool:
        """Start the stores of a step, one transfer a tier; whether there were any."""
        copies, self._new_copies = self._new_copies, [[] for _ in self.levels]
        for level, part in zip(self.levels, copies, strict=True):
            level.send(part, at_s)
        return any(copies)

    def take_step_cost_s(self) -> float:
        """Time [s] that the step planned now takes longer because of its transfers."""
        stores_s = sum(level.config.step_cost_frac * level.config.store_s_per_block * len(copies)
                       for level, copies in zip(self.levels, self._new_copies, strict=True))
        loads_s, self._load_cost_s = self._load_cost_s, 0.0
        return loads_s + stores_s

    def next_s(self) -> float:
        """When the next transfer arrives [s]; inf without any."""
        stores_s = [level.next_s(math.inf) for level in self.levels]
        return min([arrival_s for arrival_s, _ in self._loads] + stores_s, default=math.inf)

    def take_arrived(self, now_s: float) -> list[int]:
        """Finish the transfers that have arrived by `now_s`, loads first; returns the rows that waited for theirs.

        Loads that are over at once release their blocks in reverse order. The real scheduler does it in the order of a
        set of names, which differs from one process to the next; so the order is free, and the recorded one is kept.
        """
        self._set_time(now_s)
        arrived = [load for arrival_s, loads in self._loads if arrival_s <= now_s for load in loads]
        self._loads = [entry for entry in self._loads if entry[0] > now_s]
        for load in reversed(arrived):
            self._finish_load(load)
        for tier, level in enumerate(self.levels):
            for copies in level.take_arrived(now_s):
                self._finish_store(tier, copies)
        return [load.row for load in arrived if not load.streams]

    def totals(self) -> tuple[TierTotals, ...]:
        """What each tier did; raises `SimulationError` if blocks got lost."""
        for level in self.levels:
            level.check()
        return tuple(level.totals() for level in self.levels)

    def _set_time(self, now_s: float) -> None:
        for level in self.levels:
            level.set_time(now_s)

    def _num_known(self, keys: Sequence[int]) -> int:
        """Leading positions of `keys` that the pool and the tiers have together, or are about to have."""
        online = [level for level in self.levels if level.online]

        def find(name: Name) -> Name | None:
            is_known = self._pool.find(name) is not None or any(lv.has(name) or lv.expects(name) for lv in online)
            return name if is_known else None

        return find_prefix(find, self._shape.num_attention, self._shape.num_states, keys).length

    def _find_in(self, levels: Sequence[Level], keys: Sequence[int]) -> Found[Place]:
        """The longest prefix in some tiers."""
        online = [(tier, level.pool.named) for tier, level in enumerate(levels) if level.online]

        def find(name: Name) -> Place | None:
            for tier, named in online:
                blocks = named.get(name)
                if blocks:
                    return tier, next(iter(blocks))
            return None

        return find_prefix(find, self._shape.num_attention, self._shape.num_states, keys)

    def _is_worth(self, found: Found[Place], now_s: float) -> bool:
        """Whether a hit is long enough, and sooner loaded than computed where a tier asks for that."""
        tokens = found.length * self._shape.block_tokens
        for tier, blocks in _by_tier(place for places in found.blocks for place in places.values()).items():
            level = self.levels[tier]
            if tokens < level.config.min_load_tokens:
                return False
            if level.config.load_rule == "break-even":
                load_s = level.load_arrival_s(blocks, now_s) - now_s
                if load_s > tokens * level.config.recompute_s_per_token:
                    return False
        return True

    def _finish_load(self, load: _Load) -> None:
        """Let go of a load's blocks; what came from an exclusive tier is not there any more, but for checkpoints."""
        for tier, level in enumerate(self.levels):
            blocks = [block for place, block in load.places if place == tier]
            if level.config.write == "on-eviction":
                level.drop([block for block in blocks if self._is_attention(level.pool.name_of(block))])
            elif tier + 1 < len(self.levels):
                self._writers[tier + 1].offer(blocks)
        self._release(load.places)
        self._pool.release(load.pool_blocks)

    def _finish_store(self, tier: int, copies: Sequence[Copy]) -> None:
        """Let go of the blocks that a store came from, and offer what has arrived to the tier below."""
        self._writers[tier].arrived(copies)
        self._sources[tier].release(copy.source for copy in copies if copy.source is not None)
        if tier + 1 < len(self.levels):
            self._writers[tier + 1].offer([copy.target for copy in copies])

    def _is_attention(self, name: Name | None) -> bool:
        return name is not None and name[0] < self._shape.num_attention

    def _release(self, places: Sequence[Place]) -> None:
        """Let go of some tiers' blocks."""
        for tier, level in enumerate(self.levels):
            level.pool.release(block for place, block in places if place == tier)


def _by_tier(places: Iterable[Place]) -> dict[int, list[int]]:
    """Blocks by tier."""
    found: dict[int, list[int]] = {}
    for tier, block in places:
        found.setdefault(tier, []).append(block)
    return found
