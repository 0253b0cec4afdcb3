"""A request inside the fast engine, and what it holds of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.cache.content_trie import ContentTrie, Path
from kvsim.cache.runs import CheckpointIndex, FreePool, Held, RunIndex
from kvsim.engine.kv_cache import Holding
from kvsim.engine.types import EngineConfig

LAST = 1 << 62
"""An order after that of every request."""

NO_BLOCKS = Holding([], 0)
"""What a request holds block by block where blocks are runs."""


class Sequence:
    """One request inside the engine.

    While it decodes, ``base_tokens`` + the number of the step are its computed tokens, so that nothing has to be
    done for it in a step; before that, ``computed_tokens`` counts them. ``known_tokens`` are prompt and generated
    tokens at its admission. ``order`` is its place among the running. Blocks before ``tail`` are in ``held``;
    where blocks are objects of their own, they are all in ``holding``.
    """

    __slots__ = ("base_tokens", "computed_tokens", "decoding", "finish_step", "generated_tokens", "held",
                 "holding", "junction_tokens", "known_tokens", "opened", "order", "output_tokens", "path",
                 "prompt_tokens", "rank", "row", "running", "states", "tail")

    def __init__(self, row: int, prompt_tokens: int, output_tokens: int, path: Path) -> None:
        self.row, self.prompt_tokens, self.output_tokens, self.path = row, prompt_tokens, output_tokens, path
        self.known_tokens = prompt_tokens
        self.generated_tokens = self.computed_tokens = self.base_tokens = self.junction_tokens = self.tail = 0
        self.order = self.finish_step = -1
        self.running = self.decoding = False
        self.held: list[Held] = []
        self.holding = NO_BLOCKS
        self.states: list[tuple[int, Held | None]] = []
        self.opened: list[int] = []
        self.rank: tuple[int, float] = (0, 0.0)


@dataclass(slots=True)
class StepCount:
    """Where the run is: steps done, and up to which place in the running list the next one is planned."""

    done: int = 0
    cursor: int = -1

    @property
    def given(self) -> int:
        """Tokens that a sequence which decoded in all steps so far has got."""
        return self.done

    def given_in(self, steps: int) -> int:
        """Tokens that it gets in the next `steps` steps."""
        return steps

    def end_of(self, step: int) -> int:
        """What its ``base_tokens`` lack to what its last query in `step` attends to."""
        return step

    def after(self, step: int, tokens: int) -> int:
        """The step with which a sequence has `tokens` more than after `step`."""
        return step + tokens

    def computed_tokens(self, seq: Sequence) -> int:
        """Tokens of a request that are computed or scheduled by now."""
        if seq.decoding:
            return seq.base_tokens + self.done + (seq.order < self.cursor)
        return seq.computed_tokens


Hit = tuple[int, list[Held], Held, int]
"""A cached prefix: length [blocks], runs by attention group, the checkpoint it ends at, blocks others refer to."""


class SequenceCache:
    """Block accounts of all sequences over one pool: what `kvsim.engine.kv_cache` does, in runs.

    Parameters
    ----------
    config : EngineConfig
        Pool, block and group settings.
    trie : ContentTrie
        Which blocks are the same.
    count : StepCount
        The engine's step counter.

    Attributes
    ----------
    num_groups : int
        Attention groups, each of which takes one block every `block_tokens` tokens.
    moving_groups : int
        State groups whose block moves along with the sequence (those with checkpoints).
    """

    def __init__(self, config: EngineConfig, trie: ContentTrie, count: StepCount) -> None:
        self.pool = FreePool(config.num_blocks - 1)
        self.num_groups = 1 + config.extra_attention_groups
        self.moving_groups = config.state_groups if config.prefix_caching else 0
        self._resident = config.state_groups - self.moving_groups
        self._block_tokens, self._caching = config.block_tokens, config.prefix_caching
        self._interval_tokens = config.retention_interval_tokens
        self._trie, self._count = trie, count
        self._indexes = [RunIndex(self.pool) for _ in range(self.num_groups)]
        self._checkpoints = CheckpointIndex(self.pool, self.moving_groups)
        self._is_alone = self.num_groups == 1 and not self.moving_groups
        self._open: dict[int, list[Sequence]] = {}
        self._num_contested = 0
        self._written: set[tuple[int, int]] = set()

    def begin_step(self) -> None:
        """Checkpoints named until now can be read."""
        if self._written:
            self._written.clear()

    def lookup(self, seq: Sequence) -> Hit:
        """Longest cached prefix that all groups share; notes the junction."""
        seq.junction_tokens = 0
        limit = (seq.known_tokens - 1) // self._block_tokens
        if not self._caching or not limit:
            return 0, [[] for _ in self._indexes], [], 0
        if self._open:
            unsettled = self._unsettled(seq)
            if unsettled:
                self._settle(unsettled)
        if self._is_alone:
            found, length = self._indexes[0].leading(seq.path, limit)
            num_shared = 0
            for run, end in found:
                if run.refs:
                    num_shared += end - run.lo
            return length, [found], [], num_shared
        return self._lookup_groups(seq, limit)

    def cached_blocks(self, path: Path, limit: int) -> int:
        """Length of the cached prefix of a path, at most `limit` blocks, as somebody outside sees it."""
        if not self._caching:
            return 0
        unsettled = [chain for chain, _ in path if chain in self._open]
        if unsettled:
            self._settle(unsettled)
        length = min([index.leading(path, limit)[1] for index in self._indexes])
        return self._checkpoints.last(path, length)[0] if self.moving_groups and length else length

    def need_blocks(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must be free so that everything known of the sequence fits beside the hit."""
        need = -(-seq.known_tokens // self._block_tokens) * self.num_groups - hit[3] + self._resident
        if self.moving_groups:
            need += self.moving_groups + sum([end - run.lo for run, end in hit[2] if not run.refs])
        return need

    def new_blocks(self, seq: Sequence, hit: Hit) -> int:
        """Those of them that no hit of at most this length can save."""
        missing = -(-seq.known_tokens // self._block_tokens) - hit[0]
        return missing * self.num_groups + self._resident + self.moving_groups

    def is_readable(self, seq: Sequence, hit: Hit) -> bool:
        """Whether the hit's checkpoint was written before this step."""
        length = hit[0]
        return not self._written or not length or (self._chain(seq, length), length) not in self._written

    def is_contended(self, seq: Sequence) -> bool:
        """Whether somebody is writing blocks that the sequence could hit."""
        return bool(self._open) and bool(self._unsettled(seq))

    def admit(self, seq: Sequence, hit: Hit, end_tokens: int) -> None:
        """Start a sequence on a hit, with blocks up to `end_tokens`."""
        length, groups, states, _ = hit
        if length:
            for index, found in zip(self._indexes, groups, strict=True):
                index.hold(found)
        seq.held = groups
        seq.tail, seq.computed_tokens = length, end_tokens
        if states:
            self._checkpoints.hold(states)
        required = -(-end_tokens // self._block_tokens)
        self.pool.take((required - length) * self.num_groups + self.moving_groups + self._resident)
        if self.moving_groups:
            seq.states = [(length - 1, states), (required - 1, None)] if length else [(required - 1, None)]
            self.name_state(seq, end_tokens)
        if self._caching:
            self._open_chains(seq)

    def take_chunk(self, seq: Sequence, end_tokens: int, need_blocks: int) -> None:
        """A chunk of a running sequence, for which the caller has found room: `need_blocks` are `chunk_blocks`."""
        if need_blocks:
            self.pool.take(need_blocks)
        seq.computed_tokens = end_tokens
        if self.moving_groups:
            last = -(-end_tokens // self._block_tokens) - 1
            if last > seq.states[-1][0]:
                seq.states.append((last, None))
            self.name_state(seq, end_tokens)
        if seq.opened:
            self._settle_shared(seq)

    def chunk_blocks(self, seq: Sequence, end_tokens: int) -> int:
        """Blocks that a chunk up to `end_tokens` needs beyond those that the sequence has."""
        more = -(-end_tokens // self._block_tokens) + -seq.computed_tokens // self._block_tokens
        return more * self.num_groups + (more > 0) * self.moving_groups

    def move_state(self, seq: Sequence, computed_tokens: int) -> None:
        """Account for the new state block of a decoding sequence that begins a block."""
        seq.states.append((computed_tokens // self._block_tokens, None))

    def drop_states(self, seq: Sequence, computed_tokens: int) -> bool:
        """Release states that lie before the last computed token's block; tell whether there were any."""
        states = seq.states
        if len(states) < 2:  # the only one is the block of the last computed token
            return False
        first, gone = (computed_tokens - 1) // self._block_tokens, 0
        if states[0][0] >= first:
            return False
        if states[1][0] >= first:
            self._release_state(states.pop(0)[1])
            return True
        while gone < len(states) and states[gone][0] < first:
            gone += 1
        self._release_states(states[:gone])
        del states[:gone]
        return True

    def name_state(self, seq: Sequence, end_tokens: int) -> bool:
        """Make the state after `end_tokens` findable if it is one to keep; tell whether it is."""
        if end_tokens % self._block_tokens or not self._keeps(seq, end_tokens):
            return False
        end = end_tokens // self._block_tokens
        chain = self._chain(seq, end)
        seq.states[-1] = (end - 1, self._checkpoints.write(chain, end))
        self._written.add((chain, end))
        return True

    def settle(self, seq: Sequence) -> None:
        """Bring the chains that a sequence writes up to date, before its pace changes."""
        self._settle(seq.opened)

    def release(self, seq: Sequence, is_final: bool) -> None:
        """Give everything back; a final release comes from a finished request."""
        computed = self._count.computed_tokens(seq)
        full, part = computed // self._block_tokens, computed % self._block_tokens
        if not self._caching:
            self.pool.give_nameless((full + (part > 0)) * self.num_groups + self._resident)
            return
        if is_final and self._is_alone and full:
            full = self._drop_private(seq, full)
            if not full:
                self.pool.give_nameless(part > 0)
                return
        if seq.opened:
            self._settle_shared(seq)
            self._close_chains(seq)
        self._write_tail(seq, full, is_final)
        for index, held in zip(self._indexes, seq.held, strict=True):
            index.release(held)
        if part:
            self.pool.give_nameless(self.num_groups)
        if seq.states:
            self._release_states(seq.states)
            seq.states = []
        seq.held = []

    def _drop_private(self, seq: Sequence, full: int) -> int:
        """Queue the blocks of a finished request that nobody else could ask for, if none was ever findable.

        Returns how many blocks are left before them. They are released before those, the last block first.
        """
        chain = seq.path[-1][0]
        start = self._trie.start_block[chain]
        if self._trie.users[chain] > 1 or not seq.tail <= start < full or self._indexes[0].knows(chain):
            return full
        self.pool.drop(full - start)
        return start

    def _lookup_groups(self, seq: Sequence, limit: int) -> Hit:
        """`lookup` when several groups must agree."""
        if len(self._indexes) == 1:
            leading = [self._indexes[0].leading(seq.path, limit)]
            first = length = leading[0][1]
        else:
            leading = [index.leading(seq.path, limit) for index in self._indexes]
            first, length = leading[0][1], min([at for _, at in leading])
        states: Held = []
        if self.moving_groups:
            length, states = self._checkpoints.last(seq.path, length) if length else (0, states)
            if length < first:
                seq.junction_tokens = first * self._block_tokens
        found = [clipped(runs, length) for runs, _ in leading]
        return length, found, states, sum([end - run.lo for runs in found for run, end in runs if run.refs])

    def _keeps(self, seq: Sequence, end_tokens: int) -> bool:
        """Checkpoints kept: all, every N tokens, at the prompt's last resumable boundary, at a junction."""
        interval = self._interval_tokens
        if interval is None or (interval and end_tokens % interval == 0):
            return True
        return end_tokens in (self._last_resumable(seq), seq.junction_tokens)

    def _last_resumable(self, seq: Sequence) -> int:
        """Where the last checkpoint of a prompt lies [tokens]."""
        return (seq.prompt_tokens - 1) // self._block_tokens * self._block_tokens

    def _release_states(self, states: list[tuple[int, Held | None]]) -> None:
        """Group after group, the last position first."""
        if len(states) == 1:
            self._release_state(states[0][1])
            return
        named = [copies for _, copies in states if copies is not None]
        if len(named) < len(states):
            self.pool.give_nameless(self.moving_groups * (len(states) - len(named)))
        if len(named) == 1:
            self._checkpoints.release(named[0])
        elif named:
            named.reverse()
            self._checkpoints.release_by_group(named)

    def _release_state(self, copies: Held | None) -> None:
        """One state block of every group, findable or not."""
        if copies is None:
            self.pool.give_nameless(self.moving_groups)
        else:
            self._checkpoints.release(copies)

    def _chain(self, seq: Sequence, end: int) -> int:
        """Chain that holds the block before block `end` of a sequence."""
        return next(chain for chain, last in seq.path if last >= end)

    def _unsettled(self, seq: Sequence) -> list[int]:
        """Chains of a sequence on which somebody has still blocks to write that it could hit, root first."""
        found: list[int] = []
        written = self._open
        for chain, end in seq.path:
            if chain in written:
                for writer in written[chain]:
                    if writer.tail < end:
                        found.append(chain)
                        break
        return found

    def _open_chains(self, seq: Sequence) -> None:
        """Note the shared chains that a sequence is going to write, so that lookups there know of it."""
        users = self._trie.users
        for chain, end in seq.path:
            if end > seq.tail and users[chain] > 1:
                writers = self._open.get(chain)
                if writers is None:
                    self._open[chain] = [seq]
                else:
                    self._settle([chain])
                    self._num_contested += len(writers) == 1
                    writers.append(seq)
                seq.opened.append(chain)
        if seq.opened:
            self._settle_shared(seq)

    def _close_chains(self, seq: Sequence) -> None:
        for chain in seq.opened:
            writers = self._open[chain]
            if len(writers) == 1:
                del self._open[chain]
            else:
                writers.remove(seq)
                self._num_contested -= len(writers) == 1
        seq.opened = []

    def _settle_shared(self, seq: Sequence) -> None:
        """Keep the order in which several writers of a chain made their blocks findable."""
        if not self._num_contested:
            return
        shared = [chain for chain in seq.opened if len(self._open[chain]) > 1]
        if shared:
            self._settle(shared)

    def _settle(self, chains: list[int]) -> None:
        """Make findable what the writers of chains have filled since; who is ahead of another did it first.

        The chains are given root first, and only their own blocks are written: those below have other writers.
        """
        for chain in chains:
            writers = self._open[chain]
            if len(writers) > 1:
                writers = sorted(writers, key=_pace)
            for seq in writers:
                full = self._count.computed_tokens(seq) // self._block_tokens
                self._write_tail(seq, min(full, next(end for own, end in seq.path if own == chain)), False)

    def _write_tail(self, seq: Sequence, full: int, is_final: bool) -> None:
        """Make the full blocks of a sequence findable; a private chain's can be forgotten at the end."""
        at = seq.tail
        if full <= at:
            return
        seq.tail = full
        users = self._trie.users
        for chain, end in seq.path:
            if end <= at:
                continue
            if end > full:
                end = full
            loose = is_final and users[chain] == 1
            for index, held in zip(self._indexes, seq.held):  # noqa: B905 - one a group, and in the innermost loop
                if loose and not index.knows(chain):
                    index.add_loose(held, chain, at, end)
                else:
                    index.add(held, chain, at, end)
            at = end
            if at == full:
                return


def _pace(seq: Sequence) -> tuple[bool, int, int]:
    """Decoding sequences by how far they are, all at the same pace; then those that still prefill."""
    return (not seq.decoding, -seq.base_tokens if seq.decoding else 0, seq.order)


def clipped(runs: Held, length: int) -> Held:
    """The part of a hit within the first `length` blocks."""
    if not runs or runs[-1][1] <= length:
        return runs
    return [(run, min(end, length)) for run, end in runs if run.lo < length]
