"""Co-simulation: several engines and one source of requests, in one order of time.

An engine may only make a step when all requests that come up to its start have been handed over. So each replica says
up to which time that must be sure before it can go on, and the one with the least such time goes on first. A request
that ends is told to the source when the time has come, never earlier, since others may end before it. Nobody is asked
more often than there are requests and changes of batches: steps and tokens pass inside the engines.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from kvsim.cache.content_trie import ContentTrie, build_trie
from kvsim.cluster.replica import Feed, Replica, ReplicaSpec, join
from kvsim.cluster.shared import members_of
from kvsim.engine.core_records import Columns, Share
from kvsim.engine.types import REFUSED, UNFINISHED
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.requests import Workload


class Fleet:
    """Replicas and the source of their requests.

    A replica with attention-DP ranks counts as so many of them: requests are handed to a rank.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.
    specs : sequence of ReplicaSpec
        The replicas, all of them up at the start unless `first_up` says otherwise.
    first_up : int, optional
        How many of them are up at the start.

    Attributes
    ----------
    source : Arrivals
        Requests as they come.
    columns : Columns
        What became of them.
    replicas : list of Replica
        Ranks of all replicas, one after the other; a replica without ranks is one.
    groups : list of range
        Which of them each replica consists of.
    replica_of : list of int
        Rank that has or had each request last; -1 = none.
    now_s : float
        Time [s] of the last event.
    on_end : callable
        Called with (row, replica, time) for every request that ends, after the source has been told.
    tell_source : callable
        What is done first when a request ends; a request that goes on elsewhere is not over for its client.
    outside_s : float
        When something is due outside that may be set while time passes (a request that waits before the router may go
        on): `advance` goes no further [s].
    num_calls : int
        How often replicas were told to go on.
    """

    def __init__(self, workload: Workload, specs: Sequence[ReplicaSpec], first_up: int | None = None) -> None:
        requests = workload.requests
        self.workload, self.source, self.columns = workload, Arrivals(workload), Columns(requests)
        self.replicas = [Replica(spec) for spec in specs for _ in range(spec.ranks)]
        self.groups: list[range] = []
        self._leader: list[int] = []
        for spec in specs:
            self.groups.append(range(len(self._leader), len(self._leader) + spec.ranks))
            first = len(self._leader)
            self._leader += [first] * spec.ranks if spec.in_step else [*range(first, first + spec.ranks)]
        self.replica_of = [-1] * len(requests)
        self.prompt_tokens: list[int] = requests.prompt_tokens.tolist()
        self.output_tokens: list[int] = requests.output_tokens.tolist()
        self.priority: list[int] = requests.priority.tolist()
        self.now_s, self.outside_s = 0.0, math.inf
        self.num_calls = self.num_lost_preemptions = 0
        self.on_end: Callable[[int, int, float], None] = _ignore
        self.tell_source: Callable[[int, float], None] = self.source.finish
        self._tries: dict[int, ContentTrie] = {}
        self._keys_s = [math.inf] * len(self.replicas)
        self._ended: list[tuple[float, int, int, int]] = []
        self._num_ended = 0
        self._is_warming = math.isnan(self.source.clock_start_s)
        self._stops_s = [math.inf] * len(self.replicas)
        members = members_of([replica.spec.config for replica in self.replicas], self.groups)
        for replica, member in zip(self.replicas, members, strict=True):
            replica.member = member
        for group in range(len(specs) if first_up is None else first_up):
            self.start(group, 0.0)

    def trie(self, block_tokens: int) -> ContentTrie:
        """Content of all requests in blocks of one size; made once."""
        if block_tokens not in self._tries:
            self._tries[block_tokens] = build_trie(self.workload.requests, block_tokens)
        return self._tries[block_tokens]

    def up(self) -> list[int]:
        """Replicas that take requests."""
        return [r for r, replica in enumerate(self.replicas) if replica.is_up]

    def start(self, group: int, at_s: float) -> None:
        """Bring a replica up, all ranks of it, with empty caches."""
        for r in self.groups[group]:
            replica, feed = self.replicas[r], Feed(self.source)
            feed.until_s = min(feed.until_s, self._stops_s[r])
            replica.start(self.workload, self.share_of(r, feed), feed, at_s)
            self._keys_s[r] = math.inf
        if len(self.groups[group]) > 1 and self.replicas[self.groups[group][0]].spec.in_step:
            join([self.replicas[r] for r in self.groups[group]])

    def num_open(self, group: int) -> int:
        """Requests that a replica has."""
        return sum([len(self.replicas[r].open_rows) for r in self.groups[group]])

    def is_done(self, now_s: float) -> bool:
        """Whether nothing is left to do here from a time on, whatever happens outside."""
        if self._ended or min(self._keys_s) < math.inf:
            return False
        if now_s >= self.source.until_s:
            return True
        return self.source.next_s() == math.inf and not any(replica.open_rows for replica in self.replicas)

    def share_of(self, r: int, feed: Feed) -> Share:
        """What a replica's engine gets of the requests, and where it writes."""
        trie = self.trie(self.replicas[r].spec.config.block_tokens)
        return Share(feed, self.columns, trie, self.prompt_tokens, self.output_tokens, self.priority)

    def plan_stop(self, group: int, at_s: float) -> None:
        """Say when a replica is going to be stopped, so that it does not go on beyond that."""
        for r in self.groups[group]:
            self._stops_s[r] = at_s
            feed = self.replicas[r].feed
            if feed is not None:
                feed.until_s = min(self.source.until_s, at_s)

    def stop(self, group: int, at_s: float) -> list[int]:
        """Take a replica down; the requests that it still had, which begin again wherever they are handed over."""
        gone = self.groups[group]
        self._ended[:] = [entry for entry in self._ended if entry[2] not in gone]
        heapq.heapify(self._ended)
        left: list[int] = []
        for r in gone:
            self._stops_s[r] = self._keys_s[r] = math.inf
            left += self.replicas[r].fail(at_s)
        for row in left:
            self._forget(row)
        return left

    def _forget(self, row: int) -> None:
        """A request is as if it had never been served."""
        columns = self.columns
        self.num_lost_preemptions += columns.preemptions[row]
        columns.admitted_s[row] = columns.first_token_s[row] = columns.finish_s[row] = math.nan
        columns.cached_tokens[row] = columns.external_tokens[row] = columns.output_tokens[row] = 0
        columns.preemptions[row], columns.status[row] = 0, UNFINISHED
        self.replica_of[row] = -1

    def hand_over(self, row: int, r: int, at_s: float) -> None:
        """Give a request to a replica."""
        busy_until_s = self.replicas[r].hand_over(row, at_s)
        self.replica_of[row] = r
        leader = self._leader[r]
        self._keys_s[leader] = min(self._keys_s[leader], max(at_s, busy_until_s))

    def advance(self, bound_s: float) -> float:
        """Let replicas go on until the next request comes from the source, no further than `bound_s`.

        Parameters
        ----------
        bound_s : float
            When something happens outside [s]; `outside_s`, if that is earlier, takes its place.

        Returns
        -------
        float
            When the next request comes, if that is before `bound_s`; else `bound_s`. inf when all is done.
        """
        if self.outside_s < bound_s:
            bound_s = self._bound_s(bound_s)
        keys_s, source, ended, replicas = self._keys_s, self.source, self._ended, self.replicas
        next_s = source.next_s()
        while True:
            key_s = min(keys_s)
            ended_s = ended[0][0] if ended else math.inf
            rest_s = ended_s if ended_s < next_s else next_s
            if bound_s < rest_s:
                rest_s = bound_s
            if key_s < rest_s:
                r = keys_s.index(key_s)
                keys_s[r] = math.inf
                other_s = min(keys_s)
                if other_s < rest_s:
                    rest_s = other_s
                self.num_calls += 1
                replica = replicas[r]
                keys_s[r] = replica.advance(key_s if rest_s <= key_s else math.nextafter(rest_s, 0.0))
                if replica.ended:
                    self._note_ends(replica.ended)
            elif ended_s <= next_s and ended_s <= bound_s and ended_s < math.inf:
                self._tell(heapq.heappop(ended))
                next_s = source.next_s()
                if self.outside_s < bound_s:
                    bound_s = self._bound_s(bound_s)
            else:
                if key_s == ended_s == self.outside_s == math.inf and not any(r.open_rows for r in replicas):
                    next_s = source.wake_s(self.now_s)
                return self._next_event_s(next_s, bound_s)

    def _bound_s(self, bound_s: float) -> float:
        """How far to go: nothing outside is due once the run is over."""
        return min(bound_s, self.outside_s) if self.outside_s < self.source.until_s else bound_s

    def _next_event_s(self, next_s: float, bound_s: float) -> float:
        """What `advance` returns, where a request could come next at `next_s`."""
        if next_s > bound_s:
            return bound_s
        if self._is_over(next_s):
            return math.inf
        self.now_s = max(self.now_s, next_s)
        return next_s

    def _note_ends(self, ends: list[tuple[float, int]]) -> None:
        """Requests end at times that may not have come yet."""
        for time_s, row in ends:
            self._num_ended += 1
            heapq.heappush(self._ended, (time_s, self._num_ended, self.replica_of[row], row))
        ends.clear()

    def _tell(self, end: tuple[float, int, int, int]) -> None:
        """A request ends now."""
        time_s, _, r, row = end
        self.now_s = time_s
        del self.replicas[r].open_rows[row]
        self.tell_source(row, time_s)
        self._look_at_warm_up()
        self.on_end(row, r, time_s)

    def refuse(self, row: int, reason: str, now_s: float) -> None:
        """A request ends as it comes."""
        self.columns.status[row], self.columns.refusals[row] = REFUSED, reason
        self.now_s = max(self.now_s, now_s)
        self.source.finish(row, now_s)
        self._look_at_warm_up()

    def _look_at_warm_up(self) -> None:
        """The end of the warm-up sets the end of the run: who meant to be called after that looks again."""
        if not self._is_warming or math.isnan(self.source.clock_start_s):
            return
        self._is_warming = False
        self._keys_s[:] = [min(key_s, self.now_s) if key_s < math.inf else key_s for key_s in self._keys_s]
        for replica, stop_s in zip(self.replicas, self._stops_s, strict=True):
            if replica.feed is not None:
                replica.feed.until_s = min(self.source.until_s, stop_s)
                replica.feed.clock_start_s = self.source.clock_start_s

    def _is_over(self, next_s: float) -> bool:
        """Whether the time is up before the next request is let in."""
        until_s = self.source.until_s
        if next_s >= until_s or math.isinf(next_s):
            return True
        engines = [replica.engine for replica in self.replicas if replica.engine is not None]
        return bool(engines) and until_s < math.inf and all(engine.now_s >= until_s for engine in engines)


def _ignore(row: int, replica: int, time_s: float) -> None:
    """Nobody listens."""
    del row, replica, time_s
