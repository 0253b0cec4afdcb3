"""Reader of WEKA / kv-cache-tester session traces, with block ids plain or run-length coded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from kvsim.workload.readers.contents import Run, merged_runs, runs_of_ids
from kvsim.workload.readers.report import BadRow, ReadReport, count_of, number_of
from kvsim.workload.sessions import SessionTree, Turn, tree_from_turns


@dataclass(slots=True)
class _Request:
    """One recorded request."""

    start_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    runs: list[Run]
    place: int


@dataclass(slots=True)
class _Session:
    """Content ids of one session, handed out as they are met."""

    block_tokens: int
    output_in_next_prompt: bool
    absolute: bool
    streams: list[list[_Request]] = field(default_factory=list[list[_Request]])
    parents: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    contents: dict[Run, int] = field(default_factory=dict[Run, int])
    num_contents: int = 0
    num_requests: int = 0

    def fresh(self) -> int:
        """A content that nobody else has."""
        self.num_contents += 1
        return self.num_contents - 1

    def content(self, runs: list[Run], k: int) -> int:
        """Content of run `k`: the stream that its first id begins; a run that only repeats its neighbour is another."""
        start, again = runs[k][0], 0
        while k and runs[k - 1][0] == start:
            k, again = k - 1, again + 1
        key = (start, again)
        content = self.contents.get(key)
        if content is None:
            content = self.contents[key] = self.fresh()
        return content


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
    turns = _turns(session)
    tree = tree_from_turns(str(row.get("id", report.num_rows)), turns, session.num_contents)
    report.adjusted.update(adjusted)
    return tree


def _absolute(row: dict[str, Any]) -> bool:
    """Whether the times of sub-agents count from the beginning of the session: no request precedes its marker."""
    markers = [raw for raw in _entries(row) if "requests" in raw]
    starts = [(number_of(m, "t", 0), number_of(r, "t", 0)) for m in markers for r in _entries(m)[:1]]
    return any(marker for marker, _ in starts) and all(first >= marker for marker, first in starts)


def _read_stream(entry: dict[str, Any], base_s: float, session: _Session, adjusted: list[str]) -> int:
    """Read the requests of one agent and of those nested in it; returns the number of its stream."""
    number = len(session.streams)
    mine: list[_Request] = []
    session.streams.append(mine)
    session.parents.append((-1, 0.0, 0.0))
    for raw in _entries(entry):
        start_s = base_s + number_of(raw, "t", 0)
        if "requests" in raw:
            child = _read_stream(raw, 0.0 if session.absolute else start_s, session, adjusted)
            end_s = start_s + number_of(raw, "duration_ms", 0, 0.0) / 1e3
            session.parents[child] = (number, start_s, end_s)
            _close(session.streams[child], end_s, adjusted)
        else:
            mine.append(_request(raw, start_s, session, adjusted))
            _complete_end(mine, raw, adjusted)
    return number


def _entries(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests and sub-agents of one agent."""
    entries = entry.get("requests")
    if not isinstance(entries, list):
        raise BadRow("requests", "nothing" if entries is None else repr(entries)[:40], "a list")
    for raw in cast(list[Any], entries):
        if not isinstance(raw, dict):
            raise BadRow("requests", repr(raw)[:40], "an object")
    return cast(list[dict[str, Any]], entries)


def _request(raw: dict[str, Any], start_s: float, session: _Session, adjusted: list[str]) -> _Request:
    tokens = count_of(raw, "in", 1)
    output = count_of(raw, "out")
    if not output:
        adjusted.append("output of 0 tokens raised to 1")
    if "hash_runs" in raw or "hash_ids" in raw:
        runs = _runs(raw)
    else:
        adjusted.append("request without block ids, its prompt is taken as new")
        full = tokens // session.block_tokens
        runs = [(-(session.num_requests + 1) << 40, full)] if full else []
    num_blocks = sum([n for _, n in runs])
    if num_blocks != tokens // session.block_tokens:
        raise BadRow("hash_runs" if "hash_runs" in raw else "hash_ids", f"{num_blocks} blocks",
                     f"{tokens // session.block_tokens} full blocks for in = {tokens}")
    session.num_requests += 1
    end_s = start_s + number_of(raw, "api_time", 0, -1.0)
    return _Request(start_s, end_s, tokens, max(output, 1), runs, session.num_requests - 1)


