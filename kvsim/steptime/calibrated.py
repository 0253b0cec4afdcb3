"""Adjust the physics model by a few measured coefficients, without leaving physics.

Every coefficient multiplies the time of one term of `RooflineStepTime`; the result is such a model again, with the same
pieces, shares and floor. No coefficient can make a kernel faster than the GPU's peaks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from kvsim.profiles.calibration import CalibrationProfile, CalibrationUse
from kvsim.steptime.parts import Scan
from kvsim.steptime.rates import Rate
from kvsim.steptime.roofline import RooflineStepTime, with_parts
from kvsim.steptime.work import ExpertWork

BLOCKS_OF_ONE_PAIR = 4
"""Tokens x experts per token x this <= experts: the fused kernel gives every (token, expert) pair its own block."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Multipliers of the time of each term; 1 leaves the physics model as it is.

    Attributes
    ----------
    host_step, host_sequence : float
        Host time of a step, and of each of its sequences.
    launches : float
        Kernel launches inside graphs.
    eager : float
        Time the host needs to launch what no graph covers.
    gemm_compute, weight_bytes : float
        FLOPs and weight traffic of dense matrices.
    experts : float
        Routed experts, FLOPs and bytes alike.
    prefill_attention, decode_attention : float
        Attention of chunks, and of decoding sequences over their context.
    state_decode, state_prefill : float
        Constant-state attention: decoding sequences, and the scan of chunks.
    """

    host_step: float = 1.0
    host_sequence: float = 1.0
    launches: float = 1.0
    eager: float = 1.0
    gemm_compute: float = 1.0
    weight_bytes: float = 1.0
    experts: float = 1.0
    prefill_attention: float = 1.0
    decode_attention: float = 1.0
    state_decode: float = 1.0
    state_prefill: float = 1.0


def calibrated(model: RooflineStepTime, factors: Factors) -> RooflineStepTime:
    """The physics model with every term's time multiplied by its factor.

    Parameters
    ----------
    model : RooflineStepTime
        Step time from physics.
    factors : Factors
        Multipliers, > 0. A factor below 1 stops where the kernel reaches the GPU's dense peak or its nominal bandwidth.

    Returns
    -------
    RooflineStepTime
        A new model; pieces stay affine, its floor is that of `model`.
    """
    rates, host = model.rates, model.host
    dense = tuple((_slower(rate, factors.gemm_compute, factors.weight_bytes), *rest) for rate, *rest in rates.dense)
    head, head_bytes = rates.head
    experts = rates.experts and (_slower(rates.experts[0], factors.experts, factors.experts), rates.experts[1])
    return with_parts(
        model,
        rates=replace(
            rates, dense=dense, experts=experts,
            head=(_slower(head, factors.gemm_compute, factors.weight_bytes), head_bytes),
            expand=_slower(rates.expand, factors.gemm_compute, factors.weight_bytes),
            prefill=_all_slower(rates.prefill, factors.prefill_attention),
            decode=_all_slower(rates.decode, factors.decode_attention),
            state=_slower(rates.state, factors.state_decode, factors.state_decode)),
        scans=tuple(_slower_scan(scan, factors.state_prefill) for scan in model.scans),
        host=replace(host, step_s=host.step_s * factors.host_step, per_seq_s=host.per_seq_s * factors.host_sequence,
                     launches_s=host.launches_s * factors.launches, eager_s=host.eager_s * factors.eager,
                     piecewise_s=host.piecewise_s * factors.eager, context_s=host.context_s * factors.eager,
                     sync_s=host.sync_s * factors.eager),
    )


@dataclass(frozen=True, slots=True)
class AlikeExperts(ExpertWork):
    """Routed experts when all tokens choose the same ones.

    Notes
    -----
    Happens with random weights where a correction bias is added to the router's scores: the bias differs
    between experts far more than the scores do. The same happens where scores are rounded to bf16 before the choice:
    softmax scores of random weights then tie, and ties are broken alike. Batches so small that the fused kernel gives
    every (token, expert) pair its own block read an expert once a pair; larger ones read the chosen experts once.
    Source of the small-batch rule: vLLM's fused experts, ``tokens x experts per token x 4 <= experts`` skips the
    grouping.
    """

    def touched_frac(self, rows: float) -> float:
        """Share of all experts' bytes that `rows` tokens read.

        Examples
        --------
        >>> alike = AlikeExperts(26, 256, 8, "bf16", 1.0, 1.0, 1.0, 2304)
        >>> alike.touched_frac(8), alike.touched_frac(64)
        (0.25, 0.03125)
        """
        pairs = rows * self.chosen
        small = pairs * BLOCKS_OF_ONE_PAIR <= self.num_experts
        return min(1.0, (pairs if small else self.chosen) / self.num_experts)


def with_alike_experts(model: RooflineStepTime) -> RooflineStepTime:
    """The model when all tokens choose the same experts (`AlikeExperts`); a dense model is returned as it is."""
    experts = model.work.experts
    if experts is None:
        return model
    alike = AlikeExperts(*(getattr(experts, f.name) for f in fields(ExpertWork)))
    return with_parts(model, work=replace(model.work, experts=alike))


def physics_digest(model: RooflineStepTime) -> str:
    """Digest, as 16 hex digits, of the coefficients that `calibrated` multiplies (amounts of work left out)."""
    return hashlib.sha256(repr((model.rates, model.scans, model.host)).encode()).hexdigest()[:16]


def with_calibration(model: RooflineStepTime, calibration: CalibrationProfile, use: CalibrationUse) -> RooflineStepTime:
    """The physics model with a calibration on it.

    Parameters
    ----------
    model : RooflineStepTime
        Step time from physics.
    calibration : CalibrationProfile
        Measured multipliers.
    use : CalibrationUse
        What it is applied to; its ``physics_digest`` is `physics_digest` of `model`.

    Raises
    ------
    ProfileError
        The calibration is for something else.
    """
    calibration.require(use)
    return calibrated(model, Factors(**{str(name): figure.base for name, figure in calibration.factors.items()}))


def _slower(rate: Rate, compute: float, memory: float) -> Rate:
    """A kernel whose FLOPs and bytes take so many times as long, but never less than at the GPU's peaks."""
    return replace(rate, flop_s=max(rate.flop_s * compute, rate.peak_flop_s),
                   byte_s=max(rate.byte_s * memory, rate.peak_byte_s),
                   floor_s=rate.floor_s * memory, overhead_s=rate.overhead_s * memory)


def _all_slower(rates: Sequence[Rate], factor: float) -> tuple[Rate, ...]:
    """Every kernel of a list, as a whole."""
    return tuple(_slower(rate, factor, factor) for rate in rates)


def _slower_scan(scan: Scan, factor: float) -> Scan:
    """A scan that takes so many times as long; its floor stays."""
    return replace(scan, serial_s=scan.serial_s * factor, parallel_s=scan.parallel_s * factor)
