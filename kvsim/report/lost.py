"""What the hit rate lacks of the ideal one, by reason: capacity, policy or bandwidth."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.content_trie import ContentTrie, build_trie
from kvsim.engine.types import EngineConfig, EngineRun, RunRecords
from kvsim.report.metrics import Bools, Bound, LostBy, Window
from kvsim.workload.requests import Requests

Ints = NDArray[np.int64]
LITTLE = 0.01
"""Share of the prompt tokens up to which nothing is said to be short."""


def lost_by(run: EngineRun, window: Window, ideal_tokens: Ints, requests: Requests, config: EngineConfig) -> LostBy:
    """Why the window's hits fall short of the ideal ones.

    Parameters
    ----------
    run : EngineRun
        Of one engine.
    window : Window
        Measured part.
    ideal_tokens : int array [n]
        What an infinite cache would have found of each prompt, token by token.
    requests : Requests
        What was asked.
    config : EngineConfig
        Blocks, groups and checkpoints.

    Notes
    -----
    Three hit lengths a request: the ideal one, that of a pool without limits under this engine's rules
    (`unlimited_tokens`), and the real one. The first difference is policy, the second capacity, but for the part that
    tiers had, or were about to have, when the request was admitted: bandwidth. That part is known for the whole run and
    divided as the losses are. Without state groups the second length is the ideal one in whole blocks, and what
    somebody else was still computing counts as capacity too, if anything was evicted in the run.
    """
    records = run.records
    held = window.holds(records.first_token_s)
    prompt = float(records.prompt_tokens[held].sum())
    lost = np.maximum(ideal_tokens - records.cached_tokens, 0)
    if not prompt or not lost[held].any():
        return LostBy(0.0, 0.0, 0.0, "none")
    short = lost.copy()
    if run.totals.counters.get("evicted_blocks", 0):
        usable = ideal_tokens // config.block_tokens * config.block_tokens
        if config.state_groups:
            usable = unlimited_tokens(requests, records, config, lost > 0, run.trie)
        short = np.minimum(np.maximum(ideal_tokens - np.maximum(usable, records.cached_tokens), 0), lost)
    rest = lost - short
    late = min(run.totals.counters.get("late_tokens", 0) / max(int(rest.sum()), 1), 1.0)
    policy, other = float(short[held].sum()) / prompt, float(rest[held].sum()) / prompt
    return _verdict(other * (1.0 - late), policy, other * late)


def _verdict(capacity: float, policy: float, bandwidth: float) -> LostBy:
    parts: dict[Bound, float] = {"capacity": capacity, "policy": policy, "bandwidth": bandwidth}
    largest = max(parts, key=lambda name: parts[name])
    return LostBy(capacity, policy, bandwidth, largest if sum(parts.values()) >= LITTLE else "none")


def unlimited_tokens(requests: Requests, records: RunRecords, config: EngineConfig, who: Bools,
                     trie: ContentTrie | None = None) -> Ints:
    """Prompt tokens that a pool without limits would have found when each request was admitted.

    Parameters
    ----------
    requests : Requests
        What was asked.
    records : RunRecords
        When each was admitted, had its first token and ended.
    config : EngineConfig
        Block size, groups, checkpoints.
    who : bool array [n]
        Requests to look up; the others only write, and get 0.
    trie : ContentTrie, optional
        The content of the requests, where it has been sorted already.

    Notes
    -----
    A prompt counts as written when its first token is out, an output when its request has ended. Checkpoints lie at
    each prompt's last boundary, at junctions that its lookup has seen, and at every multiple of the retention interval,
    also where the engine would have skipped some inside a chunk.

    Examples
    --------
    >>> from kvsim.engine.reference import run
    >>> from kvsim.steptime.base import LinearStepTime
    >>> from kvsim.workload.requests import Row, Workload, requests_from_rows
    >>> asked = requests_from_rows([Row([(c, 40)], 1, 9, arrival_s=50.0 * k) for k, c in enumerate((0, 1, 0))])
    >>> config = EngineConfig(14, 4, 8, 64, 1000)
    >>> records = run(Workload(asked), config, LinearStepTime(1.0, 0.0, 0.0)).records
    >>> records.cached_tokens.tolist(), unlimited_tokens(asked, records, config, np.ones(3, bool)).tolist()
    ([0, 0, 12], [0, 0, 36])
    """
    return _Replay(requests, config, trie or build_trie(requests, config.block_tokens)).play(records, who)


class _Replay:
    """A cache that forgets nothing, by chains of content.

    Who writes blocks of a chain has written all blocks above it, so paths are followed from the leaf upwards, and only
    as far as something is new.
    """

    def __init__(self, requests: Requests, config: EngineConfig, trie: ContentTrie) -> None:
        block, interval = config.block_tokens, config.retention_interval_tokens
        self.block_tokens, self.trie, self.has_states = block, trie, bool(config.state_groups)
        self.step = (1 if interval is None else interval // block) if self.has_states else 0
        self.full: list[int] = (requests.prompt_tokens // block).tolist()
        self.last: list[int] = ((requests.prompt_tokens - 1) // block).tolist()
        self.written = [0] * len(trie.start_block)
        self.checkpoints: dict[int, list[int]] = {}
        self.junction: dict[int, int] = {}

    def play(self, records: RunRecords, who: Bools) -> Ints:
        """Lookups and writes in order of time; a write before the lookups of its instant."""
        num = len(who)
        found = np.zeros(num, np.int64)
        placed = np.array(self.trie.leaf, np.int64) >= 0
        fills = np.array(self.trie.num_blocks, np.int64) > np.array(self.full, np.int64)
        times_s = np.concatenate([records.first_token_s, records.finish_s, records.admitted_s])
        counts = np.concatenate([placed, placed & fills, placed & (who | self.has_states)])
        events = np.flatnonzero(counts & np.isfinite(times_s))
        events = events[np.argsort(times_s[events], kind="stable")]
        for what, row in zip((events // num).tolist(), (events % num).tolist(), strict=True):
            if what == 2:
                found[row] = self._look_up(row)
            else:
                self._write(row, is_prompt=not what)
        return np.where(who, found, 0)

    def _look_up(self, row: int) -> int:
        """Tokens found; notes where a shared prefix without a checkpoint ends."""
        start, parent, written = self.trie.start_block, self.trie.parent, self.written
        chain, end, at = self.trie.leaf[row], self.last[row], 0
        while chain >= 0:
            at = min(written[chain], end)
            if at > start[chain]:
                break
            end, at, chain = min(end, start[chain]), 0, parent[chain]
        length = at
        if self.has_states and at:
            length = self._last_checkpoint(chain, at)
            if length < at:
                self.junction[row] = at
        return length * self.block_tokens

    def _last_checkpoint(self, chain: int, limit: int) -> int:
        """The last checkpoint at or before block `limit`, on the path that ends in a chain."""
        while chain >= 0:
            ends = self.checkpoints.get(chain)
            if ends and ends[0] <= limit:
                return ends[-1] if ends[-1] <= limit else ends[bisect_right(ends, limit) - 1]
            limit = min(limit, self.trie.start_block[chain])
            chain = self.trie.parent[chain]
        return 0

    def _write(self, row: int, is_prompt: bool) -> None:
        """A prompt's full blocks, or all that the request has filled, and the checkpoints in them."""
        start, written = self.trie.start_block, self.written
        chain, end = self.trie.leaf[row], self.full[row] if is_prompt else self.trie.num_blocks[row]
        while chain >= 0:
            if end > start[chain]:
                if written[chain] >= end:
                    break
                if self.step:
                    self._keep_regular(chain, max(written[chain], start[chain]), end)
                written[chain], end = end, start[chain]
            chain = self.trie.parent[chain]
        if self.has_states:
            for position in (self.last[row] if is_prompt else 0, self.junction.get(row, 0)):
                if position:
                    self._keep(row, position)

    def _keep_regular(self, chain: int, after: int, end: int) -> None:
        """The checkpoints in newly written blocks that lie at multiples of the retention interval."""
        first = (after // self.step + 1) * self.step
        self.checkpoints.setdefault(chain, []).extend(range(first, end + 1, self.step))

    def _keep(self, row: int, position: int) -> None:
        """A checkpoint of a request; its last boundary is kept with its prompt."""
        chain = self.trie.leaf[row]
        while self.trie.start_block[chain] >= position:
            chain = self.trie.parent[chain]
        ends = self.checkpoints.setdefault(chain, [])
        if not ends or ends[-1] < position:
            ends.append(position)
        elif ends[bisect_left(ends, position)] != position:
            insort(ends, position)
