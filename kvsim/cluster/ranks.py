"""Attention-DP ranks in lockstep: pools of their own, one step for all of them.

With expert parallelism every rank takes part in every layer's exchange, so that all ranks begin a step together and the
slowest one decides when it ends; ranks without requests run a dummy step (vLLM, "Data Parallel Deployment"). So does a
rank that can compute nothing because its requests wait for loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvsim.engine.core import needs_plain
from kvsim.engine.core_drafts import DraftedCore
from kvsim.engine.core_loop import Core
from kvsim.engine.core_tiers import TieredCore
from kvsim.engine.policies import has_policy
from kvsim.engine.reference import has_tiers
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, ScenarioError
from kvsim.steptime.base import StepBatch

RankStep = Callable[[StepBatch, float, int], float]
"""Duration [s] of a rank's step from its batch, the duration if all ranks computed as much, and their mean tokens."""


class RankCore(Core):
    """One rank: the fast engine, led step by step."""

    def look(self) -> bool:
        """Queue what has come by now; whether there is anything to compute."""
        if self.arrivals.next_s() <= self.clock.now_s:
            self._take_arrivals(self.clock.now_s)
        return bool(self.prefills or self.decoders.num or self.queue)

    def begin(self) -> int:
        """Plan a step and let its own time pass; the step's number, 0 if nothing can be computed."""
        step = self._plan()
        if step:
            self._pass_time(step)
        return step

    def batch(self) -> StepBatch:
        """What the step that has been begun computes."""
        prefill, chunks, pairs, chunk_context, num, _ = self.made
        return StepBatch(prefill, chunks, pairs, chunk_context, num)

    def due_s(self) -> float:
        """When loads that come layer by layer in the step are over [s]; it ends no sooner."""
        return -math.inf

    def wake_s(self) -> float:
        """When there may be something to compute again [s]."""
        return self.arrivals.next_s()

    def end(self, step: int, end_s: float) -> None:
        """Wait for the slowest rank, then hand out tokens."""
        clock = self.clock
        waited_s = end_s - clock.now_s
        clock.now_s = end_s
        clock.busy_s += waited_s
        clock.last_s += waited_s
        self._complete(step)

    def rest(self, until_s: float) -> None:
        """Pass time without requests: a dummy step, or none."""
        self.clock.before_s = self.clock.now_s
        self.clock.sleep(until_s)


class DraftedRank(RankCore, DraftedCore):
    """One rank with drafts."""


class TieredRank(RankCore, TieredCore):
    """One rank with tiers below its pool, or another order of eviction."""

    def look(self) -> bool:
        """Queue what has come by now, and learn what has been loaded; whether there is anything to compute."""
        now_s, has_come = self.clock.now_s, self.arrivals.next_s() <= self.clock.now_s
        if has_come:
            self._take_arrivals(now_s)
        if not math.isnan(self.stuck_until_s):
            if now_s < self.stuck_until_s and not has_come:
                return False
            self.stuck_until_s, self.blocked = math.nan, False
            self._take_transfers()
        self._notice_time()
        if self.tiers.is_shared:
            self.blocked = False
        return bool(self.running or self.queue or self.loading)

    def due_s(self) -> float:
        """When loads that come layer by layer in the step are over [s]; it ends no sooner."""
        due_s = self.tiers.take_due_s()
        self.stalled_s += max(due_s - self.clock.now_s, 0.0)
        return due_s

    def wake_s(self) -> float:
        """When there may be something to compute again [s]."""
        next_s = self.arrivals.next_s()
        return next_s if math.isnan(self.stuck_until_s) else min(next_s, self.stuck_until_s)

    def end(self, step: int, end_s: float) -> None:
        """Wait for the slowest rank, then hand out tokens and start stores."""
        super().end(step, end_s)
        self._end()

    def rest(self, until_s: float) -> None:
        """Pass time without requests, or while all of them wait for loads."""
        if not math.isnan(self.stuck_until_s):
            self.stalled_s += max(until_s - self.clock.now_s, 0.0)
        super().rest(until_s)


