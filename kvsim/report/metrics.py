"""Throughput, latency and hit rates of the measured window of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.step_log import NO_STEPS, StepSums
from kvsim.engine.types import FINISHED, REFUSED, EngineRun, RunRecords, RunTotals

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SloLimits = Mapping[str, Mapping[str, float]]
"""Limits [s] of an SLO by latency and statistic: ``{"ttft_s": {"p95": 10.0}}``."""
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, from ``start_s`` to ``end_s`` [s]."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length [s]."""
        return self.end_s - self.start_s

    def holds(self, times_s: Floats) -> Bools:
        """Which times lie in the window (nan never does)."""
        return (times_s >= self.start_s) & (times_s <= self.end_s)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the window; input counts cached tokens too."""

    output_tokens_per_s: float
    input_tokens_per_s: float
    total_tokens_per_s_per_gpu: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class TierShares:
    """Token-weighted hits by the first tier that held them, as shares of all prompt tokens."""

    hbm: float
    dram: float = 0.0
    nvme: float = 0.0
    pool: float = 0.0


Bound = Literal["capacity", "policy", "bandwidth", "none"]


@dataclass(frozen=True, slots=True)
class LostBy:
    """Shares of all prompt tokens that an infinite cache would have found and this one did not.

    Attributes
    ----------
    capacity : float
        Was in the cache and was evicted.
    policy : float
        Was not kept in a usable form: no checkpoint, part of a block, or still being computed by somebody else.
    bandwidth : float
        Is in a tier, or on its way there, but was not loaded.
    bound_by : str
        The largest of them; "none" when together they are less than 1 % of the prompt tokens.
    """

    capacity: float
    policy: float
    bandwidth: float
    bound_by: Bound


@dataclass(frozen=True, slots=True)
class HitRate:
    """Token-weighted shares of all prompt tokens; ``ideal`` is an infinite cache without block rounding.

    ``lost_by`` says what the total lacks of the ideal; None for several replicas.
    """

    total: float
    ideal: float
    by_tier: TierShares
    lost_by: LostBy | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of a latency [s]; nan when nothing happened."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Latency:
    """TTFT from arrival to first token, TPOT a request's mean after it, ITL between any two tokens, E2E whole."""

    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of the window by how they are billed."""

    uncached_input: float
    cached_input: float
    output: float

    @property
    def total(self) -> float:
        """All tokens, cached input included."""
        return self.uncached_input + self.cached_input + self.output


def window_of(run: EngineRun, measure_from_s: float, until_s: float) -> Window:
    """Window from the end of the warm-up to the end of the run (or the time it was stopped at).

    A run that ends within its warm-up is measured whole.
    """
    end_s = min(until_s, run.totals.makespan_s)
    return Window(measure_from_s if measure_from_s < end_s else 0.0, end_s)


def billed_tokens(records: RunRecords, window: Window, who: Bools | None = None) -> Tokens:
    """Tokens of the window: input when its first token is out, output as it is generated.

    Parameters
    ----------
    who : bool array [n], optional
        Only these requests; all of them by default.

    Notes
    -----
    A request's output after its first token is spread evenly up to its end; for one that is cut off by the
    end of the run, up to there. This moves single tokens by less than a request's length at the window's edges.
    """
    counted = np.isfinite(records.first_token_s) if who is None else who & np.isfinite(records.first_token_s)
    started = window.holds(records.first_token_s) & counted
    cached = float(records.cached_tokens[started].sum())
    prompt = float(records.prompt_tokens[started].sum())
    return Tokens(prompt - cached, cached, _output_tokens(records, window, counted))


def throughput(records: RunRecords, window: Window, num_gpus: int) -> Throughput:
    """Rates over the window; zeros for an empty one."""
    tokens = billed_tokens(records, window)
    seconds = window.duration_s
    if seconds <= 0:
        return Throughput(0.0, 0.0, 0.0, 0.0)
    inputs = tokens.cached_input + tokens.uncached_input
    return Throughput(tokens.output / seconds, inputs / seconds, tokens.total / seconds / num_gpus,
                      float(window.holds(records.finish_s).sum()) / seconds)


def hit_rate(run: EngineRun, window: Window, ideal_tokens: NDArray[np.int64]) -> HitRate:
    """Shares of the prompt tokens whose first token came in the window.

    Parameters
    ----------
    run : EngineRun
        Its records, and its totals by tier.
    window : Window
        Measured part.
    ideal_tokens : int array [n]
        What an infinite cache would have found of each prompt.

    Notes
    -----
    A request's tokens from below HBM are known together; between several tiers they are divided as those of the
    whole run are.
    """
    records = run.records
    held = window.holds(records.first_token_s)
    prompt = float(records.prompt_tokens[held].sum())
    if not prompt:
        return HitRate(0.0, 0.0, TierShares(0.0))
    total = float(records.cached_tokens[held].sum()) / prompt
    external = float(records.external_tokens[held].sum()) / prompt
    ideal = float(ideal_tokens[held].sum()) / prompt
    return HitRate(total, ideal, TierShares(hbm=total - external, **_below_hbm(run.totals, external)))


def _below_hbm(totals: RunTotals, external: float) -> dict[str, float]:
    """Shares of the tiers below HBM, which sum to `external`."""
    tokens: dict[str, int] = {}
    for tier in totals.tiers:
        tokens[tier.kind] = tokens.get(tier.kind, 0) + tier.hit_tokens
    whole = sum(tokens.values())
    return {kind: external * count / whole for kind, count in tokens.items()} if whole else {}


def recomputed_frac(records: RunRecords, ideal_tokens: NDArray[np.int64], window: Window) -> float:
    """Share of the window's computed prompt tokens that an infinite cache would have held, 0 to 1."""
    held = window.holds(records.first_token_s)
    computed = float((records.prompt_tokens - records.cached_tokens)[held].sum())
    lost = float(np.maximum(ideal_tokens - records.cached_tokens, 0)[held].sum())
    return min(lost / computed, 1.0) if computed else 0.0


