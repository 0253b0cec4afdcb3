"""Flags of SGLang (0.5.23, November 2026; older spellings too) as fields of a scenario.

``--tp`` counts all GPUs of a pipeline stage. With ``--enable-dp-attention`` the ``--dp`` ranks lie inside them; without
it they are whole copies of the model, which are replicas here.
Sources: https://docs.sglang.io/advanced_features/server_arguments.html and SGLang's ``server_args.py``.
"""

from __future__ import annotations

from typing import Any

from kvsim.interop.connectors import parse_size
from kvsim.interop.flags import FlagTable, Parsed
from kvsim.interop.reading import Asked, Reading, draft_name, read_block_size, read_kv_dtype, why_no_draft
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

FLAGS_AS_OF = "SGLang 0.5.23, November 2026"

GB = 2**30
"""SGLang calls 2^30 bytes a GB, in flags and in logs."""

_MODELLED_VALUES = (
    "model-path tensor-parallel-size pipeline-parallel-size data-parallel-size expert-parallel-size dcp-size "
    "mem-fraction-static kv-cache-dtype page-size context-length max-running-requests chunked-prefill-size "
    "max-total-tokens schedule-policy hicache-ratio hicache-size hicache-write-policy hicache-storage-backend "
    "speculative-algorithm speculative-num-steps speculative-num-draft-tokens speculative-eagle-topk "
    "disaggregation-mode")
_MODELLED_SWITCHES = ("enable-dp-attention disable-radix-cache disable-overlap-schedule enable-priority-scheduling "
                      "enable-hierarchical-cache")

_HICACHE = "how HiCache copies; its preset has the rules"

_NO_EFFECT_VALUES = {
    SERVER: (
        "host port grpc-port api-key served-model-name chat-template tool-call-parser reasoning-parser log-level "
        "log-level-http log-requests-level watchdog-timeout stream-interval scheduler-recv-interval "
        "tokenizer-worker-num sampling-defaults sampling-backend grammar-backend file-storage-path "
        "crash-dump-folder decode-log-interval dist-timeout nccl-port warmups soft-watchdog-timeout"),
    LOADING: (
        "tokenizer-path tokenizer-mode load-format revision download-dir model-loader-extra-config random-seed "
        "model-impl json-model-override-args"),
    KERNELS: (
        "dtype attention-backend prefill-attention-backend decode-attention-backend mm-attention-backend "
        "moe-runner-backend moe-a2a-backend fp8-gemm-backend fp4-gemm-backend nsa-prefill-backend "
        "nsa-decode-backend dsa-prefill-backend dsa-decode-backend dsa-topk-backend deepep-mode deepep-config "
        "linear-attn-backend mamba-backend speculative-attention-mode "
        "speculative-draft-model-path speculative-accept-threshold-single speculative-accept-threshold-acc"),
    SPREAD: "nnodes node-rank dist-init-addr base-gpu-id gpu-id-step device load-balance-method moe-dense-tp-size",
    GRAPHS: "cuda-graph-max-bs cuda-graph-max-bs-decode torch-compile-max-bs piecewise-cuda-graph-max-tokens",
    _HICACHE: "hicache-io-backend hicache-mem-layout hicache-storage-prefetch-policy "
              "hicache-storage-backend-extra-config",
    "the step's budget is the chunk size": "max-prefill-tokens prefill-max-requests",
    "requests are admitted by their whole prompt": "schedule-conservativeness",
}
_NO_EFFECT_SWITCHES = {
    SERVER: (
        "enable-metrics enable-cache-report log-requests show-time-cost skip-tokenizer-init skip-server-warmup "
        "enable-request-time-stats-logging allow-auto-truncate incremental-streaming-output stream-output"),
    LOADING: "trust-remote-code enable-memory-saver weight-loader-disable-mmap delete-ckpt-after-loading",
    KERNELS: (
        "enable-flashinfer-allreduce-fusion enable-symm-mem enable-nccl-nvls enable-torch-compile enable-mscclpp "
        "enable-two-batch-overlap enable-single-batch-overlap disable-custom-all-reduce enable-deepep-moe "
        "disable-shared-experts-fusion enable-flashinfer-mla enable-flashmla enable-mixed-chunk "
        "disable-flashinfer-autotune enable-tf32-matmul disable-piecewise-cuda-graph enable-dp-lm-head"),
}
_MISSING_VALUES = {
    WEIGHTS: "quantization cpu-offload-gb offload-group-size offload-num-in-group "
                                                "offload-prefetch-step offload-mode",
    "states share one pool with KV here": "mamba-full-memory-ratio max-mamba-cache-size mamba-scheduler-strategy "
                                          "mamba-radix-cache-strategy mamba-track-interval",
    STATE_FORMAT: "mamba-ssm-dtype",
    "windows share one pool with full attention here": "swa-full-tokens-ratio",
    BALANCED: "ep-num-redundant-experts init-expert-location eplb-algorithm",
    "attention is not split by context": "attn-cp-size attention-context-parallel-size moe-dp-size dwdp-size",
    ADAPTERS: "max-loras-per-batch max-lora-rank lora-backend",
    "KV is not handed to other engines": "disaggregation-transfer-backend disaggregation-bootstrap-port "
                                         "disaggregation-ib-device disaggregation-decode-tp disaggregation-prefill-pp",
}
_MISSING_SWITCHES = {
    CAPTURED: "disable-cuda-graph",
    BALANCED: "enable-eplb",
    ADAPTERS: "enable-lora",
    NO_CONTEXT_SPLIT: "enable-prefill-context-parallel",
}
_MANY = {GRAPHS: "cuda-graph-bs cuda-graph-bs-decode", "adapters are not counted": "lora-paths"}

