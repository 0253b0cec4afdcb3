"""Hit rates of a trace by eviction policy and capacity."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.cache.curves.belady import belady_hits
from kvsim.cache.curves.delay import delayed_hits
from kvsim.cache.curves.fifo import fifo_hits
from kvsim.cache.curves.lanes import lanes_order
from kvsim.cache.curves.lfu import lfu_hits
from kvsim.cache.curves.lru import Reuses, lru_reuses
from kvsim.cache.curves.paths import Paths, Segments, paths_of, segments_of
from kvsim.cache.curves.s3fifo import s3fifo_hits
from kvsim.errors import Problem, TraceError, nearest
from kvsim.units import parse
from kvsim.workload.requests import Floats, Ints
from kvsim.workload.table import Trace

POLICIES = ("lru", "lru_tail", "fifo", "lfu", "belady")
"""Eviction policies: LRU touched head first or tail first, FIFO, LFU with in-cache counts, Belady's optimum."""

OFFERED = (*POLICIES, "s3fifo")
"""Those and S3-FIFO, which goes block by block and so takes minutes on traces of many million blocks: only if asked."""

DEFAULT_CAPACITIES = (1_000, 3_000, 10_000, 30_000, 100_000, math.inf)
"""Capacities [blocks] if none are asked for."""