def latency(records: RunRecords, window: Window, steps: StepSums = NO_STEPS) -> Latency:
    """Latencies of what happened in the window: TTFT of first tokens, ITL of later ones, the rest of finished requests.

    Parameters
    ----------
    records : RunRecords
        A row a request.
    window : Window
        Measured part.
    steps : StepSums, optional
        Every gap between two tokens; without it each request's gaps count as equal.
    """
    started = window.holds(records.first_token_s)
    done = window.holds(records.finish_s) & (records.status == FINISHED)
    many = done & (records.output_tokens > 1)
    gaps = np.maximum(records.output_tokens[many] - 1, 1)
    tpot = (records.finish_s[many] - records.first_token_s[many]) / gaps
    itl, counts = steps.gaps(window.start_s, window.end_s) if len(steps.gap_end_s) else (tpot, gaps.astype(np.float64))
    return Latency(
        ttft_s=spread((records.first_token_s - records.arrival_s)[started]),
        tpot_s=spread(tpot),
        itl_s=spread(itl, counts),
        e2e_s=spread((records.finish_s - records.arrival_s)[done]),
    )


def spread(values: Floats, weights: Floats | None = None) -> Spread:
    """Mean and percentiles, weighted if asked.

    Examples
    --------
    >>> spread(np.array([1.0, 2.0, 3.0])).p50
    2.0
    """
    if not len(values):
        return Spread(*[math.nan] * 5)
    if weights is None:
        return Spread(float(values.mean()), *percentiles(values, PERCENTILES))
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = [float(values[order][np.searchsorted(reached, p / 100)]) for p in PERCENTILES]
    return Spread(float(np.average(values, weights=weights)), *at)


def percentiles(values: Floats, percents: Sequence[float]) -> list[float]:
    """What `numpy.percentile` gives, without the modules that it loads at its first call (12 ms).

    Parameters
    ----------
    values : float array [n]
        At least one, none nan.
    percents : sequence of float
        0 to 100.

    Examples
    --------
    >>> percentiles(np.array([4.0, 1.0, 2.0]), [50.0, 75.0])
    [2.0, 3.0]
    """
    ordered, place = np.sort(values), np.array(percents) / 100 * (len(values) - 1)
    lower = np.floor(place).astype(np.int64)
    part = place - lower
    low, high = ordered[lower], ordered[np.minimum(lower + 1, len(values) - 1)]
    step = high - low
    found: list[float] = np.where(part < 0.5, low + step * part, high - step * (1 - part)).tolist()
    return found


def within_slo(records: RunRecords, end_s: float, slo: SloLimits) -> Bools:
    """Which requests keep every limit of an SLO themselves (the loosest limit of each kind).

    Parameters
    ----------
    end_s : float
        End of the run [s]: a request that is still generating is judged by what it has done so far.
    slo : mapping
        ``{"ttft_s": {"p95": 10.0}, "tpot_s": {...}, "e2e_s": {...}}``; empty limits always hold.
    """
    last = np.where(np.isfinite(records.finish_s), records.finish_s, end_s)
    measured = {
        "ttft_s": records.first_token_s - records.arrival_s,
        "tpot_s": (last - records.first_token_s) / np.maximum(records.output_tokens - 1, 1),
        "e2e_s": last - records.arrival_s,
    }
    good = np.ones(len(last), bool)
    for name, values in measured.items():
        if slo.get(name):
            good &= np.nan_to_num(values, nan=np.inf) <= max(slo[name].values())
    return good


def good_requests_per_s(records: RunRecords, window: Window, good: Bools) -> float:
    """Finished requests per second that are `good`, e.g. `within_slo`."""
    if window.duration_s <= 0:
        return 0.0
    done = window.holds(records.finish_s) & (records.status == FINISHED)
    return float((done & good).sum()) / window.duration_s


def count_refused(records: RunRecords) -> int:
    """Requests that could never be served (too long for the model or the pool)."""
    return int((records.status == REFUSED).sum())


def ideal_tokens_billed(records: RunRecords, window: Window, ideal: NDArray[np.int64], who: Bools) -> Tokens:
    """`billed_tokens` of these requests, had an infinite cache served them.

    Parameters
    ----------
    ideal : int array [n]
        What an infinite cache would have found of each prompt.
    """
    real = billed_tokens(records, window, who)
    started = window.holds(records.first_token_s) & who
    cached = float(ideal[started].sum())
    return Tokens(real.uncached_input + real.cached_input - cached, cached, real.output)


def _output_tokens(records: RunRecords, window: Window, began: Bools) -> float:
    first, made = records.first_token_s[began], records.output_tokens[began].astype(np.float64)
    last = np.where(np.isfinite(records.finish_s[began]), records.finish_s[began], window.end_s)
    span = np.maximum(last - first, 1e-12)
    inside = np.clip(np.minimum(last, window.end_s) - np.maximum(first, window.start_s), 0.0, None)
    rest = np.maximum(made - 1, 0) * inside / span
    return float(rest.sum() + window.holds(first).sum())
