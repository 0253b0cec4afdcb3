"""Traffic classes of a run: what each asked and got, and what the limits before the router did to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvsim.cluster.limits import LimitedRun
from kvsim.engine.types import RunRecords
from kvsim.report.metrics import Bools, Floats, Window, billed_tokens, spread
from kvsim.report.slo import Classes


@dataclass(frozen=True, slots=True)
class ClassUse:
    """One traffic class in the measured window.

    ``arrived`` requests came in the window, of which ``rejected`` were rejected and ``waited`` were held back before
    the router, ``wait_s_mean`` and ``wait_s_p95`` long (of those that waited). ``requests`` got their first token in
    it; their TTFT counts from their arrival, waits included.
    """

    arrived: int
    rejected: int
    waited: int
    wait_s_mean: float
    wait_s_p95: float
    requests: int
    ttft_s_p50: float
    ttft_s_p95: float
    output_tokens_per_s: float
    hit_rate: float


def class_uses(records: RunRecords, window: Window, classes: Classes, limited: LimitedRun | None = None
               ) -> dict[str, ClassUse]:
    """Every class of which something came in the window.

    Parameters
    ----------
    records : RunRecords
        The run.
    window : Window
        Measured part.
    classes : Classes
        Classes of the requests.
    limited : LimitedRun, optional
        What limits did, where there were any.
    """
    count = len(records.status)
    wait_s = np.zeros(count) if limited is None else limited.wait_s
    rejected = np.zeros(count, bool) if limited is None else limited.rejected
    found: dict[str, ClassUse] = {}
    for i, name in enumerate(classes.names):
        mine = classes.index == i
        came = mine & window.holds(records.arrival_s)
        if came.any() or (mine & window.holds(records.first_token_s)).any():
            found[name] = _use(records, window, mine, wait_s[came], int((came & rejected).sum()))
    return found


def _use(records: RunRecords, window: Window, mine: Bools, wait_s: Floats, num_rejected: int) -> ClassUse:
    held = mine & window.holds(records.first_token_s)
    tokens, ttft = billed_tokens(records, window, mine), spread((records.first_token_s - records.arrival_s)[held])
    prompt, waited = tokens.uncached_input + tokens.cached_input, wait_s[wait_s > 0]
    waits = spread(waited)
    return ClassUse(len(wait_s), num_rejected, len(waited), waits.mean, waits.p95, int(held.sum()), ttft.p50, ttft.p95,
                    tokens.output / window.duration_s if window.duration_s > 0 else 0.0,
                    tokens.cached_input / prompt if prompt else 0.0)


def classes_text(classes: Mapping[str, ClassUse]) -> str:
    """The classes as a table."""
    width = max(len("class"), *(len(name) for name in classes))
    lines = [f"{'class':<{width}}  arrived  rejected  waited  wait s mean    p95  served  TTFT p50 s    p95 s  "
             "output tok/s  hit rate"]
    lines += [f"{name:<{width}}  {c.arrived:>7}  {c.rejected:>8}  {c.waited:>6}  {_s(c.wait_s_mean):>11}  "
              f"{_s(c.wait_s_p95):>5}  {c.requests:>6}  {_s(c.ttft_s_p50):>10}  {_s(c.ttft_s_p95):>7}  "
              f"{c.output_tokens_per_s:>12.1f}  {c.hit_rate:>8.1%}" for name, c in classes.items()]
    return "\n".join(lines)


def _s(seconds: float) -> str:
    return "-" if np.isnan(seconds) else f"{seconds:.2f}"
