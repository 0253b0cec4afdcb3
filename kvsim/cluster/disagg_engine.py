"""The engine of a decode replica: requests come with their prompts computed elsewhere, and their KV is pulled.

As vLLM's connector does it (``NixlConnector``): the decode side takes blocks for the whole prompt, pulls what it lacks,
and computes the last prompt token itself, which gives the first output token. Where it caches prefixes of a model with
constant state, it pulls the prompt's last checkpoint too (vLLM's connector refuses that so far).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Items
from typing import Protocol

from kvsim.cache.blocks import BlockPool
from kvsim.cache.tiers.stack import PoolShape, TierStack
from kvsim.cluster.disagg_links import Pull
from kvsim.engine.core_records import Share
from kvsim.engine.core_sequence import Sequence
from kvsim.engine.core_tiers import TieredCore
from kvsim.engine.kv_cache import Hit
from kvsim.engine.reference import pool_shape
from kvsim.engine.types import EngineConfig, Progress
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.requests import Workload


class Remote(Protocol):
    """Where a decode replica's requests were prefilled."""

    def holds(self, row: int) -> bool:
        """Whether a request was prefilled elsewhere and has not been pulled yet."""
        ...

    def pull(self, row: int, pull: Pull) -> float:
        """Ask for what the replica lacks of a request; when it arrives [s]."""
        ...


class Pulls(TierStack):
    """Transfers under way to a pool that has no tiers below it."""

    def __init__(self, pool: BlockPool, shape: PoolShape) -> None:
        super().__init__(pool, (), shape)
        self._under_way: list[tuple[float, int, int]] = []
        self._num_sent = 0

    def add(self, row: int, arrival_s: float) -> None:
        """A request's KV is on its way."""
        self._num_sent += 1
        heapq.heappush(self._under_way, (arrival_s, self._num_sent, row))

    def next_s(self) -> float:
        """When the next transfer arrives [s]; inf without any."""
        return self._under_way[0][0] if self._under_way else math.inf

    def take_arrived(self, now_s: float) -> list[int]:
        """Requests whose KV has arrived by `now_s`."""
        rows: list[int] = []
        while self._under_way and self._under_way[0][0] <= now_s:
            rows.append(heapq.heappop(self._under_way)[2])
        return rows


class DecodeCore(TieredCore):
    """A decode replica.

    Attributes
    ----------
    remote : Remote
        Where requests were prefilled; set by who runs the cluster.
    local_tokens : dict of int to int
        Prompt tokens that were there already, by request that was pulled.
    """

    remote: Remote

    def __init__(self, workload: Workload, config: EngineConfig, step_time: StepTimeModel,
                 progress: Progress | None, share: Share | None = None) -> None:
        super().__init__(workload, config, step_time, progress, share)
        self.pulls = self.tiers = Pulls(self.kv.pool, pool_shape(config))
        self.local_tokens: dict[int, int] = {}
        self._asked: list[tuple[int, int, int]] = []

    def _clip(self, seq: Sequence, start: int, tokens: int) -> int:
        """Shorten a prefill chunk where checkpoints are kept."""
        return super()._clip(seq, start, tokens) if self.config.prefix_caching else tokens

    def _try_new(self, seq: Sequence) -> bool:
        """Start a request, or the transfer of what was computed elsewhere."""
        if not self.remote.holds(seq.row):
            return super()._try_new(seq)
        kv, block, known = self.kv, self.config.block_tokens, seq.known_tokens
        hit = kv.lookup(seq.holding, known - 1)
        num_blocks = -(-known // block)
        reserved = sum([kv.remaining_blocks(other.holding, other.known_tokens) for other in self.unready])
        checkpoint = self._lacked_checkpoint(hit, known)
        room = self.config.state_groups if checkpoint else 0
        if not kv.reserve(seq.holding, hit, known, num_blocks * block, reserved + room):
            self.blocked = True
            return False
        kv.reserve_checkpoint(seq.holding, checkpoint)
        self._note_admission(seq, hit.tokens, known - 1 - hit.tokens)
        self.local_tokens[seq.row] = hit.tokens
        self.unready.add(seq)
        self.ways[seq.row], self.load_start_s[seq.row] = seq, self.clock.now_s
        self.loads.append(seq)
        # A prompt that ends a token behind a checkpoint goes on from it: it is the one state that is sent anyway.
        is_more = checkpoint > 0 and checkpoint * block < known - 1
        self._asked.append((seq.row, num_blocks - hit.tokens // block, int(is_more)))
        return True

    def _lacked_checkpoint(self, hit: Hit, known_tokens: int) -> int:
        """Blocks to the last checkpoint that the next turn can resume from, if it is not here already; else 0."""
        if not self.config.prefix_caching or not self.config.state_groups:
            return 0
        blocks = (known_tokens - 1) // self.config.block_tokens
        return blocks if blocks * self.config.block_tokens > hit.tokens else 0

    def _plan_transfers(self) -> None:
        """Ask for what the step's new requests lack; it is on its way when the step starts."""
        self.changed |= bool(self.loads)
        asked: Items[tuple[int, int, int]] = self._asked
        self._asked = []
        for row, num_blocks, num_checkpoints in asked:
            arrival_s = self.remote.pull(row, Pull(num_blocks, num_checkpoints, self.clock.now_s))
            self.pulls.add(row, arrival_s)
