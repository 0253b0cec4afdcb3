"""Profiles as rows of tables, a Hugging Face config as a model profile, an engine's log beside the prediction."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from kvsim.errors import Problem, ProfileError, ScenarioError
from kvsim.interop.checking import LogCheck, check_log
from kvsim.interop.importing import ImportOptions
from kvsim.interop.logs import EngineLog, read_log
from kvsim.profiles.figure import Profile, figures_in
from kvsim.profiles.hf_file import import_file
from kvsim.scenario import Scenario
from kvsim.units import gib

KIND_TEXT = MappingProxyType({
    "gpu": "GPUs", "node": "Nodes", "storage": "Storage", "price": "GPU prices", "api-price": "API prices",
    "model": "Models", "engine": "Engines", "draft": "Drafts",
})
"""Kinds of profiles for people."""
MAX_CONFIG_BYTES = 1_000_000
"""A config.json has a few kilobytes."""
MAX_LOG_BYTES = 20_000_000
"""A start-up log has some hundred kilobytes; what follows it says nothing about memory."""


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


def uploaded_log(name: str, data: bytes) -> EngineLog:
    """What an uploaded start-up log, or metrics, say; the file is called as it was uploaded.

    Raises
    ------
    ScenarioError
        Too large, binary, or nothing about an engine's memory.
    """
    own = Path(name).name or "engine.log"
    if len(data) > MAX_LOG_BYTES:
        raise ScenarioError("the file is too large for the dashboard", [
            Problem(own, "", f"{len(data) / 1e6:,.0f} MB", f"at most {MAX_LOG_BYTES / 1e6:,.0f} MB: the engine's "
                    "start-up is enough; the command kvsim import-log takes any size")])
    with TemporaryDirectory() as folder:
        path = Path(folder) / own
        path.write_bytes(data)
        try:
            return replace(read_log(path), path=own)
        except ScenarioError as err:
            raise ScenarioError(err.message.replace(str(path), own), [
                replace(p, where=p.where.replace(str(path), own)) for p in err.problems]) from None


def checked(log: EngineLog, scenario: Scenario | None, gpu: str | None) -> LogCheck:
    """The log beside the prediction for a scenario, or for its own arguments on a GPU.

    Raises
    ------
    KvsimError
        As `kvsim.interop.checking.check_log`.
    """
    return check_log(log, scenario, ImportOptions(gpu=gpu))


def log_sentence(check: LogCheck) -> str:
    """Logged against predicted pool, for people."""
    if math.isnan(check.logged_kv_bytes):
        return "The log does not say how large the pool is."
    if math.isnan(check.points):
        return f"The engine holds {gib(check.logged_kv_bytes)} of KV per GPU; there is no prediction to compare."
    more = "less" if check.points < 0 else "more"
    return (f"The engine holds {gib(check.logged_kv_bytes)} of KV per GPU: {abs(check.points):.1f} % {more} than the "
            f"predicted {gib(check.predicted_kv_bytes)}.")


def log_rows(check: LogCheck) -> list[dict[str, str]]:
    """Parts of a GPU's memory, predicted and logged, and what each explains of the pool's difference."""
    known = not math.isnan(check.points)
    rows = [{"Part": "KV pool", "Predicted": gib(check.predicted_kv_bytes),
             "Logged": "not logged" if math.isnan(check.logged_kv_bytes) else gib(check.logged_kv_bytes),
             "Explains (points of the pool)": f"{check.points:+.1f} in all" if known else ""}]
    rows += [{"Part": part.name, "Predicted": gib(part.predicted_bytes),
              "Logged": "not logged" if part.logged_bytes is None else gib(part.logged_bytes),
              "Explains (points of the pool)": f"{part.points:+.1f}" if known and part.logged_bytes is not None else ""}
             for part in check.parts]
    left = {"Part": "not explained", "Predicted": "", "Logged": "",
            "Explains (points of the pool)": f"{check.unexplained_points:+.1f}"}
    return [*rows, left] if known else rows
