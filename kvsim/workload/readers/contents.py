"""From block ids, or from sessions that append, to pieces of content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np

from kvsim.workload.columns import Ints, offsets_of
from kvsim.workload.readers.report import BadRow, ints_of

FEW_IDS = 200
"""Up to so many ids a plain loop is faster than arrays."""

_TOO_LARGE = 1 << 63
_LARGE = 1 << 62

Run = tuple[int, int]
Pieces = list[tuple[int, int]]


@dataclass(slots=True)
class BlockContents:
    """Contents named by block ids.

    A run of consecutive ids is a piece of the stream that its first id begins, so that prompts with equal leading
    ids have equal leading content, and no others.

    Attributes
    ----------
    fresh : callable
        Gives a content that nobody else has.
    block_tokens : int
        Tokens of a block.
    """

    fresh: Callable[[], int]
    block_tokens: int
    _contents: dict[tuple[Hashable, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict[int, int]))

    def prompt(self, runs: Sequence[Run], tokens: int, scope: Hashable = None) -> Pieces:
        """Pieces of a prompt of `tokens`; what has no id is content of its own, ids beyond the prompt are left out.

        Ids of one `scope` mean the same content.
        """
        pieces: Pieces = []
        left, before, again, block_tokens = tokens, None, 0, self.block_tokens
        for start, count in runs:
            again = again + 1 if start == before else 0
            before = start
            length = count * block_tokens
            if length > left:
                length = left
            if length:
                pieces.append((self._content(scope, start, again), length))
            left -= length
        return [*pieces, (self.fresh(), left)] if left else pieces

    def _content(self, scope: Hashable, start: int, again: int) -> int:
        """The stream of a run; a run that only repeats its neighbour is another, since equal neighbours continue."""
        contents = self._contents[scope, again]
        content = contents.get(start)
        if content is None:
            content = contents[start] = self.fresh()
        return content

    def whole_prompts(self, runs: RunColumns) -> tuple[list[int], list[int]]:
        """Contents of the runs of many prompts that have ids for just their blocks, and of an output after each.

        As `prompt` and then `fresh` give them, row by row.
        """
        contents, fresh = self._contents[None, 0], self.fresh
        prompts: list[int] = []
        outputs: list[int] = []
        starts = iter(runs.start.tolist())
        for count in runs.num_runs.tolist():
            for start in islice(starts, count):
                content = contents.get(start)
                if content is None:
                    content = contents[start] = fresh()
                prompts.append(content)
            outputs.append(fresh())
        return prompts, outputs


class RunColumns(NamedTuple):
    """Maximal runs of consecutive ids of many rows.

    Attributes
    ----------
    start, length : int arrays [num runs]
        First id and number of ids of each run.
    num_runs, num_ids : int arrays [n]
        Runs and ids of each row.
    """

    start: Ints
    length: Ints
    num_runs: Ints
    num_ids: Ints


def run_columns(rows: Sequence[object]) -> RunColumns | None:
    """`runs_of_ids` of many rows; None where a row is no list of plain integers, or a run repeats its neighbour.

    >>> run_columns([[4, 5, 6, 9], [7]])
    RunColumns(start=array([4, 9, 7]), length=array([3, 1, 1]), num_runs=array([2, 1]), num_ids=array([4, 1]))
    """
    if not set(map(type, rows)) <= {list}:
        return None
    lists = cast("Sequence[list[int]]", rows)
    ids = list(chain.from_iterable(lists))
    array = ints_of(ids, -_LARGE, _LARGE)
    if array is None:
        return None
    num_ids = np.array(list(map(len, lists)), np.int64)
    offsets = offsets_of(num_ids)
    begins = np.ones(len(ids), bool)
    np.not_equal(array[1:], array[:-1] + 1, out=begins[1:])
    begins[offsets[:-1][num_ids > 0]] = True
    first = np.flatnonzero(begins)
    start, run_offsets = array[first], np.searchsorted(first, offsets)
    again = np.flatnonzero(start[1:] == start[:-1]) + 1
    if not np.isin(again, run_offsets).all():
        return None
    return RunColumns(start, np.diff(first, append=len(ids)), np.diff(run_offsets), num_ids)


def runs_of_ids(ids: object, key: str = "hash_ids") -> list[Run]:
    """Maximal runs (start, count) of consecutive ids.

    >>> runs_of_ids([4, 5, 6, 9])
    [(4, 3), (9, 1)]
    """
    if _are_few(ids):
        runs = _few_runs(ids)
        if all(start >= -_TOO_LARGE and start + count <= _TOO_LARGE for start, count in runs):
            return runs
    try:
        array = cast(Ints, np.asarray(ids))
    except ValueError as error:
        raise BadRow(key, repr(ids)[:40], "a list of integers") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise BadRow(key, repr(ids)[:40], "a list of integers")
    first = np.flatnonzero(np.diff(array, prepend=array[:1] - 2) != 1)
    counts = np.diff(first, append=array.size)
    return list(zip(array[first].tolist(), counts.tolist(), strict=True))


def _are_few(ids: object) -> TypeGuard[list[int]]:
    """Whether ids are a short list of integers."""
    if not isinstance(ids, list):
        return False
    given = cast("list[Any]", ids)
    return len(given) <= FEW_IDS and set(map(type, given)) <= {int}


def _few_runs(ids: list[int]) -> list[Run]:
    """`runs_of_ids` of a short list, for which a plain loop is faster than arrays."""
    runs: list[Run] = []
    start = following = 0
    for number in ids:
        if number != following or start == following:
            if start != following:
                runs.append((start, following - start))
            start = number
        following = number + 1
    if start != following:
        runs.append((start, following - start))
    return runs


def merged_runs(given: object, key: str) -> list[Run]:
    """Runs given as [start, n] pairs, made maximal.

    >>> merged_runs([[1, 2], [3, 4], [9, 1]], "runs")
    [(1, 6), (9, 1)]
    """
    accepted = "[start, n >= 1] pairs of integers"
    merged: list[Run] = []
    following = 0
    try:
        for start, count in cast("list[Any]", given):
            if type(start) is not int or type(count) is not int or count < 1:
                raise BadRow(key, repr([start, count])[:40], accepted)
            if start == following and merged:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((start, count))
            following = start + count
    except (TypeError, ValueError) as error:
        if isinstance(error, BadRow):
            raise
        raise BadRow(key, repr(given)[:40], accepted) from error
    return merged


@dataclass(slots=True)
class AppendingSession:
    """Contents of a session that is taken to append to its context, where no block ids say more.

    A prompt at least as long as the one before continues it, beginning with the output before it. A shorter one keeps
    as many leading tokens as the record says (`kept`), and goes on with new content.

    Examples
    --------
    >>> ids = iter(range(9))
    >>> session = AppendingSession(lambda: next(ids))
    >>> session.turn(100), session.turn(150), session.turn(60, kept=40)
    (([(0, 100)], 0), ([(0, 150)], 0), ([(0, 40), (1, 20)], 1))
    """

    fresh: Callable[[], int]
    pieces: Pieces = field(default_factory=list[tuple[int, int]])
    tokens: int = 0

    def turn(self, tokens: int, kept: int = 0) -> tuple[Pieces, int]:
        """Pieces of the next prompt, `tokens` long, and the content of its output."""
        if not self.pieces:
            self.pieces = [(self.fresh(), tokens)]
        elif tokens >= self.tokens:
            content, length = self.pieces[-1]
            self.pieces = [*self.pieces[:-1], (content, length + tokens - self.tokens)]
        else:
            self._cut(min(kept, tokens - 1))
            self.pieces.append((self.fresh(), tokens - sum(n for _, n in self.pieces)))
        self.tokens = tokens
        return [piece for piece in self.pieces if piece[1]], self.pieces[-1][0]

    def _cut(self, kept: int) -> None:
        left, pieces = max(kept, 0), Pieces()
        for content, length in self.pieces:
            if left > 0:
                pieces.append((content, min(length, left)))
            left -= length
        self.pieces = pieces
