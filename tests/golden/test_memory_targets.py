"""Published numbers about memory: each with its source and a tolerance that was fixed before the first run.

InferenceX means https://github.com/SemiAnalysisAI/InferenceX; a commit is at ``/commit/<hash>``, a pull request at
``/pull/<number>``.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.capacity import kv_capacity
from kvsim.errors import InfeasibleError
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved
from tests.memory.helpers import geometry, model

pytestmark = pytest.mark.golden

MILLION = 1_048_576
GIB = 2.0**30


def k3(gpu: str, num_gpus: int = 8, **settings: Any) -> Resolved:
    """Kimi K3 with max_model_len 1,048,576 and the first vLLM that served it, at utilization 0.90."""
    asked: dict[str, Any] = {"tp": 8, "kv_dtype": "fp8", "gpu_memory_utilization": 0.9, "max_model_len": MILLION}
    return kv_capacity("kimi-k3", gpu, num_gpus, **{**asked, **settings})


def test_kv_bytes_per_token_of_k3() -> None:
    # moonshotai/Kimi-K3 config.json: 24 MLA layers x (512 + 64) x 2 or 1 byte. Exact.
    assert model_bytes_per_token(model("kimi-k3"), "bf16") == 27_648
    assert model_bytes_per_token(model("kimi-k3"), "fp8") == 13_824


def test_constant_state_of_k3() -> None:
    # config.json: exact; per rank at TP8 and with two draft tokens as ATOM prints it (InferenceX #2670): 0.01 MiB.
    assert model_state_bytes(model("kimi-k3")) == 449_372_160
    assert model_state_bytes(model("kimi-k3")) / 8 / 2**20 == pytest.approx(53.57, abs=0.01)
    assert model_state_bytes(model("kimi-k3"), draft_tokens=2) / 8 / 2**20 == pytest.approx(54.78, abs=0.01)


@pytest.mark.parametrize(("dtype", "gib", "blocks", "tokens"), [
    # InferenceX commits f04fbe68f (8 x B300), 8ea2c08b5 and d5b6f7a6b (8 x MI355X). Exact from whole blocks; 0.1 % from
    # GiB, which the logs round to two decimals.
    ("fp8", 42.23, 2135, 3_249_215), ("bf16", 50.66, 2561, 1_957_290), ("bf16", 58.08, 2937, 2_244_655),
])
def test_logged_pools_of_k3(dtype: str, gib: float, blocks: int, tokens: int) -> None:
    found = geometry("kimi-k3", dtype, tp=8)
    assert found.logged_tokens(blocks, MILLION, "product") == tokens
    assert found.logged_tokens(found.num_blocks(gib * GIB), MILLION, "product") == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize(("caching", "blocks", "tokens"), [(True, 1851, 1_414_660), (False, 1855, 1_420_824)])
def test_prefix_caching_costs_a_state_block_a_group(caching: bool, blocks: int, tokens: int) -> None:
    # InferenceX commit e5dbf4459, 8 x MI355X, bf16. Exact.
    found = geometry("kimi-k3", "bf16", tp=8, prefix_caching=caching)
    assert found.logged_tokens(blocks, MILLION, "product") == tokens


def test_predicted_pool_of_k3_on_b300() -> None:
    # InferenceX commit f04fbe68f: 8 x B300, utilization 0.90, prefill budget 16,384: 42.23 GiB a GPU, 3,249,215
    # tokens. 10 %, since the activation reserve is assumed.
    found = k3("b300", max_num_batched_tokens=16_384)
    assert found.budget.kv_bytes / GIB == pytest.approx(42.23, rel=0.10)
    assert found.capacity.kv_tokens == pytest.approx(3_249_215, rel=0.10)
    low, high = found.budget.kv_bytes_range
    assert low <= 42.23 * GIB <= high


@pytest.mark.parametrize(("gpu", "num_gpus", "layout"), [
    ("b200", 8, {"tp": 8}), ("b300", 4, {"tp": 4}),
])
def test_k3_does_not_fit(gpu: str, num_gpus: int, layout: dict[str, int]) -> None:
    # https://recipes.vllm.ai/moonshotai/Kimi-K3: what it needs at least. Exact.
    with pytest.raises(InfeasibleError):
        k3(gpu, num_gpus, **layout)


@pytest.mark.parametrize(("gpu", "num_gpus", "layout"), [
    ("b300", 8, {"tp": 8}), ("mi355x", 8, {"tp": 8}), ("b200", 16, {"tp": 8, "pp": 2}), ("b200", 16, {"tp": 16}),
])
def test_k3_fits(gpu: str, num_gpus: int, layout: dict[str, int]) -> None:
    # https://recipes.vllm.ai/moonshotai/Kimi-K3. Exact.
    assert k3(gpu, num_gpus, **layout).capacity.max_concurrency > 1


def test_context_parallel_pool_of_k3() -> None:
    # InferenceX #2802: TP8 x DCP8 on 8 x B300 holds about 21.6M tokens. 15 %, since it is inferred from the pool's use.
    found = k3("b300", dcp=8, max_num_batched_tokens=16_384)
    assert found.capacity.kv_tokens == pytest.approx(21.6e6, rel=0.15)


def test_a_resident_draft_takes_a_fifth_of_the_pool() -> None:
    # InferenceX commit 6bb96187b: 8 x MI355X, bf16, DSpark with k = 7: 1,723,308 of 2,204,913 tokens, x 0.78.
    # 5 points.
    whole = k3("mi355x", kv_dtype="bf16", max_num_batched_tokens=4096)
    drafted = k3("mi355x", kv_dtype="bf16", max_num_batched_tokens=4096, draft="dspark-bf16-k7")
    assert drafted.capacity.kv_tokens / whole.capacity.kv_tokens == pytest.approx(0.78, abs=0.05)


@pytest.mark.parametrize(("name", "gib"), [("deepseek-v4-pro", 9.62), ("deepseek-v3.2", 83.9)])
def test_a_million_tokens_of_deepseek(name: str, gib: float) -> None:
    # https://vllm.ai/blog/deepseek-v4: KV of 1M tokens in bf16. 1 %.
    assert model_bytes_per_token(model(name), "bf16") * MILLION / GIB == pytest.approx(gib, rel=0.01)


def test_logged_pool_of_kimi_k2() -> None:
    # https://vllm.ai/blog/2026-08-07-decode-context-parallelism: 46.80 GiB a GPU, bf16. 0.1 %; x 8 with DCP8.
    alone, sharded = (geometry("kimi-k2", "bf16", tp=8, dcp=dcp) for dcp in (1, 8))
    blocks = alone.num_blocks(46.80 * GIB)
    assert alone.logged_tokens(blocks, 262_144, "uniform") == pytest.approx(715_072, rel=1e-3)
    assert sharded.logged_tokens(blocks, 262_144, "uniform") == pytest.approx(5_721_088, rel=1e-3)


def test_host_memory_for_a_cache_tier_of_the_benchmark() -> None:
    # InferenceX perf-changelog (#2371): 1,889 GB at a DRAM share of 0.63 and TP8 on b300-nv. 1 GB.
    # The benchmark's rule (configs/runners.yaml): min(available, 2,861,022 MiB) x share x TP / GPUs of the node.
    node = default_store().get("node", "hgx-b300-8")
    assert node.host_dram is not None
    assert node.host_dram.available is not None
    usable = min(node.host_dram.available.base, 2_861_022 * 2**20)
    assert usable * 0.63 * 8 / node.num_gpus.base / 1e9 == pytest.approx(1889, abs=1)
