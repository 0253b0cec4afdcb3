"""Flags of vLLM V1 (0.33.0, November 2026; older spellings too) as fields of a scenario.

Sources: https://docs.vllm.ai/en/latest/configuration/engine_args.html and vLLM's ``engine/arg_utils.py``.
"""

from __future__ import annotations

from typing import Any

from kvsim.interop.connectors import read_offload
from kvsim.interop.flags import FlagTable, Parsed
from kvsim.interop.reading import (
    MTP_METHODS,
    Asked,
    Reading,
    draft_name,
    method_of,
    read_block_size,
    read_kv_dtype,
    why_no_draft,
)
from kvsim.interop.tables import (
    ADAPTERS,
    BALANCED,
    CAPTURED,
    GRAPHS,
    KERNELS,
    LOADING,
    NO_CONTEXT_SPLIT,
    SERVER,
    SPREAD,
    STATE_FORMAT,
    WEIGHTS,
    flags_of,
    modelled,
)

FLAGS_AS_OF = "vLLM 0.33.0, November 2026"

_MODELLED_VALUES = (
    "model tensor-parallel-size pipeline-parallel-size data-parallel-size decode-context-parallel-size "
    "gpu-memory-utilization kv-cache-dtype block-size max-model-len max-num-seqs max-num-batched-tokens "
    "scheduling-policy kv-transfer-config kv-offloading-size kv-offloading-backend num-gpu-blocks-override "
    "kv-cache-memory-bytes mamba-cache-mode prefix-cache-retention-interval speculative-config spec-method spec-tokens "
    "spec-model")
_MODELLED_SWITCHES = ("enable-expert-parallel enable-prefix-caching async-scheduling enable-chunked-prefill "
                      "disable-hybrid-kv-cache-manager")


_NO_EFFECT_VALUES = {
    SERVER: (
        "host port uds api-key api-server-count root-path ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs "
        "uvicorn-log-level log-config-file log-level max-log-len chat-template chat-template-content-format "
        "response-role tool-call-parser tool-parser-plugin tool-server reasoning-parser reasoning-parser-plugin "
        "override-generation-config generation-config default-chat-template-kwargs max-logprobs stream-interval "
        "otlp-traces-endpoint collect-detailed-traces kv-events-config structured-outputs-config "
        "guided-decoding-backend prefix-caching-hash-algo shutdown-timeout h11-max-header-count "
        "limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb mm-processor-cache-type "
        "allowed-local-media-path media-io-kwargs logits-processor-pattern runner convert task"),
    LOADING: (
        "tokenizer tokenizer-mode tokenizer-revision revision code-revision load-format download-dir hf-token "
        "hf-config-path config-format model-loader-extra-config ignore-patterns safetensors-load-strategy seed "
        "max-parallel-loading-workers"),
    KERNELS: (
        "attention-backend attention-config moe-backend linear-backend mla-prefill-backend all2all-backend "
        "kernel-config compilation-config optimization-level O dtype mamba-backend dcp-comm-backend "
        "dcp-kv-cache-interleave-size cp-kv-cache-interleave-size mm-encoder-attn-backend model-impl"),
    SPREAD: (
        "distributed-executor-backend nnodes node-rank master-addr master-port data-parallel-size-local "
        "data-parallel-address data-parallel-rpc-port data-parallel-backend data-parallel-rank "
        "data-parallel-start-rank numa-bind worker-cls worker-extension-cls device mm-encoder-tp-mode"),
    GRAPHS: "max-cudagraph-capture-size cudagraph-capture-sizes max-seq-len-to-capture",
    "vLLM V1 recomputes, it never swaps": "swap-space preemption-mode",
    "checkpoints are kept at whole blocks": "mamba-block-size",
}
_NO_EFFECT_SWITCHES = {
    SERVER: (
        "enable-auto-tool-choice disable-log-requests enable-log-requests disable-log-stats disable-uvicorn-access-log "
        "enable-request-id-headers enable-server-load-tracking enable-prompt-tokens-details allow-credentials headless "
        "disable-fastapi-docs enable-log-outputs trust-request-chat-template enable-metrics return-tokens-as-token-ids "
        "disable-frontend-multiprocessing kv-cache-metrics enable-mfu-metrics async-engine"),
    LOADING: (
        "trust-remote-code skip-tokenizer-init use-tqdm-on-load enable-sleep-mode enable-cumem-allocator "
        "enable-tokenizer-info-endpoint"),
    KERNELS: (
        "disable-custom-all-reduce enable-flashinfer-autotune enable-dbo disable-cascade-attn use-replayssm "
        "O0 O1 O2 O3 calculate-kv-scales"),
    SPREAD: "data-parallel-hybrid-lb data-parallel-external-lb disable-nccl-for-dp-synchronization",
}
_MISSING_VALUES = {
    WEIGHTS: "quantization cpu-offload-gb hf-overrides",
    STATE_FORMAT: "mamba-ssm-cache-dtype mamba-cache-dtype",
    "hits end at whole blocks": "prefix-match-unit",
    NO_CONTEXT_SPLIT: "prefill-context-parallel-size",
    "chunks are limited by the token budget alone": "long-prefill-token-threshold max-num-partial-prefills "
                                                    "max-long-partial-prefills",
    ADAPTERS: "max-loras max-lora-rank max-cpu-loras lora-dtype",
    BALANCED: "eplb-config num-redundant-experts",
    "unknown to kvsim": "additional-config rope-scaling rope-theta swap-out-threshold",
    "blocks that are free are all usable": "watermark",
}
_MISSING_SWITCHES = {
    CAPTURED: "enforce-eager",
    ADAPTERS: "enable-lora",
    BALANCED: "enable-eplb",
    "the vision tower's weights are still counted": "language-model-only",
    "windows are kept as windows": "disable-sliding-window",
    "a prompt is admitted whole": "disable-chunked-mm-input",
}
_MANY = {SERVER: "served-model-name allowed-origins allowed-methods allowed-headers middleware logits-processors",
         ADAPTERS: "lora-modules"}

