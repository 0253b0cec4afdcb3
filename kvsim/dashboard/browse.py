"""Profiles as rows of tables, and a Hugging Face config as a model profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import Profile, figures_in
from kvsim.profiles.hf_file import import_file

KIND_TEXT = MappingProxyType({
    "gpu": "GPUs", "node": "Nodes", "storage": "Storage", "price": "GPU prices", "api-price": "API prices",
    "model": "Models", "engine": "Engines",
})
"""Kinds of profiles for people."""
MAX_CONFIG_BYTES = 1_000_000
"""A config.json has a few kilobytes."""


def figure_rows(profile: Profile) -> list[dict[str, str]]:
    """Every figure of a profile with its unit, kind, range and source.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> rows = figure_rows(default_store().get("gpu", "b300"))
    >>> [row["Kind"] for row in rows if row["Figure"] == "hbm_usable"]
    ['measured']
    """
    return [{"Figure": path, "Value": f"{f.value:,g}", "Unit": f.unit, "Kind": f.kind,
             "Range": f"{f.range[0]:,g} to {f.range[1]:,g}" if f.range else "",
             "Source": profile.sources[f.source].title, "Why": f.why or f.note} for path, f in figures_in(profile)]


def source_rows(profile: Profile) -> list[dict[str, str]]:
    """Where the figures of a profile come from."""
    return [{"Source": s.title, "Address": s.url, "Accessed": s.accessed} for s in profile.sources.values()]


def counted_kinds(profile: Profile) -> str:
    """How many figures there are of each kind.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> counted_kinds(default_store().get("api-price", "moonshot-k3"))
    '3 figures: 3 nominal'
    """
    kinds = [f.kind for _, f in figures_in(profile)]
    counts = {kind: kinds.count(kind) for kind in ("assumed", "derived", "measured", "nominal")}
    return f"{len(kinds)} figures: " + ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)


def imported(data: bytes, name: str) -> str:
    """YAML text of the model profile that an uploaded ``config.json`` describes.

    Parameters
    ----------
    data : bytes
        The file.
    name : str
        Name of the profile: lower-case letters, digits, dots and dashes.

    Raises
    ------
    ProfileError
        Too large, not JSON, or something that kvsim does not understand.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ProfileError("the file is too large for a config.json", [
            Problem("config.json", "", f"{len(data):,} bytes", f"at most {MAX_CONFIG_BYTES:,}")])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(data)
        try:
            return import_file(path, name)
        except ProfileError as err:
            raise ProfileError(err.message.replace(str(path), path.name), [
                replace(p, where=p.where.replace(str(path), path.name)) for p in err.problems]) from None
