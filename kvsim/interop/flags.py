"""Command-line flags of an engine: which exist, how many words they take, and what was made of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast

from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.units import human_int

Takes = Literal["value", "switch", "many"]
Status = Literal["modelled", "no effect", "not modelled", "assumed"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name without dashes, what it takes, and why it changes nothing here.

    ``status`` is "modelled" where the engine's reader decides; else it is the verdict, with ``why``.
    """

    name: str
    takes: Takes
    status: Status = "modelled"
    why: str = ""


@dataclass(frozen=True, slots=True)
class FlagNote:
    """What became of one flag or variable.

    Attributes
    ----------
    flag : str
        As written, e.g. ``--max-model-len``.
    value : str
        Its value, ``""`` for a switch.
    status : str
        "modelled", "no effect" (on capacity and cost), "not modelled", or "assumed" for what the line leaves open.
    text : str
        Field of the scenario, or why.
    """

    flag: str
    value: str
    status: Status
    text: str


class FlagTable:
    """All flags of an engine that are known.

    Parameters
    ----------
    flags : iterable of Flag
        One each.
    aliases : mapping
        Other spelling -> name; both without leading dashes.
    negated : str
        How a switch is turned off: ``"no-"`` for ``--no-enable-prefix-caching``; ``""`` if switches cannot be.
    """

    def __init__(self, flags: Iterable[Flag], aliases: Mapping[str, str], negated: str = "") -> None:
        self.flags = MappingProxyType({f.name: f for f in flags})
        self.aliases = MappingProxyType(dict(aliases))
        self.negated = negated

    def find(self, given: str) -> tuple[Flag | None, bool]:
        """The flag of that spelling, and whether it is switched on."""
        name = self.aliases.get(given.lstrip("-"), given.lstrip("-").replace("_", "-"))
        name = self.aliases.get(name, name)
        flag = self.flags.get(name)
        if flag is None and self.negated and name.startswith(self.negated):
            off = self.flags.get(name[len(self.negated):])
            return (off, False) if off is not None and off.takes == "switch" else (None, True)
        return flag, True


