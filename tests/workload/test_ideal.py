"""The infinite cache: hand-computed cases, and agreement with a token-by-token search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.content_trie import build_trie
from kvsim.workload.ideal import PrefixTree, ideal_cached_tokens, shared_prefix_tokens
from kvsim.workload.requests import Requests, Row, requests_from_rows

pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=5)
rows = st.builds(Row, prompt=pieces, output_tokens=st.integers(1, 4), output_content=st.integers(0, 2))


def tokens_of(merged: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every token as (content, place in it)."""
    return [(content, k) for content, n in merged for k in range(n)]


def brute(requests: Requests, order: list[int], outputs: bool) -> list[int]:
    found, seen = [0] * len(requests), list[list[tuple[int, int]]]()
    for i in order:
        prompt = tokens_of(requests.prompt(i))
        for other in seen:
            same = 0
            while same < min(len(prompt), len(other)) and prompt[same] == other[same]:
                same += 1
            found[i] = max(found[i], same)
        seen.append(tokens_of(requests.full(i)) if outputs else prompt)
    return found


def test_next_turn_finds_prompt_and_output() -> None:
    r = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 20, 0), Row([(0, 120), (1, 9)], 1, 1)])
    assert ideal_cached_tokens(r, [0, 1, 2]).tolist() == [0, 110, 120]


def test_unique_output_is_not_found() -> None:
    r = requests_from_rows([Row([(0, 100)], 10, 7), Row([(0, 150)], 20, 8)])
    assert ideal_cached_tokens(r, [0, 1]).tolist() == [0, 100]


def test_order_decides_who_finds_whom() -> None:
    r = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 20, 0)])
    assert ideal_cached_tokens(r, [1, 0]).tolist() == [99, 0]
    assert ideal_cached_tokens(r, [1]).tolist() == [0, 0]


def test_branch_is_found_behind_a_shared_stem() -> None:
    r = requests_from_rows([Row([(0, 10), (1, 5)], 1, 9), Row([(0, 10), (2, 5)], 1, 9), Row([(0, 10), (1, 9)], 1, 9)])
    assert shared_prefix_tokens(r, range(3), outputs=False).tolist() == [0, 10, 15]


@given(st.lists(rows, min_size=1, max_size=8), st.booleans(), st.randoms(use_true_random=False))
def test_agrees_with_token_by_token_search(given_rows: list[Row], outputs: bool, random: "object") -> None:
    r = requests_from_rows(given_rows)
    order = list(range(len(r)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert shared_prefix_tokens(r, order, outputs).tolist() == brute(r, order, outputs)


@given(st.lists(rows, min_size=1, max_size=8), st.sampled_from([1, 2, 4, 64]), st.randoms(use_true_random=False))
def test_chains_of_content_say_the_same(given_rows: list[Row], block_tokens: int, random: "object") -> None:
    r = requests_from_rows(given_rows)
    order = list(range(len(r)))
    random.shuffle(order)  # type: ignore[attr-defined]
    order = order[:len(order) - len(order) // 3]
    found = build_trie(r, block_tokens).ideal_tokens(r.prompt_tokens, order)
    assert found.tolist() == ideal_cached_tokens(r, order).tolist()


@given(st.lists(rows, min_size=1, max_size=8))
def test_never_the_whole_prompt_and_outputs_only_help(given_rows: list[Row]) -> None:
    r = requests_from_rows(given_rows)
    ideal = ideal_cached_tokens(r, range(len(r)))
    assert (ideal <= r.prompt_tokens - 1).all()
    assert (ideal >= 0).all()
    without = np.minimum(shared_prefix_tokens(r, range(len(r)), outputs=False), r.prompt_tokens - 1)
    assert (ideal >= without).all()


@pytest.mark.parametrize("tokens", [1, 5])
def test_same_sequence_is_found_whole(tokens: int) -> None:
    seen = PrefixTree()
    assert seen.add([(4, tokens)]) == 0
    assert seen.shared([(4, tokens)]) == tokens
    assert seen.add([(4, tokens)]) == tokens
