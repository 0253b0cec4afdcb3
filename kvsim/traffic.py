"""From a scenario's workload to requests: presets, traces, fixed lengths, chats, documents, batches, mixes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.profiles.paths import data_root
from kvsim.rng import stream
from kvsim.scenario import ArrivalsPart, LengthPart, Scenario, Traffic
from kvsim.workload.agentic import make_trees
from kvsim.workload.fixed import Clients, build_fixed
from kvsim.workload.lengths import LogNormal
from kvsim.workload.mix import TrafficKind, mix
from kvsim.workload.preset_file import load_preset
from kvsim.workload.presets import PRESETS, AgenticPreset
from kvsim.workload.processes import Arrival, Rate, RatePattern, recorded_pattern
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.reading import ReadOptions
from kvsim.workload.readers.report import ReadReport
from kvsim.workload.replay import AT_ONCE, open_workload, session_trees_of
from kvsim.workload.requests import Floats, Workload
from kvsim.workload.sessions import SessionTree
from kvsim.workload.synthetic import Batch, Chat, Rag
from kvsim.workload.table import Trace, take
from kvsim.workload.trees import (
    AGENTX,
    FASTEST_TOKEN_S,
    ReplayRules,
    build_closed_loop,
    build_session_arrivals,
)

TRACES_VARIABLE = "KVSIM_TRACES"
SPARE_SESSIONS = 64
"""Sessions generated beyond four a lane; lanes that use them up play them again with fresh content."""
MOST_SESSIONS = 4_096
"""Generated sessions; arrivals that use them up play them again with fresh content."""
MOST_QUESTIONS = 16_384
"""Generated questions about documents: many, since one that is asked again finds all its documents."""
TRACE_WINDOW_S = 60.0
"""Windows in which a trace's rate is read off, if nothing else is asked for [s]."""
TALKING = ReplayRules(gap_cap_s=math.inf, idle_cap_s=math.inf, start_frac=(0.0, 1.0), warmup_requests=0)
"""People who chat: nobody's pause is cut, and at the start everybody is somewhere in a conversation."""


def build_workload(scenario: Scenario, fastest_token_s: float = FASTEST_TOKEN_S) -> Workload:
    """Requests of a scenario, and how they are let in.

    Parameters
    ----------
    scenario : Scenario
        What was asked.
    fastest_token_s : float
        No sequence gets its tokens faster than this [s]; bounds how many sessions live ones can use up.

    Raises
    ------
    ScenarioError
        Unknown preset (with the nearest), missing trace, a concurrency or rate that the source needs, or settings
        that do not go together.
    TraceError
        A trace that cannot be read.
    """
    asked = _asked(scenario)
    if not scenario.workload.classes:
        return _build(asked[0], fastest_token_s)
    kinds = [TrafficKind(c.name, c.priority, _build(a, fastest_token_s))
             for c, a in zip(scenario.workload.classes, asked, strict=True)]
    return mix(kinds, ", ".join(k.name for k in kinds))


def session_trees(scenario: Scenario) -> list[SessionTree]:
    """Session trees of a preset, a trace or chats, in the order they are played.

    Raises
    ------
    ScenarioError
        The workload has no sessions (fixed lengths), or its preset or trace is not known.
    """
    if scenario.workload.classes or scenario.workload.fixed is not None:
        asked = "several classes" if scenario.workload.classes else "fixed lengths"
        raise _unsupported(scenario.origin, "workload", asked, "a preset or a trace, which have sessions")
    return _trees(_asked(scenario)[0])


def trace_accounts(scenario: Scenario) -> tuple[ReadReport, ...]:
    """What became of the rows of each trace that a scenario plays or follows, in the order in which it names them.

    Raises
    ------
    ScenarioError, TraceError
        As `build_workload`.
    """
    asked = _asked(scenario)
    files = [_recorded(a) for a in asked if a.part.trace is not None]
    files += [_rate_recorded(a) for a in asked if a.part.arrivals is not None and a.part.arrivals.trace_rate]
    return tuple(_account(*file) for file in dict.fromkeys(files))


