"""The constant part of a roofline step from a few flat numbers: the same seconds as `RooflineStepTime.costs` adds up.

A run of a million requests asks for the time of millions of different steps. What depends on a single number (rows,
sampled tokens, decoding sequences) is computed once a number; the rest is a few products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvsim.steptime.base import Piece, StepBatch, Sums
from kvsim.steptime.parts import Host, Links, Rates, Scan
from kvsim.steptime.rates import Rate
from kvsim.steptime.work import PrefillWork, Work

PORTION = 512
"""Numbers whose time is computed at once: a step has any number of tokens."""

MEMO_SIZE = 4096
"""Batches remembered with their parts."""


class _Line(NamedTuple):
    """One component over one number n: it does ``flops n`` and moves ``bytes_each n + bytes_once``.

    Calls' floors and overheads are multiplied out; see `Rate.seconds`.
    """

    flops: float
    flop_s: float
    bytes_each: float
    bytes_once: float
    byte_s: float
    floor_s: float
    exposed: float
    extra_s: float


class _Expansion(NamedTuple):
    """Expansion of the context that earlier steps computed, a context token and layer."""

    layers: int
    flops: float
    flop_s: float
    num_bytes: float
    byte_s: float
    floor_s: float
    exposed: float
    extra_s: float


class _Chunks(NamedTuple):
    """Attention of chunks in one kind of layer."""

    ratio: int
    cap: int
    flops: float
    flop_s: float
    num_bytes: float
    byte_s: float
    floor_s: float
    exposed: float
    extra_s: float
    expansion: _Expansion | None


class _Table:
    """Seconds of components by their number, computed for many numbers at once when one of them is asked for."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._portions: dict[int, list[float]] = {}

    def seconds(self, number: int) -> float:
        """Seconds of all components at a number."""
        portion = self._portions.get(number // PORTION) or self._find_portion(number // PORTION)
        return portion[number % PORTION]

    def _find_portion(self, portion: int) -> list[float]:
        numbers = np.arange(portion * PORTION, (portion + 1) * PORTION, dtype=np.float64)
        total_s = np.zeros(PORTION)
        for flops, flop_s, bytes_each, bytes_once, byte_s, floor_s, exposed, extra_s in self._lines:
            compute_s, memory_s = flops * numbers * flop_s, (bytes_each * numbers + bytes_once) * byte_s
            longer_s = np.maximum(np.maximum(compute_s, memory_s), floor_s)
            total_s += longer_s + exposed * np.minimum(compute_s, memory_s) + extra_s
        found: list[float] = total_s.tolist()
        self._portions[portion] = found
        return found


class FlatStep:
    """A step's duration as pieces, from flat numbers.

    Parameters
    ----------
    work, rates, scans, links, host, imbalance
        Those of a `kvsim.steptime.roofline.RooflineStepTime`.
    lines : callable
        Attention of a number of decoding sequences as lines over their context.

    Notes
    -----
    The products and sums are those of the components, in the same order, so that nothing but speed differs.
    """

    def __init__(self, parts: tuple[Work, Rates, tuple[Scan, ...], Links, Host], imbalance: float,
                 lines: Callable[[int], tuple[Piece, ...]]) -> None:
        work, rates, scans, links, host = parts
        self._links, self._imbalance, self._lines = links, imbalance, lines
        self._experts, self._expert_rate = work.experts, rates.experts
        self._dense = _Table([_line(rate, 1.0, 2.0 * params, 0.0, once) for rate, params, once in rates.dense])
        self._elementwise = _Table([_line(rates.elementwise, 1.0, 0.0, work.elementwise_bytes_per_row, 0.0)])
        self._head = _Table([_line(rates.head[0], 1.0, 2.0 * work.head_params, 0.0, rates.head[1])])
        self._states = _Table([_line(rates.state, s.layers, 0.0, s.layers * s.bytes_per_seq, 0.0) for s in work.states])
        self._chunks = [_chunks(part, rate, rates.expand) for part, rate in zip(work.prefill, rates.prefill,
                                                                                 strict=True)]
        self._scans = [(s.serial_s, s.parallel_s, s.longer, s.peak_s) for s in scans]
        self._own = host.step_s, host.per_seq_s, host.per_token_s
        self._per_context_s = links.per_context_s
        self._before_s, self._before_prefill_s = host.launches_s, host.launches_s + host.sync_s
        self._is_async = host.asynchronous
        self._launch_s = host.piecewise_s, host.eager_s, host.eager_s + host.context_s
        self._graph_max_tokens = host.graph_max_tokens
        self._of_sums: dict[Sums, tuple[float, float, tuple[Piece, ...]]] = {}
        self._of_rows: dict[int, tuple[float, float]] = {}
        self._of_sampled: dict[int, float] = {}
        self._of_seqs: dict[int, tuple[float, float, tuple[Piece, ...]]] = {}

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Everything but context attention as one constant, under the lines of context attention.

        Where the host sets the duration, that is one more line in front, which may cover others.
        """
        fixed_s, least_s, lines = self._parts(*batch)
        found = tuple([(fixed_s + a, b) for a, b in lines])
        return ((least_s, 0.0), *found) if least_s > found[0][0] else found

    def seconds(self, sums: Sums, context_tokens: int) -> float:
        """The largest piece of a batch with the sums `sums` at a context."""
        parts = self._of_sums.get(sums)
        if parts is None:
            if len(self._of_sums) >= MEMO_SIZE:
                self._of_sums.clear()
            parts = self._of_sums[sums] = self._parts(*sums)
        fixed_s, duration_s, lines = parts
        for a, b in lines:
            piece_s = fixed_s + a + b * context_tokens
            if piece_s > duration_s:
                duration_s = piece_s
        return duration_s

    def _parts(self, tokens: int, chunks: int, pairs: float, context: int,
               seqs: int) -> tuple[float, float, tuple[Piece, ...]]:
        """What the GPU needs beside context attention, what the step takes at least, and the lines over context."""
        rows, sampled = tokens + seqs, seqs + chunks
        linked_s, rows_s = self._of_rows.get(rows) or self._find_rows(rows)
        exchange_s, states_s, lines = self._of_seqs.get(seqs) or self._find_seqs(seqs)
        head_s = self._of_sampled.get(sampled) or self._find_head(sampled)
        linked_s = linked_s + exchange_s + self._per_context_s * context
        step_s, per_seq_s, per_token_s = self._own
        own_s = step_s + per_seq_s * sampled + per_token_s * tokens
        if tokens:
            fixed_s = self._before_prefill_s + linked_s
            if self._scans:
                fixed_s += self._scan_s(tokens, chunks) + (rows_s + head_s + states_s)
            else:
                fixed_s += rows_s + head_s + states_s
            fixed_s = self._add_attention(fixed_s, tokens, pairs, context)
            least_s = self._launch_s[0 if rows <= self._graph_max_tokens else 1 + (context > tokens)]
        else:
            fixed_s, least_s = self._before_s + linked_s + (rows_s + head_s + states_s), 0.0
        if not self._is_async:
            return fixed_s + own_s, least_s + own_s, lines
        return fixed_s, own_s if own_s > least_s else least_s, lines

    def _scan_s(self, tokens: int, chunks: int) -> float:
        """Chunked prefill of all constant-state layers; see `Scan`."""
        total_s = 0.0
        for serial, parallel, longer, peak_s in self._scans:
            serial_s, parallel_s = serial * tokens / (chunks or 1), parallel * tokens
            if longer:
                law_s = serial_s if serial_s > parallel_s else parallel_s
            else:
                law_s = serial_s + parallel_s
            least_s = peak_s * tokens
            total_s += law_s if law_s > least_s else least_s
        return total_s

    def _add_attention(self, total_s: float, tokens: int, pairs: float, context: int) -> float:
        """`total_s` and the attention of all chunks."""
        for ratio, cap, flops, flop_s, num_bytes, byte_s, floor_s, exposed, extra_s, expansion in self._chunks:
            seen = pairs / ratio
            if cap and seen > tokens * cap:
                seen = tokens * cap
            long, short = flops * seen * flop_s, num_bytes * context * byte_s
            if short > long:
                long, short = short, long
            if long < floor_s:
                long = floor_s
            total_s += long + exposed * short + extra_s
            if expansion is not None and context > tokens:
                layers, flops, flop_s, num_bytes, byte_s, floor_s, exposed, extra_s = expansion
                cached = layers * (context - tokens)
                long, short = flops * cached * flop_s, num_bytes * cached * byte_s
                if short > long:
                    long, short = short, long
                if long < floor_s:
                    long = floor_s
                total_s += long + exposed * short + extra_s
        return total_s

    def _find_rows(self, rows: int) -> tuple[float, float]:
        """Collectives, and components that see all tokens of a step."""
        links = self._links
        linked_s = links.reduce_calls * links.reduce.seconds(rows * links.row_bytes) if links.reduce_calls else 0.0
        linked_s = linked_s + links.fixed_s + links.per_row_s * rows
        own_s = self._dense.seconds(rows)
        if self._expert_rate is not None and self._experts is not None:
            (rate, num_bytes), experts = self._expert_rate, self._experts
            seen = rows * experts.row_factor
            own_s += rate.seconds(experts.layers, experts.flops_per_row * seen * self._imbalance,
                                  min(1.0, experts.touched_frac(seen) * self._imbalance) * num_bytes)
        found = self._of_rows[rows] = linked_s, own_s + self._elementwise.seconds(rows)
        return found

    def _find_seqs(self, seqs: int) -> tuple[float, float, tuple[Piece, ...]]:
        """Exchange between context-parallel ranks, constant states, and lines over context of decoding sequences."""
        links, exchange_s = self._links, 0.0
        if links.exchange_calls and seqs:
            exchange_s = links.exchange_calls * links.exchange.seconds(seqs * links.exchange_bytes_per_seq)
        states_s = self._states.seconds(seqs) if seqs else 0.0
        found = self._of_seqs[seqs] = exchange_s, states_s, self._lines(seqs)
        return found

    def _find_head(self, sampled: int) -> float:
        """The output head, which sees one token a request."""
        found = self._of_sampled[sampled] = self._head.seconds(sampled)
        return found


def _line(rate: Rate, calls: float, flops: float, bytes_each: float, bytes_once: float) -> _Line:
    return _Line(flops, rate.flop_s, bytes_each, bytes_once, rate.byte_s, calls * rate.floor_s, 1.0 - rate.overlap,
                 calls * rate.overhead_s)


def _chunks(part: PrefillWork, rate: Rate, expand: Rate) -> _Chunks:
    layers = part.layers
    expansion = None
    if part.expand_flops:
        expansion = _Expansion(layers, part.expand_flops, expand.flop_s, part.expand_bytes, expand.byte_s,
                               expand.floor_s, 1.0 - expand.overlap, expand.overhead_s)
    return _Chunks(part.ratio, part.cap, layers * part.flops_per_pair, rate.flop_s, layers * part.bytes_per_context,
                   rate.byte_s, layers * rate.floor_s, 1.0 - rate.overlap, layers * rate.overhead_s, expansion)
