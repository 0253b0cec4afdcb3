"""Find and load profiles: a search path of folders with one YAML file a profile.

The kind of a file is told by its ``schema:`` line, its name by its file name, so that a new GPU is one new file in any
folder of the search path. Files are parsed when they are asked for, not before.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import json
import os
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.figure import Profile
from kvsim.profiles.labels import bare, former, meant, repository_hint, variant_hint
from kvsim.profiles.paths import PROFILE_FOLDERS, data_root
from kvsim.profiles.physics import dense_problems
from kvsim.profiles.problems import problems_of
from kvsim.profiles.yamlio import parse_yaml, read_text
from kvsim.units import UNITS

if TYPE_CHECKING:
    from kvsim.profiles.draft import DraftProfile
    from kvsim.profiles.engine_profile import EngineProfile
    from kvsim.profiles.hardware import ApiPriceProfile, GpuProfile, NodeProfile, PriceProfile, StorageProfile
    from kvsim.profiles.model import ModelProfile

Kind = Literal["gpu", "node", "storage", "price", "api-price", "model", "engine", "draft"]

KINDS: tuple[Kind, ...] = typing.get_args(Kind)
"""Every kind of profile."""

SCHEMAS = MappingProxyType({
    "kvsim/gpu/1": "kvsim.profiles.hardware:GpuProfile",
    "kvsim/node/1": "kvsim.profiles.hardware:NodeProfile",
    "kvsim/storage/1": "kvsim.profiles.hardware:StorageProfile",
    "kvsim/price/1": "kvsim.profiles.hardware:PriceProfile",
    "kvsim/api-price/1": "kvsim.profiles.hardware:ApiPriceProfile",
    "kvsim/model/1": "kvsim.profiles.model:ModelProfile",
    "kvsim/engine/1": "kvsim.profiles.engine_profile:EngineProfile",
    "kvsim/draft/1": "kvsim.profiles.draft:DraftProfile",
})
"""``schema:`` text -> module and class that checks it; imported when first needed."""

_SCHEMA_LINE = re.compile(r"^schema:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
_ALIASES_FLOW = re.compile(r"^aliases:\s*\[([^\]]*)\]", re.MULTILINE)
_ALIASES_BLOCK = re.compile(r"^aliases:\s*\n((?:\s*- .*\n)+)", re.MULTILINE)


def load_profile(path: str | Path) -> Profile:
    """Read one profile file and check it completely.

    Parameters
    ----------
    path : str or Path
        YAML file; its ``schema`` key tells what it is.

    Returns
    -------
    Profile
        A `GpuProfile`, `NodeProfile`, `ModelProfile`, ... with figures in the units of the file.

    Raises
    ------
    ProfileError
        All problems at once: not YAML, duplicate, unknown or missing keys, wrong units, numbers that are negative or
        not finite, sources that do not resolve or are not used, FLOPS that no such chip reaches.

    Examples
    --------
    >>> gpu = load_profile(data_root() / "hardware_profiles" / "gpus" / "b300-sxm.yaml")
    >>> round(gpu.hbm_usable.base / 2**30, 2)
    268.59
    """
    return load_text(read_text(path, "UTF-8 text", ProfileError), str(path))


def load_text(text: str, where: str) -> Profile:
    """Check the text of one profile; `where` names it in messages. Raises as `load_profile`."""
    data = _without_dates(parse_yaml(text, where, ProfileError))
    cls = _schema_class(data, where)
    problems = _source_problems(data, where)
    try:
        # JSON mode is strict about numbers (no "80", no true) and still takes lists for tuples.
        profile = cls.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as err:
        found = [_with_units(p, cls) for p in problems_of(err, where, cls, data)]
        raise ProfileError(f"{where} is not a valid profile", found + problems) from None
    if profile.schema_ == "kvsim/gpu/1":
        problems += dense_problems(cast("GpuProfile", profile), where)
    if problems:
        raise ProfileError(f"{where} is not a valid profile", problems)
    return profile


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One file of a store: what it is by its schema line and file name, without parsing it."""

    kind: Kind
    name: str
    aliases: tuple[str, ...]
    path: Path


