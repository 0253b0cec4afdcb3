"""From a scenario's prefill and decode replicas to what is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from kvsim.cluster.disagg import SplitSpec
from kvsim.cluster.disagg_links import LinkSpec, Parcel
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.routers.registry import Param, RouterSpec, check_router
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, ScenarioError
from kvsim.memory.layers import kv_bytes_per_token, state_bytes, window_bytes
from kvsim.resolve import Resolved
from kvsim.scenario import RolePart, RouterName, RouterPart, Scenario
from kvsim.steptime.base import StepTimeModel

RoleName = Literal["prefill", "decode"]
ROLES: tuple[RoleName, RoleName] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of replica with every number known: what it is, how its engine runs, how long its steps take."""

    resolved: Resolved
    config: EngineConfig
    step_time: StepTimeModel

    def replicas(self, name: RoleName, count: int) -> tuple[ReplicaSpec, ...]:
        """So many of them."""
        return (ReplicaSpec(self.config, self.step_time, kind=f"{self.resolved.gpu.name} {name}"),) * count


def role_scenario(scenario: Scenario, name: RoleName) -> Scenario:
    """One prefill or decode replica as a scenario of its own.

    Raises
    ------
    ScenarioError
        What the role states is not valid, or cannot be simulated with prefill and decode apart.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> both = load_scenario("k3-2xb300-1p1d")
    >>> [role_scenario(both, name).engine.prefix_caching for name in ("prefill", "decode")]
    [True, False]
    """
    split = scenario.disaggregation
    assert split is not None
    role = split.prefill if name == "prefill" else split.decode
    _check(scenario, name, role)
    data = {k: v for k, v in scenario.to_dict().items() if k != "disaggregation"}
    data["engine"] = {**data["engine"], **role.engine}
    if role.layout is not None:
        data["layout"] = role.layout.model_dump()
    if name == "decode":
        data["tiers"] = []
        data["engine"]["prefix_caching"] = split.decode_side_caching
    return Scenario.from_dict(data, f"{scenario.origin} (disaggregation.{name})")


def _check(scenario: Scenario, name: RoleName, role: RolePart) -> None:
    """Refuse what cannot be simulated with prefill and decode apart."""
    layout = role.layout or scenario.layout
    engine = {**scenario.to_dict()["engine"], **role.engine}
    wrong = {
        "replicas": (scenario.replicas != 1, scenario.replicas, "disaggregation.prefill.replicas and decode.replicas"),
        "failures": (bool(scenario.failures), "some", "none"),
        "autoscale": (scenario.autoscale is not None, "one", "none"),
        "limits": (bool(scenario.limits), "some", "none"),
        "layout.dp": (layout.dp > 1, layout.dp, "1"),
        "engine.fidelity": (engine["fidelity"] != "core", engine["fidelity"], "core"),
        "engine.draft": (engine["draft"] != "none", engine["draft"], "none"),
        "engine.admission": (engine.get("admission") is not None, "one", "none"),
        "engine.kv_dtype": (engine["kv_dtype"] != scenario.engine.kv_dtype, engine["kv_dtype"],
                            f"that of both sides ({scenario.engine.kv_dtype})"),
        f"disaggregation.{name}.engine.prefix_caching": (
            "prefix_caching" in role.engine and name == "decode", role.engine.get("prefix_caching"),
            "disaggregation.decode_side_caching"),
    }
    problems = [Problem(scenario.origin, field, f"{given} with disaggregation ({name})", accepted)
                for field, (is_wrong, given, accepted) in wrong.items() if is_wrong]
    if problems:
        raise ScenarioError("this cannot be simulated with prefill and decode apart", problems)


def split_spec(scenario: Scenario, prefill: Role, decode: Role) -> SplitSpec:
    """The replicas and links of a scenario.

    Raises
    ------
    ScenarioError
        No bandwidth is stated and no node profile knows it, or a router is not known.
    """
    part = scenario.disaggregation
    assert part is not None
    link = LinkSpec(link_bytes_per_s(scenario, prefill.resolved), part.link.latency, part.link.shared, part.transfer)
    return SplitSpec(
        prefill.replicas("prefill", part.prefill.replicas), decode.replicas("decode", part.decode.replicas),
        parcel_of(prefill.resolved, decode.resolved), link,
        _router(scenario, "prefill", part.prefill.router or scenario.router, "round_robin"),
        _router(scenario, "decode", part.decode.router, "least_loaded"),
        part.conditional_uncached_tokens, scenario.seed)


def link_bytes_per_s(scenario: Scenario, prefill: Resolved) -> float:
    """Bandwidth of a GPU's link [B/s]: as stated, or that of the node's network cards."""
    part, node = scenario.disaggregation, prefill.node
    assert part is not None
    if part.link.bandwidth is not None:
        return part.link.bandwidth
    nic = None if node is None else node.nic_bandwidth_per_gpu
    if nic is None:
        accepted = "a bandwidth per GPU, e.g. 50 GB/s: the node profile does not say"
        raise ScenarioError("the link between prefill and decode has no bandwidth",
                            [Problem(scenario.origin, "disaggregation.link.bandwidth", "", accepted)])
    return nic.base


def parcel_of(prefill: Resolved, decode: Resolved) -> Parcel:
    """What is handed over with a request: KV and state as the decode replica's ranks keep them."""
    model, layout, dtype = decode.model, decode.layout, decode.scenario.engine.kv_dtype
    layers = [model.attention[name] for name in model.layer_names]
    token_bytes = sum(kv_bytes_per_token(spec, dtype, layout.tp) for spec in layers) * layout.tp / layout.dcp
    states = sum(state_bytes(spec, layout.tp) for spec in layers) * layout.tp
    windows = sum(window_bytes(spec, dtype, layout.tp) for spec in layers) * layout.tp
    gpus = prefill.scenario.hardware.num_gpus, decode.scenario.hardware.num_gpus
    return Parcel(token_bytes * decode.engine.block_tokens, states + windows, *gpus, len(layers), states)


def _router(scenario: Scenario, name: RoleName, given: RouterName | RouterPart | None, default: str) -> RouterSpec:
    """The router before one kind of replica, checked."""
    if given is None or isinstance(given, str):
        return RouterSpec(given or default)
    return stated_router(given, scenario.origin, f"disaggregation.{name}.router")


def stated_router(given: RouterPart, origin: str, field: str = "router") -> RouterSpec:
    """A router as a scenario states it.

    Parameters
    ----------
    given : RouterPart
        Its name, the age of its snapshots and its parameters.
    origin, field : str
        Where it is stated, for messages.

    Raises
    ------
    ScenarioError
        An unknown router or parameter, or a parameter out of its range.

    Examples
    --------
    >>> stated_router(RouterPart(kind="llm_d"), "scenario").snapshot_age_s
    0.05
    """
    spec = RouterSpec(given.kind, given.snapshot_age_s, cast("dict[str, Param]", {**(given.model_extra or {})}))
    check_router(spec, origin, field)
    return spec
