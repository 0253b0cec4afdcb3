"""Where the numbers of a result come from: one line a figure, assumed ones first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvsim.profiles.figure import Figure, Profile, figures_in

ORDER = ("assumed", "derived", "measured", "nominal")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One figure that a result rests on.

    ``value`` is in ``unit`` as the profile states it; ``low`` and ``high`` are its range (equal to the
    value when none is stated); ``source`` is the title of the source, ``why`` the reason of an assumption.
    """

    name: str
    value: float
    unit: str
    kind: str
    source: str
    low: float
    high: float
    why: str = ""


def ledger_of(profiles: Iterable[Profile]) -> tuple[LedgerEntry, ...]:
    """Every figure of the profiles a result used, assumed first, then in the order given.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> entries = ledger_of([default_store().get("gpu", "b300")])
    >>> [e.unit for e in entries if e.name == "b300-sxm.hbm_usable"]
    ['MiB']
    """
    entries = [_entry(f"{p.name}.{path}", figure, p) for p in profiles for path, figure in figures_in(p)]
    return tuple(sorted(entries, key=lambda e: ORDER.index(e.kind)))


def _entry(name: str, figure: Figure, profile: Profile) -> LedgerEntry:
    low, high = figure.range or (figure.value, figure.value)
    return LedgerEntry(name, figure.value, figure.unit, figure.kind, profile.sources[figure.source].title,
                       low, high, figure.why or figure.note)
