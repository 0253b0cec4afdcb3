"""Configurations that a plan may choose from, each as a scenario of one replica."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import Problem, ScenarioError
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

    Raises
    ------
    ScenarioError
        A scenario whose replicas prefill and decode apart, or differ: a fleet is so many of one configuration.
    """
    if len(base.groups) > 1:
        problem = Problem(base.origin, "replicas", f"{len(base.groups)} groups",
                          "a number of replicas that are alike; plan.hardware names kinds to choose from")
        raise ScenarioError("a plan of replicas that differ is not supported", [problem])
    if base.disaggregation is not None:
        problem = Problem(base.origin, "disaggregation", "it in a search over hardware, demand or price",
                          "none; 'kvsim plan' without --fleet, --seats and --max-price divides its replicas")
        raise ScenarioError("prefill and decode apart cannot be planned so", [problem])
    pool = {**engine}
    moved = any(getattr(base, name) != value for name, value in parts.items() if name in ("hardware", "layout"))
    if moved or pool.get("kv_dtype", base.engine.kv_dtype) != base.engine.kv_dtype:
        pool |= {"kv_bytes_per_gpu": None, "num_blocks": None, "calibration": None}
    changed = base.model_copy(update={"engine": base.engine.model_copy(update=pool), "study": None, "plan": None,
                                      "replicas": 1, "failures": (), "autoscale": None, **parts})
    return Candidate(name_of(changed), changed)


def name_of(scenario: Scenario) -> str:
    """A configuration in one line."""
    return (f"{scenario.hardware.num_gpus} x {scenario.hardware.gpu} {_layout_name(scenario.layout)}, "
            f"{scenario.engine.kv_dtype} KV, {tiers_name(scenario.tiers)}")


def tiers_name(tiers: Sequence[Tier]) -> str:
    """Tiers in a few words.

    >>> tiers_name([]), tiers_name([Tier(kind="dram", capacity=1.5e12)])
    ('no tiers', '1,500 GB dram')
    """
    return " + ".join(_tier_name(t) for t in tiers) or "no tiers"


def _layout_name(layout: LayoutPart) -> str:
    degrees = [(name.upper(), degree) for name, degree in layout.model_dump().items() if degree > 1]
    return " ".join(f"{name}{degree}" for name, degree in degrees) or "TP1"


def _tier_name(tier: Tier) -> str:
    return f"{tier.capacity / 1e9:,.0f} GB {tier.kind}"
