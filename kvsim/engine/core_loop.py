"""The fast engine's loop: from event to event.

Decoding sequences all move by
one token a step, so while nobody is admitted, ends, or finds no block, any number of steps is one jump. Blocks are
runs (`kvsim.cache.runs`), content is sorted into chains before the run (`kvsim.cache.content_trie`), and the clock
adds step after step in one array operation (`kvsim.engine.core_clock`). Steps that prefill are made one by one, each
at a cost that depends on what is admitted or chunked in it, never on how many sequences decode.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import attrgetter

import numpy as np

from kvsim.engine.core_clock import Clock
from kvsim.engine.core_decoders import Decoders
from kvsim.engine.core_records import (
    FcfsWaiting,
    PriorityWaiting,
    Rank,
    Share,
    TimelineColumns,
    Waiting,
    whole_share,
)
from kvsim.engine.core_sequence import LAST, Hit, Sequence, SequenceCache, StepCount
from kvsim.engine.policies import gate_of, knows_future
from kvsim.engine.reference import check_times, refusal_of
from kvsim.engine.step_log import MANY_ROWS, StepLog
from kvsim.engine.types import FINISHED, REFUSED, EngineConfig, EngineRun, Progress, RunRecords, RunTotals, Timeline
from kvsim.errors import SimulationError
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.requests import Requests, Workload

NEARLY_ONE = 1.0 - 1e-9
"""Less than what rounding can take from a sum of many steps."""


class Core:
    """One replica: waiting queue, running sequences, cache and clock.

    Attributes are slots because there are so many: objects with more than 30 of them are slower to read and write.
    """

    __slots__ = ("arrivals", "blocked", "cache", "chunk_steps", "chunks", "clock", "columns", "config", "count",
                 "decoders", "dropped_blocks", "fresh", "full_seqs", "held_s", "hit_tokens", "is_fcfs", "is_fed",
                 "is_listed", "jumps", "late", "log", "made", "may_refuse", "most_chunk_blocks", "most_seqs",
                 "names_decode_states", "need_blocks", "need_room_tokens", "next_order", "num_preemptions",
                 "output_tokens", "overdue", "paused", "planned_steps", "preempted", "prefills",
                 "priority", "progress", "prompt_tokens", "queried_tokens", "queue", "refusable", "rehit_tokens",
                 "requeried_tokens", "requests", "room_tokens", "running", "starved", "sure_s", "timeline", "token_s",
                 "trie", "width", "workload")

    def __init__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None, share: Share | None = None) -> None:
        self.workload, self.requests, self.config, self.progress = workload, workload.requests, config, progress
        self.is_fed = share is not None
        knows_future(config, self.is_fed)
        share = share or whole_share(workload, config.block_tokens, gate_of(config, workload))
        self.arrivals, self.clock, self.count = share.incoming, Clock(step_time), StepCount()
        self.trie = share.trie
        self.cache = SequenceCache(config, self.trie, self.count)
        self.is_listed = self.cache.moving_groups > 0 or self.cache.num_groups > 1
        self.names_decode_states = self.cache.moving_groups > 0 and config.retention_interval_tokens != 0
        self.decoders = Decoders(config.block_tokens, self.is_listed)
        self.prompt_tokens, self.output_tokens = share.prompt_tokens, share.output_tokens
        self.priority = share.priority
        self.is_fcfs = config.policy == "fcfs"
        self.width, self.dropped_blocks = 1, 0
        self.full_seqs = self.most_seqs = config.max_num_batched_tokens
        self.most_chunk_blocks = config.max_num_batched_tokens // config.block_tokens + config.max_num_seqs
        self.refusable = set[int]() if self.is_fed else _refusable(self.requests, config)
        self.may_refuse = bool(self.refusable)
        self.sure_s = self.held_s = math.inf
        self.queue: Waiting = FcfsWaiting() if self.is_fcfs else PriorityWaiting(self._rank)
        self.running: dict[int, Sequence] = {}
        self.prefills: list[Sequence] = []
        self.fresh: list[Sequence] = []
        self.late: list[Sequence] = []
        self.starved: list[Sequence] = []
        self.chunks: list[tuple[Sequence, int]] = []
        self.room_tokens: int = 0
        self.next_order: int = 0
        self.preempted = self.blocked = False
        self.need_blocks, self.need_room_tokens = 0, 1
        self.columns, self.timeline = share.columns, TimelineColumns()
        self.log = StepLog()
        self.made = (0, 0, 0, 0, 0, 0)
        self.token_s = 0.0
        self.overdue: dict[int, float] = {}
        self.paused: dict[int, float] = {}
        self.queried_tokens = self.hit_tokens = self.requeried_tokens = self.rehit_tokens = 0
        self.jumps = self.planned_steps = self.chunk_steps = self.num_preemptions = 0

    def run(self) -> EngineRun:
        """Go from event to event until nothing is left or the time is up."""
        self.advance(math.inf)
        return self._result()

    def advance(self, sure_s: float) -> float:
        """Go on as far as it is certain what happens.

        Parameters
        ----------
        sure_s : float
            All requests that come up to this time [s] have been handed over.

        Returns
        -------
        float
            The time [s] up to which the caller must be sure before anything more happens here; inf when there is
            nothing to do, or the time is up.

        Notes
        -----
        A step is made when all requests that come up to its start are known. A jump is made whole or up to a request
        that is known to come, never cut because the future is not certain. A request that ends makes everything after
        it uncertain: whoever learns of it sets ``sure_s`` back.
        """
        arrivals, clock = self.arrivals, self.clock
        self.sure_s = sure_s
        while clock.now_s < arrivals.until_s:
            if clock.now_s > self.sure_s:
                return self._next_look_s()
            if arrivals.soon_s <= clock.now_s:
                self._take_arrivals(clock.now_s)
            if self.prefills:
                if len(self.prefills) > 1 or not self._run_chunks(self.prefills[0]):
                    self._step()
            elif self.queue and self._may_admit():
                self._step()
            elif self.decoders.num:
                if not self._jump():
                    return self.held_s
            elif self.queue:
                self._step()
            else:
                wake_s = arrivals.wake_s(clock.now_s)
                if wake_s >= arrivals.until_s:
                    break
                if wake_s > self.sure_s:
                    return wake_s
                clock.sleep(wake_s)
        return math.inf

    def _take_arrivals(self, now_s: float) -> None:
        """Queue what has arrived by `now_s`, in order of time; a refusal may bring further arrivals."""
        arrivals = self.arrivals
        if not self.may_refuse:
            for row in arrivals.pop_until(now_s):
                self._enqueue(row)
            return
        at_s = arrivals.next_s()
        while at_s <= now_s:
            for row in arrivals.pop_until(at_s):
                if row in self.refusable:
                    self._refuse(row)
                else:
                    self._enqueue(row)
            at_s = arrivals.next_s()

    def _enqueue(self, row: int) -> None:
        """A request has come and waits."""
        if not self.queue or not self.is_fcfs:
            self._look_again()
        self.queue.add(row)

    def _look_again(self) -> None:
        """The head of the queue is another one: what it needs is not known."""
        self.blocked, self.need_blocks, self.need_room_tokens = False, 0, 1

    def _refuse(self, row: int) -> None:
        """A request that can never be served ends as it comes."""
        self.columns.status[row] = REFUSED
        self.columns.refusals[row] = refusal_of(self.config, self.prompt_tokens[row] + self.output_tokens[row])
        self._leave(row, self.arrivals.arrival_s[row])

    def _rank(self, row: int) -> Rank:
        name = self.requests.ids[row] if len(self.requests.ids) else ""
        return self.priority[row], self.arrivals.arrival_s[row], name, row

    def _may_admit(self) -> bool:
        """Whether the head of the queue is worth a look in the next step."""
        return (not self.blocked and self.need_blocks <= self.cache.pool.num_free
                and len(self.running) < self.config.max_num_seqs and self.decoders.num < self.full_seqs)

    def _jump(self) -> bool:
        """Make all steps up to the next event in which a sequence ends, may be admitted, or needs a closer look.

        False if it is not certain yet whether a request comes before the last of them starts.
        """
        decoders, count = self.decoders, self.count
        done = count.done
        steps = decoders.next_end() - done
        if self.is_listed:
            steps = min(steps, decoders.num_quiet(done, self.names_decode_states))
        else:
            steps = decoders.num_fitting(done, steps, self.cache.pool.num_free)
        if (not steps or self.overdue or decoders.num > self.most_seqs
                or (self.fresh and self.queue)):
            self._step()
            return True
        if self.fresh:
            self._drop_start_states()
        bound_s = self.arrivals.until_s
        if self.arrivals.soon_s < bound_s and self._arrivals_matter():
            bound_s = min(bound_s, self.arrivals.next_s())
        made = self._decode(steps, bound_s)
        if not made:
            return False
        self._note_jump(made)
        if not self.is_listed:
            self.cache.pool.take(decoders.num_begun(done, made))
        self.jumps += 1
        count.done = done + made
        self._end_step()
        return True

    def _decode(self, steps: int, bound_s: float) -> int:
        """Let the time of up to `steps` steps pass; how many, 0 if that is not certain yet."""
        decoders, clock = self.decoders, self.clock
        context = decoders.sum_base_tokens + decoders.num * self.count.end_of(self.count.done + 1)
        if self.sure_s == math.inf:
            return clock.decode(steps, decoders.num, context, bound_s)
        # The last step starts then at the earliest, whatever rounding does; an exact answer costs as much as the jump.
        held_s = clock.now_s + (steps - 1) * clock.least_s(decoders.num, context) * NEARLY_ONE
        if self.sure_s < held_s < bound_s:
            self.held_s = held_s
            return 0
        times = clock.times()
        made = clock.decode(steps, decoders.num, context, bound_s)
        if clock.before_s > self.sure_s:
            self.held_s = clock.before_s
            clock.go_back(times)
            return 0
        return made

    def _next_look_s(self) -> float:
        """Before when nothing needs to be decided here, if nothing is handed over: now, or when a long jump ends."""
        decoders, clock = self.decoders, self.clock
        if self.is_listed or self.prefills or self.queue or not decoders.num or self.arrivals.next_s() < math.inf:
            return clock.now_s
        done = self.count.done
        steps = decoders.num_fitting(done, decoders.next_end() - done, self.cache.pool.num_free)
        context = decoders.sum_base_tokens + decoders.num * self.count.end_of(done + 1)
        held_s = clock.now_s + (steps - 1) * clock.least_s(decoders.num, context) * NEARLY_ONE
        return held_s if clock.now_s < held_s < self.arrivals.until_s else clock.now_s

    def _drop_start_states(self) -> None:
        """Release the checkpoints that sequences started their last chunk from: they decode now."""
        for seq in self.fresh:
            self.cache.drop_states(seq, seq.base_tokens + self.count.given)
        self.fresh = []

    def _arrivals_matter(self) -> bool:
        """Whether a request that arrives now could be admitted in the step after."""
        config = self.config
        may_be_admitted = (len(self.running) < config.max_num_seqs and self.decoders.num < self.full_seqs
                           and (not self.is_fcfs or not self.queue))
        return may_be_admitted or self._may_refuse_warming()

    def _may_refuse_warming(self) -> bool:
        """Whether an arrival may be the end of the warm-up, which sets the end of the run: a refusal ends a request."""
        return (self.may_refuse or self.is_fed) and math.isnan(self.arrivals.clock_start_s)

    def _run_chunks(self, seq: Sequence) -> int:
        """Make steps in which one sequence prefills on, the others decode, and nothing else happens; how many."""
        decoders, count, cache, clock = self.decoders, self.count, self.cache, self.clock
        if (self._is_last_chunk(seq) or self.fresh or self.late or decoders.num >= self.full_seqs
                or self._may_refuse_warming()):
            return 0
        start = done = count.done
        stop = decoders.next_end() - 1 if decoders.num else LAST
        if self.is_listed and decoders.num:
            stop = min(stop, done + decoders.num_quiet(done, self.names_decode_states))
        while done < stop and clock.now_s < self.arrivals.until_s and clock.now_s <= self.sure_s:
            tokens = self._middle_chunk(seq)
            if not tokens:
                break
            begun = 0 if self.is_listed else decoders.count_beginning(done + 1)
            if cache.moving_groups:
                cache.begin_step()
                cache.drop_states(seq, seq.computed_tokens)
            end = seq.computed_tokens + tokens
            need = cache.chunk_blocks(seq, end)
            if begun + need > cache.pool.num_free:
                break
            if begun:
                cache.pool.take(begun)
            count.cursor = LAST
            cache.take_chunk(seq, end, need)
            self.chunks, self.starved = [(seq, tokens)], []
            done += 1
            self._pass_time(done)
            self._note_step()
            count.done, count.cursor = done, -1
        if done > start:
            self.chunk_steps += done - start
            self.blocked = False
            if clock.now_s >= self.arrivals.until_s:
                self._take_arrivals(clock.before_s)
        return done - start

    def _is_last_chunk(self, seq: Sequence) -> bool:
        """Whether the next chunk surely is the last one of a prefill."""
        room = self.config.max_num_batched_tokens - self.decoders.num * self.width
        if seq.known_tokens - seq.computed_tokens > room:
            return False
        if not self.cache.moving_groups:
            return True
        start, block = seq.computed_tokens, self.config.block_tokens
        return start >= seq.junction_tokens and start >= (seq.known_tokens - 1) // block * block

    def _middle_chunk(self, seq: Sequence) -> int:
        """Tokens of the next chunk, 0 if it is the last one or leaves room for somebody who waits."""
        room = self.config.max_num_batched_tokens - self.decoders.num * self.width
        left = seq.known_tokens - seq.computed_tokens
        tokens = min(left, room)
        if self.cache.moving_groups:
            tokens = self._clip(seq, seq.computed_tokens, tokens)
        if tokens == left:
            return 0
        now_s, arrivals = self.clock.now_s, self.arrivals
        comes = arrivals.soon_s <= now_s and arrivals.next_s() <= now_s
        needed = self.need_room_tokens if self.queue else 1 if comes else LAST
        return 0 if room - tokens >= needed and len(self.running) < self.config.max_num_seqs else tokens

    def _end_step(self) -> None:
        """Let go who has ended with the last step; until then, arrivals during it are not seen."""
        done = self.count.done
        if self.decoders.first_end <= done:
            ended = self.decoders.ending(done)
            if ended:
                if self.arrivals.soon_s <= self.clock.before_s:
                    self._take_arrivals(self.clock.before_s)
                for seq in ended:
                    self._finish(seq)
                self._note_state()
                return
        if self.clock.now_s >= self.arrivals.until_s:
            self._take_arrivals(self.clock.before_s)

    def _step(self) -> None:
        """Plan a step, let its time pass, hand out its tokens."""
        step = self._plan()
        self._pass_time(step)
        self._complete(step)

    def _plan(self) -> int:
        """Decide who computes what in the next step; its number."""
        count, decoders = self.count, self.decoders
        step = count.done + 1
        self.planned_steps += 1
        if self.is_listed:
            self.cache.begin_step()
        self.preempted = False
        self.chunks, self.starved = [], []
        self._schedule_running(step)
        count.cursor = LAST
        admitted = not self.preempted and self._schedule_waiting()
        if not self.chunks and decoders.num == len(self.starved):
            raise SimulationError(f"nothing can be scheduled at {self.clock.now_s} s with {len(self.queue)} waiting "
                                  f"and {len(self.running)} running requests")
        if self.preempted or admitted:
            self._note_state()
        return step

    def _complete(self, step: int) -> None:
        """Hand out the tokens of a step whose time has passed."""
        self._note_step()
        self.count.done, self.count.cursor = step, -1
        self._hand_out(step)
        self._end_step()

    def _schedule_running(self, step: int) -> None:
        """Running requests first, in order; only those that take or return blocks are looked at."""
        decoders = self.decoders
        self.room_tokens = self.config.max_num_batched_tokens - decoders.num * self.width
        if self.is_listed or self.late or self.room_tokens < 0:
            self._walk_listed(step)
            return
        pool, begun = self.cache.pool, decoders.count_beginning(step) if decoders.num else 0
        if begun + self.most_chunk_blocks > pool.num_free and self._is_short(begun):
            self._walk([*decoders.beginning(step, [*self.running.values()]), *self.prefills], step)
            return
        if begun:
            pool.take(begun)
        self.count.cursor = LAST
        for seq in self.prefills:
            self._schedule_chunk(seq)

    def _is_short(self, begun: int) -> bool:
        """Whether blocks lack for the chunks of a step in which decoding sequences begin that many (no checkpoints)."""
        chunks = [self.cache.chunk_blocks(seq, self._chunk_end(seq)) for seq in self.prefills]
        return begun + sum(chunks) > self.cache.pool.num_free

    def _chunk_end(self, seq: Sequence) -> int:
        """Where the next chunk of the one partial prefill ends in a model without checkpoints."""
        return min(seq.known_tokens, seq.computed_tokens + self.room_tokens)

    def _walk_listed(self, step: int) -> None:
        """`_walk` over everybody that may take or return blocks, or that comes after a prefill."""
        if self.room_tokens < 0:
            self.late = [seq for seq in self.running.values() if seq.decoding]
        self.room_tokens += len(self.late) * self.width
        due = self.decoders.due(step, self.names_decode_states)
        fresh, self.fresh = self.fresh, []
        if due or fresh or self.prefills or self.late:
            self._walk([*due, *fresh, *self.prefills, *self.late], step)
        if self.starved:
            self.fresh = [seq for seq in self.starved if seq in fresh]

    def _walk(self, sequences: list[Sequence], step: int) -> None:
        """Schedule running sequences in their order, exactly; the others take no block in this step."""
        late = set(self.late) if self.late else ()
        if len(sequences) > 1:
            sequences = sorted(set(sequences), key=attrgetter("order"))
        for seq in sequences:
            if not seq.running:
                continue
            self.count.cursor = seq.order
            if not seq.decoding:
                self._schedule_chunk(seq)
            elif seq not in late:
                self._schedule_decode(seq, step)
            elif self.room_tokens >= self.width:
                self.room_tokens -= self.width
                self._schedule_decode(seq, step)
            else:
                self._starve(seq)

    def _schedule_decode(self, seq: Sequence, step: int) -> None:
        """Blocks for the next token of a decoding sequence."""
        cache = self.cache
        computed = seq.base_tokens + step - 1
        if cache.moving_groups and cache.drop_states(seq, computed):
            self.blocked = False
        if computed % self.config.block_tokens == 0:
            need = cache.num_groups + cache.moving_groups
            if not self._make_room(seq, need):
                return
            cache.pool.take(need)
            self.blocked = False
            if cache.moving_groups:
                cache.move_state(seq, computed)
        if self.names_decode_states and cache.name_state(seq, computed + 1):
            self.blocked = False

    def _schedule_chunk(self, seq: Sequence) -> None:
        """The next chunk of a sequence that prefills, as the budget allows."""
        cache, start = self.cache, seq.computed_tokens
        tokens = min(seq.known_tokens - start, self.room_tokens)
        if tokens > 0 and cache.moving_groups:
            tokens = self._clip(seq, start, tokens)
        if tokens <= 0:
            return
        if cache.moving_groups:
            cache.drop_states(seq, start)
        need = cache.chunk_blocks(seq, start + tokens)
        if need <= cache.pool.num_free or self._make_room(seq, need):
            cache.take_chunk(seq, start + tokens, need)
            self.chunks.append((seq, tokens))
            self.room_tokens -= tokens
        self.blocked = False

    def _starve(self, seq: Sequence) -> None:
        """A decoding sequence for which no budget is left in this step: everything comes a step later."""
        done, finish_step = self.count.done, seq.finish_step + 1
        self._settle(seq)
        self.overdue.setdefault(seq.row, self.token_s)
        computed = seq.base_tokens + done
        self.decoders.remove(seq)
        self.decoders.add(seq, computed - 1, done, finish_step)
        self.starved.append(seq)

    def _make_room(self, seq: Sequence, need: int) -> bool:
        """Preempt until `need` blocks are free, or the sequence itself is out."""
        while need > self.cache.pool.num_free:
            victim = self._victim()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _victim(self) -> Sequence:
        """Who is preempted next."""
        if self.is_fcfs:
            return next(reversed(self.running.values()))
        return max(self.running.values(), key=attrgetter("rank"))

    def _preempt(self, victim: Sequence) -> None:
        """Back to the queue without its blocks; what this step had planned for it is planned no more."""
        self.preempted = True
        self._look_again()
        self.num_preemptions += 1
        del self.running[victim.order]
        victim.running = False
        self._release(victim, False)
        if victim.decoding:
            self.paused[victim.row] = self.overdue.pop(victim.row, self.token_s)
            is_late = victim in self.late
            self.room_tokens += self.width * (not is_late or victim.order <= self.count.cursor)
            victim.generated_tokens = victim.base_tokens + self.count.given - victim.prompt_tokens + 1
            self.decoders.remove(victim)
            if is_late:
                self.late.remove(victim)
        else:
            self.prefills.remove(victim)
            self.room_tokens += sum([tokens for seq, tokens in self.chunks if seq is victim])
            self.chunks = [chunk for chunk in self.chunks if chunk[0] is not victim]
        victim.known_tokens = victim.prompt_tokens + victim.generated_tokens
        victim.computed_tokens = 0
        self.columns.preemptions[victim.row] += 1
        self.queue.put_back(victim)

    def _schedule_waiting(self) -> bool:
        """Admit from the head of the queue until something does not fit; nobody overtakes. Whether anybody was."""
        cache, pool, queue, admitted = self.cache, self.cache.pool, self.queue, False
        while (queue and self.room_tokens >= self.need_room_tokens and not self.blocked
               and self.need_blocks <= pool.num_free and len(self.running) < self.config.max_num_seqs):
            seq = self._head()
            hit = cache.lookup(seq)
            start = hit[0] * self.config.block_tokens
            tokens = seq.known_tokens - start
            if tokens > self.room_tokens:
                tokens = self.room_tokens
            if cache.moving_groups:
                if not cache.is_readable(seq, hit):
                    break
                tokens = self._clip(seq, start, tokens)
            if not tokens:
                if not cache.is_contended(seq):
                    self.blocked = not self.chunks
                    self.need_room_tokens = min(self.config.block_tokens, self._prefill_end(seq) - start)
                break
            if cache.need_blocks(seq, hit) > pool.num_free:
                self.need_blocks = 0 if cache.is_contended(seq) else cache.new_blocks(seq, hit)
                self.blocked = self.need_blocks > 0
                break
            self.need_blocks, self.need_room_tokens = 0, 1
            queue.pop_first()
            self._admit(seq, hit, start, tokens)
            admitted = True
        return admitted

    def _head(self) -> Sequence:
        """The first waiting request as a sequence."""
        first = self.queue.first()
        if isinstance(first, Sequence):
            return first
        seq = self._sequence(first)
        self.queue.replace_first(seq)
        return seq

    def _sequence(self, row: int) -> Sequence:
        seq = Sequence(row, self.prompt_tokens[row], self.output_tokens[row], self.trie.path(row))
        if not self.is_fcfs:
            seq.rank = (self.priority[row], self.arrivals.arrival_s[row])
        return seq

    def _admit(self, seq: Sequence, hit: Hit, start: int, tokens: int) -> None:
        """Start or resume a request; only first admissions count as queries."""
        seq.order = order = self.next_order
        seq.running = True
        self.next_order = order + 1
        self.running[order] = seq
        self.cache.admit(seq, hit, start + tokens)
        self.chunks.append((seq, tokens))
        self.room_tokens -= tokens
        row, columns = seq.row, self.columns
        if columns.preemptions[row]:
            self.requeried_tokens += seq.known_tokens
            self.rehit_tokens += start
        else:
            columns.admitted_s[row] = self.clock.now_s
            self.queried_tokens += seq.known_tokens
            if start:
                columns.cached_tokens[row] = start
                self.hit_tokens += start

    @staticmethod
    def _prefill_end(seq: Sequence) -> int:
        """Where the last chunk of a prefill ends at the latest; it is not shortened to end with a block."""
        return seq.prompt_tokens if seq.known_tokens <= seq.prompt_tokens else seq.known_tokens - 1

    def _clip(self, seq: Sequence, start: int, tokens: int) -> int:
        """Shorten a prefill chunk of a model with checkpoints so that it ends where a checkpoint can be kept."""
        prefill_end, known_tokens = seq.prompt_tokens, seq.known_tokens
        if known_tokens > prefill_end + 1:
            prefill_end = known_tokens - 1
        if start >= prefill_end:
            return tokens
        block, end = self.config.block_tokens, start + tokens
        if end < prefill_end:
            aligned = end - end % block
            if aligned > start or block <= self.config.max_num_batched_tokens:
                end = aligned
        last = ((known_tokens - 1) // block - self.dropped_blocks) * block
        if start < last < end:
            end = last
        junction = seq.junction_tokens
        if start < junction < end:
            end = junction
        return end - start if end > start else 0

    def _pass_time(self, step: int) -> None:
        """Advance the clock by the step, from its sums."""
        decoders, end = self.decoders, self.count.end_of(step)
        num, context = decoders.num, decoders.sum_base_tokens + decoders.num * end
        for seq in self.starved:
            num -= 1
            context -= seq.base_tokens + end
        prefill = chunks = pairs = chunk_context = 0
        for seq, tokens in self.chunks:
            end = seq.computed_tokens
            if tokens == 1 and end > seq.prompt_tokens:
                num += 1
                context += end
                continue
            prefill += tokens
            chunks += 1
            pairs += tokens * (end + end - tokens + 1)
            chunk_context += end
        sums = prefill, chunks, pairs >> 1, chunk_context, num
        self.made = *sums, context
        self.clock.step(sums, context)

    def _note_step(self) -> None:
        """Log the step whose time has passed, and the gaps before the tokens of those that decoded before it."""
        clock, gaps = self.clock, self.decoders.num
        now_s = clock.now_s
        if self.starved or self.overdue:
            gaps -= len(self.starved) + self._note_overdue()
        rows = self.log.rows
        rows.append((now_s, now_s - self.token_s, clock.last_s, 1, gaps, *self.made))
        if len(rows) >= MANY_ROWS:
            self.log.sum_up()
        self.token_s = now_s

    def _note_overdue(self) -> int:
        """Log the gaps of those that got nothing in the step before, but did in this one; how many."""
        still = {seq.row for seq in self.starved}
        served = [row for row in self.overdue if row not in still]
        for row in served:
            self.log.note_gap(self.clock.now_s, self.clock.now_s - self.overdue.pop(row))
        return len(served)

    def _note_jump(self, steps: int) -> None:
        """Log decode steps whose time has passed, before they are counted as done."""
        clock, decoders = self.clock, self.decoders
        now_s, num = clock.now_s, decoders.num
        context = steps * (decoders.sum_base_tokens + num * self.count.done) + num * (steps * (steps + 1) // 2)
        self.log.rows.append((now_s, now_s - self.token_s, clock.last_s, steps, num, 0, 0, 0, 0, num, context))
        self.token_s = now_s

    def _hand_out(self, step: int) -> None:
        """A token for everybody whose known tokens are all computed: from now on they decode."""
        if not self.chunks and not self.prefills and not self.late:
            return
        decoding: list[Sequence] = []
        partial: list[Sequence] = []
        for seq, _ in self.chunks:
            if seq.computed_tokens < seq.known_tokens:
                partial.append(seq)
                continue
            decoding.append(seq)
            if not seq.generated_tokens:
                self.columns.first_token_s[seq.row] = self.clock.now_s
            else:
                self.log.note_gap(self.clock.now_s, self.clock.now_s - self.paused.pop(seq.row))
            last_step = self.count.after(step, seq.output_tokens - seq.generated_tokens - 1)
            self.decoders.add(seq, seq.known_tokens, step, last_step)
        if self.prefills and self.prefills != partial:
            partial = [seq for seq in self.prefills if not seq.decoding and seq not in partial] + partial
            partial.sort(key=attrgetter("order"))
        self.prefills = partial
        if self.is_listed:
            self.fresh += decoding
            if partial or self.late:
                first = partial[0].order if partial else LAST
                self.late = [seq for seq in [*self.late, *decoding] if seq.order > first]

    def _finish(self, seq: Sequence) -> None:
        """The last token is out."""
        row = seq.row
        del self.running[seq.order]
        seq.running = False
        self._release(seq, True)
        self.decoders.remove(seq)
        if self.fresh and seq in self.fresh:
            self.fresh.remove(seq)
        if self.late and seq in self.late:
            self.late.remove(seq)
        self.blocked = False
        columns, now_s = self.columns, self.clock.now_s
        columns.finish_s[row] = now_s
        columns.output_tokens[row] = seq.output_tokens
        columns.status[row] = FINISHED
        self._leave(row, now_s)

    def _release(self, seq: Sequence, is_final: bool) -> None:
        """Give a sequence's blocks back."""
        self.cache.release(seq, is_final)

    def _settle(self, seq: Sequence) -> None:
        """Write down what a sequence has filled, before its pace changes."""
        self.cache.settle(seq)

    def _leave(self, row: int, time_s: float) -> None:
        """Tell the arrivals and the progress bar that a request is over."""
        self.arrivals.finish(row, time_s)
        if self.progress:
            total = len(self.requests)
            if self.arrivals.num_left % max(total // 100, 1) == 0:
                self.progress(1.0 - self.arrivals.num_left / total)

    def _note_state(self) -> None:
        """A row of the timeline."""
        pool = self.cache.pool
        free = pool.num_free
        self.timeline.note((self.clock.now_s, len(self.running), len(self.queue), pool.num_blocks - free,
                            free - pool.num_nameless))

    def _result(self) -> EngineRun:
        totals, timeline = self.close()
        records = self.columns.records(self.arrivals.arrival_s)
        check_times(records)
        self._check_tokens(records, totals)
        return EngineRun(records, totals, timeline, self.trie)

    @property
    def now_s(self) -> float:
        """Time [s] after the last step."""
        return self.clock.now_s

    def cached_blocks(self, row: int) -> tuple[int, int]:
        """Leading blocks of a prompt that are in the pool now, and those behind them in lower tiers."""
        return self.cache.cached_blocks(self.trie.path(row), self._limit_blocks(row)), 0

    def _limit_blocks(self, row: int) -> int:
        """Blocks that a lookup of a prompt can find at most."""
        return (self.prompt_tokens[row] - 1) // self.config.block_tokens

    def num_states(self) -> int:
        """Change points noted so far."""
        return len(self.timeline)

    def state(self, k: int) -> tuple[float, int, int]:
        """Time, running requests and used blocks at change point `k`."""
        return self.timeline.row(k)

    def close(self) -> tuple[RunTotals, Timeline]:
        """Write down what requests have got that are not over; totals and timeline."""
        for seq in self.running.values():
            done = seq.base_tokens + self.count.given - seq.prompt_tokens + 1
            self.columns.output_tokens[seq.row] = done if seq.decoding else seq.generated_tokens
        for seq in self.queue.preempted():
            self.columns.output_tokens[seq.row] = seq.generated_tokens
        self._check_blocks()
        return self._totals(), self.timeline.timeline()

    def _check_blocks(self) -> None:
        """Blocks must add up."""
        self.cache.pool.check(None if self.running else 0)

    def _check_tokens(self, records: RunRecords, totals: RunTotals) -> None:
        """Every token of a finished request was found or computed, its last one excepted."""
        if self.running or self.queue or records.preemptions.any():
            return
        ended = records.status == FINISHED
        asked = int((records.prompt_tokens + records.output_tokens - 1)[ended].sum())
        made = self.hit_tokens + totals.prefill_tokens_computed + totals.decode_tokens
        if asked != made:
            raise SimulationError(f"{asked} tokens were asked for, {made} were found or computed")

    def _totals(self) -> RunTotals:
        pool, sums, is_asking = self.cache.pool, self.log.sums(), int(self.config.prefix_caching)
        counters = {"evicted_blocks": pool.num_evicted, "refused_requests": len(self.columns.refusals),
                    "requeried_tokens": self.requeried_tokens * is_asking, "rehit_tokens": self.rehit_tokens,
                    "jumps": self.jumps, "planned_steps": self.planned_steps,
                    "chunk_steps": self.chunk_steps, "touched_runs": pool.num_touched,
                    "chains": len(self.trie.start_block)}
        return RunTotals(
            steps=self.count.done, prefill_tokens_computed=sums.prefill_tokens, decode_tokens=sums.decode_tokens,
            prompt_tokens_queried=self.queried_tokens * is_asking, prompt_tokens_hit=self.hit_tokens,
            preemptions=self.num_preemptions, makespan_s=self.clock.now_s, busy_s=self.clock.busy_s,
            counters=counters, step_sums=sums)


def _refusable(requests: Requests, config: EngineConfig) -> set[int]:
    """Rows that can never be served: the more tokens, the more reasons."""
    total_tokens = requests.prompt_tokens + requests.output_tokens
    longest = int(total_tokens.max(initial=1))
    if not refusal_of(config, longest):
        return set()
    first = bisect_left(range(longest), True, key=lambda tokens: bool(refusal_of(config, tokens)))
    return set(np.flatnonzero(total_tokens >= first).tolist())
