"""Sums of maxima of lines equal the maximum of the lines they are turned into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.steptime.envelope import sum_of_maxima, upper_envelope

NUMBERS = st.integers(0, 8).map(lambda n: n / 2)
LINES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6)
PLACES = (0.0, 0.1, 0.5, 1.0, 2.0, 7.0, 1e3)


def highest(lines: list[tuple[float, float]] | tuple[tuple[float, float], ...], x: float) -> float:
    return max(a + b * x for a, b in lines)


@given(LINES)
def test_envelope_keeps_the_maximum_and_nothing_more(lines: list[tuple[float, float]]) -> None:
    kept = upper_envelope(lines)
    for x in PLACES:
        assert highest(kept, x) == pytest.approx(highest(lines, x))
    assert len(set(kept)) == len(kept) <= len(set(lines))
    assert [b for _, b in kept] == sorted(b for _, b in kept)
    for line in kept:
        others = [other for other in kept if other != line]
        crossings = [(line[0] - o[0]) / (o[1] - line[1]) for o in others if o[1] != line[1]]
        assert not others or any(highest([line], x) >= highest(others, x) - 1e-9
                                 for c in (0.0, 1e6, *crossings) for x in (c, max(c, 0.0)) if x >= 0)


@given(st.lists(LINES, min_size=0, max_size=3))
def test_sum_of_maxima_is_the_sum(terms: list[list[tuple[float, float]]]) -> None:
    pieces = sum_of_maxima(terms)
    for x in PLACES:
        assert highest(pieces, x) == pytest.approx(sum(highest(lines, x) for lines in terms))
