"""An engine's log beside the prediction: the scenario with its pool, and why the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.errors import Problem, ScenarioError
from kvsim.interop.exporting import expressed
from kvsim.interop.importing import ImportOptions, import_args, scenario_yaml
from kvsim.interop.logs import EngineLog, version_tuple
from kvsim.memory.geometry import KvGeometry, LogFormula
from kvsim.profiles.store import ProfileStore
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario
from kvsim.units import gib

GRAPHS_COUNT_SINCE = (0, 21, 0)
"""vLLM version that first took CUDA graphs off the pool."""

_PARTS = {
    "HBM for the engine": ("HBM usable", "driver reserve", "left outside the engine"),
    "weights": ("weights",),
    "context, collectives": ("context, collectives",),
    "activation peak": ("latent prefill workspace", "logits", "activations"),
    "CUDA graphs": ("CUDA graphs",),
}
"""What a log tells apart -> lines of the budget."""


@dataclass(frozen=True, slots=True)
class PartCheck:
    """One part of a GPU's memory.

    ``predicted_bytes`` and ``logged_bytes`` (None: not logged) are signed as in the budget: what takes from the pool is
    negative. ``points`` is what the difference adds to the pool, in percent of the predicted one.
    """

    name: str
    predicted_bytes: float
    logged_bytes: float | None
    points: float


@dataclass(frozen=True, slots=True)
class LogCheck:
    """A log beside the prediction.

    Attributes
    ----------
    scenario : Scenario
        The scenario with the logged pool.
    log : EngineLog
        What was read.
    parts : tuple of PartCheck
        Their points and ``unexplained_points`` add up to ``points``.
    predicted_kv_bytes, logged_kv_bytes : float
        Pool of one GPU; nan where not known.
    points : float
        Logged over predicted pool, less one, in percent.
    unexplained_points : float
        What no logged part explains.
    notes : tuple of str
        How the pool was set, what differs in settings, what to mind.
    """

    scenario: Scenario
    log: EngineLog
    parts: tuple[PartCheck, ...]
    predicted_kv_bytes: float
    logged_kv_bytes: float
    points: float
    unexplained_points: float
    notes: tuple[str, ...]

    def yaml(self) -> str:
        """The scenario with the logged pool."""
        return scenario_yaml(self.scenario)

    def text(self) -> str:
        """The verdict, a line a part, and what was served."""
        engine = " ".join(filter(None, (self.log.engine, self.log.version)))
        lines = [f"{self.log.path}: {engine}", *self._verdict(), *(f"note: {n}" for n in self.notes)]
        served = traffic_text(self.log)
        return "\n".join([*lines, *([served] if served else [])])

    def _verdict(self) -> Iterator[str]:
        if math.isnan(self.points):
            yield "the log does not say how large the pool is"
        else:
            amount = f"{abs(self.points):.1f} % {'less' if self.points < 0 else 'more'} KV than predicted"
            yield f"your engine holds {amount}: {gib(self.logged_kv_bytes)} per GPU, not {gib(self.predicted_kv_bytes)}"
        if not any(p.logged_bytes is not None for p in self.parts):
            return
        yield f"  {'':<24}{'predicted':>12}{'logged':>14}{'explains':>18}"
        for part in self.parts:
            logged = "not logged" if part.logged_bytes is None else gib(part.logged_bytes)
            points = "" if part.logged_bytes is None or math.isnan(self.points) else f"{part.points:+.1f} points"
            yield f"  {part.name:<24}{gib(part.predicted_bytes):>12}{logged:>14}{points:>18}"
        if not math.isnan(self.points):
            unknown = [p.name for p in self.parts if p.logged_bytes is None]
            yield f"  {'not explained':<50}{self.unexplained_points:+11.1f} points" + (
                f" (with {', '.join(unknown)})" if unknown else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nan as None."""
        parts = [{"name": p.name, "predicted_bytes": p.predicted_bytes, "logged_bytes": p.logged_bytes,
                  "points": None if math.isnan(p.points) else p.points} for p in self.parts]
        numbers = {"predicted_kv_bytes": self.predicted_kv_bytes, "logged_kv_bytes": self.logged_kv_bytes,
                   "difference_points": self.points, "unexplained_points": self.unexplained_points}
        return {"engine": self.log.engine, "version": self.log.version, "logged": dict(self.log.values), "parts": parts,
                **{k: None if math.isnan(v) else v for k, v in numbers.items()}, "notes": list(self.notes),
                "metrics": self.log.metrics.to_dict(), "scenario": self.scenario.to_dict()}


