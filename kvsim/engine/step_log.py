"""What the steps of a run were made of, and how long sequences waited between their tokens.

Both engines write one row a step, or one a stretch of equal decode steps. Rows are summed up in bins of like steps as
soon as there are many, so that a run's memory does not grow with its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kvsim.steptime.base import StepBatch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MANY_ROWS = 1 << 14
"""Rows kept one by one at most."""

WIDTH = 11
_PREFILL = 1 << 30
"""Bins of steps that prefill come after those that only decode, whose bin is the number of sequences."""

_SUMS = ("steps", "busy_s", "prefill_tokens", "prefill_chunks", "prefill_pairs", "prefill_context_tokens",
         "decode_seqs", "context_tokens")


@dataclass(frozen=True, slots=True)
class StepSums:
    """Steps of a run by bins of like steps, and the gaps between tokens.

    Attributes
    ----------
    bins : int array [b]
        Which steps a bin holds: those of equally many decoding sequences that only decode; those that prefill by powers
        of two of their tokens and of their query-key pairs.
    sums : float array [b, 8]
        Steps, seconds, prefill tokens, chunks, query-key pairs, context of the chunks, decoding sequences and their
        context, each summed over the steps of the bin.
    gap_end_s, gap_span_s : float arrays [g]
        End [s] and length [s] of stretches in which sequences got a token a step.
    gap_steps, gap_seqs : int arrays [g]
        Steps of the stretch, and sequences that got a token in each of them that was not their first.
    """

    bins: Ints
    sums: Floats
    gap_end_s: Floats
    gap_span_s: Floats
    gap_steps: Ints
    gap_seqs: Ints

    @property
    def prefill_tokens(self) -> int:
        """Tokens computed by all that did not decode [tokens]."""
        return int(self.sums[:, _SUMS.index("prefill_tokens")].sum())

    @property
    def decode_tokens(self) -> int:
        """Tokens that decoding sequences got, one a step each [tokens]."""
        return int(self.sums[:, _SUMS.index("decode_seqs")].sum())

    def means(self) -> Iterator[tuple[StepBatch, int, float, float]]:
        """The mean step of each bin, its decoders' context [tokens], the number of its steps and their time [s]."""
        for steps, busy_s, tokens, *rest, context in self.sums.tolist():
            chunks, pairs, chunk_context, seqs = (round(total / steps) for total in rest)
            tokens = round(tokens / steps)
            batch = StepBatch(tokens, max(chunks, 1) if tokens else 0, pairs, chunk_context, seqs)
            yield batch, round(context / steps) if seqs else 0, steps, busy_s

    def gaps(self, start_s: float, end_s: float) -> tuple[Floats, Floats]:
        """Gaps [s] between tokens that came from `start_s` to `end_s` [s], and how many of each length.

        Notes
        -----
        The gaps of one stretch differ only by the growth of its contexts; they count as equal.
        """
        gap_s = self.gap_span_s / self.gap_steps
        last = np.floor((end_s - self.gap_end_s) / np.maximum(gap_s, 1e-300) + 1e-9)
        first = np.ceil((start_s - self.gap_end_s) / np.maximum(gap_s, 1e-300) - 1e-9)
        steps = np.minimum(last, 0.0) - np.maximum(first, 1.0 - self.gap_steps) + 1.0
        counts: Floats = np.maximum(steps, 0.0) * self.gap_seqs.astype(np.float64)
        return gap_s[counts > 0], counts[counts > 0]


NO_STEPS = StepSums(np.zeros(0, np.int64), np.zeros((0, len(_SUMS))), np.zeros(0), np.zeros(0), np.zeros(0, np.int64),
                    np.zeros(0, np.int64))
"""Nothing is known of the steps."""


