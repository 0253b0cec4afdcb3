"""Checks over a whole store of profiles: names, cross references, physics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvsim.errors import Problem, ProfileError, nearest
from kvsim.profiles.figure import Profile
from kvsim.profiles.hardware import ApiPriceProfile, GpuProfile, NodeProfile, PriceProfile
from kvsim.profiles.physics import memory_problems
from kvsim.profiles.store import ProfileStore, default_store, load_profile


def check_profiles(store: ProfileStore) -> list[Problem]:
    """Every problem of every profile that a store can reach.

    Beyond what loading checks: the name is the file's stem, profiles that name others name existing ones (a node its
    GPU, a price list its GPUs, an API price its model), memory sizes and link rates are consistent, and every YAML
    file of the search path is a profile.

    Parameters
    ----------
    store : ProfileStore
        What to check.

    Returns
    -------
    list of Problem
        In the order of kinds and names; empty when all is well.

    Examples
    --------
    >>> [p for p in check_profiles(default_store()) if "gpus" in p.where]
    []
    """
    problems = list(store.strangers())
    for file in store.files():
        try:
            profile = store.get(file.kind, str(file.path))
        except ProfileError as err:
            problems += err.problems
        else:
            problems += _profile_problems(profile, str(file.path), store)
    return problems


def _profile_problems(profile: Profile, where: str, store: ProfileStore) -> list[Problem]:
    """Problems of one profile that loaded."""
    if isinstance(profile, GpuProfile):
        return memory_problems(profile, where)
    if isinstance(profile, NodeProfile):
        return [*_gpu_problems([("gpu", profile.gpu)], where, store), *_node_problems(profile, where)]
    if isinstance(profile, PriceProfile):
        return list(_gpu_problems(_priced(profile), where, store))
    if isinstance(profile, ApiPriceProfile):
        return list(_model_problems(profile, where, store))
    return []


def _priced(profile: PriceProfile) -> list[tuple[str, str]]:
    """(field, GPU name) of everything that a price list prices."""
    named = [("usd_per_gpu_hour", gpu) for gpu in profile.usd_per_gpu_hour]
    return named + [("owned.capex_per_gpu", gpu) for gpu in (profile.owned.capex_per_gpu if profile.owned else {})]


def _gpu_problems(named: list[tuple[str, str]], where: str, store: ProfileStore) -> Iterator[Problem]:
    """Names that are no GPU profile's name; aliases do not count, so that files join by one key."""
    known = store.names("gpu")
    for field, name in named:
        if name not in known:
            yield Problem(where, field, repr(name), ", ".join(known), nearest(name, known))


def _model_problems(profile: ApiPriceProfile, where: str, store: ProfileStore) -> Iterator[Problem]:
    """An API price of a model that the store does not have, or a cached price above the full one."""
    known = store.names("model")
    if known and profile.model not in known:
        yield Problem(where, "model", repr(profile.model), ", ".join(known), nearest(profile.model, known))
    if profile.cached_input.base > profile.input.base:
        yield Problem(where, "cached_input", f"{profile.cached_input.value}", f"at most input, {profile.input.value}")


def _node_problems(node: NodeProfile, where: str) -> Iterator[Problem]:
    """Sizes of a node that contradict each other."""
    dram, unit = node.host_dram, node.buying_unit.num_gpus.base
    if dram and dram.available and dram.available.base > dram.capacity.base:
        yield Problem(where, "host_dram.available", f"{dram.available.value:g} {dram.available.unit}",
                      f"at most host_dram.capacity, {dram.capacity.value:g} {dram.capacity.unit}")
    if node.num_gpus.base <= 0 or unit % node.num_gpus.base:
        yield Problem(where, "buying_unit.num_gpus", f"{unit:g}", f"a multiple of num_gpus, {node.num_gpus.value:g}")


def check_paths(paths: Sequence[Path]) -> tuple[int, list[Problem]]:
    """Check files and folders of profiles; no path means everything that the default store reaches.

    Parameters
    ----------
    paths : sequence of Path
        YAML files, or folders that are searched with their subfolders.

    Returns
    -------
    (int, list of Problem)
        Number of profiles looked at, and every problem.

    Examples
    --------
    >>> check_paths([])[1]
    []
    """
    if not paths:
        store = default_store()
        return len(store.files()), check_profiles(store)
    files = [f for p in paths for f in (sorted(p.rglob("*.yaml")) if p.is_dir() else [p])]
    return len(files), [problem for f in files for problem in _file_problems(f)]


def _file_problems(path: Path) -> list[Problem]:
    """Problems of one file on its own, cross references to the shipped profiles included."""
    try:
        profile = load_profile(path)
    except ProfileError as err:
        return list(err.problems)
    found = _profile_problems(profile, str(path), default_store())
    if profile.name != path.stem:
        found.append(Problem(str(path), "name", profile.name, f"the file's name, {path.stem!r}"))
    return found