@dataclass(slots=True)
class Parsed:
    """Flags of one command line: the last value of each, in order of appearance.

    ``model`` is the positional argument; ``problems`` what cannot be read; ``notes`` what has been decided.
    """

    model: str | None = None
    values: dict[str, str | bool] = field(default_factory=dict[str, "str | bool"])
    spelled: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[FlagNote] = field(default_factory=list[FlagNote])
    problems: list[Problem] = field(default_factory=list[Problem])

    def note(self, name: str, status: Status, text: str) -> None:
        """Say what became of a flag that was given; silent for one that was not."""
        if name in self.values:
            value = self.values[name]
            flag = self.spelled[name]
            self.notes.append(FlagNote(flag, "" if isinstance(value, bool) else value, status, text))

    def text(self, name: str, into: str) -> str | None:
        """Value of a flag as text, noted as modelled by a field."""
        value = self.values.get(name)
        if value is None:
            return None
        self.note(name, "modelled", into)
        return str(value)

    def switch(self, name: str, into: str) -> bool | None:
        """Whether a switch is on; None where it is not given."""
        value = self.values.get(name)
        if value is None:
            return None
        self.note(name, "modelled", into)
        return value if isinstance(value, bool) else value.lower() in ("true", "1", "on")

    def number(self, name: str, into: str, least: int = 1) -> int | None:
        """A whole number; ``1k`` is 1,000 and ``1K`` 1,024, as vLLM reads them."""
        value = self.text(name, into)
        if value is None:
            return None
        found = human_int(value)
        if found is None or found < least:
            self.problem(name, value, f"a whole number from {least}, e.g. 8, 32k (32,000) or 32K (32,768)")
        return found

    def real(self, name: str, into: str) -> float | None:
        """A number that may have decimals."""
        value = self.text(name, into)
        try:
            return None if value is None else float(value)
        except ValueError:
            self.problem(name, str(value), "a number")
            return None

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object; empty where the flag is not given or cannot be read."""
        value = self.values.get(name)
        if value is None:
            return {}
        try:
            data: Any = json.loads(str(value))
        except json.JSONDecodeError as err:
            self.problem(name, f"{value!r} ({err.msg} at character {err.pos})", "a JSON object in single quotes")
            return {}
        if not isinstance(data, dict):
            self.problem(name, str(value), "a JSON object")
            return {}
        return cast("dict[str, Any]", data)

    def problem(self, name: str, given: str, accepted: str, hint: str = "") -> None:
        """Keep a problem of a flag; all are raised at once."""
        self.problems.append(Problem(self.spelled.get(name, f"--{name}"), "", given, accepted, hint))

    def raise_problems(self) -> None:
        """Fail with every problem that was found.

        Raises
        ------
        ScenarioError
        """
        if self.problems:
            raise ScenarioError("the launch command cannot become a scenario", self.problems)


def parse_flags(args: Sequence[str], table: FlagTable) -> Parsed:
    """Sort the words of a command line into flags and their values.

    Unknown flags are noted as not modelled, with the nearest known one; a word that follows is taken as their value.
    Dotted flags (``--speculative-config.method mtp``) become parts of the JSON object.
    """
    parsed, words = Parsed(), list(args)
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            if parsed.model is None:
                parsed.model = word
            else:
                parsed.notes.append(FlagNote(word, "", "not modelled", "a word that belongs to no flag"))
            continue
        _take(word, words, table, parsed)
    return parsed


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.match(r"^-\d", word) and len(word) > 1


def _take(word: str, words: list[str], table: FlagTable, parsed: Parsed) -> None:
    """Take one flag and its values off the words."""
    name, joined, value = word.partition("=")
    base, dot, path = name.lstrip("-").partition(".")
    flag, on = table.find(base if dot else name)
    if flag is None:
        _take_unknown((name, joined, value), words, table, parsed)
        return
    if dot:
        _merge(parsed, flag, path, value if joined else _next(words))
    elif flag.takes == "switch":
        given = value if joined else _next(words) if words and words[0].lower() in ("true", "false") else "true"
        parsed.values[flag.name] = on == (given.lower() in ("true", "1", "yes"))
    elif joined:
        parsed.values[flag.name] = value
    elif not words or (_is_flag(words[0]) and not words[0].startswith("{")):
        parsed.spelled[flag.name] = name
        parsed.problem(flag.name, "", "a value")
        return
    else:
        parsed.values[flag.name] = words.pop(0)
        while flag.takes == "many" and words and not _is_flag(words[0]):
            parsed.values[flag.name] = f"{parsed.values[flag.name]} {words.pop(0)}"
    parsed.spelled[flag.name] = f"--{base}" if dot else name


def _take_unknown(word: tuple[str, str, str], words: list[str], table: FlagTable, parsed: Parsed) -> None:
    name, joined, value = word
    given = value if joined else words.pop(0) if words and not _is_flag(words[0]) else ""
    hint = nearest(name.lstrip("-"), [n for n in table.flags if len(n) > 2])
    parsed.notes.append(FlagNote(name, given, "not modelled", "unknown flag" + (f"; {hint}" if hint else "")))


def _next(words: list[str]) -> str:
    return words.pop(0) if words else ""


def _merge(parsed: Parsed, flag: Flag, path: str, value: str) -> None:
    """Add one dotted part to the JSON object of a flag."""
    data = parsed.mapping(flag.name)
    part = data
    *parents, last = path.replace("-", "_").split(".")
    for parent in parents:
        inner = part.setdefault(parent, {})
        if not isinstance(inner, dict):
            return
        part = cast("dict[str, Any]", inner)
    try:
        part[last] = json.loads(value)
    except json.JSONDecodeError:
        part[last] = value
    parsed.values[flag.name] = json.dumps(data)
