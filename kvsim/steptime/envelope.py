"""Sums of maxima of lines, written as one maximum of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvsim.steptime.base import Piece


def upper_envelope(lines: Iterable[Piece]) -> tuple[Piece, ...]:
    """The lines a + b x that are largest somewhere on x >= 0, by ascending slope.

    Examples
    --------
    >>> upper_envelope([(1.0, 0.0), (0.0, 1.0), (0.0, 0.5)])
    ((1.0, 0.0), (0.0, 1.0))
    """
    kept: list[Piece] = []
    for line in sorted(set(lines), key=lambda p: (p[1], p[0])):
        while kept and _covered(kept, line):
            kept.pop()
        kept.append(line)
    while len(kept) > 1 and kept[1][0] >= kept[0][0]:
        kept.pop(0)
    return tuple(kept)


def sum_of_maxima(terms: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
    """Lines whose maximum is the sum over terms of the maximum of each term's lines.

    Examples
    --------
    >>> sum_of_maxima([[(2.0, 0.0), (0.0, 1.0)], [(1.0, 0.0)]])
    ((3.0, 0.0), (1.0, 1.0))
    """
    total: tuple[Piece, ...] = ((0.0, 0.0),)
    for lines in terms:
        total = upper_envelope((a + c, b + d) for a, b in total for c, d in lines)
    return total


def _covered(kept: list[Piece], line: Piece) -> bool:
    """Whether the last kept line is nowhere above both its left neighbour and the new, steeper `line`."""
    a, b = kept[-1]
    c, d = line
    if d == b:
        return c >= a
    if len(kept) == 1:
        return False
    e, f = kept[-2]
    return (a - c) * (b - f) <= (e - a) * (d - b)
