"""One replica of a cluster: an engine that is handed its requests one by one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from kvsim.cluster.ranks import Lockstep, RankCore, RankStep, rank_kind
from kvsim.cluster.shared import Member
from kvsim.engine.core import core_kind, needs_plain
from kvsim.engine.core_loop import Core
from kvsim.engine.core_records import Share
from kvsim.engine.core_tiers import TieredCore
from kvsim.engine.reference import Plain, check_config
from kvsim.engine.types import EngineConfig, RunTotals, Timeline
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.requests import Workload

Fidelity = Literal["core", "reference"]


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What one replica is.

    Attributes
    ----------
    config : EngineConfig
        Pool and limits.
    step_time : StepTimeModel
        How long its steps take.
    fidelity : "core" or "reference"
        Which engine plays it.
    kind : str
        Name of its hardware, for tables.
    ranks : int
        Attention-DP ranks, each with a pool of `config`.
    in_step : bool
        Whether the ranks step together.
    rank_step_s : callable, optional
        Duration of a rank's step where loads differ, see `kvsim.steptime.roofline.RooflineStepTime.rank_step_s`; else
        every rank's step lasts as if all computed as much as it does.
    engine : type of Core, optional
        Another fast engine than the one that the configuration asks for.
    weight : float
        Its share of the requests, relative to the others', for routers that have weights.
    """

    config: EngineConfig
    step_time: StepTimeModel
    fidelity: Fidelity = "core"
    kind: str = ""
    ranks: int = 1
    in_step: bool = True
    rank_step_s: RankStep | None = None
    engine: type[Core] | None = None
    weight: float = 1.0


class Driver(Protocol):
    """What goes on with one engine, or several together."""

    sure_s: float

    def advance(self, sure_s: float) -> float:
        """Go on as far as is certain when all requests up to `sure_s` are there; when to be called again."""
        ...


class Engine(Driver, Protocol):
    """What a cluster needs of an engine; `kvsim.engine.core_loop.Core` and `kvsim.engine.reference.Plain` are some."""

    @property
    def now_s(self) -> float:
        """Time [s] after the last step."""
        ...

    def cached_blocks(self, row: int) -> tuple[int, int]:
        """Leading blocks of a prompt that are in the pool now, and those behind them in lower tiers."""
        ...

    def num_states(self) -> int:
        """Change points noted so far."""
        ...

    def state(self, k: int) -> tuple[float, int, int]:
        """Time, running requests and used blocks at change point `k`."""
        ...

    def close(self) -> tuple[RunTotals, Timeline]:
        """Write down what requests have got that are not over; totals and timeline."""
        ...


class Feed:
    """Requests handed over to one replica, as its engine sees them.

    Parameters
    ----------
    source : Arrivals
        Where all requests of the cluster come from.

    Attributes
    ----------
    until_s : float
        When the replica stops [s]: the end of the run, or a failure before it.
    soon_s : float
        Time of the next request that is known of [s]; inf without any.
    ended : list of (float, int)
        When requests ended [s], and which: the cluster takes them from here.

    Examples
    --------
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> feed = Feed(Arrivals(Workload(requests_from_rows([Row([(0, 9)], 1, 0), Row([(1, 9)], 1, 1)]))))
    >>> feed.hand_over(1, 2.5)
    >>> feed.next_s(), feed.pop_until(2.0), feed.pop_until(3.0), feed.next_s()
    (2.5, [], [1], inf)
    """

    def __init__(self, source: Arrivals) -> None:
        self.arrival_s, self.num_left = source.arrival_s, source.num_left
        self.until_s, self.clock_start_s = source.until_s, source.clock_start_s
        self.soon_s = math.inf
        self.ended: list[tuple[float, int]] = []
        self.driver: Driver | None = None
        self._queue: deque[tuple[float, int]] = deque()

    def hand_over(self, row: int, at_s: float) -> None:
        """A request comes to this replica; times never fall."""
        self._queue.append((at_s, row))
        self.soon_s = self._queue[0][0]

    def next_s(self) -> float:
        """Time of the next one that is known of; inf without any."""
        return self.soon_s

    def pop_until(self, now_s: float) -> list[int]:
        """Those that have come by `now_s`."""
        queue, found = self._queue, list[int]()
        while queue and queue[0][0] <= now_s:
            found.append(queue.popleft()[1])
        self.soon_s = queue[0][0] if queue else math.inf
        return found

    def wake_s(self, now_s: float) -> float:
        """When the next one comes, if nothing else happens until then."""
        del now_s
        return self.next_s()

    def finish(self, i: int, now_s: float) -> None:
        """One has ended: what comes next may depend on it, so nothing after it is certain."""
        self.ended.append((now_s, i))
        if self.driver is not None:
            self.driver.sure_s = -math.inf


