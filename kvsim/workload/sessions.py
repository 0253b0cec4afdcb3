"""A session tree: what one agent and its sub-agents asked, before anybody decides when to play it.

Readers and generators both make `SessionTree`; `kvsim.workload.trees` turns many of them into a `Workload`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from kvsim.workload.columns import Floats, Ints, offsets_of

MAIN, SUBAGENT, PRIMER, WARMUP = 0, 1, 2, 3
"""Values of `SessionTree.kind`; the traffic classes of a workload made of trees."""

CLASS_NAMES = ("main", "subagent", "primer", "warmup")


@dataclass(slots=True)
class Turn:
    """One request of a session while its tree is being built; see `SessionTree` for the fields."""

    prompt: tuple[tuple[int, int], ...]
    output_tokens: int
    output_content: int
    start_s: float
    gap_s: float
    stream: int = 0
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class TurnColumns:
    """Turns of a session in columns while its tree is being built; see `Turn` for the fields.

    ``contents`` and ``tokens`` are the pieces of each prompt, ``after`` counts in the given order.
    """

    contents: list[list[int]] = field(default_factory=list[list[int]])
    tokens: list[list[int]] = field(default_factory=list[list[int]])
    output_tokens: list[int] = field(default_factory=list[int])
    output_content: list[int] = field(default_factory=list[int])
    start_s: list[float] = field(default_factory=list[float])
    gap_s: list[float] = field(default_factory=list[float])
    stream: list[int] = field(default_factory=list[int])
    after: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def take(self, order: Sequence[int]) -> TurnColumns:
        """All turns in another order."""
        row_of = [0] * len(order)
        for row, i in enumerate(order):
            row_of[i] = row
        return TurnColumns(
            [self.contents[i] for i in order], [self.tokens[i] for i in order],
            [self.output_tokens[i] for i in order], [self.output_content[i] for i in order],
            [self.start_s[i] for i in order], [self.gap_s[i] for i in order], [self.stream[i] for i in order],
            [tuple([row_of[d] for d in self.after[i]]) for i in order])


@dataclass(frozen=True, slots=True)
class SessionTree:
    """One recorded or generated session, a row a request in the order of recorded start.

    Attributes
    ----------
    id : str
        Name of the session.
    stream : int array [n]
        0 for the main agent, 1, 2, ... for its sub-agents.
    kind : int array [n]
        `MAIN`, `SUBAGENT`, `PRIMER` or `WARMUP`.
    start_s : float array [n]
        Recorded start [s] since the session began, never falling.
    gap_s : float array [n]
        Recorded time [s] from the end of the last request waited for to this start; for rows that
        wait for nothing the time since the session began.
    dep_offsets, dep_index : int arrays [n + 1], [num deps]
        Rows that a row waits for: the turn before it in its stream, the turn that spawned the
        sub-agent, the last turns of the sub-agents that a parent's turn joins.
    output_tokens, output_content : int arrays [n]
        As in `Requests`.
    piece_offsets, piece_content, piece_tokens : int arrays [n + 1], [num pieces], [num pieces]
        Prompts as in `Requests`, with content ids of this tree: 0 to ``num_contents - 1``.
    num_contents : int
        Content ids used.
    num_shared : int
        Content ids below this are the same text in every tree (a common system prompt).

    Notes
    -----
    Only whether streams are equal matters: ids are renumbered whenever a tree is played, so that two
    plays of one tree share nothing but the ``num_shared`` first contents.
    """

    id: str
    stream: Ints
    kind: Ints
    start_s: Floats
    gap_s: Floats
    dep_offsets: Ints
    dep_index: Ints
    output_tokens: Ints
    output_content: Ints
    piece_offsets: Ints
    piece_content: Ints
    piece_tokens: Ints
    num_contents: int
    num_shared: int = 0

    def __len__(self) -> int:
        return len(self.stream)

    @property
    def prompt_tokens(self) -> Ints:
        """Prompt length [tokens] of every row, shape [n]."""
        total = np.concatenate([[0], np.cumsum(self.piece_tokens)])
        return total[self.piece_offsets[1:]] - total[self.piece_offsets[:-1]]

    @property
    def num_main_turns(self) -> int:
        """Turns of the main agent."""
        return int((self.stream == 0).sum())


def tree_from_turns(name: str, turns: Sequence[Turn], num_contents: int, num_shared: int = 0) -> SessionTree:
    """A tree from its turns; they may come in any order, `Turn.after` counts in the given one.

    Parameters
    ----------
    name : str
        Name of the session.
    turns : sequence of Turn
        All requests, main and sub-agents.
    num_contents, num_shared : int
        As in `SessionTree`.

    Returns
    -------
    SessionTree
        Rows sorted by recorded start; ties keep the given order.

    Examples
    --------
    >>> late = Turn(((0, 150),), 10, 0, start_s=8.0, gap_s=5.0, after=(1,))
    >>> early = Turn(((0, 100),), 10, 0, start_s=0.0, gap_s=0.0)
    >>> tree = tree_from_turns("a", [late, early], num_contents=1)
    >>> tree.prompt_tokens.tolist(), tree.dep_index.tolist()
    ([100, 150], [0])
    """
    columns = TurnColumns(
        [[c for c, _ in t.prompt] for t in turns], [[n for _, n in t.prompt] for t in turns],
        [t.output_tokens for t in turns], [t.output_content for t in turns], [t.start_s for t in turns],
        [t.gap_s for t in turns], [t.stream for t in turns], [t.after for t in turns])
    order = sorted(range(len(turns)), key=columns.start_s.__getitem__)
    return tree_from_columns(name, columns, order, num_contents, num_shared)


def tree_from_columns(name: str, turns: TurnColumns, order: list[int], num_contents: int,
                      num_shared: int = 0) -> SessionTree:
    """A tree from columns of turns, and the order in which they become its rows.

    Examples
    --------
    >>> turns = TurnColumns([[0], [0]], [[150], [100]], [10, 10], [0, 0], [8.0, 0.0], [5.0, 0.0], [0, 0], [(1,), ()])
    >>> tree = tree_from_columns("a", turns, [1, 0], num_contents=1)
    >>> tree.prompt_tokens.tolist(), tree.dep_index.tolist()
    ([100, 150], [0])
    """
    if order != list(range(len(order))):
        turns = turns.take(order)
    stream = _ints(turns.stream)
    return SessionTree(
        id=name, stream=stream, kind=np.where(stream > 0, SUBAGENT, MAIN),
        start_s=np.array(turns.start_s, np.float64), gap_s=np.array(turns.gap_s, np.float64),
        dep_offsets=offsets_of([*map(len, turns.after)]), dep_index=_ints([*chain.from_iterable(turns.after)]),
        output_tokens=_ints(turns.output_tokens), output_content=_ints(turns.output_content),
        piece_offsets=offsets_of([*map(len, turns.contents)]),
        piece_content=_ints([*chain.from_iterable(turns.contents)]),
        piece_tokens=_ints([*chain.from_iterable(turns.tokens)]), num_contents=num_contents, num_shared=num_shared)


def capped_clock_s(tree: SessionTree, gap_cap_s: float) -> Floats:
    """Recorded starts [s], shape [n], on a clock on which no two neighbours are further apart than the cap.

    >>> turns = [Turn(((0, 9),), 1, 0, start_s=t, gap_s=0.0) for t in (0.0, 10.0, 5000.0)]
    >>> capped_clock_s(tree_from_turns("a", turns, 1), 300.0).tolist()
    [0.0, 10.0, 310.0]
    """
    first = tree.start_s[:1]
    return np.cumsum(np.minimum(np.diff(tree.start_s, prepend=first), gap_cap_s))


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
