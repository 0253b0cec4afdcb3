"""Reader of WEKA / kv-cache-tester session traces, with block ids plain or run-length coded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from kvsim.workload.readers.contents import Run, merged_runs, runs_of_ids
from kvsim.workload.readers.report import BadRow, ReadReport, count_of, number_of
from kvsim.workload.sessions import SessionTree, TurnColumns, tree_from_columns


@dataclass(slots=True)
class _Stream:
    """One agent: whose sub-agent it is and when that was running, and its requests in columns.

    ``runs`` are of block ids, ``run_tokens`` their lengths [tokens], ``places`` those of the requests in the file; an
    end before its start is not recorded. ``first`` is the row of the first request among those of all streams.
    """

    number: int
    parent: int = -1
    began_s: float = 0.0
    ended_s: float = 0.0
    start_s: list[float] = field(default_factory=list[float])
    end_s: list[float] = field(default_factory=list[float])
    prompt_tokens: list[int] = field(default_factory=list[int])
    output_tokens: list[int] = field(default_factory=list[int])
    runs: list[list[Run]] = field(default_factory=list[list[Run]])
    run_tokens: list[list[int]] = field(default_factory=list[list[int]])
    places: list[int] = field(default_factory=list[int])
    first: int = 0


@dataclass(slots=True)
class _Session:
    """Content ids of one session, handed out as they are met."""

    block_tokens: int
    output_in_next_prompt: bool
    absolute: bool
    streams: list[_Stream] = field(default_factory=list[_Stream])
    contents: dict[Run, int] = field(default_factory=dict[Run, int])
    num_contents: int = 0
    num_requests: int = 0

    def fresh(self) -> int:
        """A content that nobody else has."""
        self.num_contents += 1
        return self.num_contents - 1

    def contents_of(self, runs: list[Run]) -> list[int]:
        """Content of each run: the stream that its first id begins; one that only repeats its neighbour is another."""
        found: list[int] = []
        before, again = None, 0
        for start, _ in runs:
            again = again + 1 if start == before else 0
            before = start
            content = self.contents.get((start, again))
            if content is None:
                content = self.contents[start, again] = self.fresh()
            found.append(content)
        return found


def session_tree(row: dict[str, Any], report: ReadReport, output_in_next_prompt: bool = True) -> SessionTree:
    """The tree of one row: an agent's session.

    Parameters
    ----------
    row : dict
        A session has ``id``, ``block_size`` and ``requests``; a request has ``t`` [s], ``in``, ``out`` [tokens] and
        ``hash_runs`` ``[[start, n], ...]`` or ``hash_ids`` ``[id, ...]``, one id for each *full* block of the prompt;
        an entry with ``requests`` of its own is a sub-agent, whose times count from its ``t``, or from the session's
        beginning (see Notes). Optional: ``api_time``, ``think_time`` [s], ``duration_ms``.
    report : ReadReport
        Account of what was adjusted.
    output_in_next_prompt : bool
        Whether an output is taken to be the beginning of what the next turn appends (see Notes).
        False: outputs are never found again, as when a replay sends recorded answers.

    Raises
    ------
    BadRow
        Something in it is wrong.

    Notes
    -----
    **Times.** Two conventions occur: kv-cache-tester counts a sub-agent's times from its marker, the corpora of
    SemiAnalysis count all times from the beginning of the session. A session in which no sub-agent's request is
    earlier than its marker is taken to be of the second kind.

    **Prompts.** A run of consecutive ids becomes a piece of the stream named by its first id, so equal leading ids
    are equal leading content and nothing else is. The tokens behind the last full block have no id: when
    the next turn of the stream is append-only (starts with all full blocks of this one), they are the beginning of
    what it has there, else they are unique.

    **Outputs.** The boundary between output and new input is not recorded. When the next turn is append-only
    and grows by at least the output, the output is its first new content; else it is unique.

    **Dependencies.** A turn waits for the one before it in its stream. A sub-agent waits for the last parent's
    turn that had ended when it began. Its last request holds back the parent's next turn
    when the record shows that it had ended by then (a join); else it ran in the background. The gap is the
    recorded start less the recorded ends, at least 0; an end is ``t + api_time``, and where
    ``api_time`` is missing the next turn's ``think_time`` gives it.

    Sources: https://github.com/callanjfox/kv-cache-tester (Apache-2.0),
    https://docs.nvidia.com/aiperf/tutorials/datasets-inputs/replay-weka-agentic-coding-traces.
    """
    session = _Session(count_of(row, "block_size", 1), output_in_next_prompt, _absolute(row))
    if row.get("hash_id_scope", "local") != "local":
        raise BadRow("hash_id_scope", repr(row["hash_id_scope"]), "'local'")
    adjusted: list[str] = []
    _read_stream(row, 0.0, session, adjusted)
    _close(session.streams[0], 0.0, adjusted)
    if not session.num_requests:
        raise BadRow("requests", "none", "at least one request")
    turns, order = _turns(session)
    tree = tree_from_columns(str(row.get("id", report.num_rows)), turns, order, session.num_contents)
    report.adjusted.update(adjusted)
    return tree


def _absolute(row: dict[str, Any]) -> bool:
    """Whether the times of sub-agents count from the beginning of the session: no request precedes its marker."""
    markers = [raw for raw in _entries(row) if "requests" in raw]
    starts = [(number_of(m, "t", 0), number_of(r, "t", 0)) for m in markers for r in _entries(m)[:1]]
    return any(marker for marker, _ in starts) and all(first >= marker for marker, first in starts)


def _read_stream(entry: dict[str, Any], base_s: float, session: _Session, adjusted: list[str]) -> _Stream:
    """Read the requests of one agent and of those nested in it."""
    mine = _Stream(len(session.streams))
    session.streams.append(mine)
    for raw in _entries(entry):
        start_s = base_s + number_of(raw, "t", 0)
        if "requests" in raw:
            child = _read_stream(raw, 0.0 if session.absolute else start_s, session, adjusted)
            child.parent, child.began_s = mine.number, start_s
            child.ended_s = start_s + number_of(raw, "duration_ms", 0, 0.0) / 1e3
            _close(child, child.ended_s, adjusted)
        else:
            _read_request(raw, start_s, mine, session, adjusted)
    return mine


def _entries(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests and sub-agents of one agent."""
    entries = entry.get("requests")
    if not isinstance(entries, list):
        raise BadRow("requests", "nothing" if entries is None else repr(entries)[:40], "a list")
    for raw in cast(list[Any], entries):
        if not isinstance(raw, dict):
            raise BadRow("requests", repr(raw)[:40], "an object")
    return cast(list[dict[str, Any]], entries)


