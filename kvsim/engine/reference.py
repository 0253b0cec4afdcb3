"""The plain engine: vLLM V1's scheduler and KV cache manager, one step and one block after the other.

This is the executable specification. It is written to be read, not to be fast; `kvsim.engine.core` must give the
same answers. docs/engine_rules.md has the rules in words, with their source.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvsim.cache.blocks import PrefixKeys
from kvsim.cache.eviction.base import Future
from kvsim.cache.eviction.future import PlainFuture
from kvsim.cache.tiers.config import tier_problems
from kvsim.cache.tiers.stack import PoolShape, TierStack
from kvsim.cache.tiers.writers import Computed, StepView
from kvsim.engine.core_records import Columns, Share
from kvsim.engine.kv_cache import Hit, Holding, KvCache
from kvsim.engine.policies import admission_order, gate_of, has_policy, knows_future, policy_of, without_policy
from kvsim.engine.step_log import StepLog
from kvsim.engine.types import (
    FINISHED,
    REFUSED,
    EngineConfig,
    EngineRun,
    Progress,
    RunRecords,
    RunTotals,
    Timeline,
)
from kvsim.errors import InfeasibleError, Problem, ScenarioError, SimulationError
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.requests import Workload


def run(workload: Workload, config: EngineConfig, step_time: StepTimeModel,
        progress: Progress | None = None) -> EngineRun:
    """Play a workload through one engine replica, step by step.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.
    config : EngineConfig
        Limits, pool and cache settings.
    step_time : StepTimeModel
        How long a step takes.
    progress : callable, optional
        Called with the share of requests that have ended (0 to 1), at most about 100 times.

    Returns
    -------
    EngineRun
        Records (a row a request), totals and timeline.

    Raises
    ------
    ScenarioError
        The configuration is impossible (all problems at once).
    SimulationError
        A conservation law was broken: a defect of kvsim.

    Notes
    -----
    The clock advances by ``now += duration``, one addition a step: whoever wants equal ties must add in the same order.
    Arrivals during a step are seen at its end; tokens are out at the end of their step.

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> turns = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 10, 0, after=(0,), think_s=2.0)])
    >>> done = run(Workload(turns), EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.008, 5e-5, 4e-4))
    >>> done.records.cached_tokens.tolist(), round(done.totals.makespan_s, 6)
    ([0, 96], 2.1749)
    """
    check_config(config)
    return Plain(workload, config, step_time, progress).run()


def check_config(config: EngineConfig) -> None:
    """Raise `ScenarioError` naming every setting that no engine could start with.

    >>> check_config(EngineConfig(64, 16, 8, 512, 4096, state_groups=1, retention_interval_tokens=24))
    Traceback (most recent call last):
    ...
    kvsim.errors.ScenarioError: the engine cannot start
      engine: retention_interval_tokens: got 24; accepted: 0, a multiple of block_tokens (16), or none for every block
    """
    counts = ("block_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    problems = [Problem("engine", name, str(getattr(config, name)), "1 or more")
                for name in counts if getattr(config, name) < 1]
    problems += _drafting_problems(config)
    if config.num_blocks < 2:
        problems.append(Problem("engine", "num_blocks", str(config.num_blocks), "2 or more (one is the null block)"))
    interval = config.retention_interval_tokens
    if interval is not None and not problems and (interval < 0 or interval % config.block_tokens):
        problems.append(Problem("engine", "retention_interval_tokens", str(interval),
                                f"0, a multiple of block_tokens ({config.block_tokens}), or none for every block"))
    problems += tier_problems(config.tiers) + config.eviction.problems()
    if config.admission is not None:
        problems += config.admission.problems()
    if has_policy(config) and any(tier.write == "lazy" for tier in config.tiers):
        problems.append(Problem("engine", "eviction", f"{config.eviction.kind} above a tier with write lazy",
                                "lru, whose queue lazy writing walks along; or another way to write"))
    if problems:
        raise ScenarioError("the engine cannot start", problems)


@dataclass(slots=True, eq=False)
class _Sequence:
    """One request inside the engine."""

    row: int
    prompt_tokens: int
    output_tokens: int
    rank: tuple[int, float, str, int]
    holding: Holding
    generated_tokens: int = 0
    computed_tokens: int = 0
    work_tokens: int = 0
    preemptions: int = 0
    is_loading: bool = False
    load_start_s: float = math.nan
    token_s: float = math.nan

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and generated ones."""
        return self.prompt_tokens + self.generated_tokens


