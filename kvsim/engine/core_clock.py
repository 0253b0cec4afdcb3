"""The fast engine's clock: many decode steps at once, with the very sums that one step after the other gives."""

from __future__ import annotations

import math

import numpy as np

from kvsim.steptime.base import Piece, StepBatch, StepTimeModel

FEW_STEPS = 12
"""Up to so many steps a plain loop is faster than arrays."""

MANY_STEPS = 1 << 15
"""Longest stretch that is computed at once; bounds the memory."""

MEMO_SIZE = 4096
"""Mixed batches remembered with their pieces."""


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

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> clock = Clock(LinearStepTime(0.25, 0.0, 0.0))
    >>> clock.decode(100, num_seqs=2, context_tokens=50, bound_s=1.1), clock.before_s, clock.now_s
    (5, 1.0, 1.25)
    """

    def __init__(self, model: StepTimeModel) -> None:
        self.now_s = self.before_s = self.busy_s = 0.0
        self._model = model
        self._decode_pieces: dict[int, tuple[Piece, ...]] = {}
        self._mixed_pieces: dict[tuple[int, int, int, int, int], tuple[Piece, ...]] = {}
        self._ramp = np.arange(1.0, 257.0)
        self._times = np.zeros(258)

    def step(self, key: tuple[int, int, int, int, int], context_tokens: int) -> None:
        """One step of the batch with the sums `key` (the fields of `StepBatch`)."""
        pieces = self._mixed_pieces.get(key)
        if pieces is None:
            if len(self._mixed_pieces) >= MEMO_SIZE:
                self._mixed_pieces.clear()
            pieces = self._mixed_pieces[key] = self._model.pieces(StepBatch(*key))
        duration_s = max([a + b * context_tokens for a, b in pieces])
        self.before_s = self.now_s
        self.now_s += duration_s
        self.busy_s += duration_s

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
            Time [s] to stop at; inf = none.

        Returns
        -------
        int
            Steps made.
        """
        pieces = self._decode_pieces.get(num_seqs)
        if pieces is None:
            pieces = self._decode_pieces[num_seqs] = self._model.pieces(StepBatch(0, 0, 0, 0, num_seqs))
        if bound_s < math.inf:
            first_s = max([a + b * context_tokens for a, b in pieces])
            left_s = bound_s - self.now_s
            if left_s < steps * first_s:
                steps = min(steps, int(left_s / first_s) + 2)
        if steps <= FEW_STEPS:
            return self._decode_few(steps, num_seqs, context_tokens, bound_s, pieces)
        return self._decode_many(min(steps, MANY_STEPS), num_seqs, context_tokens, bound_s, pieces)

    def sleep(self, until_s: float) -> None:
        """Pass time without a step."""
        self.now_s = max(self.now_s, until_s)

    def _decode_few(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float,
                    pieces: tuple[Piece, ...]) -> int:
        now_s, made = self.now_s, 0
        before_s = now_s
        while made < steps and now_s < bound_s:
            before_s = now_s
            duration_s = max([a + b * context_tokens for a, b in pieces])
            now_s += duration_s
            self.busy_s += duration_s
            context_tokens += num_seqs
            made += 1
        self.before_s, self.now_s = before_s, now_s
        return made

    def _decode_many(self, steps: int, num_seqs: int, context_tokens: int, bound_s: float,
                     pieces: tuple[Piece, ...]) -> int:
        while len(self._ramp) < steps:
            self._ramp = np.arange(1.0, 2.0 * len(self._ramp) + 1.0)
            self._times = np.zeros(len(self._ramp) + 2)
        times, now_s = self._times[:steps + 1], self.now_s
        times[0] = now_s
        pieces = _binding(pieces, context_tokens, context_tokens + (steps - 1) * num_seqs)
        if len(pieces) == 1 and not pieces[0][1]:
            times[1:] = pieces[0][0]
        else:
            context = self._ramp[:steps] * num_seqs
            context += context_tokens - num_seqs
            (a, b), *others = pieces
            np.multiply(context, b, out=times[1:])
            times[1:] += a
            for a, b in others:
                np.maximum(times[1:], a + b * context, out=times[1:])
        np.add.accumulate(times, out=times)
        made = steps
        if bound_s < math.inf:
            made = min(int(times.searchsorted(bound_s)), steps)
        self.before_s, self.now_s = float(times[made - 1]), float(times[made])
        self.busy_s += self.now_s - now_s
        return made


def _binding(pieces: tuple[Piece, ...], first_tokens: int, last_tokens: int) -> tuple[Piece, ...]:
    """The piece that is the largest from the first to the last context, if one is by more than rounding."""
    best = max(pieces, key=lambda piece: piece[0] + piece[1] * last_tokens)
    at_first, at_last = best[0] + best[1] * first_tokens, best[0] + best[1] * last_tokens
    margin = 1.0 - 1e-12
    for a, b in pieces:
        if (a, b) != best and (a + b * first_tokens > at_first * margin or a + b * last_tokens > at_last * margin):
            return pieces
    return (best,)
