"""From a scenario to the launch command of an engine, and what the command cannot say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import Problem, ScenarioError
from kvsim.interop.connectors import GIB, compact, preset_of, said_capacity, said_tiers, write_connectors
from kvsim.interop.flags import FlagNote
from kvsim.interop.shell import EngineName
from kvsim.memory.drafts import Draft, parse_draft
from kvsim.profiles.model import MlaAttention, ModelProfile
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.scenario import Scenario, Tier, naming, require_alike

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A launch command.

    Attributes
    ----------
    engine : str
        "vllm" or "sglang".
    env : mapping
        Environment variables that it needs.
    words : tuple of str
        Program, arguments and values, unquoted, one list for a process.
    notes : tuple of FlagNote
        Fields of the scenario that no flag expresses, each with the reason.
    """

    engine: EngineName
    env: Mapping[str, str]
    words: tuple[str, ...]
    notes: tuple[FlagNote, ...] = field(default=())

    @property
    def command(self) -> str:
        """The command for a shell: a flag a line, quoted."""
        head = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        lines = [" ".join([*head, *(shlex.quote(w) for w in self.words[:self._start])])]
        rest = list(self.words[self._start:])
        while rest:
            flag = rest.pop(0)
            value = [rest.pop(0)] if rest and not rest[0].startswith("--") else []
            lines.append(" ".join([flag, *(shlex.quote(v) for v in value)]))
        return " \\\n  ".join(lines)

    @property
    def _start(self) -> int:
        """Number of words before the first flag of the engine."""
        return 3 if self.engine == "vllm" else 5

    def text(self) -> str:
        """The command, and as comments what it does not say."""
        notes = [f"#   {n.flag} {n.value}: {n.text}".rstrip() for n in self.notes]
        return "\n".join([self.command, *(["# not in this command:", *notes] if notes else [])])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"engine": self.engine, "command": self.command, "env": dict(self.env), "argv": list(self.words),
                "not_expressed": [{"field": n.flag, "value": n.value, "why": n.text} for n in self.notes]}


def export_command(scenario: Scenario, engine: str | None = None, *, store: ProfileStore | None = None) -> LaunchLine:
    r"""The launch command of one replica of a scenario.

    Parameters
    ----------
    scenario : Scenario
        What is to be served. Traffic, prices and objectives are no part of a command.
    engine : str, optional
        "vllm" or "sglang"; by default the engine of the scenario's engine profile.
    store : ProfileStore, optional
        Where the model's Hugging Face id and the engine profile are found.

    Returns
    -------
    LaunchLine
        ``import_command`` of it gives back every field that it expresses (`expressed`).

    Raises
    ------
    ProfileError
        An unknown model or engine profile.
    ScenarioError
        An engine whose commands are not known.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> print(export_command(load_scenario("llama-chat-burst")).command)
    vllm serve meta-llama/Llama-3.1-8B-Instruct \
      --kv-cache-dtype fp8 \
      --max-model-len 32768 \
      --enable-prefix-caching
    """
    require_alike(scenario, "the launch command")
    store = store or default_store()
    with naming(scenario, "model"):
        model = store.get("model", scenario.model)
    name = engine or _engine_of(scenario, store)
    draft = parse_draft(scenario.engine.draft, scenario.origin, "engine.draft")
    if name == "vllm":
        return _vllm(scenario, model, draft)
    if name == "sglang":
        return _sglang(scenario, model, draft)
    raise ScenarioError("no launch command of this engine is known", [
        Problem("engine", "", name, " or ".join(ENGINES), "--engine chooses one")])


def _engine_of(scenario: Scenario, store: ProfileStore) -> str:
    with naming(scenario, "engine.profile"):
        return store.get("engine", scenario.engine.profile).engine


def model_id(model: ModelProfile) -> str:
    """Hugging Face id of a model, its profile's name where there is none."""
    return model.hf_repo or next((a for a in model.aliases if "/" in a), model.name)


def is_sparse(model: ModelProfile) -> bool:
    """Whether engines keep the model's fp8 latent in a format of its own."""
    return any(isinstance(s, MlaAttention) and s.indexer_head_dim for s in model.attention.values())


def said_kv_dtype(scenario: Scenario, model: ModelProfile, engine: EngineName) -> str:
    """KV format that the command of an engine comes to, which may differ from the scenario's."""
    given = scenario.engine.kv_dtype
    if given == "bf16":
        return given
    if is_sparse(model) or (given == "fp8_ds_mla" and engine == "vllm"):
        return "fp8_ds_mla"
    return "fp8"


def is_hybrid(model: ModelProfile) -> bool:
    """Whether the engine sizes blocks by the model's constant state."""
    return any(spec.kind in ("kda", "gdn", "mamba") for spec in model.attention.values())


