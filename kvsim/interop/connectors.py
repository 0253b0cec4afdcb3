"""KV connectors of vLLM as tiers, and back.

A tier's capacity is that of the whole replica. ``--kv-offloading-size`` is in GiB, summed over the TP ranks of one
engine, and every data-parallel rank is an engine of its own. LMCache and Mooncake are sized per rank, in their
environment. Every rank's segment of Mooncake's store is a part of one pool for all engines at the same master, and
LMCache's peers find what the others have in memory: such tiers are shared by the replicas of a scenario.
Sources: https://vllm.ai/blog/2026-01-08-kv-offloading-connector, https://docs.lmcache.ai/api_reference/configurations.html,
https://docs.lmcache.ai/kv_cache/storage_backends/mooncake.html, https://docs.lmcache.ai/kv_cache/p2p_sharing.html,
https://docs.vllm.ai/en/stable/features/mooncake_store_connector_usage/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kvsim.interop.flags import FlagNote
from kvsim.interop.reading import Asked, Reading
from kvsim.scenario import Scenario, Tier

GIB = 2**30
LMCACHE_DEFAULT_GB = 5.0
"""LMCache's ``max_local_cpu_size`` where nothing is said [GiB a rank]."""
SIMPLE = "SimpleCPUOffloadConnector"
NATIVE = "OffloadingConnector"
PEER = frozenset(("NixlConnector", "P2pNcclConnector", "MooncakeConnector", "MoRIIOConnector"))
"""Connectors that hand KV from prefill to decode engines and keep nothing."""

_STORES = ("MooncakeStoreConnector", "MooncakeStoreConnectorV1", "AscendStoreConnector")
_YES, _NO = frozenset(("true", "1", "yes", "on")), frozenset(("false", "0", "no", "off"))
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)
_CONNECTOR = "kv-transfer-config"


def read_offload(asked: Asked, reading: Reading) -> None:
    """Read the offloading flags of vLLM into tiers."""
    parsed = asked.parsed
    size = parsed.real("kv-offloading-size", "tiers")
    backend = parsed.text("kv-offloading-backend", "tiers") or "native"
    config = parsed.mapping(_CONNECTOR)
    engines = reading.layout.get("dp", 1)
    if size:
        tier = {"kind": "dram", "capacity": size * GIB * engines, "preset": _backend_preset(backend, asked.env)}
        reading.tiers.append(tier)
    if config.get("kv_connector"):
        _connector(config, asked, reading)
    elif config:
        parsed.note(_CONNECTOR, "no effect", "says how loads fail, not what is kept")
    for tier in reading.tiers[:-1]:
        if tier.pop("shared", False):
            parsed.note(_CONNECTOR, "not modelled", f"only the last tier can be shared: {tier['kind']} above it is not")


def _backend_preset(backend: str, env: Mapping[str, str]) -> str:
    if backend.lower() == "lmcache":
        return "lmcache"
    return "vllm-simple-eager" if env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0") not in ("0", "") else "vllm-native"


def _connector(config: Mapping[str, Any], asked: Asked, reading: Reading) -> None:
    """One connector, or several behind a MultiConnector."""
    name = str(config["kv_connector"])
    extra = _mapping(config.get("kv_connector_extra_config"))
    if name == "MultiConnector":
        for inner in cast("Sequence[Any]", extra.get("connectors", [])):
            if isinstance(inner, dict) and "kv_connector" in inner:
                _connector(cast("dict[str, Any]", inner), asked, reading)
        return
    if name in PEER:
        asked.parsed.note(_CONNECTOR, "not modelled", f"{name} hands KV to other engines: this one is taken alone")
        return
    tiers = _tiers_of(name, extra, asked, reading)
    if tiers is None:
        asked.parsed.note(_CONNECTOR, "not modelled", f"{name} is not known: no tier is written for it")
    elif not tiers:
        asked.parsed.note(_CONNECTOR, "not modelled", f"{name} without a size: write tiers yourself"
                          + (", with shared: true" if name.startswith(_STORES) else ""))
    else:
        reading.tiers += tiers
        kinds = " and ".join(f"shared {t['kind']}" if t.get("shared") else str(t["kind"]) for t in tiers)
        asked.parsed.note(_CONNECTOR, "modelled", f"tiers: {name} as {tiers[0]['preset']}, {kinds}")


def _tiers_of(name: str, extra: Mapping[str, Any], asked: Asked, reading: Reading) -> list[dict[str, Any]] | None:
    """Tiers of a connector; empty where it does not say how large they are, None for an unknown one."""
    world, engines = reading.world, reading.layout.get("dp", 1)
    if name in (SIMPLE, NATIVE):
        return _cpu_tiers(name, extra, world, engines)
    if name.startswith("LMCache"):
        return _lmcache_tiers(name, extra, asked, world)
    if name in _STORES:
        given = extra.get("global_segment_size", asked.env.get("MOONCAKE_GLOBAL_SEGMENT_SIZE"))
        size = parse_size(given)
        return [_store("mooncake-store", size * world)] if size else []
    return None


