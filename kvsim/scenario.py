"""What a user writes: a scenario as YAML, a dict or Python, with every mistake reported at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from kvsim.errors import Problem, ProfileError, ScenarioError, nearest
from kvsim.profiles.paths import data_root
from kvsim.profiles.problems import problems_of
from kvsim.profiles.yamlio import parse_yaml
from kvsim.units import parse

SCHEMA = "kvsim/scenario/1"
ROUTERS = ("round_robin", "least_loaded", "session_affinity", "prefix_aware", "sglang", "dynamo", "llm_d",
           "power_of_two")


def _quantity(dimension: str, bare: str | None = None) -> Any:
    return BeforeValidator(lambda given: given if given is None else parse(given, dimension, bare=bare))


Bytes = Annotated[float, _quantity("B", "B"), Field(gt=0)]
BytesPerSecond = Annotated[float, _quantity("B/s", "B/s"), Field(ge=0)]
Seconds = Annotated[float, _quantity("s", "s"), Field(ge=0)]
PositiveSeconds = Annotated[float, _quantity("s", "s"), Field(gt=0)]
UsdPerHour = Annotated[float, _quantity("USD/h", "USD/h"), Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Frac = Annotated[float, Field(gt=0, le=1)]
Percentile = Literal["mean", "p50", "p90", "p95", "p99"]


class Part(BaseModel):
    """Base of the parts of a scenario: unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class Hardware(Part):
    """GPUs of one replica; ``node`` overrides the node profile that is looked up by GPU."""

    gpu: str
    num_gpus: Positive
    node: str | None = None


class LayoutPart(Part):
    """Parallel degrees of one replica; see `kvsim.layout.Layout`."""

    tp: Positive = 1
    pp: Positive = 1
    ep: Positive = 1
    dp: Positive = 1
    dcp: Positive = 1


class LinearStep(Part):
    """Step time with given coefficients instead of the physics model."""

    kind: Literal["linear"]
    base_s: Seconds
    per_prefill_token_s: Seconds
    per_decode_seq_s: Seconds


class Engine(Part):
    """Serving engine settings; None takes the engine profile's default for the hardware.

    ``kv_bytes_per_gpu`` or ``num_blocks`` (null block included) replace the predicted pool by a logged one.
    ``calibration`` names a file that ``kvsim calibrate`` wrote.
    ``retention_interval``: 0 = checkpoints at prompt ends and junctions, N = also every N tokens, "dense".
    """

    profile: str = "vllm-day0"
    kv_dtype: Literal["bf16", "fp8", "fp8_ds_mla"] = "bf16"
    gpu_memory_utilization: Frac | None = None
    max_model_len: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_num_seqs: Positive | None = None
    prefix_caching: bool = True
    retention_interval: NonNegative | Literal["dense"] = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    eviction: Literal["lru"] = "lru"
    fidelity: Literal["core", "reference"] = "core"
    draft: str = "none"
    kv_bytes_per_gpu: Bytes | None = None
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    block_tokens: Positive | None = None
    step_time: LinearStep | None = None
    calibration: str | None = None

    @model_validator(mode="after")
    def _one_pool(self) -> Engine:
        if self.kv_bytes_per_gpu is not None and self.num_blocks is not None:
            raise ValueError("kv_bytes_per_gpu and num_blocks both set; accepted: one of them")
        return self


class Tier(Part):
    """A cache tier below HBM.

    ``capacity`` is that of the whole replica. Bandwidths are those of one GPU's link; None takes what the GPU's
    profile says of its host link.
    """

    kind: Literal["dram", "nvme", "pool"]
    capacity: Annotated[float, _quantity("B", "B"), Field(ge=0)]
    write: Literal["eager", "lazy", "on-eviction", "none"] = "eager"
    read_bandwidth_per_gpu: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] | None = None
    write_bandwidth_per_gpu: Annotated[float, _quantity("B/s", "B/s"), Field(gt=0)] | None = None


class FixedLengths(Part):
    """Requests of given lengths that share nothing; sigma > 0 makes them lognormal around these medians."""

    num_requests: Positive
    input_tokens: Positive
    output_tokens: Positive
    input_sigma: Annotated[float, Field(ge=0)] = 0.0
    output_sigma: Annotated[float, Field(ge=0)] = 0.0


class WorkloadPart(Part):
    """Traffic: exactly one of a preset, a trace file or fixed lengths.

    ``concurrency`` counts live session trees (parent and sub-agents, thinking or not) of a preset or
    a closed-loop trace, and clients of fixed lengths.
    """

    preset: str | None = None
    trace: str | None = None
    fixed: FixedLengths | None = None
    mode: Literal["open", "closed"] | None = None
    concurrency: Positive | None = None
    rate_per_s: Annotated[float, Field(gt=0)] | None = None
    duration_s: PositiveSeconds | None = None
    warmup_s: Seconds = 0.0
    max_sessions: Positive | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadPart:
        given = [n for n in ("preset", "trace", "fixed") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'none of them'}; accepted: exactly one of preset, trace, fixed")
        if self.preset is not None and self.duration_s is None:
            raise ValueError("a preset without duration_s; accepted: both, since its sessions never run out")
        return self


