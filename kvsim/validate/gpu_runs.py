"""Measured runs on a real GPU: rebuild each as an engine run, compare throughput, latency, hits and step times."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.calibrate.fit import predicted_s, regime_of
from kvsim.calibrate.overlay import Calibration, calibrate_runs, engine_key
from kvsim.calibrate.replay import (
    Setting,
    StepSample,
    busy_steps,
    client_s,
    engine_config_of,
    held_up,
    physics_of,
    step_samples,
    why_not_simulated,
    workload_of,
)
from kvsim.calibrate.runs import MeasuredRun, read_runs
from kvsim.engine.types import FINISHED, RunRecords
from kvsim.profiles.store import default_store
from kvsim.report.report import plain
from kvsim.simulation import ENGINES
from kvsim.steptime.calibrated import calibrated
from kvsim.steptime.roofline import RooflineStepTime
from kvsim.validate.spikes import spikes_of

Floats = NDArray[np.float64]

DECODE_BATCHES = (1, 4, 16, 64)
"""Decode-only steps are told apart by batch: 1, up to 4, up to 16, up to 64, more."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median and 95th percentile of a latency [s]."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Served:
    """What a run served, over the requests that had finished by its end.

    ``output_tokens_per_s`` and ``total_tokens_per_s`` (prompts, cached tokens included, and outputs) are over the wall
    time; ``hit_rate`` is the share of their prompt tokens that was found in the cache.
    """

    requests: int
    wall_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    hit_rate: float
    ttft_s: Spread
    e2e_s: Spread


