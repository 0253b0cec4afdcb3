"""Calibrations: fit measured runs, tell what moved, write and read them as YAML."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvsim.calibrate.fit import Fit, active_factors, fit, predicted_s
from kvsim.calibrate.replay import Setting, kv_dtype_of, model_of, physics_of, step_samples, why_not_simulated
from kvsim.calibrate.runs import MeasuredEngine, MeasuredRun, read_runs
from kvsim.errors import Problem, ProfileError, TraceError, nearest
from kvsim.profiles.calibration import CalibrationProfile
from kvsim.profiles.paths import data_root
from kvsim.profiles.problems import read_checked
from kvsim.profiles.store import default_store
from kvsim.steptime.calibrated import Factors, calibrated, physics_digest
from kvsim.steptime.rates import Rate
from kvsim.steptime.roofline import RooflineStepTime

SCHEMA = "kvsim/calibration/1"
FOLDER = "calibrations"
"""Where calibrations with a name are: beside the package's data, and in folders of ``KVSIM_PROFILES``."""
EngineKey = tuple[str, bool]
"""(model's name in a file, asynchronous scheduling): what shares a fit."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Steps of one regime: |predicted / measured - 1| in the median, before and after the fit."""

    regime: str
    steps: int
    before_frac: float
    after_frac: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit with everything that its use needs to know.

    Attributes
    ----------
    model, gpu, kv_dtype, engine_profile, async_scheduling
        What it holds for; profiles by name.
    physics : RooflineStepTime
        Step time before the fit.
    fit : Fit
        Coefficients.
    sources : tuple of str
        "file: labels" of the runs.
    date : str
        When it was made.
    """

    model: str
    gpu: str
    kv_dtype: str
    engine_profile: str
    async_scheduling: bool
    physics: RooflineStepTime
    fit: Fit
    sources: tuple[str, ...]
    date: str

    @property
    def factors(self) -> Factors:
        """Fitted multipliers."""
        return self.fit.factors

    @property
    def name(self) -> str:
        """Name of the profile: model, GPU, engine profile and scheduling."""
        return f"{self.model}-{self.gpu}-{self.engine_profile}-{'async' if self.async_scheduling else 'sync'}"

    @property
    def num_steps(self) -> int:
        """Steps it was fitted to."""
        return sum(o.steps for o in self.fit.observations)

    def residuals(self) -> tuple[Residual, ...]:
        """Errors by regime, before and after."""
        observations = self.fit.observations
        measured = np.array([o.duration_s for o in observations])
        before = np.abs(predicted_s(self.physics, observations) / measured - 1.0)
        after = np.abs(predicted_s(calibrated(self.physics, self.factors), observations) / measured - 1.0)
        found: list[Residual] = []
        for regime in dict.fromkeys(o.regime for o in observations):
            rows = [i for i, o in enumerate(observations) if o.regime == regime]
            steps = sum(observations[i].steps for i in rows)
            found.append(Residual(regime, steps, float(np.median(before[rows])), float(np.median(after[rows]))))
        return tuple(found)

    def text(self) -> str:
        """What moved, from what to what, and how well it fits."""
        lines = [f"calibration {self.name}: {self.num_steps} steps of {'; '.join(self.sources)}, "
                 f"{self.fit.num_spikes} spikes left out"]
        now = _physical(calibrated(self.physics, self.factors))
        for name, before in _physical(self.physics).items():
            if name in self.fit.spread:
                lines.append(f"  {name:18s} x {getattr(self.factors, name):5.3f} {before:>28s} -> {now[name]:28s}"
                             f"{'' if self.fit.informed(name) else ' (the steps say little)'}")
        lines += [f"  residuals, {r.regime}: {r.steps} steps, median |error| {100 * r.before_frac:.1f} % -> "
                  f"{100 * r.after_frac:.1f} %" for r in self.residuals()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data (schema ``kvsim/calibration/1``)."""
        physical = _physical(calibrated(self.physics, self.factors))
        return {
            "schema": SCHEMA, "name": self.name, "gpu": self.gpu, "model": self.model, "kv_dtype": self.kv_dtype,
            "engine_profile": self.engine_profile, "async_scheduling": self.async_scheduling,
            "physics_digest": physics_digest(self.physics),
            "steps": {"value": self.num_steps, "unit": "count", "kind": "measured", "source": "runs"},
            "factors": {name: self._figure(name, physical[name]) for name in self.fit.spread},
            "sources": {"runs": {"title": f"measured runs: {'; '.join(self.sources)}", "accessed": self.date}},
        }

    def to_yaml(self) -> str:
        """The profile as YAML text."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=110, allow_unicode=True)

    def _figure(self, name: str, physical: str) -> dict[str, Any]:
        """One coefficient with its spread; one that the steps do not decide is an assumption."""
        value, spread = float(getattr(self.factors, name)), self.fit.spread[name]
        band = [round(value * float(np.exp(sign * 2.0 * spread)), 4) for sign in (-1, 1)]
        figure: dict[str, Any] = {"value": round(value, 4), "unit": "frac", "kind": "measured", "source": "runs",
                                  "range": band, "note": physical}
        if not self.fit.informed(name):
            figure |= {"kind": "assumed", "why": "the steps say little about it: it stays near the physics"}
        return figure


def calibrate(paths: Iterable[str | Path], labels: Collection[str] | None = None,
              setting: Setting | None = None) -> Calibration:
    """Fit the step time of one engine to its measured runs.

    Parameters
    ----------
    paths : iterable of path
        Files of measured runs of one model with one kind of scheduling.
    labels : collection of str, optional
        Runs to use; all by default.
    setting : Setting, optional
        GPU and engine profiles; one H200 with ``vllm-0.24-h200`` by default.

    Raises
    ------
    TraceError
        A file cannot be read, a label is not in it, or the files hold several models or kinds of scheduling.
    """
    setting = setting or Setting(default_store())
    runs = [(Path(path).name, run) for path in paths for run in read_runs(path)]
    able = [(name, run) for name, run in runs if not why_not_simulated(run.engine)]
    fits = calibrate_runs(able, setting, labels if labels is not None else {run.label for _, run in able})
    if len(fits) != 1:
        given = "; ".join(f"{model}, {'a' * asynchronous}synchronous" for model, asynchronous in fits)
        problem = Problem("calibrate", "runs", given or "none that can be simulated",
                          "runs of one model with one kind of scheduling")
        raise TraceError("one calibration is for one model and one kind of scheduling", [problem])
    return next(iter(fits.values()))


def calibrate_runs(runs: Sequence[tuple[str, MeasuredRun]], setting: Setting,
                   labels: Collection[str]) -> dict[EngineKey, Calibration]:
    """A fit for every model and kind of scheduling that has runs with one of the labels.

    Raises
    ------
    TraceError
        A label that no run has.
    """
    known = {run.label for _, run in runs}
    missing = [Problem("runs", "label", repr(label), ", ".join(sorted(known)) or "runs that can be simulated")
               for label in labels if label not in known]
    if missing:
        raise TraceError("no such run to calibrate on", missing)
    groups: dict[EngineKey, list[tuple[str, MeasuredRun]]] = {}
    for name, run in runs:
        if run.label in labels:
            groups.setdefault(engine_key(run.engine), []).append((name, run))
    return {key: _calibration(group, setting) for key, group in groups.items()}


def engine_key(engine: MeasuredEngine) -> EngineKey:
    """What shares a fit: the same model with the same kind of scheduling."""
    return engine.model, engine.asynchronous


def load_calibration(name: str | Path) -> CalibrationProfile:
    """Read a calibration from a YAML file.

    Parameters
    ----------
    name : str or Path
        A path, or the name of a file in ``calibrations/``: those of the folders in ``KVSIM_PROFILES`` first, then the
        shipped ones.

    Raises
    ------
    ProfileError
        It cannot be found or read, is not a calibration, or has wrong fields (all of them named).

    Examples
    --------
    >>> load_calibration("h200-llama-8b").model
    'llama-3.1-8b'
    """
    return read_checked(_path_of(name), CalibrationProfile, "a valid calibration")


def calibration_names() -> tuple[str, ...]:
    """Names that `load_calibration` knows without a path, sorted."""
    return tuple(sorted({path.stem for folder in _folders() for path in folder.glob("*.yaml")}))


def _folders() -> list[Path]:
    """Folders of calibrations, first wins."""
    beside = [folder / FOLDER for folder in default_store().search_path]
    return [folder for folder in (*beside, data_root() / FOLDER) if folder.is_dir()]


def _path_of(name: str | Path) -> Path:
    """The file of a calibration; a name without an ending is looked up."""
    path = Path(name)
    if path.suffix or len(path.parts) > 1:
        return path
    found = [folder / f"{name}.yaml" for folder in _folders() if (folder / f"{name}.yaml").is_file()]
    if not found:
        known = calibration_names()
        raise ProfileError("no such calibration", [
            Problem("calibration", "name", repr(str(name)), ", ".join(known) or "a path", nearest(str(name), known))])
    return found[0]


def _calibration(group: Sequence[tuple[str, MeasuredRun]], setting: Setting) -> Calibration:
    """The fit of one group of runs."""
    engine = group[0][1].engine
    physics = physics_of(engine, setting)
    samples = [sample for _, run in group for sample in step_samples(run, setting)]
    if not samples:
        problem = Problem("calibrate", "runs", "no step whose work is known", "runs without a tier below the pool")
        raise TraceError("there is nothing to fit", [problem])
    files: dict[str, list[str]] = {}
    for name, run in group:
        files.setdefault(name, []).append(run.label)
    return Calibration(
        model=model_of(engine, setting.store).name, gpu=setting.store.get("gpu", setting.gpu).name,
        kv_dtype=kv_dtype_of(engine), engine_profile=setting.engine_profile, async_scheduling=engine.asynchronous,
        physics=physics, fit=fit(physics, samples),
        sources=tuple(f"{name} ({', '.join(labels)})" for name, labels in files.items()),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat())


def _physical(model: RooflineStepTime) -> Mapping[str, str]:
    """What each coefficient stands for, in physical units."""
    host, rates = model.host, model.rates
    dense = rates.dense[0][0]
    found = {
        "host_step": f"{1e3 * host.step_s:.2f} ms a step",
        "host_sequence": f"{1e6 * host.per_seq_s:.1f} us a sequence",
        "launches": f"{1e3 * host.launches_s:.2f} ms a step",
        "eager": f"{1e3 * host.eager_s:.1f} ms a step",
        "gemm_compute": f"{dense.peak_flop_s / dense.flop_s:.3f} of the peak",
        "weight_bytes": f"{dense.peak_byte_s / dense.byte_s:.3f} of the bandwidth",
    }
    if rates.experts is not None:
        found["experts"] = _shares([rates.experts[0]])
    if rates.prefill:
        found["prefill_attention"] = _shares(rates.prefill)
    if rates.decode:
        found["decode_attention"] = _shares(rates.decode)
    if model.scans:
        found["state_decode"] = _shares([rates.state])
        found["state_prefill"] = ", ".join(f"{1e9 * (scan.serial_s + scan.parallel_s):.0f} ns a token"
                                           for scan in model.scans)
    return {name: found[name] for name in active_factors(model) if name in found}


def _shares(rates: Iterable[Rate]) -> str:
    """Shares of the peaks that kernels reach."""
    return ", ".join(dict.fromkeys(f"{r.peak_flop_s / r.flop_s:.2f} FLOPs, {r.peak_byte_s / r.byte_s:.2f} bytes"
                                   for r in rates))
