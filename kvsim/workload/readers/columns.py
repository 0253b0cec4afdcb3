"""Which column of a table of requests is which: as a mapping names them, else by the names that logs use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kvsim.errors import Problem, TraceError, nearest

FIELDS = ("timestamp", "input_tokens", "output_tokens", "session", "cached_tokens", "stream")
"""What a mapping of columns may name; the first three it must, unless their columns' names are known ones."""

NEEDED = FIELDS[:3]
TIME_UNITS = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})
"""Unit of time -> seconds; ``time_unit`` in a mapping."""

_KNOWN: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "timestamp": ("timestamp", "time", "ts", "created", "created_at", "start_time", "request_time", "arrival_time",
                  "arrived_at", "arrival_timestamp", "arrival"),
    "input_tokens": ("input_tokens", "prompt_tokens", "input_length", "prompt_length", "input_len", "prompt_len",
                     "num_input_tokens", "num_prompt_tokens", "num_prefill_tokens", "request_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "output_length", "output_len", "generated_tokens",
                      "num_output_tokens", "num_generation_tokens", "num_decode_tokens", "response_tokens"),
    "session": ("session", "session_id", "conversation", "conversation_id"),
    "cached_tokens": ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens"),
})
_SUFFIX = re.compile(r"_(s|sec|seconds|ms|us|ns)$")


@dataclass(frozen=True, slots=True)
class Columns:
    """Field -> column, the unit of the times ("" where their size tells it), and whether something was concluded."""

    of: Mapping[str, str]
    time_unit: str = ""
    guessed: bool = False

    def __str__(self) -> str:
        unit = f", in {self.time_unit}" if self.time_unit else ""
        return ", ".join(f"{field}={column}" for field, column in self.of.items()) + unit


def guess_columns(names: Iterable[str]) -> Columns:
    """Columns by the names that request logs use; a time's name may end in its unit.

    >>> guess_columns(["Arrival Time (ms)", "prompt_tokens", "Output Tokens", "model"]).time_unit
    'ms'
    >>> str(guess_columns(["ts", "num_prefill_tokens", "x"]))
    'timestamp=ts, input_tokens=num_prefill_tokens'
    """
    plain = {re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"): name for name in reversed(list(names))}
    units: dict[str, str] = {}
    for name in list(plain):
        match = _SUFFIX.search(name)
        if match is not None and name[:match.start()] in _KNOWN["timestamp"]:
            plain.setdefault(name[:match.start()], plain[name])
            units[plain[name]] = match[1] if match[1] in TIME_UNITS else "s"
    found = {field: plain[known] for field, knowns in _KNOWN.items()
             if (known := next((k for k in knowns if k in plain), None)) is not None}
    return Columns(found, units.get(found.get("timestamp", ""), ""), bool(found))


def is_table(names: Iterable[str]) -> bool:
    """Whether the names of columns alone say when requests came and how long they were."""
    return set(NEEDED) <= set(guess_columns(names).of)


def choose_columns(mapping: Mapping[str, str] | None, names: Sequence[str] | None, where: str) -> Columns:
    """Columns as a mapping says, completed by their names.

    Parameters
    ----------
    mapping : mapping or None
        Field -> column, and ``time_unit``; what it leaves out of the needed fields is looked for by name, everything
        if it names no field.
    names : sequence of str or None
        Columns that there are; None where rows may differ (JSON).
    where : str
        The file, for messages.

    Raises
    ------
    TraceError
        A needed field without a column, an unknown field, a column that is not there, or an unknown unit.
    """
    given = dict(mapping or {})
    unit = given.pop("time_unit", "")
    taken = {f: c for f, c in guess_columns(names or ()).of.items() if f not in given and (f in NEEDED or not given)}
    chosen = {f: {**given, **taken}[f] for f in (*FIELDS, *given) if f in given or f in taken}
    problems = [*_mapping_problems(given, chosen, unit), *_missing_columns(given, names, where)]
    if problems:
        raise TraceError("the mapping of columns is not complete", problems)
    by_name = "" if unit else guess_columns([chosen["timestamp"]]).time_unit
    renamed = any(field != column for field, column in taken.items())
    return Columns(chosen, unit or by_name, renamed or bool(by_name))


def _mapping_problems(given: Mapping[str, str], chosen: Mapping[str, str], unit: str) -> list[Problem]:
    accepted = (*FIELDS, "time_unit")
    problems = [Problem("mapping", name, "", "the name of a column") for name in NEEDED if name not in chosen]
    problems += [Problem("mapping", name, repr(given[name]), ", ".join(accepted), nearest(name, accepted))
                 for name in given if name not in FIELDS]
    if unit and unit not in TIME_UNITS:
        problems.append(Problem("mapping", "time_unit", repr(unit), ", ".join(TIME_UNITS)))
    return problems


def _missing_columns(given: Mapping[str, str], names: Sequence[str] | None, where: str) -> list[Problem]:
    if names is None:
        return []
    absent = {field: column for field, column in given.items()
              if field in FIELDS and not {column, column.partition(".")[0]} & set(names)}
    return [Problem(where, field, f"no column {column!r}", ", ".join(names), nearest(column, names))
            for field, column in absent.items()]