def merged_steps(parts: Sequence[StepSums]) -> StepSums:
    """Steps of several engines together."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_STEPS
    bins, sums = _summed(np.concatenate([p.bins for p in parts]), np.concatenate([p.sums for p in parts]))
    return StepSums(bins, sums, *(np.concatenate([getattr(p, name) for p in parts])
                                  for name in ("gap_end_s", "gap_span_s", "gap_steps", "gap_seqs")))


class StepLog:
    """Collects the steps of a run.

    Attributes
    ----------
    rows : list of tuples
        Rows that are not summed up yet; whoever appends to it itself calls `sum_up` when there are `MANY_ROWS`.

    Examples
    --------
    >>> log = StepLog()
    >>> log.note((1.0, 0.5, 0.5, 1, 2, 100, 1, 5050, 100, 2, 400))
    >>> log.note((3.0, 2.0, 2.0, 4, 2, 0, 0, 0, 0, 2, 1700))
    >>> found = log.sums()
    >>> [(batch.prefill_tokens, batch.decode_seqs, context, busy_s) for batch, context, _, busy_s in found.means()]
    [(0, 2, 425, 2.0), (100, 2, 400, 0.5)]
    >>> [column.tolist() for column in found.gaps(0.0, 2.0)]
    [[0.5, 0.5], [2.0, 4.0]]
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self._bins: list[tuple[Ints, Floats]] = []
        self._stretches: list[tuple[Floats, Ints]] = []
        self._long: list[tuple[float, float]] = []

    def note(self, row: tuple[float, ...]) -> None:
        """Steps whose tokens are out.

        Parameters
        ----------
        row : tuple of 11 floats
            End [s]; time [s] since the last tokens were out; time [s] of it that the steps took; steps; sequences that
            got a token in each of them and in the step before; prefill tokens, chunks, pairs, context of the chunks and
            decoding sequences of each (see `StepBatch`); the sequences' context summed over the steps [tokens].
        """
        self.rows.append(row)
        if len(self.rows) >= MANY_ROWS:
            self.sum_up()

    def note_gap(self, end_s: float, gap_s: float) -> None:
        """One sequence got its next token after having been left out in between."""
        self._long.append((end_s, gap_s))

    def sums(self) -> StepSums:
        """Everything so far."""
        self.sum_up()
        bins, sums = _summed(np.concatenate([b for b, _ in self._bins] or [NO_STEPS.bins]),
                             np.concatenate([s for _, s in self._bins] or [NO_STEPS.sums]))
        long = np.array(self._long, np.float64).reshape(-1, 2)
        ones = np.ones((len(long), 2), np.int64)
        spans = np.concatenate([*(spans for spans, _ in self._stretches), long])
        counts = np.concatenate([*(counts for _, counts in self._stretches), ones])
        return StepSums(bins, sums, spans[:, 0], spans[:, 1], counts[:, 0], counts[:, 1])

    def sum_up(self) -> None:
        """Put the rows into bins."""
        rows = np.fromiter(chain.from_iterable(self.rows), np.float64, len(self.rows) * WIDTH).reshape(-1, WIDTH)
        self.rows.clear()
        steps = rows[:, 3]
        with_gaps = rows[rows[:, 4] > 0]
        self._stretches.append((with_gaps[:, :2].copy(), with_gaps[:, 3:5].astype(np.int64)))
        sums = np.column_stack([steps, rows[:, 2], *(steps * rows[:, k] for k in range(5, 10)), rows[:, 10]])
        self._bins.append(_summed(_bins_of(rows), sums))


def _bins_of(rows: Floats) -> Ints:
    """Bin of each row."""
    tokens, pairs, seqs = rows[:, 5], rows[:, 7], rows[:, 9].astype(np.int64)
    size = (np.frexp(tokens)[1].astype(np.int64) << 8) + np.frexp(pairs)[1]
    return np.where(tokens > 0, _PREFILL + size, seqs)


def _summed(bins: Ints, sums: Floats) -> tuple[Ints, Floats]:
    """Rows of equal bins added up, by ascending bin."""
    found, place = np.unique(bins, return_inverse=True)
    columns = [np.bincount(place, sums[:, k], len(found)).astype(np.float64) for k in range(sums.shape[1])]
    return found.astype(np.int64), np.column_stack(columns).astype(np.float64)