def check_log(log: EngineLog, scenario: Scenario | None = None, options: ImportOptions | None = None, *,
              store: ProfileStore | None = None) -> LogCheck:
    """Compare a log with the prediction, and put its pool into the scenario.

    Parameters
    ----------
    log : EngineLog
        From `kvsim.interop.logs.read_log`.
    scenario : Scenario, optional
        What is thought to run; without it the log's own arguments are read, which needs ``options.gpu``.
    options : ImportOptions, optional
        As for `import_command`.
    store : ProfileStore, optional
        Where profiles are found.

    Returns
    -------
    LogCheck

    Raises
    ------
    ScenarioError
        No scenario is given and the log has no arguments, or the scenario cannot be resolved.

    Notes
    -----
    A part's points are ``100 (logged - predicted) / predicted pool`` with both signed as they act on the pool, so that
    the points of all parts and the unexplained ones sum to the pool's difference. vLLM takes CUDA graphs off the pool
    since 0.21, by its own estimate. SGLang leaves graphs and activations outside its static share.
    """
    chosen, notes = _scenario_of(log, scenario, options or ImportOptions(), store)
    pooled, how = _with_pool(chosen, log, store)
    resolved = resolve(pooled, store)
    predicted = resolved.budget.kv_bytes
    logged = _logged_bytes(log, resolved)
    points = 100 * (logged / predicted - 1) if predicted > 0 else math.nan
    parts = tuple(_parts(log, resolved))
    if _overridden(log):
        notes.append("the pool's size was ordered (--num-gpu-blocks-override): it says nothing about the prediction")
        points = math.nan
    known = math.fsum(p.points for p in parts if p.logged_bytes is not None)
    unexplained = points - known if not math.isnan(points) else math.nan
    return LogCheck(pooled, log, parts, predicted, logged, points, unexplained, (*notes, *how))


def _scenario_of(log: EngineLog, scenario: Scenario | None, options: ImportOptions,
                 store: ProfileStore | None) -> tuple[Scenario, list[str]]:
    """The scenario that the log is held against, and where their settings differ."""
    if scenario is None:
        if not log.args or log.engine is None:
            accepted = "a line 'non-default args: {...}' or 'server_args=ServerArgs(...)'"
            problem = Problem(log.path, "arguments", "", accepted, "--scenario names the scenario that ran")
            raise ScenarioError("the log does not say what was started", [problem])
        return import_args(log.engine, log.args, options, store).scenario, []
    if not log.args or log.engine is None:
        return scenario, []
    found = import_args(log.engine, log.args, ImportOptions(gpu=scenario.hardware.gpu, model=scenario.model), store)
    ours, theirs = (expressed(s, log.engine, store=store) for s in (scenario, found.scenario))
    differing = [f"{name}: the scenario {'leaves it open' if ours[name] is None else f'says {ours[name]}'}, "
                 f"the log says {theirs[name]}" for name in ours
                 if name not in ("kv_bytes_per_gpu", "num_blocks", "retention") and ours[name] != theirs[name]
                 and theirs[name] is not None]
    return scenario, differing


def _with_pool(scenario: Scenario, log: EngineLog, store: ProfileStore | None) -> tuple[Scenario, list[str]]:
    """The scenario with the pool that was logged: in blocks where they can be told, else in bytes."""
    resolved = resolve(_pool(scenario, num_blocks=10**9), store)
    blocks, how = _blocks_of(log, resolved)
    if blocks is not None:
        return _pool(scenario, num_blocks=blocks), [how]
    size = log.values.get("kv_bytes")
    if size is None:
        return scenario, []
    return _pool(scenario, kv_bytes_per_gpu=size), [f"engine.kv_bytes_per_gpu is the logged {gib(size)}"]


def _pool(scenario: Scenario, num_blocks: int | None = None, kv_bytes_per_gpu: float | None = None) -> Scenario:
    given = {"num_blocks": num_blocks, "kv_bytes_per_gpu": kv_bytes_per_gpu}
    return scenario.model_copy(update={"engine": scenario.engine.model_copy(update=given)})


def _overridden(log: EngineLog) -> bool:
    return bool(log.values.get("pool_override") or log.args.get("num_gpu_blocks_override"))


