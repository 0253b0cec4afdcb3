"""What a roofline step is made of beside its attention over context: scans, collectives, the host, kernel rates."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.steptime.allreduce import Curve
from kvsim.steptime.base import StepBatch
from kvsim.steptime.rates import Rate


@dataclass(frozen=True, slots=True)
class Scan:
    """Chunked prefill of constant-state attention: seconds per token, all layers together."""

    serial_s: float
    parallel_s: float
    longer: bool
    peak_s: float

    def seconds(self, tokens: int, chunks: int) -> float:
        """Time of `tokens` in `chunks` sequences of about equal length.

        Notes
        -----
        The scan over chunks is serial within a sequence and parallel over sequences; kernels between chunks are
        parallel over tokens and heads. Heads divide the parallel part only, so tensor parallelism hardly
        shortens a prefill. Law: linear in T. Source: FlashKDA's and flash-linear-attention's published timings.
        """
        serial, parallel = self.serial_s * tokens / max(chunks, 1), self.parallel_s * tokens
        law = max(serial, parallel) if self.longer else serial + parallel
        return max(law, self.peak_s * tokens)


@dataclass(frozen=True, slots=True)
class Links:
    """Collectives of one step: all-reduces, expert exchange, pipeline hops, context parallelism."""

    reduce: Curve
    reduce_calls: int
    row_bytes: float
    fixed_s: float
    per_row_s: float
    exchange: Curve
    exchange_calls: int
    exchange_bytes_per_seq: float
    per_context_s: float

    def seconds(self, rows: int, batch: StepBatch) -> float:
        """Time of all collectives of a step with `rows` tokens."""
        total = self.reduce_calls * self.reduce.seconds(rows * self.row_bytes) + self.fixed_s + self.per_row_s * rows
        if self.exchange_calls and batch.decode_seqs:
            message = batch.decode_seqs * self.exchange_bytes_per_seq
            total += self.exchange_calls * self.exchange.seconds(message)
        return total + self.per_context_s * batch.prefill_context_tokens


@dataclass(frozen=True, slots=True)
class Host:
    """What the host costs: launches inside a graph, launches it makes itself, scheduling and output.

    ``eager_s`` is what it needs to launch a whole step, ``piecewise_s`` the parts between piecewise graphs,
    ``context_s`` what cached context adds to a whole step; the GPU waits ``sync_s`` for it in a step with prefill.
    """

    launches_s: float
    graph_max_tokens: float
    eager_s: float
    piecewise_s: float
    context_s: float
    sync_s: float
    step_s: float
    per_seq_s: float
    per_token_s: float
    asynchronous: bool

    def own_s(self, batch: StepBatch) -> float:
        """Scheduling, input preparation and output processing of one step."""
        return (self.step_s + self.per_seq_s * (batch.decode_seqs + batch.prefill_chunks)
                + self.per_token_s * batch.prefill_tokens)

    def least_s(self, batch: StepBatch) -> float:
        """Least duration of a step that the host sets: it launches what no graph covers."""
        launching, own = self._launching_s(batch), self.own_s(batch)
        return max(launching, own) if self.asynchronous else launching + own

    def _launching_s(self, batch: StepBatch) -> float:
        """What the host needs to launch: everything, what lies between piecewise graphs, or one graph (nothing)."""
        if not batch.prefill_tokens:
            return 0.0
        rows = batch.prefill_tokens + batch.decode_seqs
        if rows <= self.graph_max_tokens:
            return self.piecewise_s
        return self.eager_s + (self.context_s if batch.prefill_context_tokens > batch.prefill_tokens else 0.0)

    def waited_s(self, batch: StepBatch) -> float:
        """Time the GPU waits for the host between the kernels of a step."""
        return self.sync_s if batch.prefill_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of the kernels that a model needs, by component and format."""

    dense: tuple[tuple[Rate, float, float], ...]
    head: tuple[Rate, float]
    experts: tuple[Rate, float] | None
    prefill: tuple[Rate, ...]
    expand: Rate
    decode: tuple[Rate, ...]
    state: Rate
    elementwise: Rate