_ALIASES = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size", "ep": "enable-expert-parallel", "pcp": "prefill-context-parallel-size",
    "q": "quantization", "cc": "compilation-config", "ac": "attention-config", "asc": "api-server-count",
    "n": "nnodes", "r": "node-rank", "dpn": "data-parallel-rank", "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local", "dpa": "data-parallel-address", "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend", "dph": "data-parallel-hybrid-lb", "dpe": "data-parallel-external-lb",
    "kv-cache-memory": "kv-cache-memory-bytes", "sc": "speculative-config",
}


TABLE = FlagTable([
    *modelled(_MODELLED_VALUES, _MODELLED_SWITCHES),
    *flags_of("no effect", _NO_EFFECT_VALUES, _NO_EFFECT_SWITCHES, _MANY),
    *flags_of("not modelled", _MISSING_VALUES, _MISSING_SWITCHES)], _ALIASES, "no-")
"""Every flag that is known."""


def read_vllm(asked: Asked) -> Reading:
    """Turn vLLM's flags into parts of a scenario; what became of each is noted in ``asked.parsed``."""
    reading, parsed = Reading(), asked.parsed
    _layout(parsed, reading)
    read_kv_dtype(asked, reading)
    read_block_size("block-size", asked, reading)
    reading.set("gpu_memory_utilization", parsed.real("gpu-memory-utilization", "engine.gpu_memory_utilization"))
    reading.set("max_num_seqs", parsed.number("max-num-seqs", "engine.max_num_seqs"))
    reading.set("max_num_batched_tokens", parsed.number("max-num-batched-tokens", "engine.max_num_batched_tokens"))
    _max_model_len(parsed, reading)
    _scheduling(parsed, reading)
    _prefix_caching(asked, reading)
    _pool(parsed, reading)
    _draft(parsed, reading)
    _one_manager(asked)
    read_offload(asked, reading)
    return reading


def _layout(parsed: Parsed, reading: Reading) -> None:
    names = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
             "dcp": "decode-context-parallel-size"}
    found = {key: parsed.number(name, f"layout.{key}") for key, name in names.items()}
    reading.layout = {key: degree for key, degree in found.items() if degree is not None}
    tp, pp, dp = (reading.layout.get(key, 1) for key in ("tp", "pp", "dp"))
    reading.world = tp * pp * dp
    if parsed.switch("enable-expert-parallel", f"layout.ep: {tp * dp}, over all TP and DP ranks"):
        reading.layout["ep"] = tp * dp


def _max_model_len(parsed: Parsed, reading: Reading) -> None:
    value = str(parsed.values.get("max-model-len", "")).lower()
    if value in ("auto", "-1"):
        parsed.note("max-model-len", "not modelled", "the model's maximum is taken; the engine would cut it to fit")
        return
    reading.set("max_model_len", parsed.number("max-model-len", "engine.max_model_len"))


