"""What a cache without limits would find: the ceiling of every hit rate, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvsim.workload.requests import Ints, Requests


class PrefixTree:
    """All token sequences seen so far, as a tree whose edges are content streams.

    Examples
    --------
    >>> seen = PrefixTree()
    >>> seen.add([(1, 100), (2, 50)])
    0
    >>> seen.add([(1, 120)]), seen.add([(1, 110), (3, 5)]), seen.add([(1, 100), (2, 80)])
    (100, 110, 150)
    """

    def __init__(self) -> None:
        self._edges: dict[tuple[int, int, int], int] = {}
        self._length: list[int] = [0]

    def shared(self, pieces: Iterable[tuple[int, int]]) -> int:
        """Leading tokens of a sequence that some added sequence also starts with."""
        edge, at, total = 0, 0, 0
        for content, tokens in pieces:
            found = self._edges.get((edge, at, content))
            if found is None:
                break
            known = self._length[found]
            if known < tokens:
                return total + known
            total += tokens
            edge, at = found, tokens
        return total

    def add(self, pieces: Iterable[tuple[int, int]]) -> int:
        """Add a sequence; returns what `shared` said before."""
        edge, at, total, matching = 0, 0, 0, True
        for content, tokens in pieces:
            edge = self._edges.setdefault((edge, at, content), len(self._length))
            if edge == len(self._length):
                self._length.append(0)
            known = self._length[edge]
            total += min(known, tokens) if matching else 0
            matching = matching and known >= tokens
            self._length[edge] = max(known, tokens)
            at = tokens
        return total


def shared_prefix_tokens(requests: Requests, order: Iterable[int], outputs: bool = True) -> Ints:
    """Leading prompt tokens that an earlier request's prompt (or prompt and output) started with.

    Parameters
    ----------
    requests : Requests
        What is asked.
    order : iterable of int
        Rows in the order of time, each at most once; rows left out are not played and get 0.
    outputs : bool
        Whether outputs stay in the cache too. Traces of block ids know prompts only: False there.

    Returns
    -------
    int array [n]
        Tokens, 0 to the prompt's length. Every request is looked up before it is added; service time is zero.

    Notes
    -----
    O(number of pieces), by a tree of content streams: exact, since two prompts share exactly their equal
    leading tokens, and different contents share none. Rows whose first content begins no other row are skipped.

    Examples
    --------
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> two = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 10, 0)])
    >>> shared_prefix_tokens(two, [0, 1]).tolist(), shared_prefix_tokens(two, [0, 1], outputs=False).tolist()
    ([0, 110], [0, 100])
    """
    found = np.zeros(len(requests), np.int64)
    seen = PrefixTree()
    begun = _begun_twice(requests)
    for i in order:
        if not begun[i]:
            continue
        if outputs:
            found[i] = seen.shared(requests.prompt(i))
            seen.add(requests.full(i))
        else:
            found[i] = seen.add(requests.prompt(i))
    return found


def _begun_twice(requests: Requests) -> list[bool]:
    """Whether another row begins with the same content; rows without a prompt begin with nothing."""
    starts = requests.piece_offsets[:-1]
    filled = starts < requests.piece_offsets[1:]
    first = np.full(len(requests), -1, np.int64)
    first[filled] = requests.piece_content[starts[filled]]
    _, place, counts = np.unique(first, return_inverse=True, return_counts=True)
    return (counts[place] > 1).tolist()


def ideal_cached_tokens(requests: Requests, order: Iterable[int]) -> Ints:
    """Prompt tokens that an infinite cache of prompts and outputs would find, at token resolution.

    Parameters
    ----------
    requests : Requests
        What is asked.
    order : iterable of int
        Rows in the order of time, each at most once.

    Returns
    -------
    int array [n]
        Tokens per request: the longest prefix common with any earlier prompt + output, and at most
        the prompt less one token, since the last one must be computed to get an output.

    Examples
    --------
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> twice = requests_from_rows([Row([(0, 100)], 10, 1), Row([(0, 100)], 10, 2)])
    >>> ideal_cached_tokens(twice, [0, 1]).tolist()
    [0, 99]
    """
    found = shared_prefix_tokens(requests, order)
    return np.minimum(found, np.maximum(requests.prompt_tokens - 1, 0))
