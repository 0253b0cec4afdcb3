"""What routers may know of a cluster: snapshots of a stated age, and where prefixes are."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np

from kvsim.cache.content_trie import ContentTrie, Path
from kvsim.cluster.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Status:
    """A replica as a snapshot shows it: requests in its queue and in its batch, blocks that requests hold, all."""

    waiting: int
    running: int
    used_blocks: int
    num_blocks: int


class View:
    """The cluster as one router sees it.

    Parameters
    ----------
    fleet : Fleet
        The cluster.
    age_s : float
        Age [s] of its snapshots: it sees loads as they were this long ago.
    rng : random.Random
        Its dice.

    Attributes
    ----------
    load : list of int
        Requests that each replica had (waiting or running) when the snapshot was taken.
    session, prompt_tokens : list of int
        Of every request.
    block_tokens : int
        Block size [tokens] that a router reckons in: the smallest of all replicas.

    Notes
    -----
    Running requests and used blocks are those of the last change of a replica's batch before the snapshot; blocks that
    decoding has begun since are not in them.
    """

    def __init__(self, fleet: Fleet, age_s: float, rng: random.Random) -> None:
        self.fleet, self.age_s, self.rng = fleet, age_s, rng
        self.load = [0] * len(fleet.replicas)
        self.session: list[int] = fleet.workload.requests.session.tolist()
        self.prompt_tokens = fleet.prompt_tokens
        self.block_tokens = min([replica.spec.config.block_tokens for replica in fleet.replicas])
        self._log: deque[tuple[float, int, int]] = deque()
        self._rows = [0] * len(fleet.replicas)

    @property
    def num_replicas(self) -> int:
        """All replicas, those that are down too."""
        return len(self.load)

    def look(self, now_s: float) -> None:
        """Take the snapshot that is `age_s` old now."""
        log, at_s = self._log, now_s - self.age_s
        while log and log[0][0] <= at_s:
            _, r, change = log.popleft()
            self.load[r] += change

    def note(self, r: int, change: int, at_s: float) -> None:
        """A replica has one request more or less."""
        if self.age_s:
            self._log.append((at_s, r, change))
        else:
            self.load[r] += change

    def forget(self, r: int) -> None:
        """A replica has failed: what it had is gone."""
        self._log = deque(entry for entry in self._log if entry[1] != r)
        self.load[r] = self._rows[r] = 0

    def status(self, r: int, now_s: float) -> Status:
        """A replica as it was `age_s` before `now_s`."""
        replica = self.fleet.replicas[r]
        engine, at_s, k = replica.engine, now_s - self.age_s, self._rows[r]
        num_blocks = replica.spec.config.num_blocks - 1
        if engine is None or not engine.num_states() or engine.state(k)[0] > at_s:
            return Status(self.load[r], 0, 0, num_blocks)
        last = engine.num_states() - 1
        while k < last and engine.state(k + 1)[0] <= at_s:
            k += 1
        self._rows[r] = k
        _, running, used = engine.state(k)
        return Status(max(self.load[r] - running, 0), running, used, num_blocks)

    def cached_tokens(self, row: int, r: int) -> tuple[int, int]:
        """Leading prompt tokens that a replica has in its pool now, and those behind them in its lower tiers."""
        replica = self.fleet.replicas[r]
        if replica.engine is None:
            return 0, 0
        block = replica.spec.config.block_tokens
        upper, lower = replica.engine.cached_blocks(row)
        return upper * block, lower * block

    def trie(self) -> ContentTrie:
        """Content in blocks of the size that a router reckons in."""
        return self.fleet.trie(self.block_tokens)

    def private(self) -> bytearray:
        """For every request, 1 if no other one shares a block with it."""
        trie = self.trie()
        leaf = np.array(trie.leaf, np.int64)
        alone = (np.array([*trie.users, 1]) == 1) & (np.array([*trie.parent, -1]) < 0)
        return bytearray(alone[leaf].astype(np.uint8).tobytes())


class RoutedPrefixes:
    """Prefixes that a router has sent to each replica: what it believes to be there.

    Parameters
    ----------
    view : View
        The cluster.
    capacity_tokens : list of float
        How much it remembers of each replica; the least recently sent goes first.

    Notes
    -----
    It works on chains of the content trie, so that a long prompt costs as little as a short one.
    """

    def __init__(self, view: View, capacity_tokens: list[float]) -> None:
        self._trie, self._block = view.trie(), view.block_tokens
        self._prompt_tokens = view.prompt_tokens
        self._most_blocks = [tokens / self._block for tokens in capacity_tokens]
        self._ends: list[dict[int, int]] = [{} for _ in capacity_tokens]
        self.num_blocks = [0] * len(capacity_tokens)

    def path(self, row: int, most_tokens: float = float("inf")) -> Path:
        """Chains of the full blocks of a prompt, or of its first tokens."""
        limit = int(min(self._prompt_tokens[row], most_tokens)) // self._block
        start = self._trie.start_block
        return [(chain, min(end, limit)) for chain, end in self._trie.path(row) if start[chain] < limit]

    def matched_blocks(self, path: Path, r: int) -> int:
        """Leading blocks of a path that were sent to a replica."""
        ends, matched = self._ends[r], 0
        for chain, end in path:
            known = ends.get(chain, 0)
            if known < end:
                return max(matched, known)
            matched = end
        return matched

    def note(self, path: Path, r: int) -> None:
        """A prompt goes to a replica."""
        ends, start = self._ends[r], self._trie.start_block
        for chain, end in reversed(path):
            known = ends.pop(chain, start[chain])
            ends[chain] = max(known, end)
            self.num_blocks[r] += max(end - known, 0)
        while self.num_blocks[r] > self._most_blocks[r]:
            oldest = next(iter(ends))
            self.num_blocks[r] -= ends.pop(oldest) - start[oldest]

    def forget(self, r: int) -> None:
        """A replica has lost its cache."""
        self._ends[r].clear()
        self.num_blocks[r] = 0
