"""Engine cases: a workload, an engine's settings, and what the real scheduler did with them.

A case is one JSON object: ``engine`` (settings), ``step_time`` (coefficients of a linear step time), ``requests``
(prompts as named pieces of content; a piece always starts its token stream at 0) and, once the real scheduler has
been asked, ``answer``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from kvsim.cache.tiers.config import TierConfig
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, TraceError
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows

T = TypeVar("T")
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """What happened to one request; times in s.

    `external_tokens` are those of the cached ones that came from the host tier.
    """

    id: str
    arrival_s: float
    cached_tokens: int
    external_tokens: int
    first_token_s: float
    finish_s: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the real scheduler did: a row a request in file order, and its totals by name (see the case format)."""

    requests: tuple[AnswerRow, ...]
    totals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine case, ready to run; `answer` is None while nobody has asked the real scheduler."""

    name: str
    kind: str
    workload: Workload
    config: EngineConfig
    step_time: LinearStepTime
    answer: Answer | None


def read_case(source: str | Path | Json, name: str = "") -> EngineCase:
    """Read one engine case.

    Parameters
    ----------
    source : path or mapping
        The JSON file, or its parsed content.
    name : str
        Name for messages; by default the file's stem.

    Returns
    -------
    EngineCase
        Workload, settings, step time and the expected answer.

    Raises
    ------
    TraceError
        The file cannot be read or is not a case; names every problem.

    Examples
    --------
    >>> case = read_case({
    ...     "kind": "chat", "step_time": {"base_s": 0.008, "per_prefill_token_s": 5e-5, "per_decode_seq_s": 4e-4},
    ...     "engine": {"num_blocks": 64, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 256,
    ...                "max_model_len": 999},
    ...     "requests": [{"id": "a", "prompt": [["x", 40]], "output": ["a-o", 3], "arrival_s": 0.5},
    ...                  {"id": "b", "prompt": [["x", 40], ["a-o", 3]], "output": ["b-o", 3], "after": "a"}]})
    >>> case.workload.requests.prompt_tokens.tolist(), case.workload.requests.deps(1)
    ([40, 43], [0])
    """
    if not isinstance(source, Mapping):
        name, source = name or Path(source).stem, _load(Path(source))
    return _Reader(name or "engine case").case(source)


def _load(path: Path) -> Json:
    """The JSON object in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise TraceError(f"cannot read {path}", [Problem(str(path), "", str(err), "a readable file")]) from err
    except ValueError as err:
        raise TraceError(f"{path} is not JSON", [Problem(str(path), "", str(err), "one JSON object")]) from err
    if not isinstance(found, dict):
        raise TraceError(f"{path} is not an engine case",
                         [Problem(str(path), "", type(found).__name__, "one JSON object")])
    return cast(Json, found)


