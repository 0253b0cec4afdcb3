"""What each flag becomes in the scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import ScenarioError
from kvsim.interop import ImportOptions, import_command
from kvsim.interop.importing import ImportedCommand
from kvsim.profiles.yamlio import parse_yaml
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario

GIB = 2**30


def vllm(flags: str, model: str = "moonshotai/Kimi-K3", **options: Any) -> ImportedCommand:
    return import_command(f"vllm serve {model} {flags}", ImportOptions(gpu="b300", **options))


def sglang(flags: str, model: str = "deepseek-ai/DeepSeek-R1") -> ImportedCommand:
    return import_command(f"sglang serve --model-path {model} {flags}", ImportOptions(gpu="b200"))


@pytest.mark.parametrize(("flags", "field", "value"), [
    ("-tp 8", "tp", 8), ("--tensor-parallel-size=8", "tp", 8), ("--tensor_parallel_size 8", "tp", 8),
    ("-pp 2", "pp", 2), ("-dp 4", "dp", 4), ("-tp 8 -dcp 8", "dcp", 8), ("-tp 4 -dp 2 -ep", "ep", 8),
    ("-tp 8 --enable-expert-parallel", "ep", 8), ("-tp 8 --no-enable-expert-parallel", "ep", 1),
])
def test_layout(flags: str, field: str, value: int) -> None:
    assert getattr(vllm(flags).scenario.layout, field) == value


def test_gpus_of_a_replica_are_the_product() -> None:
    assert vllm("-tp 8 -pp 2 -dp 3 -dcp 4").scenario.hardware.num_gpus == 48


@pytest.mark.parametrize(("flags", "field", "value"), [
    ("--gpu-memory-utilization 0.95", "gpu_memory_utilization", 0.95),
    ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8"), ("--kv-cache-dtype auto", "kv_dtype", "bf16"),
    ("--max-model-len 1m", "max_model_len", 1_000_000), ("--max-model-len 1M", "max_model_len", 1_048_576),
    ("--max-model-len 25.6k", "max_model_len", 25_600), ("--max-model-len auto", "max_model_len", None),
    ("--max-num-seqs 64", "max_num_seqs", 64), ("--max-num-batched-tokens 16K", "max_num_batched_tokens", 16_384),
    ("--enable-prefix-caching", "prefix_caching", True), ("--no-enable-prefix-caching", "prefix_caching", False),
    ("", "prefix_caching", False), ("--no-async-scheduling", "async_scheduling", False),
    ("--scheduling-policy priority", "policy", "priority"), ("--num-gpu-blocks-override 6000", "num_blocks", 6000),
    ("--kv-cache-memory-bytes 45343917998", "kv_bytes_per_gpu", 45343917998.0),
    ("--kv-cache-memory 45343917998 --num-gpu-blocks-override 100", "kv_bytes_per_gpu", None),
    ("--mamba-cache-mode all", "retention_interval", "dense"),
    ("--prefix-cache-retention-interval 1536", "retention_interval", 1536),
    ("--prefix-cache-retention-interval None", "retention_interval", "dense"),
    ("--kv-cache-dtype fp8 --speculative-config '{\"method\":\"dspark\",\"num_speculative_tokens\":7}'", "draft",
     "dspark-fp8-k7"),
    ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 2", "draft", "mtp-k2"),
    ("--spec-method dspark --spec-tokens 3 --spec-model x/y", "draft", "dspark-bf16-k3"),
    ("--speculative-config '{\"method\":\"eagle3\",\"num_speculative_tokens\":3}'", "draft", "eagle3-k3"),
    ("--speculative-config '{\"model\":\"x/Y-EAGLE3\",\"num_speculative_tokens\":2}'", "draft", "eagle3-k2"),
    ("--spec-method DFlash --spec-tokens 7 --spec-model x/y", "draft", "dflash-k7"),
    ("--spec-method mtp", "draft", "mtp-k1"), ("--spec-method dflash", "draft", "none"),
    ("--spec-method ngram --spec-tokens 3", "draft", "none"),
    ("--block-size 64", "block_tokens", None),
])
def test_engine(flags: str, field: str, value: Any) -> None:
    assert getattr(vllm(flags).scenario.engine, field) == value


def test_prefix_caching_is_on_by_default_where_all_layers_keep_kv() -> None:
    assert vllm("", "meta-llama/Llama-3.1-8B-Instruct").scenario.engine.prefix_caching is True


def test_block_size_counts_where_it_is_the_engine_s_to_choose() -> None:
    assert vllm("--block-size 64", "meta-llama/Llama-3.1-8B-Instruct").scenario.engine.block_tokens == 64


def test_fp8_of_sparse_latents_is_a_format_of_its_own() -> None:
    assert vllm("--kv-cache-dtype fp8", "deepseek-ai/DeepSeek-V3.2").scenario.engine.kv_dtype == "fp8_ds_mla"



def connector(name: str, **extra: Any) -> str:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return f"-tp 8 --kv-transfer-config '{json.dumps(config)}'"


FILES = [{"type": "fs", "max_bytes": 5000}]


@pytest.mark.parametrize(("flags", "tiers"), [
    ("-tp 8 --kv-offloading-size 100", [("dram", 100 * GIB, "vllm-native", None)]),
    ("-tp 8 -dp 2 --kv-offloading-size 100", [("dram", 200 * GIB, "vllm-native", None)]),
    ("-tp 8 --kv-offloading-size 100 --kv-offloading-backend lmcache", [("dram", 100 * GIB, "lmcache", None)]),
    (connector("SimpleCPUOffloadConnector", cpu_bytes_to_use=1_889_000_000_000),
     [("dram", 1.889e12, "vllm-simple-eager", None)]),
    (connector("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=1_000_000_000, lazy_offload=True),
     [("dram", 8e9, "vllm-simple-lazy", None)]),
    (connector("OffloadingConnector", cpu_bytes_to_use=1000, store_threshold=3),
     [("dram", 1000, "vllm-native", "on-reuse")]),
    (connector("OffloadingConnector", cpu_bytes_to_use=1000, secondary_tiers=FILES),
     [("dram", 1000, "vllm-native", None), ("nvme", 5000, "vllm-native", None)]),
    ("-tp 2 --kv-transfer-config '{\"kv_connector\":\"LMCacheConnectorV1\"}'", [("dram", 10 * GIB, "lmcache", None)]),
    ("-tp 2 --kv-transfer-config '{\"kv_connector\":\"MooncakeStoreConnector\"}'", []),
    ("-tp 2 --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}'", []),
    ("-tp 2 --kv-transfer-config '{\"kv_connector\":\"MyConnector\"}'", []),
])
def test_tiers(flags: str, tiers: list[Any]) -> None:
    found = vllm(flags)
    assert [(t.kind, t.capacity, t.preset, t.write) for t in found.scenario.tiers] == tiers
    assert tiers or any("--kv-transfer-config" in n.flag for n in found.of("not modelled"))


def test_tiers_sized_in_the_environment() -> None:
    line = ("MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb LMCACHE_MAX_LOCAL_CPU_SIZE=60 vllm serve moonshotai/Kimi-K3 -tp 8 "
            "--kv-transfer-config '{\"kv_connector\":\"MultiConnector\",\"kv_connector_extra_config\":{\"connectors\":"
            "[{\"kv_connector\":\"LMCacheConnectorV1\"},{\"kv_connector\":\"MooncakeStoreConnector\"}]}}'")
    found = import_command(line, ImportOptions(gpu="b300")).scenario
    assert [(t.kind, t.capacity) for t in found.tiers] == [("dram", 480 * GIB), ("pool", 32 * GIB)]


LMCACHE = "--kv-transfer-config '{\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}'"
MOONCAKE = "--kv-transfer-config '{\"kv_connector\":\"MooncakeStoreConnector\",\"kv_role\":\"kv_both\"}'"
SEGMENT = "LMCACHE_EXTRA_CONFIG='{\"global_segment_size\": 3355443200}'"


@pytest.mark.parametrize(("env", "flags", "tiers"), [
    ("MOONCAKE_GLOBAL_SEGMENT_SIZE=80GB", MOONCAKE, [("pool", 8 * 80 * GIB, True)]),
    ("LMCACHE_MAX_LOCAL_CPU_SIZE=60", LMCACHE, [("dram", 480 * GIB, False)]),
    ("LMCACHE_MAX_LOCAL_CPU_SIZE=60 LMCACHE_ENABLE_P2P=True", LMCACHE, [("dram", 480 * GIB, True)]),
    (f"LMCACHE_LOCAL_CPU=False LMCACHE_REMOTE_URL=mooncakestore://10.0.0.1:50051/ {SEGMENT}", LMCACHE,
     [("pool", 8 * 3_355_443_200, True)]),
    (f"LMCACHE_ENABLE_P2P=1 LMCACHE_REMOTE_URL=mooncakestore://10.0.0.1:50051/ {SEGMENT}", LMCACHE,
     [("dram", 40 * GIB, False), ("pool", 8 * 3_355_443_200, True)]),
    ("LMCACHE_REMOTE_URL=lm://10.0.0.1:65432", LMCACHE, [("dram", 40 * GIB, False)]),
    ("LMCACHE_REMOTE_URL=mooncakestore://10.0.0.1:50051/ LMCACHE_EXTRA_CONFIG=none", LMCACHE,
     [("dram", 40 * GIB, False)]),
    ("LMCACHE_LOCAL_CPU=false", LMCACHE, []), ("", LMCACHE.replace("LMCacheConnectorV1", "LMCacheMPConnector"), [])])
def test_stores_that_engines_share(env: str, flags: str, tiers: list[Any]) -> None:
    found = import_command(f"{env} vllm serve moonshotai/Kimi-K3 -tp 8 {flags}", ImportOptions(gpu="b300"))
    assert [(t.kind, t.capacity, t.shared) for t in found.scenario.tiers] == tiers


def test_a_store_without_a_size_is_said() -> None:
    env = "LMCACHE_REMOTE_URL=lm://10.0.0.1:65432 LMCACHE_CONFIG_FILE=lmcache.yaml"
    found = import_command(f"{env} vllm serve moonshotai/Kimi-K3 -tp 8 {LMCACHE}", ImportOptions(gpu="b300"))
    said = {note.flag: note.text for note in found.of("not modelled")}
    assert "preset: lmcache, shared: true}" in said["--kv-transfer-config"]
    assert said.keys() >= {"LMCACHE_REMOTE_URL", "LMCACHE_CONFIG_FILE"}


def test_the_simple_connector_is_chosen_by_the_environment() -> None:
    line = "VLLM_USE_SIMPLE_KV_OFFLOAD=1 vllm serve moonshotai/Kimi-K3 -tp 8 --kv-offloading-size 10"
    assert import_command(line, ImportOptions(gpu="b300")).scenario.tiers[0].preset == "vllm-simple-eager"


@pytest.mark.parametrize(("flags", "layout", "gpus", "replicas"), [
    ("--tp 8", {"tp": 8}, 8, 1), ("--tp-size 8 --ep-size 8", {"tp": 8, "ep": 8}, 8, 1),
    ("--tp 8 --dp 8 --enable-dp-attention --ep 8", {"dp": 8, "ep": 8}, 8, 1),
    ("--tp 8 --dp 2 --enable-dp-attention", {"tp": 4, "dp": 2}, 8, 1), ("--tp 2 --dp 4", {"tp": 2}, 2, 4),
    ("--tp 4 --pp 2", {"tp": 4, "pp": 2}, 8, 1),
])
def test_sglang_layout(flags: str, layout: dict[str, int], gpus: int, replicas: int) -> None:
    found = sglang(flags).scenario
    assert {k: v for k, v in found.layout.model_dump().items() if v > 1} == layout
    assert (found.hardware.num_gpus, found.replicas) == (gpus, replicas)


@pytest.mark.parametrize(("flags", "field", "value"), [
    ("--mem-fraction-static 0.85", "gpu_memory_utilization", 0.85), ("--context-length 65536", "max_model_len", 65536),
    ("--max-running-requests 256", "max_num_seqs", 256),
    ("--chunked-prefill-size 8192", "max_num_batched_tokens", 8192),
    ("--chunked-prefill-size -1", "max_num_batched_tokens", None), ("--disable-radix-cache", "prefix_caching", False),
    ("", "prefix_caching", True), ("--disable-overlap-schedule", "async_scheduling", False),
    ("--enable-priority-scheduling", "policy", "priority"), ("--page-size 64", "block_tokens", 64),
    ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8"),
    ("--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-num-draft-tokens 3", "draft", "mtp-k2"),
    ("--speculative-algorithm EAGLE3 --speculative-num-steps 2", "draft", "eagle3-k2"),
    ("--speculative-algorithm NGRAM --speculative-num-steps 2", "draft", "none"),
])
def test_sglang_engine(flags: str, field: str, value: Any) -> None:
    assert getattr(sglang(flags).scenario.engine, field) == value


def test_hicache() -> None:
    found = sglang("--tp 8 --enable-hierarchical-cache --hicache-size 100 --hicache-write-policy write_back").scenario
    tier = found.tiers[0]
    assert (tier.kind, tier.capacity, tier.preset, tier.write) == ("dram", 800 * GIB, "hicache", "on-eviction")
    ratio = sglang("--tp 8 --enable-hierarchical-cache --hicache-ratio 2")
    assert not ratio.scenario.tiers
    assert {n.flag for n in ratio.of("not modelled")} == {"--enable-hierarchical-cache", "--hicache-ratio"}


def test_every_flag_is_spoken_of() -> None:
    found = vllm("-tp 8 --host 0.0.0.0 --quantization fp8 --enforce-eager --no-enable-lora --newest-flag 7 -O3")
    said = {n.flag: n.status for n in found.notes}
    assert said["-tp"] == "modelled"
    assert said["--host"] == said["-O3"] == said["--no-enable-lora"] == "no effect"
    assert said["--quantization"] == said["--enforce-eager"] == said["--newest-flag"] == "not modelled"
    assert "traffic" in said
    for word in ("--host", "--quantization", "--newest-flag", "Not modelled"):
        assert word in found.text()


def test_models_are_found_by_id_path_cache_and_served_name() -> None:
    for given in ("moonshotai/Kimi-K3", "kimi-k3", "/scratch/models/Kimi-K3/", "Kimi-K3",
                  "/c/models--moonshotai--Kimi-K3/snapshots/abc", "/x/y --served-model-name moonshotai/Kimi-K3"):
        assert vllm("-tp 8", given).scenario.model == "kimi-k3"


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'moonshotai/Kimi-K3'"):
        vllm("", "moonshot/Kimi-K4")


def test_the_model_may_be_named_by_the_caller() -> None:
    found = import_command("vllm serve /x/finetune -tp 8", ImportOptions(gpu="b300", model="kimi-k3"))
    assert found.scenario.model == "kimi-k3"


def test_a_missing_gpu_is_asked_for_with_the_rest() -> None:
    with pytest.raises(ScenarioError) as caught:
        import_command("vllm serve moonshotai/Kimi-K3 -tp eight --kv-transfer-config {")
    places = [p.where for p in caught.value.problems]
    assert places == ["--gpu", "-tp", "--kv-transfer-config"]


@pytest.mark.parametrize("flags", ["--max-num-seqs many", "--gpu-memory-utilization x", "--scheduling-policy lifo",
                                   "--speculative-config '[1]'", "--mamba-cache-mode some", "--max-num-seqs",
                                   "--prefix-cache-retention-interval often"])
def test_values_that_cannot_be_read_name_their_flag(flags: str) -> None:
    with pytest.raises(ScenarioError, match=flags.split()[0]):
        vllm(flags)


def test_a_configuration_file_is_read_and_overridden(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kv-cache-dtype: fp8\nasync-scheduling: true\nno-enable-prefix-caching: true\nmax-num-seqs: 8\n")
    engine = vllm(f"--config {config} --max-num-seqs 16").scenario.engine
    assert (engine.kv_dtype, engine.prefix_caching, engine.max_num_seqs) == ("fp8", False, 16)
    with pytest.raises(ScenarioError, match=r"missing\.yaml"):
        vllm("--config missing.yaml")


def test_the_image_tells_the_build() -> None:
    line = "docker run --gpus all vllm/vllm-openai:kimi-k3 --model moonshotai/Kimi-K3 -tp 8"
    assert import_command(line, ImportOptions(gpu="b300")).scenario.engine.profile == "vllm-day0"


def test_the_yaml_reads_back_and_resolves() -> None:
    found = vllm("-tp 8 --kv-cache-dtype fp8 --enable-prefix-caching --gpu-memory-utilization 0.9 "
                 "--kv-offloading-size 1760",
                 overrides=("workload={preset: agentx-v1, concurrency: 8, duration_s: 600}",))
    again = load_scenario(parse_yaml(found.yaml(), "x", ScenarioError))
    assert again == found.scenario
    assert again.workload.preset == "agentx-v1"
    assert resolve(again).capacity.kv_tokens > 3e6


def test_placeholder_traffic_fits_short_contexts() -> None:
    fixed = vllm("-tp 8 --max-model-len 1000 --max-num-seqs 4").scenario.workload
    assert fixed.fixed is not None
    assert fixed.fixed.input_tokens + fixed.fixed.output_tokens < 1000
    assert fixed.concurrency == 4
