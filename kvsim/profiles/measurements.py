"""From what the microbenchmark wrote (``kvsim/gpu-measurements/1``) to a GPU profile that carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from kvsim.profiles.figure import BytesPerS, Seconds, Source, Strict, figures_in
from kvsim.profiles.hardware import GpuProfile, Reached
from kvsim.profiles.problems import read_checked
from kvsim.profiles.store import ProfileStore, load_text


class HostCopies(Strict):
    """What copies between pinned host memory and the GPU reach."""

    to_gpu: BytesPerS
    from_gpu: BytesPerS


class Product(Strict):
    """A bf16 product of m x k by k x n."""

    m: int
    k: int
    n: int
    time: Seconds


class GpuMeasurements(Reached):
    """A file of ``kvsim calibrate --microbench``; ``gpu`` names the profile that it belongs to."""

    schema_: Literal["kvsim/gpu-measurements/1"] = Field(alias="schema")
    gpu: str
    device: str
    host_link: HostCopies
    gemms: tuple[Product, ...] = ()
    sources: dict[str, Source]


def read_measurements(path: str | Path) -> GpuMeasurements:
    """Read what the microbenchmark wrote.

    Raises
    ------
    ProfileError
        It cannot be read, or has wrong fields (all of them named).
    """
    return read_checked(path, GpuMeasurements, "a valid file of measurements")


def measured_profile(measured: GpuMeasurements, store: ProfileStore) -> str:
    """The GPU's profile with what was measured in place of what was stated, as YAML.

    Parameters
    ----------
    measured : GpuMeasurements
        What the microbenchmark wrote.
    store : ProfileStore
        Has the profile that it belongs to.

    Returns
    -------
    str
        A profile of the same name: in a folder of ``KVSIM_PROFILES`` it replaces the shipped one, and a scenario can
        name its file as ``hardware.gpu``. Rates of host copies are replaced; ``reached`` serves where an engine profile
        has no kernel measured on this GPU.

    Raises
    ------
    ProfileError
        No such GPU, or the measurements do not make a valid profile.
    """
    base = store.get("gpu", measured.gpu)
    data = base.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    new = measured.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    data["host_link"] |= new["host_link"]
    data["reached"] = {name: new[name] for name in Reached.model_fields}
    data["sources"] |= new["sources"]
    merged = GpuProfile.model_validate(data)
    used = {figure.source for _, figure in figures_in(merged)}
    data["sources"] = {key: source for key, source in data["sources"].items() if key in used}
    text = yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)
    load_text(text, f"{base.name} with measurements")
    return text
