"""Step time with speculative drafts: the draft proposes k tokens, the target verifies them and its own in one step.

``T(B) = T_draft + T_verify``. To verify, every decoding sequence brings 1 + k tokens: weights are read once, experts
for B (1 + k) tokens, the KV of a sequence once for all of its queries, and its constant state is read once and written
1 + k times. The draft's layers run k times (MTP, EAGLE3) or once for the whole block (DFlash, DSpark).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvsim.layout import Layout
from kvsim.memory.drafts import Draft
from kvsim.profiles.engine_profile import EngineProfile
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.model import ModelProfile
from kvsim.steptime.base import Piece, StepBatch, step_s
from kvsim.steptime.envelope import sum_of_maxima
from kvsim.steptime.rates import Cost
from kvsim.steptime.roofline import RooflineStepTime, build_step_time, with_parts
from kvsim.steptime.work import Work


@dataclass(frozen=True, slots=True)
class DraftedStepTime:
    """Step time of a replica with drafts (a `kvsim.steptime.base.StepTimeModel`); made by `with_draft`.

    Attributes
    ----------
    plain : RooflineStepTime
        The target without drafts.
    verify : RooflineStepTime
        The target with 1 + k rows a decoding sequence, which it is told as so many sequences.
    first, later : RooflineStepTime
        A pass of the draft over the 1 + k tokens that were verified (or are to be), and one over a single token.
    draft : Draft
        Kind and number of draft tokens.

    Notes
    -----
    ``batch.decode_seqs`` counts sequences; the context is what their last draft token attends to, summed.
    Assumptions, and when they are wrong: passes follow each other and the target, with collectives and launches of
    their own; the head runs on all rows of the first pass; rejection sampling and the proposer's host work are part of
    the host's step; CUDA graphs are never padded; the draft sees prompts too, in its first pass. Adaptive verification
    (fewer drafts at high load) is not modelled.
    """

    plain: RooflineStepTime
    verify: RooflineStepTime
    first: RooflineStepTime
    later: RooflineStepTime
    draft: Draft
    _decode_only: dict[int, tuple[Piece, ...]] = field(default_factory=dict[int, tuple[Piece, ...]])

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Affine pieces (seconds, seconds per resident context token) of the step's duration."""
        if batch.prefill_tokens:
            return sum_of_maxima([model.pieces(part) for model, part in self._parts(batch)])
        found = self._decode_only.get(batch.decode_seqs)
        if found is None:
            found = sum_of_maxima([model.pieces(part) for model, part in self._parts(batch)])
            self._decode_only[batch.decode_seqs] = found
        return found

    def costs(self, batch: StepBatch, context_tokens: int) -> tuple[Cost, ...]:
        """The same duration by component; the draft's components carry its name in front."""
        (_, wide), *passes = self._parts(batch)
        costs = list(self.verify.costs(wide, context_tokens))
        for model, part in passes:
            costs += [replace(c, name=f"draft_{c.name}") for c in model.costs(part, context_tokens)]
        return tuple(costs)

    def shares(self, batch: StepBatch, context_tokens: int) -> dict[str, float]:
        """Seconds of the step by what they are spent on: ``hbm_bandwidth, compute, collectives, host`` [s]."""
        found: dict[str, float] = {}
        for model, part in self._parts(batch):
            for name, seconds in model.shares(part, context_tokens).items():
                found[name] = found.get(name, 0.0) + seconds
        return found

    def floor_s(self, batch: StepBatch, context_tokens: int) -> float:
        """Duration [s] below which the step would break physics: the target's and the draft's floors, summed."""
        return sum(model.floor_s(part, context_tokens) for model, part in self._parts(batch))

    def rank_step_s(self, batch: StepBatch, own_s: float, mean_rows: int) -> float:
        """Duration [s] of a step of one attention-DP rank when the ranks' loads differ, as `RooflineStepTime` has it.

        Parameters
        ----------
        batch : StepBatch
            What this rank computes.
        own_s : float
            How long it would take if all ranks computed as much [s].
        mean_rows : int
            Tokens that a rank computes on average, drafts included.

        Notes
        -----
        Verification and the draft's first pass follow the mean. Further passes of a draft with experts are taken to be
        as long as this rank's own.
        """
        (verify, wide), (first, _) = self._parts(batch)[:2]
        own_rows = wide.prefill_tokens + wide.decode_seqs
        more_s = sum(model.shared_s(mean_rows) - model.shared_s(own_rows) for model in (verify, first))
        return max(own_s + more_s, verify.host.least_s(wide))

    def draft_s(self, batch: StepBatch, context_tokens: int) -> float:
        """Time [s] of the draft's passes alone."""
        return sum(step_s(model, part, context_tokens) for model, part in self._parts(batch)[1:])

    def break_even_length(self, num_seqs: int, context_tokens: int) -> float:
        """Mean tokens a step from which on drafting pays at this load.

        Parameters
        ----------
        num_seqs : int
            Decoding sequences, >= 1.
        context_tokens : int
            What they attend to, summed.

        Returns
        -------
        float
            Step with drafts over step without: above it, drafts give more tokens a second.
        """
        batch = StepBatch(0, 0, 0, 0, num_seqs)
        return step_s(self, batch, context_tokens) / step_s(self.plain, batch, context_tokens)

    def _parts(self, batch: StepBatch) -> list[tuple[RooflineStepTime, StepBatch]]:
        """Verification, then the passes of the draft, each with what it is told."""
        wide = batch._replace(decode_seqs=batch.decode_seqs * (1 + self.draft.tokens))
        parts = [(self.verify, wide), (self.first, wide)]
        if batch.decode_seqs:
            parts += [(self.later, StepBatch(0, 0, 0, 0, batch.decode_seqs))] * (self.draft.num_passes - 1)
        return parts


