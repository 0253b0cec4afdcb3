"""What a workload is: requests in columns, prompts as runs of named content.

A prompt is a list of *pieces*. A piece ``(content, tokens)`` is the first ``tokens`` tokens of the token
stream ``content``; two prompts share exactly their equal leading tokens. When a piece has the same content
as the piece before it, it continues that stream instead of starting it again, so the natural way to write
a growing session is one stream: turn after turn the prompt is a longer prefix of it, and an output that
continues the prompt's last piece is found again by the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.workload.columns import Floats, Ints, offsets_of


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a workload, a row each, in file order (which breaks ties in time).

    Attributes
    ----------
    session : int array [n]
        Session tree a request belongs to (a parent and its sub-agents share one).
    arrival_s : float array [n]
        Arrival time [s] of requests without dependencies, relative to the start of their lane's
        session when ``lane_sessions`` is set, else absolute. Ignored when dependencies exist.
    think_s : float array [n]
        Time [s] between the end of the last dependency and this arrival.
    dep_offsets, dep_index : int arrays [n + 1], [num deps]
        Request ``i`` waits for requests ``dep_index[dep_offsets[i]:dep_offsets[i + 1]]`` (all of them).
    output_tokens : int array [n]
        Tokens to generate, >= 1.
    priority : int array [n]
        Lower is more urgent (used by the priority policy only).
    piece_offsets, piece_content, piece_tokens : int arrays [n + 1], [num pieces], [num pieces]
        Prompt pieces of request ``i`` are rows ``piece_offsets[i]:piece_offsets[i + 1]``; tokens >= 1.
    output_content : int array [n]
        Content of the output, appended to the prompt as one more piece.
    traffic_class : int array [n]
        Index into ``class_names``.
    ids : sequence of str
        Name of each request, for messages and reports; empty = row numbers.
    class_names : tuple of str
        Names of the traffic classes.

    Examples
    --------
    >>> two = requests_from_rows([Row(prompt=[(0, 100)], output_tokens=10, output_content=0),
    ...                           Row(prompt=[(0, 150)], output_tokens=10, output_content=0,
    ...                               after=(0,), think_s=2.0)])
    >>> two.prompt_tokens.tolist()
    [100, 150]
    """

    session: Ints
    arrival_s: Floats
    think_s: Floats
    dep_offsets: Ints
    dep_index: Ints
    output_tokens: Ints
    priority: Ints
    piece_offsets: Ints
    piece_content: Ints
    piece_tokens: Ints
    output_content: Ints
    traffic_class: Ints
    ids: Sequence[str] = ()
    class_names: tuple[str, ...] = ("default",)

    def __len__(self) -> int:
        return len(self.session)

    @property
    def prompt_tokens(self) -> Ints:
        """Prompt length [tokens] of every request, shape [n]."""
        if not len(self):
            return np.zeros(0, np.int64)
        total = np.concatenate([[0], np.cumsum(self.piece_tokens)])
        return total[self.piece_offsets[1:]] - total[self.piece_offsets[:-1]]

    def prompt(self, i: int) -> list[tuple[int, int]]:
        """Pieces (content, tokens) of the prompt of request `i`, neighbours of one stream merged."""
        rows = slice(self.piece_offsets[i], self.piece_offsets[i + 1])
        return merge(zip(self.piece_content[rows].tolist(), self.piece_tokens[rows].tolist(), strict=True))

    def full(self, i: int) -> list[tuple[int, int]]:
        """Pieces of the prompt and the output of request `i`."""
        return merge([*self.prompt(i), (int(self.output_content[i]), int(self.output_tokens[i]))])

    def deps(self, i: int) -> list[int]:
        """Requests that must finish before request `i` may arrive."""
        return self.dep_index[self.dep_offsets[i]:self.dep_offsets[i + 1]].tolist()

    def name(self, i: int) -> str:
        """Name of request `i`."""
        return self.ids[i] if len(self.ids) else str(i)


