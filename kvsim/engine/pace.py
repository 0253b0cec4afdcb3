"""How many tokens decoding sequences advance by in each step: one, or what a step with drafts accepts on average."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

FINENESS = 1000
"""Largest denominator of a mean accepted length: lengths are published to two digits."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculative decoding as the engine sees it: deterministic, at the mean accepted length.

    After ``t`` steps of the engine every sequence that decoded in all of them has advanced by
    ``floor(t x length)`` tokens (differences of it), so that all advance at one pace, by whole tokens, and the long-run
    mean is exact.

    Attributes
    ----------
    tokens : int
        Draft tokens of a decoding sequence in a step (k); each takes a place in the step's token budget.
    numerator, denominator : int
        Mean tokens that a step gives one sequence, 1 to 1 + k, as a fraction.
    drops_block : bool
        Whether a prefix hit loses its last block of attention, since the draft needs the hidden state before its first
        token (vLLM does so for EAGLE-like drafts).

    Notes
    -----
    It is wrong where the spread matters: real acceptance differs from step to step, between requests and between kinds
    of text, so that requests that finish together here finish apart there, and tails are longer.

    Examples
    --------
    >>> drafting = Drafting.of(3, 2.5)
    >>> [drafting.given(t) for t in range(6)], drafting.steps_for(7)
    ([0, 2, 5, 7, 10, 12], 3)
    """

    tokens: int
    numerator: int
    denominator: int
    drops_block: bool = True

    @classmethod
    def of(cls, tokens: int, length: float, drops_block: bool = True) -> Drafting:
        """With a mean length as a number; it is taken to the nearest thousandth or so."""
        mean = min(max(Fraction(length).limit_denominator(FINENESS), Fraction(1)), Fraction(1 + tokens))
        return cls(tokens, mean.numerator, mean.denominator, drops_block)

    @property
    def width(self) -> int:
        """Tokens of a decoding sequence in a step: its own and the drafts."""
        return 1 + self.tokens

    @property
    def length(self) -> float:
        """Mean tokens that a step gives one sequence."""
        return self.numerator / self.denominator

    @property
    def ahead_tokens(self) -> int:
        """Slots kept beyond the tokens a sequence will have after a step.

        vLLM asks for ``computed + (1 + k) + k`` slots before a step (drafts to verify, then room for the next ones);
        of these ``length`` are computed after it.
        """
        return 1 + 2 * self.tokens - self.numerator // self.denominator

    def given(self, steps: int) -> int:
        """Tokens that each decoding sequence has got in the first `steps` steps of the engine."""
        return steps * self.numerator // self.denominator

    def steps_for(self, tokens: int) -> int:
        """The first step by whose end that many tokens have been given."""
        return -(-tokens * self.denominator // self.numerator)
