"""The common form of every recorded trace: requests in columns, whatever file they came from."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kvsim.workload.columns import Floats, Ints, join_floats, join_ints, join_offsets, offsets_of, take_ragged
from kvsim.workload.requests import Workload
from kvsim.workload.sessions import SessionTree

UNKNOWN = -1
"""Value of `Trace.cached_tokens` where the record does not say."""

Knowledge = Literal["blocks", "sessions", "nothing"]
Clock = Literal["common", "session"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests, a row each, in the order in which they are replayed.

    Attributes
    ----------
    time_s : float array [n]
        Arrival [s]: since the first request of the trace (``clock`` "common", never falling), or since
        the beginning of the row's session (``clock`` "session", sessions one after the other).
    session : int array [n]
        Session of a request, an index into `session_names`; a parent and its sub-agents share one.
    stream : int array [n]
        Agent within the session: 0 for the main one.
    input_tokens, output_tokens : int arrays [n]
        As recorded, >= 0.
    cached_tokens : int array [n]
        Prompt tokens that the recorded service found cached; `UNKNOWN` where it does not say.
    gap_s : float array [n]
        Time [s] from the end of the last request waited for to this start, >= 0. Where ends are not
        recorded it is counted from the start, so it contains the recorded service time.
    dep_offsets, dep_index : int arrays [n + 1], [num deps]
        Earlier rows that a row waits for.
    piece_offsets, piece_content, piece_tokens : int arrays [n + 1], [num pieces], [num pieces]
        Prompts as in `kvsim.workload.requests.Requests`; the tokens of a row add up to `input_tokens`.
    output_content : int array [n]
        Content of the output.
    session_names : tuple of str
        Names of the sessions.
    num_contents : int
        Content ids are 0 to this less one.
    knowledge : str
        Where the contents come from: "blocks" = recorded block ids; "sessions" = a session is taken to
        append to its context; "nothing" = lengths only, no two prompts share anything.
    block_tokens : int
        Tokens of a recorded block; 0 without block ids.
    partial_blocks : bool
        Whether the last, incomplete block of a prompt has an id too and counts as a block.
    outputs_known : bool
        Whether `output_content` is what outputs really are: one that no prompt has never comes back. Most records do
        not say; a reader then gives every output a content of its own.
    clock : str
        See `time_s`.
    epoch_s : float
        Time of the first request [s since 1970-01-01 UTC]; nan when not recorded.
    label : str
        Name for reports.
    """

    time_s: Floats
    session: Ints
    stream: Ints
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    gap_s: Floats
    dep_offsets: Ints
    dep_index: Ints
    piece_offsets: Ints
    piece_content: Ints
    piece_tokens: Ints
    output_content: Ints
    session_names: tuple[str, ...]
    num_contents: int
    knowledge: Knowledge = "nothing"
    block_tokens: int = 0
    partial_blocks: bool = False
    outputs_known: bool = False
    clock: Clock = "common"
    epoch_s: float = float("nan")
    label: str = ""

    def __len__(self) -> int:
        return len(self.session)

    @property
    def num_sessions(self) -> int:
        """Sessions."""
        return len(self.session_names)

    def to_workload(self, mode: Literal["open", "closed"] = "open", rate_factor: float = 1.0,
                    concurrency: int = 1, sessions_per_s: float | None = None, seed: int = 0) -> Workload:
        """The trace as a workload; see `kvsim.workload.replay.open_workload` and ``closed_workload``.

        Raises
        ------
        ScenarioError
            A combination that the trace cannot give.
        """
        from kvsim.workload import replay  # replay works on traces, so it cannot be imported before this class exists

        if mode == "open":
            return replay.open_workload(self, rate_factor, sessions_per_s)
        return replay.closed_workload(self, concurrency, seed)

    def prompt(self, i: int) -> list[tuple[int, int]]:
        """Pieces (content, tokens) of the prompt of row `i`."""
        rows = slice(self.piece_offsets[i], self.piece_offsets[i + 1])
        return list(zip(self.piece_content[rows].tolist(), self.piece_tokens[rows].tolist(), strict=True))