class ProfileStore:
    """Profiles of a search path, found by kind and name or alias.

    Folders are searched with all their subfolders. An earlier folder wins over a later one, so that users can replace
    a shipped profile, whose aliases then lead to theirs; two profiles of one kind in the same folder may not share a
    name or alias. Names are compared without regard to case, and ``_`` counts as ``-``. A GPU is also found by the name
    that its tools print (`kvsim.profiles.labels`).

    Parameters
    ----------
    search_path : tuple of Path
        Folders, first wins.

    Examples
    --------
    >>> store = default_store()
    >>> store.get("gpu", "B300").name, store.get("gpu", "NVIDIA H100 80GB HBM3").name
    ('b300-sxm', 'h100-sxm')
    """

    def __init__(self, search_path: tuple[Path, ...]) -> None:
        self.search_path = search_path
        self._loaded: dict[Path, Profile] = {}

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Names of all profiles of a kind, sorted, without aliases.

        Raises
        ------
        ProfileError
            A folder of the search path is missing, or two profiles share a name.
        """
        return tuple(sorted({f.name for f in self._index[kind].values()}))

    @overload
    def get(self, kind: Literal["gpu"], name: str) -> GpuProfile: ...
    @overload
    def get(self, kind: Literal["node"], name: str) -> NodeProfile: ...
    @overload
    def get(self, kind: Literal["storage"], name: str) -> StorageProfile: ...
    @overload
    def get(self, kind: Literal["price"], name: str) -> PriceProfile: ...
    @overload
    def get(self, kind: Literal["api-price"], name: str) -> ApiPriceProfile: ...
    @overload
    def get(self, kind: Literal["model"], name: str) -> ModelProfile: ...
    @overload
    def get(self, kind: Literal["engine"], name: str) -> EngineProfile: ...
    @overload
    def get(self, kind: Literal["draft"], name: str) -> DraftProfile: ...
    @overload
    def get(self, kind: Kind, name: str) -> Profile: ...

    def get(self, kind: Kind, name: str) -> Profile:
        """The profile of a kind with this name or alias; parsed once, then kept.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        name : str
            Name, alias, or the path of a YAML file.

        Raises
        ------
        ProfileError
            No such profile (the message names the nearest and all accepted names), or the file has problems.
        """
        path = self.path_of(kind, name)
        profile = self._loaded.get(path) or load_profile(path)
        problems = list(_identity_problems(profile, kind, path))
        if problems:
            raise ProfileError(f"{path} is not the {kind} profile that was asked for", problems)
        return self._loaded.setdefault(path, profile)

    def knows(self, kind: Kind, name: str) -> bool:
        """Whether a profile of the kind has this name or alias.

        >>> default_store().knows("gpu", "b300"), default_store().knows("gpu", "b3000")
        (True, False)
        """
        return self._found(kind, name) is not None

    def path_of(self, kind: Kind, name: str) -> Path:
        """File of the profile with this name or alias.

        Raises
        ------
        ProfileError
            No such profile.
        """
        if name.endswith((".yaml", ".yml")):
            return Path(name)
        found = self._found(kind, name)
        if found is None:
            raise self._unknown(kind, name)
        return found.path

    def digest(self, profile: Profile) -> str:
        """SHA-256 of the file that a profile of this store came from, as hexadecimal text.

        Raises
        ------
        ProfileError
            The profile did not come from this store.

        Examples
        --------
        >>> store = default_store()
        >>> len(store.digest(store.get("gpu", "b300")))
        64
        """
        for path, loaded in self._loaded.items():
            if loaded is profile:
                return hashlib.sha256(_read_bytes(path)).hexdigest()
        problem = Problem("profile store", "digest", profile.name, "a profile that this store returned")
        raise ProfileError(f"profile {profile.name!r} did not come from this store", [problem])

    def files(self) -> tuple[ProfileFile, ...]:
        """Every profile file that lookups can reach, by kind and name."""
        found = {id(f): f for index in self._index.values() for f in index.values()}
        return tuple(sorted(found.values(), key=lambda f: (KINDS.index(f.kind), f.name)))

    def strangers(self) -> tuple[Problem, ...]:
        """YAML files of the search path that are no profiles, because their schema line is missing or unknown."""
        return tuple(p for entry in self._layers for p in entry if isinstance(p, Problem))

    @cached_property
    def _layers(self) -> tuple[tuple[ProfileFile | Problem, ...], ...]:
        """What each folder of the search path holds."""
        missing = [Problem("search path", str(folder), "no such folder", "an existing folder")
                   for folder in self.search_path if not folder.is_dir()]
        if missing:
            raise ProfileError("the profile search path is wrong", missing)
        return tuple(tuple(_scan(folder)) for folder in self.search_path)

    @cached_property
    def _index(self) -> Mapping[Kind, Mapping[str, ProfileFile]]:
        """Kind -> normalised name or alias -> file."""
        index: dict[Kind, dict[str, ProfileFile]] = {kind: {} for kind in KINDS}
        problems: list[Problem] = []
        for layer in reversed(self._layers):
            fresh: dict[tuple[Kind, str], ProfileFile] = {}
            for file in layer:
                if isinstance(file, ProfileFile):
                    problems += _enter(fresh, file)
            for (kind, key), file in fresh.items():
                index[kind][key] = file
        if problems:
            raise ProfileError("profiles share a name or an alias", problems)
        return {kind: {key: files[_normal(file.name)] for key, file in files.items()} for kind, files in index.items()}

    def _found(self, kind: Kind, name: str) -> ProfileFile | None:
        """The file that a name leads to, as it is written or as tools and vendors print it."""
        index, plain = self._index[kind], _normal(name)
        if plain in index:
            return index[plain]
        if kind == "model":
            return index.get(former(plain))
        known = meant(name, self._gpu_names) if kind == "gpu" else None
        return None if known is None else index[_normal(known)]

    @property
    def _gpu_names(self) -> dict[str, str]:
        """Names and aliases of GPUs, and the profile that each leads to."""
        return {key: file.name for key, file in self._index["gpu"].items()}

    def _hint(self, kind: Kind, name: str) -> str:
        """What to do about a name that no profile has."""
        similar = nearest(_normal(name), list(self._index[kind]))
        if kind == "gpu":
            return variant_hint(name, self._gpu_names) or similar or nearest(bare(name), list(self._index[kind]))
        if kind != "model":
            return similar
        return _import_hint(name) or "; ".join(part for part in (similar, repository_hint(name)) if part)

    def _unknown(self, kind: Kind, name: str) -> ProfileError:
        """The error of a name that no profile has."""
        problem = Problem(f"{kind} profile", "", repr(name), ", ".join(self.names(kind)) or f"no {kind} profile exists",
                          self._hint(kind, name))
        return ProfileError(f"no {kind} profile {name!r}", [problem, *self.strangers()])


def default_store() -> ProfileStore:
    """The shipped profiles, behind the folders that the environment variable ``KVSIM_PROFILES`` lists.

    Returns
    -------
    ProfileStore
        One store a process and value of the variable; folders are separated by ``os.pathsep`` and come first.

    Examples
    --------
    >>> "b300-sxm" in default_store().names("gpu")
    True
    """
    return _store_for(os.environ.get("KVSIM_PROFILES", ""))


@lru_cache(maxsize=8)
def _store_for(user_folders: str) -> ProfileStore:
    """Store with these user folders in front."""
    users = [Path(part) for part in user_folders.split(os.pathsep) if part]
    root = data_root()
    shipped = [root / name for name in PROFILE_FOLDERS if (root / name).is_dir()]
    return ProfileStore((*users, *shipped))


def _import_hint(name: str) -> str:
    """How a model's config.json, or the folder with it, becomes a profile; empty for any other name."""
    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    return f"'kvsim profiles import {config} -o mine.yaml' makes a profile of it" if config.suffix == ".json" else ""


