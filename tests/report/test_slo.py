"""SLO goodput by traffic class, interactivity, Pareto front."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report.metrics import Window
from kvsim.report.slo import Classes, ParetoPoint, good_requests, goodput_by_class, interactivity, pareto
from tests.report.helpers import Served, records_of

WHOLE = Window(0.0, 100.0)
ROWS = [Served(0.0, 1.0, 11.0, output=11), Served(0.0, 5.0, 25.0, output=11), Served(0.0, 3.0, 8.0, output=11)]
CLASSES = Classes(np.array([0, 0, 1]), ("main", "subagent"))


def test_classes_have_the_general_limits_or_their_own() -> None:
    records = records_of(ROWS)
    general = {"ttft_s": {"p95": 2.0}}
    assert good_requests(records, 100.0, general, CLASSES).tolist() == [True, False, False]
    own = {**general, "by_class": {"subagent": {"ttft_s": {"p95": 4.0}}, "unheard of": {"ttft_s": {"p95": 0.1}}}}
    assert good_requests(records, 100.0, own, CLASSES).tolist() == [True, False, True]
    assert good_requests(records, 100.0, own).tolist() == [True, False, False]


def test_goodput_by_class_sums_to_all() -> None:
    records = records_of(ROWS)
    good = good_requests(records, 100.0, {"ttft_s": {"p95": 3.0}})
    found = goodput_by_class(records, WHOLE, good, CLASSES)
    assert (found["main"].num_requests, found["main"].within_slo_frac) == (2, 0.5)
    assert (found["subagent"].num_requests, found["subagent"].within_slo_frac) == (1, 1.0)
    assert sum(c.requests_per_s for c in found.values()) == pytest.approx(good.sum() / 100.0)
    assert goodput_by_class(records, Window(90.0, 95.0), good, CLASSES) == {}


def test_interactivity_is_reached_by_nine_in_ten() -> None:
    rows = [Served(0.0, 1.0, float(e2e), output=10) for e2e in range(1, 12)]
    assert interactivity(records_of(rows), WHOLE) == pytest.approx(10 / 10.0)
    assert isnan(interactivity(records_of(rows), Window(90.0, 95.0)))


POINTS = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), min_size=1, max_size=20)


@given(POINTS)
def test_no_point_of_the_front_is_beaten_and_every_other_is(pairs: list[tuple[float, float]]) -> None:
    points = [ParetoPoint(str(i), *pair) for i, pair in enumerate(pairs)]
    front = pareto(points)

    def beats(a: ParetoPoint, b: ParetoPoint) -> bool:
        return (a.tokens_per_s_per_gpu >= b.tokens_per_s_per_gpu
                and a.interactivity_tokens_per_s >= b.interactivity_tokens_per_s)

    assert not any(beats(a, b) for a in front for b in front if a is not b)
    assert all(any(beats(f, p) for f in front) for p in points)