def _store(preset: str, capacity: float) -> dict[str, Any]:
    """A part of Mooncake's store: every engine at the same master finds what is in it."""
    return {"kind": "pool", "capacity": capacity, "preset": preset, "shared": True}


def _lmcache_tiers(name: str, extra: Mapping[str, Any], asked: Asked, world: int) -> list[dict[str, Any]]:
    """LMCache's own memory and the store behind it; a server of its own (MP mode) is sized where it is started."""
    def said(setting: str) -> str:
        return str(extra.get(f"lmcache.{setting}", asked.env.get(f"LMCACHE_{setting.upper()}", "")))

    tiers: list[dict[str, Any]] = []
    size, is_sized = said("max_local_cpu_size"), re.compile(r"\d+(\.\d+)?").fullmatch
    if said("local_cpu").lower() not in _NO and (is_sized(size) or not name.startswith("LMCacheMP")):
        capacity = float(size) if is_sized(size) else LMCACHE_DEFAULT_GB
        dram: dict[str, Any] = {"kind": "dram", "capacity": capacity * GIB * world, "preset": "lmcache"}
        tiers.append({**dram, "shared": True} if said("enable_p2p").lower() in _YES else dram)
    url = said("remote_url")
    segment = _segment_size(said("extra_config")) if url.startswith("mooncakestore://") else 0.0
    if segment:
        tiers.append(_store("lmcache", segment * world))
    elif url:
        asked.parsed.note(_CONNECTOR, "not modelled", f"the server at {url} has no size here: add a tier "
                                                      "{kind: pool, capacity: ..., preset: lmcache, shared: true}")
    return tiers


def _segment_size(extra_config: str) -> float:
    """Bytes that each rank gives to Mooncake's store, of LMCache's extra configuration."""
    try:
        given: Any = json.loads(extra_config or "{}")
    except ValueError:
        return 0.0
    return parse_size(_mapping(given).get("global_segment_size"))


def _cpu_tiers(name: str, extra: Mapping[str, Any], world: int, engines: int) -> list[dict[str, Any]]:
    """Host memory of vLLM's own connectors, and the files of a second tier."""
    whole = parse_size(extra.get("cpu_bytes_to_use", extra.get("cpu_capacity_bytes")))
    rank = parse_size(extra.get("cpu_bytes_to_use_per_rank"))
    capacity = whole * engines if whole else rank * world
    if not capacity:
        return []
    lazy = bool(extra.get("lazy_offload", False))
    preset = "vllm-native" if name == NATIVE else "vllm-simple-lazy" if lazy else "vllm-simple-eager"
    dram: dict[str, Any] = {"kind": "dram", "capacity": capacity, "preset": preset}
    threshold = parse_size(extra.get("store_threshold"))
    if threshold > 1:
        dram |= {"write": "on-reuse", "reuse_threshold": int(threshold)}
    files = [_mapping(t) for t in cast("Sequence[Any]", extra.get("secondary_tiers", []))]
    sizes = [parse_size(t.get("max_bytes")) for t in files]
    return [dram, *({"kind": "nvme", "capacity": size * engines, "preset": preset} for size in sizes if size)]


def parse_size(given: Any) -> float:
    """Bytes of a number or a text such as ``150GB``; units count in 1,024s, as Mooncake reads them; 0 for nothing.

    >>> parse_size("4gb"), parse_size(1024), parse_size(None)
    (4294967296.0, 1024.0, 0.0)
    """
    match = _SIZE.match(str(given)) if given is not None else None
    if match is None:
        return 0.0
    return float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")


