"""Measure a GPU: memory, matrix products, host copies and kernel launches, in about two minutes.

Needs PyTorch with CUDA (or ROCm) and nothing else but the standard library, so that it runs on a bare GPU machine:
``python -m kvsim.calibrate.microbench --gpu h200-sxm -o h200-measured.yaml``. PyTorch is imported only when measuring.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import Problem, ProfileError

SCHEMA = "kvsim/gpu-measurements/1"
GEMM_ROWS = (1, 8, 64, 256, 1024, 8192)
GEMM_WEIGHTS = ((4096, 14336), (7168, 7168), (2304, 4096), (4096, 6144), (14336, 4096))
"""(k, n) of the weight matrices: gate, square, small, fused QKV and down projections of common models."""
COPY_SIZES = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 1 << 30)
READ_BYTES = 8 << 30
BEYOND_CACHE_BYTES = 512 << 20
"""Weights are taken in turn from so many bytes, so that the cache on the GPU never holds the next one."""
SUSTAINED_S = 3.0
TIMED_RUNS = 5


@dataclass(frozen=True, slots=True)
class Gemm:
    """A bf16 product of m x k by k x n: median time [s] of one inside a graph."""

    m: int
    k: int
    n: int
    time_s: float

    @property
    def flop_per_s(self) -> float:
        """2 m k n over the time."""
        return 2.0 * self.m * self.k * self.n / self.time_s

    @property
    def weight_bytes_per_s(self) -> float:
        """2 k n bytes over the time."""
        return 2.0 * self.k * self.n / self.time_s


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between pinned host memory and the GPU; rates in bytes/s."""

    num_bytes: int
    to_gpu_bytes_per_s: float
    from_gpu_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured, base units; ``device`` and ``software`` as PyTorch names them.

    ``launch_s`` is the time of one smallest kernel inside a graph, ``eager_launch_s`` what the host needs to launch
    one from Python. ``sustained_flop_per_s`` is a large product repeated for seconds, under the power limit.
    """

    device: str
    software: str
    date: str
    read_bytes_per_s: float
    copy_bytes_per_s: float
    launch_s: float
    eager_launch_s: float
    sustained_flop_per_s: float
    gemms: tuple[Gemm, ...]
    copies: tuple[Copy, ...]

    def to_yaml(self, gpu: str) -> str:
        """Overlay of a GPU profile: measured figures with provenance.

        Parameters
        ----------
        gpu : str
            Name of the GPU profile that it belongs to.

        Notes
        -----
        ``host_link`` has the keys of a GPU profile; the other figures are rates that kernels of engine profiles
        reach (as shares of the GPU's nominal ones).
        """
        best_read = max(g.weight_bytes_per_s for g in self.gemms)
        largest = max(self.copies, key=lambda c: c.num_bytes)
        lines = [
            f"schema: {SCHEMA}", f"gpu: {gpu}", f"device: {_quoted(self.device)}", "host_link:",
            f"  to_gpu: {_figure(largest.to_gpu_bytes_per_s / 1e9, 'GB/s', _sizes(self.copies, 'to_gpu'))}",
            f"  from_gpu: {_figure(largest.from_gpu_bytes_per_s / 1e9, 'GB/s', _sizes(self.copies, 'from_gpu'))}",
            f"hbm_read: {_figure(self.read_bytes_per_s / 1e9, 'GB/s', 'sum over a large array')}",
            f"hbm_copy: {_figure(self.copy_bytes_per_s / 1e9, 'GB/s', 'read and written bytes of a copy')}",
            f"weight_read: {_figure(best_read / 1e9, 'GB/s', 'the best of the products below')}",
            f"gemm_sustained: {_figure(self.sustained_flop_per_s / 1e12, 'TFLOPS', 'repeated for seconds')}",
            f"kernel_in_graph: {_figure(self.launch_s * 1e6, 'us', 'an addition inside a graph')}",
            f"eager_launch: {_figure(self.eager_launch_s * 1e6, 'us', 'the host launches an addition from Python')}",
            "gemms:", *(_gemm_line(g) for g in self.gemms), "sources:",
            f"  microbench: {{title: {_quoted('kvsim microbenchmark on one ' + self.device + ', ' + self.software)}, "
            f"accessed: {_quoted(self.date)}}}",
        ]
        return "\n".join(lines) + "\n"


def measure() -> Measurements:
    """Measure the current GPU.

    Raises
    ------
    ProfileError
        PyTorch is missing or sees no GPU.
    """
    torch = _torch()
    device = torch.device("cuda")
    return Measurements(
        device=str(torch.cuda.get_device_name()), software=f"PyTorch {torch.__version__}",
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        read_bytes_per_s=_read_rate(torch, device), copy_bytes_per_s=_copy_rate(torch, device),
        launch_s=_graph_launch_s(torch, device), eager_launch_s=_eager_launch_s(torch, device),
        gemms=tuple(_gemm(torch, device, m, k, n) for k, n in GEMM_WEIGHTS for m in GEMM_ROWS),
        copies=tuple(_host_copy(torch, device, size) for size in COPY_SIZES),
        sustained_flop_per_s=_sustained(torch, device))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the overlay."""
    parser = argparse.ArgumentParser(description="Measure a GPU and write what was measured as YAML.")
    parser.add_argument("--gpu", required=True, help="name of the GPU profile that the figures belong to")
    parser.add_argument("-o", "--output", required=True, type=Path, help="file to write")
    given = parser.parse_args(arguments)
    given.output.write_text(measure().to_yaml(given.gpu), encoding="utf-8")


def _torch() -> Any:
    """PyTorch, if it is there and sees a GPU."""
    accepted = "a Python with PyTorch on a machine with a GPU"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as err:
        raise ProfileError("cannot measure", [Problem("microbenchmark", "torch", str(err), accepted)]) from None
    if not torch.cuda.is_available():
        raise ProfileError("cannot measure", [Problem("microbenchmark", "torch.cuda", "no GPU", accepted)])
    return torch


def _seconds(torch: Any, work: Callable[[], object], repeats: int) -> float:
    """Median time [s] of `work` on the GPU, run `repeats` times between two events."""
    work()
    times: list[float] = []
    for _ in range(TIMED_RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / repeats)
    return statistics.median(times)


def _graph(torch: Any, work: Callable[[], object]) -> Any:
    """`work` captured as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _large(torch: Any, device: Any) -> Any:
    """A large array that fits."""
    free, _ = torch.cuda.mem_get_info()
    return torch.ones(int(min(READ_BYTES, free // 3)) // 4, dtype=torch.float32, device=device)


def _read_rate(torch: Any, device: Any) -> float:
    """Bytes per second of a sum over a large array."""
    array = _large(torch, device)
    return 4.0 * array.numel() / _seconds(torch, lambda: array.sum(), 5)


def _copy_rate(torch: Any, device: Any) -> float:
    """Bytes per second, read and written, of a copy on the GPU."""
    array = _large(torch, device)
    target = torch.empty_like(array)
    return 8.0 * array.numel() / _seconds(torch, lambda: target.copy_(array), 5)


def _gemm(torch: Any, device: Any, m: int, k: int, n: int) -> Gemm:
    """One product inside a graph, its weights from outside the cache."""
    weights = [torch.randn(k, n, dtype=torch.bfloat16, device=device)
               for _ in range(max(2, BEYOND_CACHE_BYTES // (2 * k * n)))]
    rows = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    graph = _graph(torch, lambda: [rows @ w for w in weights])
    return Gemm(m, k, n, _seconds(torch, graph.replay, 2) / len(weights))


def _sustained(torch: Any, device: Any) -> float:
    """FLOP/s of a large product repeated for `SUSTAINED_S`, over its second half."""
    m, k, n = 8192, 4096, 28672
    rows, weight = (torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in ((m, k), (k, n)))
    once = _seconds(torch, lambda: rows @ weight, 3)
    repeats = max(1, int(SUSTAINED_S / 2 / once / (TIMED_RUNS + 1)))
    for _ in range(repeats):
        _seconds(torch, lambda: rows @ weight, 1)
    return 2.0 * m * k * n / _seconds(torch, lambda: rows @ weight, repeats)


def _graph_launch_s(torch: Any, device: Any) -> float:
    """Time [s] of one smallest kernel of a graph of a thousand."""
    number = torch.zeros(1, device=device)
    graph = _graph(torch, lambda: [number.add_(1) for _ in range(1000)])
    return _seconds(torch, graph.replay, 3) / 1000.0


def _eager_launch_s(torch: Any, device: Any) -> float:
    """Time [s] the host needs to launch one smallest kernel from Python."""
    number = torch.zeros(1, device=device)
    times: list[float] = []
    for _ in range(TIMED_RUNS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(500):
            number.add_(1)
        times.append((time.perf_counter() - began) / 500.0)
    return statistics.median(times[1:])


def _host_copy(torch: Any, device: Any, size: int) -> Copy:
    """Both directions of a copy of `size` bytes from and to pinned memory."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    gpu = torch.empty(size, dtype=torch.uint8, device=device)
    repeats = max(1, min(50, (256 << 20) // size))
    to_gpu = _seconds(torch, lambda: gpu.copy_(host, non_blocking=True), repeats)
    from_gpu = _seconds(torch, lambda: host.copy_(gpu, non_blocking=True), repeats)
    return Copy(size, size / to_gpu, size / from_gpu)


def _figure(value: float, unit: str, note: str) -> str:
    """A measured figure as YAML."""
    return f"{{value: {value:.4g}, unit: {unit}, kind: measured, source: microbench, note: {_quoted(note)}}}"


def _gemm_line(gemm: Gemm) -> str:
    """One product as YAML."""
    return (f"  - {{m: {gemm.m}, k: {gemm.k}, n: {gemm.n}, "
            f"time: {_figure(gemm.time_s * 1e6, 'us', f'{gemm.flop_per_s / 1e12:.1f} TFLOP/s')}}}")


def _sizes(copies: Sequence[Copy], direction: str) -> str:
    """Rates by size, for a note."""
    rates = ((c.num_bytes, getattr(c, f"{direction}_bytes_per_s") / 1e9) for c in copies)
    return "pinned; GB/s by KiB: " + ", ".join(f"{size >> 10}: {rate:.1f}" for size, rate in rates)


def _quoted(text: str) -> str:
    """A text in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    main()
