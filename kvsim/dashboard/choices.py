"""What the controls say: one record that turns into a scenario and into the page's address, and back.

No Streamlit here, so that every rule can be tested without a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast, get_args

from kvsim.dashboard.uploads import shelf
from kvsim.errors import Problem, nearest
from kvsim.profiles.store import ProfileStore
from kvsim.scenario import RouterName, Scenario, load_scenario
from kvsim.workload.presets import PRESETS

REFERENCE = "k3-b300-study"
"""The shipped scenario that the dashboard opens with; whatever no control sets stays as written there."""
OFFLOAD = "k3-b300-dram"
"""The shipped scenario whose DRAM tier the switch offers."""

DURATION_S, WARMUP_S, SEEDS = 1200, 300, 3
"""Shorter than a study's, so that the curve appears in seconds: enough for about a hundred requests a run."""

GIB, GB = 2.0**30, 1e9
NO_API_PRICE = "none"
PREDICTED, LOGGED = "predicted", "logged"
CLOSED, OPEN = "closed", "open"

NUM_GPUS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 72)
KV_DTYPES = ("bf16", "fp8", "fp8_ds_mla")
MODEL_LENGTHS = (None, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
BATCHED_TOKENS = (None, 2_048, 4_096, 8_192, 16_384, 32_768)
NUM_SEQS = (None, 8, 16, 32, 64, 128, 256, 512, 1_024)
CURVE_POINTS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128)

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType({
    "gpu_memory_utilization": (0.5, 0.99), "logged_gib": (0.5, 1024.0), "sessions": (1, 128),
    "duration_s": (60, 14_400), "warmup_s": (0, 7_200), "seeds": (1, 11), "dram_gb": (0.0, 100_000.0),
    "ttft_p95_s": (0.0, 3_600.0), "tpot_p95_ms": (0.0, 10_000.0), "replicas": (1, 32),
    "rate_factor": (0.01, 100.0), "usd_per_gpu_hour": (0.0, 1_000.0), "lost_s": (0, 14_400), "back_s": (0, 14_400),
})
"""Smallest and largest value of the controls that take any number."""

MACHINE = ("model", "gpu", "num_gpus", "tp", "dp", "ep", "dcp", "profile", "gpu_memory_utilization", "max_model_len",
           "max_num_batched_tokens", "max_num_seqs")
"""What a logged pool belongs to: on any other machine the log says nothing."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The value of every control; names are those of a scenario where it has them.

    ``pool`` is "predicted" or "logged", ``logged_gib`` the logged pool [GiB per GPU]. ``trace`` names an
    uploaded trace in place of the preset ("" for none), ``pace`` how it is played. ``sessions`` is the number of
    live sessions that the verdict is about, ``curve`` the further ones that are simulated. ``seeds`` counts
    replications of each. ``dram`` switches a host DRAM tier of ``dram_gb`` [GB for the whole replica] on; one of 0 GB
    is none. ``replicas`` counts machines of that kind behind ``router`` (None: the usual one); on the page Cluster the
    first of them stops ``lost_s`` into the measured time and is back at ``back_s`` [s] (0: never). ``usd_per_gpu_hour``
    stands in for the price profile's rent. ``ttft_p95_s`` [s] and ``tpot_p95_ms`` [ms] are the SLO, 0 for no limit.
    None means the engine profile's or the model's own value.
    """

    model: str
    gpu: str
    num_gpus: int
    tp: int
    dp: int
    ep: int
    dcp: int
    profile: str
    kv_dtype: str
    gpu_memory_utilization: float
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    prefix_caching: bool
    pool: str
    logged_gib: float
    dram: bool
    dram_gb: float
    replicas: int
    router: str | None
    lost_s: int
    back_s: int
    preset: str
    trace: str
    pace: str
    rate_factor: float
    sessions: int
    curve: tuple[int, ...]
    duration_s: int
    warmup_s: int
    seeds: int
    compute: str
    usd_per_gpu_hour: float | None
    api: str
    ttft_p95_s: float
    tpot_p95_ms: float

    @property
    def pp(self) -> int:
        """Pipeline stages: the GPUs that tensor and attention data parallelism leave."""
        return self.num_gpus // (self.tp * self.dp)

    @property
    def is_open(self) -> bool:
        """Whether requests come at the times of a trace, so that no number of live sessions is chosen."""
        return bool(self.trace) and self.pace == OPEN

    @property
    def traffic(self) -> str:
        """What the traffic is called: the preset, or the trace's file."""
        kept = shelf().find(self.trace)
        return kept.file_name if kept else self.preset

    @property
    def machine(self) -> tuple[Any, ...]:
        """What a logged pool belongs to."""
        return tuple(getattr(self, name) for name in MACHINE)

    @property
    def points(self) -> tuple[int, ...]:
        """Numbers of live sessions to simulate, ascending."""
        return tuple(sorted({*self.curve, self.sessions}))