class _FcfsQueue:
    """Waiting requests in order of arrival; preempted ones return to the front."""

    def __init__(self) -> None:
        self._queue: deque[_Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, seq: _Sequence) -> None:
        self._queue.append(seq)

    def put_back(self, seq: _Sequence) -> None:
        self._queue.appendleft(seq)

    def first(self) -> _Sequence:
        return self._queue[0]

    def pop(self) -> _Sequence:
        return self._queue.popleft()

    def __iter__(self) -> Iterator[_Sequence]:
        return iter(self._queue)


class _PriorityQueue:
    """Waiting requests by (priority, arrival time, name); there is no front to return to."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str, int], _Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, seq: _Sequence) -> None:
        heapq.heappush(self._heap, (seq.rank, seq))

    put_back = add

    def first(self) -> _Sequence:
        return self._heap[0][1]

    def pop(self) -> _Sequence:
        return heapq.heappop(self._heap)[1]

    def __iter__(self) -> Iterator[_Sequence]:
        return (seq for _, seq in self._heap)


@dataclass(slots=True)
class _Step:
    """One step while it is being planned.

    ``chunks`` holds the scheduled requests and their tokens in the order of scheduling; ``position`` is the
    index in the running list of the request whose turn it is. ``drafted`` are those of them that bring draft tokens
    along: they take more of the budget than the tokens that they go on by.
    """

    budget_tokens: int
    chunks: dict[_Sequence, int] = field(default_factory=dict["_Sequence", int])
    drafted: set[_Sequence] = field(default_factory=set["_Sequence"])
    position: int = 0
    preempted: list[_Sequence] = field(default_factory=list["_Sequence"])
    admitted: list[_Sequence] = field(default_factory=list["_Sequence"])
    loads: list[_Sequence] = field(default_factory=list["_Sequence"])

    def schedule(self, seq: _Sequence, tokens: int) -> None:
        self.chunks[seq] = tokens
        self.budget_tokens -= tokens


class Plain:
    """One replica: waiting queue, running list, cache and clock."""

    def __init__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None, share: Share | None = None) -> None:
        self.workload, self.requests, self.config = workload, workload.requests, config
        self.step_time, self.progress = step_time, progress
        self.is_fed = share is not None
        self.arrivals = share.incoming if share else Arrivals(workload, gate_of(config, workload))
        self.keys = PrefixKeys(config.block_tokens)
        self.eviction = policy_of(config, self.requests, step_time, lambda: self.now_s, self._future())
        self.cache = KvCache(config, self.eviction)
        self.drafting = config.drafting
        self.width = self.drafting.width if self.drafting else 1
        self.prompt_tokens: list[int] = self.requests.prompt_tokens.tolist()
        self.waiting = _PriorityQueue() if config.policy == "priority" else _FcfsQueue()
        self.loading = _PriorityQueue() if config.policy == "priority" else _FcfsQueue()
        self.running: list[_Sequence] = []
        self.prefilling: set[_Sequence] = set()
        self.tiers = tier_stack(config, self.cache) if has_tiers(config) else None
        self.records = share.columns if share else Columns(self.requests)
        self.rows: list[tuple[float, int, int, int, int]] = []
        self.on_their_way: dict[int, _Sequence] = {}
        self.idle_tokens = {"queried": 0, "hit": 0, "external_hit": 0}
        self.late_tokens = 0
        self.now_s = self.busy_s = self.stalled_s = self.load_wait_s = 0.0
        self.log, self.token_s = StepLog(), 0.0
        self.sure_s, self.stuck_until_s = math.inf, math.nan
        self.unended: tuple[_Step, tuple[float, StepBatch, int]] | None = None
        self.steps = self.prefill_tokens = self.decode_tokens = self.idle_stores = self.churn = 0
        self.num_preemptions = 0
        self.queried_tokens = self.hit_tokens = self.requeried_tokens = self.rehit_tokens = 0

    def _future(self) -> Future | None:
        """What will be asked, where the eviction policy may know it."""
        if not knows_future(self.config, self.is_fed):
            return None
        order = admission_order(Plain(self.workload, without_policy(self.config), self.step_time, None).run())
        return PlainFuture((row, self.keys.chain(self.requests.prompt(row))) for row in order)

    def run(self) -> EngineRun:
        """Step until nothing is left or the time is up."""
        self.advance(math.inf)
        return self._result()

    def advance(self, sure_s: float) -> float:
        """Step on while all requests that come up to the start of a step are sure to be known.

        Parameters
        ----------
        sure_s : float
            All requests that come up to this time [s] have been handed over.

        Returns
        -------
        float
            The time [s] up to which the caller must be sure before anything more happens here; inf when there is
            nothing to do, or the time is up.
        """
        self.sure_s = sure_s
        while self.unended is None or self._end(*self.unended):
            if self.now_s >= self.arrivals.until_s:
                return math.inf
            if not math.isnan(self.stuck_until_s):
                wake_s = min(self.arrivals.next_s(), self.stuck_until_s)
                self._check_wakes(wake_s)
                if wake_s > self.sure_s or math.isinf(wake_s):
                    return wake_s
                if not self._wake(wake_s):
                    return math.inf
                continue
            if self.now_s > self.sure_s:
                return self.now_s
            self._take_arrivals(self.now_s)
            if self.waiting or self.running or self.loading:
                self._step()
                continue
            wake_s = self.arrivals.wake_s(self.now_s)
            if wake_s >= self.arrivals.until_s:
                return math.inf
            if wake_s > self.sure_s:
                return wake_s
            self.now_s = max(self.now_s, wake_s)
        return math.nextafter(self.now_s, 0.0)

    def _take_arrivals(self, now_s: float) -> None:
        """Queue what has arrived by `now_s`, in order of time; a refusal may bring further arrivals."""
        while self.arrivals.next_s() <= now_s:
            for row in self.arrivals.pop_until(self.arrivals.next_s()):
                reason = self._refusal(row)
                if reason:
                    self.records.status[row] = REFUSED
                    self.records.refusals[row] = reason
                    self._leave(row, self.arrivals.arrival_s[row])
                else:
                    self.waiting.add(self._sequence(row))

    def _refusal(self, row: int) -> str:
        """Why a request can never be served; empty if it can."""
        return refusal_of(self.config, self.prompt_tokens[row] + int(self.requests.output_tokens[row]))

    def _sequence(self, row: int) -> _Sequence:
        name = self.requests.ids[row] if len(self.requests.ids) else ""
        holding = Holding(self.keys.chain(self.requests.full(row)), self.prompt_tokens[row], row=row)
        rank = (int(self.requests.priority[row]), self.arrivals.arrival_s[row], name, row)
        return _Sequence(row, self.prompt_tokens[row], int(self.requests.output_tokens[row]), rank, holding)

    def _step(self) -> None:
        """Plan a step, let its time pass, hand out its tokens; or note that nothing can be computed."""
        step = _Step(self.config.max_num_batched_tokens)
        self.cache.begin_step()
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        if step.preempted or step.admitted or step.loads:
            self._note_state()
        if self.tiers:
            self._plan_transfers(self.tiers, step)
        if not step.chunks:
            self._wait(step)
            return
        batch, context_tokens = self._batch(step)
        duration_s = step_s(self.step_time, batch, context_tokens)
        if self.tiers:
            duration_s += self.tiers.take_step_cost_s()
        self.now_s += duration_s
        self.busy_s += duration_s
        self.steps += 1
        self.idle_stores = 0
        if self.tiers:
            self._wait_for_streams(self.tiers.take_due_s())
        self.unended = step, (duration_s, batch, context_tokens)

    def _end(self, step: _Step, made: tuple[float, StepBatch, int]) -> bool:
        """What happens at the end of a step whose time has passed; False if that is not certain yet.

        In a tier that others share it must not happen before what they do there earlier. Requests that come at the same
        time come after it.
        """
        if self.tiers and self.tiers.is_shared and math.nextafter(self.now_s, 0.0) > self.sure_s:
            return False
        self.unended = None
        duration_s, batch, context_tokens = made
        if self.tiers:
            self.tiers.issue_stores(self.now_s)
        gaps = self._hand_out(step)
        self.log.note((self.now_s, self.now_s - self.token_s, duration_s, 1, gaps, *batch, context_tokens))
        self.token_s = self.now_s
        self._take_transfers()
        return True

    def end_step(self) -> None:
        """Nothing more happens elsewhere: let the step that is under way end."""
        self.sure_s = math.inf
        if self.unended is not None:
            self._end(*self.unended)

    def _wait_for_streams(self, due_s: float) -> None:
        """The step is not over before the loads that came layer by layer in it."""
        if due_s > self.now_s:
            self.stalled_s += due_s - self.now_s
            self.now_s = due_s

    def _schedule_running(self, step: _Step) -> None:
        """Running requests first, in list order; who finds no block preempts others or is preempted."""
        while step.position < len(self.running) and step.budget_tokens > 0:
            seq = self.running[step.position]
            tokens = self._next_tokens(seq, step)
            if tokens and not self._make_room(seq, tokens, step):
                if self.config.policy == "fcfs":
                    break
                continue  # it was removed from the list: the next request has moved to its position
            if tokens and self._is_drafted(seq):
                self._schedule_drafted(seq, tokens, step)
            elif tokens:
                step.schedule(seq, tokens)
            step.position += 1

    def _is_drafted(self, seq: _Sequence) -> bool:
        """Whether a running request decodes with drafts: from the step after the one that ended its prefill."""
        return self.drafting is not None and seq not in self.prefilling

    def _next_tokens(self, seq: _Sequence, step: _Step) -> int:
        """Tokens that a running request goes on by in this step, 0 for none; with drafts, all of them or none fit."""
        drafting = self.drafting
        if drafting is not None and seq not in self.prefilling:
            fits = drafting.width <= step.budget_tokens
            return fits * (drafting.given(self.steps + 1) - drafting.given(self.steps))
        wanted = min(seq.num_tokens - seq.computed_tokens, step.budget_tokens)
        return self._clip(seq, seq.computed_tokens, wanted)

    def _schedule_drafted(self, seq: _Sequence, tokens: int, step: _Step) -> None:
        """Plan the tokens that a decoding request will have accepted; its last step may accept more than it needs."""
        assert self.drafting is not None
        step.schedule(seq, tokens - self._surplus(seq, tokens))
        step.budget_tokens -= self.drafting.width - step.chunks[seq]
        step.drafted.add(seq)

    def _surplus(self, seq: _Sequence, tokens: int) -> int:
        """Accepted tokens beyond the last that a request asked for."""
        return max(0, seq.computed_tokens + tokens - (seq.prompt_tokens + seq.output_tokens - 1))

    def _make_room(self, seq: _Sequence, tokens: int, step: _Step) -> bool:
        """Blocks for the next tokens of a running request, preempting until there are enough or it is out itself."""
        end_tokens = seq.computed_tokens + tokens
        while not self.cache.extend(seq.holding, seq.computed_tokens, end_tokens, self._surplus(seq, tokens)):
            victim = self.running[-1]
            if self.config.policy == "priority":
                victim = max(self.running, key=lambda s: s.rank[:2])
            self._preempt(victim, step)
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: _Sequence, step: _Step) -> None:
        """Back to the queue without its blocks; what this step had planned for it is planned no more."""
        index = self.running.index(victim)
        del self.running[index]
        step.position -= index < step.position
        planned = step.chunks.pop(victim, 0)
        step.budget_tokens += self.width if victim in step.drafted else planned
        step.drafted.discard(victim)
        step.preempted.append(victim)
        self.churn += 1
        check_churn(self.config, self.churn, self.now_s)
        self.prefilling.discard(victim)
        self.cache.release(victim.holding)
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.records.preemptions[victim.row] += 1
        self.num_preemptions += 1
        self.waiting.put_back(victim)

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the head of the queue until something does not fit; nobody overtakes.

        Requests that hold blocks for a load go first; those whose load is not over are passed over.
        """
        still_loading: list[_Sequence] = []
        while step.budget_tokens > 0 and len(self.running) < self.config.max_num_seqs:
            queue = self.loading if self.loading else self.waiting
            if not queue:
                break
            seq = queue.first()
            if not seq.is_loading and not self._admit(seq, step):
                break
            queue.pop()
            if seq.is_loading:
                still_loading.append(seq)
            else:
                self.running.append(seq)
        for seq in reversed(still_loading):
            self.loading.put_back(seq)

    def _admit(self, seq: _Sequence, step: _Step) -> bool:
        """Start a waiting request, or the load of what a lower tier has of it; False if it does not fit."""
        if seq.computed_tokens:
            return self._resume(seq, step)
        hit = self.cache.lookup(seq.holding, seq.num_tokens - 1)
        external_tokens = self._match(seq, hit)
        if external_tokens:
            assert self.tiers is not None
            starts = self._start_streaming if self.tiers.streams(seq.row) else self._start_load
            return starts(seq, hit, external_tokens, step)
        tokens = self._clip(seq, hit.tokens, min(seq.num_tokens - hit.tokens, step.budget_tokens))
        if not tokens or not self.cache.admit(seq.holding, hit, seq.num_tokens, hit.tokens + tokens):
            return False
        self._note_admission(seq, hit.tokens, 0)
        self._start(seq, tokens, step)
        return True

    def _start(self, seq: _Sequence, tokens: int, step: _Step) -> None:
        """Schedule the first tokens of a request that has been admitted."""
        step.schedule(seq, tokens)
        step.admitted.append(seq)
        if seq.computed_tokens + tokens < seq.num_tokens:
            self.prefilling.add(seq)

    def _match(self, seq: _Sequence, hit: Hit) -> int:
        """Tokens behind the hit that lower tiers have; a held result of an earlier lookup is given up."""
        if self.tiers is None:
            return 0
        block = self.config.block_tokens
        keys = seq.holding.keys[hit.tokens // block:(seq.num_tokens - 1) // block]
        return block * self.tiers.match(seq.row, keys, self.now_s)

    def _start_load(self, seq: _Sequence, hit: Hit, external_tokens: int, step: _Step) -> bool:
        """Take blocks for what lower tiers have and ask for it; the request computes nothing until it is there."""
        assert self.tiers is not None
        end_tokens = hit.tokens + external_tokens
        reserved = sum(self.cache.remaining_blocks(other.holding, other.num_tokens) for other in self.prefilling)
        if not self.cache.reserve(seq.holding, hit, seq.num_tokens, end_tokens, reserved):
            return False
        first = hit.tokens // self.config.block_tokens
        self.tiers.start_load(seq.row, first, [table.blocks for table in seq.holding.tables], not seq.preemptions)
        self._note_admission(seq, hit.tokens, external_tokens)
        self.prefilling.add(seq)
        seq.is_loading, seq.load_start_s = True, self.now_s
        self.on_their_way[seq.row] = seq
        step.loads.append(seq)
        return True

    def _start_streaming(self, seq: _Sequence, hit: Hit, external_tokens: int, step: _Step) -> bool:
        """Start a request behind a load that comes layer by layer."""
        assert self.tiers is not None
        loaded_tokens = hit.tokens + external_tokens
        tokens = self._clip(seq, loaded_tokens, min(seq.num_tokens - loaded_tokens, step.budget_tokens))
        if not tokens or not self.cache.stream(seq.holding, hit, seq.num_tokens, loaded_tokens,
                                               loaded_tokens + tokens):
            return False
        first = hit.tokens // self.config.block_tokens
        self.tiers.start_load(seq.row, first, [table.blocks for table in seq.holding.tables], not seq.preemptions)
        self._note_admission(seq, hit.tokens, external_tokens)
        self._start(seq, tokens, step)
        return True

    def _resume(self, seq: _Sequence, step: _Step) -> bool:
        """Let a request compute whose load is over: its blocks become findable, even if it does not fit now."""
        self.cache.name_loaded(seq.holding, seq.computed_tokens)
        tokens = self._clip(seq, seq.computed_tokens, min(seq.num_tokens - seq.computed_tokens, step.budget_tokens))
        end_tokens = seq.computed_tokens + tokens
        if not tokens or not self.cache.resume(seq.holding, seq.computed_tokens, seq.num_tokens, end_tokens):
            return False
        self.load_wait_s += self.now_s - seq.load_start_s
        self._start(seq, tokens, step)
        return True

    def _plan_transfers(self, tiers: TierStack, step: _Step) -> None:
        """Start the loads of a step, choose its stores."""
        admitted = set(step.admitted)
        order = [*(seq for seq in step.admitted if not seq.preemptions),
                 *(seq for seq in step.chunks if seq not in admitted),
                 *(seq for seq in step.admitted if seq.preemptions)]
        view = StepView([self._computed(seq, seq in admitted) for seq in order],
                        self.cache.checkpoints_of_step().values(), [seq.row for seq in step.preempted])
        tiers.plan(view, self.now_s)
        tiers.issue_loads(self.now_s)

    def _computed(self, seq: _Sequence, is_admitted: bool = False) -> Computed:
        """What a request has computed, and the checkpoint that it has just started from."""
        block, num_attention = self.config.block_tokens, 1 + self.config.extra_attention_groups
        tables = [table.blocks for table in seq.holding.tables]
        positions = seq.computed_tokens // block
        states = [table[positions - 1] for table in tables[num_attention:] if is_admitted and positions - 1 in table]
        return Computed(seq.row, positions, seq.prompt_tokens // block, tables[:num_attention], states)

    def _wait(self, step: _Step) -> None:
        """Nothing can be computed: wait for a transfer or an arrival."""
        transfer_s = math.inf
        if self.tiers:
            self.idle_stores = self.idle_stores + 1 if self.tiers.issue_stores(self.now_s) else 0
            check_progress(self.config, self.idle_stores, self.now_s, len(self.waiting) + len(self.loading))
            transfer_s = self.tiers.next_s()
        if math.isinf(transfer_s) and step.preempted:
            return  # nobody was admitted for that reason alone: plan again
        self._forget_statistics(step)
        self.stuck_until_s = transfer_s

    def _check_wakes(self, wake_s: float) -> None:
        """Raise `SimulationError` if nothing will ever end the wait."""
        if math.isinf(wake_s) and not self.is_fed:
            raise SimulationError(f"nothing can be scheduled at {self.now_s} s with {len(self.waiting)} waiting, "
                                  f"{len(self.loading)} loading and {len(self.running)} running requests")

    def _wake(self, wake_s: float) -> bool:
        """A transfer or an arrival ends the wait; False when none comes before the time is up.

        What is refused never reaches the scheduler, so it wakes nobody.
        """
        if wake_s >= self.arrivals.until_s:
            self.stuck_until_s = math.nan
            return False
        num_waiting = len(self.waiting)
        self._take_arrivals(wake_s)
        if wake_s < self.stuck_until_s and len(self.waiting) == num_waiting:
            return True
        self.stuck_until_s = math.nan
        self.stalled_s += max(wake_s - self.now_s, 0.0)
        self.now_s = max(wake_s, self.now_s)
        self._take_transfers()
        return True

    def _take_transfers(self) -> None:
        """Learn which transfers are over."""
        if self.tiers is None:
            return
        for row in self.tiers.take_arrived(self.now_s):
            self.on_their_way.pop(row).is_loading = False

    def _forget_statistics(self, step: _Step) -> None:
        """Count apart what was looked up in a step that computes nothing (vLLM's loggers never see it)."""
        for seq in step.loads:
            if not seq.preemptions:
                external_tokens = self.records.external_tokens[seq.row]
                self.idle_tokens["queried"] += seq.num_tokens
                self.idle_tokens["hit"] += seq.computed_tokens
                self.idle_tokens["external_hit"] += external_tokens

    def _clip(self, seq: _Sequence, start: int, tokens: int) -> int:
        """Shorten a prefill chunk of a model with checkpoints so that it ends where a checkpoint can be kept."""
        prefill_end = max(seq.prompt_tokens, seq.num_tokens - 1)
        if not (self.config.state_groups and self.config.prefix_caching) or start >= prefill_end:
            return tokens
        block, end = self.config.block_tokens, start + tokens
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self.config.max_num_batched_tokens:
                end = aligned
        dropped = self.drafting is not None and self.drafting.drops_block
        stops = (((seq.num_tokens - 1) // block - dropped) * block, seq.holding.junction_tokens)
        return max(min([end, *(stop for stop in stops if start < stop < end)]) - start, 0)

    def _note_admission(self, seq: _Sequence, hit_tokens: int, external_tokens: int) -> None:
        """Set the counters of a request that starts or resumes; only first admissions count as queries."""
        seq.computed_tokens = cached_tokens = hit_tokens + external_tokens
        if seq.preemptions == 0:
            self.records.admitted_s[seq.row] = self.now_s
            self.records.cached_tokens[seq.row] = cached_tokens
            self.records.external_tokens[seq.row] = external_tokens
            self.late_tokens += self.tiers.num_late * self.config.block_tokens if self.tiers else 0
            self.queried_tokens += seq.num_tokens * self.config.prefix_caching
            self.hit_tokens += cached_tokens
        else:
            self.requeried_tokens += seq.num_tokens * self.config.prefix_caching
            self.rehit_tokens += cached_tokens

    def _batch(self, step: _Step) -> tuple[StepBatch, int]:
        """Sums over the step's requests, and the context of those that decode [tokens]."""
        prefill = chunks = pairs = chunk_context = decode = context = drafted = 0
        for seq, tokens in step.chunks.items():
            end = seq.computed_tokens + tokens
            if seq in step.drafted:
                drafted += tokens
                decode += 1
                context += seq.computed_tokens + self.width
            elif tokens == 1 and seq.computed_tokens >= seq.prompt_tokens:
                decode += 1
                context += end
            else:
                prefill += tokens
                chunks += 1
                pairs += tokens * seq.computed_tokens + tokens * (tokens + 1) // 2
                chunk_context += end
        self.prefill_tokens += prefill
        self.decode_tokens += decode - len(step.drafted) + drafted
        return StepBatch(prefill, chunks, pairs, chunk_context, decode), context

    def _hand_out(self, step: _Step) -> int:
        """A token for everybody whose known tokens are all computed; the last token ends a request.

        How many of them got one in the step before too.
        """
        finished: list[_Sequence] = []
        gaps = 0
        for seq, tokens in step.chunks.items():
            seq.computed_tokens += tokens
            seq.work_tokens += tokens
            if seq.computed_tokens < seq.num_tokens:
                continue
            self.prefilling.discard(seq)
            seq.generated_tokens += tokens if seq in step.drafted else 1
            self.churn = 0
            if seq.generated_tokens == 1:
                self.records.first_token_s[seq.row] = self.now_s
            elif seq.token_s == self.token_s:
                gaps += 1
            else:
                self.log.note_gap(self.now_s, self.now_s - seq.token_s)
            seq.token_s = self.now_s
            if seq.generated_tokens == seq.output_tokens:
                self._finish(seq)
                finished.append(seq)
        if finished:
            self.running = [seq for seq in self.running if seq not in finished]
            self._note_state()
        return gaps

    def _finish(self, seq: _Sequence) -> None:
        cached = self.records.cached_tokens[seq.row]
        if not seq.preemptions and cached + seq.work_tokens != seq.num_tokens - 1:
            raise SimulationError(f"request {self.requests.name(seq.row)}: {cached} cached + {seq.work_tokens} "
                                  f"computed tokens are not {seq.num_tokens - 1}")
        if self.tiers:
            self.cache.shed(seq.holding, seq.computed_tokens)
            self.tiers.finish(self._computed(seq), self.now_s)
        self.cache.release(seq.holding, is_over=True)
        self.records.finish_s[seq.row] = self.now_s
        self.records.output_tokens[seq.row] = seq.generated_tokens
        self.records.status[seq.row] = FINISHED
        self._leave(seq.row, self.now_s)

    def _leave(self, row: int, time_s: float) -> None:
        """Tell the arrivals, the eviction policy and the progress bar that a request is over."""
        self.arrivals.finish(row, time_s)
        if self.eviction is not None:
            self.eviction.ended(row)
        total = len(self.requests)
        if self.progress and self.arrivals.num_left % max(total // 100, 1) == 0:
            self.progress(1.0 - self.arrivals.num_left / total)

    def _note_state(self) -> None:
        """A row of the timeline, replacing one of the same instant; blocks must add up."""
        pool = self.cache.pool
        pool.expire()
        pool.check()
        if self.rows and self.rows[-1][0] == self.now_s:
            self.rows.pop()
        self.rows.append((self.now_s, len(self.running), len(self.waiting), pool.num_used, pool.num_cached))

    def _result(self) -> EngineRun:
        totals, timeline = self.close()
        records = self.records.records(self.arrivals.arrival_s)
        check_times(records)
        return EngineRun(records, totals, timeline)

    def cached_blocks(self, row: int) -> tuple[int, int]:
        """Leading blocks of a prompt that are in the pool now, and those behind them in lower tiers."""
        tokens, block = self.prompt_tokens[row], self.config.block_tokens
        keys = self.keys.chain(self.requests.full(row))[:(tokens - 1) // block]
        at = self.cache.lookup(Holding(keys, tokens), tokens - 1).tokens // block
        return at, self.tiers.num_leading(keys[at:]) if self.tiers else 0

    def num_states(self) -> int:
        """Change points noted so far."""
        return len(self.rows)

    def state(self, k: int) -> tuple[float, int, int]:
        """Time, running requests and used blocks at change point `k`."""
        time_s, running, _, used, _ = self.rows[k]
        return time_s, running, used

    def close(self) -> tuple[RunTotals, Timeline]:
        """Write down what requests have got that are not over; totals and timeline."""
        for seq in self.running:
            self.records.output_tokens[seq.row] = seq.generated_tokens
        for seq in itertools.chain(self.loading, self.waiting):
            self.records.output_tokens[seq.row] = seq.generated_tokens
        self.cache.pool.expire()
        self.cache.pool.check_all()
        columns = [np.array(column) for column in zip(*self.rows, strict=True)] or [np.zeros(0)] * 5
        timeline = Timeline(columns[0].astype(np.float64), *(column.astype(np.int64) for column in columns[1:]))
        return self._totals(), timeline

    def _totals(self) -> RunTotals:
        counters = {"evicted_blocks": self.cache.pool.num_evicted, "refused_requests": len(self.records.refusals),
                    "requeried_tokens": self.requeried_tokens, "rehit_tokens": self.rehit_tokens}
        if self.tiers:
            counters |= {f"idle_{name}_tokens": tokens for name, tokens in self.idle_tokens.items()}
            counters["late_tokens"] = self.late_tokens
        return RunTotals(
            steps=self.steps, prefill_tokens_computed=self.prefill_tokens, decode_tokens=self.decode_tokens,
            prompt_tokens_queried=self.queried_tokens, prompt_tokens_hit=self.hit_tokens,
            preemptions=self.num_preemptions, makespan_s=self.now_s, busy_s=self.busy_s, counters=counters,
            tiers=self.tiers.totals() if self.tiers else (), stalled_s=self.stalled_s, load_wait_s=self.load_wait_s,
            step_sums=self.log.sums())


def has_tiers(config: EngineConfig) -> bool:
    """Whether there are tiers below a replica's pool that can be used."""
    return config.prefix_caching and any(tier.num_blocks for tier in config.tiers)


def pool_shape(config: EngineConfig) -> PoolShape:
    """What tiers must know of a replica's pool."""
    attention = 1 + config.extra_attention_groups
    # A step's blocks, twice: what lazy writing keeps ready for reuse at the head of the free queue.
    scan_blocks = 2 * (attention * -(-config.max_num_batched_tokens // config.block_tokens) + 2 * config.state_groups)
    return PoolShape(attention, config.state_groups, config.block_tokens, scan_blocks)


def tier_stack(config: EngineConfig, cache: KvCache) -> TierStack:
    """The tiers below a replica's pool."""
    return TierStack(cache.pool, [tier for tier in config.tiers if tier.num_blocks], pool_shape(config))


def check_progress(config: EngineConfig, idle_stores: int, now_s: float, num_waiting: int) -> None:
    """Give up when stores alone keep the engine busy: each holds blocks that the next request would need."""
    if idle_stores > 1000 + 10 * config.num_blocks:
        raise InfeasibleError(
            f"the engine stands still from {now_s} s on: stores to the tier below hold the blocks that the next "
            f"of {num_waiting} waiting requests needs, again and again")


def check_churn(config: EngineConfig, preemptions: int, now_s: float) -> None:
    """Give up when requests are preempted again and again and nobody gets a token in between.

    Blocks held by stores can make a request fail, start again, compute, and fail again at the same place, for ever.
    """
    if has_tiers(config) and preemptions > 1000 + 10 * config.num_blocks:
        raise InfeasibleError(f"the engine stands still from {now_s} s on: {preemptions} preemptions and no token, "
                              "because stores to the tier below hold the blocks that running requests need")


def refusal_of(config: EngineConfig, total_tokens: int) -> str:
    """Why no request of `total_tokens` (prompt and output) can be served; empty if one can.

    >>> refusal_of(EngineConfig(64, 16, 8, 512, 4096), 5000)
    'prompt and output have 5000 tokens; max_model_len is 4096'
    """
    if total_tokens > config.max_model_len:
        return f"prompt and output have {total_tokens} tokens; max_model_len is {config.max_model_len}"
    need = max_blocks(config, total_tokens)
    if need > config.num_blocks - 1:
        return f"needs {need} blocks at its longest; the pool has {config.num_blocks - 1}"
    return ""


def _drafting_problems(config: EngineConfig) -> list[Problem]:
    """What keeps a step from holding one decoding request with all of its drafts."""
    if config.drafting is None:
        return []
    width = config.drafting.width
    return [Problem("engine", name, f"{getattr(config, name)} with {config.drafting.tokens} draft tokens",
                    f"{width} or more")
            for name in ("block_tokens", "max_num_batched_tokens") if getattr(config, name) < width]


def max_blocks(config: EngineConfig, total_tokens: int) -> int:
    """Most blocks that one request of `total_tokens` (prompt and output) holds at once.

    The last generated token is never computed. A state group holds two blocks while it moves to the next position.

    >>> max_blocks(EngineConfig(64, 16, 8, 512, 4096, state_groups=3), 33)
    8
    """
    drafting, most_tokens, spare = config.drafting, total_tokens - 1, 0
    if drafting is not None:
        most_tokens += drafting.tokens + drafting.ahead_tokens
        spare = drafting.tokens
    length = -(-most_tokens // config.block_tokens)
    states = spare + (min(2, length) if config.prefix_caching else 1)
    return length * (1 + config.extra_attention_groups) + states * config.state_groups


def check_times(records: RunRecords) -> None:
    """Raise `SimulationError` unless arrival <= admitted <= first token <= finish wherever they happened."""
    columns = (records.arrival_s, records.admitted_s, records.first_token_s, records.finish_s)
    for earlier, later in itertools.pairwise(columns):
        if np.any(earlier > later) or np.any(np.isnan(earlier) & ~np.isnan(later)):
            raise SimulationError("a request was served before it came: arrival, admission, first token and finish "
                                  "are out of order")
