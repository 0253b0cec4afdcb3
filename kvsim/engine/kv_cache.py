"""Who holds which block: groups of layers over one pool, with prefix caching as vLLM V1 does it.

A *group* is a set of layers that share block tables. Attention groups hold a block for every `block_tokens` tokens;
a state group (KDA, Gated DeltaNet, Mamba) needs only the state after the last token, so it holds the block that
it writes and the one that it started from. A state block whose end lies on a block boundary is a *checkpoint*:
prefixes can be resumed there. docs/engine_rules.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kvsim.cache.blocks import BlockPool, Name, find_prefix
from kvsim.cache.eviction.base import Eviction, Listener, Release
from kvsim.engine.types import EngineConfig


@dataclass(slots=True)
class Table:
    """Blocks that one request holds in one group.

    ``blocks`` maps positions (block ``j`` covers tokens ``j * block_tokens`` and on) to blocks, ascending;
    ``length`` counts positions, those without a block included.
    """

    blocks: dict[int, int] = field(default_factory=dict[int, int])
    length: int = 0


@dataclass(slots=True, eq=False)
class Holding:
    """What the cache knows of one request.

    Attributes
    ----------
    keys : list of int
        Prefix keys of all full blocks of prompt and output, see `PrefixKeys`.
    prompt_tokens : int
        Length of the prompt [tokens].
    tables : list of Table
        One a group; empty while the request holds nothing.
    num_named : int
        Leading positions already offered to the prefix cache.
    junction_tokens : int
        Where the last lookup saw a shared prefix without a checkpoint end [tokens]; 0 = none.
    row : int
        Which request it is, for the eviction policy.
    spare : list of int
        State blocks for the drafts of a step, one a draft token and state group.
    """

    keys: list[int]
    prompt_tokens: int
    tables: list[Table] = field(default_factory=list[Table])
    num_named: int = 0
    junction_tokens: int = 0
    row: int = -1
    spare: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix that was found: its length [tokens] and, a group each, positions and blocks."""

    tokens: int
    blocks: list[dict[int, int]]


class Group(Protocol):
    """How one group of layers uses blocks."""

    index: int

    def num_to_take(self, length: int, required: int) -> int:
        """Blocks to take so that a table of `length` positions covers `required`."""
        ...

    def first_needed(self, computed_tokens: int) -> int:
        """First position still needed once `computed_tokens` are in the cache."""
        ...

    def keeps(self, position: int, holding: Holding) -> bool:
        """Whether the full block at `position` is made findable."""
        ...


class AttentionGroup:
    """Full attention: a block for every position, for the whole life of the request."""

    def __init__(self, index: int) -> None:
        self.index = index

    def num_to_take(self, length: int, required: int) -> int:
        """Every missing position."""
        return max(required - length, 0)

    def first_needed(self, computed_tokens: int) -> int:
        """All positions stay."""
        del computed_tokens
        return 0

    def keeps(self, position: int, holding: Holding) -> bool:
        """All full blocks are findable."""
        del position, holding
        return True