@lru_cache(maxsize=4)
def default_choices(store: ProfileStore) -> Choices:
    """The choices that `REFERENCE` makes, with the dashboard's shorter runs.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> choices = default_choices(default_store())
    >>> choices.gpu, choices.sessions, choices.pool, choices.curve
    ('b300-sxm', 8, 'logged', (4, 8, 16, 24))
    """
    scenario = load_scenario(REFERENCE)
    engine, workload, layout = scenario.engine, scenario.workload, scenario.layout
    offload = load_scenario(OFFLOAD).tiers[0]
    model, logged = store.get("model", scenario.model), engine.kv_bytes_per_gpu
    own_length = engine.max_model_len == model.max_positions
    return Choices(
        model=model.name, gpu=store.get("gpu", scenario.hardware.gpu).name, num_gpus=scenario.hardware.num_gpus,
        tp=layout.tp, dp=layout.dp, ep=layout.ep, dcp=layout.dcp, profile=engine.profile, kv_dtype=engine.kv_dtype,
        gpu_memory_utilization=engine.gpu_memory_utilization or 0.9,
        max_model_len=None if own_length else engine.max_model_len,
        max_num_batched_tokens=engine.max_num_batched_tokens, max_num_seqs=engine.max_num_seqs,
        prefix_caching=engine.prefix_caching, pool=LOGGED if logged else PREDICTED, logged_gib=(logged or GIB) / GIB,
        dram=bool(scenario.tiers), dram_gb=offload.capacity / GB,
        replicas=scenario.num_replicas, router=scenario.router.kind if scenario.router else None, lost_s=0,
        back_s=0, preset=workload.preset or next(iter(PRESETS)), trace="", pace=CLOSED, rate_factor=1.0,
        sessions=workload.concurrency or 8,
        curve=scenario.study.concurrency if scenario.study else (), duration_s=DURATION_S, warmup_s=WARMUP_S,
        seeds=SEEDS, compute=scenario.prices.compute, usd_per_gpu_hour=None,
        api=scenario.prices.api or NO_API_PRICE,
        ttft_p95_s=scenario.slo.ttft_s.get("p95", 0.0), tpot_p95_ms=1e3 * scenario.slo.tpot_s.get("p95", 0.0),
    )


