"""Fit a few physical coefficients to measured steps by robust, bounded least squares around the physics model.

Every coefficient multiplies the time of one term. It starts at 1 and may move as far as nobody has measured that term:
a prior of a stated width pulls it back, so that steps which say nothing about a term leave it alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvsim.calibrate.replay import StepSample
from kvsim.steptime.base import StepBatch, step_s
from kvsim.steptime.calibrated import Factors, calibrated
from kvsim.steptime.roofline import RooflineStepTime

Floats = NDArray[np.float64]

PRIOR_WIDTH: Mapping[str, float] = MappingProxyType({
    "host_step": 0.5, "host_sequence": 0.6, "launches": 0.3, "eager": 0.4,
    "gemm_compute": 0.15, "weight_bytes": 0.1, "experts": 0.3,
    "prefill_attention": 0.2, "decode_attention": 0.15, "state_decode": 0.3, "state_prefill": 0.3,
})
"""Standard deviation of the logarithm of each coefficient before any step was seen: wide for what depends on the
host's CPU and on an engine's Python, narrow for kernels with published timings."""

BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"eager": (0.1, 20.0)} | {name: (0.3, 3.0) for name in PRIOR_WIDTH if name != "eager"})
"""Least and largest coefficient; the GPU's peaks bound it further. The ranges that engine profiles state for the host's
terms lie within; only what the host needs to launch eagerly depends on code and CPU by more."""

STEP_SPREAD: Mapping[str, float] = MappingProxyType({"decode": 0.03, "prefill": 0.1, "mixed": 0.1})
"""Relative spread of a step's duration that no coefficient explains, by regime. Decode steps replay a graph; the same
step with prefill took 141 to 199 ms, and 181 to 211, in runs of one engine."""

OBSERVATIONS_PER_RUN = 1.0
"""A run counts as so many independent observations, however many steps it has: its errors are alike."""

HUBER = 0.1
"""Relative residual beyond which a step pulls with constant force only."""

SPIKE = 2.0
"""A step this many times as long as the lower quartile of its like holds a compilation or a pause of the host."""

DECODE_CHUNK = 40
"""Decode steps of one batch size that are joined to one observation, their median."""

CONTEXT_WITHIN = 0.1
"""Relative difference in context of decode steps that are joined."""

_ITERATIONS = 40
_LARGEST_MOVE = 0.5


@dataclass(frozen=True, slots=True)
class Observation:
    """A step, or the median of alike decode steps; ``weight`` is its share of its run's time."""

    label: str
    batch: StepBatch
    context_tokens: int
    duration_s: float
    steps: int
    weight: float = 0.0

    @property
    def regime(self) -> str:
        """``decode``, ``prefill`` or ``mixed``."""
        return regime_of(self.batch)


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients and how sure they are.

    Attributes
    ----------
    factors : Factors
        Fitted multipliers; 1 for terms that the model does not have.
    spread : dict of str to float
        Standard deviation of the logarithm of each fitted coefficient; near `PRIOR_WIDTH` means that the
        steps say little about it.
    observations : tuple of Observation
        What it was fitted to, spikes left out.
    num_spikes : int
        Steps left out as spikes.
    """

    factors: Factors
    spread: dict[str, float]
    observations: tuple[Observation, ...]
    num_spikes: int

    def informed(self, name: str) -> bool:
        """Whether the steps, and not the prior, decide a coefficient."""
        return self.spread[name] < 0.5 * PRIOR_WIDTH[name]


def regime_of(batch: StepBatch) -> str:
    """``decode``, ``prefill`` or ``mixed``."""
    if not batch.prefill_tokens:
        return "decode"
    return "mixed" if batch.decode_seqs else "prefill"


def fit(physics: RooflineStepTime, samples: Sequence[StepSample]) -> Fit:
    """Fit coefficients to steps.

    Parameters
    ----------
    physics : RooflineStepTime
        Step time before calibration.
    samples : sequence of StepSample
        Measured steps of one or more runs, in order.

    Notes
    -----
    Minimises, over ``x = ln(coefficient)``, the sum of ``w rho((ln predicted - ln measured) / s)`` with Huber's rho,
    and of ``(x / width)**2``. A run's weights add up to `OBSERVATIONS_PER_RUN`, shared by time, so that what takes
    the time decides. Gauss-Newton with bounds. It is wrong where the runs differ (a host that is busy in one of them).
    """
    kept = without_spikes(samples)
    observations = tuple(_weighted(_joined(kept)))
    names = active_factors(physics)
    x, information = _solve(physics, observations, names)
    spread = np.sqrt(np.diag(np.linalg.inv(information)))
    return Fit(_factors(names, x), dict(zip(names, spread.tolist(), strict=True)), observations,
               len(samples) - len(kept))


def active_factors(physics: RooflineStepTime) -> tuple[str, ...]:
    """Names of the coefficients of terms that a model has."""
    absent = {"experts"} if physics.work.experts is None else set[str]()
    if not physics.work.states:
        absent |= {"state_decode", "state_prefill"}
    if not physics.work.decode:
        absent |= {"decode_attention"}
    return tuple(name for name in PRIOR_WIDTH if name not in absent)


def without_spikes(samples: Sequence[StepSample]) -> list[StepSample]:
    """Leave out steps far longer than their like: same regime, amounts of work within a factor of two."""
    like: dict[tuple[str, ...], list[float]] = {}
    for sample in samples:
        like.setdefault(_kind(sample), []).append(sample.duration_s)
    limit = {kind: SPIKE * _lower_quartile(times) for kind, times in like.items()}
    return [sample for sample in samples if sample.duration_s <= limit[_kind(sample)]]


def predicted_s(model: RooflineStepTime, observations: Iterable[Observation | StepSample]) -> Floats:
    """Duration [s] of each step as a model has it."""
    return np.array([step_s(model, o.batch, o.context_tokens) for o in observations])


def _kind(sample: StepSample) -> tuple[str, ...]:
    """What makes steps alike: regime and the magnitudes of what they compute."""
    batch = sample.batch
    amounts = (batch.prefill_tokens, batch.prefill_pairs) if batch.prefill_tokens else (
        batch.decode_seqs, sample.context_tokens)
    return regime_of(batch), *(str(amount.bit_length()) for amount in amounts)


def _lower_quartile(values: list[float]) -> float:
    """The value that a quarter of the values do not exceed."""
    return sorted(values)[(len(values) - 1) // 4]


def _joined(samples: Sequence[StepSample]) -> Iterator[Observation]:
    """Steps with prefill one by one, runs of alike decode steps as medians."""
    for (label, batch, _), steps in groupby(samples, key=_joining):
        size = 1 if batch.prefill_tokens else DECODE_CHUNK
        while chunk := list(islice(steps, size)):
            yield Observation(label, batch, round(statistics.fmean(s.context_tokens for s in chunk)),
                              statistics.median(s.duration_s for s in chunk), len(chunk))


def _joining(sample: StepSample) -> tuple[str, StepBatch, int]:
    """What steps must share to be joined: run, batch, and context within a few percent."""
    return sample.label, sample.batch, round(math.log(max(sample.context_tokens, 1)) / CONTEXT_WITHIN)


def _weighted(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Observations with their shares of their run's time."""
    listed = list(observations)
    total: dict[str, float] = {}
    for o in listed:
        total[o.label] = total.get(o.label, 0.0) + o.duration_s * o.steps
    yield from (replace(o, weight=o.duration_s * o.steps / total[o.label]) for o in listed)