def find_trace(given: str, where: str = "scenario", field: str = "workload", name: str = "trace") -> Path:
    """Path of a trace, as written or inside the folder that ``KVSIM_TRACES`` names.

    Raises
    ------
    ScenarioError
        In neither place; names both.
    """
    folder = trace_folder()
    for path in (Path(given), folder / given):
        if path.exists():
            return path
    now = f"now {folder}" if folder.is_dir() or TRACES_VARIABLE in os.environ else "not set"
    problem = Problem(where, f"{field}.{name}", repr(given),
                      f"a file, or one inside {TRACES_VARIABLE} ({now})")
    raise ScenarioError("no such trace", [problem])


def trace_folder() -> Path:
    """Folder of public traces: ``KVSIM_TRACES``, else ``../shared/traces`` beside the checkout."""
    return Path(os.environ.get(TRACES_VARIABLE) or data_root().parent / "shared" / "traces")


@dataclass(frozen=True, slots=True)
class _Asked:
    """One kind of traffic to be built; `share` is its part of the workload's concurrency and rate."""

    part: Traffic
    origin: str
    field: str
    seed: int
    warmup_s: float
    duration_s: float
    concurrency: int | None
    rate_per_s: float | None

    @property
    def until_s(self) -> float:
        """End of the run, counted from the end of the warm-up requests [s]."""
        return self.warmup_s + self.duration_s

    @property
    def is_open(self) -> bool:
        """Whether arrivals come by themselves."""
        part = self.part
        if part.mode is not None:
            return part.mode == "open"
        if part.concurrency is not None:
            return False
        by_itself = part.trace is not None or part.batch is not None
        return (part.rate_per_s is not None or part.rate_factor is not None
                or (self.concurrency is None and (self.rate_per_s is not None or by_itself)))

    def live(self) -> int:
        """Live sessions or clients."""
        if self.concurrency is None:
            raise self.missing("concurrency", "live session trees or clients, a whole number >= 1")
        return self.concurrency

    def missing(self, name: str, accepted: str) -> ScenarioError:
        """What to say where a setting is needed."""
        problem = Problem(self.origin, f"{self.field}.{name}", "", accepted)
        return ScenarioError(f"the workload needs a {name}", [problem])


def _asked(scenario: Scenario) -> list[_Asked]:
    """The kinds of traffic of a scenario."""
    part = scenario.workload
    duration_s: float = math.inf if part.duration_s is None else part.duration_s
    if not part.classes:
        return [_followed(_Asked(part, scenario.origin, "workload", scenario.seed, part.warmup_s, duration_s,
                                 part.concurrency, part.rate_per_s))]
    shared = [c.share or 0.0 for c in part.classes]
    if sum(shared) > 1 + 1e-9:
        raise _unsupported(scenario.origin, "workload.classes", f"shares that add up to {sum(shared):g}", "at most 1")
    live = split(part.concurrency, shared) if part.concurrency is not None else [0] * len(shared)
    found: list[_Asked] = []
    total_per_s: float = part.rate_per_s or 0.0
    for k, (c, lanes) in enumerate(zip(part.classes, live, strict=True)):
        seed = int(stream(scenario.seed, f"traffic class {c.name}").integers(2_147_483_648))
        found.append(_followed(_Asked(c, scenario.origin, f"workload.classes.{k}", seed, part.warmup_s, duration_s,
                                      c.concurrency or lanes or None, c.rate_per_s or total_per_s * shared[k] or None)))
    return found


def _followed(asked: _Asked) -> _Asked:
    """With the mean rate of the trace that arrivals follow, where no other is stated."""
    if asked.part.arrivals is None or asked.part.arrivals.trace_rate is None or asked.rate_per_s is not None:
        return asked
    return replace(asked, rate_per_s=_pattern(asked).mean_per_s * (asked.part.rate_factor or 1.0))


def _pattern(asked: _Asked) -> RatePattern:
    """Of the trace whose rate arrivals follow."""
    given, field = asked.part.arrivals, f"{asked.field}.arrivals"
    assert given is not None
    trace = _trace(*_rate_recorded(asked))
    if trace.clock == "session":
        raise _unsupported(asked.origin, f"{field}.trace_rate", "a trace whose sessions have no common clock",
                           "one that says when its requests arrived")
    return recorded_pattern(trace.time_s, given.window_s or TRACE_WINDOW_S)


