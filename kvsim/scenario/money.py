"""What the hardware costs, what the tokens earn, who uses the service."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from kvsim.scenario.parts import Frac, NonNegative, Part, Positive, UsdPerHour


class OwnedPart(Part):
    """How owned GPUs are paid for when the cost is built from capital and power; see `kvsim.report.bill.OwnedTerms`."""

    utilisation_frac: Frac = 1.0
    opex_frac: Annotated[float, Field(ge=0)] = 0.05
    site: Literal["colocation", "self-built"] = "colocation"


class Prices(Part):
    """What the hardware costs, what the tokens earn.

    ``compute`` and ``api`` name price profiles. ``owned`` builds the cost from the profile's capital and power
    instead of taking its published $ per hour; ``usd_per_gpu_hour`` states the rent by GPU profile instead. GPUs are
    paid for in buying units (node, tray, rack), rounded up; fewer than one unit's pay for themselves alone, unless
    ``whole_units`` is true. False never rounds up. Tiers cost the capital of ``tier_profiles`` by kind, or the $ per
    hour and replica of ``tier_usd_per_hour``. ``revenue`` and ``attribution`` choose the headline's; see
    `kvsim.report.cost`.
    """

    compute: str = "rental-2026-09"
    api: str | None = None
    owned: OwnedPart | None = None
    usd_per_gpu_hour: dict[str, UsdPerHour] | None = None
    whole_units: bool | None = None
    tier_usd_per_hour: dict[Literal["dram", "nvme", "pool"], UsdPerHour] = Field(default_factory=dict[Any, float])
    tier_profiles: dict[Literal["dram", "nvme", "pool"], str] = Field(default_factory=dict[Any, str])
    network_usd_per_gpu_hour: UsdPerHour = 0.0
    revenue: Literal["hits", "ideal_hits", "demand"] = "hits"
    only_slo_earns: bool = True
    attribution: Literal["price", "resource_time"] = "price"

    @model_validator(mode="after")
    def _rented_or_owned(self) -> Prices:
        if self.owned is not None and self.usd_per_gpu_hour:
            raise ValueError("owned and usd_per_gpu_hour both set; accepted: one of them")
        return self


class Demand(Part):
    """Who uses the service: seats, and what they do in the peak hour.

    ``turns_per_active_hour`` counts an active seat's requests, sub-agents' too; without it every active seat
    keeps one live session. ``growth_per_month`` compounds over ``months``.
    """

    seats: Positive
    active_frac_peak: Frac
    turns_per_active_hour: Annotated[float, Field(gt=0)] | None = None
    growth_per_month: Annotated[float, Field(ge=0)] = 0.0
    months: NonNegative = 0