@dataclass(slots=True)
class Entry:
    """One request as a reader hands it over; see `Trace` for the fields.

    ``after`` holds numbers that `TraceBuilder.add` returned.
    """

    time_s: float
    input_tokens: int
    output_tokens: int
    session: str
    prompt: Sequence[tuple[int, int]]
    output_content: int
    stream: int = 0
    after: tuple[int, ...] = ()
    gap_s: float = 0.0
    cached_tokens: int = UNKNOWN


def _longs() -> array[int]:
    return array("q")


def _doubles() -> array[float]:
    return array("d")


@dataclass(slots=True)
class TraceBuilder:
    """Collects requests in compact columns while a file is read.

    Examples
    --------
    >>> builder = TraceBuilder()
    >>> first = builder.add(Entry(5.0, 100, 7, "a", [(builder.fresh(), 100)], builder.fresh()))
    >>> _ = builder.add(Entry(4.0, 50, 7, "b", [(builder.fresh(), 50)], builder.fresh()))
    >>> trace, unsorted = builder.build("example")
    >>> trace.time_s.tolist(), trace.input_tokens.tolist(), unsorted
    ([0.0, 1.0], [50, 100], 1)
    """

    num_contents: int = 0
    _names: dict[str, int] = field(default_factory=dict[str, int])
    _times: array[float] = field(default_factory=_doubles)
    _gaps: array[float] = field(default_factory=_doubles)
    _rows: array[int] = field(default_factory=_longs)
    _deps: array[int] = field(default_factory=_longs)
    _pieces: array[int] = field(default_factory=_longs)

    def fresh(self) -> int:
        """A content that nobody else has."""
        self.num_contents += 1
        return self.num_contents - 1

    def __len__(self) -> int:
        return len(self._times)

    def add(self, entry: Entry) -> int:
        """Append a request; returns its number."""
        session = self._names.setdefault(entry.session, len(self._names))
        self._times.append(entry.time_s)
        self._gaps.append(entry.gap_s)
        self._rows.fromlist([session, entry.stream, entry.input_tokens, entry.output_tokens, entry.cached_tokens,
                             entry.output_content, len(entry.after), len(entry.prompt)])
        self._deps.extend(entry.after)
        self._pieces.fromlist([number for piece in entry.prompt for number in piece])
        return len(self._times) - 1

    def extend(self, time_s: Floats, sessions: Sequence[str], tokens: tuple[Ints, Ints],
               prompts: tuple[Ints, Ints, Ints], output_content: Ints) -> None:
        """Append requests of main agents that wait for nothing.

        Parameters
        ----------
        time_s : float array [n]
            When they came [s].
        sessions : sequence of str [n]
            Names of their sessions.
        tokens : two int arrays [n]
            Input and output [tokens].
        prompts : three int arrays [n], [num pieces], [num pieces]
            Pieces of each prompt, and their contents and lengths [tokens].
        output_content : int array [n]
            Contents of the outputs.

        Examples
        --------
        >>> builder = TraceBuilder(num_contents=3)
        >>> one, two = np.array([1]), np.array([2])
        >>> builder.extend(np.array([5.0]), ["a"], (one, two), (one, np.array([0]), one), two)
        >>> builder.build("")[0].output_content.tolist()
        [2]
        """
        names = self._names
        rows = np.zeros((len(time_s), 8), np.int64)
        rows[:, 0] = [names.setdefault(name, len(names)) for name in sessions]
        rows[:, 2], rows[:, 3] = tokens
        rows[:, 4], rows[:, 5], rows[:, 7] = UNKNOWN, output_content, prompts[0]
        self._times.frombytes(time_s.tobytes())
        self._gaps.frombytes(bytes(8 * len(time_s)))
        self._rows.frombytes(rows.tobytes())
        self._pieces.frombytes(np.column_stack(prompts[1:]).tobytes())

    def build(self, label: str, epoch: bool = False) -> tuple[Trace, int]:
        """The trace, sorted by time from its first request, and how many rows came earlier than the row before.

        `epoch` says that times are seconds since 1970. Knowledge of contents is left to the caller to set.
        """
        rows = np.array(self._rows, np.int64).reshape(-1, 8).T
        pieces = np.array(self._pieces, np.int64).reshape(-1, 2).T
        time_s = np.array(self._times)
        start_s = float(time_s.min()) if len(time_s) else 0.0
        trace = Trace(
            time_s=time_s - start_s, session=rows[0], stream=rows[1], input_tokens=rows[2], output_tokens=rows[3],
            cached_tokens=rows[4], gap_s=np.array(self._gaps), dep_offsets=offsets_of(rows[6]),
            dep_index=np.array(self._deps, np.int64), piece_offsets=offsets_of(rows[7]), piece_content=pieces[0],
            piece_tokens=pieces[1], output_content=rows[5], session_names=tuple(self._names),
            num_contents=self.num_contents, epoch_s=start_s if epoch else float("nan"), label=label)
        return sorted_by_time(trace), int((np.diff(time_s) < 0).sum())