def _factors(names: Sequence[str], x: Floats) -> Factors:
    """Coefficients from their logarithms."""
    return Factors(**dict(zip(names, np.exp(x).tolist(), strict=True)))


def _solve(physics: RooflineStepTime, observations: Sequence[Observation],
           names: Sequence[str]) -> tuple[Floats, Floats]:
    """Logarithms of the coefficients, and the information matrix there."""
    measured = np.log([o.duration_s for o in observations])
    weights = OBSERVATIONS_PER_RUN * np.array([o.weight / STEP_SPREAD[o.regime] ** 2 for o in observations])
    prior = np.diag([PRIOR_WIDTH[name] ** -2 for name in names])
    low, high = (np.log([BOUNDS[name][i] for name in names]) for i in (0, 1))
    x, information = np.zeros(len(names)), prior

    def logs(at: Floats) -> Floats:
        return np.log(predicted_s(calibrated(physics, _factors(names, at)), observations))

    for _ in range(_ITERATIONS):
        now = logs(x)
        jacobian = np.stack([(logs(x + move) - now) / 1e-3 for move in 1e-3 * np.eye(len(names))], axis=1)
        pull = weights * np.minimum(1.0, HUBER / np.maximum(np.abs(now - measured), 1e-12))
        information = jacobian.T @ (pull[:, None] * jacobian) + prior
        gradient = jacobian.T @ (pull * (now - measured)) + prior @ x
        move = np.clip(-np.linalg.solve(information, gradient), -_LARGEST_MOVE, _LARGEST_MOVE)
        new = np.clip(x + move, low, high)
        if math.isclose(float(np.abs(new - x).max()), 0.0, abs_tol=1e-4):
            break
        x = new
    return x, information