class _Contents:
    """Numbers for named content; a name that follows itself starts its stream again, so it gets another number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bool], int] = {}

    def number(self, pieces: list[tuple[str, int]]) -> list[tuple[int, int]]:
        """Pieces (name, tokens) as (content, tokens).

        >>> _Contents().number([("a", 5), ("a", 3), ("b", 1), ("a", 2)])
        [(0, 5), (1, 3), (2, 1), (0, 2)]
        """
        numbered: list[tuple[int, int]] = []
        previous: tuple[str, bool] | None = None
        for name, tokens in pieces:
            previous = (name, previous == (name, False))
            numbered.append((self._numbers.setdefault(previous, len(self._numbers)), tokens))
        return numbered


class _Reader:
    """Reads one case and collects what is wrong with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []

    def case(self, source: Json) -> EngineCase:
        """The whole case, or a `TraceError` with all problems."""
        engine = self.need(source, "engine", "", _mapping)
        config = self.config(engine)
        step_time = self.step_time(self.need(source, "step_time", "", _mapping))
        rows = self.rows(self.need(source, "requests", "", _list))
        answer = self.answer(self.need(source, "answer", "", _mapping), rows) if "answer" in source else None
        if self.problems:
            raise TraceError(f"{self.name} is not an engine case", self.problems)
        workload = Workload(requests_from_rows(rows), label=self.name)
        return EngineCase(self.name, self.get(source, "kind", "", _text, ""), workload, config, step_time, answer)

    def need(self, source: Json, key: str, path: str, read: Callable[[object], T]) -> T:
        """A value of the right type; else the problem is noted and a stand-in returned."""
        try:
            return read(source[key])
        except KeyError:
            self.note(f"{path}.{key}".lstrip("."), "", _ACCEPTED[read])
        except (TypeError, ValueError):
            self.note(f"{path}.{key}".lstrip("."), repr(source[key])[:40], _ACCEPTED[read])
        return read(_STAND_IN[read])

    def get(self, source: Json, key: str, path: str, read: Callable[[object], T], default: T) -> T:
        """The same for a value that may be left out."""
        return self.need(source, key, path, read) if key in source else default

    def note(self, field: str, given: str, accepted: str) -> None:
        """Remember a problem."""
        self.problems.append(Problem(self.name, field, given, accepted))

    def config(self, engine: Json) -> EngineConfig:
        """The engine's settings; refuses those that kvsim does not model."""
        block = self.need(engine, "block_size", "engine", _count)
        groups = self.get(engine, "state_groups", "engine", _whole, 0)
        caching = self.get(engine, "prefix_caching", "engine", _flag, True)
        if groups and caching and (engine.get("state_block_size", block) != block
                                   or engine.get("mamba_cache_mode", "align") != "align"):
            self.note("engine.state_block_size", str(engine.get("state_block_size")), "block_size, in mode align")
        if engine.get("watermark"):
            self.note("engine.watermark", str(engine["watermark"]), "0")
        return EngineConfig(
            num_blocks=self.need(engine, "num_blocks", "engine", _count), block_tokens=block,
            max_num_seqs=self.need(engine, "max_num_seqs", "engine", _count),
            max_num_batched_tokens=self.need(engine, "max_num_batched_tokens", "engine", _count),
            max_model_len=self.need(engine, "max_model_len", "engine", _count), prefix_caching=caching,
            policy=self.get(engine, "policy", "engine", _policy, "fcfs"), state_groups=groups,
            retention_interval_tokens=self.interval(engine),
            extra_attention_groups=self.get(engine, "extra_attention_groups", "engine", _whole, 0),
            tiers=(self.host_tier(self.need(engine, "offload", "engine", _mapping)),) if engine.get("offload") else ())

    def interval(self, engine: Json) -> int | None:
        """The retention interval: null means every block."""
        if engine.get("retention_interval", 0) is None:
            return None
        return self.get(engine, "retention_interval", "engine", _whole, 0)

    def step_time(self, source: Json) -> LinearStepTime:
        """The three coefficients."""
        keys = ("base_s", "per_prefill_token_s", "per_decode_seq_s")
        return LinearStepTime(*(self.need(source, key, "step_time", _seconds) for key in keys))

    def host_tier(self, source: Json) -> TierConfig:
        """The host tier of an offload case."""
        path = "engine.offload"
        return TierConfig(self.need(source, "num_blocks", path, _count),
                          "lazy" if self.need(source, "lazy", path, _flag) else "eager",
                          self.need(source, "load_s_per_block", path, _seconds),
                          self.need(source, "store_s_per_block", path, _seconds))

    def rows(self, sources: list[object]) -> list[Row]:
        """All requests; ``after`` must name one of them."""
        contents = _Contents()
        row_of = {str(s.get("id")): i for i, s in enumerate(map(_as_mapping, sources))}
        if len(row_of) < len(sources):
            self.note("requests", "", "an own id for each")
        return [self.row(_as_mapping(source), f"requests.{i}", contents, row_of) for i, source in enumerate(sources)]

    def row(self, source: Json, path: str, contents: _Contents, row_of: Mapping[str, int]) -> Row:
        """One request."""
        pieces = [*self.need(source, "prompt", path, _pieces), self.need(source, "output", path, _piece)]
        *prompt, (output_content, output_tokens) = contents.number(pieces)
        after: tuple[int, ...] = ()
        if "after" in source:
            after = tuple(row_of[name] for name in [str(source["after"])] if name in row_of)
            if not after:
                self.note(f"{path}.after", str(source["after"]), "the id of another request")
        arrival_s = 0.0 if after else self.need(source, "arrival_s", path, _seconds)
        return Row(prompt, output_tokens, output_content, arrival_s, after,
                   self.get(source, "think_s", path, _seconds, 0.0),
                   priority=self.get(source, "priority", path, _integer, 0), id=self.need(source, "id", path, _text))

    def answer(self, source: Json, rows: list[Row]) -> Answer:
        """The real scheduler's answer, a row for each request."""
        found = [_as_mapping(r) for r in self.need(source, "requests", "answer", _list)]
        if [r.get("id") for r in found] != [row.id for row in rows]:
            self.note("answer.requests", f"{len(found)} rows", "a row for each request, in their order")
        totals = self.need(source, "totals", "answer", _mapping)
        numbers = {key: value for key, value in totals.items() if isinstance(value, (int, float))}
        return Answer(tuple(self.answer_row(r, f"answer.requests.{i}") for i, r in enumerate(found)), numbers)

    def answer_row(self, source: Json, path: str) -> AnswerRow:
        """One request's answer."""
        return AnswerRow(
            id=self.need(source, "id", path, _text), arrival_s=self.need(source, "arrival_s", path, _seconds),
            cached_tokens=self.need(source, "cached_tokens", path, _whole),
            external_tokens=self.get(source, "external_tokens", path, _whole, 0),
            first_token_s=self.need(source, "first_token_s", path, _seconds),
            finish_s=self.need(source, "finish_s", path, _seconds),
            preemptions=self.need(source, "preemptions", path, _whole))