def _normal(name: str) -> str:
    """A name as it is compared."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _read_bytes(path: Path) -> bytes:
    """Bytes of a file, or a ProfileError."""
    try:
        return path.read_bytes()
    except OSError as err:
        problem = Problem(str(path), "", err.strerror or type(err).__name__, "a readable YAML file")
        raise ProfileError(f"cannot read {path}", [problem]) from None


def _without_dates(data: Any) -> Any:
    """YAML 1.1 turns 2026-11-30 into a date; profiles mean the text."""
    if isinstance(data, dict):
        return {str(k): _without_dates(v) for k, v in cast("dict[Any, Any]", data).items()}
    if isinstance(data, list):
        return [_without_dates(v) for v in cast("list[Any]", data)]
    return data.isoformat() if isinstance(data, datetime.date) else data


def _schema_class(data: Mapping[str, Any], where: str) -> type[Profile]:
    """Class that checks a profile, by its schema key."""
    given = data.get("schema")
    target = SCHEMAS.get(given) if isinstance(given, str) else None
    if target is None:
        problem = Problem(where, "schema", "" if given is None else repr(given), ", ".join(SCHEMAS),
                          nearest(str(given), list(SCHEMAS)))
        raise ProfileError(f"{where} does not say which profile it is", [problem])
    module, _, name = target.partition(":")
    return cast("type[Profile]", getattr(importlib.import_module(module), name))


def _source_problems(data: Mapping[str, Any], where: str) -> list[Problem]:
    """Sources that figures name and nobody defines, and sources that nobody names."""
    sources = data.get("sources")
    known = list(cast("dict[str, Any]", sources)) if isinstance(sources, dict) else []
    used = [pair for key, value in data.items() if key != "sources" for pair in _sources_used({key: value})]
    accepted = ", ".join(known) or "a key of 'sources', which is empty"
    unresolved = [Problem(where, path, repr(name), accepted, nearest(name, known))
                  for path, name in used if name not in known]
    names = {name for _, name in used}
    unused = [Problem(where, f"sources.{name}", "a source that no figure names", "sources in use; remove this one")
              for name in known if name not in names]
    return unresolved + unused


def _sources_used(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, source key) of everything that names a source."""
    if isinstance(part, dict):
        for key, value in cast("dict[str, Any]", part).items():
            inner = f"{path}.{key}" if path else key
            if isinstance(value, str) and (key == "source" or key.endswith("_source")):
                yield inner, value
            else:
                yield from _sources_used(value, inner)
    elif isinstance(part, list):
        for number, value in enumerate(cast("list[Any]", part)):
            yield from _sources_used(value, f"{path}.{number}")