def _rate_recorded(asked: _Asked) -> tuple[Path, int, _Named]:
    """Which recorded requests set the rate of arrivals, as `_recorded`."""
    given = asked.part.arrivals
    assert given is not None
    path = find_trace(given.trace_rate or "", asked.origin, f"{asked.field}.arrivals", "trace_rate")
    return path, path.stat().st_mtime_ns, ()


def split(total: int, shares: list[float]) -> list[int]:
    """Whole numbers in proportion to shares (largest remainders), which add up to the share of all of them.

    >>> split(10, [0.5, 0.25, 0.25]), split(10, [0.3, 0.0])
    ([5, 3, 2], [3, 0])
    """
    exact: list[float] = [total * share for share in shares]
    whole: list[int] = [math.floor(x + 1e-9) for x in exact]
    order = sorted(range(len(shares)), key=lambda k: whole[k] - exact[k])
    for k in order[:round(sum(exact)) - sum(whole)]:
        whole[k] += 1
    return whole


def _build(asked: _Asked, fastest_token_s: float) -> Workload:
    _check(asked)
    part = asked.part
    if part.fixed is not None:
        workload = _fixed(asked)
    elif not asked.is_open:
        rules = replace(_rules(asked), fastest_token_s=fastest_token_s)
        workload = build_closed_loop(_trees(asked), asked.live(), asked.seed, rules, _label(part))
    elif part.batch is not None and asked.rate_per_s is None:
        workload = build_session_arrivals(_trees(asked), np.zeros(part.batch.num_requests), label="batch")
    elif part.trace is not None and asked.rate_per_s is None:
        workload = _at_recorded_times(asked)
    else:
        workload = _sessions_at_a_rate(asked)
    limit = (float(part.max_concurrency),) if part.max_concurrency is not None else ()
    return replace(workload, measure_from_s=asked.warmup_s, until_s=asked.until_s, max_in_flight=limit)


def _check(asked: _Asked) -> None:
    """Refuse settings that would be ignored."""
    part, is_open = asked.part, asked.is_open
    steps = part.steps or ()
    follows = part.arrivals is not None and part.arrivals.trace_rate is not None
    wrong = {
        "burstiness": part.burstiness is not None and not is_open,
        "arrivals": part.arrivals is not None and (not is_open or asked.rate_per_s is None),
        "rate_per_s": part.rate_per_s is not None and not is_open,
        "rate_factor": part.rate_factor is not None and (
            not is_open or (part.rate_per_s is not None if follows else part.trace is None)),
        "replay": part.replay is not None and (is_open or part.fixed is not None),
        "steps": any((s.rate_per_s is None) == is_open for s in steps) or (
            bool(steps) and (follows or (part.fixed is not None and not is_open))),
        "mode": is_open and part.concurrency is not None,
    }
    now = "open" if is_open else "closed"
    accepted = {"burstiness": "an open workload with a rate_per_s", "arrivals": "an open workload with a rate_per_s",
                "rate_per_s": "an open workload: without concurrency, and without mode: closed",
                "rate_factor": "an open trace", "replay": "a closed workload of sessions", "mode": "closed",
                "steps": "rate_per_s in an open workload, concurrency in a closed one of sessions"}
    problems = [Problem(asked.origin, f"{asked.field}.{name}", f"it in a workload that is {now}", accepted[name])
                for name, is_wrong in wrong.items() if is_wrong]
    if problems:
        raise ScenarioError("settings that do not go together", problems)


def _label(part: Traffic) -> str:
    return part.preset or Path(part.trace or "").name or part.sources[0]


def _trees(asked: _Asked) -> list[SessionTree]:
    """Sessions of any source but fixed lengths."""
    part = asked.part
    if part.trace is not None:
        return _trace_trees(*_recorded(asked))[:part.max_sessions]
    count = _num_sessions(asked)
    if part.preset is not None:
        return _preset_trees(_preset(asked, part.preset), count, asked.seed)
    if part.batch is not None:
        batch = Batch(part.batch.shared_tokens, _length(part.batch.input_tokens), _length(part.batch.output_tokens))
        return batch.trees(part.batch.num_requests, asked.seed)
    return (_chat(part) or _rag(part)).trees(count, asked.seed)