class Replica:
    """A replica, or one rank of it, over all its lives: each begins with an empty cache.

    Attributes
    ----------
    spec : ReplicaSpec
        What it is.
    engine, driver, feed : Engine or None, Driver or None, Feed or None
        Its present life, and what makes it go on (of ranks, the first one's does for all); none while it is down.
    ended : list of (float, int)
        When requests of this life ended [s], and which, until the cluster has taken them from here.
    open_rows : dict of int to None
        Requests that it has and that have not ended, in the order in which they came.
    lives : list of (RunTotals, Timeline)
        Lives that are over.
    up_s : list of (float, float)
        When it was up [s]; the last end is inf while it is.
    member : Member or None
        Its part in a tier that it shares with others.
    """

    def __init__(self, spec: ReplicaSpec) -> None:
        check_config(spec.config)
        self.spec = spec
        self.member: Member | None = None
        self.engine: Engine | None = None
        self.driver: Driver | None = None
        self.feed: Feed | None = None
        self.open_rows: dict[int, None] = {}
        self.ended: list[tuple[float, int]] = []
        self.lives: list[tuple[RunTotals, Timeline]] = []
        self.up_s: list[tuple[float, float]] = []

    @property
    def is_up(self) -> bool:
        """Whether it takes requests."""
        return self.engine is not None

    def start(self, workload: Workload, share: Share, feed: Feed, at_s: float) -> None:
        """Begin a life with an empty cache."""
        engine = self._kind()(workload, self.spec.config, self.spec.step_time, None, share)
        if self.member is not None:
            self.member.let_in(engine)
        self.engine = self.driver = feed.driver = engine
        self.feed, self.ended = feed, feed.ended
        self.up_s.append((at_s, math.inf))

    def _kind(self) -> type[Core] | type[Plain]:
        spec = self.spec
        if spec.engine is not None:
            return spec.engine
        if spec.ranks > 1 and spec.in_step:
            return rank_kind(spec.config)
        is_plain = spec.fidelity == "reference" or needs_plain(spec.config)
        return Plain if is_plain else core_kind(spec.config)

    def advance(self, sure_s: float) -> float:
        """Let the engine go on; see `Engine.advance`."""
        return math.inf if self.driver is None else self.driver.advance(sure_s)

    def hand_over(self, row: int, at_s: float) -> float:
        """A request comes; the end [s] of the step that is under way."""
        assert self.feed is not None
        assert self.engine is not None
        self.feed.hand_over(row, at_s)
        self.open_rows[row] = None
        return self.engine.now_s

    def fail(self, at_s: float) -> list[int]:
        """End a life before the run ends; the requests that it still had."""
        if self.member is not None and isinstance(self.engine, Plain | TieredCore) and self.engine.tiers is not None:
            self.engine.tiers.abandon(at_s)
        self.end(at_s)
        totals, timeline = self.lives[-1]
        self.lives[-1] = totals, _cut(timeline, at_s)
        self.engine = self.driver = self.feed = None
        left = [*self.open_rows]
        self.open_rows.clear()
        return left

    def end(self, at_s: float) -> None:
        """Write down a life, if there is one."""
        if self.engine is not None:
            self.lives.append(self.engine.close())
            self.up_s[-1] = (self.up_s[-1][0], at_s)


def _cut(timeline: Timeline, at_s: float) -> Timeline:
    """What was before a time, and nothing from then on."""
    kept = int(np.searchsorted(timeline.time_s, at_s))
    counts = [timeline.running, timeline.waiting, timeline.used_blocks, timeline.cached_blocks]
    return Timeline(np.append(timeline.time_s[:kept], at_s), *(np.append(c[:kept], 0) for c in counts))


def join(ranks: Sequence[Replica]) -> None:
    """Let ranks that have just been started step together, led by the first."""
    engines = [rank.engine for rank in ranks if isinstance(rank.engine, RankCore)]
    driver = Lockstep(engines, ranks[0].spec.rank_step_s)
    for rank in ranks:
        assert rank.feed is not None
        rank.driver, rank.feed.driver = driver, driver
        rank.ended = rank.feed.ended = ranks[0].ended
