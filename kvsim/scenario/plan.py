"""Service level objectives, and what a plan searches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from kvsim.scenario.engine import LayoutPart, Tier
from kvsim.scenario.parts import NonNegative, Part, Percentile, Positive, PositiveSeconds, UsdPerHour, quantity


class SloLimits(Part):
    """Limits [s] on statistics, e.g. ``ttft_s: {p95: 10}``."""

    ttft_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    tpot_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    e2e_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])


class Slo(SloLimits):
    """Service level objectives; ``by_class`` replaces them for named traffic classes."""

    by_class: dict[str, SloLimits] = Field(default_factory=dict[str, SloLimits])


class PlanHardware(Part):
    """One kind of replica that a plan may use; ``node`` as in `Hardware`."""

    gpu: str
    num_gpus: Positive
    node: str | None = None
    layouts: Annotated[tuple[LayoutPart, ...], Field(min_length=1)]


class SurvivePart(Part):
    """A loss of ``nodes`` at the peak, which a plan simulates: they stop at once and do not come back.

    ``before_s`` is measured before the loss, ``first_s`` right after it, ``after_s`` after that. The SLO must hold
    before the loss and in ``after_s``; with ``throughout`` in ``first_s`` too. Fleets of up to ``max_extra`` buying
    units more than the demand alone needs are tried.
    """

    nodes: Positive = 1
    before_s: PositiveSeconds = 300.0
    first_s: PositiveSeconds = 300.0
    after_s: PositiveSeconds = 900.0
    throughout: bool = False
    max_extra: NonNegative = 4


class DayPart(Part):
    """How the load of a day swings below its peak, for the cost of a plan's fleet with and without autoscaling.

    Either ``peak_over_mean``, along a smooth day, or ``load``, shares of the peak in equal parts of ``period_s``. The
    default period is shorter than a day to be simulated sooner: the load swings more steeply, which is harder for an
    autoscaler. A fleet of more than ``replicas`` is simulated at that size, its sessions in proportion.
    """

    peak_over_mean: Annotated[float, Field(gt=1, le=10)] | None = None
    load: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=2, max_length=1440)] | None = None
    period_s: PositiveSeconds = 21_600.0
    replicas: Annotated[int, Field(ge=2)] = 4

    @model_validator(mode="after")
    def _one_shape(self) -> DayPart:
        if (self.peak_over_mean is None) == (self.load is None):
            raise ValueError("both or none of peak_over_mean and load; accepted: one of them")
        if self.load is not None and max(self.load) < 1:
            raise ValueError(f"load whose largest share is {max(self.load):g}; accepted: 1 at the peak")
        return self


class PlanPart(Part):
    """What `kvsim.planning.plan` searches, and within which limits.

    Every combination of a ``hardware`` entry's layouts, ``kv_dtypes`` and ``tiers`` is a configuration (None: the
    scenario's own). ``live_sessions`` is the demand when no ``demand`` is stated. ``spares`` are replicas that serve
    nothing until another fails. ``inventory`` limits GPUs by name, ``max_power`` what the site carries. ``changes``
    are single changes of your own for the table of the next dollar: a name, and fields as with ``--set``. ``survive``
    and ``day`` ask what the loss of a node, and a day below its peak, do to the cheapest fleet.
    """

    hardware: tuple[PlanHardware, ...] | None = None
    kv_dtypes: tuple[Literal["bf16", "fp8", "fp8_ds_mla"], ...] | None = None
    tiers: tuple[tuple[Tier, ...], ...] | None = None
    live_sessions: Positive | None = None
    max_sessions_per_replica: Positive = 64
    spares: NonNegative = 0
    inventory: dict[str, NonNegative] = Field(default_factory=dict[str, int])
    max_power: Annotated[float, quantity("W"), Field(gt=0)] | None = None
    max_usd_per_hour: UsdPerHour | None = None
    changes: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    survive: SurvivePart | None = None
    day: DayPart | None = None
    replications: Positive = 1