def rank_kind(config: EngineConfig) -> type[RankCore]:
    """The engine that plays a rank of a configuration.

    Raises
    ------
    ScenarioError
        Only the plain engine knows the configuration, and that one cannot be led step by step.
    """
    if needs_plain(config):
        raise ScenarioError("attention-DP ranks cannot step together", [Problem(
            "engine", "tiers, eviction, drafting", "stores that slow steps, or drafts above tiers or another eviction",
            "one of them: the plain engine, which alone knows both, steps by itself")])
    if config.drafting is not None:
        return DraftedRank
    return TieredRank if has_tiers(config) or has_policy(config) else RankCore


class Lockstep:
    """Ranks that step together.

    Parameters
    ----------
    ranks : sequence of RankCore
        The ranks.
    rank_step_s : RankStep, optional
        How long a rank's step takes where loads differ; by default as if all computed as much.

    Attributes
    ----------
    num_steps, num_dummy_steps : int
        Steps of all ranks together, and steps in which a rank had nothing to do, summed over ranks.
    """

    def __init__(self, ranks: Sequence[RankCore], rank_step_s: RankStep | None = None) -> None:
        self.ranks, self._rank_step_s = ranks, rank_step_s
        self.sure_s = math.inf
        self.num_steps = self.num_dummy_steps = 0
        self._is_shared = any(isinstance(rank, TieredRank) and rank.tiers.is_shared for rank in ranks)
        self._under_way: tuple[float, list[tuple[RankCore, int]]] | None = None

    @property
    def now_s(self) -> float:
        """Time [s] after the last step."""
        return self.ranks[0].clock.now_s if self._under_way is None else self._under_way[0]

    def advance(self, sure_s: float) -> float:
        """Go on as far as it is certain what happens; see `kvsim.engine.core_loop.Core.advance`."""
        self.sure_s = sure_s
        feeds = [rank.arrivals for rank in self.ranks]
        while self._under_way is None or self._end(*self._under_way):
            if self.now_s >= feeds[0].until_s:
                return math.inf
            if self.now_s > self.sure_s:
                return self.now_s
            busy = [rank for rank in self.ranks if rank.look()]
            if busy:
                self._step(busy)
                continue
            wake_s = min([rank.wake_s() for rank in self.ranks])
            if wake_s >= feeds[0].until_s:
                return math.inf
            if wake_s > self.sure_s:
                return wake_s
            for rank in self.ranks:
                rank.rest(wake_s)
        return math.nextafter(self.now_s, 0.0)

    def end_step(self) -> None:
        """Nothing more happens elsewhere: let the step that is under way end."""
        self.sure_s = math.inf
        if self._under_way is not None:
            self._end(*self._under_way)

    def _step(self, busy: Sequence[RankCore]) -> None:
        """Begin one step of all ranks: as long as the longest of those that compute."""
        steps = [(rank, step) for rank in busy if (step := rank.begin())]
        if steps:
            self._under_way = self._end_s([rank for rank, _ in steps]), steps

    def _end(self, end_s: float, steps: list[tuple[RankCore, int]]) -> bool:
        """All ranks end their step; False if it is not certain yet what others do before in a tier that they share."""
        if self._is_shared and math.nextafter(end_s, 0.0) > self.sure_s:
            return False
        self._under_way = None
        computing = [rank for rank, _ in steps]
        for rank in self.ranks:
            if rank not in computing:
                rank.rest(end_s)
        self.num_steps += 1
        self.num_dummy_steps += len(self.ranks) - len(computing)
        for rank, step in steps:
            rank.end(step, end_s)
        return True

    def _end_s(self, busy: Sequence[RankCore]) -> float:
        """When the slowest rank is done."""
        due_s = max([rank.due_s() for rank in busy])
        if self._rank_step_s is None:
            return max(due_s, *[rank.clock.now_s for rank in busy])
        batches = [rank.batch() for rank in busy]
        tokens = [b.prefill_tokens + b.decode_seqs * rank.width for rank, b in zip(busy, batches, strict=True)]
        mean = -(-sum(tokens) // len(self.ranks))
        return max(due_s, *[rank.clock.before_s + self._rank_step_s(batch, rank.clock.last_s, mean)
                            for rank, batch in zip(busy, batches, strict=True)])
