"""A profile as text: every figure with unit, kind and source."""

from __future__ import annotations

from typing import cast

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.figure import Figure, Profile, figures_in
from kvsim.profiles.store import KINDS, Kind, default_store


def find_profile(name: str, kind: Kind | None = None) -> Profile:
    """The profile with that name or alias, of one kind or of whichever kind has it.

    Raises
    ------
    ProfileError
        No profile, or several kinds, have the name.

    Examples
    --------
    >>> find_profile("b300", "gpu").name
    'b300-sxm'
    """
    store = default_store()
    if kind is not None:
        return store.get(kind, name)
    found: list[Kind] = [k for k in KINDS if store.knows(k, name)]
    own: list[Kind] = [k for k in found if name in store.names(k)] or found
    if len(own) == 1:
        return store.get(own[0], name)
    if own:
        problem = Problem("profiles show", "--kind", f"none, but {name!r} is in {', '.join(own)}", "one of them")
        raise ProfileError("several profiles have that name", [problem])
    known = [n for k in KINDS for n in store.names(k)]
    raise ProfileError("no such profile", [
        Problem("profiles show", "name", repr(name), "a name or alias that 'kvsim profiles list' shows",
                nearest(name, known))])


def profile_text(profile: Profile) -> str:
    """Head, figures and sources of a profile, a line each.

    Examples
    --------
    >>> print(profile_text(find_profile("b300", "gpu")).splitlines()[0])
    b300-sxm (kvsim/gpu/1), also b300, ...
    """
    also = f", also {', '.join(profile.aliases)}" if profile.aliases else ""
    lines = [f"{profile.name} ({profile.schema_}){also}"]
    lines += [profile.note.strip()] if profile.note else []
    lines += [_figure_line(path, figure) for path, figure in figures_in(profile)]
    lines += [_plain_line(name, value) for name, value in _plain_fields(profile)]
    lines.append("sources")
    lines += [f"  {key}: {s.title}{', ' + s.url if s.url else ''} (accessed {s.accessed})"
              for key, s in profile.sources.items()]
    return "\n".join(lines)


def _figure_line(path: str, figure: Figure) -> str:
    span = f" [{figure.range[0]:,g} to {figure.range[1]:,g}]" if figure.range else ""
    why = figure.why or figure.note
    return (f"  {path:<36} {figure.value:>14,g} {figure.unit:<9} {figure.kind:<9} {figure.source}{span}"
            + (f"  # {why}" if why else ""))


def _plain_fields(profile: Profile) -> list[tuple[str, object]]:
    data = cast("dict[str, object]", profile.model_dump(mode="json", exclude_none=True))
    shown = {path.split(".")[0] for path, _ in figures_in(profile)}
    skipped = {"schema_", "name", "aliases", "note", "sources", *shown}
    return [(name, value) for name, value in data.items() if name not in skipped]


def _plain_line(name: str, value: object) -> str:
    return f"  {name:<36} {value}"
