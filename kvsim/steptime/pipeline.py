"""Pipeline stages: several batches in flight, each in another stage, a request in one of them at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.layout import Layout
from kvsim.profiles.hardware import NIC_EFFICIENCY, GpuProfile, NodeProfile
from kvsim.steptime.base import Piece, Seconds, StepBatch, step_s
from kvsim.steptime.rates import Cost
from kvsim.steptime.roofline import RooflineStepTime
from kvsim.steptime.work import ACTIVATION_BYTES

HOP_TENSORS = 2
"""What one stage hands to the next for every token: hidden states and their residual (vLLM's IntermediateTensors)."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of a pipeline.

    Attributes
    ----------
    count : int
        Pipeline parallel degree.
    batch_tokens : int
        Token budget of one batch in flight [tokens].
    hop_s_per_row : float
        Time [s] that one token's activations take from a stage to the next.
    """

    count: int = 1
    batch_tokens: int = 1
    hop_s_per_row: float = 0.0

    def micro(self, batch: StepBatch) -> StepBatch:
        """The largest of the batches in flight that together make up one cycle.

        Examples
        --------
        >>> Stages(2, 8192).micro(StepBatch(16384, 2, 1000, 20000, 9))
        StepBatch(prefill_tokens=8192, prefill_chunks=1, prefill_pairs=500, prefill_context_tokens=10000, decode_seqs=5)
        """
        parts = min(self.count, max(1, -(-batch.prefill_tokens // self.batch_tokens)))
        return StepBatch(-(-batch.prefill_tokens // parts), -(-batch.prefill_chunks // parts),
                         -(-batch.prefill_pairs // parts), -(-batch.prefill_context_tokens // parts),
                         -(-batch.decode_seqs // self.in_flight(batch.decode_seqs)))

    def in_flight(self, seqs: int) -> int:
        """Batches that decoding sequences are spread over."""
        return min(self.count, max(1, seqs))

    def context_share(self, seqs: int) -> float:
        """Share of all resident context that the largest batch holds."""
        return -(-seqs // self.in_flight(seqs)) / seqs if seqs else 1.0


@dataclass(frozen=True, slots=True)
class PipelinedStepTime(RooflineStepTime):
    """Step time of a replica of several pipeline stages (made by `pipelined`).

    Notes
    -----
    One *step* is a cycle: every decoding sequence gets one token, and up to ``count`` batches of ``batch_tokens`` are
    prefilled. vLLM V1 keeps up to ``count`` batches in flight; a request is in one of them, prompts longer than
    one batch follow each other through the stages. So a cycle takes as long as one batch needs through all stages: the
    step of one GPU group at ``1 / count`` of the sequences and one budget of prefill, plus hops.

    Decoding sequences are taken to be spread evenly over the batches. It is wrong where they are not: an engine keeps
    together what it scheduled together, and in the worst case (all of them in one batch, nothing to prefill) the other
    stages idle and a cycle still takes as long, with more work in it. A single prompt of one budget passes the stages
    one after the other: its latency is that of all of them. The engine above plans a cycle at once, so it decides
    for all batches of a cycle at its start. Source: vLLM ``v1/engine/core.py``, ``step_with_batch_queue``.
    """

    stages: Stages = Stages()

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Affine pieces (seconds, seconds per resident context token of the replica) of a cycle's duration."""
        share = self.stages.context_share(batch.decode_seqs)
        return tuple((a, b * share) for a, b in RooflineStepTime.pieces(self, self.stages.micro(batch)))

    def prefill_seconds(self) -> Seconds:
        """How long cycles that prefill last; see `kvsim.steptime.base.Direct`."""
        return lambda sums, context_tokens: step_s(self, StepBatch(*sums), context_tokens)

    def costs(self, batch: StepBatch, context_tokens: int) -> tuple[Cost, ...]:
        """The same duration by component, of the largest batch in flight."""
        return RooflineStepTime.costs(self, self.stages.micro(batch), self._context_of(batch, context_tokens))

    def floor_s(self, batch: StepBatch, context_tokens: int) -> float:
        """Duration [s] below which a cycle would break physics: the largest batch through all stages."""
        return RooflineStepTime.floor_s(self, self.stages.micro(batch), self._context_of(batch, context_tokens))

    def bubble_frac(self, batch: StepBatch, context_tokens: int) -> float:
        """Share of the stages' time in which they have no batch.

        Notes
        -----
        ``1 - sum of the batches' times / (stages x the longest)``: too few sequences to fill all batches, or a batch
        with prefill beside batches without.
        """
        seqs, stages = batch.decode_seqs, self.stages
        longest_s = step_s(self, batch, context_tokens)
        filled = min(stages.count, -(-batch.prefill_tokens // stages.batch_tokens))
        others = max(0, (stages.in_flight(seqs) if seqs else 0) - filled)
        decode_s = step_s(self, StepBatch(0, 0, 0, 0, seqs), context_tokens) if others else 0.0
        return max(0.0, 1.0 - (filled * longest_s + others * decode_s) / (stages.count * longest_s))

    def _context_of(self, batch: StepBatch, context_tokens: int) -> int:
        return round(context_tokens * self.stages.context_share(batch.decode_seqs))


def pipelined(model: RooflineStepTime, stages: Stages) -> RooflineStepTime:
    """The step time of a pipeline, from that of its stages one after the other; with one stage, the model itself.

    Parameters
    ----------
    model : RooflineStepTime
        Built (and calibrated) for the layout, hops included.
    stages : Stages
        The pipeline.
    """
    if stages.count == 1:
        return model
    links = replace(model.links, per_row_s=model.links.per_row_s + (stages.count - 1) * stages.hop_s_per_row)
    return PipelinedStepTime(model.work, model.rates, model.scans, links, model.host, model.expert_imbalance,
                             stages=stages)


def stages_of(layout: Layout, gpu: GpuProfile, node: NodeProfile | None, hidden: int, batch_tokens: int) -> Stages:
    """The pipeline of a layout.

    Parameters
    ----------
    layout : Layout
        Its ``pp`` and ``tp``.
    gpu, node : GpuProfile, NodeProfile or None
        Links: the scale-up fabric while all stages fit in it, else the NIC of each GPU.
    hidden : int
        Width of the residual stream.
    batch_tokens : int
        Token budget of one batch.

    Notes
    -----
    Every tensor-parallel rank sends its share of both tensors and gathers the rest from its neighbours. Without a
    stated NIC a hop takes what it would inside the fabric: too little.
    """
    num_bytes = HOP_TENSORS * ACTIVATION_BYTES * hidden
    fabric = gpu.scale_up.bandwidth.base
    leaves = layout.tp * layout.pp > gpu.scale_up.domain.base
    nic = node.nic_bandwidth_per_gpu if node is not None and leaves else None
    sent_s = num_bytes / layout.tp / (fabric if nic is None else nic.base * NIC_EFFICIENCY)
    gathered_s = num_bytes * (layout.tp - 1) / layout.tp / fabric
    return Stages(layout.pp, batch_tokens, sent_s + gathered_s)
