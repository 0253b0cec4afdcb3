"""The contract between the engine and a step-time model.

One engine step is described by sums over its requests, never by a list, so that its cost does not
grow with the batch. For a fixed composition the time of a step is the maximum of a few affine
functions of the decoders' resident context; that is what lets the fast engine sum thousands of
decode steps in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class StepBatch(NamedTuple):
    """What one engine step computes, before the decoders' context is known.

    A named tuple because the engines make millions of them.

    Attributes
    ----------
    prefill_tokens : int
        Tokens of all scheduled requests that are not decoding sequences.
    prefill_chunks : int
        Number of such requests.
    prefill_pairs : int
        Causal query-key pairs of the chunks: sum of t * offset + t * (t + 1) / 2.
    prefill_context_tokens : int
        Tokens each chunk attends to at its end, summed: sum of offset + t.
    decode_seqs : int
        Requests that get exactly one token and whose whole prompt was computed before.
    """

    prefill_tokens: int
    prefill_chunks: int
    prefill_pairs: int
    prefill_context_tokens: int
    decode_seqs: int


Piece = tuple[float, float]
"""(seconds, seconds per resident context token) of one affine function."""


class StepTimeModel(Protocol):
    """Time of one engine step.

    ``pieces(batch)`` returns affine functions (a, b), b >= 0; the step lasts
    ``max(a + b * context)`` seconds, where ``context`` is the number of tokens that the decoding
    sequences attend to in this step, each one's new token included, summed over them.
    Two batches that compare equal must give equal pieces.
    """

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Affine pieces of the step's duration."""
        ...


Sums = tuple[int, int, int, int, int]
"""The fields of a `StepBatch`."""

Seconds = Callable[[Sums, int], float]
"""Duration [s] of one step from its sums and the decoders' context [tokens]."""


@runtime_checkable
class Direct(Protocol):
    """A step-time model that can say how long a step lasts without listing its pieces; hardly two prefills are alike.

    The function gives what `step_s` does, to the last bit, for batches with ``prefill_tokens`` > 0.
    """

    def prefill_seconds(self) -> Seconds:
        """The function."""
        ...


def step_s(model: StepTimeModel, batch: StepBatch, context_tokens: int) -> float:
    """Duration [s] of one step: the largest of the pieces at `context_tokens`.

    >>> step_s(LinearStepTime(0.008, 5e-5, 4e-4), StepBatch(100, 1, 5050, 100, 2), 512)
    0.0138
    """
    return max(a + b * context_tokens for a, b in model.pieces(batch))


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """Step time with given coefficients: base + a x prefill tokens + b x decoding sequences.

    Parameters
    ----------
    base_s, per_prefill_token_s, per_decode_seq_s : float
        Coefficients [s], >= 0.
    """

    base_s: float
    per_prefill_token_s: float
    per_decode_seq_s: float

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """One constant piece; context is free."""
        return ((self.base_s + self.per_prefill_token_s * batch.prefill_tokens
                 + self.per_decode_seq_s * batch.decode_seqs, 0.0),)
