"""Which blocks of which requests are the same: a tree of content, cut into chains of blocks.

Two requests share a block exactly when all their tokens up to its end are equal. The tree is built once, before a
run, from the pieces of all requests, so that a run never looks at a token or a block: it works on *chains*. A chain
is a path of blocks that starts where its content left its parent's and goes on as deep as anybody's does; whoever
uses only a part of it, or branches off half-way, does not cut it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.columns import offsets_of, take_ragged
from kvsim.workload.requests import Requests

Path = list[tuple[int, int]]
"""(chain, end block) from the root to the leaf; a chain is used from its start block to the end block."""


PORTION = 1 << 16
"""Pieces held as Python numbers at a time while a tree is built."""

LONG_WAY = 64
"""Chains above one that are remembered at most: in a content that forks at every turn they would fill the memory."""


@dataclass(frozen=True, slots=True)
class ContentTrie:
    """Chains of blocks, and the chain at which each request ends.

    Attributes
    ----------
    start_block : list of int
        First block of each chain, counted from the start of the prompt.
    parent : list of int
        Chain that holds the blocks before it; -1 at a root.
    users : list of int
        Requests whose blocks include some of the chain's own.
    leaf : list of int
        Last chain of each request; -1 when it never fills a block.
    num_blocks : list of int
        Blocks that each request fills (its last generated token is never computed).
    start_token, above : list of int
        Token at which each chain leaves the chain above it, and that chain; -1 at a root. It can be another one than
        `parent` where a chain holds no whole block.
    bottom, num_tokens : list of int
        Chain at which each request ends, prompt and output, and its tokens in the tree; -1 when it shares no token.
        Outputs that nobody could find need not be in the tree.
    ways : dict of int to Path
        Chains above a chain, kept once somebody has asked for them unless they are many.

    Examples
    --------
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> trie = build_trie(requests_from_rows([Row([(0, 64)], 17, 1), Row([(0, 40), (2, 30)], 9, 3)]), 16)
    >>> trie.path(0), trie.path(1)
    ([(0, 5)], [(0, 2), (1, 4)])
    """

    start_block: list[int]
    parent: list[int]
    users: list[int]
    leaf: list[int]
    num_blocks: list[int]
    start_token: list[int]
    above: list[int]
    bottom: list[int]
    num_tokens: list[int]
    ways: dict[int, Path] = field(default_factory=dict[int, Path], compare=False, repr=False)

    def path(self, i: int) -> Path:
        """Chains of request `i` with the block at which it leaves each."""
        chain = self.leaf[i]
        if chain < 0:
            return []
        above = self.parent[chain]
        if above < 0:
            return [(chain, self.num_blocks[i])]
        way = self.ways.get(above)
        if way is None:
            way = self._way(above)
        return [*way, (above, self.start_block[chain]), (chain, self.num_blocks[i])]

    def _way(self, chain: int) -> Path:
        """Chains above a chain with the block at which its requests leave each."""
        way: Path = []
        at = chain
        while (above := self.parent[at]) >= 0:
            way.append((above, self.start_block[at]))
            at = above
        way.reverse()
        if len(way) <= LONG_WAY:
            self.ways[chain] = way
        return way

    def token_path(self, i: int) -> Path:
        """Chains of request `i` and its output with the token at which it leaves each; none if it shares nothing."""
        chain, end = self.bottom[i], self.num_tokens[i]
        path: Path = []
        while chain >= 0:
            path.append((chain, end))
            end = self.start_token[chain]
            chain = self.above[chain]
        path.reverse()
        return path

    def ideal_tokens(self, prompt_tokens: NDArray[np.int64], order: Iterable[int]) -> NDArray[np.int64]:
        """What `kvsim.workload.ideal.ideal_cached_tokens` finds, by chains.

        Parameters
        ----------
        prompt_tokens : int array [n]
            Length of each prompt [tokens].
        order : iterable of int
            Rows in the order of time, each at most once.

        Returns
        -------
        int array [n]
            Prompt tokens that an infinite cache of prompts and outputs would find, the last one never.

        Examples
        --------
        >>> from kvsim.workload.requests import Row, requests_from_rows
        >>> asked = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 20, 0), Row([(0, 120), (1, 9)], 1, 1)])
        >>> build_trie(asked, 16).ideal_tokens(asked.prompt_tokens, range(3)).tolist()
        [0, 110, 120]
        """
        seen = [0] * len(self.start_token)
        found = np.zeros(len(prompt_tokens), np.int64)
        bottom, start_token = self.bottom, self.start_token
        for i in order:
            if bottom[i] < 0:
                continue
            total, matching = 0, True
            for chain, end in self.token_path(i):
                known = seen[chain]
                if matching:
                    matching = known >= end
                    total = end if matching else known or start_token[chain]
                if known < end:
                    seen[chain] = end
            found[i] = total
        return np.minimum(found, np.maximum(prompt_tokens - 1, 0))


def build_trie(requests: Requests, block_tokens: int) -> ContentTrie:
    """Sort the content of all requests into chains.

    Prompts go in before outputs: a session that grows then is one long chain, whatever its turns generated.

    Parameters
    ----------
    requests : Requests
        Columns of the workload.
    block_tokens : int
        Tokens a block holds, >= 1.

    Returns
    -------
    ContentTrie
        About 2 us a request and 0.2 us a piece.
    """
    return _Builder(requests, block_tokens).build()


class _Builder:
    """The tree while it grows: chains with their pieces, and where others branch off."""

    def __init__(self, requests: Requests, block_tokens: int) -> None:
        self.requests, self.block_tokens = requests, block_tokens
        prompt = requests.prompt_tokens
        self.prompt_tokens: list[int] = prompt.tolist()
        self.num_blocks: list[int] = ((prompt + requests.output_tokens - 1) // block_tokens).tolist()
        self.start: list[int] = []
        self.parent: list[int] = []
        self.start_token: list[int] = []
        self.above: list[int] = []
        self.content: list[list[int]] = []
        self.ends: list[list[int]] = []
        self.roots: dict[int, int] = {}
        self.branches: dict[tuple[int, int, int], int] = {}
        self.leaf: list[int] = []
        self.bottom = [-1] * len(requests)
        self.num_tokens: list[int] = []

    def build(self) -> ContentTrie:
        """Private requests, then the prompts of the others, then their outputs."""
        requests, prompt = self.requests, self.requests.prompt_tokens
        rows = self._place_private()
        shared: list[int] = rows.tolist()
        ends = self._place_prompts(rows)
        unseen = np.zeros(len(requests), bool)
        unseen[rows] = _occurs_once(requests.output_content, requests.piece_content)[rows]
        unseen &= np.array(self.num_blocks, np.int64) == prompt // self.block_tokens
        self.num_tokens = (prompt + np.where(unseen, 0, requests.output_tokens)).tolist()
        outputs: list[int] = requests.output_content[rows].tolist()
        for i, (chain, j), content, is_unseen in zip(shared, ends, outputs, unseen[rows].tolist(), strict=True):
            if not is_unseen:
                chain = self._place_output(i, chain, j, content)
            self.bottom[i] = chain
            end = self.num_blocks[i]
            self.leaf[i] = chain if self.start[chain] < end else self._last_used(chain, end)
        return ContentTrie(self.start, self.parent, self._count_users(), self.leaf, self.num_blocks, self.start_token,
                           self.above, self.bottom, self.num_tokens)

    def _place_private(self) -> NDArray[np.int64]:
        """Give a chain to every request that nobody shares a token with; return the other requests."""
        requests = self.requests
        first = requests.piece_content[requests.piece_offsets[:-1]]
        private = _occurs_once(first, np.zeros(0, np.int64))
        num = int(private.sum())
        self.start, self.parent = [0] * num, [-1] * num
        self.start_token, self.above = [0] * num, [-1] * num
        self.content, self.ends = [[]] * num, [[]] * num
        leaf = np.where(private, np.cumsum(private) - 1, -1)
        leaf[np.array(self.num_blocks, np.int64) == 0] = -1
        self.leaf = leaf.tolist()
        return np.flatnonzero(~private)

    def _place_prompts(self, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Chain and piece at which each prompt ends, growing the tree as needed; pieces become lists in portions."""
        stops = self.requests.piece_offsets[rows + 1]
        placed: list[tuple[int, int]] = []
        while (done := len(placed)) < len(rows):
            limit = self.requests.piece_offsets[rows[done]] + PORTION
            num = max(int(np.searchsorted(stops[done:], limit, side="right")), 1)
            contents, ends, offsets = _merged(self.requests, rows[done:done + num])
            placed += [self._place_prompt(contents, ends, start, stop) for start, stop in pairwise(offsets)]
        return placed

    def _place_prompt(self, contents: list[int], ends: list[int], i: int, stop: int) -> tuple[int, int]:
        """Chain and piece at which one prompt ends, pieces `i` to `stop` of those given."""
        root = self.roots.get(contents[i])
        if root is None:
            self.roots[contents[i]] = len(self.start)
            return self._new_chain(-1, 0, contents[i:stop], ends[i:stop])
        return self._walk(root, 0, contents, ends, i, stop)

    def _place_output(self, i: int, chain: int, j: int, content: int) -> int:
        """Chain at which the output of request `i` ends, following what others wrote behind piece `j` of its chain."""
        at, end = self.prompt_tokens[i], self.num_tokens[i]
        contents, ends = self.content[chain], self.ends[chain]
        if contents[j] == content:
            if end <= ends[j]:
                return chain
            return self._walk(chain, j, [content], [end], 0, 1)[0]
        if ends[j] == at and j + 1 == len(contents):
            contents.append(content)
            ends.append(end)
            return chain
        if ends[j] == at and contents[j + 1] == content:
            return self._walk(chain, j + 1, [content], [end], 0, 1)[0]
        key = (chain, at, content)
        child = self.branches.get(key)
        if child is not None:
            return self._walk(child, 0, [content], [end], 0, 1)[0]
        self.branches[key] = len(self.start)
        return self._new_chain(chain, at, [content], [end])[0]

    def _walk(self, chain: int, j: int, contents: list[int], ends: list[int], i: int, stop: int) -> tuple[int, int]:
        """Follow pieces `i` to `stop` down from piece `j` of a chain, with which the first one begins alike."""
        last = stop - 1
        while True:
            own, own_ends = self.content[chain], self.ends[chain]
            own_last = len(own) - 1
            while i < last and j < own_last and ends[i] == own_ends[j] and contents[i + 1] == own[j + 1]:
                i += 1
                j += 1
            end, at = ends[i], own_ends[j]
            if end >= at and j == own_last:
                own_ends[j] = end
                if i < last:
                    own += contents[i + 1:stop]
                    own_ends += ends[i + 1:stop]
                return chain, len(own) - 1
            if end <= at:
                if i == last:
                    return chain, j
                i, at = i + 1, end
            key = (chain, at, contents[i])
            child = self.branches.get(key)
            if child is None:
                self.branches[key] = len(self.start)
                return self._new_chain(chain, at, contents[i:stop], ends[i:stop])
            chain, j = child, 0

    def _new_chain(self, parent: int, at: int, contents: list[int], ends: list[int]) -> tuple[int, int]:
        start = at // self.block_tokens
        self.parent.append(self._last_used(parent, start))
        self.start.append(start)
        self.start_token.append(at)
        self.above.append(parent)
        self.content.append(contents)
        self.ends.append(ends)
        return len(self.start) - 1, len(contents) - 1

    def _last_used(self, chain: int, end_block: int) -> int:
        """The chain, or its nearest ancestor, that holds the last block before `end_block`."""
        while chain >= 0 and self.start[chain] >= end_block:
            chain = self.parent[chain]
        return chain

    def _count_users(self) -> list[int]:
        leaf = np.array(self.leaf, np.int64)
        users: list[int] = np.bincount(leaf[leaf >= 0], minlength=len(self.start)).tolist()
        for chain in range(len(self.start) - 1, -1, -1):
            if self.parent[chain] >= 0:
                users[self.parent[chain]] += users[chain]
        return users


def _occurs_once(values: NDArray[np.int64], elsewhere: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `values` occur only once among them and not at all elsewhere."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    once = counts[inverse] == 1
    return once & ~np.isin(values, elsewhere) if len(elsewhere) else once


def _merged(requests: Requests, rows: NDArray[np.int64]) -> tuple[list[int], list[int], list[int]]:
    """Pieces of some prompts, neighbours of one stream joined: contents, ends [tokens], and where each row begins."""
    offsets, content = take_ragged(requests.piece_offsets, requests.piece_content, rows)
    tokens = take_ragged(requests.piece_offsets, requests.piece_tokens, rows)[1]
    total = offsets_of(tokens)
    ends = total[1:] - np.repeat(total[offsets[:-1]], np.diff(offsets))
    is_last = np.ones(len(content), bool)
    np.not_equal(content[1:], content[:-1], out=is_last[:-1])
    is_last[offsets[1:] - 1] = True
    return content[is_last].tolist(), ends[is_last].tolist(), offsets_of(is_last)[offsets].tolist()
