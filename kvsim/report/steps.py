"""What the steps of a run spend their time on, and whether any of them beats physics."""

from __future__ import annotations

from collections.abc import Mapping

from kvsim.engine.step_log import StepSums
from kvsim.errors import Problem
from kvsim.report.limits import StepSplit
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.steptime.drafting import DraftedStepTime
from kvsim.steptime.roofline import RooflineStepTime

ROUNDING = 1e-9
"""Share by which sums of many steps may differ from their parts."""


def step_split(steps: StepSums, model: StepTimeModel, recomputed_frac: float) -> StepSplit:
    """How the time of all steps divides.

    Parameters
    ----------
    steps : StepSums
        The steps of a run, in bins of like ones.
    model : StepTimeModel
        What their times came from; a model without physics spends them on computing.
    recomputed_frac : float
        Share of the prefilled tokens that an infinite cache would have held, 0 to 1.

    Notes
    -----
    Every bin's time is divided as the time of its mean step is; time is affine in what the mean is taken over, but for
    the corners of a roofline inside a bin. What prefill adds to a step is its time less that of its decoding
    sequences alone. Its parts are those of the whole step, since what would shorten the step would shorten both.
    """
    prefill: dict[str, float] = {}
    decode: dict[str, float] = {}
    prefill_s = total_s = 0.0
    for batch, context, _, busy_s in steps.means():
        added = _added_frac(model, batch, context)
        shares = _shares(model, batch, context)
        total_s += busy_s
        prefill_s += added * busy_s
        for name, share in shares.items():
            prefill[name] = prefill.get(name, 0.0) + added * busy_s * share
            decode[name] = decode.get(name, 0.0) + (1.0 - added) * busy_s * share
    return StepSplit(prefill_s / total_s if total_s else 0.0, recomputed_frac, _normal(prefill), _normal(decode))


def floor_problems(steps: StepSums, model: StepTimeModel, max_tokens: int) -> list[Problem]:
    """Steps of a run that are faster than their FLOPs and bytes allow.

    Parameters
    ----------
    steps : StepSums
        The steps, in bins of like ones.
    model : StepTimeModel
        What their times came from; only physics has floors.
    max_tokens : int
        Token budget of a step [tokens]; a prefill of that many is checked too.

    Notes
    -----
    The mean step of each bin must take its floor; and steps that only decode must have taken, on average, the floor of
    their mean, since a floor is a convex function of context.
    """
    if not isinstance(model, RooflineStepTime | DraftedStepTime):
        return []
    full = StepBatch(max_tokens, 1, max_tokens * (max_tokens + 1) // 2, max_tokens, 0)
    taken = [(full, 0, step_s(model, full, 0))]
    for batch, context, count, busy_s in steps.means():
        mean_s = step_s(model, batch, context)
        taken.append((batch, context, mean_s if batch.prefill_tokens else min(mean_s, busy_s / count)))
    found: list[Problem] = []
    for batch, context, seconds in taken:
        floor_s = model.floor_s(batch, context)
        if seconds < floor_s * (1.0 - ROUNDING):
            found.append(Problem("run", "step time", f"{seconds:.6f} s for {batch}", f"at least {floor_s:.6f} s"))
    return found


def _added_frac(model: StepTimeModel, batch: StepBatch, context: int) -> float:
    """Share of a step that its prefill adds."""
    if not batch.prefill_tokens or not batch.decode_seqs:
        return float(batch.prefill_tokens > 0)
    alone = StepBatch(0, 0, 0, 0, batch.decode_seqs)
    return max(0.0, 1.0 - step_s(model, alone, context) / step_s(model, batch, context))


def _shares(model: StepTimeModel, batch: StepBatch, context: int) -> Mapping[str, float]:
    """Shares of a step by resource; they sum to 1."""
    if not isinstance(model, RooflineStepTime | DraftedStepTime):
        return {"compute": 1.0}
    return _normal(model.shares(batch, context))


def _normal(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of their sum."""
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total else {}
