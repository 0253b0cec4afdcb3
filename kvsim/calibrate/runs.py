"""Read measured runs of a serving engine: settings, requests and step durations as JSON lines.

A file holds one ``engine`` record and, for every run, a ``run`` and a ``steps`` record. The ``engine`` record has the
engine's arguments and its pool; ``run`` the closed loop that was driven, the wall time and a row a request; ``steps``
a row a scheduler step.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvsim.errors import Problem, TraceError, nearest

WARMUP = "warmup"
"""Label of runs that compile kernels: neither scored nor fitted."""

STEP_COLUMNS = ["prefill_tokens", "decode_seqs", "context_tokens", "ms"]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """An engine as it was started: model's name in the file, arguments and the pool that it logged."""

    model: str
    args: Mapping[str, Any]
    num_blocks: int
    block_tokens: int
    log: tuple[str, ...]

    @property
    def asynchronous(self) -> bool:
        """Whether the host schedules a step while the GPU runs the one before."""
        return bool(self.args.get("async_scheduling", True))


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """A closed loop: clients that play sessions one after the other, each of several turns without think time.

    A turn's prompt is all of its session so far plus ``growth`` new tokens; the first has ``first`` tokens, of which
    the leading ``shared`` are common to all sessions. Every answer has ``out`` tokens.
    """

    concurrency: int
    sessions: int
    turns: int
    first: int
    growth: int
    out: int
    shared: int = 0

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of a session's last turn."""
        return self.first + self.turns * self.out + (self.turns - 1) * self.growth


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One finished request; times in s, ``arrive_s`` from the start of the run."""

    session: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrive_s: float
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step; ``context_tokens`` counts the tokens of all its requests after it, ``duration_s`` is in s."""

    prefill_tokens: int
    decode_seqs: int
    context_tokens: int
    duration_s: float

    @property
    def empty(self) -> bool:
        """Whether nothing was scheduled."""
        return not (self.prefill_tokens or self.decode_seqs)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run on one engine; ``complete`` is False when it was stopped at a time budget."""

    engine: MeasuredEngine
    label: str
    spec: LoopSpec
    wall_s: float
    complete: bool
    done: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests: tuple[MeasuredRequest, ...]
    steps: tuple[MeasuredStep, ...]

    @property
    def stall_s(self) -> float:
        """Wall time [s] outside of steps: the client builds and hands over prompts in between."""
        return self.wall_s - sum(step.duration_s for step in self.steps)


def read_runs(path: str | Path) -> list[MeasuredRun]:
    """Read all runs of a file, warm-up left out.

    Parameters
    ----------
    path : str or Path
        JSON lines, plain or gzipped (``.gz``).

    Returns
    -------
    list of MeasuredRun
        In the file's order.

    Raises
    ------
    TraceError
        The file cannot be read, is not JSON lines, or lacks a record or a field (named with its line).
    """
    reader = _Reader(str(path))
    for number, record in _records(Path(path)):
        reader.take(number, record)
    if not reader.runs:
        problem = Problem(str(path), "", "no run", "JSON lines with an 'engine', a 'run' and a 'steps' record")
        raise TraceError(f"{path} holds no measured run", [problem])
    return reader.runs


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a file of JSON lines."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise TraceError(f"cannot read {path}", [Problem(str(path), "", reason, "JSON lines")]) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as err:
            problem = Problem(str(path), f"line {number}", str(err), "one JSON object a line")
            raise TraceError(f"{path} is not JSON lines", [problem]) from None
        if not isinstance(record, dict):
            problem = Problem(str(path), f"line {number}", f"{record!r:.40}", "a JSON object")
            raise TraceError(f"{path} is not a file of measured runs", [problem])
        yield number, cast("dict[str, Any]", record)


class _Reader:
    """Joins the records of a file to runs."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.runs: list[MeasuredRun] = []
        self._engine: MeasuredEngine | None = None
        self._run: dict[str, Any] | None = None

    def take(self, number: int, record: dict[str, Any]) -> None:
        """Take one record; whatever does not fit becomes a TraceError that names the line."""
        kinds = {"engine": self._take_engine, "run": self._take_run, "steps": self._take_steps}
        kind = str(record.get("kind"))
        if kind not in kinds:
            accepted = ", ".join(kinds)
            given = repr(record["kind"]) if "kind" in record else ""
            problem = Problem(self.where, f"line {number}: kind", given, accepted, given and nearest(kind, list(kinds)))
            raise TraceError(f"{self.where} is not a file of measured runs", [problem])
        try:
            kinds[kind](record)
        except (KeyError, TypeError, ValueError) as err:
            said = f"no {err.args[0]!r}" if isinstance(err, KeyError) else str(err)
            problem = Problem(self.where, f"line {number}: {kind}", said, f"a complete {kind!r} record")
            raise TraceError(f"{self.where} has a record that cannot be read", [problem]) from None

    def _take_engine(self, record: dict[str, Any]) -> None:
        self._engine = MeasuredEngine(str(record["model"]), dict(record["args"]), int(record["num_gpu_blocks"]),
                                      int(record["block_size"]), tuple(str(text) for text in record.get("log", ())))

    def _take_run(self, record: dict[str, Any]) -> None:
        if self._engine is None:
            raise ValueError("a run before its engine")
        self._run = record

    def _take_steps(self, record: dict[str, Any]) -> None:
        run, engine = self._run, self._engine
        if run is None or engine is None or run["label"] != record["label"]:
            raise ValueError(f"steps of {record['label']!r} without their run before them")
        if record["columns"] != STEP_COLUMNS:
            raise ValueError(f"columns {record['columns']}, not {STEP_COLUMNS}")
        if run["label"] != WARMUP:
            self.runs.append(_run(engine, run, record))
        self._run = None


def _run(engine: MeasuredEngine, run: dict[str, Any], steps: dict[str, Any]) -> MeasuredRun:
    """One run from its two records."""
    return MeasuredRun(
        engine=engine, label=str(run["label"]), spec=LoopSpec(**run["spec"]), wall_s=float(run["wall_s"]),
        complete=bool(run["complete"]), done=int(run["done"]), prompt_tokens=int(run["prompt"]),
        cached_tokens=int(run["cached"]), output_tokens=int(run["output"]),
        requests=tuple(_request(row) for row in run["requests"]),
        steps=tuple(MeasuredStep(int(p), int(d), int(c), float(ms) / 1e3) for p, d, c, ms in steps["rows"]),
    )


def _request(row: dict[str, Any]) -> MeasuredRequest:
    """One row of a run's requests."""
    return MeasuredRequest(int(row["s"]), int(row["turn"]), int(row["prompt"]), int(row["cached"] or 0),
                           int(row["out"]), float(row["arrive"]), float(row["ttft"]), float(row["e2e"]))
