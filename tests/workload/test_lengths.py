"""Distributions: quantiles, means, and even spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.lengths import LogNormal, Mixture, normal_scores, spread_points


def test_quantiles_of_a_log_normal() -> None:
    # exp(1.2815516 * 1.27) * 65
    assert LogNormal(65, 1.27).at(np.array([0.1, 0.5, 0.9])) == pytest.approx([12.7669, 65.0, 330.934], rel=1e-4)


def test_mean_and_median_fix_the_log_normal() -> None:
    values = LogNormal.from_mean(3792, 1664).draw(np.random.default_rng(0), 400_000)
    assert np.median(values) == pytest.approx(1664, rel=0.01)
    assert values.mean() == pytest.approx(3792, rel=0.01)


def test_bounds_are_kept() -> None:
    values = LogNormal(100, 2.0, 20, 500).draw(np.random.default_rng(0), 10_000)
    assert (values.min(), values.max()) == (20, 500)


def test_mixture_draws_each_part_by_its_weight() -> None:
    mixture = Mixture(((3.0, LogNormal(1.0)), (1.0, LogNormal(9.0))))
    values = mixture.draw(np.random.default_rng(0), 40_000)
    assert (values == 9.0).mean() == pytest.approx(0.25, abs=0.01)
    assert mixture.at(np.array([0.74, 0.76])).tolist() == [1.0, 9.0]


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 40))
def test_first_points_do_not_depend_on_how_many_follow(seed: int, dims: int, n: int) -> None:
    for stratified in (False, True):
        few = spread_points(np.random.default_rng(seed), n, dims, stratified)
        many = spread_points(np.random.default_rng(seed), 2 * n, dims, stratified)
        assert np.array_equal(few, many[:n])
        assert ((many > 0) & (many < 1)).all()


def test_first_points_by_hand() -> None:
    shift = np.random.default_rng(0).random(2)
    points = spread_points(np.random.default_rng(0), 4, 2, stratified=True)
    expected = [[1 / 2, 1 / 3], [1 / 4, 2 / 3], [3 / 4, 1 / 9], [1 / 8, 4 / 9]]
    assert (points - shift) % 1.0 == pytest.approx(np.array(expected))


@pytest.mark.parametrize("seed", range(5))
def test_stratified_points_are_more_even_than_independent_ones(seed: int) -> None:
    def unevenness(stratified: bool) -> float:
        points = spread_points(np.random.default_rng(seed), 400, 5, stratified)
        boxes = [np.histogram2d(points[:, a], points[:, b], 4, [[0, 1], [0, 1]])[0] for a in range(5) for b in range(a)]
        return float(np.abs(np.array(boxes) - 25).max())

    assert unevenness(True) < 8 < unevenness(False)


def test_normal_scores_are_the_inverse_of_the_distribution() -> None:
    assert normal_scores(np.array([0.5, 0.975])) == pytest.approx([0.0, 1.959964], abs=1e-6)
