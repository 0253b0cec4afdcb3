"""Steps of measured runs that held a compilation or a pause of the host, told from their like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.calibrate.replay import StepSample

SPIKE = 2.0
"""A spike takes more than so many times the median of steps that did at least as much."""

SPIKE_S = 0.1
"""A spike takes at least so much longer [s] than that median."""

SPIKE_WITNESSES = 3
"""So many steps must have done at least as much: with fewer, nothing is called a spike."""


def spikes_of(steps: Sequence[StepSample], witnesses: Sequence[StepSample]) -> list[float]:
    """Excess [s] of steps that held a compilation or a pause.

    Parameters
    ----------
    steps : sequence of StepSample
        Steps of one run.
    witnesses : sequence of StepSample
        Steps of all runs of the same engine.

    Returns
    -------
    list of float
        For each spike its duration less the median duration of its witnesses.

    Notes
    -----
    Model-free: a step with prefill is held against those that computed at least as many prompt tokens and
    query-key pairs, one without against those with at least as many decoding sequences and as much context. It is a
    spike if it took more than `SPIKE` times their median and `SPIKE_S` more. That median is too high rather than too
    low, so that too little is taken off.

    Examples
    --------
    >>> from kvsim.steptime.base import StepBatch
    >>> usual = [StepSample("", StepBatch(1024, 1, 524800, 1024, 0), 0, 0.05)] * 4
    >>> [round(s, 3) for s in spikes_of([StepSample("", StepBatch(512, 1, 131328, 512, 0), 0, 0.9)], usual)]
    [0.85]
    """
    work, seconds = np.array([_work(w) for w in witnesses]), np.array([w.duration_s for w in witnesses])
    found: list[float] = []
    for step in steps:
        if step.duration_s <= SPIKE_S:
            continue
        like = seconds[(work >= _work(step)).all(axis=1) & ((work[:, 0] == 0) == (step.batch.prefill_tokens == 0))]
        usual_s = float(np.median(like)) if len(like) >= SPIKE_WITNESSES else step.duration_s
        if step.duration_s > max(SPIKE * usual_s, usual_s + SPIKE_S):
            found.append(step.duration_s - usual_s)
    return found


def _work(step: StepSample) -> tuple[int, int, int, int]:
    """What a step has to compute, for comparison: prompt tokens and pairs, or decoding sequences and context."""
    batch = step.batch
    if batch.prefill_tokens:
        return batch.prefill_tokens, batch.prefill_pairs, 0, 0
    return 0, 0, batch.decode_seqs, step.context_tokens
