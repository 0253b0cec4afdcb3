"""The plain block pool: one block is one object of thought, nothing is batched.

A block is *used* while a request refers to it, else it is in the free queue. A block with a *name* can be
found again by a later prompt, used or free; taking it from the free queue for something else evicts it.
Block 0 is the null block: it stands for "no block here" and is never handed out.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvsim.cache.eviction.base import Eviction
from kvsim.errors import SimulationError

Place = TypeVar("Place")

NULL_BLOCK = 0

Name = tuple[int, int]
"""(group, prefix key): what a block of that group holds, see `PrefixKeys`."""


class PrefixKeys:
    """Numbers for prompt prefixes: two blocks get the same key exactly when all tokens up to their ends are equal.

    Parameters
    ----------
    block_tokens : int
        Tokens a block holds, >= 1.

    Notes
    -----
    A token is (content, position in that content's stream). A block's key is interned from its predecessor's key
    and the stretches of streams that it covers, as a chained hash would be, but without collisions.

    Examples
    --------
    >>> keys = PrefixKeys(16)
    >>> keys.chain([(7, 40)])          # two full blocks; the last 8 tokens fill none
    [0, 1]
    >>> keys.chain([(7, 20), (8, 30)])   # shares the first block only
    [0, 2, 3]
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._keys: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}

    def chain(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """Keys of the full blocks of a token sequence given as merged pieces (content, tokens)."""
        keys: list[int] = []
        parent, room = -1, self.block_tokens
        spans: list[tuple[int, int, int]] = []
        for content, tokens in pieces:
            start = 0
            while start < tokens:
                length = min(room, tokens - start)
                spans.append((content, start, length))
                start, room = start + length, room - length
                if not room:
                    parent = self._keys.setdefault((parent, tuple(spans)), len(self._keys))
                    keys.append(parent)
                    spans, room = [], self.block_tokens
        return keys


class BlockPool:
    """Blocks, who refers to them, what they are called, and the order in which free ones are reused.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block included, >= 1.
    eviction : Eviction, optional
        Which free block with a name is reused first; by default the one that became free first (LRU, as vLLM).

    Attributes
    ----------
    num_used : int
        Blocks that requests refer to (the null block not counted).
    num_cached : int
        Blocks that are free and have a name.
    num_evicted : int
        Names lost so far because their block was taken for something else.
    on_evict : callable or None
        Called with a name of which the last block is being taken for something else.

    Examples
    --------
    >>> pool = BlockPool(4)
    >>> first, second = pool.take(2)
    >>> pool.give_name(first, (0, 11))
    >>> pool.release([second, first])
    >>> pool.take(2) == [second, 3]        # nameless blocks are reused before anything named
    True
    >>> pool.find((0, 11)) == first
    True
    """

    def __init__(self, num_blocks: int, eviction: Eviction | None = None) -> None:
        self.num_blocks = num_blocks
        self._eviction = eviction
        self.num_used = 0
        self.num_cached = 0
        self.num_evicted = 0
        self.on_evict: Callable[[Name], None] | None = None
        self._refs = [0] * num_blocks
        self._name: list[Name | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks))
        self._named: dict[Name, dict[int, None]] = {}
        self.num_changes = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free)

    def is_free(self, block: int) -> bool:
        """Whether nobody refers to `block`."""
        return not self._refs[block]

    @property
    def num_named(self) -> int:
        """Blocks with a name, used or free."""
        return sum(len(blocks) for blocks in self._named.values())

    def name_of(self, block: int) -> Name | None:
        """What `block` holds; None when nothing can be found in it."""
        return self._name[block]

    def free_after(self, block: int | None) -> Iterator[int]:
        """Free blocks in the order in which LRU reuses them: those behind the free `block`, or all of them.

        >>> pool = BlockPool(5)
        >>> list(pool.free_after(None)), list(pool.free_after(3)), list(pool.free_after(4))
        ([1, 2, 3, 4], [4], [])
        """
        if block is None:
            return iter(self._free)
        if block == next(reversed(self._free)):
            return iter(())
        behind = itertools.dropwhile(lambda other: other != block, self._free)
        return itertools.islice(behind, 1, None)

    @property
    def named(self) -> Mapping[Name, Mapping[int, None]]:
        """Blocks by name, in the order in which they got it; to look at, not to change."""
        return self._named

    def find(self, name: Name) -> int | None:
        """The block of that name; of several the one that got it first; None when there is none."""
        blocks = self._named.get(name)
        return next(iter(blocks)) if blocks else None

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks, nameless ones first; their names are forgotten."""
        if count > len(self._free):
            raise SimulationError(f"block pool: {count} blocks taken, {len(self._free)} are free")
        taken = [self._take_next() for _ in range(count)]
        self.num_used += count
        return taken

    def _take_next(self) -> int:
        """The block from the head of the free queue; among named ones the policy's choice, if there is a policy."""
        if self._eviction is None or len(self._free) > self.num_cached:
            block = self._free.popitem(last=False)[0]
        else:
            block = self._eviction.evict()
            del self._free[block]
        self._evict(block)
        self._refs[block] = 1
        return block

    def touch(self, blocks: Iterable[int]) -> None:
        """Refer once more to each of `blocks`; free ones leave the queue and keep their name."""
        for block in blocks:
            if not self._refs[block]:
                del self._free[block]
                self.num_used += 1
                if self._name[block] is not None:
                    self.num_cached -= 1
                    if self._eviction is not None:
                        self._eviction.taken(block)
            self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Refer once less to each of `blocks`; those that become free queue up in the given order.

        Nameless ones go to the head of the queue (reused first), named ones to its tail (evicted last).
        """
        nameless: list[int] = []
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            self.num_used -= 1
            self._free[block] = None
            name = self._name[block]
            if name is None:
                nameless.append(block)
            else:
                self.num_cached += 1
                if self._eviction is not None:
                    self._eviction.freed(block, name)
        for block in reversed(nameless):
            self._free.move_to_end(block, last=False)

    def give_name(self, block: int, name: Name) -> None:
        """Make a used, nameless block findable; blocks of equal content all keep the name."""
        if self._name[block] is not None or not self._refs[block]:
            raise SimulationError(f"block pool: block {block} cannot be named {name}")
        self._name[block] = name
        self._named.setdefault(name, {})[block] = None
        self.num_changes += 1

    def check(self) -> None:
        """Raise `SimulationError` unless every block but the null block is either used or free."""
        if self.num_used + len(self._free) != self.num_blocks - 1:
            raise SimulationError(
                f"block pool: {self.num_used} used + {len(self._free)} free != {self.num_blocks - 1}")

    def check_all(self) -> None:
        """`check`, with every count taken anew from the blocks themselves."""
        used = sum(1 for refs in self._refs if refs)
        cached = sum(1 for block in self._free if self._name[block] is not None)
        if (used, cached) != (self.num_used, self.num_cached) or any(self._refs[b] for b in self._free):
            raise SimulationError(f"block pool: counted {used} used and {cached} cached blocks, "
                                  f"kept {self.num_used} and {self.num_cached}")
        self.check()

    def forget(self, block: int) -> bool:
        """Take the name of a used block away, so that it is reused first once released; False if it has none."""
        if self._name[block] is None:
            return False
        self._unname(block)
        return True

    def expire(self) -> None:
        """Forget the names of free blocks whose time is over, if the policy knows a time."""
        for block in self._eviction.expire() if self._eviction is not None else ():
            self.num_cached -= 1
            self.num_evicted += 1
            self._unname(block)
            self._free.move_to_end(block, last=False)

    def _evict(self, block: int) -> None:
        """Forget the name of a block that leaves the free queue for something else."""
        name = self._name[block]
        if name is None:
            return
        self.num_cached -= 1
        self.num_evicted += 1
        self._unname(block)
        if self.on_evict is not None and name not in self._named:
            self.on_evict(name)

    def _unname(self, block: int) -> None:
        name = self._name[block]
        assert name is not None
        self.num_changes += 1
        self._name[block] = None
        if self._eviction is not None:
            self._eviction.forgotten(block)
        blocks = self._named[name]
        del blocks[block]
        if not blocks:
            del self._named[name]


@dataclass(frozen=True, slots=True)
class Found(Generic[Place]):
    """A prefix that every group has.

    Attributes
    ----------
    length : int
        Positions.
    attention_length : int
        Positions that the first attention group alone would give, >= `length`.
    blocks : list of dict
        A group each: position -> where its block is. Attention groups have all positions, state groups the last.
    """

    length: int
    attention_length: int
    blocks: list[dict[int, Place]]


def find_prefix(find: Callable[[Name], Place | None], num_attention: int, num_states: int,
                keys: Sequence[int]) -> Found[Place]:
    """Longest prefix of `keys` that attention groups have wholly and state groups have a checkpoint at the end of.

    Parameters
    ----------
    find : callable
        Where the block of a name is; None when it is nowhere.
    num_attention, num_states : int
        Attention groups are numbered from 0, state groups follow.
    keys : sequence of int
        Prefix keys, see `PrefixKeys`.

    Returns
    -------
    Found
        The prefix; its length is 0 when there is none.

    Examples
    --------
    >>> there = {(0, 7), (0, 8), (0, 9), (1, 8)}
    >>> found = find_prefix(lambda name: name if name in there else None, 1, 1, [7, 8, 9])
    >>> found.length, found.attention_length, found.blocks[1]
    (2, 3, {1: (1, 8)})
    """
    runs = [_leading(find, group, keys) for group in range(num_attention)]
    length = min(len(run) for run in runs)
    states: list[dict[int, Place]] = []
    if num_states:
        length, states = _last_checkpoint(find, range(num_attention, num_attention + num_states), keys[:length])
    return Found(length, len(runs[0]), [*(dict(enumerate(run[:length])) for run in runs), *states])


def _leading(find: Callable[[Name], Place | None], group: int, keys: Sequence[int]) -> list[Place]:
    """Places of the longest run of `keys` from the start."""
    run: list[Place] = []
    for key in keys:
        place = find((group, key))
        if place is None:
            break
        run.append(place)
    return run


def _last_checkpoint(find: Callable[[Name], Place | None], groups: Iterable[int],
                     keys: Sequence[int]) -> tuple[int, list[dict[int, Place]]]:
    """Length of the longest prefix at whose end every state group has a checkpoint, and their places."""
    for position in range(len(keys) - 1, -1, -1):
        found = [find((group, keys[position])) for group in groups]
        places = [place for place in found if place is not None]
        if len(places) == len(found):
            return position + 1, [{position: place} for place in places]
    return 0, [{} for _ in groups]
