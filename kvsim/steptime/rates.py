"""From an engine profile's shares and a GPU's peaks to seconds per FLOP and per byte."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.engine_profile import Component, EngineProfile, Speed
from kvsim.profiles.hardware import GpuProfile, Lane

_LANES: tuple[Lane, ...] = ("fp4", "fp8", "bf16")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one component, by what they are spent on; ``fixed_s`` is floors, launches and overheads."""

    name: str
    compute_s: float = 0.0
    memory_s: float = 0.0
    link_s: float = 0.0
    fixed_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the component."""
        return self.compute_s + self.memory_s + self.link_s + self.fixed_s


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of one kernel family on one GPU.

    Attributes
    ----------
    flop_s, byte_s : float
        Seconds per FLOP and per byte at the reached rates.
    overlap : float
        Share of the shorter time that hides behind the longer, 0 to 1.
    floor_s, overhead_s : float
        Least time of a call, and time added to each.
    peak_flop_s, peak_byte_s : float
        The same at the dense peak and at nominal bandwidth.
    """

    flop_s: float
    byte_s: float
    overlap: float
    floor_s: float
    overhead_s: float
    peak_flop_s: float
    peak_byte_s: float

    def seconds(self, calls: float, flops: float, num_bytes: float) -> float:
        """Time of `calls` equal calls that together do `flops` and move `num_bytes`.

        Notes
        -----
        ``calls (max(c, b, floor) + (1 - overlap) min(c, b) + overhead)`` with c and b the compute and memory times
        of one call. Source of the shape: roofline model; the overlap is derived from measured kernel tables.

        Examples
        --------
        >>> Rate(1e-12, 1e-9, 1.0, 0.0, 0.0, 1e-12, 1e-9).seconds(1, 3e12, 1e9)
        3.0
        """
        compute, memory = flops * self.flop_s, num_bytes * self.byte_s
        long, short = (compute, memory) if compute > memory else (memory, compute)
        floor = calls * self.floor_s
        if long < floor:
            long = floor
        return long + (1.0 - self.overlap) * short + calls * self.overhead_s

    def cost(self, name: str, calls: float, flops: float, num_bytes: float) -> Cost:
        """The same time, split by what it is spent on."""
        compute, memory = flops * self.flop_s, num_bytes * self.byte_s
        extra = max(0.0, calls * self.floor_s - max(compute, memory)) + calls * self.overhead_s
        exposed = 1.0 - self.overlap
        if compute > memory:
            return Cost(name, compute, exposed * memory, 0.0, extra)
        return Cost(name, exposed * compute, memory, 0.0, extra)


def rate_of(engine: EngineProfile, gpu: GpuProfile, component: Component, fmt: str = "", heads: int = 0) -> Rate:
    """Rate of a component's kernels on a GPU.

    Raises
    ------
    ProfileError
        The engine has no kernel for the format on that GPU.
    """
    speed = engine.speed(component, fmt, (gpu.name, gpu.architecture), heads)
    peak = peak_flops(gpu, speed.lane)
    bandwidth = gpu.hbm_bandwidth.base
    return Rate(
        flop_s=1.0 / (peak * speed.flops.base), byte_s=1.0 / (bandwidth * speed.bandwidth.base),
        overlap=_base(speed, "overlap", 1.0), floor_s=_base(speed, "floor", 0.0),
        overhead_s=_base(speed, "overhead", 0.0), peak_flop_s=1.0 / peak, peak_byte_s=1.0 / bandwidth,
    )


def peak_flops(gpu: GpuProfile, lane: Lane) -> float:
    """Dense peak [FLOP/s] of a lane, or of the next wider lane that the GPU has.

    Raises
    ------
    ProfileError
        The GPU has no lane as wide.
    """
    for wider in _LANES[_LANES.index(lane):]:
        if wider in gpu.flops:
            return gpu.flops[wider].base
    raise ProfileError(f"GPU {gpu.name!r} has no {lane} lane",
                       [Problem(gpu.name, f"flops.{lane}", "", ", ".join(gpu.flops))])


def _base(speed: Speed, field: str, default: float) -> float:
    """A figure of a speed in base units, or a default when the profile leaves it out."""
    figure = getattr(speed, field)
    return default if figure is None else float(figure.base)