def options(choices: Choices, store: ProfileStore) -> dict[str, tuple[Any, ...]]:
    """What each control that offers a list accepts, given the others."""
    group = choices.tp * choices.dp
    return {
        "model": store.names("model"), "gpu": store.names("gpu"), "num_gpus": NUM_GPUS,
        "tp": divisors(choices.num_gpus), "dp": divisors(choices.num_gpus // choices.tp),
        "ep": (1, group) if group > 1 and store.get("model", choices.model).moe else (1,),
        "dcp": divisors(choices.tp), "profile": store.names("engine"), "kv_dtype": KV_DTYPES,
        "max_model_len": MODEL_LENGTHS, "max_num_batched_tokens": BATCHED_TOKENS, "max_num_seqs": NUM_SEQS,
        "pool": (PREDICTED, LOGGED), "router": (None, *get_args(RouterName)), "preset": tuple(PRESETS),
        "pace": paces(choices.trace),
        "compute": compute_prices(choices.gpu, store), "api": api_prices(choices.model, store),
    }


def paces(trace: str) -> tuple[str, ...]:
    """How an uploaded trace can be played: live sessions or clients, or at its own times where it has a clock."""
    kept = shelf().find(trace)
    return (CLOSED, OPEN) if kept and kept.has_clock else (CLOSED,)


def compute_prices(gpu: str, store: ProfileStore) -> tuple[str, ...]:
    """Price profiles that cover a GPU; all of them when none does."""
    names = store.names("price")
    return tuple(n for n in names if gpu in store.get("price", n).usd_per_gpu_hour) or names


def api_prices(model: str, store: ProfileStore) -> tuple[str, ...]:
    """API price profiles of a model, the one with the model's name as an alias first; "none" when there is none."""
    found = [n for n in store.names("api-price") if store.get("api-price", n).model == model]
    first = store.get("api-price", model).name if store.knows("api-price", model) else ""
    return tuple(sorted(found, key=lambda n: n != first)) or (NO_API_PRICE,)


def reconcile(choices: Choices, previous: Choices, store: ProfileStore) -> Choices:
    """Choices that fit together: what another choice has ruled out falls back to the nearest that is possible.

    Parameters
    ----------
    choices : Choices
        As the controls say.
    previous : Choices
        As they were; on another machine than before, the pool is a predicted one, unless it is the logged machine.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> before = default_choices(default_store())
    >>> after = reconcile(replace(before, num_gpus=4), before, default_store())
    >>> after.tp, after.pp, after.pool
    (4, 1, 'predicted')
    """
    if choices.trace and shelf().find(choices.trace) is None:
        choices = replace(choices, trace="")
    for name in ("tp", "dp", "ep", "dcp", "pace", "compute", "api"):
        accepted = options(choices, store)[name]
        if getattr(choices, name) not in accepted:
            choices = replace(choices, **{name: _fallback(name, accepted, store)})
    if (choices.gpu, choices.compute) != (previous.gpu, previous.compute):
        choices = replace(choices, usd_per_gpu_hour=None)
    if choices.machine != previous.machine:
        return replace(choices, pool=own_pool(choices, store))
    return choices


def own_pool(choices: Choices, store: ProfileStore) -> str:
    """The pool that a machine has unless the user says otherwise: logged where the reference scenario logs it."""
    default = default_choices(store)
    return default.pool if choices.machine == default.machine else PREDICTED


def _fallback(name: str, accepted: tuple[Any, ...], store: ProfileStore) -> Any:
    """The default where it is possible, else the largest tensor-parallel group in a node, or the first."""
    default = getattr(default_choices(store), name)
    if default in accepted:
        return default
    return max((n for n in accepted if n <= default), default=accepted[0]) if name == "tp" else accepted[0]


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def scenario_of(choices: Choices) -> Scenario:
    """The scenario that the choices describe, at ``sessions`` live sessions and the first seed.

    Raises
    ------
    ScenarioError
        A value that no scenario takes.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> scenario_of(default_choices(default_store())).engine.kv_bytes_per_gpu / GIB
    42.23
    """
    data = load_scenario(REFERENCE).to_dict()
    del data["study"], data["engine"]["kv_bytes_per_gpu"]
    names = ("profile", "kv_dtype", "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens",
             "max_num_seqs", "prefix_caching")
    engine: dict[str, Any] = {**data["engine"], **{n: getattr(choices, n) for n in names}}
    if choices.pool == LOGGED:
        engine["kv_bytes_per_gpu"] = f"{choices.logged_gib:g} GiB"
    return Scenario.from_dict({
        **data, "name": f"{choices.model} on {choices.num_gpus} x {choices.gpu}", "description": "",
        "model": choices.model, "hardware": {"gpu": choices.gpu, "num_gpus": choices.num_gpus},
        "layout": {n: getattr(choices, n) for n in ("tp", "pp", "ep", "dp", "dcp")}, "engine": engine,
        "tiers": _tiers(choices),
        "workload": {**_traffic(choices), "duration_s": choices.duration_s, "warmup_s": choices.warmup_s},
        "replicas": choices.replicas, "router": choices.router,
        "prices": {"compute": choices.compute, "api": None if choices.api == NO_API_PRICE else choices.api,
                   **_stated_price(choices)},
        "slo": _slo(choices),
    }, "controls")


def _traffic(choices: Choices) -> dict[str, Any]:
    """Live sessions of a preset or an uploaded trace, or the trace at its own times."""
    kept = shelf().find(choices.trace)
    if kept is None:
        return {"preset": choices.preset, "concurrency": choices.sessions}
    if choices.is_open:
        return {"trace": str(kept.path), "mode": OPEN, "rate_factor": choices.rate_factor}
    return {"trace": str(kept.path), "mode": CLOSED, "concurrency": choices.sessions}


def _stated_price(choices: Choices) -> dict[str, Any]:
    """The rent of the chosen GPU, where it is stated."""
    return {} if choices.usd_per_gpu_hour is None else {"usd_per_gpu_hour": {choices.gpu: choices.usd_per_gpu_hour}}


def _slo(choices: Choices) -> dict[str, dict[str, float]]:
    """The limits that are set."""
    limits = {"ttft_s": choices.ttft_p95_s, "tpot_s": round(choices.tpot_p95_ms / 1e3, 9)}
    return {name: {"p95": limit} for name, limit in limits.items() if limit}


def _tiers(choices: Choices) -> list[dict[str, Any]]:
    """The DRAM tier as the shipped scenario writes it, but of the chosen capacity; none when switched off or empty."""
    if not choices.dram or not choices.dram_gb:
        return []
    tier = load_scenario(OFFLOAD).to_dict()["tiers"][0]
    return [{**tier, "capacity": f"{choices.dram_gb:.12g} GB"}]


def to_query(choices: Choices, store: ProfileStore) -> dict[str, str]:
    """The page's address: what differs from the defaults, so that a reload or a shared link restores it.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> store = default_store()
    >>> to_query(replace(default_choices(store), sessions=12, curve=(4, 24)), store)
    {'sessions': '12', 'curve': '4,24'}
    """
    default = replace(default_choices(store), pool=own_pool(choices, store))
    names = (f.name for f in fields(Choices))
    return {n: _text(getattr(choices, n)) for n in names if getattr(choices, n) != getattr(default, n)}


def from_query(query: Mapping[str, str], store: ProfileStore) -> tuple[Choices, tuple[Problem, ...]]:
    """Choices of an address, and what in it could not be followed.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> choices, problems = from_query({"gpu": "b200-sxm", "sessions": "many"}, default_store())
    >>> choices.gpu, choices.sessions, choices.pool
    ('b200-sxm', 8, 'predicted')
    >>> print(problems[0])
    address: sessions: got 'many'; accepted: 1 to 128
    """
    default, problems = default_choices(store), list[Problem]()
    asked: dict[str, Any] = {}
    lists = options(default, store)
    for name in (f.name for f in fields(Choices) if f.name in query):
        free = name in ("tp", "dp", "ep", "dcp", "pace", "compute", "api")  # what they accept depends on the others
        try:
            asked[name] = _value(name, query[name], () if free else lists.get(name, ()), getattr(default, name))
        except ValueError as err:
            problems.append(_problem(name, query[name], str(err), lists.get(name, ())))
    wanted = replace(default, **asked)
    found = reconcile(wanted, default, store)
    found = replace(found, **{n: asked[n] for n in ("pool", "usd_per_gpu_hour") if n in asked})
    ruled_out = [n for n in asked if getattr(found, n) != getattr(wanted, n)]
    if "trace" in ruled_out:
        problems.append(Problem("address", "trace", repr(query["trace"]), "a trace that was uploaded to this server "
                                "lately", "upload it again"))
    offered = options(found, store)
    problems += [_problem(n, query[n], _listed(offered[n]), offered[n]) for n in ruled_out if n in offered]
    return found, tuple(problems)


def _problem(name: str, given: str, accepted: str, known: tuple[Any, ...]) -> Problem:
    return Problem("address", name, repr(given), accepted, nearest(given, [_text(k) for k in known]))


def _value(name: str, text: str, accepted: tuple[Any, ...], default: Any) -> Any:
    """A value of an address; a ValueError says what would have been accepted."""
    if name == "curve":
        return _curve(text)
    if name in RANGES:
        return _number(text, isinstance(default, int), *RANGES[name])
    if isinstance(default, bool):
        accepted = (True, False)
    if not accepted:
        return _plain(text, default)
    by_text = {_text(a): a for a in accepted}
    if text not in by_text:
        raise ValueError(_listed(accepted))
    return by_text[text]


def _plain(text: str, default: Any) -> Any:
    """A text, or a whole number where the default is one."""
    if not isinstance(default, int):
        return text
    if not text.isdecimal():
        raise ValueError("a whole number")
    return int(text)


def _curve(text: str) -> tuple[int, ...]:
    parts = [part for part in text.split(",") if part]
    if any(not p.isdecimal() or int(p) not in CURVE_POINTS for p in parts):
        raise ValueError(f"some of {_listed(CURVE_POINTS)}, with commas between")
    return tuple(sorted({int(p) for p in parts}))


def _number(text: str, whole: bool, low: float, high: float) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ValueError(f"{low:g} to {high:g}")
    return value


def _listed(accepted: tuple[Any, ...]) -> str:
    return ", ".join(_text(a) for a in accepted)


def _text(value: Any) -> str:
    """A value in an address."""
    if value is None:
        return "default"
    if isinstance(value, tuple):
        return ",".join(str(v) for v in cast("tuple[Any, ...]", value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
