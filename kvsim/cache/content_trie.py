"""Which blocks of which requests are the same: a tree of content, cut into chains of blocks.

Two requests share a block exactly when all their tokens up to its end are equal. The tree is built once, before a
run, from the pieces of all requests, so that a run never looks at a token or a block: it works on *chains*. A chain
is a path of blocks that starts where its content left its parent's and goes on as deep as anybody's does; whoever
uses only a part of it, or branches off half-way, does not cut it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Requests

Path = list[tuple[int, int]]
"""(chain, end block) from the root to the leaf; a chain is used from its start block to the end block."""


PORTION = 1 << 16
"""Pieces held as Python numbers at a time while a tree is built."""


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

    def path(self, i: int) -> Path:
        """Chains of request `i` with the block at which it leaves each."""
        chain, end = self.leaf[i], self.num_blocks[i]
        if chain >= 0 and self.parent[chain] < 0:
            return [(chain, end)]
        path: Path = []
        while chain >= 0:
            path.append((chain, end))
            end = self.start_block[chain]
            chain = self.parent[chain]
        path.reverse()
        return path

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
        self.num_tokens: list[int] = (prompt + requests.output_tokens).tolist()
        self.with_repeats = _rows_with_repeats(requests)

    def build(self) -> ContentTrie:
        """Private requests, then the prompts of the others, then their outputs."""
        shared = self._place_private()
        ends = self._place_prompts(shared)
        fresh = _occurs_once(self.requests.output_content, self.requests.piece_content)[shared].tolist()
        outputs = self.requests.output_content[shared].tolist()
        for i, end, content, is_fresh in zip(shared, ends, outputs, fresh, strict=True):
            if is_fresh and self.num_blocks[i] == self.prompt_tokens[i] // self.block_tokens:
                chain = end[0]
                self.num_tokens[i] = self.prompt_tokens[i]
            else:
                chain = self._place_output(i, end, content)
            self.bottom[i] = chain
            self.leaf[i] = self._last_used(chain, self.num_blocks[i])
        return ContentTrie(self.start, self.parent, self._count_users(), self.leaf, self.num_blocks, self.start_token,
                           self.above, self.bottom, self.num_tokens)

    def _place_private(self) -> list[int]:
        """Give a chain to every request that nobody shares a token with; return the other requests."""
        requests = self.requests
        n = len(requests)
        if not n:
            return []
        first = requests.piece_content[requests.piece_offsets[:-1]]
        private = _occurs_once(first, np.zeros(0, np.int64))
        num = int(private.sum())
        self.start, self.parent = [0] * num, [-1] * num
        self.start_token, self.above = [0] * num, [-1] * num
        self.content, self.ends = [[]] * num, [[]] * num
        leaf = np.where(private, np.cumsum(private) - 1, -1)
        leaf[np.array(self.num_blocks, np.int64) == 0] = -1
        self.leaf = leaf.tolist()
        return np.flatnonzero(~private).tolist()

    def _place_prompts(self, rows: list[int]) -> list[tuple[int, int]]:
        """Chain and piece at which each prompt ends, growing the tree as needed; pieces become lists in portions."""
        requests = self.requests
        offsets: list[int] = requests.piece_offsets.tolist()
        placed: list[tuple[int, int]] = []
        contents: list[int] = []
        tokens: list[int] = []
        base = limit = 0
        for i in rows:
            start, stop = offsets[i], offsets[i + 1]
            if stop > limit:
                base, limit = start, max(stop, min(start + PORTION, offsets[-1]))
                contents = requests.piece_content[base:limit].tolist()
                tokens = requests.piece_tokens[base:limit].tolist()
            own, ends = contents[start - base:stop - base], [*accumulate(tokens[start - base:stop - base])]
            if i in self.with_repeats:
                own, ends = _merged(own, ends)
            placed.append(self._place_prompt(own, ends))
        return placed

    def _place_prompt(self, contents: list[int], ends: list[int]) -> tuple[int, int]:
        """Chain and piece at which one prompt ends."""
        root = self.roots.get(contents[0])
        if root is None:
            self.roots[contents[0]] = len(self.start)
            return self._new_chain(-1, 0, contents, ends)
        return self._walk(root, 0, contents, ends)

    def _place_output(self, i: int, end: tuple[int, int], content: int) -> int:
        """Chain at which the output of request `i` ends, following what others wrote there."""
        chain, j = end
        at = self.prompt_tokens[i]
        stop = [at + int(self.requests.output_tokens[i])]
        contents, ends = self.content[chain], self.ends[chain]
        if contents[j] == content:
            return self._walk(chain, j, [content], stop)[0]
        if ends[j] == at and j + 1 == len(contents):
            contents.append(content)
            ends.append(stop[0])
            return chain
        if ends[j] == at and contents[j + 1] == content:
            return self._walk(chain, j + 1, [content], stop)[0]
        return self._branch(chain, at, [content], stop)[0]

    def _walk(self, chain: int, j: int, contents: list[int], ends: list[int]) -> tuple[int, int]:
        """Follow pieces down from piece `j` of a chain, with which the first one begins alike."""
        i, last = 0, len(contents) - 1
        while True:
            own, own_ends = self.content[chain], self.ends[chain]
            own_last = len(own) - 1
            while i < last and j < own_last and ends[i] == own_ends[j] and contents[i + 1] == own[j + 1]:
                i += 1
                j += 1
            end, own_end = ends[i], own_ends[j]
            if end <= own_end and i == last:
                return chain, j
            if end >= own_end and j == own_last:
                own_ends[j] = end
                own.extend(contents[i + 1:])
                own_ends.extend(ends[i + 1:])
                return chain, len(own) - 1
            i += end <= own_end
            at = min(end, own_end)
            child = self.branches.get((chain, at, contents[i]))
            if child is None:
                return self._branch(chain, at, contents[i:], ends[i:])
            chain, j = child, 0

    def _branch(self, chain: int, at: int, contents: list[int], ends: list[int]) -> tuple[int, int]:
        """Follow or open the branch that leaves `chain` after `at` tokens with the given pieces."""
        key = (chain, at, contents[0])
        child = self.branches.get(key)
        if child is not None:
            return self._walk(child, 0, contents, ends)
        self.branches[key] = len(self.start)
        return self._new_chain(chain, at, contents, ends)

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


def _rows_with_repeats(requests: Requests) -> set[int]:
    """Rows in whose prompt neighbouring pieces are of the same stream."""
    content, offsets = requests.piece_content, requests.piece_offsets
    first = np.flatnonzero(content[1:] == content[:-1])
    rows = np.searchsorted(offsets, first, side="right") - 1
    return set(rows[first + 1 < offsets[rows + 1]].tolist())


def _merged(contents: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
    """Join neighbouring pieces of the same stream."""
    keep = [k for k in range(len(contents)) if k + 1 == len(contents) or contents[k] != contents[k + 1]]
    return [contents[k] for k in keep], [ends[k] for k in keep]
