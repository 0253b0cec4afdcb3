"""Strict YAML: duplicate keys are errors, ``1e9`` is a number, the top level is a mapping."""

from __future__ import annotations

import re
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


class _StrictLoader(_Loader):
    """SafeLoader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is not text", key_node.start_mark)
            if key_node.value in seen:
                raise _Duplicate(str(key_node.value), key_node.start_mark.line + 1)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


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
    except ValueError as err:
        problem = Problem(where, "", f"a date or number that does not exist: {err}", "one that exists, or quoted text")
        raise error(f"{where} has an impossible value", [problem]) from None
    if not isinstance(data, dict):
        given = {"NoneType": "an empty file", "list": "a list"}.get(type(data).__name__, f"only {data!r:.40}")
        raise error(f"{where} is not a mapping", [Problem(where, "", given, "a mapping of keys to values")])
    return data  # pyright: ignore[reportUnknownVariableType]
