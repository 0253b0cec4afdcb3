"""Shipped scenarios as choices of the controls, as far as the controls can say them; no Streamlit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvsim.dashboard.choices import (
    CURVE_POINTS,
    GB,
    GIB,
    LOGGED,
    NO_API_PRICE,
    NUM_GPUS,
    PREDICTED,
    RANGES,
    Choices,
    api_prices,
    default_choices,
    options,
    reconcile,
    scenario_of,
)
from kvsim.errors import KvsimError
from kvsim.profiles.store import ProfileStore
from kvsim.scenario import Scenario, load_scenario

NOT_COMPARED = ("schema", "name", "description", "study", "seed", "hardware.gpu", "workload.duration_s",
                "workload.warmup_s", "engine.max_model_len", "engine.gpu_memory_utilization")
"""Parts that change nothing, and those that a control of the pages says in its own way."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A scenario for the controls.

    Attributes
    ----------
    choices : Choices or None
        What the controls say; None where they cannot describe its machine or traffic.
    obstacle : str
        Why not.
    left_out : tuple of str
        Fields whose value the controls cannot say, and which the pages therefore leave out or set otherwise.
    """

    choices: Choices | None
    obstacle: str = ""
    left_out: tuple[str, ...] = ()


def opened(name: str, store: ProfileStore) -> Opened:
    """A shipped scenario for the controls.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> found = opened("k3-b300-dram", default_store())
    >>> found.choices.dram, found.choices.dram_gb, found.obstacle
    (True, 1889.0, '')
    """
    try:
        scenario = load_scenario(name)
        obstacle = _obstacle(scenario)
        if obstacle:
            return Opened(None, obstacle)
        choices = choices_of(scenario, store)
        return Opened(choices, "", left_out(scenario, choices))
    except KvsimError as err:
        return Opened(None, err.message.splitlines()[0])


def _obstacle(scenario: Scenario) -> str:
    """What the controls have no place for at all; empty where they do."""
    kinds = [t.kind for t in scenario.tiers]
    if scenario.workload.preset is None:
        return "its traffic is no preset"
    if len(scenario.groups) > 1:
        return "its replicas differ"
    if kinds not in ([], ["dram"]):
        return "its tiers are not one of DRAM"
    if scenario.hardware.num_gpus not in NUM_GPUS:
        return f"it has {scenario.hardware.num_gpus} GPUs"
    return ""


def choices_of(scenario: Scenario, store: ProfileStore) -> Choices:
    """The controls' values that come nearest to a scenario with live sessions of a preset."""
    default = default_choices(store)
    engine, layout, workload = scenario.engine, scenario.layout, scenario.workload
    logged, dram = engine.kv_bytes_per_gpu, [t for t in scenario.tiers if t.kind == "dram"]
    model = store.get("model", scenario.model).name
    wanted = replace(
        default, model=model, gpu=store.get("gpu", scenario.hardware.gpu).name, num_gpus=scenario.hardware.num_gpus,
        tp=layout.tp, dp=layout.dp, ep=layout.ep, dcp=layout.dcp, profile=engine.profile, kv_dtype=engine.kv_dtype,
        gpu_memory_utilization=engine.gpu_memory_utilization or default.gpu_memory_utilization,
        prefix_caching=engine.prefix_caching, pool=LOGGED if logged else PREDICTED,
        logged_gib=logged / GIB if logged else default.logged_gib, dram=bool(dram),
        dram_gb=dram[0].capacity / GB if dram else default.dram_gb, replicas=_within("replicas", scenario.num_replicas),
        router=scenario.router.kind if scenario.router else None, preset=workload.preset or default.preset,
        sessions=_within("sessions", workload.concurrency or default.sessions),
        curve=tuple(n for n in scenario.study.concurrency if n in CURVE_POINTS) if scenario.study else default.curve,
        seeds=_within("seeds", scenario.study.replications) if scenario.study else default.seeds,
        compute=scenario.prices.compute, usd_per_gpu_hour=_stated(scenario),
        api=scenario.prices.api or (api_prices(model, store) or (NO_API_PRICE,))[0],
        ttft_p95_s=scenario.slo.ttft_s.get("p95", 0.0), tpot_p95_ms=1e3 * scenario.slo.tpot_s.get("p95", 0.0),
        **_listed(scenario, default, store))
    return replace(reconcile(wanted, wanted, store), pool=wanted.pool)


def _listed(scenario: Scenario, default: Choices, store: ProfileStore) -> dict[str, Any]:
    """Limits of the engine that the controls offer; others stay at their own values."""
    offered, own = options(default, store), store.get("model", scenario.model).max_positions
    given = {n: getattr(scenario.engine, n) for n in ("max_model_len", "max_num_batched_tokens", "max_num_seqs")}
    if given["max_model_len"] == own:
        given["max_model_len"] = None
    return {name: value if value in offered[name] else None for name, value in given.items()}


def _stated(scenario: Scenario) -> float | None:
    """The rent that a scenario states for its own GPU."""
    return (scenario.prices.usd_per_gpu_hour or {}).get(scenario.hardware.gpu)


def _within(name: str, value: int) -> int:
    low, high = RANGES[name]
    return int(min(max(value, low), high))


def left_out(scenario: Scenario, choices: Choices) -> tuple[str, ...]:
    """Dotted fields of a scenario that the controls' scenario has otherwise."""
    asked, said = (_flat(s.to_dict()) for s in (scenario, scenario_of(choices)))
    names = {name.split(".", 1)[0] if name.startswith(("plan.", "demand.", "study.")) else name
             for name in {*asked, *said} if asked.get(name) != said.get(name)}
    return tuple(sorted(names - set(NOT_COMPARED)))


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names, without what is nothing or empty."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        elif value not in (None, [], ()):
            flat[f"{prefix}{key}"] = value
    return flat