_ALIASES = {
    "model": "model-path", "tp": "tensor-parallel-size", "tp-size": "tensor-parallel-size",
    "pp": "pipeline-parallel-size", "pp-size": "pipeline-parallel-size", "dp": "data-parallel-size",
    "dp-size": "data-parallel-size", "ep": "expert-parallel-size", "ep-size": "expert-parallel-size",
    "max-model-len": "context-length", "decode-context-parallel-size": "dcp-size", "dcp": "dcp-size",
    "dist-init-address": "dist-init-addr", "nccl-init-addr": "dist-init-addr",
}


TABLE = FlagTable([
    *modelled(_MODELLED_VALUES, _MODELLED_SWITCHES),
    *flags_of("no effect", _NO_EFFECT_VALUES, _NO_EFFECT_SWITCHES, _MANY),
    *flags_of("not modelled", _MISSING_VALUES, _MISSING_SWITCHES)], _ALIASES)
"""Every flag that is known."""


def read_sglang(asked: Asked) -> Reading:
    """Turn SGLang's flags into parts of a scenario; what became of each is noted in ``asked.parsed``."""
    reading, parsed = Reading(), asked.parsed
    _layout(parsed, reading)
    read_kv_dtype(asked, reading)
    read_block_size("page-size", asked, reading)
    reading.set("gpu_memory_utilization", parsed.real("mem-fraction-static", "engine.gpu_memory_utilization"))
    reading.set("max_model_len", parsed.number("context-length", "engine.max_model_len"))
    reading.set("max_num_seqs", parsed.number("max-running-requests", "engine.max_num_seqs"))
    _chunk(parsed, reading)
    _scheduling(parsed, reading)
    _draft(parsed, reading)
    _hicache(asked, reading)
    _alone(parsed)
    return reading