def _num_sessions(asked: _Asked) -> int:
    """Different sessions generated."""
    most = max([asked.concurrency or 0, *(s.concurrency or 0 for s in asked.part.steps or ())])
    if asked.is_open:
        return min(_most_sessions(asked), MOST_QUESTIONS if asked.part.rag is not None else MOST_SESSIONS)
    if asked.part.rag is not None:
        return MOST_QUESTIONS
    return 4 * max(most, asked.live()) + SPARE_SESSIONS


def _most_sessions(asked: _Asked) -> int:
    """How many sessions may begin: as stated, else twice what is expected."""
    if asked.part.max_sessions is not None:
        return asked.part.max_sessions
    if math.isinf(asked.duration_s) or asked.rate_per_s is None:
        return MOST_SESSIONS
    return int(2 * _rate(asked).expected(np.array([asked.until_s]))[0]) + SPARE_SESSIONS


def _chat(part: Traffic) -> Chat | None:
    if part.chat is None:
        return None
    c = part.chat
    return Chat(_length(c.turns), c.system_tokens, _length(c.user_tokens), _length(c.output_tokens), _length(c.think_s))


def _rag(part: Traffic) -> Rag:
    assert part.rag is not None
    r = part.rag
    return Rag(r.num_documents, r.documents_per_request, _length(r.document_tokens), r.zipf, r.system_tokens,
               _length(r.question_tokens), _length(r.output_tokens), r.sort_documents)


def _length(part: LengthPart) -> LogNormal:
    return LogNormal(part.median, part.sigma, 0.0, math.inf if part.max is None else part.max)


def _preset(asked: _Asked, name: str) -> AgenticPreset:
    """A preset by its name, or from the file that `kvsim trace fit` wrote."""
    if name in PRESETS:
        return PRESETS[name]
    if Path(name).is_file():
        return load_preset(name)
    known = list(PRESETS)
    problem = Problem(asked.origin, f"{asked.field}.preset", repr(name), f"{', '.join(known)}, or a file of a preset",
                      nearest(name, known))
    raise ScenarioError(f"no workload preset {name!r}", [problem])


@lru_cache(maxsize=8)
def _preset_trees(preset: AgenticPreset, num_sessions: int, seed: int) -> list[SessionTree]:
    return make_trees(preset, num_sessions, seed)


_Named = tuple[tuple[str, str], ...]


@lru_cache(maxsize=2)
def _read(path: Path, _modified_ns: int, mapping: _Named) -> tuple[Trace, ReadReport]:
    return read_trace(path, ReadOptions(mapping=dict(mapping) or None))


@lru_cache(maxsize=64)
def _account(path: Path, modified_ns: int, mapping: _Named) -> ReadReport:
    """What became of a trace's rows; kept longer than the trace, which is large."""
    return _read(path, modified_ns, mapping)[1]


def _trace(path: Path, modified_ns: int, mapping: _Named = ()) -> Trace:
    _account(path, modified_ns, mapping)
    return _read(path, modified_ns, mapping)[0]


@lru_cache(maxsize=2)
def _trace_trees(path: Path, modified_ns: int, mapping: _Named = ()) -> list[SessionTree]:
    return session_trees_of(_trace(path, modified_ns, mapping))


def _recorded(asked: _Asked) -> tuple[Path, int, _Named]:
    """Which recorded requests a kind of traffic plays: file, its last change, and names of its columns."""
    part = asked.part
    path = find_trace(part.trace or "", asked.origin, asked.field)
    return path, path.stat().st_mtime_ns, tuple(sorted((part.mapping or {}).items()))


def _rules(asked: _Asked) -> ReplayRules:
    """AgentX's rules for agents and recorded sessions, those of people for chats, none for single requests."""
    part = asked.part
    rules = TALKING if part.chat is not None else AGENTX
    if part.rag is not None or part.batch is not None or (part.trace is not None and _is_single(asked)):
        rules = AT_ONCE
    given = part.replay.model_dump(exclude_none=True) if part.replay is not None else {}
    if given.pop("from_start", False):
        rules = replace(rules, start_frac=None)
    steps = tuple((s.at_s, s.concurrency or 0) for s in part.steps or ())
    plays = part.batch.num_requests if part.batch is not None else None
    return replace(rules, **given, steps=steps, num_plays=plays, measure_from_s=asked.warmup_s, until_s=asked.until_s)