@dataclass(frozen=True, slots=True)
class CurveRow:
    """Hits of one policy at one capacity.

    Attributes
    ----------
    policy : str
        One of `OFFERED`, or "any" where the policy makes no difference (infinite capacity with a delay).
    capacity_blocks : float
        Capacity [blocks]; inf = unlimited.
    block_hit_rate : float
        Blocks of leading resident runs / all prompt blocks.
    token_hit_rate : float
        The same in tokens: min(blocks x block size, prompt) / all prompt tokens.
    token_full_hit_rate : float
        The same, at most the full blocks of all but a prompt's last token, as serving engines count.
    block_plain_hit_rate : float
        Hits of the accesses one by one, without the prefix rule, / all prompt blocks.
    hit_blocks, plain_hits : int
        The two numbers of blocks.
    """

    policy: str
    capacity_blocks: float
    block_hit_rate: float
    token_hit_rate: float
    token_full_hit_rate: float
    block_plain_hit_rate: float
    hit_blocks: int
    plain_hits: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; unlimited capacity is ``"inf"``."""
        capacity = "inf" if math.isinf(self.capacity_blocks) else int(self.capacity_blocks)
        return {"policy": self.policy, "capacity_blocks": capacity, "block_hit_rate": self.block_hit_rate,
                "token_hit_rate": self.token_hit_rate, "token_full_hit_rate": self.token_full_hit_rate,
                "block_plain_hit_rate": self.block_plain_hit_rate, "hit_blocks": self.hit_blocks,
                "plain_hits": self.plain_hits}


@dataclass(frozen=True, slots=True)
class Curves:
    """Hit rates of a trace.

    Attributes
    ----------
    rows : tuple of CurveRow
        By capacity, then policy, as asked.
    label : str
        Name of the trace.
    num_requests, num_blocks, num_unique_blocks, block_tokens : int
        Requests, block accesses, distinct blocks, tokens of a block.
    played : str
        Order and times of the requests, in words.
    """

    rows: tuple[CurveRow, ...]
    label: str
    num_requests: int
    num_blocks: int
    num_unique_blocks: int
    block_tokens: int
    played: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data under stable names."""
        return {"trace": self.label, "num_requests": self.num_requests, "num_blocks": self.num_blocks,
                "num_unique_blocks": self.num_unique_blocks, "block_tokens": self.block_tokens,
                "played": self.played, "rows": [row.to_dict() for row in self.rows]}

    def to_csv(self) -> str:
        """Rows as comma-separated values with a header."""
        out = io.StringIO()
        rows = [row.to_dict() for row in self.rows]
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["policy"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def text(self) -> str:
        """A table for people."""
        head = (f"{self.label}: {self.num_requests:,} requests, {self.num_blocks:,} blocks of {self.block_tokens} "
                f"tokens, {self.num_unique_blocks:,} distinct; {self.played}")
        lines = [head, f"{'policy':9} {'capacity':>11} {'tokens':>15} {'block hit':>10} {'token hit':>10} "
                       f"{'full hit':>10} {'plain hit':>10}"]
        for row in self.rows:
            capacity = row.to_dict()["capacity_blocks"]
            tokens = "inf" if capacity == "inf" else f"{capacity * self.block_tokens:,}"
            shown = capacity if capacity == "inf" else f"{capacity:,}"
            lines.append(f"{row.policy:9} {shown:>11} {tokens:>15} {row.block_hit_rate:10.4%} "
                         f"{row.token_hit_rate:10.4%} {row.token_full_hit_rate:10.4%} {row.block_plain_hit_rate:10.4%}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Play:
    """In which order a trace is asked, and how long a block takes to become usable.

    Attributes
    ----------
    lanes : int or None
        Closed population of this many live sessions with gaps of at most 300 s and no service time; None: as
        recorded (sessions without a common clock one after the other).
    delay_s : float or None
        Delay [s] of an infinite cache, see `kvsim.cache.curves.delay`; None: blocks are usable at once.
    strict : bool
        Blocks are usable only for requests that arrive later than the one that brought them; not with `delay_s`.
    """

    lanes: int | None = None
    delay_s: float | None = None
    strict: bool = False

    @property
    def delayed(self) -> bool:
        """Whether blocks are not usable at once."""
        return self.strict or self.delay_s is not None

    def words(self, trace: Trace) -> str:
        """What is played, in words."""
        if self.lanes is not None:
            order = f"{self.lanes} live sessions, gaps up to 300 s"
        else:
            order = "recorded order" if trace.clock == "common" else "sessions one after the other"
        late = "usable by later arrivals" if self.strict else f"usable after {self.delay_s:g} s" if self.delayed else ""
        return f"{order}, blocks {late}" if late else order


def run_curves(trace: Trace, policies: Sequence[str] = POLICIES,
               capacities: Sequence[float] = DEFAULT_CAPACITIES, play: Play | None = None,
               block_tokens: int | None = None) -> Curves:
    """Hit rates of a trace by policy and capacity.

    Parameters
    ----------
    trace : Trace
        What was asked; must know contents.
    policies : sequence of str
        Of `OFFERED`; ``opt`` is another name of ``belady``.
    capacities : sequence of float
        Blocks, >= 1; inf = unlimited.
    play : Play, optional
        Order of requests and delay of the cache; as recorded and usable at once by default.
    block_tokens : int, optional
        Tokens of a block for traces without block ids (16 by default).

    Returns
    -------
    Curves
        With a delay one row of policy "any" at unlimited capacity, else a row for each capacity and policy.

    Raises
    ------
    TraceError
        Unknown policy, capacity below one block, a trace that knows lengths only.

    Notes
    -----
    One request at a time, service time zero: a request is looked up first (the longest leading run of resident
    blocks), then all its blocks are used once, head first; every miss is inserted and evicts one block if the cache
    is full. Only prompts enter the cache. ``lru_tail`` uses blocks tail first, as engines free them.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 64, 1, "a", [(t % 2, 64)], 2)) for t in range(4)]
    >>> trace = replace(builder.build("alternating")[0], knowledge="blocks", block_tokens=16)
    >>> [row.hit_blocks for row in run_curves(trace, ["lru", "lru_tail", "belady"], [6, math.inf]).rows]
    [0, 4, 5, 8, 8, 8]
    """
    play = play or Play()
    asked = [_policy(name) for name in policies]
    small = [c for c in capacities if not c >= 1]
    if small:
        raise TraceError("a cache needs at least one block", [
            Problem("capacity", "", ", ".join(f"{c:g}" for c in small), "numbers of blocks >= 1, or inf")])
    paths = paths_of(trace, block_tokens)
    order, time_s = _order(trace, play)
    tally = _Tally(paths)
    if play.delayed:
        hits = delayed_hits(paths, order, time_s, None if play.strict else play.delay_s)
        rows = [tally.row("any", math.inf, hits, int(hits.sum()))]
    else:
        rows = _rows(tally, order, asked, capacities)
    return Curves(tuple(rows), trace.label, len(trace), int(paths.blocks.sum()), paths.num_blocks,
                  paths.block_tokens, play.words(trace))


def parse_capacities(texts: Sequence[str], bytes_per_block: float | None = None) -> list[float]:
    """Capacities [blocks] from texts.

    Parameters
    ----------
    texts : sequence of str
        ``"5000"`` blocks, ``"inf"``, or a size with a unit, ``"80 GiB"``.
    bytes_per_block : float, optional
        Bytes of one block [B] of the model, needed for sizes.

    Raises
    ------
    TraceError
        Not a capacity, or a size without `bytes_per_block`.

    Examples
    --------
    >>> parse_capacities(["5_000", "inf", "1 GiB"], 2**20)
    [5000.0, inf, 1024.0]
    """
    return [_capacity(text.strip(), bytes_per_block) for text in texts]


def _capacity(text: str, bytes_per_block: float | None) -> float:
    accepted = "blocks (5000), inf, or a size (80 GiB) together with a model"
    try:
        return float(text)
    except ValueError:
        pass
    try:
        size = parse(text, "B")
    except ValueError:
        raise TraceError("not a capacity", [Problem("capacity", "", repr(text), accepted)]) from None
    if bytes_per_block is None:
        raise TraceError("a capacity in bytes needs the bytes of a block", [
            Problem("capacity", "", repr(text), accepted)])
    return float(size // bytes_per_block)


def _policy(name: str) -> str:
    found = "belady" if name == "opt" else name
    if found not in OFFERED:
        raise TraceError(f"unknown policy {name!r}", [
            Problem("policy", "", repr(name), ", ".join(OFFERED), nearest(name, OFFERED))])
    return found


def _order(trace: Trace, play: Play) -> tuple[Ints, Floats]:
    if play.lanes is not None:
        return lanes_order(trace, play.lanes)
    if play.delayed and trace.clock == "session":
        raise TraceError("a delay needs the times of all requests on one clock", [
            Problem(trace.label or "trace", "", "sessions without a common clock", "the same with lanes")])
    return np.arange(len(trace)), trace.time_s


class _Tally:
    """Turns hits into rates."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.full = np.maximum(paths.tokens - 1, 0) // paths.block_tokens * paths.block_tokens
        self.num_blocks = max(int(paths.blocks.sum()), 1)
        self.num_tokens = max(int(paths.tokens.sum()), 1)

    def row(self, policy: str, capacity: float, hits: Ints, plain: int) -> CurveRow:
        """A row from the leading hits of each request [blocks] and the hits one by one."""
        blocks, tokens = int(hits.sum()), hits * self.paths.block_tokens
        any_tokens = int(np.minimum(tokens, self.paths.tokens).sum())
        return CurveRow(policy, capacity, blocks / self.num_blocks, any_tokens / self.num_tokens,
                        int(np.minimum(tokens, self.full).sum()) / self.num_tokens, plain / self.num_blocks,
                        blocks, plain)


def _rows(tally: _Tally, order: Ints, policies: Sequence[str], capacities: Sequence[float]) -> list[CurveRow]:
    """Rows by capacity, then policy."""
    paths = tally.paths
    reuses = lru_reuses(paths, order)
    finite = sorted({int(c) for c in capacities if c < paths.num_blocks})
    table = {name: _COMPUTED[name](_Asked(paths, order, reuses, finite)) for name in set(policies)} if finite else {}
    ideal = np.bincount(reuses.request, reuses.length, len(paths)).astype(np.int64)
    rows: list[CurveRow] = []
    for capacity in capacities:
        for name in policies:
            hits, plain = (table[name][int(capacity)] if capacity < paths.num_blocks else (ideal, int(ideal.sum())))
            rows.append(tally.row(name, capacity, hits, plain))
    return rows


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a policy is computed from."""

    paths: Paths
    order: Ints
    reuses: Reuses
    capacities: list[int]

    @property
    def segments(self) -> Segments:
        """Segments of the paths."""
        return segments_of(self.paths)


_Hits = dict[int, tuple[Ints, int]]


def _lru(asked: _Asked) -> _Hits:
    r, n = asked.reuses, len(asked.paths)
    found: _Hits = {}
    for capacity in asked.capacities:
        hits = np.bincount(r.request, r.length * (r.reach <= capacity), n).astype(np.int64)
        found[capacity] = hits, int(hits.sum())
    return found


def _lru_tail(asked: _Asked) -> _Hits:
    r, paths = asked.reuses, asked.paths
    # Touched tail first, a run has been followed by the rest of its new path when its own turn comes.
    reach = r.newer + paths.blocks[r.request] - r.start
    found: _Hits = {}
    for capacity in asked.capacities:
        kept = np.clip(capacity - r.newer, 0, r.length)
        hits = np.bincount(r.request, kept, len(paths)).astype(np.int64)
        found[capacity] = hits, int(r.length[reach <= capacity].sum())
    return found


def _fifo(asked: _Asked) -> _Hits:
    prefix, plain = fifo_hits(asked.paths, asked.segments, asked.order, asked.capacities)
    return {c: (prefix[k], int(plain[k])) for k, c in enumerate(asked.capacities)}


def _lfu(asked: _Asked) -> _Hits:
    segments = asked.segments
    return {c: lfu_hits(asked.paths, segments, asked.order, c) for c in asked.capacities}


def _s3fifo(asked: _Asked) -> _Hits:
    segments = asked.segments
    return {c: s3fifo_hits(asked.paths, segments, asked.order, c) for c in asked.capacities}


def _belady(asked: _Asked) -> _Hits:
    prefix, plain = belady_hits(asked.paths, asked.segments, asked.order, asked.capacities)
    return {c: (prefix[k], int(plain[k])) for k, c in enumerate(asked.capacities)}


_COMPUTED: dict[str, Callable[[_Asked], _Hits]] = {
    "lru": _lru, "lru_tail": _lru_tail, "fifo": _fifo, "lfu": _lfu, "belady": _belady, "s3fifo": _s3fifo}
