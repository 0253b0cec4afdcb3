"""The microbenchmark on a made-up GPU whose speeds are known: it has to find them again."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.calibrate import microbench
from kvsim.calibrate.microbench import Measurements
from kvsim.errors import ProfileError
from kvsim.profiles.yamlio import parse_yaml

READ, COPY, FLOP, LAUNCH_S, EAGER_S = 4e12, 3.5e12, 7e14, 1.1e-6, 4e-6
TO_GPU, FROM_GPU = 55e9, 44e9
FREE_BYTES = 100 << 30


@dataclass
class Clock:
    """Work takes its time at once, or is kept while a graph is recorded."""

    now_s: float = 0.0
    recording: list[float] | None = None

    def spend(self, work_s: float) -> None:
        if self.recording is None:
            self.now_s += work_s
        else:
            self.recording.append(work_s)


@dataclass
class Array:
    """A tensor without contents."""

    clock: Clock
    shape: tuple[int, ...]
    item_bytes: int
    on_host: bool = False

    def numel(self) -> int:
        return math.prod(self.shape)

    def sum(self) -> None:
        self.clock.spend(self.numel() * self.item_bytes / READ)

    def add_(self, _: int) -> None:
        self.clock.spend(EAGER_S if self.clock.recording is None else LAUNCH_S)

    def copy_(self, other: Array, non_blocking: bool = False) -> None:
        size = self.numel() * self.item_bytes
        assert non_blocking == (self.on_host or other.on_host)
        self.clock.spend(size / TO_GPU if other.on_host else size / FROM_GPU if self.on_host else 2 * size / COPY)

    def __matmul__(self, other: Array) -> None:
        (m, k), (_, n) = self.shape, other.shape
        self.clock.spend(max(2.0 * m * k * n / FLOP, 2.0 * k * n / READ))


@dataclass
class Graph:
    clock: Clock
    work: list[float] = field(default_factory=list[float])

    def replay(self) -> None:
        self.clock.now_s += sum(self.work)


@dataclass
class Event:
    clock: Clock
    enable_timing: bool
    at_s: float = math.nan

    def record(self) -> None:
        self.at_s = self.clock.now_s

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as PyTorch gives them."""
        return 1e3 * (end.at_s - self.at_s)


def torch_on(clock: Clock) -> Any:
    """What the microbenchmark needs of PyTorch."""
    def array(*shape: Any, dtype: int = 4, device: str = "", pin_memory: bool = False) -> Array:
        sizes = shape[0] if isinstance(shape[0], Sequence) else shape
        return Array(clock, tuple(sizes), dtype, on_host=pin_memory)

    @contextmanager
    def graph(into: Graph) -> Generator[None]:
        clock.recording = into.work
        yield
        clock.recording = None

    @contextmanager
    def stream(_: object) -> Generator[None]:
        yield

    waits = SimpleNamespace(wait_stream=lambda other: None)
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_name=lambda: "made up", mem_get_info=lambda: (FREE_BYTES, FREE_BYTES),
        Event=lambda enable_timing: Event(clock, enable_timing), Stream=lambda: waits, current_stream=lambda: waits,
        synchronize=lambda: None, CUDAGraph=lambda: Graph(clock), graph=graph, stream=stream)
    return SimpleNamespace(
        __version__="0", cuda=cuda, device=str, float32=4, bfloat16=2, uint8=1, ones=array, zeros=array, empty=array,
        randn=array, empty_like=lambda other: Array(clock, other.shape, other.item_bytes))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setitem(sys.modules, "torch", torch_on(made))
    monkeypatch.setattr(microbench, "time", SimpleNamespace(perf_counter=lambda: made.now_s))
    return made


@pytest.fixture
def measured(clock: Clock) -> Measurements:
    return microbench.measure()


def test_memory_and_launches(measured: Measurements) -> None:
    assert measured.read_bytes_per_s == pytest.approx(READ)
    assert measured.copy_bytes_per_s == pytest.approx(COPY)
    assert measured.launch_s == pytest.approx(LAUNCH_S)
    assert measured.eager_launch_s == pytest.approx(EAGER_S)
    assert measured.device == "made up"


def test_products_are_bound_by_weights_or_by_arithmetic(measured: Measurements) -> None:
    assert len(measured.gemms) >= 10
    for gemm in measured.gemms:
        assert gemm.time_s == pytest.approx(max(2 * gemm.m * gemm.k * gemm.n / FLOP, 2 * gemm.k * gemm.n / READ))
    assert max(gemm.weight_bytes_per_s for gemm in measured.gemms) == pytest.approx(READ)
    assert measured.sustained_flop_per_s == pytest.approx(FLOP)


def test_both_directions_of_the_host_link(measured: Measurements) -> None:
    for copy in measured.copies:
        assert copy.to_gpu_bytes_per_s == pytest.approx(TO_GPU)
        assert copy.from_gpu_bytes_per_s == pytest.approx(FROM_GPU)


def test_a_load_is_kept_up_for_seconds(clock: Clock) -> None:
    microbench._sustained(sys.modules["torch"], "cuda")
    assert clock.now_s == pytest.approx(microbench.SUSTAINED_S, rel=0.1)


def test_the_written_file(clock: Clock, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    microbench.main(["--gpu", "h200-sxm", "-o", str(target)])
    data = parse_yaml(target.read_text(), str(target), ProfileError)
    assert data["gpu"] == "h200-sxm"
    assert data["host_link"]["to_gpu"]["value"] == pytest.approx(TO_GPU / 1e9)
    assert data["weight_read"]["value"] == pytest.approx(READ / 1e9)


def test_a_machine_without_a_gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)
    with pytest.raises(ProfileError, match=r"torch\.cuda: got no GPU; accepted: a Python with PyTorch"):
        microbench.measure()
