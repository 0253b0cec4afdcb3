"""Attention-DP ranks in lockstep: pools of their own, one step for all of them.

With expert parallelism every rank takes part in every layer's exchange, so that all ranks begin a step together and the
slowest one decides when it ends; ranks without requests run a dummy step (vLLM, "Data Parallel Deployment").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvsim.engine.core_loop import Core
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
        """Plan a step and let its own time pass; the step's number."""
        step = self._plan()
        self._pass_time(step)
        return step

    def batch(self) -> StepBatch:
        """What the step that has been begun computes."""
        prefill, chunks, pairs, chunk_context, num, _ = self.made
        return StepBatch(prefill, chunks, pairs, chunk_context, num)

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

    @property
    def now_s(self) -> float:
        """Time [s] after the last step."""
        return self.ranks[0].clock.now_s

    def advance(self, sure_s: float) -> float:
        """Go on as far as it is certain what happens; see `kvsim.engine.core_loop.Core.advance`."""
        self.sure_s = sure_s
        feeds = [rank.arrivals for rank in self.ranks]
        while self.now_s < feeds[0].until_s:
            if self.now_s > self.sure_s:
                return self.now_s
            busy = [rank for rank in self.ranks if rank.look()]
            if busy:
                self._step(busy)
                continue
            wake_s = min([feed.next_s() for feed in feeds])
            if wake_s >= feeds[0].until_s:
                break
            if wake_s > self.sure_s:
                return wake_s
            for rank in self.ranks:
                rank.rest(wake_s)
        return math.inf

    def _step(self, busy: Sequence[RankCore]) -> None:
        """One step of all ranks: as long as the longest of those that compute."""
        steps = [rank.begin() for rank in busy]
        end_s = self._end_s(busy)
        for rank in self.ranks:
            if rank not in busy:
                rank.rest(end_s)
        self.num_steps += 1
        self.num_dummy_steps += len(self.ranks) - len(busy)
        for rank, step in zip(busy, steps, strict=True):
            rank.end(step, end_s)

    def _end_s(self, busy: Sequence[RankCore]) -> float:
        """When the slowest rank is done."""
        if self._rank_step_s is None:
            return max([rank.clock.now_s for rank in busy])
        batches = [rank.batch() for rank in busy]
        mean = -(-sum([b.prefill_tokens + b.decode_seqs for b in batches]) // len(self.ranks))
        return max([rank.clock.before_s + self._rank_step_s(batch, rank.clock.last_s, mean)
                    for rank, batch in zip(busy, batches, strict=True)])