def with_draft(plain: RooflineStepTime, drafter: RooflineStepTime, draft: Draft,
               reuse_frac: float = 0.0) -> DraftedStepTime:
    """The step time of a target with a draft beside it.

    Parameters
    ----------
    plain : RooflineStepTime
        The target (calibrated, pipelined where it is).
    drafter : RooflineStepTime
        One pass over the draft's layers, from `build_drafter`.
    draft : Draft
        Kind and number of draft tokens, not "none".
    reuse_frac : float
        Of the experts that each further token of a sequence chooses in a step, the share that the ones before it have
        chosen already, beyond chance (0 to 1).
    """
    verify, first = (_widened(model, draft.tokens, reuse_frac) for model in (plain, drafter))
    return DraftedStepTime(plain, verify, first, drafter, draft)


def build_drafter(drafter: ModelProfile, gpu: GpuProfile, layout: Layout, kv_dtype: str,
                  engine: EngineProfile) -> RooflineStepTime:
    """One pass of a draft (a model of its own, from `kvsim.memory.drafter.drafter_model`) on the last stage's GPUs.

    Parameters
    ----------
    drafter, gpu : ModelProfile, GpuProfile
        The draft, and what it runs on.
    layout : Layout
        The target's.
    kv_dtype : str
        Format of the draft's KV.
    engine : EngineProfile
        Whose kernels run it.

    Returns
    -------
    RooflineStepTime
        Without the host's own work, which the target's step has.
    """
    model = build_step_time(drafter, gpu, replace(layout, pp=1), kv_dtype, engine, True)
    return with_parts(model, host=replace(model.host, step_s=0.0, per_seq_s=0.0, per_token_s=0.0))


def _widened(model: RooflineStepTime, tokens: int, reuse_frac: float) -> RooflineStepTime:
    """The model with 1 + `tokens` rows a decoding sequence, whose batches count rows instead of sequences."""
    rows = 1 + tokens
    return with_parts(model, work=_wide_work(model.work, rows, reuse_frac),
                    host=replace(model.host, per_seq_s=model.host.per_seq_s / rows))


def _wide_work(work: Work, rows: int, reuse_frac: float) -> Work:
    """Work by row: KV read once and states read once a sequence, states written for every row, experts shared in part.

    Prompts computed in the same step count as if their tokens agreed as much: they are hundreds, which touch all.
    """
    decode = tuple(replace(part, rows=rows, flops_per_token=part.flops_per_token * rows,
                           flops_per_seq=part.flops_per_seq * rows) for part in work.decode)
    states = tuple(replace(state, bytes_per_seq=state.bytes_per_seq * (1 + rows) / 2 / rows) for state in work.states)
    experts = work.experts and replace(work.experts, independent_frac=(1 + (rows - 1) * (1 - reuse_frac)) / rows)
    return replace(work, decode=decode, states=states, experts=experts)
