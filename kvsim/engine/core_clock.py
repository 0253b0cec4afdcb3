"""The fast engine's clock: many decode steps at once, with the very sums that one step after the other gives."""

from __future__ import annotations

import math

import numpy as np

from kvsim.steptime.base import Direct, Piece, StepBatch, StepTimeModel, Sums

FEW_STEPS = 56
"""Up to so many steps a plain loop is faster than arrays."""

MANY_STEPS = 1 << 15
"""Longest stretch that is computed at once; bounds the memory."""

MEMO_SIZE = 4096
"""Mixed batches remembered with their pieces."""

MARGIN = 1.0 + 1e-12
"""A piece is the largest beyond rounding when it exceeds the others by this factor."""

Largest = tuple[float, float, float, float]
"""(a, b, first, last): the piece a + b x context is the largest from context `first` to `last`, beyond rounding."""


class Clock:
    """Time of the run, advanced by whole steps.

    The time after a step is the time before it plus the step's duration, rounded, one addition a step: a closed
    formula would round differently and could flip who comes first. `numpy.add.accumulate` adds in that order.

    Parameters
    ----------
    model : StepTimeModel
        How long a step takes.

    Attributes
    ----------
    now_s : float
        Time [s] after the last step.
    before_s : float
        Time [s] before it.
    busy_s : float
        Sum [s] of the durations so far.
    last_s : float
        Duration [s] of what passed last, a step or several.

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> clock = Clock(LinearStepTime(0.25, 0.0, 0.0))
    >>> clock.decode(100, num_seqs=2, context_tokens=50, bound_s=1.1), clock.before_s, clock.now_s
    (5, 1.0, 1.25)
    """

    def __init__(self, model: StepTimeModel) -> None:
        self.now_s = self.before_s = self.busy_s = self.last_s = 0.0
        self._model = model
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._largest: dict[int, Largest] = {}
        self._mixed_pieces: dict[Sums, tuple[Piece, ...]] = {}
        self._prefill_s = model.prefill_seconds() if isinstance(model, Direct) else self._seconds

    def step(self, sums: Sums, context_tokens: int) -> None:
        """One step of the batch with the sums `sums`."""
        duration_s = (self._prefill_s if sums[0] else self._seconds)(sums, context_tokens)
        self.before_s = now_s = self.now_s
        self.now_s = now_s + duration_s
        self.busy_s += duration_s
        self.last_s = duration_s

    def _seconds(self, sums: Sums, context_tokens: int) -> float:
        """Duration [s] of a step, the largest of its pieces."""
        pieces = self._mixed_pieces.get(sums)
        if pieces is None:
            if len(self._mixed_pieces) >= MEMO_SIZE:
                self._mixed_pieces.clear()
            pieces = self._mixed_pieces[sums] = self._model.pieces(StepBatch(*sums))
        duration_s = 0.0
        for a, b in pieces:
            piece_s = a + b * context_tokens
            if piece_s > duration_s:
                duration_s = piece_s
        return duration_s

    def decode(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float) -> int:
        """Up to `steps` steps of a batch that only decodes, no further than the first that ends at or after a bound.

        Parameters
        ----------
        steps : int
            Most steps to make, >= 1.
        num_seqs : int
            Decoding sequences.
        context_tokens : int
            What they attend to in the first step; each attends to one more token in each further one.
        bound_s : float
            Time [s] to stop at, after now; inf = none.

        Returns
        -------
        int
            Steps made.
        """
        last_tokens = context_tokens + (steps - 1) * num_seqs
        largest = self._largest.get(num_seqs)
        if largest is None or not largest[2] <= context_tokens <= last_tokens <= largest[3]:
            largest = self._find_largest(num_seqs, context_tokens)
            if last_tokens > largest[3]:
                steps = int((largest[3] - context_tokens) // num_seqs) + 1 if largest[3] >= context_tokens else 0
        if steps <= 0:
            return self._decode_one(num_seqs, context_tokens)
        a, b, _, _ = largest
        if bound_s < math.inf:
            first_s, left_s = a + b * context_tokens, bound_s - self.now_s
            if left_s < steps * first_s:
                steps = min(steps, int(left_s / first_s) + 2)
        if steps > FEW_STEPS:
            return self._decode_many(min(steps, MANY_STEPS), num_seqs, context_tokens, bound_s, (a, b))
        before_s = start_s = now_s = self.now_s
        if bound_s == math.inf:
            last_tokens = context_tokens + (steps - 1) * num_seqs
            for tokens in range(context_tokens, last_tokens, num_seqs):
                now_s += a + b * tokens
            before_s = now_s
            now_s += a + b * last_tokens
        else:
            for made, tokens in enumerate(range(context_tokens, context_tokens + steps * num_seqs, num_seqs), 1):
                before_s = now_s
                now_s += a + b * tokens
                if now_s >= bound_s:
                    steps = made
                    break
        self.before_s, self.now_s = before_s, now_s
        self.last_s = now_s - start_s
        self.busy_s += self.last_s
        return steps

    def least_s(self, num_seqs: int, context_tokens: int) -> float:
        """Duration [s] of a step that only decodes; those after it take no less."""
        pieces = self._pieces.get(num_seqs)
        if pieces is None:
            pieces = self._pieces[num_seqs] = self._model.pieces(StepBatch(0, 0, 0, 0, num_seqs))
        return max([a + b * context_tokens for a, b in pieces])

    def times(self) -> tuple[float, float, float]:
        """What `go_back` needs to return to now."""
        return self.now_s, self.before_s, self.busy_s

    def go_back(self, times: tuple[float, float, float]) -> None:
        """Undo what has passed since `times`."""
        self.now_s, self.before_s, self.busy_s = times

    def sleep(self, until_s: float) -> None:
        """Pass time without a step."""
        self.now_s = max(self.now_s, until_s)

    def _decode_one(self, num_seqs: int, context_tokens: int) -> int:
        """A step at a context where two pieces are as good as equal."""
        self.before_s = self.now_s
        self.now_s += max([a + b * context_tokens for a, b in self._pieces[num_seqs]])
        self.last_s = self.now_s - self.before_s
        self.busy_s += self.last_s
        return 1

    def _decode_many(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float, piece: Piece) -> int:
        a, b = piece
        if b:
            times = np.arange(context_tokens, context_tokens + (steps - 0.5) * num_seqs, num_seqs)
            times *= b
            times += a
        else:
            times = np.full(steps, a)
        start_s = self.now_s
        times[0] += start_s
        np.add.accumulate(times, out=times)
        if bound_s < math.inf:
            steps = min(int(times.searchsorted(bound_s)) + 1, steps)
        self.before_s, self.now_s = float(times[steps - 2]) if steps > 1 else start_s, float(times[steps - 1])
        self.last_s = self.now_s - start_s
        self.busy_s += self.last_s
        return steps

    def _find_largest(self, num_seqs: int, context_tokens: int) -> Largest:
        """The piece that is the largest at a context, and how far it stays so."""
        pieces = self._pieces.get(num_seqs)
        if pieces is None:
            pieces = self._pieces[num_seqs] = self._model.pieces(StepBatch(0, 0, 0, 0, num_seqs))
        a, b = max(pieces, key=lambda piece: (piece[0] + piece[1] * context_tokens, piece[1]))
        first, last = -math.inf, math.inf
        for other_a, other_b in pieces:
            if (other_a, other_b) == (a, b):
                continue
            gap, slope = a - other_a * MARGIN, b - other_b * MARGIN
            if slope > 0:
                first = max(first, math.ceil(-gap / slope))
            elif slope < 0:
                last = min(last, math.floor(gap / -slope))
            elif gap < 0:
                last = -math.inf
        largest = self._largest[num_seqs] = (a, b, first, last if first <= context_tokens else -math.inf)
        return largest