def _is_single(asked: _Asked) -> bool:
    """Whether the sessions of a trace are single requests."""
    return not len(_trace(*_recorded(asked)).dep_index)


def _at_recorded_times(asked: _Asked) -> Workload:
    part = asked.part
    trace, factor = _trace(*_recorded(asked)), part.rate_factor or 1.0
    if trace.clock == "session":
        raise _unsupported(asked.origin, f"{asked.field}.mode", "open, for a trace whose sessions have no common clock",
                           "closed with a concurrency, or open with a rate_per_s at which sessions begin")
    kept = trace.time_s < asked.until_s * factor
    if part.max_sessions is not None:
        kept &= trace.session < part.max_sessions
    return open_workload(take(trace, np.flatnonzero(kept)), factor)


def _sessions_at_a_rate(asked: _Asked) -> Workload:
    """Sessions, or single requests, begin at a rate; later turns follow their own session."""
    trees = _trees(asked)
    most = float(len(trees)) if asked.part.trace is not None else math.inf
    if asked.part.batch is not None or asked.part.max_sessions is not None:
        most = float(min(len(trees), asked.part.max_sessions or len(trees)))
    cap_s = math.inf if asked.part.chat is not None else AGENTX.gap_cap_s
    return build_session_arrivals(trees, _times_s(asked, most), cap_s, _label(asked.part))


def _times_s(asked: _Asked, most: float) -> Floats:
    """When sessions begin [s]."""
    given = asked.part.arrivals or ArrivalsPart()
    family, cv = given.family, given.cv
    if asked.part.burstiness is not None:
        family, cv = "gamma", asked.part.burstiness
    try:
        return Arrival(_rate(asked, most), family, cv).draw_s(stream(asked.seed, "arrivals"), asked.until_s, most)
    except ScenarioError as err:
        problems = [replace(p, where=asked.origin) for p in err.problems]
        raise ScenarioError(err.message, problems) from None


def _rate(asked: _Asked, most: float = math.inf) -> Rate:
    """Rate of arrivals over time, until the run ends or `most` have come."""
    if asked.rate_per_s is None:
        raise asked.missing("rate_per_s", "requests or sessions per second > 0")
    given = asked.part.arrivals or ArrivalsPart()
    if given.trace_rate is not None:
        until_s = asked.until_s if math.isfinite(asked.until_s) else _followed_until_s(asked, most)
        return _pattern(asked).rate(asked.rate_per_s, until_s)
    steps = tuple((s.at_s, s.rate_per_s or 0.0) for s in asked.part.steps or ())
    return Rate(asked.rate_per_s, steps, given.swing, given.period_s, given.peak_s)


def _followed_until_s(asked: _Asked, most: float) -> float:
    """A time by which so many have come, with all but certainty: whole plays of the trace, and one more."""
    pattern = _pattern(asked)
    cv = max(asked.part.burstiness or 1.0, asked.part.arrivals.cv if asked.part.arrivals else 1.0)
    plays = (most + 20 * cv * math.sqrt(most) + 20 * cv**2) / ((asked.rate_per_s or 1.0) * pattern.period_s)
    return pattern.period_s * (math.ceil(plays) + 1)


def _fixed(asked: _Asked) -> Workload:
    given = asked.part.fixed
    assert given is not None
    lengths = (_sized(given.input_tokens, given.input_sigma), _sized(given.output_tokens, given.output_sigma))
    if not asked.is_open:
        return build_fixed(given.num_requests, *lengths, Clients(asked.live()), asked.seed)
    times = _times_s(asked, given.num_requests)
    if not len(times):
        raise _unsupported(asked.origin, f"{asked.field}.rate_per_s", f"{asked.rate_per_s:g}, at which nothing arrives",
                           "a rate at which something arrives in time")
    workload = build_fixed(len(times), *lengths, Clients(1), asked.seed)
    return Workload(replace(workload.requests, arrival_s=times), label=workload.label)


def _sized(tokens: int, sigma: float) -> int | LogNormal:
    return LogNormal(tokens, sigma, 1) if sigma else tokens


def _unsupported(origin: str, field: str, given: str, accepted: str) -> ScenarioError:
    return ScenarioError(f"{field} is not supported here", [Problem(origin, field, given, accepted)])