def _mapping(given: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


@dataclass(frozen=True, slots=True)
class Written:
    """Tiers as a connector's configuration and environment; ``notes`` say what cannot be said."""

    config: Mapping[str, Any] | None
    env: Mapping[str, str]
    notes: tuple[FlagNote, ...]


def tier_problem(tier: Tier) -> str:
    """Why a tier cannot be written as a connector; empty if it can."""
    if tier.kind == "nvme":
        return "files below host memory have no size of their own in a launch line"
    if tier.kind == "pool" and tier.preset != "mooncake-store":
        return "only Mooncake's store is written as a pool"
    if tier.shared and preset_of(tier) != "mooncake-store":
        return "of vLLM's connectors only Mooncake's store is shared by a flag: preset mooncake-store"
    if tier.kind == "dram" and preset_of(tier) is None:
        written = f"preset {tier.preset}" if tier.preset else "vllm-simple-eager"
        return f"{written} with write {tier.write} is no connector of vLLM"
    return ""


def preset_of(tier: Tier) -> str | None:
    """The connector preset that a tier's rules amount to; None where no connector has them.

    >>> preset_of(Tier.model_validate({"kind": "dram", "capacity": "1 TB", "write": "lazy"}))
    'vllm-simple-lazy'
    """
    preset = tier.preset or "vllm-simple-eager"
    if preset.startswith("vllm-simple"):
        if tier.write in (None, "eager", "lazy"):
            return preset if tier.write is None else f"vllm-simple-{tier.write}"
        return "vllm-native" if tier.write == "on-reuse" and tier.preset is None else None
    if preset == "vllm-native":
        return preset if tier.write in (None, "eager", "on-reuse") else None
    return preset if preset in ("lmcache", "mooncake-store") and tier.write in (None, "eager") else None


def said_tiers(scenario: Scenario) -> list[tuple[Tier, str]]:
    """Every tier with why it cannot be written; empty if it can.

    LMCache and Mooncake take their size from the environment, so that a command has one of each at most.
    """
    found: list[tuple[Tier, str]] = []
    sized_by_env: set[str | None] = set()
    for tier in scenario.tiers:
        why = tier_problem(tier) or ("" if tier.capacity else "a tier of capacity 0 is no tier")
        preset = preset_of(tier)
        if not why and preset in ("lmcache", "mooncake-store"):
            why = f"a command has one {preset} at most" if preset in sized_by_env else ""
            sized_by_env.add(preset)
        found.append((tier, why))
    return found


def write_connectors(scenario: Scenario) -> Written:
    """A scenario's tiers as ``--kv-transfer-config`` and environment of vLLM."""
    notes: list[FlagNote] = []
    configs: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    for i, (tier, why) in enumerate(said_tiers(scenario)):
        if why:
            notes.append(FlagNote(f"tiers.{i}", tier.kind, "not modelled", why))
            continue
        if tier.kind == "dram" and preset_of(tier) == "mooncake-store":
            why = "where the store's memory is: read back as pool"
            notes.append(FlagNote(f"tiers.{i}", tier.kind, "not modelled", why))
        if preset_of(tier) == "mooncake-store" and not tier.shared and scenario.num_replicas > 1:
            why = "engines at one master share the store: a private one needs a cache_prefix of its own"
            notes.append(FlagNote(f"tiers.{i}.shared", "false", "not modelled", why))
        name, extra, own = _written(tier, scenario)
        configs.append({"kv_connector": name, "kv_role": "kv_both",
                        **({"kv_connector_extra_config": extra} if extra else {})})
        env |= own
    if len(configs) > 1:
        several = {"kv_connector": "MultiConnector", "kv_role": "kv_both",
                   "kv_connector_extra_config": {"connectors": configs}}
        return Written(several, env, tuple(notes))
    return Written(configs[0] if configs else None, env, tuple(notes))


def _written(tier: Tier, scenario: Scenario) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Connector, its extra configuration, and environment of one tier."""
    preset, world, engines = preset_of(tier), scenario.hardware.num_gpus, scenario.layout.dp
    if preset == "lmcache":
        env = {"LMCACHE_MAX_LOCAL_CPU_SIZE": _lmcache_size(tier, scenario), "LMCACHE_LOCAL_CPU": "True"}
        return "LMCacheConnectorV1", {}, env
    if preset == "mooncake-store":
        return "MooncakeStoreConnector", {}, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": str(int(tier.capacity / world))}
    size = {"cpu_bytes_to_use": int(tier.capacity / engines)}
    if preset == "vllm-native":
        threshold = {"store_threshold": tier.reuse_threshold} if tier.write == "on-reuse" else {}
        return NATIVE, size | threshold, {}
    return SIMPLE, {**size, "lazy_offload": preset == "vllm-simple-lazy"}, {}


def said_capacity(tier: Tier, scenario: Scenario) -> float:
    """Capacity [bytes] that the written connector comes to: whole bytes of an engine or rank, LMCache to 6 decimals."""
    engines, world = scenario.layout.dp, scenario.hardware.num_gpus
    if preset_of(tier) == "lmcache":
        return float(_lmcache_size(tier, scenario)) * GIB * world
    share = world if preset_of(tier) == "mooncake-store" else engines
    return float(int(tier.capacity / share) * share)


def _lmcache_size(tier: Tier, scenario: Scenario) -> str:
    return f"{tier.capacity / scenario.hardware.num_gpus / GIB:.6f}".rstrip("0").rstrip(".")


def compact(data: Mapping[str, Any]) -> str:
    """JSON without spaces, as people write it in launch lines."""
    return json.dumps(data, separators=(",", ":"))
