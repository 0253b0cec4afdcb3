"""Synthetic requests."""

import numpy as np
import pytest

from kvsim.errors import ScenarioError
from kvsim.workload.fixed import Clients, Poisson, build_fixed
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.lengths import LogNormal
from tests.workload.helpers import play


def test_prompts_share_nothing() -> None:
    w = build_fixed(50, 4000, 300, Clients(4))
    assert ideal_cached_tokens(w.requests, range(50)).sum() == 0
    assert set(w.requests.output_tokens.tolist()) == {300}


def test_clients_ask_again_after_their_answer() -> None:
    w = build_fixed(5, 10, 1, Clients(2, think_s=1.0))
    assert play(w, np.array([2.0, 5.0, 2.0, 2.0, 2.0])).tolist() == [1.0, 1.0, 4.0, 7.0, 7.0]


def test_more_clients_than_requests() -> None:
    assert play(build_fixed(2, 10, 1, Clients(9)), np.ones(2)).tolist() == [0.0, 0.0]


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    arrival = build_fixed(50_000, 10, 1, Poisson(4.0), seed=2).requests.arrival_s
    gaps = np.diff(arrival)
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.02)


def test_drawn_lengths_have_their_median() -> None:
    r = build_fixed(20_000, LogNormal(4000, 1.0, 1, 100_000), LogNormal(300, 0.5), Poisson(1.0)).requests
    assert np.median(r.prompt_tokens) == pytest.approx(4000, rel=0.03)
    assert np.median(r.output_tokens) == pytest.approx(300, rel=0.03)
    assert r.prompt_tokens.max() <= 100_000


def test_arrivals_do_not_change_with_the_lengths() -> None:
    one = build_fixed(10, 100, 10, Poisson(1.0), seed=5).requests
    two = build_fixed(10, LogNormal(100, 1.0), 10, Poisson(1.0), seed=5).requests
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.prompt_tokens, two.prompt_tokens)


@pytest.mark.parametrize(("n", "load"), [
    (0, Clients(1)), (1, Clients(0)), (1, Clients(1, -1.0)), (1, Poisson(0.0)), (1, Poisson(float("inf")))])
def test_impossible_loads_are_refused(n: int, load: Clients | Poisson) -> None:
    with pytest.raises(ScenarioError):
        build_fixed(n, 10, 1, load)