def _as_mapping(value: object) -> Json:
    """`value` if it is a mapping, else an empty one (whose missing fields are then noted)."""
    return cast(Json, value) if isinstance(value, Mapping) else {}


def _mapping(value: object) -> Json:
    if not isinstance(value, Mapping):
        raise TypeError
    return cast(Json, value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError
    return cast("list[object]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _whole(value: object) -> int:
    if _integer(value) < 0:
        raise ValueError
    return _integer(value)


def _count(value: object) -> int:
    if _whole(value) == 0:
        raise ValueError
    return _whole(value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    if not 0 <= value < float("inf"):
        raise ValueError
    return float(value)


def _policy(value: object) -> Literal["fcfs", "priority"]:
    if value == "fcfs":
        return "fcfs"
    if value == "priority":
        return "priority"
    raise ValueError


def _piece(value: object) -> tuple[str, int]:
    name, tokens = _list(value)
    return _text(name), _count(tokens)


def _pieces(value: object) -> list[tuple[str, int]]:
    pieces = [_piece(piece) for piece in _list(value)]
    if not pieces:
        raise ValueError
    return pieces


_ACCEPTED: Mapping[Callable[[object], object], str] = {
    _mapping: "an object", _list: "a list", _text: "a text", _flag: "true or false",
    _whole: "a whole number, 0 or more",
    _count: "a whole number, 1 or more", _seconds: "a number, 0 or more", _policy: "fcfs or priority",
    _integer: "a whole number", _piece: "[content, tokens], tokens 1 or more",
    _pieces: "a list of [content, tokens], tokens 1 or more",
}
_STAND_IN: Mapping[Callable[[object], object], object] = {
    _mapping: {}, _list: [], _text: "", _flag: False, _whole: 0, _count: 1, _seconds: 0.0, _policy: "fcfs", _integer: 0,
    _piece: ["", 1], _pieces: [["", 1]],
}
