"""What a pipeline of stages did in a run."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.step_log import StepSums
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.pipeline import PipelinedStepTime


@dataclass(frozen=True, slots=True)
class PipelineUse:
    """Stages of one replica, and the share of their time in the run's steps without a batch (the bubble)."""

    stages: int
    bubble_frac: float

    def text(self) -> str:
        """One line.

        >>> PipelineUse(2, 0.25).text()
        'pipeline: 2 stages, 25% of their time without a batch'
        """
        return f"pipeline: {self.stages} stages, {self.bubble_frac:.0%} of their time without a batch"


def pipeline_use(model: StepTimeModel, steps: StepSums) -> PipelineUse | None:
    """What a pipeline did in a run; None where there are no stages, or their time is not known.

    Parameters
    ----------
    model : StepTimeModel
        Step times of the run.
    steps : StepSums
        What the run's steps were made of.

    Notes
    -----
    The bubble of each bin of like steps is that of its mean step, weighted with the bin's time.
    """
    if not isinstance(model, PipelinedStepTime):
        return None
    weighted = [(model.bubble_frac(batch, context), busy_s) for batch, context, _, busy_s in steps.means()]
    total_s = sum(busy_s for _, busy_s in weighted)
    if not total_s:
        return None
    return PipelineUse(model.stages.count, sum(frac * busy_s for frac, busy_s in weighted) / total_s)