class OwnedPart(Part):
    """How owned GPUs are paid for when the cost is built from capital and power; see `kvsim.report.bill.OwnedTerms`."""

    utilisation_frac: Frac = 1.0
    opex_frac: Annotated[float, Field(ge=0)] = 0.05
    site: Literal["colocation", "self-built"] = "colocation"


class Prices(Part):
    """What the hardware costs, what the tokens earn.

    ``compute`` and ``api`` name price profiles. ``owned`` builds the cost from the profile's capital and power
    instead of taking its published $ per hour. GPUs are paid for in whole buying units unless ``whole_units`` is false.
    Tiers cost the capital of ``tier_profiles`` by kind, or the $ per hour and replica of ``tier_usd_per_hour``.
    ``revenue`` and ``attribution`` choose the headline's; see `kvsim.report.cost`.
    """

    compute: str = "rental-2026-09"
    api: str | None = None
    owned: OwnedPart | None = None
    whole_units: bool = True
    tier_usd_per_hour: dict[Literal["dram", "nvme", "pool"], UsdPerHour] = Field(default_factory=dict[Any, float])
    tier_profiles: dict[Literal["dram", "nvme", "pool"], str] = Field(default_factory=dict[Any, str])
    network_usd_per_gpu_hour: UsdPerHour = 0.0
    revenue: Literal["hits", "ideal_hits", "demand"] = "hits"
    only_slo_earns: bool = True
    attribution: Literal["price", "resource_time"] = "price"


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


class SloLimits(Part):
    """Limits [s] on statistics, e.g. ``ttft_s: {p95: 10}``."""

    ttft_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    tpot_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])
    e2e_s: dict[Percentile, PositiveSeconds] = Field(default_factory=dict[Percentile, float])


class Slo(SloLimits):
    """Service level objectives; ``by_class`` replaces them for named traffic classes."""

    by_class: dict[str, SloLimits] = Field(default_factory=dict[str, SloLimits])


class PlanHardware(Part):
    """One kind of replica that a plan may use; ``node`` as in `Hardware`."""

    gpu: str
    num_gpus: Positive
    node: str | None = None
    layouts: Annotated[tuple[LayoutPart, ...], Field(min_length=1)]


class PlanPart(Part):
    """What `kvsim.plan.plan` searches, and within which limits.

    Every combination of a ``hardware`` entry's layouts, ``kv_dtypes`` and ``tiers`` is a configuration (None: the scenario's
    own). ``live_sessions`` is the demand when no ``demand`` is stated. ``spares`` are replicas that serve nothing until
    another fails. ``inventory`` limits GPUs by name, ``max_power`` what the site carries.
    """

    hardware: tuple[PlanHardware, ...] | None = None
    kv_dtypes: tuple[Literal["bf16", "fp8", "fp8_ds_mla"], ...] | None = None
    tiers: tuple[tuple[Tier, ...], ...] | None = None
    live_sessions: Positive | None = None
    max_sessions_per_replica: Positive = 64
    spares: NonNegative = 0
    inventory: dict[str, NonNegative] = Field(default_factory=dict[str, int])
    max_power: Annotated[float, _quantity("W"), Field(gt=0)] | None = None
    max_usd_per_hour: UsdPerHour | None = None
    replications: Positive = 1


class Study(Part):
    """Repeat the scenario at several numbers of live sessions, each with several seeds."""

    concurrency: Annotated[tuple[Positive, ...], Field(min_length=1)]
    replications: Positive = 1


