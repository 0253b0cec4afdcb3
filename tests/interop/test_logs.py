"""Start-up logs and metrics as real engines write them, and the comparison with the prediction."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.interop.checking import LogCheck, check_log
from kvsim.interop.importing import ImportOptions
from kvsim.interop.logs import MAX_LINE_BYTES, EngineLog, read_log
from kvsim.interop.metrics import Metrics, read_sample
from kvsim.scenario import load_scenario

GIB = 2**30

LLAMA = """INFO 11-30 10:00:00 [core.py:93] Initializing a V1 LLM engine (v0.24.0) with config: model='x'
INFO [utils.py:233] non-default args: {'model': '/m/Llama-3.1-8B', 'max_model_len': 131072, \
'enable_prefix_caching': True, 'max_num_seqs': 256, 'max_num_batched_tokens': 8192, \
'gpu_memory_utilization': 0.92, 'async_scheduling': False}
Model loading took 15.21 GiB and 1.746545 seconds
Available KV cache memory: 112.08 GiB
GPU KV cache size: 918,160 tokens
Maximum concurrency for 131,072 tokens per request: 7.01x
Graph capturing finished in 4 secs, took 0.59 GiB
"""
KIMI_LINEAR = """Initializing a V1 LLM engine (v0.24.0) with config: x
non-default args: {'model': 'moonshotai/Kimi-Linear-48B-A3B-Instruct', 'max_model_len': 131072, 'max_num_seqs': 256, \
'max_num_batched_tokens': 8192, 'gpu_memory_utilization': 0.92, 'enable_prefix_caching': True, \
'mamba_cache_mode': 'align'}
Model loading took 91.56 GiB memory and 1.259384 seconds
Setting attention block size to 1888 tokens to ensure that attention page size is >= mamba page size.
Estimated CUDA graph memory: 1.42 GiB total
Available KV cache memory: 27.19 GiB
GPU KV cache size: 3,306,118 tokens
Maximum concurrency for 131,072 tokens per request: 25.22x
Graph capturing finished in 29 secs, took 1.56 GiB
"""
QWEN_NEXT = """(APIServer pid=1) INFO 09-15 04:42:00 vLLM API server version 0.10.2
(APIServer pid=1) INFO 09-15 04:42:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-Next-80B-A3B-Instruct', \
'tensor_parallel_size': 4, 'max_model_len': 32768, 'lora_modules': [LoRAModulePath(name='x', path='y')]}
(Worker_TP1 pid=9) Free memory on device (78.6/79.2 GiB) on startup. Desired GPU memory utilization is (0.9, \
71.28 GiB). Actual usage is 37.99 GiB for weight, 4.71 GiB for peak activation, 1.84 GiB for non-torch memory, and \
0.42 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=2`. \
Current kv cache memory in use is 26.7 GiB.
"""
V0_STYLE = """INFO 03-21 20:15:45 [worker.py:267] the current vLLM instance can use total_gpu_memory (79.19GiB) x \
gpu_memory_utilization (0.90) = 71.27GiB
INFO [worker.py:267] model weights take 12.55GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes \
2.38GiB; the rest of the memory reserved for KV Cache is 56.18GiB.
INFO [executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512
"""
SGLANG = """[2026-05-15 08:39:32] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', \
mem_fraction_static=0.85, max_running_requests=256, chunked_prefill_size=8192, tp_size=8, \
kv_cache_dtype='fp8_e4m3', speculative_algorithm=None, \
disable_radix_cache=False, foo=Bar(x=1), cuda_graph_bs=[1, 2, 4])
[2026-05-15 08:39:33 TP0] Load weight begin. avail mem=176.3 GB
[2026-05-15 08:40:03 TP0] Load weight end. elapsed=23.18 s, type=DeepseekV3ForCausalLM, avail mem=92.0 GB, \
mem usage=82.79 GB.
[2026-05-15 08:40:03 TP1] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=92.0 GB, \
mem usage=82.7 GB.
[2026-05-15 08:40:04 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1843872, KV size: 60.36 GB
[2026-05-15 08:40:05 TP0] KV Cache is allocated. #tokens: 99, K size: 2.38 GB, V size: 2.38 GB
[2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 8.04 s. mem usage=1.93 GB. avail mem=10.30 GB.
[2026-05-15 08:40:32 TP1] Capture cuda graph end. Time elapsed: 8.14 s. mem usage=1.94 GB. avail mem=10.30 GB.
[2026-05-15 08:40:40 TP0] Capture target prefill CUDA graph end. elapsed=8.04 s, mem usage=0.50 GB, avail mem=9.8 GB
[2026-05-15 08:40:41 TP0] max_total_num_tokens=1843872, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=256, context_len=163840, available_gpu_mem=8.16 GB
"""
HYBRID_SGLANG = """[2026-02-01 00:05:03 TP0] Mamba Cache is allocated. max_mamba_cache_size: 38, \
conv_state size: 0.03GB, ssm_state size: 2.74GB
[2026-02-01 00:05:03 TP0] KV Cache is allocated. #tokens: 399740, K size: 1.52 GB, V size: 1.52 GB
"""
METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="1536",cache_dtype="fp8",num_gpu_blocks="2135",num_gpu_blocks_override="None"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="k3"} 700.0
vllm:prefix_cache_queries_total{engine="1",model_name="k3"} 300.0
vllm:prefix_cache_hits_total{engine="0"} 27.0
vllm:external_prefix_cache_hits_total{engine="0"} 620.0
vllm:num_preemptions_total{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.98
vllm:request_success_total{finished_reason="stop"} 40
vllm:request_success_total{finished_reason="length"} 2
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 10
vllm:time_to_first_token_seconds_sum 860 1732000000000
vllm:time_to_first_token_seconds_count 10
vllm:e2e_request_latency_seconds_count 0
vllm:weird NaN
"""


def log_of(folder: Path, text: str) -> EngineLog:
    path = folder / "server.log"
    path.write_text(text)
    return read_log(path)


def check(folder: Path, text: str, gpu: str, profile: str | None = None) -> LogCheck:
    return check_log(log_of(folder, text), None, ImportOptions(gpu=gpu, engine_profile=profile))


def test_values_of_every_format(tmp_path: Path) -> None:
    llama = log_of(tmp_path, LLAMA)
    assert (llama.engine, llama.version) == ("vllm", "0.24.0")
    assert llama.values["weight_bytes"] == pytest.approx(15.21 * GIB)
    assert llama.values["kv_tokens"] == 918_160
    assert llama.args["max_num_seqs"] == 256
    qwen = log_of(tmp_path, QWEN_NEXT)
    assert qwen.values["non_torch_bytes"] == pytest.approx(1.84 * GIB)
    assert qwen.values["total_bytes"] == pytest.approx(79.2 * GIB)
    assert qwen.values["graph_bytes"] == pytest.approx(0.42 * GIB)
    assert qwen.args["tensor_parallel_size"] == 4
    old = log_of(tmp_path, V0_STYLE)
    assert (old.values["num_blocks"], old.values["share"]) == (7191, 0.9)
    assert old.values["activation_bytes"] == pytest.approx(2.38 * GIB)


def test_sglang_values(tmp_path: Path) -> None:
    log = log_of(tmp_path, SGLANG)
    assert log.engine == "sglang"
    assert log.values["weight_bytes"] == pytest.approx(82.79 * GIB)
    assert log.values["kv_bytes"] == pytest.approx(60.36 * GIB), "the target's pool, not the draft's"
    assert log.values["graph_bytes"] == pytest.approx(2.44 * GIB), "kinds add up, ranks do not"
    assert (log.values["kv_tokens"], log.values["max_model_len"]) == (1_843_872, 163_840)
    assert (log.args["tp_size"], log.args["kv_cache_dtype"]) == (8, "fp8_e4m3")
    hybrid = log_of(tmp_path, HYBRID_SGLANG)
    assert hybrid.values["kv_bytes"] == pytest.approx((2 * 1.52 + 2.77) * GIB)
    assert hybrid.values["state_slots"] == 38


@pytest.mark.golden
@pytest.mark.parametrize(("text", "blocks", "points"), [(LLAMA, 57_385, 2.0), (KIMI_LINEAR, 1_917, 5.0)])
def test_own_runs_to_the_block(tmp_path: Path, text: str, blocks: int, points: float) -> None:
    """The engine's own block count of our measured runs follows from the log; the prediction is near."""
    found = check(tmp_path, text, "h200", "vllm-0.24-h200")
    assert found.scenario.engine.num_blocks == blocks
    assert abs(found.points) < points


def test_points_add_up(tmp_path: Path) -> None:
    found = check(tmp_path, QWEN_NEXT, "h100")
    assert found.points == pytest.approx(100 * (26.7 * GIB / found.predicted_kv_bytes - 1))
    explained = sum(p.points for p in found.parts if p.logged_bytes is not None)
    assert explained + found.unexplained_points == pytest.approx(found.points, abs=1e-9)
    graphs = next(p for p in found.parts if p.name == "CUDA graphs")
    assert graphs.logged_bytes == 0.0, "0.10 did not take graphs off the pool"
    activation = next(p for p in found.parts if p.name == "activation peak")
    expected = 100 * (-4.71 * GIB - activation.predicted_bytes) / found.predicted_kv_bytes
    assert activation.points == pytest.approx(expected)
    text = found.text()
    assert "your engine holds" in text
    assert "less KV than predicted: 26.70 GiB per GPU" in text


def test_a_scenario_is_set_and_its_settings_compared(tmp_path: Path) -> None:
    scenario = load_scenario("k3-b300-study", ["engine.kv_bytes_per_gpu=null"])
    args = {"model": "/x", "served_model_name": ["k"], "tensor_parallel_size": 8, "max_num_seqs": 32,
            "kv_cache_dtype": "fp8"}
    log = log_of(tmp_path, f"non-default args: {args}\nAvailable KV cache memory: 42.23 GiB\n"
                           "GPU KV cache size: 3,249,215 tokens\n"
                           "Maximum concurrency for 1,048,576 tokens per request: 3.10x\n")
    found = check_log(log, scenario)
    assert found.scenario.engine.num_blocks == 2135
    assert found.scenario.engine.kv_bytes_per_gpu is None
    assert found.scenario.workload == scenario.workload
    assert any(n.startswith("max_num_seqs: the scenario says 64, the log says 32") for n in found.notes)
    assert any(n.startswith("prefix_caching") for n in found.notes)
    assert not any(n.startswith(("model", "layout")) for n in found.notes)


def test_tokens_alone_give_the_blocks(tmp_path: Path) -> None:
    found = check_log(log_of(tmp_path, "GPU KV cache size: 3,249,215 tokens\n"), load_scenario("k3-b300-study"))
    assert found.scenario.engine.num_blocks == 2135
    assert found.logged_kv_bytes == pytest.approx(42.23 * GIB, rel=1e-3)


def test_bytes_that_fit_no_block_count_are_taken_as_they_are(tmp_path: Path) -> None:
    text = "Available KV cache memory: 30.00 GiB\nGPU KV cache size: 3,249,215 tokens\n"
    found = check_log(log_of(tmp_path, text), load_scenario("k3-b300-study"))
    assert found.scenario.engine.kv_bytes_per_gpu == pytest.approx(30 * GIB)


def test_an_ordered_pool_says_nothing_about_the_prediction(tmp_path: Path) -> None:
    text = LLAMA.replace("'max_num_seqs'", "'num_gpu_blocks_override': 6000, 'max_num_seqs'")
    text = text.replace("918,160", "96,000")
    found = check(tmp_path, text, "h200", "vllm-0.24-h200")
    assert found.scenario.engine.num_blocks == 6000
    assert math.isnan(found.points)
    assert found.to_dict()["difference_points"] is None


def test_sglang_pool(tmp_path: Path) -> None:
    found = check(tmp_path, SGLANG, "b200")
    assert found.log.engine == "sglang"
    assert found.scenario.layout.tp == 8
    assert found.logged_kv_bytes == pytest.approx(60.36 * GIB)
    assert [p.name for p in found.parts if p.logged_bytes is not None] == ["weights"]


def test_metrics(tmp_path: Path) -> None:
    log = log_of(tmp_path, METRICS)
    assert log.values["num_blocks"] == 2135
    assert "pool_override" not in log.values
    traffic = log.metrics.traffic()
    assert traffic["hit_rate"] == pytest.approx(0.027)
    assert traffic["external_hit_rate"] == pytest.approx(0.62)
    assert (traffic["requests"], traffic["preemptions"], traffic["ttft_s"]) == (42, 3, 86)
    assert "e2e_s" not in traffic
    found = check_log(log, load_scenario("k3-b300-study"))
    assert found.scenario.engine.num_blocks == 2135
    assert "prefix hit rate 2.7%" in found.text()


def test_sglang_metrics(tmp_path: Path) -> None:
    log = log_of(tmp_path, 'sglang:max_total_num_tokens{tp_rank="0"} 471258.0\nsglang:cache_hit_rate 0.33\n'
                           'sglang:token_usage 0.5\nsglang:num_retracted_requests_total 4\n')
    assert log.engine == "sglang"
    assert log.values["kv_tokens"] == 471_258
    assert log.metrics.traffic() == {"preemptions": 4, "kv_usage": 0.5, "hit_rate": 0.33}


def test_metrics_without_memory_leave_the_scenario_alone(tmp_path: Path) -> None:
    scenario = load_scenario("k3-b300-study")
    found = check_log(log_of(tmp_path, "vllm:num_preemptions_total 3\n"), scenario)
    assert found.scenario == scenario
    assert "does not say how large the pool is" in found.text()


@pytest.mark.parametrize(("content", "said"), [
    (b"", "Available KV cache memory"), (b"hello\nworld\n", "Available KV cache memory"),
    (b"\x7fELF\0\0\0", "a binary file"), (b"\xff\xfe" + b"x" * 100, "Available KV cache memory")])
def test_files_that_are_no_log(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=said):
        read_log(path)
    with pytest.raises(ScenarioError, match="No such file"):
        read_log(tmp_path / "nothing")


def test_a_log_without_arguments_asks_for_a_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="--scenario"):
        check_log(log_of(tmp_path, "Available KV cache memory: 42.23 GiB\n"))


def test_one_endless_line_is_cut(tmp_path: Path) -> None:
    text = "Available KV cache memory: 42.23 GiB" + " " * (3 * MAX_LINE_BYTES)
    text += "\nGPU KV cache size: 3,249,215 tokens\n"
    log = log_of(tmp_path, text)
    assert set(log.values) == {"kv_bytes", "kv_tokens"}


@given(st.text(max_size=200))
def test_any_line_of_metrics_is_read_or_passed_over(line: str) -> None:
    read_sample(f"vllm:{line}", Metrics())


BROKEN = ["{", "server_args=ServerArgs(", "non-default args: {'a': ", "GPU KV cache size: ,,, tokens",
          "Available KV cache memory: -- GiB"]


@given(st.lists(st.sampled_from([*LLAMA.splitlines(), *SGLANG.splitlines(), *METRICS.splitlines(), *BROKEN])))
def test_lines_in_any_order(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("logs") / "x.log"
    path.write_text("\n".join(lines))
    try:
        log = read_log(path)
    except ScenarioError:
        return
    assert all(math.isfinite(value) for value in log.values.values())
