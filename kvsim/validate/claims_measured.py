"""Recordings in the repository: decisions of a real scheduler, logged pools, own runs on one H200."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvsim.profiles.store import default_store
from kvsim.simulation import ENGINES
from kvsim.validate.capacity_cases import check_capacity
from kvsim.validate.claims import Claim, Sample, at_most
from kvsim.validate.engine_cases import run_cases
from kvsim.validate.gpu_runs import GpuRunsResult, RunResult, run_gpu_runs

MEDIAN_ERROR, WORST_ERROR, HIT_POINTS = 0.15, 0.35, 1.0
"""Bands of the H200 runs without calibration: shares of throughput, points of hit rate."""
SWEPT = ("p", "d")
"""Labels of single prefills and decode batches begin so: kernels and host were profiled in such steps."""

_OWN, _PROFILED = "own runs, vLLM 0.24.0, random weights", "kernels and host were profiled in other runs of the model"


def recorded_claims(data: Path) -> list[Claim]:
    """Claims about recordings.

    Parameters
    ----------
    data : Path
        Folder with ``engine_cases.jsonl.gz``, ``offload_cases.jsonl.gz``, ``capacity_cases.csv`` and
        ``gpu_runs.*.jsonl.gz``.

    Returns
    -------
    list of Claim
        Logged pools are checked at once, everything else is simulated.
    """
    none = at_most(0, "none")
    cases = [Claim(f"X{i + 1}", "X", f"{what}: cases that the fast engine decides differently", "0", none, source,
                   "{:.0f}", partial(_different, data / file), simulated=True)
             for i, (what, source, file) in enumerate((
                 ("scheduler", "vLLM V1 scheduler, recorded", "engine_cases.jsonl.gz"),
                 ("scheduler with a host tier", "vLLM V1 scheduler, recorded", "offload_cases.jsonl.gz")))]
    pools = Claim("X3", "X", "logged KV pools: cases that differ by a token or more", "0", none,
                  "engine logs (tests/data/capacity_cases.csv)", "{:.0f}", partial(_pools, data / "capacity_cases.csv"))
    return [*cases, pools, *(claim for group in _GROUPS for claim in group.claims(data))]


def _different(cases: Path) -> Sample:
    """How many engine cases differ."""
    results = run_cases([cases], (), ENGINES["core"])
    return Sample(sum(not case.exact for case in results), note=f"of {len(results)}")


def _pools(cases: Path) -> Sample:
    """How many logged pools differ."""
    results = check_capacity(cases, default_store())
    return Sample(sum(not case.exact for case in results), note=f"of {len(results)}")


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of measured runs that are judged together."""

    number: int
    title: str
    files: tuple[str, ...]
    miss: str = ""
    """Why the median error is missed."""

    def claims(self, data: Path) -> list[Claim]:
        """Median and worst error of throughput, and the worst difference of hit rates."""
        runs = _Lazy([data / f"gpu_runs.{name}.jsonl.gz" for name in self.files])
        parts = (("a", "median error of output tokens/s", at_most(MEDIAN_ERROR, "<= 15 %"), _median),
                 ("b", "worst error of output tokens/s", at_most(WORST_ERROR, "<= 35 %"), _worst))
        errors = [Claim(f"M{self.number}{part}", "M", f"{self.title}: {what}", "0", band, _OWN, "{:.1%}",
                        partial(runs.sample, pick), simulated=True, fitted=_PROFILED,
                        miss=self.miss if part == "a" else "") for part, what, band, pick in parts]
        hits = Claim(f"M{self.number}c", "M", f"{self.title}: worst difference of hit rates", "0",
                     at_most(HIT_POINTS, "<= 1 point"), _OWN, "{:.2f} points", partial(runs.sample, _worst_hits),
                     simulated=True)
        return [*errors, hits]


_GROUPS = (
    _Group(1, "Llama 3.1 8B", ("llama-8b", "llama-8b-async", "llama-8b-pool6000", "llama-8b-pool6000-dram40")),
    _Group(2, "Kimi Linear 48B", ("kimi-linear-48b",),
           "eager KDA prefill waits for the host, whose speed differs between starts of a machine: the same step took "
           "77 ms where it was profiled and 137 ms in these runs"),
    _Group(3, "Qwen3-30B-A3B", ("qwen3-30b-a3b",)),
    _Group(4, "Qwen3-30B-A3B, asynchronous", ("qwen3-30b-a3b-async",)),
    _Group(5, "DeepSeek-V2-Lite", ("deepseek-v2-lite",)),
)


class _Lazy:
    """Measured runs that are simulated once, when first asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._result: GpuRunsResult | None = None

    def sample(self, pick: Callable[[Sequence[RunResult]], float]) -> Sample:
        """One figure over the runs that are no sweeps."""
        if self._result is None:
            self._result = run_gpu_runs(self._files)
        runs = [run for run in self._result.scored if not _is_swept(run.label)]
        skipped = len(self._result.skipped)
        return Sample(pick(runs), note=f"{len(runs)} runs" + (f", {skipped} not simulated" if skipped else ""))


def _is_swept(label: str) -> bool:
    """Whether a run is a single prefill or decode batch, such as ``p600`` or ``d16``.

    >>> _is_swept("p600"), _is_swept("fixed-c8"), _is_swept("long-c1")
    (True, False, False)
    """
    return label.startswith(SWEPT) and label[1:].isdigit()


def _median(runs: Sequence[RunResult]) -> float:
    """Median error of throughput."""
    return statistics.median(run.throughput_error_frac for run in runs)


def _worst(runs: Sequence[RunResult]) -> float:
    """Worst error of throughput."""
    return max(run.throughput_error_frac for run in runs)


def _worst_hits(runs: Sequence[RunResult]) -> float:
    """Worst difference of hit rates."""
    return max(run.hit_difference_points for run in runs)
