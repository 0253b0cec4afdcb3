"""Reads keys of a Hugging Face config.json and keeps every problem it meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from kvsim.errors import Problem


class ConfigReader:
    """Typed access to one config; a wrong or missing key becomes a problem, not an exception.

    Parameters
    ----------
    keys : dict
        The text model's part of a parsed config.json.
    where : str
        Name for messages.
    outer : dict
        The whole config, for keys that multimodal wrappers keep outside.
    defaults : mapping, optional
        Values of keys that neither has.

    Attributes
    ----------
    left_out : list of str
        Keys whose default was taken, in the order of `defaults`.
    problems : list of Problem
        What was wrong so far. Numbers that could not be read are 1, so that reading can go on.

    Examples
    --------
    >>> config = ConfigReader({"hidden_size": 4096}, "config", {})
    >>> config.integer("hidden_size"), config.integer("num_hidden_layers", "n_layer")
    (4096, 1)
    >>> print(config.problems[0])
    config: num_hidden_layers: missing; accepted: a whole number above 0 (or n_layer)
    """

    def __init__(self, keys: dict[str, Any], where: str, outer: dict[str, Any],
                 defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.left_out = [name for name in defaults if all(_stated(part, name) is None for part in (keys, outer))]
        self.keys = {**keys, **{name: defaults[name] for name in self.left_out}}
        self.where = where
        self.outer = outer
        self.problems: list[Problem] = []

    def value(self, *names: str) -> Any:
        """The first of these keys that is there and not null, inside before outside; else None."""
        for part in (self.keys, self.outer):
            for name in names:
                if part.get(name) is not None:
                    return part[name]
        return None

    def integer(self, *names: str) -> int:
        """A required whole number above 0 under one of these names."""
        found = self.value(*names)
        accepted = "a whole number above 0"
        if found is None:
            self.problem(names[0], "", accepted, f"or {', '.join(names[1:])}" if names[1:] else "")
            return 1
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            self.problem(names[0], repr(found), accepted)
            return 1
        return found

    def optional(self, default: int, *names: str) -> int:
        """A whole number of 0 or more; `default` when it is absent or null."""
        found = self.value(*names)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self.problem(names[0], repr(found), "a whole number of 0 or more")
            return default
        return found

    def nullable(self, name: str) -> int:
        """A whole number whose key must be there; null counts as 0."""
        if name not in self.keys and name not in self.outer:
            self.problem(name, "", "a whole number above 0, or null")
            return 0
        return self.optional(0, name)

    def flag(self, default: bool, name: str) -> bool:
        """A yes or no."""
        found = self.value(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.problem(name, repr(found), "true or false")
            return default
        return found

    def per_layer(self, name: str, num_layers: int, accepted: Sequence[Any]) -> list[Any] | None:
        """A list with one of `accepted` a layer (draft layers after them are cut off); None when absent."""
        entries = self.listing(name)
        if entries is None:
            return None
        if len(entries) != num_layers + (self.optional(0, "num_nextn_predict_layers") if name in _WITH_DRAFT else 0):
            self.problem(name, f"{len(entries)} entries", f"{num_layers}, one a layer")
            return None
        wrong = sorted({repr(e) for e in entries[:num_layers] if e not in accepted})
        if wrong:
            self.problem(name, ", ".join(wrong), ", ".join(str(a) for a in accepted))
            return None
        return entries[:num_layers]

    def mapping(self, name: str) -> dict[str, Any]:
        """A required mapping."""
        found = self.value(name)
        if not isinstance(found, dict):
            self.problem(name, "" if found is None else repr(found), "a mapping")
            return {}
        return cast("dict[str, Any]", found)

    def listing(self, name: str) -> list[Any] | None:
        """A list; None when the key is absent."""
        found = self.value(name)
        if found is None or isinstance(found, list):
            return cast("list[Any] | None", found)
        self.problem(name, repr(found), "a list")
        return None

    def problem(self, field: str, given: str, accepted: str, hint: str = "") -> None:
        """Note one more problem."""
        self.problems.append(Problem(self.where, field, given, accepted, hint))


def _stated(part: Mapping[str, Any], name: str) -> Any:
    """A key's value, also where it is written as private (``_sliding_window_pattern``); None where it has none."""
    return part[name] if part.get(name) is not None else part.get(f"_{name}")


_WITH_DRAFT = ("compress_ratios",)