def _read_request(raw: dict[str, Any], start_s: float, mine: _Stream, session: _Session, adjusted: list[str]) -> None:
    """Read one request, and the end of the one before where only this one tells it."""
    tokens, output, place = count_of(raw, "in", 1), count_of(raw, "out"), session.num_requests
    if not output:
        adjusted.append("output of 0 tokens raised to 1")
    block_tokens = session.block_tokens
    full = tokens // block_tokens
    if "hash_runs" in raw or "hash_ids" in raw:
        runs = _runs(raw)
    else:
        adjusted.append("request without block ids, its prompt is taken as new")
        runs = [(-(place + 1) << 40, full)] if full else []
    run_tokens = [n * block_tokens for _, n in runs]
    if (given := sum(run_tokens)) != full * block_tokens:
        raise BadRow("hash_runs" if "hash_runs" in raw else "hash_ids", f"{given // block_tokens} blocks",
                     f"{full} full blocks for in = {tokens}")
    session.num_requests = place + 1
    end_s = start_s + number_of(raw, "api_time", 0, -1.0)
    if mine.places and mine.end_s[-1] < mine.start_s[-1]:
        mine.end_s[-1] = _end_before(mine.start_s[-1], start_s, raw)
        adjusted.append("api_time missing, end from the next turn's think_time")
    mine.start_s.append(start_s)
    mine.end_s.append(end_s)
    mine.prompt_tokens.append(tokens)
    mine.output_tokens.append(output or 1)
    mine.runs.append(runs)
    mine.run_tokens.append(run_tokens)
    mine.places.append(place)


def _end_before(before_s: float, start_s: float, raw: dict[str, Any]) -> float:
    """End of a turn that does not record it: from the next turn's think time, else its start."""
    think_s = number_of(raw, "think_time", 0, 0.0)
    return max(start_s - think_s, before_s) if think_s else before_s


def _close(stream: _Stream, end_s: float, adjusted: list[str]) -> None:
    """Where the end of an agent's last request is not recorded, take the agent's, else its start."""
    if stream.places and stream.end_s[-1] < stream.start_s[-1]:
        stream.end_s[-1] = max(stream.start_s[-1], end_s)
        adjusted.append("api_time of a last request missing, end from duration_ms or its start")


