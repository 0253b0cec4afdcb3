"""The fast engine with tiers below its pool: the same jumps, over the plain engine's blocks and tiers.

Transfers hold and release single blocks in orders of their own, so blocks are no runs here: `KvCache` and `TierStack`
keep the accounts, as in the plain engine. What is saved are steps: none is planned in which nobody begins or fills a
block, nothing can be admitted, no transfer arrives, and no writer of a tier has anything left to do.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from kvsim.cache.content_trie import Path
from kvsim.cache.eviction.base import Future
from kvsim.cache.eviction.future import ChainFuture
from kvsim.cache.tiers.writers import Computed, StepView
from kvsim.engine.core_decoders import Decoders
from kvsim.engine.core_loop import Core
from kvsim.engine.core_records import FcfsWaiting, PriorityWaiting, Share, Waiting
from kvsim.engine.core_sequence import LAST, Sequence
from kvsim.engine.kv_cache import Hit, Holding, KvCache
from kvsim.engine.policies import admission_order, knows_future, policy_of, without_policy
from kvsim.engine.reference import check_churn, check_progress, has_tiers, pool_shape, tier_stack
from kvsim.engine.types import EngineConfig, Progress, RunRecords, RunTotals, Timeline
from kvsim.errors import SimulationError
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.requests import Workload

KEYS_PER_CHAIN = 1 << 32
"""Prefix keys are (chain, block) as one number."""


class TieredCore(Core):
    """One replica with tiers; the run-based accounts that it inherits stay empty.

    Attributes
    ----------
    loading : Waiting
        Requests that have blocks for a load; they come before the waiting ones.
    ways : dict of int to Sequence
        Those of them whose load is not over, by row.
    num_ready : int
        The others.
    unready : set of Sequence
        Requests that hold blocks but have not got through their prompts.
    scheduled, admitted : list of (Sequence, int)
        Who goes on in this step as far as it matters to tiers, who starts in it, and the tokens computed before it.
    restless, changed : bool
        Whether the next step must be planned for the writers' sake; whether free blocks changed since the last plan.
    unended : str
        What has passed, but for what happens at its end: a step, a jump, or "" for nothing.
    """

    def __init__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None, share: Share | None = None) -> None:
        super().__init__(workload, config, step_time, progress, share)
        self.eviction = policy_of(config, self.requests, step_time, lambda: self.clock.now_s, self._future(step_time))
        self.kv = KvCache(config, self.eviction)
        self.tiers = tier_stack(config, self.kv)
        self.is_listed = self.names_decode_states = True
        self.decoders = Decoders(config.block_tokens, True)
        self.loading: Waiting = FcfsWaiting() if self.is_fcfs else PriorityWaiting(self._rank)
        self.ways: dict[int, Sequence] = {}
        self.load_start_s: dict[int, float] = {}
        self.unready: set[Sequence] = set()
        self.scheduled: list[tuple[Sequence, int]] = []
        self.admitted: list[tuple[Sequence, int]] = []
        self.loads: list[Sequence] = []
        self.preempted_rows: list[int] = []
        self.num_ready = self.scan_steps = self.idle_stores = self.churn = 0
        self.restless = self.is_short = self.changed = False
        self.unended: Literal["", "step", "jump"] = ""
        self.stalled_s = self.load_wait_s = 0.0
        self.late_tokens = 0
        self.stuck_until_s = math.nan
        self.idle_tokens = {"idle_queried_tokens": 0, "idle_hit_tokens": 0, "idle_external_hit_tokens": 0}
        levels = self.tiers.levels
        self.is_lazy = any(level.config.write == "lazy" for level in levels)
        self.is_forwarding = self.is_lazy or len(levels) > 1
        self.is_weighing = any(level.config.load_rule == "break-even" for level in levels)
        self.offline_s = sorted({level.config.offline_from_s for level in levels} - {math.inf}, reverse=True)

    def _future(self, step_time: StepTimeModel) -> Future | None:
        """What will be asked, where the eviction policy may know it."""
        if not knows_future(self.config, self.is_fed):
            return None
        plain = without_policy(self.config)
        kind = TieredCore if has_tiers(plain) else Core
        order = admission_order(kind(self.workload, plain, step_time, None).run())
        return ChainFuture(((row, self._prompt_path(row)) for row in order), KEYS_PER_CHAIN)

    def _prompt_path(self, row: int) -> list[tuple[int, int]]:
        """Chains of a prompt's full blocks, each with the block at which it leaves."""
        length = self.prompt_tokens[row] // self.config.block_tokens
        return [(chain, min(end, length)) for chain, end in self.trie.path(row)
                if self.trie.start_block[chain] < length]

    def advance(self, sure_s: float) -> float:
        """Go on as far as it is certain what happens; see `Core.advance`."""
        arrivals, clock = self.arrivals, self.clock
        self.sure_s = sure_s
        while not self.unended or self._end():
            if clock.now_s >= arrivals.until_s:
                return math.inf
            if not math.isnan(self.stuck_until_s):
                wake_s = min(arrivals.next_s(), self.stuck_until_s)
                self._check_wakes(wake_s)
                if wake_s > self.sure_s or math.isinf(wake_s):
                    return wake_s
                if not self._wake(wake_s):
                    return math.inf
                continue
            if clock.now_s > self.sure_s:
                return clock.now_s
            if arrivals.next_s() <= clock.now_s:
                self._take_arrivals(clock.now_s)
            steps = self._quiet_steps()
            if steps:
                if not self._jump_over(steps):
                    return self.held_s
            elif self.running or self.queue or self.loading:
                self._plan_step()
            else:
                wake_s = arrivals.wake_s(clock.now_s)
                if wake_s >= arrivals.until_s:
                    return math.inf
                if wake_s > self.sure_s:
                    return wake_s
                clock.sleep(wake_s)
        return math.nextafter(clock.now_s, 0.0)

    def _may_admit(self) -> bool:
        """Whether the head of the queue is worth a look in the next step."""
        config = self.config
        return (not self.blocked and bool(self.num_ready or self.queue) and len(self.running) < config.max_num_seqs
                and self.decoders.num < config.max_num_batched_tokens)

    def _arrivals_matter(self) -> bool:
        """Whether a request that arrives now could be admitted in the step after."""
        is_next = not self.is_fcfs or not self.num_ready
        return self._may_refuse_warming() or (is_next and super()._arrivals_matter())

    def _quiet_steps(self) -> int:
        """Steps in which only decoding goes on and no block is begun, filled or released."""
        decoders, done = self.decoders, self.count.done
        self._notice_time()
        if self.tiers.is_shared:  # what others store and lose may be what the head of the queue waits for
            self.blocked = False
        if (not decoders.num or self.restless or self.overdue or self.fresh or self.prefills or self.late
                or self._may_admit() or decoders.num > self.config.max_num_batched_tokens):
            return 0
        return min(decoders.next_end() - done, decoders.num_quiet(done, True))

    def _jump_over(self, steps: int) -> bool:
        """Make up to `steps` quiet steps, no further than to the next event from outside; False as in `_jump`."""
        bound_s = min(self.arrivals.until_s, self.tiers.next_s(), self._offline_s())
        if self._arrivals_matter():
            bound_s = min(bound_s, self.arrivals.next_s())
        if self.eviction is not None and self.blocked:
            bound_s = min(bound_s, self.eviction.next_s())
        made = self._decode(steps, bound_s)
        if not made:
            return False
        self._note_jump(made)
        self.jumps += 1
        self.churn = 0
        self.count.done += made
        self.unended = "jump"
        return True

    def _end(self) -> bool:
        """What happens at the end of the step or jump whose time has passed; False if that is not certain yet.

        In a tier that others share it must not happen before what they do there earlier. Requests that come at the same
        time come after it.
        """
        if self.tiers.is_shared and math.nextafter(self.clock.now_s, 0.0) > self.sure_s:
            return False
        is_step, self.unended = self.unended == "step", ""
        if is_step:
            self._rest(self.tiers.issue_stores(self.clock.now_s))
            self._hand_out(self.count.done)
        self._end_step()
        self._take_transfers()
        return True

    def end_step(self) -> None:
        """Nothing more happens elsewhere: let the step that is under way end."""
        self.sure_s = math.inf
        if self.unended:
            self._end()

    def _notice_time(self) -> None:
        """What the eviction policy lets go in time may make room for the head of the queue."""
        if self.eviction is not None and self.eviction.next_s() <= self.clock.now_s:
            self.blocked = False

    def _offline_s(self) -> float:
        """When the next tier goes offline; a head of the queue that its contents blocked may go on then."""
        while self.offline_s and self.offline_s[-1] <= self.clock.now_s:
            self.offline_s.pop()
            self.blocked = False
        return self.offline_s[-1] if self.offline_s else math.inf

    def _plan_step(self) -> None:
        """Plan a step and let its time pass; or note that nothing can be computed."""
        step = self._plan()
        if step:
            self._pass_time(step)
            self._wait_for_streams(self.tiers.take_due_s())
            self._complete(step)

    def _plan(self) -> int:
        """Decide who computes what in the next step; its number, 0 if nothing can be computed."""
        count, step = self.count, self.count.done + 1
        self.planned_steps += 1
        self.kv.begin_step()
        self.preempted = False
        self.chunks, self.starved, self.scheduled, self.admitted, self.loads = [], [], [], [], []
        self.preempted_rows = []
        self._schedule_running(step)
        count.cursor = LAST
        if not self.preempted:
            self._schedule_waiting()
        if self.preempted or self.admitted or self.loads:
            self._note_state()
        self._plan_transfers()
        if not self.chunks and self.decoders.num == len(self.starved):
            count.cursor = -1
            self._wait()
            return 0
        return step

    def _complete(self, step: int) -> None:
        """The time of a step has passed; what happens at its end is left to `_end`."""
        self._note_step()
        self.count.done, self.count.cursor = step, -1
        self.idle_stores = 0
        self.unended = "step"

    def _wait_for_streams(self, due_s: float) -> None:
        """The step is not over before the loads that came layer by layer in it."""
        if due_s > self.clock.now_s:
            self.stalled_s += due_s - self.clock.now_s
            self.clock.sleep(due_s)

    def _rest(self, has_stores: bool) -> None:
        """Whether writers have come to rest: lazy ones when their walk has gone through all free blocks once."""
        self.restless = False
        if self.is_lazy:
            if self.changed or has_stores:
                pools = [self.kv.pool, *(level.pool for level in self.tiers.levels)]
                self.scan_steps = max(pool.num_free for pool in pools) // pool_shape(self.config).scan_blocks + 2
            self.scan_steps -= 1
            self.restless = self.scan_steps > 0
        if self.tiers.is_shared:  # others make room, and lose what has been stored
            self.restless |= self.is_short or self.is_lazy
        self.changed = False

    def _schedule_decode(self, seq: Sequence, step: int) -> None:
        """Blocks for the next token of a decoding sequence."""
        computed = seq.base_tokens + step - 1
        self.blocked = False
        if self._extend(seq, computed, computed + 1):
            self.scheduled.append((seq, computed))

    def _schedule_chunk(self, seq: Sequence) -> None:
        """The next chunk of a sequence that prefills, as the budget allows."""
        start = seq.computed_tokens
        tokens = self._chunk_tokens(seq, start)
        if tokens <= 0:
            return
        self.blocked = False
        if self._extend(seq, start, start + tokens):
            seq.computed_tokens = start + tokens
            self.chunks.append((seq, tokens))
            self.room_tokens -= tokens
            self.scheduled.append((seq, start))

    def _chunk_tokens(self, seq: Sequence, start: int) -> int:
        """Tokens that a sequence gets from `start` on, as the budget and checkpoints allow."""
        tokens = min(seq.known_tokens - start, self.room_tokens)
        return self._clip(seq, start, tokens) if tokens > 0 and self.config.state_groups else tokens

    def _clip(self, seq: Sequence, start: int, tokens: int) -> int:
        """Shorten a prefill chunk, with the junction that the last lookup saw."""
        seq.junction_tokens = seq.holding.junction_tokens
        return super()._clip(seq, start, tokens)

    def _extend(self, seq: Sequence, start: int, end: int) -> bool:
        """Preempt until there are blocks for the next tokens, or the sequence itself is out."""
        while not self.kv.extend(seq.holding, start, end):
            victim = self._victim()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Back to the queue without its blocks; what this step had planned for it is planned no more."""
        self.scheduled = [entry for entry in self.scheduled if entry[0] is not victim]
        self.preempted_rows.append(victim.row)
        self.churn += 1
        check_churn(self.config, self.churn, self.clock.now_s)
        self.unready.discard(victim)
        super()._preempt(victim)

    def _schedule_waiting(self) -> bool:
        """Admit from the head of the queue until something does not fit; nobody overtakes.

        Requests that hold blocks for a load go first; those whose load is not over are passed over.
        """
        passed: list[Sequence] = []
        while self.room_tokens > 0 and len(self.running) < self.config.max_num_seqs and not self.blocked:
            queue = self.loading or self.queue
            if not queue:
                break
            seq = self._head_of(queue)
            if seq.row not in self.ways and not self._try(seq):
                break
            queue.pop_first()
            if seq.row in self.ways:
                passed.append(seq)
        for seq in reversed(passed):
            self.loading.put_back(seq)
        return bool(self.admitted)

    def _head_of(self, queue: Waiting) -> Sequence:
        """The first request of a queue as a sequence."""
        first = queue.first()
        return first if isinstance(first, Sequence) else self._head()

    def _sequence(self, row: int) -> Sequence:
        """A request as it is when it comes to the head of the queue for the first time."""
        seq = super()._sequence(row)
        seq.holding = Holding(_keys(seq.path), seq.prompt_tokens, row=row)
        return seq

    def cached_blocks(self, row: int) -> tuple[int, int]:
        """Leading blocks of a prompt that are in the pool now, and those behind them in lower tiers."""
        keys = _keys(self.trie.path(row))[:self._limit_blocks(row)]
        found = self.kv.lookup(Holding(keys, self.prompt_tokens[row], row=row), self.prompt_tokens[row] - 1)
        at = found.tokens // self.config.block_tokens
        return at, self.tiers.num_leading(keys[at:])

    def _try(self, seq: Sequence) -> bool:
        """Start a request, or the load of what lower tiers have of it; False if it does not fit."""
        fits = self._resume(seq) if seq.computed_tokens else self._try_new(seq)
        if not fits and self.blocked:
            self.blocked = not self.kv.checkpoints_of_step() and not self.is_weighing
        return fits

    def _try_new(self, seq: Sequence) -> bool:
        hit = self.kv.lookup(seq.holding, seq.known_tokens - 1)
        block, now_s = self.config.block_tokens, self.clock.now_s
        keys = seq.holding.keys[hit.tokens // block:(seq.known_tokens - 1) // block]
        external_tokens = block * self.tiers.match(seq.row, keys, now_s)
        if external_tokens:
            starts = self._start_streaming if self.tiers.streams(seq.row) else self._start_load
            return starts(seq, hit, external_tokens)
        tokens = self._chunk_tokens(seq, hit.tokens)
        if tokens <= 0:
            self.blocked = not self.chunks
            return False
        if not self.kv.admit(seq.holding, hit, seq.known_tokens, hit.tokens + tokens):
            self.blocked = True
            return False
        self._note_admission(seq, hit.tokens, 0)
        self._start(seq, hit.tokens, tokens)
        return True

    def _start_load(self, seq: Sequence, hit: Hit, external_tokens: int) -> bool:
        """Take blocks for what lower tiers have and ask for it; the request computes nothing until it is there."""
        kv, end_tokens = self.kv, hit.tokens + external_tokens
        reserved = sum([kv.remaining_blocks(other.holding, other.known_tokens) for other in self.unready])
        if not kv.reserve(seq.holding, hit, seq.known_tokens, end_tokens, reserved):
            self.blocked = True
            return False
        tables = [table.blocks for table in seq.holding.tables]
        self.tiers.start_load(seq.row, hit.tokens // self.config.block_tokens, tables, self._is_first(seq))
        self._note_admission(seq, hit.tokens, external_tokens)
        self.unready.add(seq)
        self.ways[seq.row], self.load_start_s[seq.row] = seq, self.clock.now_s
        self.loads.append(seq)
        return True

    def _start_streaming(self, seq: Sequence, hit: Hit, external_tokens: int) -> bool:
        """Start a request behind a load that comes layer by layer."""
        loaded_tokens = hit.tokens + external_tokens
        tokens = self._chunk_tokens(seq, loaded_tokens)
        if tokens <= 0:
            self.blocked = not self.chunks
            return False
        if not self.kv.stream(seq.holding, hit, seq.known_tokens, loaded_tokens, loaded_tokens + tokens):
            self.blocked = True
            return False
        tables = [table.blocks for table in seq.holding.tables]
        self.tiers.start_load(seq.row, hit.tokens // self.config.block_tokens, tables, self._is_first(seq))
        self._note_admission(seq, hit.tokens, external_tokens)
        self._start(seq, loaded_tokens, tokens)
        return True

    def _resume(self, seq: Sequence) -> bool:
        """Let a request compute whose load is over: its blocks become findable, even if it does not fit now."""
        kv, start = self.kv, seq.computed_tokens
        kv.name_loaded(seq.holding, start)
        tokens = self._chunk_tokens(seq, start)
        if tokens <= 0:
            self.blocked = not self.chunks
            return False
        if not kv.resume(seq.holding, start, seq.known_tokens, start + tokens):
            self.blocked = True
            return False
        self.num_ready -= 1
        self.load_wait_s += self.clock.now_s - self.load_start_s.pop(seq.row)
        self._start(seq, start, tokens)
        return True

    def _start(self, seq: Sequence, start: int, tokens: int) -> None:
        """Schedule the first tokens of a request that has been admitted."""
        seq.order, seq.running = self.next_order, True
        self.next_order += 1
        self.running[seq.order] = seq
        seq.computed_tokens = start + tokens
        self.chunks.append((seq, tokens))
        self.room_tokens -= tokens
        self.admitted.append((seq, start))
        if seq.computed_tokens < seq.known_tokens:
            self.unready.add(seq)

    def _is_first(self, seq: Sequence) -> bool:
        """Whether a request has never been preempted."""
        return not self.columns.preemptions[seq.row]

    def _note_admission(self, seq: Sequence, hit_tokens: int, external_tokens: int) -> None:
        """Set the counters of a request that starts or resumes; only first admissions count as queries."""
        seq.computed_tokens = cached_tokens = hit_tokens + external_tokens
        columns = self.columns
        if self._is_first(seq):
            columns.admitted_s[seq.row] = self.clock.now_s
            columns.cached_tokens[seq.row] = cached_tokens
            columns.external_tokens[seq.row] = external_tokens
            self.late_tokens += self.tiers.num_late * self.config.block_tokens
            self.queried_tokens += seq.known_tokens
            self.hit_tokens += cached_tokens
        else:
            self.requeried_tokens += seq.known_tokens
            self.rehit_tokens += cached_tokens

    def _plan_transfers(self) -> None:
        """Start the loads of a step, choose its stores."""
        if not self.tiers.levels:
            return
        self.changed |= bool(self.scheduled or self.admitted or self.loads or self.preempted)
        order = [self._computed(seq, start, True) for seq, start in self.admitted if self._is_first(seq)]
        order += [self._computed(seq, computed) for seq, computed in self._going_on()]
        order += [self._computed(seq, start, True) for seq, start in self.admitted if not self._is_first(seq)]
        view = StepView(order, self.kv.checkpoints_of_step().values(), self.preempted_rows)
        self.tiers.plan(view, self.clock.now_s)
        self.tiers.issue_loads(self.clock.now_s)
        self.is_short = not self.tiers.levels[0].room

    def _going_on(self) -> list[tuple[Sequence, int]]:
        """Who goes on in this step and may have something to store: all if there was no room for something before."""
        if not self.is_short:
            return self.scheduled
        listed, done = dict(self.scheduled), self.count.done
        return [(seq, listed.get(seq, seq.base_tokens + done)) for seq in self.running.values()
                if seq in listed or (seq.decoding and seq not in self.starved)]

    def _computed(self, seq: Sequence, computed_tokens: int, is_admitted: bool = False) -> Computed:
        """What a request has computed, and the checkpoint that it has just started from."""
        block, num_attention = self.config.block_tokens, 1 + self.config.extra_attention_groups
        tables = [table.blocks for table in seq.holding.tables]
        positions = computed_tokens // block
        states = [table[positions - 1] for table in tables[num_attention:] if is_admitted and positions - 1 in table]
        return Computed(seq.row, positions, seq.prompt_tokens // block, tables[:num_attention], states)

    def _wait(self) -> None:
        """Nothing can be computed: wait for a transfer or an arrival."""
        clock, tiers = self.clock, self.tiers
        self.idle_stores = self.idle_stores + 1 if tiers.issue_stores(clock.now_s) else 0
        check_progress(self.config, self.idle_stores, clock.now_s, len(self.queue) + len(self.loading))
        if math.isinf(tiers.next_s()) and self.preempted:
            return  # nobody was admitted for that reason alone: plan again
        self._forget_statistics()
        self.stuck_until_s = tiers.next_s()

    def _check_wakes(self, wake_s: float) -> None:
        """Raise `SimulationError` if nothing will ever end the wait."""
        if math.isinf(wake_s) and not self.is_fed:
            num_waiting = len(self.queue) + len(self.loading)
            raise SimulationError(f"nothing can be scheduled at {self.clock.now_s} s with {num_waiting} waiting or "
                                  f"loading and {len(self.running)} running requests")

    def _wake(self, wake_s: float) -> bool:
        """A transfer or an arrival ends the wait; False when none comes before the time is up.

        What is refused never reaches the scheduler, so it wakes nobody.
        """
        clock, num_waiting = self.clock, len(self.queue)
        if wake_s >= self.arrivals.until_s:
            self.stuck_until_s = math.nan
            return False
        self._take_arrivals(wake_s)
        if wake_s < self.stuck_until_s and len(self.queue) == num_waiting:
            return True
        self.stuck_until_s = math.nan
        self.stalled_s += max(wake_s - clock.now_s, 0.0)
        clock.sleep(wake_s)
        self.blocked = False
        self._take_transfers()
        return True

    def _forget_statistics(self) -> None:
        """Count apart what was looked up in a step that computes nothing."""
        for seq in self.loads:
            if self._is_first(seq):
                self.idle_tokens["idle_queried_tokens"] += seq.known_tokens
                self.idle_tokens["idle_hit_tokens"] += seq.computed_tokens
                self.idle_tokens["idle_external_hit_tokens"] += self.columns.external_tokens[seq.row]

    def _take_transfers(self) -> None:
        """Learn which transfers are over."""
        now_s = self.clock.now_s
        is_news = self.tiers.next_s() <= now_s
        if not is_news and not self.offline_s:
            return
        self._offline_s()
        for row in self.tiers.take_arrived(now_s):
            del self.ways[row]
            self.num_ready += 1
        if is_news:
            self.blocked, self.changed = False, True
            self.restless |= self.is_short or self.is_forwarding

    def _hand_out(self, step: int) -> None:
        """A token for everybody whose known tokens are all computed: from now on they decode."""
        super()._hand_out(step)
        if self.decoders.num > len(self.starved):
            self.churn = 0
        self.unready.difference_update([seq for seq, _ in self.chunks if seq.decoding])

    def _finish(self, seq: Sequence) -> None:
        """The last token is out."""
        computed = seq.base_tokens + self.count.done
        if self.tiers.levels:
            self.kv.shed(seq.holding, computed)
            self.tiers.finish(self._computed(seq, computed), self.clock.now_s)
            self.restless = self.changed = True
        super()._finish(seq)

    def _release(self, seq: Sequence, is_final: bool) -> None:
        """Give a sequence's blocks back."""
        self.kv.release(seq.holding, is_final)

    def _leave(self, row: int, time_s: float) -> None:
        """Tell the arrivals, the eviction policy and the progress bar that a request is over."""
        super()._leave(row, time_s)
        if self.eviction is not None:
            self.eviction.ended(row)
            self.blocked = False

    def _settle(self, seq: Sequence) -> None:
        """Blocks are named in the step that fills them: nothing is behind."""

    def _note_state(self) -> None:
        """A row of the timeline."""
        pool = self.kv.pool
        pool.expire()
        pool.check()
        self.timeline.note((self.clock.now_s, len(self.running), len(self.queue), pool.num_used, pool.num_cached))

    def close(self) -> tuple[RunTotals, Timeline]:
        """Write down what requests have got that are not over; totals and timeline."""
        for seq in self.loading.preempted():
            self.columns.output_tokens[seq.row] = seq.generated_tokens
        return super().close()

    def _check_blocks(self) -> None:
        """Blocks must add up."""
        self.kv.pool.expire()
        self.kv.pool.check_all()

    def _check_tokens(self, records: RunRecords, totals: RunTotals) -> None:
        """Every token of a finished request was found or computed, its last one excepted."""
        if not self.loading:
            super()._check_tokens(records, totals)

    def _totals(self) -> RunTotals:
        totals = super()._totals()
        counters = totals.counters | {"evicted_blocks": self.kv.pool.num_evicted}
        if self.tiers.levels:
            counters |= self.idle_tokens | {"late_tokens": self.late_tokens}
        return dataclasses.replace(totals, counters=counters, tiers=self.tiers.totals(), stalled_s=self.stalled_s,
                                   load_wait_s=self.load_wait_s)


def _keys(path: Path) -> list[int]:
    """Prefix keys of the blocks of a path."""
    keys: list[int] = []
    for chain, end in path:
        keys += range(chain * KEYS_PER_CHAIN + len(keys), chain * KEYS_PER_CHAIN + end)
    return keys
