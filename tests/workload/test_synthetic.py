"""Arrival processes, chats, documents, batches: laws of their distributions, shared text, stable prefixes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.workload.ideal import ideal_cached_tokens, shared_prefix_tokens
from kvsim.workload.lengths import LogNormal
from kvsim.workload.processes import Arrival, Family, Rate, intervals, weibull_shape
from kvsim.workload.synthetic import Batch, Chat, Rag
from kvsim.workload.trees import build_session_arrivals

CHAT = Chat(LogNormal(5, 0.6, 1, 30), 1000, LogNormal(100, 0.8), LogNormal(200, 0.7), LogNormal(20.0, 1.0))
RAG = Rag(200, 3, LogNormal(600, 0.5), 1.0, 250, LogNormal(40, 0.4), LogNormal(120, 0.6))


@pytest.mark.parametrize(("family", "cv"), [("poisson", 1.0), ("gamma", 3.0), ("gamma", 0.3), ("weibull", 2.0),
                                            ("weibull", 0.5), ("even", 0.0)])
def test_rate_and_scatter_are_as_asked(family: Family, cv: float) -> None:
    times = Arrival(Rate(5.0), family, cv or 1.0).draw_s(np.random.default_rng(3), 40_000.0)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(200_000, rel=0.005 + 4 * cv / math.sqrt(200_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_a_rate_with_steps_is_kept_in_every_part() -> None:
    rate = Rate(8.0, steps=((1000.0, 20.0), (2000.0, 0.0), (3000.0, 8.0)))
    times = Arrival(rate).draw_s(np.random.default_rng(0), 4000.0)
    counts = np.histogram(times, [0, 1000, 2000, 3000, 4000])[0]
    assert counts[2] == 0
    for count, expected in zip(counts[[0, 1, 3]], (8000, 20_000, 8000), strict=True):
        assert abs(count - expected) < 4 * math.sqrt(expected)


def test_a_day_has_its_peak_and_its_mean() -> None:
    day = Rate(2.0, swing=0.8, period_s=86_400.0, peak_s=50_400.0)
    times = Arrival(day).draw_s(np.random.default_rng(0), 86_400.0)
    assert len(times) == pytest.approx(172_800, abs=4 * math.sqrt(172_800))
    by_hour = np.histogram(times, np.arange(25) * 3600.0)[0] / 3600.0
    # At the peak (14 h) 1.8 times the mean, twelve hours off 0.2 times.
    assert by_hour[13:15].mean() == pytest.approx(3.6, rel=0.04)
    assert by_hour[1:3].mean() == pytest.approx(0.4, rel=0.08)


def test_a_number_of_arrivals_is_an_end_too() -> None:
    times = Arrival(Rate(0.5, steps=((10.0, 3.0),)), "gamma", 4.0).draw_s(np.random.default_rng(1), math.inf, 700)
    assert len(times) == 700
    assert (np.diff(times) >= 0).all()
    with pytest.raises(ScenarioError, match="without end"):
        Arrival(Rate(1.0)).draw_s(np.random.default_rng(1), math.inf)


@given(st.floats(0.1, 8.0))
def test_weibull_shape_has_its_cv(cv: float) -> None:
    shape = weibull_shape(cv)
    first, second = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    assert math.sqrt(second / first**2 - 1) == pytest.approx(cv, rel=1e-6)


@given(st.integers(0, 6), st.lists(st.integers(0, 9), max_size=6))
def test_lanes_are_as_many_as_the_steps_say(initial: int, wanted: list[int]) -> None:
    found = intervals(initial, [(10.0 * (k + 1), lanes) for k, lanes in enumerate(wanted)])
    for k, lanes in enumerate([initial, *wanted]):
        assert sum(start <= 10 * k + 5 < stop for start, stop in found) == lanes


def test_a_chat_appends_answers_and_shares_only_its_system_prompt() -> None:
    trees = CHAT.trees(40, seed=1)
    for tree in trees:
        prompts, outputs = tree.prompt_tokens, tree.output_tokens
        assert (np.diff(prompts) > outputs[:-1]).all()
        assert tree.num_shared == 1
    w = build_session_arrivals(trees, np.arange(40.0) * 1e6)
    found = ideal_cached_tokens(w.requests, range(len(w.requests)))
    first = np.array([i for i in range(len(w.requests)) if not w.requests.deps(i)])
    assert found[first[1:]].tolist() == [1000] * 39
    later = np.setdiff1d(np.arange(len(w.requests)), first)
    before = later - 1
    assert (found[later] == w.requests.prompt_tokens[before] + w.requests.output_tokens[before]).all()


def test_medians_of_chats() -> None:
    trees = CHAT.trees(2000)
    assert np.median([len(t) for t in trees]) == pytest.approx(5, abs=0.5)
    assert np.median(np.concatenate([t.output_tokens for t in trees])) == pytest.approx(200, rel=0.03)
    assert np.median(np.concatenate([t.gap_s[1:] for t in trees])) == pytest.approx(20, rel=0.05)


def test_popular_documents_are_asked_for_in_proportion() -> None:
    trees = RAG.trees(20_000, seed=2)
    first = np.bincount([t.piece_content[1] - 1 for t in trees], minlength=200)
    # The first document of a prompt is a draw in proportion to k^-1.
    weights = 1 / np.arange(1, 201)
    expected = 20_000 * weights / weights.sum()
    assert (np.abs(first - expected) < 5 * np.sqrt(expected) + 1).all()
    for tree in trees[:200]:
        assert len(set(tree.piece_content[1:4].tolist())) == 3


def test_sorted_documents_and_steeper_popularity_are_found_more_often() -> None:
    def hit(rag: Rag) -> float:
        r = build_session_arrivals(rag.trees(3000), np.arange(3000.0)).requests
        return float(shared_prefix_tokens(r, range(len(r)), outputs=False).sum() / r.prompt_tokens.sum())

    def rag(zipf: float, is_sorted: bool) -> Rag:
        return Rag(200, 3, LogNormal(600), zipf, 250, LogNormal(40), LogNormal(120), is_sorted)

    flat, usual, steep = (hit(rag(zipf, False)) for zipf in (0.0, 1.0, 2.0))
    assert flat < usual < steep
    assert usual < hit(rag(1.0, True))


def test_a_batch_shares_its_instruction() -> None:
    trees = Batch(400, LogNormal(1000, 0.5), LogNormal(50)).trees(30)
    r = build_session_arrivals(trees, np.zeros(30)).requests
    assert ideal_cached_tokens(r, range(30)).tolist() == [0] + [400] * 29


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(0, 5), st.sampled_from(["chat", "rag", "batch"]))
def test_first_sessions_do_not_depend_on_how_many_follow(n: int, seed: int, kind: str) -> None:
    source = {"chat": CHAT, "rag": RAG, "batch": Batch(10, LogNormal(99, 1.0), LogNormal(9, 1.0))}[kind]
    few, many = source.trees(n, seed), source.trees(n + 5, seed)
    assert [(t.piece_content.tolist(), t.piece_tokens.tolist(), t.output_tokens.tolist()) for t in few] \
        == [(t.piece_content.tolist(), t.piece_tokens.tolist(), t.output_tokens.tolist()) for t in many[:n]]