def _with_units(problem: Problem, cls: type[Profile]) -> Problem:
    """A missing or unknown unit, with the units that its field accepts."""
    path = problem.field.split(".")
    if path[-1] == "unit" and not problem.given:
        path.pop()
    elif not problem.given.startswith("unknown unit"):
        return problem
    units = ", ".join(_units_accepted(cls, path))
    return Problem(problem.where, problem.field, problem.given, f"a unit: {units}", problem.hint) if units else problem


def _units_accepted(cls: type[Profile], path: list[str]) -> list[str]:
    """Units that the field at a path of the schema takes."""
    annotation: Any = cls
    for part in path:
        annotation = _child(annotation, part)
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return [unit for unit in UNITS if _takes(adapter, unit)]


def _takes(adapter: TypeAdapter[Any], unit: str) -> bool:
    """Whether a schema takes a figure of this unit."""
    try:
        adapter.validate_python({"value": 1.0, "unit": unit, "kind": "nominal", "source": "any"})
    except ValidationError:
        return False
    return True


def _child(annotation: Any, part: str) -> Any:
    """Annotation of a key inside an annotation; Any when the schema does not have it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return fields[part].rebuild_annotation() if part in fields else Any
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return args[1]
    if origin in (tuple, list):
        return args[0]
    inner = args[:1] if origin is Annotated else args
    return next((found for arg in inner if (found := _child(arg, part)) is not Any), Any)


def _scan(folder: Path) -> Iterator[ProfileFile | Problem]:
    """Profile files of a folder, by their first lines."""
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml")):
        text = read_text(path, "UTF-8 text", ProfileError)
        match = _SCHEMA_LINE.search(text)
        schema = match[1] if match else ""
        if schema in SCHEMAS:
            kind = cast("Kind", schema.split("/")[1])
            yield ProfileFile(kind, path.stem, _aliases(text), path)
        else:
            yield Problem(str(path), "schema", repr(schema) if schema else "", ", ".join(SCHEMAS),
                          nearest(schema, list(SCHEMAS)))


def _aliases(text: str) -> tuple[str, ...]:
    """Aliases of a profile text, without parsing all of it."""
    flow, block = _ALIASES_FLOW.search(text), _ALIASES_BLOCK.search(text)
    if flow:
        items = flow[1].split(",")
    elif block:
        items = [line.strip()[2:] for line in block[1].splitlines()]
    else:
        return ()
    return tuple(cleaned for item in items if (cleaned := item.partition("#")[0].strip().strip("'\"")))


def _enter(fresh: dict[tuple[Kind, str], ProfileFile], file: ProfileFile) -> Iterator[Problem]:
    """Enter a file under its name and aliases; what is taken already is a problem."""
    for key in dict.fromkeys(_normal(n) for n in (file.name, *file.aliases)):
        other = fresh.setdefault((file.kind, key), file)
        if other is not file:
            yield Problem(str(file.path), "aliases" if key != _normal(file.name) else "name", repr(key),
                          f"a name that no other {file.kind} profile has; {other.path} has it")


def _identity_problems(profile: Profile, kind: Kind, path: Path) -> Iterator[Problem]:
    """A file that holds another kind or name than it was looked up as."""
    found = profile.schema_.split("/")[1]
    if found != kind:
        yield Problem(str(path), "schema", repr(profile.schema_), f"'kvsim/{kind}/1'")
    if profile.name != path.stem:
        yield Problem(str(path), "name", repr(profile.name), f"{path.stem!r}, as the file is called")
