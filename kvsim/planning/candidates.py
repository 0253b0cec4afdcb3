"""Configurations that a plan may choose from, each as a scenario of one replica."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.scenario import Hardware, LayoutPart, PlanHardware, PlanPart, Scenario, Tier


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration: its name and the scenario of one replica of it."""

    name: str
    scenario: Scenario


def candidates(base: Scenario) -> tuple[Candidate, ...]:
    """Every configuration that the scenario's plan names; the scenario's own where it names none.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> [c.name for c in candidates(load_scenario("k3-b300-study"))]
    ['8 x b300 TP8, fp8 KV, no tiers']
    """
    return tuple(_grid(base, base.plan or PlanPart()))


def _grid(base: Scenario, part: PlanPart) -> Iterator[Candidate]:
    own = PlanHardware(**base.hardware.model_dump(), layouts=(base.layout,))
    tiers = part.tiers if part.tiers is not None else (base.tiers,)
    dtypes = part.kv_dtypes or (base.engine.kv_dtype,)
    for hardware in part.hardware or (own,):
        for layout, kv_dtype, below in itertools.product(hardware.layouts, dtypes, tiers):
            chosen = Hardware(gpu=hardware.gpu, num_gpus=hardware.num_gpus, node=hardware.node)
            yield candidate(base, {"hardware": chosen, "layout": layout, "tiers": below}, {"kv_dtype": kv_dtype})


def candidate(base: Scenario, parts: dict[str, Any], engine: dict[str, Any]) -> Candidate:
    """A scenario with changed parts and engine settings.

    A pool or a calibration that was logged on one configuration holds for that one alone: any other falls back to
    the prediction.
    """
    pool = {**engine}
    moved = any(getattr(base, name) != value for name, value in parts.items() if name in ("hardware", "layout"))
    if moved or pool.get("kv_dtype", base.engine.kv_dtype) != base.engine.kv_dtype:
        pool |= {"kv_bytes_per_gpu": None, "num_blocks": None, "calibration": None}
    changed = base.model_copy(update={"engine": base.engine.model_copy(update=pool), "study": None, "plan": None,
                                      "replicas": 1, **parts})
    return Candidate(name_of(changed), changed)


def name_of(scenario: Scenario) -> str:
    """A configuration in one line."""
    tiers = " + ".join(_tier_name(t) for t in scenario.tiers) or "no tiers"
    return (f"{scenario.hardware.num_gpus} x {scenario.hardware.gpu} {_layout_name(scenario.layout)}, "
            f"{scenario.engine.kv_dtype} KV, {tiers}")


def _layout_name(layout: LayoutPart) -> str:
    degrees = [(name.upper(), degree) for name, degree in layout.model_dump().items() if degree > 1]
    return " ".join(f"{name}{degree}" for name, degree in degrees) or "TP1"


def _tier_name(tier: Tier) -> str:
    return f"{tier.capacity / 1e9:,.0f} GB {tier.kind}"
