"""Metrics of a running engine in Prometheus' text exposition: counters, gauges, and the cache's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.interop.shell import EngineName

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+\w.]+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MAX_SAMPLES = 100_000
"""More are passed over: an engine has a few hundred."""

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens_total",), "output_tokens": ("generation_tokens_total",),
    "requests": ("request_success_total", "num_requests_total"),
    "preemptions": ("num_preemptions_total", "num_retracted_requests_total"),
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total"),
    "external_queries": ("external_prefix_cache_queries_total",),
    "external_hits": ("external_prefix_cache_hits_total",),
    "draft_steps": ("spec_decode_num_drafts_total",), "accepted": ("spec_decode_num_accepted_tokens_total",),
    "running": ("num_requests_running", "num_running_reqs"), "waiting": ("num_requests_waiting", "num_queue_reqs"),
}
_GAUGES = {"kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage"),
           "hit_rate": ("cache_hit_rate",)}
_MEANS = {"ttft_s": ("time_to_first_token_seconds",), "tpot_s": ("time_per_output_token_seconds",
          "request_time_per_output_token_seconds", "inter_token_latency_seconds"), "e2e_s": (
          "e2e_request_latency_seconds",)}


@dataclass(slots=True)
class Metrics:
    """Samples of one scrape; counters of several ranks or engines are summed.

    ``samples``: name without ``vllm:`` or ``sglang:`` -> sum over label sets; ``highest``: the largest of them;
    ``cache``: labels of ``cache_config_info``.
    """

    samples: dict[str, float] = field(default_factory=dict[str, float])
    highest: dict[str, float] = field(default_factory=dict[str, float])
    cache: dict[str, str] = field(default_factory=dict[str, str])
    engine: EngineName | None = None

    def values(self) -> dict[str, float]:
        """Memory figures: ``num_blocks``, ``block_tokens``, ``kv_bytes``, ``kv_tokens``, ``share``, as in a log."""
        names = {"num_gpu_blocks": "num_blocks", "block_size": "block_tokens", "kv_cache_memory_bytes": "kv_bytes",
                 "gpu_memory_utilization": "share", "num_gpu_blocks_override": "pool_override",
                 "kv_cache_size_tokens": "kv_tokens", "kv_cache_max_concurrency": "max_concurrency"}
        found = {ours: _float(self.cache.get(theirs)) for theirs, ours in names.items()}
        found["kv_tokens"] = found["kv_tokens"] or self.highest.get("max_total_num_tokens")
        found["max_model_len"] = self.highest.get("context_len")
        return {name: value for name, value in found.items() if value}

    def traffic(self) -> dict[str, float]:
        """What the engine has served: counts, hit rates [share of prompt tokens asked for], mean latencies [s]."""
        found: dict[str, float] = {}
        for name, theirs in _COUNTERS.items():
            known = [self.samples[t] for t in theirs if t in self.samples]
            found |= {name: known[0]} if known else {}
        for name, theirs in _GAUGES.items():
            known = [self.highest[t] for t in theirs if t in self.highest]
            found |= {name: known[0]} if known else {}
        asked = found.get("prefix_queries") or (found.get("prompt_tokens") if "prefix_hits" in found else None)
        if asked:
            found["hit_rate"] = found.get("prefix_hits", 0.0) / asked
            found["external_hit_rate"] = found.get("external_hits", 0.0) / asked
        for name, theirs in _MEANS.items():
            means = [mean for t in theirs if (mean := self._mean(t)) is not None]
            found |= {name: means[0]} if means else {}
        return found

    def _mean(self, name: str) -> float | None:
        count = self.samples.get(f"{name}_count")
        return self.samples.get(f"{name}_sum", 0.0) / count if count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"engine": self.engine, "cache_config": dict(self.cache), "traffic": self.traffic()}


def read_sample(line: str, into: Metrics) -> None:
    """Read one line of the exposition; lines that are none are passed over.

    >>> m = Metrics()
    >>> read_sample('vllm:num_preemptions_total{engine="0"} 3.0', m)
    >>> m.samples
    {'num_preemptions_total': 3.0}
    """
    match = _SAMPLE.match(line)
    if match is None or len(into.samples) >= MAX_SAMPLES:
        return
    prefix, _, name = match["name"].partition(":") if ":" in match["name"] else match["name"].partition("_")
    value = _float(match["value"])
    if name.endswith("_bucket") or value is None or value != value:
        return
    into.engine = "sglang" if prefix == "sglang" else "vllm"
    if name == "cache_config_info":
        into.cache |= _labels(match["labels"] or "")
        return
    into.samples[name] = into.samples.get(name, 0.0) + value
    into.highest[name] = max(value, into.highest.get(name, value))


def _labels(text: str) -> Mapping[str, str]:
    return {name: value for name, value in _LABEL.findall(text) if value not in ("None", "null", "")}


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