def merge(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring pieces of the same stream.

    >>> merge([(1, 10), (1, 5), (2, 3)])
    [(1, 15), (2, 3)]
    """
    merged: list[tuple[int, int]] = []
    for content, tokens in pieces:
        if merged and merged[-1][0] == content:
            merged[-1] = (content, merged[-1][1] + tokens)
        elif tokens:
            merged.append((content, tokens))
    return merged


@dataclass(slots=True)
class Row:
    """One request while a workload is being built; see `Requests` for the meaning of the fields."""

    prompt: list[tuple[int, int]]
    output_tokens: int
    output_content: int
    arrival_s: float = 0.0
    after: tuple[int, ...] = ()
    think_s: float = 0.0
    session: int = 0
    priority: int = 0
    traffic_class: int = 0
    id: str = ""


def requests_from_rows(rows: Sequence[Row], class_names: tuple[str, ...] = ("default",)) -> Requests:
    """Columns from rows."""
    return Requests(
        session=np.array([r.session for r in rows], np.int64),
        arrival_s=np.array([r.arrival_s for r in rows], np.float64),
        think_s=np.array([r.think_s for r in rows], np.float64),
        dep_offsets=offsets_of([len(r.after) for r in rows]),
        dep_index=np.array([d for r in rows for d in r.after], np.int64),
        output_tokens=np.array([r.output_tokens for r in rows], np.int64),
        priority=np.array([r.priority for r in rows], np.int64),
        piece_offsets=offsets_of([len(r.prompt) for r in rows]),
        piece_content=np.array([c for r in rows for c, _ in r.prompt], np.int64),
        piece_tokens=np.array([n for r in rows for _, n in r.prompt], np.int64),
        output_content=np.array([r.output_content for r in rows], np.int64),
        traffic_class=np.array([r.traffic_class for r in rows], np.int64),
        ids=tuple(r.id for r in rows) if any(r.id for r in rows) else (),
        class_names=class_names,
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests plus how they are let in.

    Attributes
    ----------
    requests : Requests
        What is asked.
    lane_sessions : tuple of tuple of int, or None
        None: open, every root arrives at its own ``arrival_s``. Otherwise closed loop by live session trees:
        one entry a lane, the sessions it plays one after the other; a session's roots arrive ``arrival_s``
        after its lane took it, and a lane takes its next session at the instant the last request of
        the previous one finished.
    lane_start_s : float array [num lanes]
        When each lane takes its first session; lanes that start later than at 0 count from the end of the warm-up.
    recycle : tuple of int
        Sessions played by whichever lane is free first once its own list is used up (lower lane first).
    idle_cap_s : float
        When nothing is in flight and the next arrival is further away than this, all pending
        arrivals move forward so that it is exactly this far away (AgentX: 10 s); inf = never.
    warming : int array [num warming]
        Rows that come before the clock of the run: `measure_from_s` and `until_s` count from the moment at which the
        last of them has ended; none = from the start.
    until_s : float
        The simulation stops at the end of the first step at or after this time; inf = when all is done.
    measure_from_s : float
        Start of the window that the report measures (warm-up before it).
    label : str
        Name for reports.
    ties_by_finish : bool
        Arrivals at one instant come in the order in which the requests they waited for ended, as from clients
        that answer in turn; by default in row order.
    lane_stop_s : float array [num lanes]
        From then on a lane lets nothing more in: what its session has in flight ends, the rest of the session and all
        later ones are not asked. Counts from the end of the warm-up. Empty = never.
    pool : int array [num sessions]
        Pool that a session belongs to (kinds of traffic side by side); empty = all in pool 0. Lanes play sessions
        of their own pool only; the roots of sessions of a pool without lanes arrive at their own ``arrival_s``,
        counted from the end of the warm-up.
    lane_pool : tuple of int
        Pool of each lane; empty = all 0.
    max_in_flight : tuple of float
        Most requests of each pool that are in flight; who comes while so many are waits for one of them to end, and
        arrives only then. Empty or inf = no limit.
    """

    requests: Requests
    lane_sessions: tuple[tuple[int, ...], ...] | None = None
    lane_start_s: Floats = field(default_factory=lambda: np.zeros(0))
    recycle: tuple[int, ...] = ()
    idle_cap_s: float = float("inf")
    warming: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    until_s: float = float("inf")
    measure_from_s: float = 0.0
    label: str = ""
    ties_by_finish: bool = False
    lane_stop_s: Floats = field(default_factory=lambda: np.zeros(0))
    pool: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lane_pool: tuple[int, ...] = ()
    max_in_flight: tuple[float, ...] = ()
