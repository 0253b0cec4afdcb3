"""What all readers share: options, the account, and the columns being filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kvsim.workload.readers.contents import AppendingSession
from kvsim.workload.readers.report import BadRow, ReadReport, parse_rows
from kvsim.workload.readers.source import Row, json_batches
from kvsim.workload.table import UNKNOWN, Entry, Trace, TraceBuilder


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How traces are read.

    Attributes
    ----------
    format : str or None
        Format of all files (see `kvsim.workload.readers.read.FORMATS`); None: found from the content of each file.
    mapping : mapping or None
        Field of each column for CSV or JSON lines of any kind: keys ``timestamp``, ``input_tokens``,
        ``output_tokens``, and where there are such, ``session``, ``cached_tokens``, ``stream``; a dot goes into
        JSON objects (``"usage.prompt_tokens"``). ``time_unit`` (s, ms, us, ns) says what a number in the timestamp
        counts, where its size does not tell. Columns that have known names need no mapping.
    max_bad_rows : int
        Bad rows that are skipped before the reading fails.
    ids : str
        Whether block ids mean the same content in all sessions of a file; "auto" = what the format says.
    output_in_next_prompt : bool
        Whether an output is taken to begin what the next turn of its session appends.
    start_s, duration_s : float
        Part of a day that is generated from rates [s] (ServeGen).
    seed : int
        Seed of what is generated.
    """

    format: str | None = None
    mapping: Mapping[str, str] | None = None
    max_bad_rows: int = 100
    ids: Literal["auto", "session", "global"] = "auto"
    output_in_next_prompt: bool = True
    start_s: float = 0.0
    duration_s: float = 3600.0
    seed: int = 0


@dataclass(slots=True)
class Call:
    """One request of a session as recorded, before contents are known; times in seconds."""

    time_s: float
    input_tokens: int
    output_tokens: int
    session: str = ""
    stream: str = ""
    end_s: float | None = None
    cached_tokens: int = UNKNOWN
    kept_tokens: int = 0
    gap_s: float | None = None


@dataclass(slots=True)
class Reading:
    """One file while it is read.

    Attributes
    ----------
    path : Path
        The file.
    options : ReadOptions
        How.
    report : ReadReport
        Account of the whole reading, of which this file may be a part.
    builder : TraceBuilder
        Columns.
    """

    path: Path
    options: ReadOptions
    report: ReadReport
    builder: TraceBuilder = field(default_factory=TraceBuilder)

    def each(self, rows: Iterable[Row], take: Callable[[dict[str, Any]], None]) -> None:
        """Hand every row to `take`; the rows for which it raises are counted."""
        for _ in parse_rows(rows, self.report, take, self.options.max_bad_rows):
            pass

    def each_batch(self, take_all: Callable[[list[dict[str, Any]]], bool],
                   take: Callable[[dict[str, Any]], None]) -> None:
        """Hand over JSON objects in batches; one that `take_all` refuses, having changed nothing, row by row."""
        for batch in json_batches(self.path):
            if batch.objects is not None and take_all(batch.objects):
                self.report.num_rows += len(batch.objects)
            else:
                self.each(batch.rows, take)

    def finish(self, epoch: bool = False, interleaved: bool = False, **known: Any) -> Trace:
        """The trace; `known` are fields of `Trace` that the format decides; `interleaved`: not meant to be sorted."""
        trace, unsorted = self.builder.build(self.path.name, epoch)
        if unsorted and not interleaved:
            self.report.adjusted["row earlier than the row before, sorted by time"] += unsorted
        return replace(trace, **known)


@dataclass(slots=True)
class _Stream:
    """The last call of one agent, and what its prompts are made of."""

    context: AppendingSession
    number: int
    row: int = -1
    end_s: float = 0.0


@dataclass(slots=True)
class CallLog:
    """Turns recorded calls without block ids into requests.

    Calls of one session and stream are taken to append to one context; calls without a session share nothing.
    """

    reading: Reading
    epoch: bool = False
    interleaved: bool = False
    _in_sessions: int = 0
    _streams: dict[tuple[str, str], _Stream] = field(default_factory=dict[tuple[str, str], _Stream])
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    _last: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, call: Call) -> None:
        """Append a call."""
        builder = self.reading.builder
        if not call.session:
            self._alone(call)
            return
        self._in_sessions += 1
        stream = self._stream(call)
        pieces, output = stream.context.turn(call.input_tokens, call.kept_tokens)
        waits = stream.row if stream.row >= 0 else self._last.get(call.session, -1)
        gap_s = call.gap_s if call.gap_s is not None else max(call.time_s - stream.end_s, 0.0)
        stream.row = builder.add(Entry(
            call.time_s, call.input_tokens, call.output_tokens, call.session, pieces, output, stream.number,
            (waits,) if waits >= 0 else (), gap_s if waits >= 0 else 0.0, call.cached_tokens))
        stream.end_s = call.time_s if call.end_s is None else call.end_s
        self._last[call.session] = stream.row

    def finish(self) -> Trace:
        """The trace; sessions are known if any has several calls."""
        several = self._in_sessions > len(self._streams)
        return self.reading.finish(self.epoch, self.interleaved, knowledge="sessions" if several else "nothing")

    def _alone(self, call: Call) -> None:
        builder = self.reading.builder
        prompt = [(builder.fresh(), call.input_tokens)] if call.input_tokens else []
        builder.add(Entry(call.time_s, call.input_tokens, call.output_tokens, f"#{len(builder)}", prompt,
                          builder.fresh(), cached_tokens=call.cached_tokens))

    def _stream(self, call: Call) -> _Stream:
        key = (call.session, call.stream)
        if key not in self._streams:
            number = self._numbers.get(call.session, 0)
            self._numbers[call.session] = number + 1
            self._streams[key] = _Stream(AppendingSession(self.reading.builder.fresh), number)
        return self._streams[key]


@dataclass(slots=True)
class Unique:
    """Refuses a name that has occurred."""

    place: str
    _seen: set[str] = field(default_factory=set[str])

    def check(self, name: str) -> None:
        """Remember a name.

        Raises
        ------
        BadRow
            It has occurred before.
        """
        if name in self._seen:
            raise BadRow(self.place, f"{name!r} again", "each once")
        self._seen.add(name)
