"""Throughput, latency and hit rates of runs written by hand, and their laws."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.types import REFUSED, UNFINISHED
from kvsim.report.metrics import (
    Tokens,
    Window,
    billed_tokens,
    count_refused,
    good_requests_per_s,
    hit_rate,
    latency,
    percentiles,
    recomputed_frac,
    spread,
    throughput,
    window_of,
    within_slo,
)
from tests.report.helpers import Served, records_of, run_of

WHOLE = Window(0.0, 100.0)


def test_latencies_by_hand() -> None:
    found = latency(records_of([Served(1, 3, 12, output=10), Served(2, 3, 3, output=1)]), WHOLE)
    assert (found.ttft_s.mean, found.ttft_s.p50) == (1.5, 1.5)
    assert found.tpot_s.mean == 1.0  # nine gaps in 9 s; one token has no gap
    assert found.e2e_s.mean == 6.0


def test_itl_weighs_by_tokens_and_tpot_by_requests() -> None:
    found = latency(records_of([Served(0, 0, 1, output=2), Served(0, 0, 18, output=10)]), WHOLE)
    assert found.tpot_s.mean == 1.5
    assert found.itl_s.mean == pytest.approx((1 * 1.0 + 9 * 2.0) / 10)
    assert found.itl_s.p50 == 2.0


def test_nothing_happened() -> None:
    found = records_of([Served(0, nan, nan, status=UNFINISHED)])
    assert isnan(latency(found, WHOLE).ttft_s.p99)
    assert throughput(found, WHOLE, 8).total_tokens_per_s_per_gpu == 0
    assert throughput(found, Window(5, 5), 8).requests_per_s == 0
    assert hit_rate(run_of([Served(0, nan, nan, status=UNFINISHED)]), WHOLE, np.zeros(1, np.int64)).total == 0
    assert good_requests_per_s(found, Window(5, 5), within_slo(found, 5.0, {})) == 0


def test_throughput_by_hand() -> None:
    rows = [Served(0, 10, 20, prompt=900, cached=400, output=11), Served(0, 30, 40, prompt=100, output=1)]
    found = throughput(records_of(rows), WHOLE, 8)
    assert found.output_tokens_per_s == 0.12
    assert found.input_tokens_per_s == 10.0
    assert found.total_tokens_per_s_per_gpu == (12 + 1000) / 100 / 8
    assert found.requests_per_s == 0.02
    assert billed_tokens(records_of(rows), WHOLE) == Tokens(600, 400, 12)


def test_a_window_counts_output_as_it_is_generated() -> None:
    """21 tokens: the first at 10 s, then one a second to 30 s; a window of 5 s holds five of them."""
    rows = records_of([Served(0, 10, 30, output=21)])
    assert billed_tokens(rows, Window(12, 17)) == Tokens(0, 0, 5)
    assert billed_tokens(rows, Window(0, 12)).output == 3
    assert billed_tokens(rows, Window(0, 9)).output == 0


def test_output_cut_off_by_the_end_of_the_run_is_spread_up_to_there() -> None:
    rows = records_of([Served(0, 10, nan, output=11, status=UNFINISHED)])
    assert billed_tokens(rows, Window(0, 20)) == Tokens(100, 0, 11)
    assert billed_tokens(rows, Window(15, 20)).output == 5


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 50), st.integers(1, 500)), min_size=1, max_size=20),
       st.floats(1, 99))
def test_windows_add_up_to_the_run(rows: list[tuple[float, float, int]], cut: float) -> None:
    found = records_of([Served(0, first, first + lasts, output=n) for first, lasts, n in rows])
    parts = [billed_tokens(found, w).output for w in (Window(0, cut), Window(np.nextafter(cut, 100), 100))]
    assert sum(parts) == pytest.approx(sum(n for *_, n in rows), rel=1e-6)


def test_hit_rate_is_weighted_by_tokens() -> None:
    run = run_of([Served(0, 1, 2, prompt=1000, cached=900, external=300), Served(0, 1, 2, prompt=3000),
                  Served(0, 200, 201, prompt=10**9)], tiers=(("dram", 300),))
    found = hit_rate(run, WHOLE, np.array([950, 50, 0]))
    assert found.total == 900 / 4000
    assert found.ideal == 0.25
    assert (found.by_tier.hbm, found.by_tier.dram) == pytest.approx((600 / 4000, 300 / 4000))


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_tiers_sum_to_the_total(rows: list[tuple[int, float, float]]) -> None:
    served = [Served(0, 1, 2, prompt=n, cached=int(n * a), external=int(int(n * a) * b)) for n, a, b in rows]
    found = hit_rate(run_of(served, tiers=(("dram", 2), ("pool", 1))), WHOLE, np.zeros(len(rows), np.int64))
    tiers = found.by_tier
    assert tiers.hbm + tiers.dram + tiers.nvme + tiers.pool == pytest.approx(found.total, abs=1e-12)
    assert 0 <= found.total <= 1


def test_prompts_that_an_infinite_cache_would_have_held() -> None:
    rows = records_of([Served(0, 1, 2, prompt=1000, cached=200), Served(0, 1, 2, prompt=1000, cached=900),
                       Served(0, 200, 201, prompt=1000)])
    assert recomputed_frac(rows, np.array([800, 890, 1000]), WHOLE) == pytest.approx(600 / 900)
    assert recomputed_frac(rows, np.array([0, 0, 0]), WHOLE) == 0
    assert recomputed_frac(rows, np.array([0, 0, 0]), Window(50, 60)) == 0


def test_windows() -> None:
    run = run_of([], makespan_s=80.0)
    assert window_of(run, 10, 60) == Window(10, 60)
    assert window_of(run, 10, 1e9) == Window(10, 80)
    assert window_of(run, 90, 1e9) == Window(0, 80)  # ended within its warm-up: measured whole
    assert Window(1, 2).holds(np.array([0.9, 1.0, 2.0, 2.1, nan])).tolist() == [False, True, True, False, False]


def test_a_slo_is_kept_by_each_request() -> None:
    rows = records_of([Served(0, 1, 10, output=10), Served(0, 5, 14, output=10), Served(0, 1, 100, output=10),
                       Served(0, nan, nan, status=UNFINISHED)])
    assert within_slo(rows, 100, {}).tolist() == [True] * 4
    assert within_slo(rows, 100, {"ttft_s": {"p95": 2.0}}).tolist() == [True, False, True, False]
    assert within_slo(rows, 100, {"tpot_s": {"p50": 1.5, "p95": 1.0}}).tolist() == [True, True, False, False]
    assert within_slo(rows, 100, {"e2e_s": {"mean": 14.0}}).tolist() == [True, True, False, False]
    assert good_requests_per_s(rows, WHOLE, within_slo(rows, WHOLE.end_s, {"ttft_s": {"p95": 2.0}})) == 0.02


def test_refused_requests_are_counted() -> None:
    assert count_refused(records_of([Served(status=REFUSED), Served(), Served(status=UNFINISHED)])) == 1


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_percentiles_are_numpys_to_the_last_bit(values: list[float], percents: list[float]) -> None:
    assert percentiles(np.array(values), percents) == np.percentile(values, percents).tolist()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = spread(np.array(values))
    assert min(values) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= max(values)
    assert min(values) - 1e-6 <= found.mean <= max(values) + 1e-6


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 20)), min_size=1, max_size=20))
def test_weights_are_repetitions(pairs: list[tuple[float, int]]) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([float(w) for _, w in pairs])
    repeated = np.sort(np.repeat(values, weights.astype(int)))
    found = spread(values, weights)
    assert found.mean == pytest.approx(repeated.mean())
    assert found.p50 == pytest.approx(repeated[int(np.ceil(0.5 * len(repeated))) - 1])
