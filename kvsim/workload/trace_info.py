"""What is in a trace: counts, lengths, arrivals, sessions, and what an infinite cache would find."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvsim.workload.ideal import PrefixTree
from kvsim.workload.requests import Floats, Ints, merge
from kvsim.workload.table import Trace


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a quantity."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    def text(self) -> str:
        """The five figures in one line."""
        return (f"mean {self.mean:,.0f}, p50 {self.p50:,.0f}, p90 {self.p90:,.0f}, p99 {self.p99:,.0f}, "
                f"max {self.max:,.0f}")


@dataclass(frozen=True, slots=True)
class Info:
    """Statistics of a trace.

    Attributes
    ----------
    label, knowledge, clock : str
        As in `Trace`.
    num_requests, num_sessions, num_subagent_requests : int
        Counts.
    span_s : float or None
        From the first to the last arrival [s]; None without a common clock.
    rate_per_s : float or None
        Arrivals per second over that span.
    gap_cv : float or None
        Coefficient of variation of the times between arrivals: 1 for a Poisson process.
    session_span_s : Spread or None
        From a session's first to its last arrival [s]; None if all sessions are single requests.
    input_tokens, output_tokens, turns : Spread
        Lengths [tokens] and requests per session.
    block_tokens : int
        Tokens of a block; 0 without block ids.
    num_blocks, infinite_hit_blocks : int or None
        Prompt blocks, and those that an infinite cache of prompts finds.
    infinite_block_hit_rate : float or None
        Their ratio.
    infinite_token_hit_rate : float or None
        The same in prompt tokens; without block ids from the sessions, token by token. None if only lengths are known.
    recorded_token_hit_rate : float or None
        Cached tokens that the recorded service reported / prompt tokens of the requests for which it did.
    """

    label: str
    knowledge: str
    clock: str
    num_requests: int
    num_sessions: int
    num_subagent_requests: int
    span_s: float | None
    rate_per_s: float | None
    gap_cv: float | None
    session_span_s: Spread | None
    input_tokens: Spread
    output_tokens: Spread
    turns: Spread
    block_tokens: int
    num_blocks: int | None
    infinite_hit_blocks: int | None
    infinite_block_hit_rate: float | None
    infinite_token_hit_rate: float | None
    recorded_token_hit_rate: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data under stable names."""
        return asdict(self)

    def text(self) -> str:
        """A summary for people."""
        lines = [f"{self.label}: {self.num_requests:,} requests, {self.num_sessions:,} sessions, "
                 f"{self.num_subagent_requests:,} requests of sub-agents"]
        if self.span_s is not None:
            rate = "" if self.rate_per_s is None else f", {self.rate_per_s:.2f} requests/s"
            lines.append(f"span      {self.span_s:,.0f} s{rate}"
                         + ("" if self.gap_cv is None else f", gap CV {self.gap_cv:.2f}"))
        else:
            lines.append("span      every session on its own clock")
        if self.session_span_s is not None:
            lines.append(f"sessions  {self.session_span_s.text()} s; turns {self.turns.text()}")
        lines += [f"input     {self.input_tokens.text()} tokens", f"output    {self.output_tokens.text()} tokens",
                  f"infinite  {self._hits()}"]
        if self.recorded_token_hit_rate is not None:
            lines.append(f"recorded  {self.recorded_token_hit_rate:.2%} of prompt tokens cached")
        return "\n".join(lines)

    def _hits(self) -> str:
        if self.infinite_token_hit_rate is None:
            return "unknown: the trace has lengths only"
        tokens = f"{self.infinite_token_hit_rate:.2%} of prompt tokens"
        if self.infinite_block_hit_rate is None:
            return f"{tokens} (sessions taken to append)"
        return f"{self.infinite_block_hit_rate:.2%} of {self.num_blocks:,} blocks of {self.block_tokens}, {tokens}"


def trace_info(trace: Trace) -> Info:
    """Statistics of a trace.

    Parameters
    ----------
    trace : Trace
        What was asked; at least one request.

    Returns
    -------
    Info
        Percentiles are interpolated linearly.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 10 * (t + 1), 1, "a", [(0, 10 * (t + 1))], 0)) for t in range(3)]
    >>> info = trace_info(builder.build("")[0])
    >>> info.rate_per_s, info.input_tokens.p50, info.infinite_token_hit_rate
    (1.5, 20.0, None)
    """
    common = trace.clock == "common"
    span_s = float(trace.time_s[-1] - trace.time_s[0]) if common else None
    gaps = np.diff(trace.time_s) if common else np.zeros(0)
    hits = infinite_hits(trace)
    total = max(int(trace.input_tokens.sum()), 1)
    blocks, found = _blocks(trace, hits)
    tokens = None if hits is None else int(_usable(trace, hits).sum()) / total
    seen = trace.cached_tokens >= 0
    return Info(
        label=trace.label, knowledge=trace.knowledge, clock=trace.clock, num_requests=len(trace),
        num_sessions=trace.num_sessions, num_subagent_requests=int((trace.stream > 0).sum()),
        span_s=span_s, rate_per_s=len(trace) / span_s if span_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None,
        session_span_s=_session_spans(trace), input_tokens=spread(trace.input_tokens),
        output_tokens=spread(trace.output_tokens), turns=spread(np.bincount(trace.session)),
        block_tokens=trace.block_tokens, num_blocks=blocks, infinite_hit_blocks=found,
        infinite_block_hit_rate=found / max(blocks, 1) if found is not None and blocks is not None else None,
        infinite_token_hit_rate=tokens,
        recorded_token_hit_rate=(float(trace.cached_tokens[seen].sum() / max(trace.input_tokens[seen].sum(), 1))
                                 if seen.any() else None))


def spread(values: Ints | Floats) -> Spread:
    """Mean, percentiles and maximum; zeros without values.

    >>> spread(np.array([1, 2, 9])).p50
    2.0
    """
    if not len(values):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Spread(float(values.mean()), p50, p90, p99, float(values.max()))


def infinite_hits(trace: Trace) -> Ints | None:
    """Leading prompt tokens [n] that an earlier prompt started with; None if the trace knows lengths only."""
    if trace.knowledge == "nothing":
        return None
    seen = PrefixTree()
    return np.array([seen.add(merge(trace.prompt(i))) for i in range(len(trace))], np.int64)


def _round_up(trace: Trace) -> int:
    return trace.block_tokens - 1 if trace.partial_blocks else 0


def _blocks(trace: Trace, hits: Ints | None) -> tuple[int | None, int | None]:
    if hits is None or not trace.block_tokens:
        return None, None
    size, up = trace.block_tokens, _round_up(trace)
    return int(((trace.input_tokens + up) // size).sum()), int(((hits + up) // size).sum())


def _usable(trace: Trace, hits: Ints) -> Ints:
    """Tokens of whole blocks found; all tokens found where there are no blocks."""
    if not trace.block_tokens:
        return hits
    size = trace.block_tokens
    return np.minimum((hits + _round_up(trace)) // size * size, trace.input_tokens)


def _session_spans(trace: Trace) -> Spread | None:
    if len(trace) == trace.num_sessions:
        return None
    first, last = np.full(trace.num_sessions, np.inf), np.full(trace.num_sessions, -np.inf)
    np.minimum.at(first, trace.session, trace.time_s)
    np.maximum.at(last, trace.session, trace.time_s)
    return spread((last - first)[np.isfinite(first)])
