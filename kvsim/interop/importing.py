"""From a launch command to a scenario, with a word on every flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from kvsim.errors import Problem, ProfileError, ScenarioError, nearest
from kvsim.interop import sglang, vllm
from kvsim.interop.flags import FlagNote, FlagTable, Parsed, Status, parse_flags
from kvsim.interop.reading import Asked, Reading
from kvsim.interop.shell import EngineName, Launch, read_launch
from kvsim.memory.acceptance import find_draft_profile
from kvsim.memory.drafts import parse_draft
from kvsim.profiles.draft import DraftProfile
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.profiles.yamlio import parse_yaml
from kvsim.scenario import SCHEMA, Scenario, apply_override
from kvsim.units import gib

ENGINE_PROFILES = MappingProxyType({"vllm": "vllm-0.33", "sglang": "sglang-2026-08"})
"""Engine profile that is taken where none is named."""

IMAGE_PROFILES = MappingProxyType({
    "vllm/vllm-openai:kimi-k3": "vllm-day0", "vllm/vllm-openai-rocm:kimi-k3": "vllm-day0"})
"""Container image -> the engine profile of the build inside."""

PLACEHOLDER = MappingProxyType({"requests": 200, "input_tokens": 4096, "output_tokens": 256, "concurrency": 16})
"""Traffic that is written where none is given: a launch line says nothing about it."""

_TABLES: Mapping[str, FlagTable] = {"vllm": vllm.TABLE, "sglang": sglang.TABLE}
_READERS: Mapping[str, Callable[[Asked], Reading]] = {"vllm": vllm.read_vllm, "sglang": sglang.read_sglang}
_AS_OF = {"vllm": vllm.FLAGS_AS_OF, "sglang": sglang.FLAGS_AS_OF}
_SILENT = re.compile(r"^(NCCL|HF|CUDA|UCX|TORCH|PYTORCH|PYTHON|OMP|HSA|HIP|SAFETENSORS|TILELANG|TRANSFORMERS|"
                     r"TOKENIZERS|GLOO|AIPERF|NVIDIA|LD)_|^(PORT|PATH|HOME|MODEL|TP|TZ)$|^PYTHON")
_HEADINGS: Mapping[Status, str] = {
    "modelled": "Modelled", "assumed": "Not in the command", "no effect": "Without effect on capacity and cost",
    "not modelled": "Not modelled"}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a launch line does not say.

    Attributes
    ----------
    gpu : str or None
        GPU profile.
    model : str or None
        Model profile, where the line names a path or another checkpoint.
    engine_profile : str or None
        Engine profile; by default the newest of the engine, or the one of the container image.
    name : str or None
        Name of the scenario.
    overrides : sequence of str
        ``path=value`` as for ``kvsim run --set``, applied last; traffic among them.
    """

    gpu: str | None = None
    model: str | None = None
    engine_profile: str | None = None
    name: str | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ImportedCommand:
    """A scenario from a launch command.

    Attributes
    ----------
    scenario : Scenario
        Ready to run, or to ask for its capacity.
    engine : str
        "vllm" or "sglang".
    notes : tuple of FlagNote
        One for every flag and variable, and for what the command leaves open.
    """

    scenario: Scenario
    engine: EngineName
    notes: tuple[FlagNote, ...]

    def of(self, status: Status) -> tuple[FlagNote, ...]:
        """Notes of one kind."""
        return tuple(n for n in self.notes if n.status == status)

    def yaml(self) -> str:
        """The scenario as a YAML file."""
        return scenario_yaml(self.scenario)

    def text(self) -> str:
        """What became of every flag, a line each."""
        lines = [f"{self.engine} command, read with the flags of {_AS_OF[self.engine]}"]
        for status, heading in _HEADINGS.items():
            notes = self.of(status)
            if notes:
                lines += ["", heading, *(f"  {' '.join(filter(None, (n.flag, n.value)))}: {n.text}" for n in notes)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        notes = [{"flag": n.flag, "value": n.value, "status": n.status, "text": n.text} for n in self.notes]
        return {"engine": self.engine, "flags_as_of": _AS_OF[self.engine], "scenario": self.scenario.to_dict(),
                "flags": notes}


def import_command(text: str, options: ImportOptions | None = None, *, store: ProfileStore | None = None,
                   where: str = "command") -> ImportedCommand:
    """Read a launch command of vLLM or SGLang into a scenario.

    Parameters
    ----------
    text : str
        The command, or a script with it: environment, ``docker run``, continuations and comments are understood.
    options : ImportOptions, optional
        What the command does not say: the GPU above all.
    store : ProfileStore, optional
        Where profiles are found.
    where : str
        Name of the text in messages.

    Returns
    -------
    ImportedCommand
        Traffic is a placeholder (`PLACEHOLDER`) unless ``options.overrides`` set it.

    Raises
    ------
    ScenarioError
        No engine is started, a flag cannot be read, no GPU is named, or no profile describes the model (with the
        nearest); all problems at once.

    Examples
    --------
    >>> line = "vllm serve moonshotai/Kimi-K3 -tp 8 --kv-cache-dtype fp8 --max-model-len 1M --enable-prefix-caching"
    >>> found = import_command(line, ImportOptions(gpu="b300"))
    >>> found.scenario.model, found.scenario.layout.tp, found.scenario.engine.max_model_len
    ('kimi-k3', 8, 1048576)
    """
    launch = read_launch(text, where)
    options, store = options or ImportOptions(), store or default_store()
    table = _TABLES[launch.engine]
    parsed = parse_flags(_with_config_file(launch.args), table)
    if launch.others:
        parsed.notes.append(FlagNote("further commands", str(launch.others), "not modelled",
                                     "the first launch is read; the others are left out"))
    return _import(launch, parsed, options, store)


def import_args(engine: EngineName, args: Mapping[str, Any], options: ImportOptions,
                store: ProfileStore | None = None) -> ImportedCommand:
    """The same from an engine's arguments as it logs them (``{"tensor_parallel_size": 8}``)."""
    words: list[str] = []
    for name, value in args.items():
        if value is None or name in ("model_tag",):
            continue
        words += _as_words(name, value)
    return _import(Launch(engine, ()), parse_flags(words, _TABLES[engine]), options, store or default_store())


def _as_words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [f"{flag}={str(value).lower()}"]
    if isinstance(value, dict):
        return [flag, yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()]
    return [f"{flag}={value}"]


def _import(launch: Launch, parsed: Parsed, options: ImportOptions, store: ProfileStore) -> ImportedCommand:
    model = _model(parsed, options, store)
    if options.gpu is None:
        parsed.problems.append(Problem("--gpu", "", "", f"one of {', '.join(store.names('gpu'))}",
                                       "a launch line does not say which GPU it runs on"))
    elif not _is_file(options.gpu):
        parsed.problems += _unknown_gpu(options.gpu, store)
    if model is None:
        parsed.raise_problems()
    assert model is not None
    _verdicts(parsed, _TABLES[launch.engine])
    reading = _READERS[launch.engine](Asked(parsed, launch.env, model))
    parsed.raise_problems()
    draft = parse_draft(reading.engine.get("draft", "none"))
    curve = find_draft_profile(model.name, draft, store)
    if curve is not None and curve.length(draft.tokens) is not None:
        reading.engine["draft_acceptance"] = {"kind": "golden"}
    data = _scenario_data(launch, reading, model, options)
    scenario = _build(data, options.overrides)
    notes = [*parsed.notes, *_environment(launch), *_assumed(launch, parsed, scenario, options),
             *_accepted_drafts(scenario, curve)]
    return ImportedCommand(scenario, launch.engine, tuple(notes))


def _accepted_drafts(scenario: Scenario, curve: DraftProfile | None) -> Iterator[FlagNote]:
    """Where the number of accepted draft tokens comes from, which no launch line says."""
    given, draft = scenario.engine.draft_acceptance, parse_draft(scenario.engine.draft)
    length = None if curve is None else curve.length(draft.tokens)
    if given is None and draft.tokens:
        known = f" ({', '.join(str(e.drafted) for e in curve.accepted)} tokens were)" if curve is not None else ""
        yield FlagNote("accepted drafts", "", "assumed",
                       f"not measured for {scenario.engine.draft}{known}: a run needs "
                       "--set 'engine.draft_acceptance={kind: measured, source: ..., length: ...}'")
    elif given is not None and given.kind == "golden" and curve is not None and length is not None:
        yield FlagNote("accepted drafts", "", "assumed",
                       f"engine.draft_acceptance: the curve {curve.name}, {length:g} tokens a step")


def _build(data: dict[str, Any], overrides: Sequence[str]) -> Scenario:
    for text in overrides:
        data = apply_override(data, text)
    return Scenario.from_dict(data, "the imported scenario")


def _with_config_file(args: Sequence[str]) -> list[str]:
    """Arguments with those of ``--config FILE`` before them, which the command line overrides."""
    words = [str(a) for a in args]
    for i, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name != "--config" or not (joined or i + 1 < len(words)):
            continue
        path = Path(value if joined else words[i + 1])
        rest = words[:i] + words[i + (1 if joined else 2):]
        if not path.is_file():
            problem = Problem("--config", "", str(path), "a YAML file that can be read from here",
                              "or leave the flag out and write its settings as flags")
            raise ScenarioError("the command's configuration file is missing", [problem])
        data = parse_yaml(path.read_text(encoding="utf-8"), str(path), ScenarioError)
        own = [w for key, given in data.items() for w in _as_words(key, given)]
        model = [w for w in rest[:1] if not w.startswith("-")]
        return [*model, *own, *rest[len(model):]]
    return words


def _model(parsed: Parsed, options: ImportOptions, store: ProfileStore) -> ModelProfile | None:
    """The profile of the model that is served."""
    flag = next((name for name in ("model", "model-path") if name in parsed.values), None)
    given = options.model or (str(parsed.values[flag]) if flag else parsed.model)
    served = str(parsed.values.get("served-model-name", "")).split(" ")[0]
    if given is None:
        parsed.problems.append(Problem("model", "", "", "a model behind 'vllm serve' or --model-path"))
        return None
    if _is_file(options.model):
        found = store.get("model", given)
    else:
        found = _find_model(given, store) or (None if options.model else _find_model(served, store))
    if found is None:
        own = "--model names the profile to take, or a file that 'kvsim profiles import config.json -o FILE' makes"
        hint = "; ".join(filter(None, (_nearest_model(given, store), own)))
        accepted = f"a model with a profile: {', '.join(store.names('model'))}"
        parsed.problems.append(Problem("model", "", repr(given), accepted, hint))
        return None
    shown = FlagNote(parsed.spelled.get(flag or "", "model"), given, "modelled", f"model: {found.name}")
    parsed.notes.append(shown)
    return found


def _unknown_gpu(name: str, store: ProfileStore) -> list[Problem]:
    """What is wrong with a GPU's name; nothing where there is such a profile."""
    try:
        store.get("gpu", name)
    except ProfileError as err:
        return [replace(problem, where="--gpu", field="") for problem in err.problems]
    return []


def _is_file(name: str | None) -> bool:
    """Whether a profile is named by its file."""
    return name is not None and name.endswith((".yaml", ".yml"))


def _find_model(given: str, store: ProfileStore) -> ModelProfile | None:
    """By name, alias or Hugging Face id; a path counts by its last part."""
    last = given.rstrip("/").rpartition("/")[2]
    cached = re.search(r"models--([^/]+)--([^/]+)", given)
    names = [given, last, *([f"{cached[1]}/{cached[2]}"] if cached else [])]
    for name in names:
        if name and store.knows("model", name):
            return store.get("model", name)
    models = [f for f in store.files() if f.kind == "model"]
    by_id = {alias.rpartition("/")[2].lower(): f.name for f in models for alias in f.aliases}
    return store.get("model", by_id[last.lower()]) if last.lower() in by_id else None


def _nearest_model(given: str, store: ProfileStore) -> str:
    ids = [a for f in store.files() if f.kind == "model" for a in (*f.aliases, f.name)]
    return nearest(given, ids) or nearest(given.rpartition("/")[2], ids)


def _verdicts(parsed: Parsed, table: FlagTable) -> None:
    """Note every flag whose table entry is the verdict already."""
    for name, value in parsed.values.items():
        flag = table.flags[name]
        if flag.status == "not modelled" and value is False:
            parsed.note(name, "no effect", "off")
        elif flag.status != "modelled":
            parsed.note(name, flag.status, flag.why)


def _scenario_data(launch: Launch, reading: Reading, model: ModelProfile, options: ImportOptions) -> dict[str, Any]:
    profile = options.engine_profile or IMAGE_PROFILES.get(launch.image) or ENGINE_PROFILES[launch.engine]
    longest = reading.engine.get("max_model_len") or model.max_positions
    output = min(PLACEHOLDER["output_tokens"], max(longest // 4, 1))
    fixed = {"num_requests": PLACEHOLDER["requests"], "output_tokens": output,
             "input_tokens": min(PLACEHOLDER["input_tokens"], max(longest - output - 1, 1))}
    concurrency = min(PLACEHOLDER["concurrency"], reading.engine.get("max_num_seqs", PLACEHOLDER["concurrency"]))
    data: dict[str, Any] = {
        "schema": SCHEMA, "name": options.name or f"{model.name}-{Path(options.gpu or '').stem}-{launch.engine}",
        "model": options.model if _is_file(options.model) else model.name,
        "hardware": {"gpu": options.gpu, "num_gpus": reading.world}, "layout": reading.layout,
        "engine": {"profile": profile, **reading.engine}, "tiers": reading.tiers,
        "workload": {"fixed": fixed, "concurrency": concurrency}, "replicas": reading.replicas}
    return {key: value for key, value in data.items() if value not in ({}, [])}


def _environment(launch: Launch) -> Iterator[FlagNote]:
    """What became of the environment."""
    used = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "tiers: preset vllm-simple", "LMCACHE_MAX_LOCAL_CPU_SIZE": "tiers.0.capacity",
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "engine.retention_interval",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": "tiers: capacity of the pool", "LMCACHE_LOCAL_CPU": "tiers",
            "LMCACHE_ENABLE_P2P": "tiers: shared", "LMCACHE_EXTRA_CONFIG": "tiers: the store behind LMCache"}
    for name, value in launch.env.items():
        if name in used and launch.engine == "vllm":
            yield FlagNote(name, value, "modelled", used[name])
        elif name == "LMCACHE_REMOTE_URL":
            is_sized = "LMCACHE_EXTRA_CONFIG" in launch.env
            yield FlagNote(name, value, "modelled" if is_sized else "not modelled", "the store behind LMCache")
        elif name in ("LMCACHE_CONFIG_FILE", "MOONCAKE_CONFIG_PATH"):
            yield FlagNote(name, value, "not modelled", "the file is not read: say its sizes in the environment")
        elif _SILENT.search(name) or name.startswith(("VLLM_", "SGLANG_", "LMCACHE_", "MOONCAKE_")):
            yield FlagNote(name, value, "no effect", "environment of the engine's kernels, network or front")


def _assumed(launch: Launch, parsed: Parsed, scenario: Scenario, options: ImportOptions) -> Iterator[FlagNote]:
    """What the command leaves open and what was written for it."""
    engine = scenario.engine
    yield FlagNote("GPU", scenario.hardware.gpu, "assumed", f"hardware: {scenario.hardware.num_gpus} a replica")
    given = "named by the caller" if options.engine_profile else (
        f"of the image {launch.image}" if launch.image in IMAGE_PROFILES else "the newest of the engine")
    yield FlagNote("engine profile", engine.profile, "assumed", given)
    if launch.engine == "vllm" and "enable-prefix-caching" not in parsed.values:
        state = "on" if engine.prefix_caching else "off"
        yield FlagNote("prefix caching", state, "assumed", f"vLLM's default for {scenario.model}")
    if not any(text.startswith("workload") for text in options.overrides):
        yield FlagNote("traffic", "fixed lengths", "assumed", "a placeholder: --set workload=... or edit the file")
    for i, tier in enumerate(scenario.tiers):
        yield FlagNote(f"tiers.{i}", tier.kind, "assumed",
                       f"{gib(tier.capacity)} in the whole replica; link rates from profiles")


def scenario_yaml(scenario: Scenario) -> str:
    """A scenario as YAML that `kvsim.scenario.load_scenario` reads back to an equal one: what was set, no more."""
    data = scenario.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    ordered = {"schema": SCHEMA, **{k: v for k, v in data.items() if k != "schema"}}
    return yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)

