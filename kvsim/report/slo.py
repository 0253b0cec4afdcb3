"""Which requests keep their SLO, by traffic class; and throughput against interactivity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.types import FINISHED, RunRecords
from kvsim.report.metrics import Bools, SloLimits, Window, within_slo


@dataclass(frozen=True, slots=True)
class Classes:
    """Traffic classes of a run's requests: an index for each request, in the records' order, into ``names``."""

    index: NDArray[np.int64]
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class ClassGoodput:
    """Finished requests of one traffic class: how many, how many a second kept the SLO, and their share."""

    num_requests: int
    requests_per_s: float
    within_slo_frac: float


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One configuration at one load.

    ``tokens_per_s_per_gpu`` counts all tokens; ``interactivity_tokens_per_s`` is that of `interactivity`.
    """

    label: str
    tokens_per_s_per_gpu: float
    interactivity_tokens_per_s: float


def good_requests(records: RunRecords, end_s: float, slo: Mapping[str, Any], classes: Classes | None = None) -> Bools:
    """Which requests keep the limits of their class.

    Parameters
    ----------
    records : RunRecords
        The run.
    end_s : float
        End of the run [s].
    slo : mapping
        Limits as `kvsim.report.metrics.within_slo` takes them, and under ``by_class`` the limits of classes that have
        their own, which replace the general ones.
    classes : Classes, optional
        Classes of the requests; without them all requests have the general limits.
    """
    good = within_slo(records, end_s, cast("SloLimits", slo))
    own: Mapping[str, SloLimits] = slo.get("by_class") or {}
    if classes is None or not own:
        return good
    for i, name in enumerate(classes.names):
        if name in own:
            good = np.where(classes.index == i, within_slo(records, end_s, own[name]), good)
    return good


def goodput_by_class(records: RunRecords, window: Window, good: Bools, classes: Classes) -> dict[str, ClassGoodput]:
    """SLO goodput of every class that finished a request in the window."""
    done = window.holds(records.finish_s) & (records.status == FINISHED)
    found: dict[str, ClassGoodput] = {}
    for i, name in enumerate(classes.names):
        mine = done & (classes.index == i)
        count, kept = int(mine.sum()), int((mine & good).sum())
        if count:
            found[name] = ClassGoodput(count, kept / window.duration_s, kept / count)
    return found


def interactivity(records: RunRecords, window: Window) -> float:
    """Output tokens per second of end-to-end time that 90 % of the finished requests reach [tokens/s].

    Notes
    -----
    1 / p90(E2E latency / output length), InferenceX AgentX's headline metric; nan when nothing finished.
    """
    done = window.holds(records.finish_s) & (records.status == FINISHED) & (records.output_tokens > 0)
    if not done.any():
        return math.nan
    per_token = (records.finish_s - records.arrival_s)[done] / records.output_tokens[done]
    return float(1.0 / max(np.percentile(per_token, 90), 1e-300))


def pareto(points: Iterable[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Points that no other one beats in both, by rising interactivity.

    Examples
    --------
    >>> found = pareto([ParetoPoint("a", 100, 10), ParetoPoint("b", 90, 20), ParetoPoint("c", 80, 15)])
    >>> [p.label for p in found]
    ['a', 'b']
    """
    kept: list[ParetoPoint] = []
    best = -math.inf
    usable = [p for p in points if not math.isnan(p.interactivity_tokens_per_s)]
    for p in sorted(usable, key=lambda p: (-p.interactivity_tokens_per_s, -p.tokens_per_s_per_gpu)):
        if p.tokens_per_s_per_gpu > best:
            kept.append(p)
            best = p.tokens_per_s_per_gpu
    return tuple(reversed(kept))
