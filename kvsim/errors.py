"""The one tree of errors that kvsim raises.

A file can be wrong in several places: every error carries all the problems that were found,
each saying where it is, what was given and what is accepted, so that one run shows them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    Parameters
    ----------
    where : str
        File, or a name for an input that has no file (``"--tp"``, ``"scenario"``).
    field : str
        Dotted path inside it, ``""`` when the whole input is meant.
    given : str
        What was found, as text; ``""`` when something is missing.
    accepted : str
        What would have been accepted.
    hint : str
        Nearest match or other advice; may be empty.
    """

    where: str
    field: str
    given: str
    accepted: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: {self.field}" if self.field else self.where
        text = f"{place}: got {self.given}" if self.given else f"{place}: missing"
        text += f"; accepted: {self.accepted}"
        return f"{text} ({self.hint})" if self.hint else text


class KvsimError(Exception):
    """Base of every error that kvsim raises on purpose.

    Parameters
    ----------
    message : str
        One line that says what failed.
    problems : iterable of Problem
        Every problem found, in the order of the file.

    Examples
    --------
    >>> err = KvsimError("cannot read x.yaml", [Problem("x.yaml", "name", "3", "a text")])
    >>> print(err)
    cannot read x.yaml
      x.yaml: name: got 3; accepted: a text
    """

    exit_code = 2

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        self.message = message
        self.problems = tuple(problems)
        lines = [message, *(f"  {p}" for p in self.problems)]
        super().__init__("\n".join(lines))


class ProfileError(KvsimError):
    """A hardware, model, engine or price profile is missing or wrong."""


class ScenarioError(KvsimError):
    """A scenario is missing or wrong, or combines things that exclude each other."""


class TraceError(KvsimError):
    """A trace cannot be read, or more of its rows are bad than allowed."""


class InfeasibleError(KvsimError):
    """The question has an answer, and the answer is no: it does not fit or no plan meets the goal."""

    exit_code = 3


class SimulationError(KvsimError):
    """A conservation law or a physics floor was broken: a defect of kvsim, never of the input."""

    exit_code = 70


def nearest(given: str, known: Sequence[str]) -> str:
    """Advice naming the known word closest to the given one, or an empty text; letters' case does not count.

    >>> nearest("gib", ["GiB", "GB"]), nearest("llama", ["b300"])
    ("did you mean 'GiB'?", '')
    """
    as_written = {word.lower(): word for word in known}
    found = difflib.get_close_matches(given.lower(), list(as_written), n=1, cutoff=0.5)
    return f"did you mean {as_written[found[0]]!r}?" if found else ""