def sorted_by_time(trace: Trace) -> Trace:
    """Rows in the order of time; equal times keep their order."""
    order = np.argsort(trace.time_s, kind="stable")
    return trace if bool((np.diff(order) > 0).all()) else take(trace, order)


def take(trace: Trace, rows: Ints) -> Trace:
    """Some rows of a trace in a given order; dependencies on rows left out or put later are dropped.

    Examples
    --------
    >>> builder = TraceBuilder()
    >>> _ = [builder.add(Entry(t, 9, 1, "a", [(0, 9)], 0)) for t in (0.0, 1.0, 2.0)]
    >>> take(builder.build("")[0], np.array([2, 0])).time_s.tolist()
    [2.0, 0.0]
    """
    new_row = np.full(len(trace), -1, np.int64)
    new_row[rows] = np.arange(len(rows))
    dep_offsets, dep_index = take_ragged(trace.dep_offsets, trace.dep_index, rows)
    waiter = np.repeat(np.arange(len(rows)), np.diff(dep_offsets))
    deps = new_row[dep_index]
    kept = (deps >= 0) & (deps < waiter)
    piece_offsets, piece_content = take_ragged(trace.piece_offsets, trace.piece_content, rows)
    return replace(
        trace, time_s=trace.time_s[rows], session=trace.session[rows], stream=trace.stream[rows],
        input_tokens=trace.input_tokens[rows], output_tokens=trace.output_tokens[rows],
        cached_tokens=trace.cached_tokens[rows], gap_s=trace.gap_s[rows],
        dep_offsets=offsets_of(np.bincount(waiter[kept], minlength=len(rows))), dep_index=deps[kept],
        piece_offsets=piece_offsets, piece_content=piece_content,
        piece_tokens=take_ragged(trace.piece_offsets, trace.piece_tokens, rows)[1],
        output_content=trace.output_content[rows])


def trace_of_trees(trees: Sequence[SessionTree], block_tokens: int, label: str = "") -> Trace:
    """A trace of sessions that have no common clock, one after the other.

    Examples
    --------
    >>> from kvsim.workload.sessions import Turn, tree_from_turns
    >>> tree = tree_from_turns("a", [Turn(((0, 100),), 10, 0, 0.0, 0.0)], 1)
    >>> both = trace_of_trees([tree, tree], 64)
    >>> both.session.tolist(), both.piece_content.tolist(), both.clock
    ([0, 1], [0, 1], 'session')
    """
    sizes = [len(t) for t in trees]
    first_row, first_content = offsets_of(sizes), offsets_of([t.num_contents for t in trees])
    bases = list(zip(trees, first_content.tolist(), first_row.tolist(), strict=False))
    num_rows = int(first_row[-1])
    return Trace(
        time_s=join_floats([t.start_s for t in trees]), session=np.repeat(np.arange(len(trees)), sizes),
        stream=join_ints([t.stream for t in trees]), input_tokens=join_ints([t.prompt_tokens for t in trees]),
        output_tokens=join_ints([t.output_tokens for t in trees]), cached_tokens=np.full(num_rows, UNKNOWN, np.int64),
        gap_s=join_floats([t.gap_s for t in trees]),
        dep_offsets=join_offsets([t.dep_offsets for t in trees]),
        dep_index=join_ints([t.dep_index + row for t, _, row in bases]),
        piece_offsets=join_offsets([t.piece_offsets for t in trees]),
        piece_content=join_ints([t.piece_content + content for t, content, _ in bases]),
        piece_tokens=join_ints([t.piece_tokens for t in trees]),
        output_content=join_ints([t.output_content + content for t, content, _ in bases]),
        session_names=tuple(t.id for t in trees), num_contents=int(first_content[-1]), knowledge="blocks",
        block_tokens=block_tokens, outputs_known=True, clock="session", label=label)


