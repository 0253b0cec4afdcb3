"""A tier that the replicas of a cluster share: one pool of blocks over all their nodes, and each replica's way to it.

As Mooncake Store does it: every replica gives a part of its node's memory to one pool, which is found by content and
reached by everybody over the network (https://docs.vllm.ai/en/latest/features/mooncake_store_connector_usage/).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvsim.cache.blocks import BlockPool, Name
from kvsim.cache.tiers.config import TierConfig, TierTotals
from kvsim.cache.tiers.level import Copy, Level
from kvsim.cache.tiers.links import Link
from kvsim.errors import SimulationError

NEARLY_ONE = 1.0 - 1e-12
"""Less than what rounding takes from a time: a request may come a rounding before the end that it waited for."""


def striped(counts: Sequence[int]) -> list[int]:
    """Who keeps which of the blocks 1, 2, ...: in turn, each as many as it has.

    >>> striped([2, 2]), striped([1, 3])
    ([0, 1, 0, 1], [1, 0, 1, 1])
    """
    turns = [[((k + 0.5) / count, member) for k in range(count)] for member, count in enumerate(counts)]
    return [member for _, member in heapq.merge(*turns)]


@dataclass(slots=True)
class Delivery:
    """A store on its way: its arrival [s], its number, what it brings, what else its replica sends, if it is over."""

    arrival_s: float
    number: int
    copies: Sequence[Copy]
    coming: Counter[Name]
    landed: bool = False


class SharedTier:
    """One pool of blocks that several replicas write and read.

    Parameters
    ----------
    configs : sequence of TierConfig
        What each member gives: its ``num_blocks``, the null block not counted, are part of the pool.
    nodes : sequence of int
        The node of each member.
    num_states : int
        State groups of the model.

    Attributes
    ----------
    pool : BlockPool
        All blocks, one LRU queue; blocks are striped over the members.
    now_s : float
        Time [s] of the last look at it; it never goes back.

    Notes
    -----
    A store can be found by everybody from the time on at which it has arrived; where there is only one member, when
    that notices its end, as in a tier of its own. What one replica is writing is not written by another one.

    Blocks that other nodes keep go over the network: the reader's direction in and each keeper's direction out (for
    stores the other way round), and through the keepers' drives where the tier is NVMe. All of these work on their
    part at once, each first come, first served; a transfer is over when the last of them is done with it, and
    ``network_start_s`` later. A tier of kind "pool" is nobody's: all of it is behind each replica's own link.

    Examples
    --------
    >>> tier = SharedTier([TierConfig(3, load_s_per_block=0.1, network_s_per_block=0.5)] * 2, [0, 1], 0)
    >>> one, two = tier.port(0), tier.port(1)
    >>> one.set_time(1.0)
    >>> one.send([Copy((0, 7), None, block) for block in tier.pool.take(1)], at_s=1.0)
    >>> two.set_time(1.0)
    >>> two.pool.find((0, 7))
    1
    >>> two.load([1], at_s=1.0), two.load([2], at_s=2.0)
    (1.5, 2.1)
    """

    def __init__(self, configs: Sequence[TierConfig], nodes: Sequence[int], num_states: int) -> None:
        counts = [config.num_blocks - 1 for config in configs]
        self.configs, self.nodes, self.num_states = configs, nodes, num_states
        self.pool = BlockPool(sum(counts) + 1)
        self.keeper = [-1, *striped(counts)]
        self.network_in = [Link(config.network_s_per_block) for config in configs]
        self.network_out = [Link(config.network_s_per_block) for config in configs]
        self.drives_out = [Link(config.load_s_per_block, config.load_start_s) for config in configs]
        self.drives_in = [Link(config.store_s_per_block, config.store_start_s) for config in configs]
        self.coming: Counter[Name] = Counter()
        self.num_arrived = self.num_sent = 0
        self.now_s = 0.0
        self._on_the_way: list[Delivery] = []

    def port(self, member: int) -> Port:
        """A new life of a member's engine begins: its way to the tier."""
        return Port(self, member)

    def look(self, now_s: float) -> None:
        """A member looks at the tier: what has arrived can be found, by all if they are several."""
        if now_s < self.now_s * NEARLY_ONE:
            raise SimulationError(f"shared tier: looked at at {now_s} s, after {self.now_s} s")
        self.now_s = now_s = max(now_s, self.now_s)
        if len(self.configs) > 1 and self._on_the_way and min(d.arrival_s for d in self._on_the_way) <= now_s:
            due = [delivery for delivery in self._on_the_way if delivery.arrival_s <= now_s]
            for delivery in sorted(due, key=lambda d: (d.arrival_s, d.number)):
                self.land(delivery)

    def send(self, copies: Sequence[Copy], arrival_s: float, coming: Counter[Name]) -> Delivery:
        """A member, which keeps count of what is `coming` from it, starts to store."""
        self.num_sent += 1
        for counter in (self.coming, coming):
            counter.update(copy.name for copy in copies)
        delivery = Delivery(arrival_s, self.num_sent, copies, coming)
        self._on_the_way.append(delivery)
        return delivery

    def land(self, delivery: Delivery) -> None:
        """A store is over: its blocks can be found from now on."""
        if delivery.landed:
            return
        self.forget(delivery)
        for copy in delivery.copies:
            self.pool.give_name(copy.target, copy.name)
        self.num_arrived += len(delivery.copies)
        self.pool.release(copy.target for copy in delivery.copies)

    def forget(self, delivery: Delivery) -> None:
        """A store is not on its way any more."""
        delivery.landed = True
        self._on_the_way.remove(delivery)
        for counter in (self.coming, delivery.coming):
            counter.subtract(copy.name for copy in delivery.copies)
            for copy in delivery.copies:
                if not counter[copy.name]:
                    del counter[copy.name]

    def resident_of(self, member: int) -> int:
        """Blocks that a member keeps and that can be found."""
        return sum(self.keeper[block] == member for blocks in self.pool.named.values() for block in blocks)

    def check(self) -> None:
        """Raise `SimulationError` unless what came in has gone out or is still there."""
        self.pool.check_all()
        if self.num_arrived != self.pool.num_evicted + self.pool.num_named:
            raise SimulationError(f"shared tier: {self.num_arrived} blocks came in, {self.pool.num_evicted} went out, "
                                  f"{self.pool.num_named} are there")