def _layout(parsed: Parsed, reading: Reading) -> None:
    tp = parsed.number("tensor-parallel-size", "layout.tp, less the attention-DP ranks") or 1
    pp = parsed.number("pipeline-parallel-size", "layout.pp") or 1
    dp = parsed.number("data-parallel-size", "layout.dp or replicas") or 1
    inside = parsed.switch("enable-dp-attention", "layout.dp: the DP ranks lie inside the TP group") or False
    if inside and tp % dp:
        parsed.problem("data-parallel-size", str(dp), f"a divisor of --tp {tp} with --enable-dp-attention")
        return
    ranks = {"tp": tp // dp if inside else tp, "pp": pp, "dp": dp if inside else 1}
    reading.layout = {key: degree for key, degree in ranks.items() if degree > 1}
    reading.world, reading.replicas = tp * pp, 1 if inside else dp
    dcp = parsed.number("dcp-size", "layout.dcp") or 1
    if dcp > 1:
        reading.layout["dcp"] = dcp
    _experts(parsed, reading, tp)


def _experts(parsed: Parsed, reading: Reading, tp: int) -> None:
    ep = parsed.number("expert-parallel-size", f"layout.ep: {tp}") or 1
    if ep == 1:
        return
    reading.layout["ep"] = tp
    if ep != tp:
        parsed.note("expert-parallel-size", "not modelled", f"experts split {ep} ways and then by TP; {tp} ways taken, "
                                                            "which puts the same weights on every GPU")


def _chunk(parsed: Parsed, reading: Reading) -> None:
    if str(parsed.values.get("chunked-prefill-size")) == "-1":
        parsed.note("chunked-prefill-size", "not modelled", "prompts are always computed in chunks of the budget")
        return
    reading.set("max_num_batched_tokens", parsed.number("chunked-prefill-size", "engine.max_num_batched_tokens"))
    parsed.note("max-total-tokens", "not modelled", "a cap on the pool in tokens; set engine.num_blocks instead")


def _scheduling(parsed: Parsed, reading: Reading) -> None:
    if parsed.switch("disable-radix-cache", "engine.prefix_caching"):
        reading.engine["prefix_caching"] = False
    else:
        reading.engine["prefix_caching"] = True
    if parsed.switch("disable-overlap-schedule", "engine.async_scheduling"):
        reading.engine["async_scheduling"] = False
    if parsed.switch("enable-priority-scheduling", "engine.policy: priority"):
        reading.engine["policy"] = "priority"
    policy = str(parsed.values.get("schedule-policy", "fcfs"))
    if policy == "fcfs":
        parsed.note("schedule-policy", "modelled", "engine.policy: fcfs")
    else:
        parsed.note("schedule-policy", "not modelled", "requests are served in order of arrival or by priority")


def _draft(parsed: Parsed, reading: Reading) -> None:
    algorithm = str(parsed.values.get("speculative-algorithm", "")).lower()
    if algorithm in ("", "none"):
        return
    verified = parsed.number("speculative-num-draft-tokens", "engine.draft")
    steps = parsed.number("speculative-num-steps", "engine.draft", 0) or (verified - 1 if verified else 0)
    own = algorithm in ("eagle", "nextn") and "speculative-draft-model-path" not in parsed.values
    draft = draft_name("mtp" if own else algorithm, steps, str(reading.engine.get("kv_dtype", "bf16")))
    for name in ("speculative-algorithm", "speculative-num-steps", "speculative-num-draft-tokens"):
        parsed.notes = [n for n in parsed.notes if n.flag != parsed.spelled.get(name)]
        if draft is None:
            parsed.note(name, "not modelled", why_no_draft(algorithm))
        else:
            parsed.note(name, "modelled", f"engine.draft: {draft}")
    if str(parsed.values.get("speculative-eagle-topk", "1")) != "1":
        parsed.note("speculative-eagle-topk", "not modelled", f"a tree of drafts; a chain of {steps} is taken")
    else:
        parsed.note("speculative-eagle-topk", "no effect", "one draft token after the other")
    reading.set("draft", draft)


_WRITE = {"write_through": "eager", "write_through_selective": "on-reuse", "write_back": "on-eviction"}


def _hicache(asked: Asked, reading: Reading) -> None:
    parsed = asked.parsed
    if not parsed.switch("enable-hierarchical-cache", "tiers: preset hicache"):
        return
    size = parsed.real("hicache-size", "tiers.0.capacity: GB a rank, times the ranks")
    policy = parsed.text("hicache-write-policy", "tiers.0.write")
    if size:
        tier: dict[str, Any] = {"kind": "dram", "capacity": size * GB * reading.world, "preset": "hicache"}
        if policy in _WRITE and _WRITE[policy] != "eager":
            tier["write"] = _WRITE[policy]
        reading.tiers.append(tier)
    else:
        parsed.note("enable-hierarchical-cache", "not modelled", "host memory as a multiple of the GPU pool "
                                                                 "(--hicache-ratio): write tiers.0.capacity yourself")
        parsed.note("hicache-ratio", "not modelled", "a multiple of the pool; --hicache-size is modelled")
    _storage(asked, reading)


def _storage(asked: Asked, reading: Reading) -> None:
    """HiCache's third level, where its size is known."""
    backend = asked.parsed.values.get("hicache-storage-backend")
    if backend is None:
        return
    size = parse_size(asked.env.get("MOONCAKE_GLOBAL_SEGMENT_SIZE")) if backend == "mooncake" else 0.0
    if size and reading.tiers:
        pool = {"kind": "pool", "capacity": size * reading.world, "preset": "hicache-l3", "shared": True}
        reading.tiers.append(pool)
        asked.parsed.note("hicache-storage-backend", "modelled", "tiers.1: preset hicache-l3, shared")
    else:
        asked.parsed.note("hicache-storage-backend", "not modelled", "its size is not in the launch line")


def _alone(parsed: Parsed) -> None:
    mode = parsed.values.get("disaggregation-mode")
    if mode in ("prefill", "decode"):
        parsed.note("disaggregation-mode", "not modelled", "this engine is taken alone, with prefill and decode")
    else:
        parsed.note("disaggregation-mode", "no effect", "prefill and decode in one engine")