def _runs(raw: dict[str, Any]) -> list[Run]:
    """Maximal runs of consecutive ids."""
    if "hash_runs" in raw:
        return merged_runs(raw["hash_runs"], "hash_runs")
    return runs_of_ids(raw["hash_ids"])


def _turns(session: _Session) -> tuple[TurnColumns, list[int]]:
    """Turns, stream by stream, and their order in time; the order of the file breaks ties."""
    turns = TurnColumns()
    places: list[int] = []
    for stream in session.streams:
        stream.first = len(places)
        places += stream.places
    for stream in session.streams:
        contents, tokens, outputs = _prompts(stream, session)
        after, gap_s = _waits(stream, session)
        turns.contents += contents
        turns.tokens += tokens
        turns.output_tokens += stream.output_tokens
        turns.output_content += outputs
        turns.start_s += stream.start_s
        turns.gap_s += gap_s
        turns.stream += [stream.number] * len(after)
        turns.after += after
    return turns, np.lexsort((places, turns.start_s)).tolist()


def _prompts(stream: _Stream, session: _Session) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Contents and lengths of the pieces of each prompt, and content of each output.

    Last turn first, since a tail is named by what follows.
    """
    contents: list[list[int]] = []
    tokens: list[list[int]] = []
    outputs: list[int] = []
    block_tokens = session.block_tokens
    after: list[Run] = []
    named: list[int] = []
    after_tokens, after_tail = 0, -1
    for i in range(len(stream.places) - 1, -1, -1):
        runs, length = stream.runs[i], stream.prompt_tokens[i]
        k = _following(runs, after) if outputs else -1
        tail = (named[k] if k < len(named) else after_tail) if k >= 0 else -1
        fits = tail >= 0 and after_tokens - length >= stream.output_tokens[i] and session.output_in_next_prompt
        own = -1 if fits else session.fresh()
        tail = tail if tail >= 0 else own
        named = named[:len(runs)] if k >= 0 else session.contents_of(runs)
        rest = length % block_tokens
        contents.append([*named, tail] if rest else named)
        tokens.append([*stream.run_tokens[i], rest] if rest else stream.run_tokens[i])
        outputs.append(tail if fits else own)
        after, after_tokens, after_tail = runs, length, tail
    return contents[::-1], tokens[::-1], outputs[::-1]


def _following(before: list[Run], after: list[Run]) -> int:
    """Which run a turn has behind the full blocks of the one before; -1 if its ids do not start with all of those."""
    k = len(before) - 1
    if k < 0:
        return 0
    if k >= len(after) or before[k][0] != after[k][0] or before[k][1] > after[k][1] or before[:k] != after[:k]:
        return -1
    return k if before[k][1] < after[k][1] else k + 1


def _waits(stream: _Stream, session: _Session) -> tuple[list[tuple[int, ...]], list[float]]:
    """What each turn of a stream waits for, and the recorded gap after that."""
    if not stream.places:
        return [], []
    spawn = _spawn(stream, session)
    after = [tuple(row for row, _ in spawn), *zip(range(stream.first, stream.first + len(stream.places) - 1))]
    end_s = [max([end_s for _, end_s in spawn], default=0.0), *stream.end_s[:-1]]
    children = [child for child in session.streams if child.parent == stream.number and child.places]
    for i in range(1, len(after)) if children else ():
        joined = _joined(children, stream.start_s[i - 1], stream.start_s[i])
        after[i] = *after[i], *[child.first + len(child.places) - 1 for child in joined]
        end_s[i] = max([end_s[i], *[child.end_s[-1] for child in joined]])
    return after, [max(start - end, 0.0) for start, end in zip(stream.start_s, end_s, strict=True)]


def _joined(children: list[_Stream], low_s: float, high_s: float) -> list[_Stream]:
    """The sub-agents that began since the turn before and had ended at this one's start."""
    return [child for child in children if low_s <= child.began_s < high_s
            and max(child.ended_s, child.end_s[-1]) <= high_s]


def _spawn(stream: _Stream, session: _Session) -> list[tuple[int, float]]:
    """Row and end of the parent's turn that a sub-agent follows: the last one ended by then, else the last begun."""
    if stream.parent < 0:
        return []
    parent = session.streams[stream.parent]
    begun = [(row, end_s) for row, (start_s, end_s)
             in enumerate(zip(parent.start_s, parent.end_s, strict=True), parent.first) if start_s <= stream.began_s]
    ended = [(row, end_s) for row, end_s in begun if end_s <= stream.began_s]
    return (ended or begun)[-1:]