def _blocks_of(log: EngineLog, resolved: Resolved) -> tuple[int | None, str]:
    """Blocks of the pool, and how they were told."""
    given = log.values.get("pool_override") or log.args.get("num_gpu_blocks_override") or log.values.get("num_blocks")
    if given and int(given) >= 2:
        return int(given), f"engine.num_blocks is the logged {int(given):,}"
    tokens = int(log.values.get("kv_tokens", 0))
    longest = int(log.values.get("max_model_len", 0)) or resolved.limits.max_model_len
    formulas = dict.fromkeys((resolved.engine_profile.defaults.log_formula, "product", "uniform", "per-group"))
    for formula in formulas if tokens else ():
        blocks = _blocks_logging(resolved.capacity.geometry, tokens, longest, formula)
        if blocks is not None and _fits_bytes(log, resolved, blocks):
            return blocks, f"{blocks:,} blocks log exactly {tokens:,} tokens ({formula}): engine.num_blocks"
    if tokens and log.engine == "sglang" and "kv_bytes" not in log.values:
        blocks = tokens // resolved.capacity.geometry.block_capacity_tokens + 1
        return max(blocks, 2), f"{tokens:,} tokens in {max(blocks, 2):,} blocks: engine.num_blocks"
    return None, ""


def _blocks_logging(geometry: KvGeometry, tokens: int, longest: int, formula: LogFormula) -> int | None:
    """The fewest blocks for which an engine would log so many tokens; None if no number of blocks does."""
    per_block = {"uniform": geometry.block_capacity_tokens, "product": longest / geometry.blocks_for(longest),
                 "per-group": geometry.block_capacity_tokens / len(geometry.groups)}[formula]
    blocks = math.ceil(tokens / per_block)
    return blocks if blocks >= 2 and geometry.logged_tokens(blocks, longest, formula) == tokens else None


def _fits_bytes(log: EngineLog, resolved: Resolved, blocks: int) -> bool:
    """Whether so many blocks fit the logged bytes, of which two decimals of a GiB are known."""
    size = log.values.get("kv_bytes")
    if size is None:
        return True
    expected = resolved.capacity.geometry.num_blocks(size)
    slack = 0.006 * 2**30 / max(resolved.capacity.geometry.block_bytes) + len(resolved.capacity.geometry.groups)
    return abs(blocks - expected) <= slack


def _logged_bytes(log: EngineLog, resolved: Resolved) -> float:
    """Pool of one GPU as logged; nan where the log does not say."""
    size = log.values.get("kv_bytes")
    if size is not None:
        return size
    engine = resolved.scenario.engine
    if engine.num_blocks is None or not log.any_memory:
        return math.nan
    return engine.num_blocks * max(resolved.capacity.geometry.block_bytes)


def _parts(log: EngineLog, resolved: Resolved) -> Iterator[PartCheck]:
    lines = {line.name: line.num_bytes for line in resolved.budget.lines}
    pool = resolved.budget.kv_bytes
    for name, names in _PARTS.items():
        predicted = math.fsum(lines.get(n, 0.0) for n in names)
        logged = _logged_part(name, log, resolved)
        points = math.nan if logged is None or pool <= 0 else 100 * (logged - predicted) / pool
        yield PartCheck(name, predicted, logged, points)


def _logged_part(name: str, log: EngineLog, resolved: Resolved) -> float | None:
    """What the log says about a part, signed as it acts on the pool."""
    values = log.values
    if name == "HBM for the engine":
        total = values.get("total_bytes") if log.engine == "vllm" else None
        return None if total is None else total * values.get("share", resolved.limits.gpu_memory_utilization)
    if name == "CUDA graphs":
        return _graphs(log)
    key = {"weights": "weight_bytes", "context, collectives": "non_torch_bytes", "activation peak": "activation_bytes"}
    found = values.get(key[name])
    return None if found is None else -found


def _graphs(log: EngineLog) -> float | None:
    """CUDA graphs as far as they were taken off the pool."""
    if log.engine != "vllm":
        return None
    version = version_tuple(log.version)
    if version and version < GRAPHS_COUNT_SINCE and "graph_bytes" in log.values:
        return 0.0
    found = log.values.get("graph_estimate_bytes", log.values.get("graph_bytes"))
    return None if found is None else -found


_TRAFFIC = (("requests", "{:,.0f} requests"), ("prompt_tokens", "{:,.0f} prompt tokens"),
            ("output_tokens", "{:,.0f} output tokens"), ("hit_rate", "prefix hit rate {:.1%}"),
            ("external_hit_rate", "external {:.1%}"), ("preemptions", "{:,.0f} preemptions"),
            ("kv_usage", "KV in use {:.1%}"), ("running", "{:,.0f} running"), ("waiting", "{:,.0f} waiting"),
            ("ttft_s", "mean TTFT {:.3g} s"), ("tpot_s", "mean TPOT {:.3g} s"), ("e2e_s", "mean latency {:.3g} s"))


def traffic_text(log: EngineLog) -> str:
    """What the metrics say was served, in one line; empty without metrics."""
    found = log.metrics.traffic()
    said = [form.format(found[name]) for name, form in _TRAFFIC if name in found]
    return f"served so far: {', '.join(said)}" if said else ""