def _scheduling(parsed: Parsed, reading: Reading) -> None:
    policy = parsed.text("scheduling-policy", "engine.policy")
    if policy not in (None, "fcfs", "priority"):
        parsed.problem("scheduling-policy", str(policy), "fcfs or priority")
    reading.set("policy", policy)
    reading.set("async_scheduling", parsed.switch("async-scheduling", "engine.async_scheduling"))
    if parsed.values.get("enable-chunked-prefill") is False:
        parsed.note("enable-chunked-prefill", "not modelled", "prompts are always computed in chunks of the budget")
    else:
        parsed.note("enable-chunked-prefill", "no effect", "always on in vLLM V1")


def _prefix_caching(asked: Asked, reading: Reading) -> None:
    parsed = asked.parsed
    given = parsed.switch("enable-prefix-caching", "engine.prefix_caching")
    mode = str(parsed.values.get("mamba-cache-mode", ""))
    reading.engine["prefix_caching"] = asked.model.prefix_caching_default if given is None else given
    if mode == "all":
        reading.engine["retention_interval"] = "dense"
        parsed.note("mamba-cache-mode", "modelled", "engine.retention_interval: dense")
    elif mode in ("align", "none"):
        parsed.note("mamba-cache-mode", "no effect", "follows engine.prefix_caching: align with it, none without")
    elif mode:
        parsed.problem("mamba-cache-mode", mode, "none, align or all")
    _retention(asked, reading)


def _retention(asked: Asked, reading: Reading) -> None:
    flag = asked.parsed.text("prefix-cache-retention-interval", "engine.retention_interval")
    value = flag if flag is not None else asked.env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
    if value is None:
        return
    if value.lower() in ("none", "dense"):
        reading.engine["retention_interval"] = "dense"
    elif value.isdigit():
        reading.engine["retention_interval"] = int(value)
    else:
        asked.parsed.problem("prefix-cache-retention-interval", value, "a number of tokens, 0 or None")


def _one_manager(asked: Asked) -> None:
    """Whether layers of several kinds still share the pool as they are."""
    if asked.parsed.values.get("disable-hybrid-kv-cache-manager") is True and asked.several_kinds:
        asked.parsed.note("disable-hybrid-kv-cache-manager", "not modelled", "it shrinks the pool of this model")
    else:
        asked.parsed.note("disable-hybrid-kv-cache-manager", "no effect", "the pool stays as it is")


def _pool(parsed: Parsed, reading: Reading) -> None:
    blocks = parsed.number("num-gpu-blocks-override", "engine.num_blocks", 2)
    size = parsed.number("kv-cache-memory-bytes", "engine.kv_bytes_per_gpu")
    reading.set("num_blocks", blocks)
    if blocks is None:
        reading.set("kv_bytes_per_gpu", size)


_DRAFT_FLAGS = ("speculative-config", "spec-method", "spec-tokens", "spec-model")


def _draft(parsed: Parsed, reading: Reading) -> None:
    if not any(name in parsed.values for name in _DRAFT_FLAGS):
        return
    data: dict[str, Any] = parsed.mapping("speculative-config")
    model = str(parsed.values.get("spec-model", data.get("model") or ""))
    method = str(parsed.values.get("spec-method", data.get("method") or "")).lower() or method_of(model)
    # Without a number vLLM takes that of the checkpoint's MTP layers: one in all that have profiles.
    default = 1 if method in MTP_METHODS else 0
    tokens = human_tokens(parsed.values.get("spec-tokens", data.get("num_speculative_tokens", default)))
    dtype = str(data.get("kv_cache_dtype") or reading.engine.get("kv_dtype", "bf16"))
    draft = draft_name(method, tokens, "bf16" if dtype in ("bf16", "bfloat16") else "fp8")
    for name in _DRAFT_FLAGS:
        if draft is None:
            parsed.note(name, "not modelled", why_no_draft(method))
        else:
            parsed.note(name, "modelled", f"engine.draft: {draft}")
    reading.set("draft", draft)


def human_tokens(given: Any) -> int:
    """A number of draft tokens out of JSON or a flag; 0 where there is none."""
    try:
        return int(given)
    except (TypeError, ValueError):
        return 0
