"""Schemas of GPUs, nodes, storage devices and prices (``hardware_profiles/``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvsim.profiles.figure import (
    Bytes,
    BytesPerS,
    Count,
    FlopPerS,
    Frac,
    Hertz,
    Profile,
    Seconds,
    Strict,
    Usd,
    UsdPerByte,
    UsdPerHour,
    UsdPerKwh,
    UsdPerKwMonth,
    UsdPerMtok,
    Watts,
)

Lane = Literal["bf16", "fp8", "fp4"]
Architecture = Literal["ampere", "ada", "hopper", "blackwell", "blackwell-workstation", "rubin",
                       "cdna3", "cdna4", "cdna5", "tpu", "trainium", "ascend", "gaudi"]


NIC_EFFICIENCY = 0.71
"""Share of a NIC's rate that RDMA transfers between GPUs reach: Mooncake's three published points."""


class Link(Strict):
    """A link of one GPU; bandwidths are one direction.

    ``bandwidth`` is the nominal rate; ``to_gpu`` and ``from_gpu`` are what copies of many MiB reach
    (measured where somebody measured). ``both`` is the sum of both directions at once, if known.
    """

    type: str
    bandwidth: BytesPerS
    to_gpu: BytesPerS | None = None
    from_gpu: BytesPerS | None = None
    both: BytesPerS | None = None
    latency: Seconds | None = None


class ScaleUp(Strict):
    """The GPU-to-GPU fabric: bandwidth of one GPU in one direction, and how many GPUs it joins."""

    type: str
    bandwidth: BytesPerS
    domain: Count


class Reached(Strict):
    """What kvsim's microbenchmark (``kvsim calibrate --microbench``) reached on a GPU.

    ``hbm_read`` and ``hbm_copy`` are those of large arrays, ``weight_read`` that of the best matrix product of few
    rows, ``gemm_sustained`` a large bf16 product repeated for seconds; ``kernel_in_graph`` is the least time of a
    kernel in a graph, ``eager_launch`` what the host needs to launch one from Python.
    """

    hbm_read: BytesPerS
    hbm_copy: BytesPerS
    weight_read: BytesPerS
    gemm_sustained: FlopPerS
    kernel_in_graph: Seconds
    eager_launch: Seconds


class GpuProfile(Profile):
    """One GPU model (``kvsim/gpu/1``).

    ``flops`` are dense, by compute lane. ``num_sms`` x ``boost_clock`` bounds them by architecture, so that
    a sparse data-sheet figure cannot slip in. ``hbm_usable`` is what the driver reports, not the
    marketed size; ``engine_visible_frac`` is the share of it that an engine sees as its total. ``reached`` serves where
    an engine profile has no kernel that was measured on this GPU.
    """

    schema_: Literal["kvsim/gpu/1"] = Field(alias="schema")
    vendor: Literal["nvidia", "amd", "google", "aws", "huawei", "intel"]
    architecture: Architecture
    hbm_marketed: Bytes
    hbm_usable: Bytes
    engine_visible_frac: Frac
    hbm_bandwidth: BytesPerS
    flops: dict[Lane, FlopPerS]
    num_sms: Count | None = None
    boost_clock: Hertz | None = None
    scale_up: ScaleUp
    host_link: Link
    tdp: Watts
    reached: Reached | None = None


class HostMemory(Strict):
    """Host DRAM of one node; ``bandwidth`` is the sum over sockets, one direction."""

    capacity: Bytes
    available: Bytes | None = None
    bandwidth: BytesPerS | None = None


class LocalNvme(Strict):
    """Local flash of one node, all drives together."""

    capacity: Bytes
    read_bandwidth: BytesPerS
    write_bandwidth: BytesPerS | None = None
    num_drives: Count


class BuyingUnit(Strict):
    """The least that can be bought or rented: a node, a tray or a rack."""

    unit: Literal["node", "tray", "rack"]
    num_gpus: Count


class NodeProfile(Profile):
    """One server or rack tray (``kvsim/node/1``): what shares one host."""

    schema_: Literal["kvsim/node/1"] = Field(alias="schema")
    gpu: str
    num_gpus: Count
    buying_unit: BuyingUnit
    host_dram: HostMemory | None = None
    nvme: LocalNvme | None = None
    nic_bandwidth_per_gpu: BytesPerS | None = None
    power_all_in_per_gpu: Watts | None = None
    node_power_max: Watts | None = None


class StorageProfile(Profile):
    """A kind of memory or storage a tier can be made of (``kvsim/storage/1``)."""

    schema_: Literal["kvsim/storage/1"] = Field(alias="schema")
    medium: Literal["dram", "nvme", "pool"]
    capex: UsdPerByte
    read_bandwidth: BytesPerS | None = None
    write_bandwidth: BytesPerS | None = None
    latency: Seconds | None = None


class OwnedCost(Strict):
    """What owning a GPU costs: capital, its life, power and space; `kvsim.report.bill` makes $ per hour of it."""

    capex_per_gpu: dict[str, Usd]
    life_years: Count
    cost_of_capital: Frac
    electricity: UsdPerKwh
    pue: Frac
    colocation: UsdPerKwMonth


class PriceProfile(Profile):
    """Dated compute prices of one provider and basis (``kvsim/price/1``), $ per GPU-hour."""

    schema_: Literal["kvsim/price/1"] = Field(alias="schema")
    provider: str
    as_of: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    basis: Literal["owned", "contract", "on-demand"]
    term: str
    usd_per_gpu_hour: dict[str, UsdPerHour]
    owned: OwnedCost | None = None


class ApiPriceProfile(Profile):
    """What an API provider charges for one model (``kvsim/api-price/1``), $ per million tokens."""

    schema_: Literal["kvsim/api-price/1"] = Field(alias="schema")
    provider: str
    model: str
    as_of: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    input: UsdPerMtok
    cached_input: UsdPerMtok
    output: UsdPerMtok
    cache_write: UsdPerMtok | None = None
