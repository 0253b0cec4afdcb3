"""From an engine profile's shares and a GPU's peaks to seconds per FLOP and per byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.engine_profile import Component, EngineProfile, Speed
from kvsim.profiles.hardware import GpuProfile, Lane
from kvsim.steptime.waves import wave_factor

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
    num_sms, fair_over_alone : int, float
        For kernels whose tiles run in waves (`kvsim.steptime.waves`); 0 for others.
    """

    flop_s: float
    byte_s: float
    overlap: float
    floor_s: float
    overhead_s: float
    peak_flop_s: float
    peak_byte_s: float
    num_sms: int = 0
    fair_over_alone: float = 0.0

    def in_waves(self, tiles: int) -> Rate:
        """The rate at which `tiles` (sequences x KV heads of a rank) are read; itself where no waves are known."""
        if not self.num_sms:
            return self
        return replace(self, byte_s=self.byte_s * wave_factor(tiles, self.num_sms, self.fair_over_alone))

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
    flops_frac, bandwidth_frac = _reached(speed, gpu, component)
    num_sms, fair_over_alone = _waves(speed, gpu)
    return Rate(
        flop_s=1.0 / (peak * flops_frac), byte_s=1.0 / (bandwidth * bandwidth_frac),
        overlap=_base(speed, "overlap", 1.0), floor_s=_base(speed, "floor", 0.0),
        overhead_s=_base(speed, "overhead", 0.0), peak_flop_s=1.0 / peak, peak_byte_s=1.0 / bandwidth,
        num_sms=num_sms, fair_over_alone=fair_over_alone,
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


def _reached(speed: Speed, gpu: GpuProfile, component: Component) -> tuple[float, float]:
    """Shares of the peak FLOPs and the bandwidth: the engine profile's, or the GPU's own where none is of this GPU."""
    flops, bandwidth, own = speed.flops.base, speed.bandwidth.base, gpu.reached
    if own is None or gpu.name in speed.gpus or speed.flops.base == speed.bandwidth.base == 1.0:
        return flops, bandwidth
    if component == "gemm":
        if speed.lane == "bf16":
            flops = min(1.0, own.gemm_sustained.base / peak_flops(gpu, "bf16"))
        return flops, min(1.0, own.weight_read.base / gpu.hbm_bandwidth.base)
    if component == "elementwise":
        return flops, min(1.0, own.hbm_copy.base / gpu.hbm_bandwidth.base)
    return flops, bandwidth


def _waves(speed: Speed, gpu: GpuProfile) -> tuple[int, float]:
    """Multiprocessors, and one's share of a full wave over what it reads alone; zeros where either is unknown."""
    if speed.single_sm is None or gpu.num_sms is None:
        return 0, 0.0
    num_sms = int(gpu.num_sms.base)
    return num_sms, min(1.0, speed.bandwidth.base / (num_sms * speed.single_sm.base))


def _base(speed: Speed, field: str, default: float) -> float:
    """A figure of a speed in base units, or a default when the profile leaves it out."""
    figure = getattr(speed, field)
    return default if figure is None else float(figure.base)