class Scenario(Part):
    """One what-if, as written; `kvsim.resolve.resolve` turns it into numbers.

    Examples
    --------
    >>> s = Scenario.from_dict({"schema": "kvsim/scenario/1", "name": "x", "model": "kimi-k3",
    ...     "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
    ...     "workload": {"preset": "agentx-v1", "concurrency": 8, "duration_s": "10 min"}})
    >>> s.workload.duration_s
    600.0
    """

    schema_: Literal["kvsim/scenario/1"] = Field(default=SCHEMA, alias="schema")
    name: str
    description: str = ""
    model: str
    hardware: Hardware
    layout: LayoutPart = LayoutPart()
    engine: Engine = Engine()
    tiers: tuple[Tier, ...] = ()
    workload: WorkloadPart
    prices: Prices = Prices()
    slo: Slo = Slo()
    demand: Demand | None = None
    plan: PlanPart | None = None
    replicas: Positive = 1
    router: Literal["round_robin", "least_loaded", "session_affinity", "prefix_aware", "sglang", "dynamo", "llm_d",
                    "power_of_two"] = "round_robin"
    seed: NonNegative = 0
    study: Study | None = None
    _origin: str = PrivateAttr(default="scenario")

    def __eq__(self, other: object) -> bool:
        """Equal if everything written is equal, wherever it was written."""
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "scenario") -> Scenario:
        """Check plain data and build a scenario.

        Raises
        ------
        ScenarioError
            With every problem found: unknown keys, missing units, wrong types, values out of range.
        """
        try:
            scenario = cls.model_validate(data)
        except ValidationError as err:
            raise ScenarioError(f"{where} is not a valid scenario", problems_of(err, where, cls, data)) from None
        scenario._origin = where
        return scenario

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back to an equal scenario."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def origin(self) -> str:
        """Where it was written, for messages: a path (and its ``--set``), else "scenario"."""
        return self._origin

    @property
    def digest(self) -> str:
        """Digest of everything that decides the result, as 16 hex digits."""
        data = self.to_dict()
        text = json.dumps({k: v for k, v in data.items() if k not in ("name", "description", "plan")}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def at(self, concurrency: int, seed: int) -> Scenario:
        """This scenario at another number of live sessions and seed, without its study."""
        workload = self.workload.model_copy(update={"concurrency": concurrency})
        return self.model_copy(update={"workload": workload, "seed": seed, "study": None})


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a path, a shipped name or plain data.

    Parameters
    ----------
    source : str, Path or mapping
        YAML file, name of a shipped scenario (``"k3-b300-study"``), or plain data.
    overrides : sequence of str
        ``"engine.kv_dtype=fp8"``; list items by number (``tiers.0.capacity=2TB``); values are YAML.

    Raises
    ------
    ScenarioError
        Not found (with the nearest shipped name), not YAML, or any number of wrong fields.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "scenario"
    else:
        path = find_scenario(source)
        data, where = parse_yaml(_read(path), str(path), ScenarioError), str(path)
    for text in overrides:
        data = apply_override(data, text)
    return Scenario.from_dict(data, " ".join([where, *(f"--set {text}" for text in overrides)]))


@contextmanager
def naming(scenario: Scenario, field: str) -> Generator[None]:
    """Let an unknown profile be reported as the field of the scenario that names it.

    Raises
    ------
    ProfileError
        What was raised inside, with the scenario's origin and `field` where only a kind of profile was named.
    """
    try:
        yield
    except ProfileError as err:
        problems = [replace(p, where=scenario.origin, field=field) if p.where.endswith(" profile") and not p.field
                    else p for p in err.problems]
        raise ProfileError(err.message, problems) from None


def shipped_scenarios() -> dict[str, Path]:
    """Name -> path of the scenarios that come with kvsim."""
    paths = sorted((data_root() / "scenarios").glob("*.yaml"))
    return {p.stem: p for p in paths if p.read_text(encoding="utf-8").startswith(f"schema: {SCHEMA}")}


def find_scenario(source: str | Path) -> Path:
    """Path of a scenario given as a path or a shipped name."""
    shipped = shipped_scenarios()
    if str(source) in shipped:
        return shipped[str(source)]
    path = Path(source)
    if path.is_file():
        return path
    accepted = f"a YAML file, or one of {', '.join(shipped)}"
    raise ScenarioError("no such scenario", [Problem("scenario", "", repr(str(source)), accepted,
                                                     nearest(path.stem, list(shipped)))])


def _read(path: Path) -> str:
    """Text of a scenario file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        problem = Problem(str(path), "", err.strerror or type(err).__name__, "a readable YAML file")
    except UnicodeDecodeError as err:
        problem = Problem(str(path), "", f"byte {err.start} is not UTF-8", "YAML as UTF-8 text")
    raise ScenarioError(f"cannot read {path}", [problem])


def apply_override(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Plain data with one ``a.b.0.c=value`` applied; the input is not changed.

    >>> apply_override({"engine": {"kv_dtype": "bf16"}}, "engine.kv_dtype=fp8")
    {'engine': {'kv_dtype': 'fp8'}}
    """
    path, found, value = text.partition("=")
    if not found or not path:
        raise ScenarioError("cannot apply --set", [Problem("--set", "", repr(text), "path=value, e.g. seed=3")])
    parsed: Any = parse_yaml(f"value: {value}", f"--set {path}", ScenarioError)["value"]
    return _with(data, path.split("."), parsed, text)


def with_value(data: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Plain data with one field set, named by its dotted path; the input is not changed.

    >>> with_value({"tiers": [{"kind": "dram"}]}, "tiers.0.write", "lazy")
    {'tiers': [{'kind': 'dram', 'write': 'lazy'}]}
    """
    return _with(data, field.split("."), value, field)


def _with(part: Any, path: list[str], value: Any, text: str) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(part, list):
        items: list[Any] = list(part)  # pyright: ignore[reportUnknownArgumentType]
        if not head.isdigit() or int(head) > len(items):
            accepted = f"a position from 0 to {len(items)}"
            raise ScenarioError("cannot apply --set", [Problem("--set", text, repr(head), accepted)])
        at = int(head)
        return items[:at] + [_with(items[at] if at < len(items) else {}, rest, value, text)] + items[at + 1:]
    inner: dict[str, Any] = dict(part) if isinstance(part, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType]
    return {**inner, head: _with(inner.get(head), rest, value, text)}
