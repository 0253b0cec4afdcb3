"""From a scenario's workload to requests: presets, traces, fixed lengths."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.profiles.paths import data_root
from kvsim.scenario import Scenario
from kvsim.workload.agentic import make_trees
from kvsim.workload.fixed import Clients, Poisson, build_fixed
from kvsim.workload.lengths import LogNormal
from kvsim.workload.presets import PRESETS
from kvsim.workload.readers.weka_rle import read_weka_rle
from kvsim.workload.requests import Workload
from kvsim.workload.sessions import SessionTree
from kvsim.workload.trees import AGENTX, build_closed_loop

TRACES_VARIABLE = "KVSIM_TRACES"
SPARE_SESSIONS = 64
"""Sessions generated beyond four a lane; lanes that use them up play them again with fresh content."""


def build_workload(scenario: Scenario) -> Workload:
    """Requests of a scenario, and how they are let in.

    Raises
    ------
    ScenarioError
        Unknown preset (with the nearest), missing trace, or a concurrency that the source needs.
    TraceError
        A trace that cannot be read.
    """
    part = scenario.workload
    if part.fixed is not None:
        return _fixed(scenario)
    trees = session_trees(scenario)
    if part.mode == "open":
        raise _unsupported(scenario, "workload.mode", "open", "closed: live session trees")
    return _closed(scenario, trees)


def session_trees(scenario: Scenario) -> list[SessionTree]:
    """Session trees of a preset or a trace, in the order they are played.

    Raises
    ------
    ScenarioError
        The workload has no sessions (fixed lengths), or its preset or trace is not known.
    """
    part = scenario.workload
    if part.preset is not None:
        if part.preset not in PRESETS:
            raise _unknown_preset(scenario, part.preset)
        return _preset_trees(part.preset, 4 * _concurrency(scenario) + SPARE_SESSIONS, scenario.seed)
    if part.trace is None:
        raise _unsupported(scenario, "workload", "fixed lengths", "a preset or a trace, which have sessions")
    path = find_trace(part.trace, scenario.origin)
    trees = _trace_trees(path, path.stat().st_mtime_ns)
    return trees[:part.max_sessions]


def find_trace(given: str, where: str = "scenario") -> Path:
    """Path of a trace, as written or inside the folder that ``KVSIM_TRACES`` names.

    Raises
    ------
    ScenarioError
        In neither place; names both.
    """
    folder = trace_folder()
    for path in (Path(given), folder / given):
        if path.is_file():
            return path
    problem = Problem(where, "workload.trace", repr(given),
                      f"a file, or one inside {TRACES_VARIABLE} (now {folder})")
    raise ScenarioError("no such trace", [problem])


def trace_folder() -> Path:
    """Folder of public traces: ``KVSIM_TRACES``, else ``../shared/traces`` beside the checkout."""
    return Path(os.environ.get(TRACES_VARIABLE) or data_root().parent / "shared" / "traces")


@lru_cache(maxsize=8)
def _preset_trees(name: str, num_sessions: int, seed: int) -> list[SessionTree]:
    return make_trees(PRESETS[name], num_sessions, seed)


@lru_cache(maxsize=2)
def _trace_trees(path: Path, _modified_ns: int) -> list[SessionTree]:
    return read_weka_rle(path)[0]


def _closed(scenario: Scenario, trees: list[SessionTree]) -> Workload:
    part = scenario.workload
    until_s = part.warmup_s + part.duration_s if part.duration_s is not None else float("inf")
    rules = replace(AGENTX, measure_from_s=part.warmup_s, until_s=until_s)
    label = part.preset or Path(part.trace or "").name
    return build_closed_loop(trees, _concurrency(scenario), scenario.seed, rules, label)


def _fixed(scenario: Scenario) -> Workload:
    part = scenario.workload
    given = part.fixed
    assert given is not None
    mode = part.mode or ("open" if part.rate_per_s is not None else "closed")
    load = Poisson(_rate(scenario)) if mode == "open" else Clients(_concurrency(scenario))
    workload = build_fixed(given.num_requests, _length(given.input_tokens, given.input_sigma),
                           _length(given.output_tokens, given.output_sigma), load, scenario.seed)
    until_s = part.warmup_s + part.duration_s if part.duration_s is not None else float("inf")
    return replace(workload, measure_from_s=part.warmup_s, until_s=until_s)


def _length(tokens: int, sigma: float) -> int | LogNormal:
    return LogNormal(tokens, sigma, 1) if sigma else tokens


def _unknown_preset(scenario: Scenario, name: str) -> ScenarioError:
    known = list(PRESETS)
    problem = Problem(scenario.origin, "workload.preset", repr(name), ", ".join(known), nearest(name, known))
    return ScenarioError(f"no workload preset {name!r}", [problem])


def _concurrency(scenario: Scenario) -> int:
    if scenario.workload.concurrency is None:
        raise ScenarioError("the workload needs a concurrency", [
            Problem(scenario.origin, "workload.concurrency", "", "live session trees or clients, a whole number >= 1")])
    return scenario.workload.concurrency


def _rate(scenario: Scenario) -> float:
    if scenario.workload.rate_per_s is None:
        raise ScenarioError("an open workload needs a rate", [
            Problem(scenario.origin, "workload.rate_per_s", "", "requests per second > 0")])
    return scenario.workload.rate_per_s


def _unsupported(scenario: Scenario, field: str, given: str, accepted: str) -> ScenarioError:
    return ScenarioError(f"{field} is not supported here", [Problem(scenario.origin, field, given, accepted)])