class Port(Level):
    """A shared tier as one replica sees it.

    Parameters
    ----------
    shared : SharedTier
        The tier.
    member : int
        Which of its members the replica is.
    """

    def __init__(self, shared: SharedTier, member: int) -> None:
        config = shared.configs[member]
        super().__init__(config, shared.num_states, shared.pool)
        self._shared, self._member = shared, member
        if config.kind == "nvme":  # others read and write there too
            self.load_link, self.store_link = shared.drives_out[member], shared.drives_in[member]
        self._mine: deque[Delivery] = deque()
        self._loaded, self._stored = Counter[bool](), Counter[bool]()
        self._before_s = self._busy_s()

    def set_time(self, now_s: float) -> None:
        """Go offline when it is time to; see what others have stored."""
        super().set_time(now_s)
        self._shared.look(now_s)

    def has(self, name: Name) -> bool:
        """Whether a block of that name is there, or is being written by another replica."""
        return super().has(name) or self._shared.coming[name] > self._coming[name]

    def load_arrival_s(self, blocks: Sequence[int], at_s: float) -> float:
        """When a load of `blocks` asked for at `at_s` would have arrived [s]."""
        return max(link.arrival_s(count, at_s) + start_s for link, count, start_s in self._parts(blocks, True))

    def load(self, blocks: Sequence[int], at_s: float) -> float:
        """Start to load `blocks`, as one transfer; returns when it has arrived [s]."""
        self._loaded.update(map(self._is_remote, blocks))
        return max(link.send(count, at_s) + start_s for link, count, start_s in self._parts(blocks, True))

    def send(self, copies: Sequence[Copy], at_s: float) -> None:
        """Start to store `copies`, as one transfer."""
        if not copies:
            return
        blocks = [copy.target for copy in copies]
        self._stored.update(map(self._is_remote, blocks))
        arrival_s = max(link.send(count, at_s) + start_s for link, count, start_s in self._parts(blocks, False))
        self._mine.append(self._shared.send(copies, arrival_s, self._coming))

    def next_s(self, default_s: float) -> float:
        """When the next of this replica's stores arrives [s]."""
        return min([delivery.arrival_s for delivery in self._mine], default=default_s)

    def take_arrived(self, now_s: float) -> list[Sequence[Copy]]:
        """This replica's stores that have arrived by `now_s`."""
        arrived = [delivery for delivery in self._mine if delivery.arrival_s <= now_s]
        for delivery in arrived:
            self._mine.remove(delivery)
            self._shared.land(delivery)
        return [delivery.copies for delivery in arrived]

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """The replica is gone: what it was about to store, or was storing, never arrives."""
        super().withdraw(copies)
        for delivery in self._mine:
            if not delivery.landed:
                self._shared.forget(delivery)
                super().withdraw(delivery.copies)

    def check(self) -> None:
        """Raise `SimulationError` unless what came in has gone out or is still there."""
        self._shared.check()

    def totals(self) -> TierTotals:
        """What this replica did with it, and what is left in its own part."""
        size, shared, me = self.config.block_bytes, self._shared, self._member
        loaded, stored = self._loaded.total(), self._stored.total()
        load_s, store_s, *network_s = [now - before for now, before in zip(self._busy_s(), self._before_s, strict=True)]
        return TierTotals(self.config.kind, self.config.num_blocks, self.hit_tokens, loaded, stored, loaded * size,
                          stored * size, load_s, store_s, shared.resident_of(me), self._loaded[True] * size,
                          self._stored[True] * size, max(network_s))

    def _busy_s(self) -> list[float]:
        """Time [s] for which this member's links have been occupied; some are older than this life of its engine."""
        ways = self._shared.network_in[self._member], self._shared.network_out[self._member]
        return [link.busy_s for link in (self.load_link, self.store_link, *ways)]

    def _is_remote(self, block: int) -> bool:
        """Whether another node keeps a block."""
        nodes = self._shared.nodes
        return self.config.kind != "pool" and nodes[self._shared.keeper[block]] != nodes[self._member]

    def _parts(self, blocks: Sequence[int], is_load: bool) -> Iterator[tuple[Link, int, float]]:
        """Links that a transfer uses, with the blocks that go over each and the time [s] that it takes besides."""
        shared, nvme = self._shared, self.config.kind == "nvme"
        away = Counter(shared.keeper[block] for block in blocks if self._is_remote(block))
        here = len(blocks) - away.total()
        if here:
            yield (self.load_link if is_load else self.store_link), here, 0.0
        if not away:
            return
        ways = shared.network_in, shared.network_out
        mine, theirs = ways if is_load else ways[::-1]
        start_s = self.config.network_start_s
        yield mine[self._member], away.total(), start_s
        for keeper, count in away.items():
            yield theirs[keeper], count, start_s
            if nvme:
                yield (shared.drives_out if is_load else shared.drives_in)[keeper], count, start_s
