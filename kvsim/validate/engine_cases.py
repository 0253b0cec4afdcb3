"""Engine cases: does an engine decide what the real scheduler decided?"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.engine import reference
from kvsim.engine.case import Answer, EngineCase, read_case
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.errors import Problem, TraceError, nearest
from kvsim.steptime.base import StepTimeModel
from kvsim.workload.requests import Workload

TIME_TOLERANCE = 1e-9
"""Times may differ by this much, relative: they are sums of the same terms, perhaps added in another order."""

PLAIN_KINDS = ("chat", "burst", "long", "hybrid", "k3", "k3real", "priority", "nocache", "edge")
"""Kinds without a host tier."""

TIER_KINDS = ("offload", "k3offload")
"""Kinds with one."""

EngineRunner = Callable[[Workload, EngineConfig, StepTimeModel], EngineRun]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that an engine did differently; `request` is "" for totals."""

    request: str
    field: str
    expected: float
    got: float

    def __str__(self) -> str:
        subject = f"request {self.request}" if self.request else "totals"
        return f"{subject}: {self.field} is {self.got}, the real scheduler's {self.expected}"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Outcome of one case: None means that nothing differed."""

    name: str
    kind: str
    difference: Difference | None

    @property
    def exact(self) -> bool:
        """Whether nothing differed."""
        return self.difference is None


def find_cases(paths: Iterable[str | Path], kinds: Collection[str] = ()) -> Iterator[EngineCase]:
    """Read the engine cases below some paths.

    Parameters
    ----------
    paths : iterable of path
        Case files (``.json``), packed files (``.jsonl.gz``, a case a line) or folders with such files.
    kinds : collection of str
        Kinds wanted; empty = all.

    Yields
    ------
    EngineCase
        In the order of the paths, in a folder by name.

    Raises
    ------
    TraceError
        A path does not exist, holds no case, or holds something else.
    """
    for path in map(Path, paths):
        files = sorted([*path.glob("*.json"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not files or not files[0].exists():
            problem = Problem(str(path), "", "no case files", "case files, packed cases or a folder with them")
            raise TraceError(f"no engine cases at {path}", [problem])
        for file in files:
            yield from (case for case in _cases_in(file) if not kinds or case.kind in kinds)


def run_cases(paths: Iterable[str | Path], kinds: Collection[str] = (),
              run: EngineRunner = reference.run) -> list[CaseResult]:
    """Run engine cases and compare every decision with the real scheduler's.

    Parameters
    ----------
    paths : iterable of path
        As for `find_cases`.
    kinds : collection of str
        Kinds wanted; empty = all.
    run : callable
        The engine; by default the plain one.

    Returns
    -------
    list of CaseResult
        One a case that has an answer.

    Raises
    ------
    TraceError
        A path does not exist or is not a case, or a kind is neither known nor there.
    """
    found = list(find_cases(paths))
    _check_kinds(kinds, {*PLAIN_KINDS, *TIER_KINDS, *(case.kind for case in found)})
    return [check_case(case, run) for case in found if case.answer and (not kinds or case.kind in kinds)]


def _check_kinds(wanted: Collection[str], known: Collection[str]) -> None:
    """A kind that nobody knows would select nothing, and nothing would differ."""
    accepted = sorted(known)
    problems = [Problem("kinds", "", repr(kind), ", ".join(accepted), nearest(kind, accepted))
                for kind in wanted if kind not in known]
    if problems:
        raise TraceError("no such kind of engine cases", problems)


def check_case(case: EngineCase, run: EngineRunner = reference.run) -> CaseResult:
    """Run one case; its result names the first difference, requests before totals."""
    done = run(case.workload, case.config, case.step_time)
    return CaseResult(case.name, case.kind, first_difference(case.answer, done) if case.answer else None)


def first_difference(answer: Answer, done: EngineRun) -> Difference | None:
    """The first difference between a run and the real scheduler's answer, requests (in order) before totals.

    Counts must be equal, times equal within `TIME_TOLERANCE`. The real scheduler's ``preemptions`` and hit statistics
    leave out what was looked up again after a preemption; so do ours.
    """
    for row, request in enumerate(answer.requests):
        for field in ("arrival_s", "cached_tokens", "external_tokens", "preemptions", "first_token_s", "finish_s"):
            expected, got = float(getattr(request, field)), float(getattr(done.records, field)[row])
            if not _equal(expected, got):
                return Difference(request.id, field, expected, got)
    for field, got in _totals(done).items():
        if field in answer.totals and not _equal(answer.totals[field], got):
            return Difference("", field, answer.totals[field], got)
    return None


def _equal(expected: float, got: float) -> bool:
    """Equal counts, or times equal to rounding."""
    return math.isclose(expected, got, rel_tol=TIME_TOLERANCE, abs_tol=0.0)


def _totals(done: EngineRun) -> dict[str, float]:
    """A run's totals under the case format's names.

    The recorder kept the statistics of steps that computed something; it tells hits in the pool from those in the host.
    """
    totals, counters = done.totals, done.totals.counters
    external = int(done.records.external_tokens.sum())
    idle_hit, idle_external = counters.get("idle_hit_tokens", 0), counters.get("idle_external_hit_tokens", 0)
    queries = totals.prompt_tokens_queried - counters.get("idle_queried_tokens", 0)
    hits = totals.prompt_tokens_hit - external - (idle_hit - idle_external)
    found = {"queries": queries, "hits": hits,
             "preemptions": totals.preemptions, "steps": totals.steps,
             "prefill_tokens_computed": totals.prefill_tokens_computed, "makespan_s": totals.makespan_s}
    if totals.tiers:
        found |= {"external_queries": queries - hits, "external_hits": external - idle_external,
                  "blocks_loaded": sum(tier.blocks_loaded for tier in totals.tiers),
                  "blocks_stored": sum(tier.blocks_stored for tier in totals.tiers)}
    return found


def _cases_in(file: Path) -> Iterator[EngineCase]:
    """The cases of one plain or packed file."""
    if file.suffix != ".gz":
        yield read_case(file)
        return
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield _packed_case(line, f"{file.name}:{number}")


def _packed_case(line: str, place: str) -> EngineCase:
    """One case of a packed file."""
    try:
        source: dict[str, Any] = json.loads(line)
    except ValueError as err:
        raise TraceError(f"{place} is not JSON", [Problem(place, "", str(err), "one JSON object")]) from err
    return read_case(source, str(source.get("name", place)))