@dataclass(frozen=True, slots=True)
class RegimeError:
    """Steps of one kind: how many, median durations [s], the median of |predicted / measured - 1|."""

    regime: str
    steps: int
    measured_s: float
    predicted_s: float
    median_error_frac: float
    total_ratio: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run, measured and predicted.

    ``fitted`` runs were calibrated on, so that they are shown but not scored. ``same_steps`` of ``steps`` steps had
    the same composition in our engine as in the real one, counted up to the first that had not. ``spikes`` of the real
    steps held a compilation or a pause, ``spike_s`` in excess of their like (`kvsim.validate.spikes`); runs that were
    stopped are taken as they are.
    """

    file: str
    model: str
    label: str
    complete: bool
    fitted: bool
    measured: Served
    predicted: Served
    steps: int
    same_steps: int
    stall_frac: float
    regimes: tuple[RegimeError, ...]
    spikes: int = 0
    spike_s: float = 0.0

    @property
    def steady_output_tokens_per_s(self) -> float:
        """Measured output tokens per second of wall time without spikes."""
        m = self.measured
        return m.output_tokens_per_s * m.wall_s / (m.wall_s - self.spike_s)

    @property
    def throughput_error_frac(self) -> float:
        """|predicted / measured - 1| of output tokens per second, spikes left out: what is scored."""
        return abs(self.predicted.output_tokens_per_s / self.steady_output_tokens_per_s - 1.0)

    @property
    def wall_throughput_error_frac(self) -> float:
        """The same over the whole wall time, spikes included."""
        return abs(self.predicted.output_tokens_per_s / self.measured.output_tokens_per_s - 1.0)

    @property
    def hit_difference_points(self) -> float:
        """|predicted - measured| hit rate, in percentage points."""
        return 100.0 * abs(self.predicted.hit_rate - self.measured.hit_rate)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that cannot be simulated, and why."""

    file: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuRunsResult:
    """All runs of some files."""

    runs: tuple[RunResult, ...]
    skipped: tuple[Skipped, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    samples: dict[str, tuple[RegimeError, ...]] = field(default_factory=dict[str, tuple[RegimeError, ...]])

    @property
    def scored(self) -> tuple[RunResult, ...]:
        """Runs that were not calibrated on."""
        return tuple(run for run in self.runs if not run.fitted)

    def score(self) -> str:
        """The last line: median and worst error over the scored runs, compilation spikes left out."""
        errors = [run.throughput_error_frac for run in self.scored]
        if not errors:
            return "gpu runs: nothing to score"
        hits = max(run.hit_difference_points for run in self.scored)
        return (f"gpu runs: median throughput error {100 * statistics.median(errors):.1f} %, "
                f"worst {100 * max(errors):.1f} %, worst hit-rate difference {hits:.2f} points")

    def spikes(self) -> str:
        """What the spikes that the score leaves out amount to, and the errors with them."""
        wall = [run.wall_throughput_error_frac for run in self.scored]
        if not wall:
            return "no spikes"
        return (f"{sum(run.spike_s for run in self.scored):.1f} s of compilation spikes are left out of the measured "
                f"time; with them: median {100 * statistics.median(wall):.1f} %, worst {100 * max(wall):.1f} %")

    def text(self) -> str:
        """Tables for people; the last line is the score."""
        lines = [_run_header(), *(_run_line(run) for run in self.runs)]
        lines += [f"{s.file} {s.label}: {s.reason}, not scored" for s in self.skipped]
        for model, regimes in self.samples.items():
            lines += ["", f"step times, {model} (median ms, median |error|, time predicted / measured)"]
            lines += [_regime_line(r) for r in regimes]
        for calibration in self.calibrations:
            lines += ["", calibration.text()]
        return "\n".join([*lines, "", self.spikes(), self.score()])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; errors as shares of 1."""
        errors = [run.throughput_error_frac for run in self.scored]
        return {
            "runs": [{**plain(run), "throughput_error_frac": run.throughput_error_frac,
                      "wall_throughput_error_frac": run.wall_throughput_error_frac,
                      "steady_output_tokens_per_s": run.steady_output_tokens_per_s,
                      "hit_difference_points": run.hit_difference_points} for run in self.runs],
            "skipped": plain(self.skipped), "step_times": plain(self.samples),
            "calibrations": [calibration.to_dict() for calibration in self.calibrations],
            "score": {"scored_runs": len(errors),
                      "median_throughput_error_frac": statistics.median(errors) if errors else None,
                      "worst_throughput_error_frac": max(errors, default=None),
                      "worst_hit_difference_points": max((r.hit_difference_points for r in self.scored), default=None)},
        }


def run_gpu_runs(paths: Iterable[str | Path], calibrate_on: Collection[str] = (),
                 setting: Setting | None = None) -> GpuRunsResult:
    """Simulate measured runs and compare.

    Parameters
    ----------
    paths : iterable of path
        Files of measured runs (JSON lines).
    calibrate_on : collection of str
        Labels of runs to fit the step time on, for each GPU, model and kind of scheduling that has them; these
        runs are shown but not scored. Engines of the same model and scheduling share a fit.
    setting : Setting, optional
        GPU and engine profiles; one H200 with ``vllm-0.24-h200`` by default.

    Returns
    -------
    GpuRunsResult
        With ``.text()``, ``.to_dict()`` and ``.score()``.

    Raises
    ------
    TraceError
        A file cannot be read, or no run has one of the labels to calibrate on.
    ProfileError
        A model without a profile.

    Notes
    -----
    A run that was stopped is simulated to the same time, and both sides are scored on what had finished by then.
    Throughput is scored over the wall time less the excess of spikes (`kvsim.validate.spikes`); the error with them is
    given beside it. What the client does between steps holds the engine up (`kvsim.calibrate.replay.client_s`); its
    measured share of the wall time is shown as ``stall``.
    """
    setting = setting or Setting(default_store())
    runs = [(Path(path).name, run) for path in paths for run in read_runs(path)]
    able = [(name, run) for name, run in runs if not why_not_simulated(run.engine)]
    skipped = tuple(Skipped(name, run.label, why) for name, run in runs if (why := why_not_simulated(run.engine)))
    fits = calibrate_runs(able, setting, calibrate_on) if calibrate_on else {}
    checks = [_check(name, run, setting, fits.get(engine_key(run.engine))) for name, run in able]
    excess = _spike_excess(checks)
    results = tuple(_labelled(c.result, calibrate_on, excess[i]) for i, c in enumerate(checks))
    return GpuRunsResult(results, skipped, tuple(fits.values()), _by_engine(checks))


def _labelled(result: RunResult, calibrate_on: Collection[str], excess: Sequence[float]) -> RunResult:
    """A result with its part in the calibration and its spikes."""
    return replace(result, fitted=result.label in calibrate_on, spikes=len(excess), spike_s=sum(excess))


@dataclass(frozen=True, slots=True)
class _Check:
    """A compared run with its steps, for tables over several runs."""

    key: str
    result: RunResult
    samples: Sequence[StepSample]
    predicted_s: Floats


def _spike_excess(checks: Sequence[_Check]) -> list[list[float]]:
    """Excess [s] of each spike of each run, judged against all runs of its file and engine; none of stopped runs."""
    like: dict[tuple[str, str], list[StepSample]] = {}
    for check in checks:
        like.setdefault((check.result.file, check.key), []).extend(check.samples)
    return [spikes_of(check.samples, like[check.result.file, check.key]) if check.result.complete else []
            for check in checks]


def _check(file: str, run: MeasuredRun, setting: Setting, calibration: Calibration | None) -> _Check:
    """Simulate one run and compare it."""
    physics = physics_of(run.engine, setting)
    model = physics if calibration is None else calibrated(physics, calibration.factors)
    samples = step_samples(run, setting)
    predicted = predicted_s(model, samples)
    result = RunResult(
        file=file, model=run.engine.model, label=run.label, complete=run.complete, fitted=False,
        measured=measured_served(run), predicted=simulated_served(run, model, setting),
        steps=busy_steps(run), same_steps=len(samples), stall_frac=run.stall_s / run.wall_s,
        regimes=_regimes(samples, predicted))
    scheduling = "asynchronous" if run.engine.asynchronous else "synchronous"
    return _Check(f"{run.engine.model}, {scheduling} scheduling", result, samples, predicted)


def _by_engine(checks: Sequence[_Check]) -> dict[str, tuple[RegimeError, ...]]:
    """Step times by model and scheduling, all runs together."""
    found: dict[str, tuple[RegimeError, ...]] = {}
    for key in dict.fromkeys(c.key for c in checks):
        mine = [c for c in checks if c.key == key]
        samples = [s for c in mine for s in c.samples]
        found[key] = _regimes(samples, np.concatenate([c.predicted_s for c in mine]))
    return found


def measured_served(run: MeasuredRun) -> Served:
    """What a real run served."""
    rows = run.requests
    return Served(
        requests=run.done, wall_s=run.wall_s, output_tokens_per_s=run.output_tokens / run.wall_s,
        total_tokens_per_s=(run.prompt_tokens + run.output_tokens) / run.wall_s,
        hit_rate=run.cached_tokens / max(run.prompt_tokens, 1),
        ttft_s=_spread([row.ttft_s for row in rows]), e2e_s=_spread([row.e2e_s for row in rows]))


def simulated_served(run: MeasuredRun, model: RooflineStepTime, setting: Setting) -> Served:
    """What our engine serves of the same run."""
    workload = workload_of(run.spec, run.engine.asynchronous)
    if not run.complete:
        workload = replace(workload, until_s=run.wall_s)
    done = ENGINES["core"](workload, engine_config_of(run, setting), model)
    records = held_up(done.records, client_s(run.spec, run.engine.block_tokens))
    return _served(records, None if run.complete else run.wall_s)


def _served(records: RunRecords, wall_s: float | None) -> Served:
    """Figures over the requests that finished, by `wall_s` if the run was stopped."""
    limit_s = float(records.finish_s.max()) if wall_s is None else wall_s
    over = (records.status == FINISHED) & (records.finish_s <= limit_s)
    prompt, cached = int(records.prompt_tokens[over].sum()), int(records.cached_tokens[over].sum())
    output = int(records.output_tokens[over].sum())
    return Served(
        requests=int(over.sum()), wall_s=limit_s, output_tokens_per_s=output / limit_s,
        total_tokens_per_s=(prompt + output) / limit_s, hit_rate=cached / max(prompt, 1),
        ttft_s=_spread((records.first_token_s - records.arrival_s)[over]),
        e2e_s=_spread((records.finish_s - records.arrival_s)[over]))


def _spread(values: Sequence[float] | Floats) -> Spread:
    """Mean and percentiles; nan of nothing."""
    if not len(values):
        return Spread(float("nan"), float("nan"), float("nan"))
    return Spread(float(np.mean(values)), float(np.percentile(values, 50)), float(np.percentile(values, 95)))


def _regimes(samples: Sequence[StepSample], predicted: Floats) -> tuple[RegimeError, ...]:
    """Errors by kind of step."""
    groups: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(_regime_name(sample), []).append(i)
    measured = np.array([s.duration_s for s in samples])
    return tuple(_regime(name, measured[rows], predicted[rows]) for name, rows in sorted(groups.items(), key=_order))


def _order(group: tuple[str, list[int]]) -> tuple[int, int]:
    """Decode by batch, then prefill, then mixed steps."""
    name = group[0]
    digits = "".join(c for c in name if c.isdigit())
    return ("decode" not in name) + 2 * (name == "mixed"), int(digits) + name.startswith("decode >") if digits else 0


def _regime_name(sample: StepSample) -> str:
    """``decode <= 4``, ``prefill`` or ``mixed``."""
    regime = regime_of(sample.batch)
    if regime != "decode":
        return regime
    limit = next((b for b in DECODE_BATCHES if sample.batch.decode_seqs <= b), None)
    return f"decode > {DECODE_BATCHES[-1]}" if limit is None else f"decode <= {limit}"


def _regime(name: str, measured: Floats, predicted: Floats) -> RegimeError:
    """Errors of the steps of one kind."""
    return RegimeError(name, len(measured), float(np.median(measured)), float(np.median(predicted)),
                       float(np.median(np.abs(predicted / measured - 1.0))), float(predicted.sum() / measured.sum()))


def _run_header() -> str:
    """Names of the columns of `_run_line`."""
    columns = (("run (measured : predicted)", -42), ("out tok/s", 17), ("error", 7), ("spikes", 8), ("scored", 7),
               ("total tok/s", 15),
               ("TTFT p50, p95, mean s", 41), ("E2E p50, p95, mean s", 41), ("hit %", 13), ("same steps", 11),
               ("stall", 6))
    return " ".join(f"{name:{'<' if width < 0 else '>'}{abs(width)}s}" for name, width in columns)


def _run_line(run: RunResult) -> str:
    """One run, measured : predicted."""
    m, p = run.measured, run.predicted
    error = 100.0 * (p.output_tokens_per_s / m.output_tokens_per_s - 1.0)
    scored = 100.0 * (p.output_tokens_per_s / run.steady_output_tokens_per_s - 1.0)
    note = " fitted" if run.fitted else "" if run.complete else " cut"
    name = f"{run.file.removesuffix('.gz').removesuffix('.jsonl')} {run.label}{note}"
    return (f"{name:42s} {m.output_tokens_per_s:8.1f}:{p.output_tokens_per_s:8.1f} {error:+6.1f}% "
            f"{run.spike_s:6.2f} s {scored:+6.1f}% "
            f"{m.total_tokens_per_s:7.0f}:{p.total_tokens_per_s:7.0f} "
            f"{_pairs(m.ttft_s, p.ttft_s)} {_pairs(m.e2e_s, p.e2e_s)} "
            f"{100 * m.hit_rate:6.2f}:{100 * p.hit_rate:6.2f} {run.same_steps:5d}/{run.steps:5d} "
            f"{100 * run.stall_frac:5.1f}%")


def _pairs(measured: Spread, predicted: Spread) -> str:
    """Three measured : predicted pairs."""
    pairs = ((measured.p50, predicted.p50), (measured.p95, predicted.p95), (measured.mean, predicted.mean))
    return " ".join(f"{m:6.2f}:{p:6.2f}" for m, p in pairs)


def _regime_line(regime: RegimeError) -> str:
    """One row of the table of step times."""
    return (f"  {regime.regime:12s} {regime.steps:5d} steps {1e3 * regime.measured_s:8.2f}:"
            f"{1e3 * regime.predicted_s:8.2f} {100 * regime.median_error_frac:6.1f} % {regime.total_ratio:6.2f}")
