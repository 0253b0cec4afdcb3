"""What a router lets through: rates and requests in flight of traffic classes, as API tiers and gateways limit them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Requests, Workload
from kvsim.workload.sessions import CLASS_NAMES, PRIMER, WARMUP

Counted = Literal["total", "input", "output"]
Answer = Literal["in", "waits", "rejected"]
WARMING_CLASSES = (CLASS_NAMES[PRIMER], CLASS_NAMES[WARMUP])
"""Classes of requests that come before the traffic itself; nothing limits them."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A rate [1/s] and the most that may be taken at once after a pause."""

    rate_per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What is let through of one traffic class.

    Attributes
    ----------
    traffic_class : str or None
        Which requests; None = all.
    max_in_flight : float
        Most requests between being let in and their end; inf = any number.
    requests, tokens : Allowance or None
        Rates of requests and of tokens; None = any.
    counted : "total", "input" or "output"
        Which tokens of a request count: its prompt, its output or both.
    rejects : bool
        Whether a request that finds nothing left is rejected; else it waits in line.
    """

    traffic_class: str | None = None
    max_in_flight: float = math.inf
    requests: Allowance | None = None
    tokens: Allowance | None = None
    counted: Counted = "total"
    rejects: bool = False

    @property
    def name(self) -> str:
        """Whose limit it is."""
        return "all traffic" if self.traffic_class is None else f"class {self.traffic_class}"


@dataclass(frozen=True, slots=True)
class LimitedRun:
    """What limits did in a run.

    Attributes
    ----------
    wait_s : float array [n]
        Time [s] for which each request waited to be let in; 0 for one that did not, nan for one that never was let in.
    rejected : bool array [n]
        Which were rejected.
    num_waiting : int
        Requests that still wait when the run ends.
    """

    wait_s: NDArray[np.float64]
    rejected: NDArray[np.bool_]
    num_waiting: int


class TokenBucket:
    """A bucket that fills at a rate up to its size, full at the start, from which requests take.

    Parameters
    ----------
    allowance : Allowance
        Rate [1/s] and size.

    Notes
    -----
    Kept as the time at which it is full again, the generic cell rate algorithm's form: no level is ever counted down
    and up again, so that what is ready at a time is ready at that very time. In every window of ``t`` seconds at most
    ``rate t + burst`` is taken. (ITU-T I.371, annex A; API providers: https://docs.claude.com/en/api/rate-limits.)

    Examples
    --------
    >>> bucket = TokenBucket(Allowance(rate_per_s=2.0, burst=4.0))
    >>> bucket.take(3.0, now_s=10.0)
    >>> bucket.ready_s(1.0), bucket.ready_s(3.0), bucket.ready_s(5.0)
    (10.0, 11.0, inf)
    """

    def __init__(self, allowance: Allowance) -> None:
        self._rate, self._burst = allowance.rate_per_s, allowance.burst
        self._full_s = -math.inf

    def ready_s(self, amount: float) -> float:
        """When so much can be taken at the earliest [s]; inf if it is more than the bucket holds."""
        return math.inf if amount > self._burst else self._full_s - (self._burst - amount) / self._rate

    def take(self, amount: float, now_s: float) -> None:
        """Take something, at or after the time at which it is ready."""
        self._full_s = max(self._full_s, now_s) + amount / self._rate


class _Meter:
    """One limit at work."""

    def __init__(self, limit: Limit, requests: Requests) -> None:
        self.limit, self.in_flight = limit, 0
        self._buckets: list[tuple[TokenBucket, list[float] | None]] = []
        if limit.requests is not None:
            self._buckets.append((TokenBucket(limit.requests), None))
        if limit.tokens is not None:
            prompt, output = requests.prompt_tokens, requests.output_tokens
            amounts = {"total": prompt + output, "input": prompt, "output": output}[limit.counted]
            self._buckets.append((TokenBucket(limit.tokens), amounts.astype(np.float64).tolist()))

    def rate_ready_s(self, row: int) -> float:
        """When the rates let a request in [s]; inf = never."""
        return max([b.ready_s(1.0 if amounts is None else amounts[row]) for b, amounts in self._buckets],
                   default=-math.inf)

    def ready_s(self, row: int) -> float:
        """When a request can be let in [s]; inf as long as too many are in flight."""
        return math.inf if self.in_flight >= self.limit.max_in_flight else self.rate_ready_s(row)

    def take(self, row: int, now_s: float) -> None:
        """A request is let in."""
        self.in_flight += 1
        for bucket, amounts in self._buckets:
            bucket.take(1.0 if amounts is None else amounts[row], now_s)


class Limits:
    """All limits of a run, and who waits in line for them.

    A request must be let in by every limit of its class and by those of all traffic. Limits that reject are asked as it
    comes; those that let wait come after them, with one line a class, first come first served. A request that is
    larger than a bucket could never pass and is rejected whatever the limit does with others.

    Parameters
    ----------
    limits : sequence of Limit
        At least one.
    workload : Workload
        Whose requests they are; warming requests are not limited.
    """

    def __init__(self, limits: Sequence[Limit], workload: Workload) -> None:
        requests = workload.requests
        meters = [_Meter(limit, requests) for limit in limits]
        self._meters_of = [[m for m in meters if m.limit.traffic_class in (None, name)
                            and name not in WARMING_CLASSES] for name in requests.class_names]
        self._class_of: list[int] = requests.traffic_class.tolist()
        self._free = set(workload.warming.tolist())
        self._lines: list[deque[tuple[int, int, float]]] = [deque() for _ in requests.class_names]
        self._num_queued = 0
        self._inside: set[int] = set()
        self.num_waiting = 0
        self.wait_s: list[float] = [0.0] * len(requests)
        self.rejected: dict[int, str] = {}

    def _meters(self, row: int) -> list[_Meter]:
        return [] if row in self._free else self._meters_of[self._class_of[row]]

    def comes(self, row: int, now_s: float) -> Answer:
        """A request comes: it may go on, has to wait, or is rejected (`rejected` says why)."""
        meters = self._meters(row)
        reason = _reason([m for m in meters if m.limit.rejects], [m for m in meters if not m.limit.rejects], row, now_s)
        if reason:
            self.rejected[row], self.wait_s[row] = reason, math.nan
            return "rejected"
        for meter in meters:
            if meter.limit.rejects:
                meter.take(row, now_s)
        self._inside.add(row)
        line = self._lines[self._class_of[row]]
        if meters and (line or self._ready_s(row) > now_s):
            line.append((self._num_queued, row, now_s))
            self._num_queued += 1
            self.num_waiting += 1
            return "waits"
        self._let_in(row, now_s)
        return "in"

    def ends(self, row: int) -> None:
        """A request that was let in has ended, whatever became of it."""
        if row in self._inside:
            self._inside.remove(row)
            for meter in self._meters(row):
                meter.in_flight -= 1

    def let_in(self, now_s: float) -> list[int]:
        """Requests that have waited and go on now, those that came first before others."""
        found: list[int] = []
        while self.num_waiting:
            heads = [line[0] for line in self._lines if line and self._ready_s(line[0][1]) <= now_s]
            if not heads:
                break
            _, row, came_s = min(heads)
            self._lines[self._class_of[row]].popleft()
            self.num_waiting -= 1
            self.wait_s[row] = now_s - came_s
            self._let_in(row, now_s)
            found.append(row)
        return found

    def next_s(self) -> float:
        """When rates let somebody in who waits now [s]; inf if nobody does, or only the end of a request helps."""
        if not self.num_waiting:
            return math.inf
        return min([self._ready_s(line[0][1]) for line in self._lines if line])

    def result(self) -> LimitedRun:
        """What was done."""
        waits = np.array(self.wait_s)
        rejected = np.zeros(len(waits), bool)
        rejected[list(self.rejected)] = True
        waits[[row for line in self._lines for _, row, _ in line]] = np.nan
        return LimitedRun(waits, rejected, self.num_waiting)

    def _ready_s(self, row: int) -> float:
        """When limits that let wait would let a request in [s]."""
        return max([m.ready_s(row) for m in self._meters(row) if not m.limit.rejects], default=-math.inf)

    def _let_in(self, row: int, now_s: float) -> None:
        for meter in self._meters(row):
            if not meter.limit.rejects:
                meter.take(row, now_s)


def _reason(rejecting: list[_Meter], queueing: list[_Meter], row: int, now_s: float) -> str:
    """Why a request is rejected; empty if it is not."""
    for meter in (*rejecting, *queueing):
        if math.isinf(meter.rate_ready_s(row)) and meter.rate_ready_s(row) > 0:
            return f"more tokens than the limit of {meter.limit.name} lets through at once"
    for meter in rejecting:
        if meter.in_flight >= meter.limit.max_in_flight:
            return f"{meter.in_flight} requests in flight, all that the limit of {meter.limit.name} allows"
        if meter.rate_ready_s(row) > now_s:
            return f"the rate limit of {meter.limit.name} is used up"
    return ""
