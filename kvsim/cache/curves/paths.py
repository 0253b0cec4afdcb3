"""Prompts as paths of blocks in the tree of all prompts of a trace.

A block is known by its whole prefix. *Chains* are the branches of that tree: a chain begins where a prompt
leaves another one, and every prompt that enters a chain runs through its blocks from the first on. Per request there
are few chains however long the prompt is, which is what makes the policies fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import Problem, TraceError
from kvsim.workload.columns import offsets_of
from kvsim.workload.requests import Ints
from kvsim.workload.table import Trace


@dataclass(frozen=True, slots=True)
class Paths:
    """Block paths of all requests of a trace.

    Attributes
    ----------
    tokens : int array [n]
        Prompt length [tokens].
    blocks : int array [n]
        Blocks of each prompt.
    block_tokens : int
        Tokens of a block.
    offsets : list of int [n + 1]
        Request ``i`` runs through entries ``offsets[i]:offsets[i + 1]`` of `chain` and `end`, root first.
    chain, end : list of int
        A chain and the depth [blocks from the root] up to which the request follows it.
    depth : list of int [num chains]
        Depth at which each chain begins.
    num_blocks : int
        Distinct blocks.
    """

    tokens: Ints
    blocks: Ints
    block_tokens: int
    offsets: list[int]
    chain: list[int]
    end: list[int]
    depth: list[int]
    num_blocks: int

    def __len__(self) -> int:
        return len(self.tokens)


def paths_of(trace: Trace, block_tokens: int | None = None) -> Paths:
    """Block paths of a trace.

    Parameters
    ----------
    trace : Trace
        Must know contents.
    block_tokens : int, optional
        Tokens of a block, where the trace has no block ids of its own (16 by default).

    Returns
    -------
    Paths
        Full blocks only, unless the trace has ids of incomplete last blocks too.

    Raises
    ------
    TraceError
        The trace knows lengths only, or has block ids of another size.

    Examples
    --------
    >>> from kvsim.workload.table import Entry, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = builder.add(Entry(0.0, 40, 1, "a", [(0, 40)], 1))
    >>> _ = builder.add(Entry(1.0, 70, 1, "a", [(0, 32), (2, 38)], 3))
    >>> from dataclasses import replace
    >>> paths = paths_of(replace(builder.build("")[0], knowledge="sessions"), 16)
    >>> paths.chain, paths.end, paths.depth, paths.num_blocks
    ([0, 0, 1], [2, 2, 4], [0, 2], 4)
    """
    size = _block_tokens(trace, block_tokens)
    up = size - 1 if trace.partial_blocks else 0
    walker = _Walker(size, up)
    ends = [0]
    content, tokens, pieces = (a.tolist() for a in (trace.piece_content, trace.piece_tokens, trace.piece_offsets))
    for i in range(len(trace)):
        walker.walk(content[pieces[i]:pieces[i + 1]], tokens[pieces[i]:pieces[i + 1]])
        ends.append(len(walker.chain))
    longest = np.zeros(len(walker.depth), np.int64)
    np.maximum.at(longest, np.array(walker.chain, np.int64), np.array(walker.end, np.int64))
    reach = np.maximum(longest - np.array(walker.depth, np.int64), 0)
    return Paths(trace.input_tokens, (trace.input_tokens + up) // size, size, ends, walker.chain, walker.end,
                 walker.depth, int(reach.sum()))


class _Walker:
    """Finds the chains of one prompt after the other."""

    def __init__(self, block_tokens: int, up: int) -> None:
        self.block_tokens, self.up = block_tokens, up
        self.chain: list[int] = []
        self.end: list[int] = []
        self.depth: list[int] = []
        self._known: dict[tuple[int, int, int], int] = {}

    def walk(self, content: list[int], tokens: list[int]) -> None:
        """Append the chains of a prompt; where it leaves a chain inside a block, the block belongs to the new one."""
        parent, at, total, last = -1, 0, 0, len(content) - 1
        for k, stream in enumerate(content):
            at += tokens[k]
            if k < last and content[k + 1] == stream:
                continue
            chain = self._known.setdefault((parent, total, stream), len(self.depth))
            if chain == len(self.depth):
                self.depth.append((total + self.up) // self.block_tokens)
            total, at, parent = total + at, 0, chain
            end = (total + self.up) // self.block_tokens
            if end > self.depth[chain]:
                self.chain.append(chain)
                self.end.append(end)


@dataclass(frozen=True, slots=True)
class Segments:
    """Chains cut where any prompt ends or leaves: a prompt contains a segment as a whole or not at all.

    Attributes
    ----------
    length, start : int arrays [num segments]
        Blocks of a segment, and its depth.
    first, stop : list of int
        Segments ``first[k]`` to ``stop[k] - 1`` are what entry ``k`` of `Paths.chain` runs through.
    """

    length: Ints
    start: Ints
    first: list[int]
    stop: list[int]

    def of(self, paths: Paths, i: int) -> Ints:
        """Segments of request `i`, root first."""
        low, high = paths.offsets[i], paths.offsets[i + 1]
        if high - low == 1:
            return np.arange(self.first[low], self.stop[low])
        parts = [np.arange(self.first[k], self.stop[k]) for k in range(low, high)]
        return np.concatenate([np.zeros(0, np.int64), *parts])


def segments_of(paths: Paths) -> Segments:
    """Segments of all paths.

    >>> paths = Paths(np.array([32, 64]), np.array([2, 4]), 16, [0, 1, 2], [0, 0], [2, 4], [0], 4)
    >>> cut = segments_of(paths)
    >>> cut.length.tolist(), cut.start.tolist(), cut.first, cut.stop
    ([2, 2], [0, 2], [0, 0], [1, 2])
    """
    chain, end = np.array(paths.chain, np.int64), np.array(paths.end, np.int64)
    span = int(end.max(initial=0)) + 1
    keys, place = np.unique(chain * span + end, return_inverse=True)
    of_chain, stops = keys // span, keys % span
    depth = np.array(paths.depth, np.int64)
    first_of_chain = np.diff(of_chain, prepend=-1) > 0
    start = np.where(first_of_chain, depth[of_chain], np.concatenate([[0], stops[:-1]])[:len(stops)])
    first = np.searchsorted(of_chain, chain)
    return Segments(stops - start, start, first.tolist(), (place + 1).tolist())


def next_uses(paths: Paths, cut: Segments, order: Ints) -> tuple[Ints, Ints]:
    """When each segment of each request is used next.

    Returns
    -------
    offsets : int array [n + 1]
        Entries of the request at place ``p`` of `order` are ``offsets[p]:offsets[p + 1]``.
    uses : int array
        Place in `order` of the next request that contains the segment; n if none does.
    """
    counts = np.diff(np.concatenate([[0], np.cumsum(np.array(cut.stop) - np.array(cut.first))])[paths.offsets])
    segment = np.concatenate([np.zeros(0, np.int64), *(cut.of(paths, i) for i in order.tolist())])
    place = np.repeat(np.arange(len(order)), counts[order])
    by_segment = np.argsort(segment, kind="stable")
    uses = np.full(len(segment), len(order), np.int64)
    again = segment[by_segment[1:]] == segment[by_segment[:-1]]
    uses[by_segment[:-1][again]] = place[by_segment[1:][again]]
    return offsets_of(counts[order]), uses


def _block_tokens(trace: Trace, asked: int | None) -> int:
    problem = ""
    if trace.knowledge == "nothing":
        problem = "no block ids and no sessions: no two prompts are known to share anything"
    elif trace.block_tokens and asked not in (None, trace.block_tokens):
        problem = f"block ids of {trace.block_tokens} tokens, not {asked}"
    elif not trace.block_tokens and trace.knowledge == "blocks":
        problem = "block ids of several sizes"
    if problem:
        raise TraceError("no hit rates from this trace", [
            Problem(trace.label or "trace", "", problem, "traces with block ids of one size, or with sessions")])
    return trace.block_tokens or asked or 16