def concat(traces: Sequence[Trace], label: str = "") -> Trace:
    """Several traces as one; they share no sessions and no contents.

    Parameters
    ----------
    traces : sequence of Trace
        At least one. If all know their absolute time, rows are merged on it; otherwise every trace begins at time 0.
    label : str
        Name for reports.

    Returns
    -------
    Trace
        ``block_tokens`` is 0 unless all agree; the clock is "session" if any part's is, and then nothing is sorted.

    Examples
    --------
    >>> builder = TraceBuilder()
    >>> _ = builder.add(Entry(7.0, 9, 1, "a", [(builder.fresh(), 9)], builder.fresh()))
    >>> one = builder.build("one")[0]
    >>> both = concat([one, one])
    >>> both.time_s.tolist(), both.piece_content.tolist(), both.session.tolist()
    ([0.0, 0.0], [0, 2], [0, 1])
    """
    epochs = np.array([t.epoch_s for t in traces])
    absolute = bool(np.isfinite(epochs).all())
    shift = epochs - epochs.min() if absolute else np.zeros(len(traces))
    one_clock = all(t.clock == "common" for t in traces)
    same = len({(t.block_tokens, t.partial_blocks) for t in traces}) == 1
    known = {t.knowledge for t in traces}
    joined = replace(
        _joined(traces), time_s=join_floats([t.time_s + s for t, s in zip(traces, shift.tolist(), strict=True)]),
        knowledge=known.pop() if len(known) == 1 else "sessions",
        block_tokens=traces[0].block_tokens if same else 0, partial_blocks=same and traces[0].partial_blocks,
        outputs_known=all(t.outputs_known for t in traces),
        clock="common" if one_clock else "session", epoch_s=float(epochs.min()) if absolute else float("nan"),
        label=label)
    return sorted_by_time(joined) if one_clock else joined


def _joined(traces: Sequence[Trace]) -> Trace:
    """Columns one below the other, ids moved apart."""
    row = offsets_of([len(t) for t in traces]).tolist()
    content = offsets_of([t.num_contents for t in traces]).tolist()
    session = offsets_of([t.num_sessions for t in traces]).tolist()
    parts = list(enumerate(traces))
    return replace(
        traces[0],
        session=join_ints([t.session + session[k] for k, t in parts]), stream=join_ints([t.stream for t in traces]),
        input_tokens=join_ints([t.input_tokens for t in traces]),
        output_tokens=join_ints([t.output_tokens for t in traces]),
        cached_tokens=join_ints([t.cached_tokens for t in traces]), gap_s=join_floats([t.gap_s for t in traces]),
        dep_offsets=join_offsets([t.dep_offsets for t in traces]),
        dep_index=join_ints([t.dep_index + row[k] for k, t in parts]),
        piece_offsets=join_offsets([t.piece_offsets for t in traces]),
        piece_content=join_ints([t.piece_content + content[k] for k, t in parts]),
        piece_tokens=join_ints([t.piece_tokens for t in traces]),
        output_content=join_ints([t.output_content + content[k] for k, t in parts]),
        session_names=tuple(name for t in traces for name in t.session_names), num_contents=content[-1])
