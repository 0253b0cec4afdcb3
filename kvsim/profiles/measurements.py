"""From what the microbenchmark wrote (``kvsim/gpu-measurements/1``) to a GPU profile that carries it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import BytesPerS, FlopPerS, Seconds, Source, Strict, figures_in
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.problems import problems_of
from kvsim.profiles.store import ProfileStore, load_text
from kvsim.profiles.yamlio import parse_yaml

_REACHED = ("hbm_read", "hbm_copy", "weight_read", "gemm_sustained", "kernel_in_graph", "eager_launch")


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


class GpuMeasurements(Strict):
    """A file of ``kvsim calibrate --microbench``; ``gpu`` names the profile that it belongs to."""

    schema_: Literal["kvsim/gpu-measurements/1"] = Field(alias="schema")
    gpu: str
    device: str
    host_link: HostCopies
    hbm_read: BytesPerS
    hbm_copy: BytesPerS
    weight_read: BytesPerS
    gemm_sustained: FlopPerS
    kernel_in_graph: Seconds
    eager_launch: Seconds
    gemms: tuple[Product, ...] = ()
    sources: dict[str, Source]


def read_measurements(path: str | Path) -> GpuMeasurements:
    """Read what the microbenchmark wrote.

    Raises
    ------
    ProfileError
        It cannot be read, or has wrong fields (all of them named).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ProfileError(f"cannot read {path}", [Problem(str(path), "", str(err), "measurements of a GPU")]) from None
    data = parse_yaml(text, str(path), ProfileError)
    try:
        return GpuMeasurements.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as err:
        found = problems_of(err, str(path), GpuMeasurements, data)
        raise ProfileError(f"{path} is not a valid file of measurements", found) from None


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
    data["reached"] = {name: new[name] for name in _REACHED}
    data["sources"] |= new["sources"]
    merged = GpuProfile.model_validate(data)
    used = {figure.source for _, figure in figures_in(merged)}
    data["sources"] = {key: source for key, source in data["sources"].items() if key in used}
    text = yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)
    load_text(text, f"{base.name} with measurements")
    return text
