"""Time of whole prompts, computed alone in chunks of the token budget."""

from __future__ import annotations

from kvsim.steptime.base import StepBatch, StepTimeModel, step_s


def prefill_s(model: StepTimeModel, tokens: int, budget_tokens: int, cached_tokens: int = 0) -> float:
    """Time [s] to compute one prompt with nothing else in the engine.

    Parameters
    ----------
    model : StepTimeModel
        Time of a step.
    tokens : int
        Length of the prompt [tokens].
    budget_tokens : int
        Most tokens a step computes.
    cached_tokens : int
        Leading tokens that are there already.

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> prefill_s(LinearStepTime(0.01, 1e-4, 0.0), 2500, 1000, cached_tokens=500)
    0.22
    """
    total_s = 0.0
    for start in range(cached_tokens, tokens, budget_tokens):
        n = min(budget_tokens, tokens - start)
        total_s += step_s(model, StepBatch(n, 1, n * start + n * (n + 1) // 2, start + n, 0), 0)
    return total_s
