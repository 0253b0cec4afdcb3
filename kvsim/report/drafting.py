"""What speculative drafts did in a run, and from which accepted length on they pay."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.step_log import StepSums
from kvsim.memory.acceptance import Acceptance
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.steptime.drafting import DraftedStepTime


@dataclass(frozen=True, slots=True)
class DraftUse:
    """Drafting in one run.

    Attributes
    ----------
    draft_tokens : int
        Tokens drafted for a sequence in a step.
    accepted_length : float
        Mean tokens that a step gives a sequence, the target's own one included.
    kind, source : str
        How that is known (golden, measured, own), and where from.
    break_even_length : float or None
        Accepted length from which on drafting gives more tokens a second than decoding plainly, at the run's mean
        decoding batch; None where step times are given or nothing decoded.
    decode_seqs, context_tokens : int
        That batch: sequences, and what they attend to, summed [tokens].
    step_s, plain_step_s, draft_s : float or None
        A step of that batch with drafts, without, and the draft's part of it [s].
    """

    draft_tokens: int
    accepted_length: float
    kind: str
    source: str
    break_even_length: float | None
    decode_seqs: int
    context_tokens: int
    step_s: float | None
    plain_step_s: float | None
    draft_s: float | None

    @property
    def speedup(self) -> float | None:
        """Tokens a second of decoding steps with drafts over those without; below 1 drafting does not pay."""
        return self.accepted_length / self.break_even_length if self.break_even_length else None

    def text(self) -> str:
        """One line."""
        head = (f"drafts: {self.draft_tokens} tokens a step, {self.accepted_length:.2f} tokens given "
                f"({self.kind}: {self.source})")
        if self.break_even_length is None or self.speedup is None:
            return head
        verdict = "pays" if self.speedup > 1.0 else "does not pay"
        return (f"{head}; break-even at {self.break_even_length:.2f} with {self.decode_seqs} decoding: drafting "
                f"{verdict}, decoding is {self.speedup:.2f} x as fast as without")


def draft_use(acceptance: Acceptance | None, draft_tokens: int, model: StepTimeModel,
              steps: StepSums) -> DraftUse | None:
    """What drafting did in a run; None without drafts.

    Parameters
    ----------
    acceptance : Acceptance or None
        Mean accepted length and its source.
    draft_tokens : int
        Tokens drafted for a sequence in a step.
    model : StepTimeModel
        Step times with the drafts.
    steps : StepSums
        What the run's steps were made of.
    """
    if acceptance is None:
        return None
    seqs, context = _mean_decode(steps)
    known = (acceptance.length, acceptance.kind, acceptance.source)
    if not isinstance(model, DraftedStepTime) or not seqs:
        return DraftUse(draft_tokens, *known, None, seqs, context, None, None, None)
    batch = StepBatch(0, 0, 0, 0, seqs)
    return DraftUse(draft_tokens, *known, model.break_even_length(seqs, context), seqs, context,
                    step_s(model, batch, context), step_s(model.plain, batch, context), model.draft_s(batch, context))


def _mean_decode(steps: StepSums) -> tuple[int, int]:
    """Mean decoding sequences of the steps that have some, and their context [tokens]."""
    found = [(batch.decode_seqs, context, count) for batch, context, count, _ in steps.means() if batch.decode_seqs]
    total = sum(count for _, _, count in found)
    if not total:
        return 0, 0
    return (max(1, round(sum(seqs * count for seqs, _, count in found) / total)),
            round(sum(context * count for _, context, count in found) / total))
