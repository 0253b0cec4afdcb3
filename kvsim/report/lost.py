"""What the hit rate lacks of the ideal one, by reason: capacity, policy or bandwidth."""

from __future__ import annotations

from bisect import bisect_right, insort

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
    """A cache that forgets nothing, by chains of content."""

    def __init__(self, requests: Requests, config: EngineConfig, trie: ContentTrie) -> None:
        self.config, self.trie = config, trie
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.end: dict[int, int] = {}
        self.checkpoints: dict[int, list[int]] = {}
        self.junction: dict[int, int] = {}

    def play(self, records: RunRecords, who: Bools) -> Ints:
        """Lookups and writes in order of time; a write before the lookups of its instant."""
        found = np.zeros(len(self.prompt), np.int64)
        asked: list[bool] = (who | bool(self.config.state_groups)).tolist()
        fills = np.array(self.trie.num_blocks) > records.prompt_tokens // self.config.block_tokens
        finish_s = np.where(fills, records.finish_s, np.nan)
        times_s = np.concatenate([records.first_token_s, finish_s, records.admitted_s])
        kind = np.repeat([0, 1, 2], len(found))
        for at in np.lexsort((kind, times_s))[:int(np.isfinite(times_s).sum())].tolist():
            what, row = divmod(at, len(found))
            if self.trie.leaf[row] < 0:
                continue
            if what == 2 and asked[row]:
                found[row] = self._look_up(row)
            elif what < 2:
                self._write(row, is_prompt=not what)
        return np.where(who, found, 0)

    def _look_up(self, row: int) -> int:
        """Tokens found; notes where a shared prefix without a checkpoint ends."""
        limit, at = (self.prompt[row] - 1) // self.config.block_tokens, 0
        path = self.trie.path(row)
        for chain, end in path:
            end = min(end, limit)
            if end <= at:
                break
            at = max(min(self.end.get(chain, 0), end), at)
            if at < end:
                break
        length = at
        if self.config.state_groups:
            length = self._last_checkpoint(path, at)
            self.junction[row] = at if length < at else 0
        return length * self.config.block_tokens

    def _last_checkpoint(self, path: list[tuple[int, int]], limit: int) -> int:
        for chain, end in reversed(path):
            ends = self.checkpoints.get(chain, [])
            k = bisect_right(ends, min(end, limit))
            if k:
                return ends[k - 1]
        return 0

    def _write(self, row: int, is_prompt: bool) -> None:
        """A prompt's full blocks, or all that the request has filled."""
        block = self.config.block_tokens
        full = self.prompt[row] // block if is_prompt else self.trie.num_blocks[row]
        start = 0
        kept = self._kept(row, full) if self.config.state_groups else set[int]()
        for chain, end in self.trie.path(row):
            end = min(end, full)
            if end <= start:
                break
            self.end[chain] = max(self.end.get(chain, 0), end)
            for position in kept:
                if start < position <= end:
                    self._keep(chain, position)
            start = end

    def _kept(self, row: int, full: int) -> set[int]:
        """Blocks after which a request leaves checkpoints."""
        interval, block = self.config.retention_interval_tokens, self.config.block_tokens
        kept = {(self.prompt[row] - 1) // block, self.junction.get(row, 0)}
        step = 1 if interval is None else interval // block
        return kept | set(range(step, full + 1, step)) if step else kept

    def _keep(self, chain: int, position: int) -> None:
        ends = self.checkpoints.setdefault(chain, [])
        k = bisect_right(ends, position)
        if not k or ends[k - 1] != position:
            insort(ends, position)
