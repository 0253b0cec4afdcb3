"""Strict YAML: duplicate keys are errors, ``1e9`` is a number, the top level is a mapping."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import KvsimError, Problem


class _Duplicate(Exception):
    """A key stands twice in one mapping."""

    def __init__(self, key: str, line: int) -> None:
        self.key, self.line = key, line
        super().__init__(key)


# libyaml's parser is ten times as fast; PyYAML may have been built without it.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAP, _SEQ, _STR, _INT, _FLOAT, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "merge"))
_UNDER_WAY = object()


class _StrictLoader(_Loader):
    """SafeLoader that refuses duplicate keys.

    Mappings, lists and plain numbers are made here, since PyYAML takes twice as long for them; the rest is left to it.
    """

    def resolve(self, kind: type[Any], value: str, implicit: tuple[bool, bool]) -> str:
        """Tag of a node; that of a plain text depends on nothing else, and files repeat themselves."""
        if kind is yaml.ScalarNode and implicit[0]:
            return _plain_tag(value)
        return super().resolve(kind, value, implicit)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def construct_document(self, node: yaml.Node) -> Any:
        """What a document says."""
        return self._value(node, {})

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping with what only PyYAML knows in it, such as a merge key."""
        _check_keys(node)
        return super().construct_mapping(node, deep)

    def _value(self, node: yaml.Node, made: dict[yaml.Node, Any]) -> Any:
        """The value of a node; aliases are the same node again, so that each is made once."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node in made:
            if made[node] is _UNDER_WAY:
                raise yaml.constructor.ConstructorError(None, None, "an alias inside of what it names", node.start_mark)
            return made[node]
        made[node] = _UNDER_WAY
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            made[node] = [self._value(item, made) for item in node.value]
        elif isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            _check_keys(node)
            if any(key.tag == _MERGE for key, _ in node.value):
                made[node] = self._other(node)
            else:
                made[node] = {self._scalar(key): self._value(value, made) for key, value in node.value}
        else:
            made[node] = self._other(node)
        return made[node]

    def _other(self, node: yaml.Node) -> Any:
        """The value of a node that is left to PyYAML."""
        return self.construct_object(node, deep=True)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if node.tag == _STR:
            return text
        if node.tag == _FLOAT and text.replace(".", "", 1).isdecimal() and text.isascii():
            return float(text)
        if node.tag == _INT and text.isdecimal() and text.isascii() and text[0] != "0":
            return int(text)
        return self._other(node)


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise unless the keys of a mapping are texts, each once."""
    seen: set[str] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key that is not text", key_node.start_mark)
        if key_node.value in seen:
            raise _Duplicate(str(key_node.value), key_node.start_mark.line + 1)
        seen.add(key_node.value)


@lru_cache(maxsize=1 << 14)
def _plain_tag(text: str) -> str:
    """Tag of a plain text: whether it is a number, a date, a truth value or just text."""
    patterns: dict[str, list[tuple[str, re.Pattern[str]]]] = _StrictLoader.yaml_implicit_resolvers
    return next((tag for tag, pattern in patterns.get(text[:1], []) if pattern.match(text)), _STR)


# YAML 1.1 reads 1e9 as text; people mean the number.
_StrictLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


def read_text(path: str | Path, accepted: str, error: type[KvsimError]) -> str:
    """Text of a file.

    Parameters
    ----------
    path : str or Path
        The file.
    accepted : str
        What it should have been, for the message.
    error : type of KvsimError
        What is raised.

    Raises
    ------
    KvsimError
        Of the given class: there is no such file, it cannot be read, or it is not UTF-8.

    Examples
    --------
    >>> read_text("no/such.yaml", "YAML", KvsimError)
    Traceback (most recent call last):
    kvsim.errors.KvsimError: cannot read no/such.yaml
      no/such.yaml: got No such file or directory; accepted: YAML
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as err:
        given = err.strerror or type(err).__name__
    except UnicodeDecodeError as err:
        given = f"byte {err.start} is not UTF-8"
    raise error(f"cannot read {path}", [Problem(str(path), "", given, accepted)])


def read_yaml(path: str | Path, error: type[KvsimError], accepted: str = "YAML as UTF-8 text") -> dict[str, Any]:
    """Read one YAML mapping from a file; raises as `read_text` and `parse_yaml`."""
    return parse_yaml(read_text(path, accepted, error), str(path), error)


def parse_yaml(text: str, where: str, error: type[KvsimError]) -> dict[str, Any]:
    """Parse one YAML mapping.

    Raises
    ------
    KvsimError
        Of the given class, naming `where` and the line: not YAML, a duplicate key, not a mapping.

    Examples
    --------
    >>> parse_yaml("a: 1e3", "x.yaml", KvsimError)
    {'a': 1000.0}
    """
    try:
        data: Any = yaml.load(text, Loader=_StrictLoader)
    except _Duplicate as err:
        problem = Problem(where, err.key, f"the key a second time in line {err.line}", "each key once")
        raise error(f"{where} has a duplicate key", [problem]) from None
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the text"
        problem = Problem(where, "", f"{getattr(err, 'problem', err)} at {at}", "YAML")
        raise error(f"{where} is not YAML", [problem]) from None
    except RecursionError:
        raise error(f"{where} is nested too deeply", [
            Problem(where, "", "lists or mappings inside each other, hundreds deep", "a few levels")]) from None
    except ValueError as err:
        problem = Problem(where, "", f"a date or number that does not exist: {err}", "one that exists, or quoted text")
        raise error(f"{where} has an impossible value", [problem]) from None
    if not isinstance(data, dict):
        given = {"NoneType": "an empty file", "list": "a list"}.get(type(data).__name__, f"only {data!r:.40}")
        raise error(f"{where} is not a mapping", [Problem(where, "", given, "a mapping of keys to values")])
    return data  # pyright: ignore[reportUnknownVariableType]