def _complete_end(mine: list[_Request], raw: dict[str, Any], adjusted: list[str]) -> None:
    """Where the end of the turn before is not recorded, take it from this turn's think time, else its start."""
    if len(mine) > 1 and mine[-2].end_s < mine[-2].start_s:
        before = mine[-2]
        think_s = number_of(raw, "think_time", 0, 0.0)
        before.end_s = max(mine[-1].start_s - think_s, before.start_s) if think_s else before.start_s
        adjusted.append("api_time missing, end from the next turn's think_time")


def _close(stream: list[_Request], end_s: float, adjusted: list[str]) -> None:
    """Where the end of an agent's last request is not recorded, take the agent's, else its start."""
    if stream and stream[-1].end_s < stream[-1].start_s:
        stream[-1].end_s = max(stream[-1].start_s, end_s)
        adjusted.append("api_time of a last request missing, end from duration_ms or its start")


def _runs(raw: dict[str, Any]) -> list[Run]:
    """Maximal runs of consecutive ids."""
    if "hash_runs" in raw:
        return merged_runs(raw["hash_runs"], "hash_runs")
    return runs_of_ids(raw["hash_ids"])


def _turns(session: _Session) -> list[Turn]:
    """Turns in the order of the file, which breaks ties of time."""
    placed: dict[int, Turn] = {}
    for number, stream in enumerate(session.streams):
        prompts = _prompts(stream, session)
        for i, (r, (prompt, output_content)) in enumerate(zip(stream, prompts, strict=True)):
            after, gap_s = _waits(session, number, i)
            placed[r.place] = Turn(prompt, r.output_tokens, output_content, r.start_s, gap_s, number, after)
    return [placed[i] for i in range(len(placed))]


def _prompts(stream: list[_Request], session: _Session) -> list[tuple[tuple[Run, ...], int]]:
    """Prompt pieces and output content of each turn; last turn first, since a tail is named by what follows."""
    found: list[tuple[tuple[Run, ...], int]] = []
    after: _Request | None = None
    after_tail = -1
    for r in reversed(stream):
        goes_on = after is not None and _appends(r.runs, after.runs)
        tail = _following(r.runs, after.runs, session, after_tail) if after is not None and goes_on else -1
        grows = after is not None and after.prompt_tokens - r.prompt_tokens >= r.output_tokens
        fits = tail >= 0 and grows and session.output_in_next_prompt
        own = -1 if fits else session.fresh()
        tail = tail if tail >= 0 else own
        rest = r.prompt_tokens % session.block_tokens
        pieces = [(session.content(r.runs, k), n * session.block_tokens) for k, (_, n) in enumerate(r.runs)]
        found.append((tuple([*pieces, (tail, rest)] if rest else pieces), tail if fits else own))
        after, after_tail = r, tail
    return found[::-1]


def _appends(before: list[Run], after: list[Run]) -> bool:
    """Whether the ids of a turn start with all ids of the turn before."""
    k = len(before) - 1
    if k < 0:
        return True
    return (len(after) > k and before[:k] == after[:k] and before[k][0] == after[k][0]
            and before[k][1] <= after[k][1])


def _following(before: list[Run], after: list[Run], session: _Session, after_tail: int) -> int:
    """Content that the next, append-only turn has behind the full blocks of this one."""
    k = len(before) - 1
    if k >= 0 and after[k][1] > before[k][1]:
        return session.content(after, k)
    return session.content(after, k + 1) if len(after) > k + 1 else after_tail


def _waits(session: _Session, number: int, i: int) -> tuple[tuple[int, ...], float]:
    """What turn `i` of a stream waits for, and the recorded gap after it."""
    stream = session.streams[number]
    waited = [stream[i - 1], *_joined(session, number, i)] if i else _spawn(session, number)
    end_s = max([r.end_s for r in waited], default=0.0)
    return tuple(r.place for r in waited), max(stream[i].start_s - end_s, 0.0)


def _joined(session: _Session, number: int, i: int) -> list[_Request]:
    """Last requests of the sub-agents that began since the turn before and had ended at this one's start."""
    low, high = session.streams[number][i - 1].start_s, session.streams[number][i].start_s
    return [session.streams[child][-1] for child, (parent, start_s, end_s) in enumerate(session.parents)
            if parent == number and low <= start_s < high and session.streams[child]
            and max(end_s, session.streams[child][-1].end_s) <= high]


def _spawn(session: _Session, number: int) -> list[_Request]:
    """The parent's turn that a sub-agent follows: the last one ended by then, else the last one begun."""
    parent, start_s, _ = session.parents[number]
    if parent < 0:
        return []
    begun = [r for r in session.streams[parent] if r.start_s <= start_s]
    ended = [r for r in begun if r.end_s <= start_s]
    return (ended or begun)[-1:]