class StateGroup:
    """Constant state with checkpoints: one new block whenever the last position changes.

    `drops_block`: hits lose a block of attention to drafts, so that the last checkpoint of a prompt lies one earlier.
    """

    def __init__(self, index: int, block_tokens: int, retention_interval_tokens: int | None,
                 drops_block: bool = False) -> None:
        self.index, self._drops_block = index, drops_block
        self._block_tokens = block_tokens
        self._interval_tokens = retention_interval_tokens

    def num_to_take(self, length: int, required: int) -> int:
        """One block, at the last position; positions skipped on the way stay without a block."""
        return int(required > length)

    def first_needed(self, computed_tokens: int) -> int:
        """The position of the last computed token: its block is the state to go on from."""
        return max(computed_tokens - 1, 0) // self._block_tokens

    def keeps(self, position: int, holding: Holding) -> bool:
        """Checkpoints kept: all, every N tokens, at the prompt's last resumable boundary, at a junction."""
        end_tokens = (position + 1) * self._block_tokens
        interval = self._interval_tokens
        if interval is None or (interval and end_tokens % interval == 0):
            return True
        last_resumable = ((holding.prompt_tokens - 1) // self._block_tokens - self._drops_block) * self._block_tokens
        return end_tokens in (last_resumable, holding.junction_tokens)


class ResidentStateGroup:
    """Constant state without prefix caching: one block a request, taken at admission."""

    def __init__(self, index: int) -> None:
        self.index = index

    def num_to_take(self, length: int, required: int) -> int:
        """The one block, once."""
        return int(required > 0 and length == 0)

    def first_needed(self, computed_tokens: int) -> int:
        """It stays."""
        del computed_tokens
        return 0

    def keeps(self, position: int, holding: Holding) -> bool:
        """Nothing is findable."""
        del position, holding
        return False


class KvCache:
    """Block tables of all requests over one pool.

    Parameters
    ----------
    config : EngineConfig
        Pool, block and group settings.
    eviction : Eviction, optional
        Which cached block is lost first; LRU by default.

    Attributes
    ----------
    pool : BlockPool
        The pool that all groups share.

    Examples
    --------
    >>> cache = KvCache(EngineConfig(8, 16, 4, 64, 100))
    >>> one = Holding(keys=[0, 1], prompt_tokens=40)
    >>> cache.admit(one, cache.lookup(one, 39), whole_tokens=40, end_tokens=40)
    True
    >>> cache.pool.num_used, cache.lookup(Holding([0, 1], 40), 39).tokens
    (3, 32)
    """

    def __init__(self, config: EngineConfig, eviction: Eviction | None = None) -> None:
        self.pool = BlockPool(config.num_blocks, eviction)
        self._eviction = eviction or Listener()
        self._block_tokens = config.block_tokens
        self._caching = config.prefix_caching
        self._num_attention = 1 + config.extra_attention_groups
        indices = range(self._num_attention, self._num_attention + config.state_groups)
        drafting = config.drafting
        self._drops_block = drafting is not None and drafting.drops_block
        self._states = [StateGroup(g, config.block_tokens, config.retention_interval_tokens, self._drops_block)
                        for g in indices]
        states: list[Group] = ([*self._states] if config.prefix_caching else [ResidentStateGroup(g) for g in indices])
        self._groups: list[Group] = [*(AttentionGroup(g) for g in range(self._num_attention)), *states]
        self._ahead_tokens = drafting.ahead_tokens if drafting else 0
        self._num_spare = drafting.tokens * config.state_groups if drafting else 0
        self._made_this_step: set[Name] = set()
        self._checkpoints: list[tuple[int, Holding, int]] = []

    def begin_step(self) -> None:
        """Checkpoints named until now can be read; those named from now on only from the next step on."""
        self._made_this_step.clear()
        self._checkpoints.clear()
        self.pool.expire()

    def lookup(self, holding: Holding, max_tokens: int) -> Hit:
        """Longest cached prefix of at most `max_tokens` tokens that all groups share; notes the junction."""
        holding.junction_tokens = 0
        if not self._caching:
            return Hit(0, [{} for _ in self._groups])
        keys = holding.keys[:max_tokens // self._block_tokens]
        if self._drops_block:
            keys = keys[:max(find_prefix(self.pool.find, self._num_attention, 0, keys).length - 1, 0)]
        found = find_prefix(self.pool.find, self._num_attention, len(self._states), keys)
        if found.length < found.attention_length and self._states:
            holding.junction_tokens = found.attention_length * self._block_tokens
        return Hit(found.length * self._block_tokens, found.blocks)

    def admit(self, holding: Holding, hit: Hit, whole_tokens: int, end_tokens: int) -> bool:
        """Start a request on `hit`, with blocks up to `end_tokens`, if its `whole_tokens` would fit now.

        A checkpoint that is written in this very step cannot be read in it: such a hit waits.
        """
        if self._hits_unwritten(holding, hit) or self._need(hit, whole_tokens) > self._num_open(holding):
            return False
        for blocks in hit.blocks:
            self._use(holding, blocks.values())
        hit_length = hit.tokens // self._block_tokens
        holding.tables = [Table(dict(blocks), hit_length) for blocks in hit.blocks]
        holding.num_named = hit_length
        holding.spare = self.pool.take(self._num_spare)
        self._eviction.admitted(holding.row)
        self._grow(holding, end_tokens)
        return True

    def reserve(self, holding: Holding, hit: Hit, whole_tokens: int, end_tokens: int, reserved_blocks: int) -> bool:
        """Give blocks to a request whose prefix from `hit` to `end_tokens` will be loaded from a lower tier.

        They are nameless until the load is over (`name_loaded`). `reserved_blocks` stay free for requests that are
        on their way through their prompts. The hit's own checkpoint is counted, but not needed and so not held.
        """
        num_open = self._num_open(holding)
        if self._hits_unwritten(holding, hit) or self._need(hit, whole_tokens) > num_open:
            return False
        if self._need(hit, end_tokens) > num_open - reserved_blocks:
            return False
        hit_length, length = hit.tokens // self._block_tokens, end_tokens // self._block_tokens
        holding.tables = []
        for group, blocks in zip(self._groups, hit.blocks, strict=True):
            if isinstance(group, AttentionGroup):
                self._use(holding, blocks.values())
                holding.tables.append(Table(dict(blocks), hit_length))
            else:
                holding.tables.append(Table())
        holding.num_named = hit_length
        holding.spare = self.pool.take(self._num_spare)
        self._eviction.admitted(holding.row)
        for group, table in zip(self._groups, holding.tables, strict=True):
            self._take(group, table, length)
        return True

    def reserve_checkpoint(self, holding: Holding, end: int) -> None:
        """Take a block in every state group for a checkpoint after `end` positions that comes from elsewhere; 0: none.

        A request that `reserve` has given blocks to; the block goes when the request goes on, and stays findable.
        """
        for group, table in zip(self._groups, holding.tables, strict=True):
            if end and isinstance(group, StateGroup) and end - 1 not in table.blocks:
                table.blocks = {end - 1: self.pool.take(1)[0], **table.blocks}

    def stream(self, holding: Holding, hit: Hit, whole_tokens: int, loaded_tokens: int, end_tokens: int) -> bool:
        """Start a request whose prefix from `hit` to `loaded_tokens` comes layer by layer, with blocks to `end_tokens`.

        The loaded blocks are findable at once, but for their checkpoint in this very step. State groups need a block
        for the loaded state and one to go on with.
        """
        # The hit's own checkpoint is counted like in `reserve`; where it is free, its block may be that second one.
        checkpoints = hit.blocks[self._num_attention:self._num_attention + len(self._states)]
        free = sum([any(map(self.pool.is_free, blocks.values())) for blocks in checkpoints])
        need = self._need(hit, whole_tokens) + len(self._states) - free
        if need > self._num_open(holding) or not self.reserve(holding, hit, whole_tokens, loaded_tokens, 0):
            return False
        self.name_loaded(holding, loaded_tokens)
        return self.extend(holding, loaded_tokens, end_tokens)

    def name_loaded(self, holding: Holding, end_tokens: int) -> None:
        """The blocks up to `end_tokens` have arrived: offer them to the prefix cache."""
        if not self._caching:
            return
        self._name_full(holding, end_tokens // self._block_tokens)

    def resume(self, holding: Holding, computed_tokens: int, whole_tokens: int, end_tokens: int) -> bool:
        """Let a request whose blocks were loaded go on up to `end_tokens`, if its `whole_tokens` would fit now."""
        if self.remaining_blocks(holding, whole_tokens) > self.pool.num_free:
            return False
        return self.extend(holding, computed_tokens, end_tokens)

    def remaining_blocks(self, holding: Holding, whole_tokens: int) -> int:
        """Blocks that a request which already has some still has to take for `whole_tokens`."""
        tables = zip(self._groups, holding.tables, strict=True)
        return sum(group.num_to_take(table.length, self._required(group, whole_tokens)) for group, table in tables)

    def shed(self, holding: Holding, computed_tokens: int) -> None:
        """Release the states that are not needed any more once `computed_tokens` are in the cache."""
        for group, table in zip(self._groups, holding.tables, strict=True):
            self._drop(holding, table, group.first_needed(computed_tokens))

    def checkpoints_of_step(self) -> dict[Holding, list[int]]:
        """Checkpoints named in this step by requests that still hold them, group after group."""
        made: dict[Holding, list[int]] = {}
        for _, holding, block in sorted(self._checkpoints, key=lambda entry: entry[0]):
            made.setdefault(holding, []).append(block)
        return made

    def extend(self, holding: Holding, computed_tokens: int, end_tokens: int, surplus_tokens: int = 0) -> bool:
        """Blocks up to `end_tokens` for a running request, if there are enough.

        States that are no longer needed are released first, and stay released when the answer is no. The last
        `surplus_tokens` lie beyond the end of the request (accepted drafts): they take room, but nobody can find them.
        """
        self.shed(holding, computed_tokens)
        if self.remaining_blocks(holding, end_tokens) > self.pool.num_free:
            return False
        self._grow(holding, end_tokens, surplus_tokens)
        return True

    def release(self, holding: Holding, is_over: bool = False) -> None:
        """Give everything back: group after group, in each the last position first; `is_over` at a request's end."""
        length = max([table.length for table in holding.tables], default=0)
        num_blocks = sum([len(table.blocks) for table in holding.tables])
        self._eviction.releasing(self._release_of(holding, length, num_blocks, (True, is_over)))
        for table in holding.tables:
            self.pool.release(reversed(table.blocks.values()))
        self._eviction.releasing(None)
        self.pool.release(holding.spare)
        holding.tables, holding.spare = [], []
        holding.num_named = 0
        self._checkpoints = [entry for entry in self._checkpoints if entry[1] is not holding]

    def _need(self, hit: Hit, whole_tokens: int) -> int:
        """Blocks that leave the free queue when a request starts on `hit` and gets `whole_tokens`."""
        hit_length = hit.tokens // self._block_tokens
        need = self._num_spare
        need += sum(group.num_to_take(hit_length, self._required(group, whole_tokens)) for group in self._groups)
        return need + sum(self.pool.is_free(block) for blocks in hit.blocks for block in blocks.values())

    def _hits_unwritten(self, holding: Holding, hit: Hit) -> bool:
        """Whether the hit ends at a checkpoint that was named in this step."""
        last = hit.tokens // self._block_tokens - 1
        return last >= 0 and any((group.index, holding.keys[last]) in self._made_this_step for group in self._states)

    def _drop(self, holding: Holding, table: Table, first_needed: int) -> None:
        """Release the blocks before `first_needed`."""
        while table.blocks and (first := next(iter(table.blocks))) < first_needed:
            self._eviction.releasing(self._release_of(holding, first + 1, 1, (False, False)))
            self.pool.release([table.blocks.pop(first)])
            self._eviction.releasing(None)

    def _release_of(self, holding: Holding, length: int, num_blocks: int, which: tuple[bool, bool]) -> Release:
        """What the policy is told: `length` positions are what the blocks let one skip."""
        prefix_blocks = length * self._num_attention + len(self._groups) - self._num_attention
        return Release(holding.row, length * self._block_tokens, prefix_blocks, num_blocks, *which)

    def _use(self, holding: Holding, blocks: Iterable[int]) -> None:
        """Refer to blocks that a request has found."""
        found = list(blocks)
        self.pool.touch(found)
        for block in found:
            self._eviction.used(block, holding.row)

    def _num_open(self, holding: Holding) -> int:
        """Free blocks that a request may be admitted into: what others keep is open only if nothing else is held."""
        return self.pool.num_free - (self._eviction.num_reserved(holding.row) if self.pool.num_used else 0)

    def _grow(self, holding: Holding, end_tokens: int, surplus_tokens: int = 0) -> None:
        """Take the missing blocks, group after group, and name the blocks that the request's own tokens fill."""
        for group, table in zip(self._groups, holding.tables, strict=True):
            self._take(group, table, self._required(group, end_tokens))
        if self._caching:
            self._name_full(holding, (end_tokens - surplus_tokens) // self._block_tokens)

    def _required(self, group: Group, end_tokens: int) -> int:
        """Positions for `end_tokens`: attention also has slots for the drafts that come next."""
        ahead = self._ahead_tokens if isinstance(group, AttentionGroup) else 0
        return -(-(end_tokens + ahead) // self._block_tokens)

    def _take(self, group: Group, table: Table, required: int) -> None:
        """Take the blocks that one group's table lacks to cover `required` positions."""
        taken = self.pool.take(group.num_to_take(table.length, required))
        table.blocks.update(zip(range(required - len(taken), required), taken, strict=True))
        table.length = max(table.length, required)

    def _name_full(self, holding: Holding, num_full: int) -> None:
        """Offer positions that became full to the prefix cache: when scheduled, not when computed."""
        positions = range(holding.num_named, num_full)
        for group, table in zip(self._groups, holding.tables, strict=True):
            for position in positions:
                if position in table.blocks and group.keeps(position, holding):
                    self._name(group, table.blocks[position], position, holding)
        holding.num_named = max(holding.num_named, num_full)

    def _name(self, group: Group, block: int, position: int, holding: Holding) -> None:
        name = (group.index, holding.keys[position])
        self.pool.give_name(block, name)
        if isinstance(group, StateGroup):
            self._made_this_step.add(name)
            self._checkpoints.append((group.index, holding, block))