def _vllm(scenario: Scenario, model: ModelProfile, draft: Draft) -> LaunchLine:
    engine, layout = scenario.engine, scenario.layout
    tiers = write_connectors(scenario)
    degrees = {"tensor": layout.tp, "pipeline": layout.pp, "data": layout.dp, "decode-context": layout.dcp}
    values: dict[str, Any] = {f"{name}-parallel-size": n for name, n in degrees.items() if n > 1}
    values |= {"enable-expert-parallel": True if layout.ep > 1 else None, **_common_vllm(scenario, model),
               "scheduling-policy": None if engine.policy == "fcfs" else engine.policy,
               "no-async-scheduling": None if engine.async_scheduling else True,
               ("enable" if engine.prefix_caching else "no-enable") + "-prefix-caching": True,
               "prefix-cache-retention-interval": _retention(scenario, model),
               "speculative-config": _speculative(draft, engine.kv_dtype),
               "kv-transfer-config": None if tiers.config is None else compact(tiers.config)}
    words = ("vllm", "serve", model_id(model), *_words(values))
    notes = (*_not_expressed(scenario, model, "vllm"), *tiers.notes)
    return LaunchLine("vllm", tiers.env, words, notes)


def _common_vllm(scenario: Scenario, model: ModelProfile) -> dict[str, Any]:
    engine = scenario.engine
    return {
        "kv-cache-dtype": None if engine.kv_dtype == "bf16" else said_kv_dtype(scenario, model, "vllm"),
        "block-size": None if is_hybrid(model) else engine.block_tokens,
        "gpu-memory-utilization": engine.gpu_memory_utilization, "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs, "max-num-batched-tokens": engine.max_num_batched_tokens,
        "num-gpu-blocks-override": engine.num_blocks,
        "kv-cache-memory-bytes": None if engine.kv_bytes_per_gpu is None else int(engine.kv_bytes_per_gpu)}


def _retention(scenario: Scenario, model: ModelProfile) -> int | str | None:
    """The interval of kept states; vLLM's own default is 0."""
    interval = scenario.engine.retention_interval
    if not is_hybrid(model) or interval == 0:
        return None
    return "None" if interval == "dense" else interval


def _speculative(draft: Draft, kv_dtype: str) -> str | None:
    if draft.kind == "none" or _draft_problem(draft, kv_dtype):
        return None
    return compact({"method": draft.kind, "num_speculative_tokens": draft.tokens})


def _draft_problem(draft: Draft, kv_dtype: str) -> str:
    """Why a draft cannot be written; empty if it can."""
    if draft.kind in ("eagle3", "dflash"):
        return "a draft model of its own, whose name a scenario does not have"
    target = "bf16" if kv_dtype == "bf16" else "fp8"
    if draft.kind == "dspark" and draft.kv_dtype != target:
        return f"the draft's KV follows the target's ({target}) in a launch line"
    return ""


def _sglang(scenario: Scenario, model: ModelProfile, draft: Draft) -> LaunchLine:
    engine, layout = scenario.engine, scenario.layout
    world = layout.tp * layout.dp
    values: dict[str, Any] = {
        "tp-size": world if world > 1 else None, "pp-size": layout.pp if layout.pp > 1 else None,
        "dp-size": layout.dp if layout.dp > 1 else None, "enable-dp-attention": True if layout.dp > 1 else None,
        "ep-size": layout.ep if layout.ep > 1 else None, "dcp-size": layout.dcp if layout.dcp > 1 else None,
        "kv-cache-dtype": None if engine.kv_dtype == "bf16" else "fp8_e4m3",
        "page-size": None if is_hybrid(model) else engine.block_tokens,
        "mem-fraction-static": engine.gpu_memory_utilization, "context-length": engine.max_model_len,
        "max-running-requests": engine.max_num_seqs, "chunked-prefill-size": engine.max_num_batched_tokens,
        "enable-priority-scheduling": True if engine.policy == "priority" else None,
        "disable-overlap-schedule": None if engine.async_scheduling else True,
        "disable-radix-cache": None if engine.prefix_caching else True, **_sglang_draft(draft, engine.kv_dtype),
        **_hicache(scenario)}
    words = ("python", "-m", "sglang.launch_server", "--model-path", model_id(model), *_words(values))
    return LaunchLine("sglang", {}, words, tuple(_sglang_notes(scenario, model)))


def _sglang_draft(draft: Draft, kv_dtype: str) -> dict[str, Any]:
    if draft.kind == "none" or _draft_problem(draft, kv_dtype):
        return {}
    return {"speculative-algorithm": "EAGLE" if draft.kind == "mtp" else "DSPARK",
            "speculative-num-steps": draft.tokens, "speculative-num-draft-tokens": draft.tokens + 1}


_HICACHE_WRITE = {None: "write_through", "eager": "write_through", "on-reuse": "write_through_selective",
                  "on-eviction": "write_back"}


def _hicache(scenario: Scenario) -> dict[str, Any]:
    """Host memory as HiCache: whole GB a rank, since its flag takes no decimals."""
    tier = next((t for t in scenario.tiers if not _hicache_problem(t, scenario)), None)
    if tier is None:
        return {}
    return {"enable-hierarchical-cache": True, "hicache-size": round(tier.capacity / scenario.hardware.num_gpus / GIB),
            "hicache-write-policy": _HICACHE_WRITE[tier.write]}


