"""The report of a run: stable JSON names, base units, everything needed to trace a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, cast

import numpy as np

from kvsim.engine.types import RunRecords, Timeline
from kvsim.memory.capacity import Capacity
from kvsim.report.classes import ClassUse
from kvsim.report.cost import Cost
from kvsim.report.disaggregation import DisaggregationUse
from kvsim.report.drafting import DraftUse
from kvsim.report.groups import GroupUse
from kvsim.report.kv_throughput import KvThroughput
from kvsim.report.ledger import LedgerEntry
from kvsim.report.limits import Limits
from kvsim.report.metrics import HitRate, Latency, Throughput
from kvsim.report.pipeline import PipelineUse
from kvsim.report.replicas import ClusterUse, ReplicaTrack
from kvsim.report.slo import ClassGoodput
from kvsim.report.transfers import TierUse
from kvsim.workload.readers.report import ReadReport


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which run this was.

    ``refusals`` gives the first few reasons why requests could never be served. ``wall_s`` is the only
    figure that differs between two equal runs.
    """

    num_requests: int
    num_unfinished: int
    num_refused: int
    simulated_s: float
    measured_from_s: float
    wall_s: float
    seed: int
    digest: str
    version: str
    refusals: tuple[str, ...] = ()
    profiles: dict[str, str] = field(default_factory=dict[str, str])
    counters: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one simulated scenario.

    Attributes
    ----------
    name : str
        The scenario's name.
    throughput, hit_rate, latency, cost, limits
        See `kvsim.report.metrics`, `kvsim.report.cost`, `kvsim.report.limits`.
    capacity : Capacity
        Pool and bytes of one replica.
    goodput_requests_per_s : float
        Finished requests per second that kept every limit of the scenario's SLO.
    goodput_by_class : mapping of str to ClassGoodput
        The same by traffic class.
    preemptions : int
        Over the whole run.
    run : RunInfo
        Seed, digest, versions, times.
    ledger : tuple of LedgerEntry
        Every figure of the profiles used, assumed first.
    scenario : dict
        The scenario as plain data; `Scenario.from_dict` reads it back.
    tiers : tuple of TierUse
        What the tiers below HBM did, nearest first.
    kv_throughput : tuple of KvThroughput
        KV bytes over prefill time by context length, of a prompt alone.
    cluster : ClusterUse or None
        What each replica did, where there are several.
    drafting : DraftUse or None
        Speculative drafts: accepted length and break-even; not in the JSON of runs without drafts.
    disaggregation : DisaggregationUse or None
        What prefill replicas handed over to decode replicas; not in the JSON of other runs.
    traffic_classes : mapping of str to ClassUse
        What each traffic class asked and got; only where the scenario has classes or limits, in the JSON too.
    groups : tuple of GroupUse
        Groups of unlike replicas; not in the JSON of runs whose replicas are alike.
    pipeline : PipelineUse or None
        Stages and their bubble; not in the JSON of runs without stages, or whose replicas differ.
    traces : tuple of ReadReport
        Traces of which rows were skipped, left out or adjusted; not in the JSON of runs without such.
    records, timeline, tracks
        Per-request columns and change points, of a cluster each replica's too; not part of the JSON.

    Examples
    --------
    >>> import kvsim
    >>> report = kvsim.simulate({"name": "tiny", "model": "llama-3.1-8b",
    ...     "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 10}, "concurrency": 2}})
    >>> report.run.num_requests, report.hit_rate.total
    (4, 0.0)
    """

    name: str
    throughput: Throughput
    hit_rate: HitRate
    latency: Latency
    capacity: Capacity
    cost: Cost
    goodput_requests_per_s: float
    preemptions: int
    limits: Limits
    run: RunInfo
    ledger: tuple[LedgerEntry, ...]
    scenario: dict[str, Any]
    records: RunRecords
    timeline: Timeline
    tiers: tuple[TierUse, ...] = ()
    kv_throughput: tuple[KvThroughput, ...] = ()
    goodput_by_class: Mapping[str, ClassGoodput] = field(default_factory=dict[str, ClassGoodput])
    cluster: ClusterUse | None = None
    drafting: DraftUse | None = None
    disaggregation: DisaggregationUse | None = None
    traffic_classes: Mapping[str, ClassUse] = field(default_factory=dict[str, ClassUse])
    groups: tuple[GroupUse, ...] = ()
    tracks: tuple[ReplicaTrack, ...] = ()
    pipeline: PipelineUse | None = None
    traces: tuple[ReadReport, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the stable names; nan and inf become None."""
        capacity = self.capacity
        return cast("dict[str, Any]", plain({
            "name": self.name,
            "throughput": self.throughput,
            "hit_rate": self.hit_rate,
            "latency": self.latency,
            "capacity": {
                "kv_tokens": capacity.kv_tokens, "num_blocks": capacity.num_blocks,
                "block_tokens": capacity.geometry.block_capacity_tokens, "max_concurrency": capacity.max_concurrency,
                "bytes_per_token": capacity.bytes_per_token,
                "state_bytes_per_sequence": capacity.state_bytes_per_sequence,
                "checkpoint_bytes": capacity.checkpoint_bytes, "max_model_len": capacity.max_model_len,
            },
            "cost": self.cost,
            "goodput": {"requests_per_s": self.goodput_requests_per_s, "by_class": {**self.goodput_by_class}},
            "preemptions": self.preemptions,
            "limits": self.limits,
            "tiers": self.tiers,
            "kv_throughput": self.kv_throughput,
            "cluster": self.cluster,
            **({"disaggregation": self.disaggregation} if self.disaggregation else {}),
            **({"traffic_classes": {**self.traffic_classes}} if self.traffic_classes else {}),
            **({"groups": self.groups} if self.groups else {}),
            **({"pipeline": self.pipeline} if self.pipeline else {}),
            **({"traces": [trace.to_dict() for trace in self.traces]} if self.traces else {}),
            **({"drafting": {**asdict(self.drafting), "speedup": self.drafting.speedup}} if self.drafting else {}),
            "run": self.run,
            "ledger": self.ledger,
            "scenario": self.scenario,
        }))

    def to_json(self) -> str:
        """`to_dict` as JSON text with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1, allow_nan=False)

    def _repr_html_(self) -> str:
        from kvsim.report.html import report_html

        return report_html(self)


NOT_AS_RECORDED = "Rows of traces that were not played as recorded"
"""Title of `trace_lines`."""


def trace_lines(reports: Iterable[Report]) -> list[str]:
    """What became of the rows of traces that several runs did not play as recorded, each line once.

    Examples
    --------
    >>> trace_lines([])
    []
    """
    return [*dict.fromkeys(line for report in reports for trace in report.traces for line in trace.lines())]


def plain(value: Any) -> Any:
    """Dataclasses, tuples and numpy scalars as JSON-ready data; nan and inf become None.

    >>> plain((1, float("nan")))
    [1, None]
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("list[Any]", value)]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
