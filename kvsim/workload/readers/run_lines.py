"""Requests with run-length coded block ids: one line a request, sessions interleaved."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import Problem, TraceError
from kvsim.workload.readers.contents import BlockContents, Run, merged_runs
from kvsim.workload.readers.reading import Reading
from kvsim.workload.readers.report import BadRow, count_of, number_of, text_of
from kvsim.workload.readers.source import json_rows
from kvsim.workload.table import Entry, Trace


def read_run_lines(reading: Reading) -> Trace:
    """Read ``t`` [s], ``session``, ``in``, ``out`` [tokens], ``bs`` [tokens], ``runs`` [[start, n], ...].

    Notes
    -----
    Full blocks only. Optional: ``agent`` (empty: the main one), ``trace`` (name of the session), ``app``; ``t``
    counts from the beginning of an app, and apps follow one another. Ids are local to a session, unless
    ``ids="global"`` is asked for. A request waits for the one before it of its agent, an agent's first one for
    the last one of its session; ends are not recorded, so gaps contain service times.
    """
    reader = _RunLines(reading)
    reading.each(json_rows(reading.path), reader.take)
    shared = reader.ids_of_several_sessions()
    if shared:
        reading.report.note(f"{shared} runs of block ids begin in several sessions; they count as different content "
                            "in each (ids='global': as the same)")
    return reading.finish(knowledge="blocks", block_tokens=reader.block_tokens)


@dataclass(slots=True)
class _RunLines:
    """State of the reader."""

    reading: Reading
    block_tokens: int = 0
    app: str = ""
    app_start_s: float = 0.0
    now_s: float = 0.0
    blocks: BlockContents | None = None
    streams: dict[str, dict[str, tuple[int, int, float]]] = field(default_factory=dict[str, Any])
    owners: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set[str]))

    def take(self, row: dict[str, Any]) -> None:
        """Add one line."""
        t, tokens, output = number_of(row, "t", 0), count_of(row, "in"), count_of(row, "out")
        app, agent = str(row.get("app", "")), str(row.get("agent", ""))
        session = f"{app}/{text_of(row, 'session')}" if app else text_of(row, "session")
        blocks, runs = self._blocks(count_of(row, "bs", 1)), merged_runs(row.get("runs"), "runs")
        if sum(n for _, n in runs) != tokens // blocks.block_tokens:
            raise BadRow("runs", f"{sum(n for _, n in runs)} blocks",
                         f"{tokens // blocks.block_tokens} full blocks for in = {tokens}")
        if app != self.app:
            self.app, self.app_start_s = app, self.now_s
        self.now_s = self.app_start_s + t
        prompt = blocks.prompt(runs, tokens, self._scope(session, runs))
        self._add(Entry(self.now_s, tokens, output, session, prompt, self.reading.builder.fresh()), agent)

    def ids_of_several_sessions(self) -> int:
        """First ids of runs that several sessions have."""
        return sum(len(sessions) > 1 for sessions in self.owners.values()) if self.app else 0

    def _blocks(self, block_tokens: int) -> BlockContents:
        if self.blocks is None:
            self.block_tokens = block_tokens
            self.blocks = BlockContents(self.reading.builder.fresh, block_tokens)
        if block_tokens != self.block_tokens:
            raise TraceError("block ids of several sizes in one file", [
                Problem(str(self.reading.path), "bs", str(block_tokens), str(self.block_tokens))])
        return self.blocks

    def _scope(self, session: str, runs: list[Run]) -> str | None:
        if self.reading.options.ids == "global":
            return None
        for start, _ in runs:
            self.owners[start].add(session)
        return session

    def _add(self, entry: Entry, agent: str) -> None:
        """Append a request behind the one it waits for."""
        agents = self.streams.setdefault(entry.session, {})
        latest = max(agents.values(), default=None)
        row, entry.stream, before_s = agents.get(agent) or ((latest or (-1, 0, 0.0))[0], len(agents),
                                                            (latest or (-1, 0, 0.0))[2])
        if row >= 0:
            entry.after, entry.gap_s = (row,), max(entry.time_s - before_s, 0.0)
        agents[agent] = self.reading.builder.add(entry), entry.stream, entry.time_s