def _hicache_problem(tier: Tier, scenario: Scenario) -> str:
    """Why a tier cannot be written as HiCache; empty if it can."""
    if tier.kind != "dram" or tier.preset != "hicache":
        return "only host memory with preset hicache is written for SGLang"
    if tier.write not in _HICACHE_WRITE:
        return f"HiCache has no write policy {tier.write}"
    size = tier.capacity / scenario.hardware.num_gpus / GIB
    return "" if size >= 1 and size == round(size) else f"HiCache takes whole GiB a rank, not {size:.6g}"


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if value is None:
            continue
        yield f"--{name}"
        if value is not True:
            yield repr(value) if isinstance(value, float) else str(value)


def _not_expressed(scenario: Scenario, model: ModelProfile, name: EngineName) -> Iterator[FlagNote]:
    """Settings that neither engine's command has."""
    engine, draft = scenario.engine, parse_draft(scenario.engine.draft)
    if (said := said_kv_dtype(scenario, model, name)) != engine.kv_dtype:
        yield _note("engine.kv_dtype", engine.kv_dtype, f"{name} keeps {said} for this model")
    if is_hybrid(model) and engine.block_tokens is not None:
        yield _note("engine.block_tokens", engine.block_tokens, "the engine sizes a hybrid's blocks itself")
    if _draft_problem(draft, engine.kv_dtype):
        yield _note("engine.draft", engine.draft, _draft_problem(draft, engine.kv_dtype))
    if engine.retention_interval and not is_hybrid(model):
        yield _note("engine.retention_interval", engine.retention_interval, "only hybrid models keep states")
    if engine.eviction != type(engine)().eviction:
        yield _note("engine.eviction", "", "the engine evicts by its own rule")
    if engine.admission is not None:
        yield _note("engine.admission", "", "clients or a gateway hold sessions back, not the engine")
    for speed in ("step_time", "calibration"):
        if getattr(engine, speed) is not None:
            yield _note(f"engine.{speed}", "", "how fast the engine is, not what it is told")
    if scenario.disaggregation is not None:
        yield _note("disaggregation", "", "the command is that of a replica that does both, without a connector")
    if scenario.num_replicas > 1:
        yield _note("replicas", scenario.num_replicas, f"start the command so often, behind {scenario.router_name}")


def _sglang_notes(scenario: Scenario, model: ModelProfile) -> Iterator[FlagNote]:
    yield from _not_expressed(scenario, model, "sglang")
    engine = scenario.engine
    for name in ("num_blocks", "kv_bytes_per_gpu"):
        if getattr(engine, name) is not None:
            yield _note(f"engine.{name}", getattr(engine, name), "SGLang takes its pool's size from the memory share")
    if is_hybrid(model) and engine.retention_interval:
        yield _note("engine.retention_interval", engine.retention_interval, "SGLang keeps states where prompts end")
    written = False
    for i, tier in enumerate(scenario.tiers):
        why = _hicache_problem(tier, scenario) or ("one host tier is written" if written else "")
        written = written or not why
        if why:
            yield _note(f"tiers.{i}", tier.kind, why)


def _note(name: str, value: Any, why: str) -> FlagNote:
    return FlagNote(name, str(value), "not modelled", why)


def expressed(scenario: Scenario, engine: EngineName, *, store: ProfileStore | None = None) -> dict[str, Any]:
    """The fields of a scenario that the command of an engine says, in one form.

    A scenario and the import of its export have the same ones, which is what "round trip" means here.
    """
    model = (store or default_store()).get("model", scenario.model)
    written = scenario.engine
    names = ["gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "prefix_caching",
             "policy", "async_scheduling"]
    names += [] if is_hybrid(model) else ["block_tokens"]
    fields = {name: getattr(written, name) for name in names}
    fields["kv_dtype"] = said_kv_dtype(scenario, model, engine)
    draft = parse_draft(written.draft)
    fields["draft"] = "none" if _draft_problem(draft, written.kv_dtype) else written.draft
    if engine == "vllm":
        fields |= {"num_blocks": written.num_blocks, "kv_bytes_per_gpu": written.kv_bytes_per_gpu and
                   int(written.kv_bytes_per_gpu), "retention": is_hybrid(model) and written.retention_interval}
    return {"model": model.name, "num_gpus": scenario.hardware.num_gpus, "layout": scenario.layout.model_dump(),
            **fields, "tiers": list(_expressed_tiers(scenario, engine))}


def _expressed_tiers(scenario: Scenario, engine: EngineName) -> Iterator[tuple[Any, ...]]:
    for tier, why in said_tiers(scenario):
        reuse = tier.reuse_threshold if tier.write == "on-reuse" else None
        if engine == "vllm" and not why:
            kind = "pool" if preset_of(tier) == "mooncake-store" else tier.kind
            yield kind, said_capacity(tier, scenario), preset_of(tier), reuse
        elif engine == "sglang" and not _hicache_problem(tier, scenario):
            yield tier.kind, tier.capacity, tier.preset, _HICACHE_WRITE[tier.write]
            return
