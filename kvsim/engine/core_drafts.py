"""The fast engine with speculative drafts: all decoding sequences advance by what a step accepts, at one pace.

Steps and tokens part: sequences end and arrive by steps, blocks begin by tokens. `Drafting` turns one into the other in
whole numbers, so that jumps stay closed and the clock adds the very sums of the plain engine.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, insort
from heapq import heappush

import numpy as np

from kvsim.cache.content_trie import ContentTrie, Path
from kvsim.cache.runs import Held
from kvsim.engine.core_clock import FEW_STEPS, MANY_STEPS, Clock
from kvsim.engine.core_decoders import Decoders
from kvsim.engine.core_loop import Core
from kvsim.engine.core_records import Share
from kvsim.engine.core_sequence import Hit, Sequence, SequenceCache, StepCount, clipped
from kvsim.engine.pace import Drafting
from kvsim.engine.types import EngineConfig, Progress, RunTotals
from kvsim.steptime.base import Piece, StepTimeModel
from kvsim.workload.requests import Workload


class DraftedCount(StepCount):
    """Where a run with drafts is."""

    def __init__(self, drafting: Drafting) -> None:
        super().__init__()
        self.drafting = drafting

    @property
    def given(self) -> int:
        """Tokens that a sequence which decoded in all steps so far has got."""
        return self.drafting.given(self.done)

    def given_in(self, steps: int) -> int:
        """Tokens that it gets in the next `steps` steps."""
        return self.drafting.given(self.done + steps) - self.drafting.given(self.done)

    def end_of(self, step: int) -> int:
        """What its ``base_tokens`` lack to what its last draft in `step` attends to."""
        return self.drafting.given(step - 1) + self.drafting.width

    def after(self, step: int, tokens: int) -> int:
        """The step with which a sequence has `tokens` more than after `step`."""
        return self.drafting.steps_for(self.drafting.given(step) + tokens)

    def slot_tokens(self, seq: Sequence) -> int:
        """Tokens that a request has slots for, those that it accepts beyond its end included."""
        if seq.decoding:
            return seq.base_tokens + self.drafting.given(self.done + (seq.order < self.cursor))
        return seq.computed_tokens

    def computed_tokens(self, seq: Sequence) -> int:
        """Tokens of a request that are computed or scheduled by now."""
        return min(self.slot_tokens(seq), seq.prompt_tokens + seq.output_tokens - 1)


class DraftedClock(Clock):
    """A clock whose decode steps grow contexts by what is accepted."""

    def __init__(self, model: StepTimeModel, count: DraftedCount) -> None:
        super().__init__(model)
        self._count, self._drafting = count, count.drafting

    def decode(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float) -> int:
        """Up to `steps` steps of a batch that only decodes, as `Clock.decode` makes them."""
        drafting, done = self._drafting, self._count.done
        given = drafting.given(done)
        last_tokens = context_tokens + num_seqs * (drafting.given(done + steps - 1) - given)
        largest = self._largest.get(num_seqs)
        if largest is None or not largest[2] <= context_tokens <= last_tokens <= largest[3]:
            largest = self._find_largest(num_seqs, context_tokens)
            if last_tokens > largest[3]:
                steps = 0
                if largest[3] >= context_tokens:
                    below = given + int((largest[3] - context_tokens) // num_seqs)
                    steps = drafting.steps_for(below + 1) - done
        if steps <= 0:
            return self._decode_one(num_seqs, context_tokens)
        a, b, _, _ = largest
        if bound_s < math.inf:
            first_s, left_s = a + b * context_tokens, bound_s - self.now_s
            if left_s < steps * first_s:
                steps = min(steps, int(left_s / first_s) + 2)
        if steps > FEW_STEPS:
            return self._decode_many(min(steps, MANY_STEPS), num_seqs, context_tokens, bound_s, (a, b))
        return self._decode_few(steps, num_seqs, context_tokens, bound_s, (a, b))

    def _decode_few(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float, piece: Piece) -> int:
        (a, b), drafting, done = piece, self._drafting, self._count.done
        base = context_tokens - num_seqs * drafting.given(done)
        before_s = start_s = now_s = self.now_s
        for made in range(1, steps + 1):
            before_s = now_s
            now_s += a + b * (base + num_seqs * drafting.given(done + made - 1))
            if now_s >= bound_s:
                steps = made
                break
        self.before_s, self.now_s = before_s, now_s
        self.last_s = now_s - start_s
        self.busy_s += self.last_s
        return steps

    def _decode_many(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float, piece: Piece) -> int:
        (a, b), drafting, done = piece, self._drafting, self._count.done
        given = np.arange(done, done + steps, dtype=np.int64) * drafting.numerator // drafting.denominator
        times = (context_tokens + num_seqs * (given - drafting.given(done))).astype(np.float64)
        times *= b
        times += a
        start_s = self.now_s
        times[0] += start_s
        np.add.accumulate(times, out=times)
        if bound_s < math.inf:
            steps = min(int(times.searchsorted(bound_s)) + 1, steps)
        self.before_s, self.now_s = float(times[steps - 2]) if steps > 1 else start_s, float(times[steps - 1])
        self.last_s = self.now_s - start_s
        self.busy_s += self.last_s
        return steps


class DraftedDecoders(Decoders):
    """Decoding sequences that advance by what a step accepts.

    A sequence begins a block of attention when the tokens given to everybody reach ``key`` (or that and any number of
    blocks), a block of state ``ahead_tokens`` later.
    """

    def __init__(self, block_tokens: int, is_listed: bool, drafting: Drafting) -> None:
        super().__init__(block_tokens, is_listed)
        self._drafting = drafting

    def add(self, seq: Sequence, computed_tokens: int, done_steps: int, finish_step: int) -> None:
        """A sequence decodes from the next step on, and ends with `finish_step`."""
        base = computed_tokens - self._drafting.given(done_steps)
        seq.base_tokens, seq.finish_step, seq.decoding = base, finish_step, True
        self.num: int = self.num + 1
        self.sum_base_tokens: int = self.sum_base_tokens + base
        for key in self._keys_of(base):
            insort(self._keys, key)
            if self._is_listed:
                self._by_key.setdefault(key, []).append(seq)
        heappush(self._ends, (finish_step, seq.order, seq))
        self.first_end = min(self.first_end, finish_step)

    def remove(self, seq: Sequence) -> None:
        """A sequence ends or is preempted."""
        self.num -= 1
        self.sum_base_tokens -= seq.base_tokens
        seq.decoding, seq.finish_step = False, -1
        for key in self._keys_of(seq.base_tokens):
            del self._keys[bisect_left(self._keys, key)]
            if self._is_listed:
                listed = self._by_key[key]
                listed.remove(seq)
                if not listed:
                    del self._by_key[key]

    def ending(self, step: int) -> list[Sequence]:
        """Sequences that end with `step`, once each: a step left out may change nothing about where one ends."""
        return [*dict.fromkeys(super().ending(step))]

    def num_begun(self, done_steps: int, steps: int) -> int:
        """Blocks that the sequences begin in the next `steps` steps."""
        given = self._drafting.given(done_steps)
        return super().num_begun(given, self._drafting.given(done_steps + steps) - given)

    def num_fitting(self, done_steps: int, steps: int, blocks: int) -> int:
        """Of the next `steps` steps, how many the sequences can make with that many blocks."""
        if self.num_begun(done_steps, steps) <= blocks:
            return steps
        return self.most_fitting(done_steps, steps, blocks)

    def num_quiet(self, done_steps: int, is_before: bool) -> int:
        """Next steps in which no block is begun, was begun in the step before, or, if asked, is filled."""
        drafting, block, keys = self._drafting, self._block_tokens, self._keys
        given = drafting.given(done_steps)
        at = (drafting.given(done_steps - 1) + 1) % block
        k = bisect_left(keys, at)
        begun = drafting.given(done_steps - 1) + 1 + (keys[k] - at if k < len(keys) else keys[0] + block - at)
        if begun <= given:
            return 0
        return max(drafting.steps_for(begun - is_before) - 1 - done_steps, 0)

    def due(self, step: int, is_before: bool) -> list[Sequence]:
        """Sequences that begin a block in `step`, began one in the step before, or, if asked, fill one."""
        first, last = self._drafting.given(step - 2), self._drafting.given(step) + is_before
        found: list[Sequence] = []
        for given in range(max(first + 1, last - self._block_tokens + 1), last + 1):
            found += self._by_key.get(given % self._block_tokens, ())
        return found

    def beginning(self, step: int, sequences: list[Sequence]) -> list[Sequence]:
        """Those of `sequences` that decode and begin a block in `step`."""
        first, last = self._drafting.given(step - 1), self._drafting.given(step)
        return [seq for seq in sequences if seq.decoding
                and any((given - key) % self._block_tokens == 0 for key in self._keys_of(seq.base_tokens)
                        for given in range(first + 1, last + 1))]

    def count_beginning(self, step: int) -> int:
        """How many sequences begin a block in `step`."""
        return self.num_begun(step - 1, 1)

    def _keys_of(self, base_tokens: int) -> tuple[int, ...]:
        """Given tokens, but for whole blocks, at which a block of attention and one of state begin."""
        block, ahead = self._block_tokens, self._drafting.ahead_tokens
        attention = (1 - base_tokens - ahead) % block
        if not self._is_listed or not ahead % block:
            return (attention,)
        return attention, (1 - base_tokens) % block


class DraftedCache(SequenceCache):
    """Block accounts with slots ahead of every sequence, states for its drafts, and hits that lose a block."""

    def __init__(self, config: EngineConfig, trie: ContentTrie, count: DraftedCount) -> None:
        super().__init__(config, trie, count)
        drafting = count.drafting
        self._slots = count
        self._ahead_tokens, self._dropped = drafting.ahead_tokens, int(drafting.drops_block)
        self._resident: int = self._resident + drafting.tokens * config.state_groups

    def lookup(self, seq: Sequence) -> Hit:
        """Longest cached prefix that all groups share, the dropped block left out; notes the junction."""
        hit = super().lookup(seq)
        if not self._dropped or not self._is_alone or not hit[0]:
            return hit
        found = clipped(hit[1][0], hit[0] - 1)
        return hit[0] - 1, [found], [], sum([end - run.lo for run, end in found if run.refs])

    def cached_blocks(self, path: Path, limit: int) -> int:
        """Length of the cached prefix of a path, at most `limit` blocks, as somebody outside sees it."""
        if not self._caching:
            return 0
        unsettled = [chain for chain, _ in path if chain in self._open]
        if unsettled:
            self._settle(unsettled)
        length = max(min([index.leading(path, limit)[1] for index in self._indexes]) - self._dropped, 0)
        return self._checkpoints.last(path, length)[0] if self.moving_groups and length else length

    def need_blocks(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must be free so that everything known of the sequence fits beside the hit."""
        need = self._slots_for(seq.known_tokens) * self.num_groups - hit[3] + self._resident
        if self.moving_groups:
            need += self.moving_groups + sum([end - run.lo for run, end in hit[2] if not run.refs])
        return need

    def new_blocks(self, seq: Sequence, hit: Hit) -> int:
        """Those of them that no hit of at most this length can save."""
        missing = self._slots_for(seq.known_tokens) - hit[0]
        return missing * self.num_groups + self._resident + self.moving_groups

    def admit(self, seq: Sequence, hit: Hit, end_tokens: int) -> None:
        """Start a sequence on a hit, with blocks up to `end_tokens` and slots ahead."""
        super().admit(seq, hit, end_tokens)
        self.pool.take((self._slots_for(end_tokens) + -end_tokens // self._block_tokens) * self.num_groups)

    def take_chunk(self, seq: Sequence, end_tokens: int, need_blocks: int) -> None:
        """A chunk of a running sequence, for which the caller has found room."""
        start = seq.computed_tokens
        super().take_chunk(seq, end_tokens, need_blocks)
        if self.moving_groups and end_tokens % self._block_tokens:
            self.name_passed(seq, start, end_tokens)

    def chunk_blocks(self, seq: Sequence, end_tokens: int) -> int:
        """Blocks that a chunk up to `end_tokens` needs beyond those that the sequence has."""
        begun, moves = self.begun_blocks(seq.computed_tokens, end_tokens)
        return begun * self.num_groups + moves * self.moving_groups

    def begun_blocks(self, start_tokens: int, end_tokens: int) -> tuple[int, bool]:
        """Blocks of attention that begin between two lengths, and whether the state moves on."""
        moves = -(-end_tokens // self._block_tokens) > -(-start_tokens // self._block_tokens)
        return self._slots_for(end_tokens) - self._slots_for(start_tokens), moves

    def name_passed(self, seq: Sequence, start_tokens: int, end_tokens: int) -> bool:
        """Make the state at the block boundary that a step fills or passes findable if it is held and one to keep."""
        end = end_tokens // self._block_tokens
        if end * self._block_tokens <= start_tokens or not self._keeps(seq, end * self._block_tokens):
            return False
        place = next((i for i, (position, _) in enumerate(seq.states) if position == end - 1), None)
        if place is None:
            return False
        chain = self._chain(seq, end)
        seq.states[place] = (end - 1, self._checkpoints.write(chain, end))
        self._written.add((chain, end))
        return True

    def release(self, seq: Sequence, is_final: bool) -> None:
        """Give everything back; a final release comes from a finished request."""
        held = self._slots_for(self._slots.slot_tokens(seq))
        full = self._slots.computed_tokens(seq) // self._block_tokens
        if not self._caching:
            self.pool.give_nameless(held * self.num_groups + self._resident)
            return
        if seq.opened:
            self._settle_shared(seq)
            self._close_chains(seq)
        self._write_tail(seq, full, is_final)
        for index, runs in zip(self._indexes, seq.held, strict=True):
            index.release(runs)
        self.pool.give_nameless((held - full) * self.num_groups + self._resident)
        if seq.states:
            self._release_states(seq.states)
            seq.states = []
        seq.held = []

    def _lookup_groups(self, seq: Sequence, limit: int) -> Hit:
        """`lookup` when several groups must agree."""
        leading = [index.leading(seq.path, limit) for index in self._indexes]
        first = length = max(min([at for _, at in leading]) - self._dropped, 0)
        if not self._dropped:
            first = leading[0][1]
        states: Held = []
        if self.moving_groups:
            length, states = self._checkpoints.last(seq.path, length) if length else (0, states)
            if length < first:
                seq.junction_tokens = first * self._block_tokens
        found = [clipped(runs, length) for runs, _ in leading]
        return length, found, states, sum([end - run.lo for runs in found for run, end in runs if run.refs])

    def _last_resumable(self, seq: Sequence) -> int:
        """Where the last checkpoint of a prompt lies [tokens]."""
        return ((seq.prompt_tokens - 1) // self._block_tokens - self._dropped) * self._block_tokens

    def _slots_for(self, end_tokens: int) -> int:
        """Blocks of one attention group for so many tokens and the slots ahead."""
        return -(-(end_tokens + self._ahead_tokens) // self._block_tokens)


class DraftedCore(Core):
    """One replica whose decoding sequences bring drafts; tiers and other policies than LRU are not for it.

    ``surplus_tokens`` is what decoding sequences got beyond one token a step.
    """

    def __init__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None, share: Share | None = None) -> None:
        super().__init__(workload, config, step_time, progress, share)
        assert config.drafting is not None
        self.drafting = drafting = config.drafting
        self.surplus_tokens = 0
        self.count = self.drafted = DraftedCount(drafting)
        self.clock = DraftedClock(step_time, self.drafted)
        self.cache = self.slots = DraftedCache(config, self.trie, self.drafted)
        self.decoders = DraftedDecoders(config.block_tokens, self.is_listed, drafting)
        self.width, self.dropped_blocks = drafting.width, int(drafting.drops_block)
        self.most_seqs = config.max_num_batched_tokens // self.width
        self.full_seqs = -(-config.max_num_batched_tokens // self.width)

    def _schedule_running(self, step: int) -> None:
        """Running requests first; where the budget does not hold all drafts, everybody is looked at anew."""
        if not self.is_listed:
            self.late = []
        super()._schedule_running(step)

    def _schedule_decode(self, seq: Sequence, step: int) -> None:
        """Blocks for what a decoding sequence accepts in the step, and for the next drafts."""
        cache = self.slots
        start, end = (seq.base_tokens + self.drafting.given(at) for at in (step - 1, step))
        if cache.moving_groups and cache.drop_states(seq, start):
            self.blocked = False
        begun, moves = cache.begun_blocks(start, end)
        need = begun * cache.num_groups + moves * cache.moving_groups
        if need:
            if not self._make_room(seq, need):
                return
            cache.pool.take(need)
            self.blocked = False
            if moves and cache.moving_groups:
                cache.move_state(seq, end - 1)
        last = seq.prompt_tokens + seq.output_tokens - 1
        if self.names_decode_states and cache.name_passed(seq, start, min(end, last)):
            self.blocked = False

    def _starve(self, seq: Sequence) -> None:
        """A decoding sequence for which no budget is left in this step: it gets nothing, and goes on from the next."""
        done, given = self.count.done, self.drafted.given_in(1)
        self._settle(seq)
        self.overdue.setdefault(seq.row, self.token_s)
        computed = seq.base_tokens + self.drafted.given - given
        self.decoders.remove(seq)
        left = seq.prompt_tokens + seq.output_tokens - 1 - computed
        self.decoders.add(seq, computed, done, self.drafted.after(done, left))
        self.starved.append(seq)

    def _preempt(self, victim: Sequence) -> None:
        """Back to the queue without its blocks; one that was left out of this step has nothing planned in it."""
        was_starved, given = victim in self.starved, self.drafted.given_in(1)
        super()._preempt(victim)
        if was_starved:
            self.starved.remove(victim)
            self.room_tokens -= self.width
            victim.generated_tokens += given
            victim.known_tokens += given

    def _pass_time(self, step: int) -> None:
        """Advance the clock by the step, from its sums."""
        super()._pass_time(step)
        more = self.drafting.given(step) - self.drafting.given(step - 1) - 1
        self.surplus_tokens += more * (self.decoders.num - len(self.starved))

    def _note_jump(self, steps: int) -> None:
        """Log decode steps whose time has passed, before they are counted as done."""
        decoders, drafting, done = self.decoders, self.drafting, self.count.done
        num, now_s = decoders.num, self.clock.now_s
        given = np.arange(done, done + steps, dtype=np.int64) * drafting.numerator // drafting.denominator
        context = steps * (decoders.sum_base_tokens + num * drafting.width) + num * int(given.sum())
        self.log.note((now_s, now_s - self.token_s, self.clock.last_s, steps, num, 0, 0, 0, 0, num, context))
        self.token_s = now_s
        self.surplus_tokens += num * (self.drafted.given_in(steps) - steps)

    def _finish(self, seq: Sequence) -> None:
        """The last token is out; what was accepted beyond it counts for nothing."""
        self.surplus_tokens -= self.drafted.slot_tokens(seq) - self.drafted.computed_tokens(seq)
        super()._finish(seq)

    def _totals(self) -> RunTotals:
        totals = super()._totals()
        return dataclasses.replace(totals, decode_tokens=totals.decode_tokens + self.surplus_tokens)
