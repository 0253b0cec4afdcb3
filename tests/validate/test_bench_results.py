"""Results of benchmark clients beside a scenario."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import TraceError
from kvsim.scenario import load_scenario
from kvsim.validate.bench_results import compare_results, read_results

VLLM = {"date": "20261130-120000", "backend": "vllm", "model_id": "llama", "max_concurrency": 4, "duration": 10.0,
        "completed": 20, "request_throughput": 2.0, "output_throughput": 40.0, "total_token_throughput": 1040.0,
        "mean_ttft_ms": 100.0, "median_ttft_ms": 90.0, "p99_ttft_ms": 200.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0,
        "ttfts": [], "input_lens": [500]}
GUIDELLM = {"metadata": {"version": 1}, "benchmarks": [
    {"config": {"strategy": {"type_": "concurrent", "streams": streams}},
     "metrics": {"requests_per_second": {"successful": {"mean": 2.0}},
                 "output_tokens_per_second": {"successful": {"mean": 40.0}},
                 "tokens_per_second": {"successful": {"mean": 1040.0}},
                 "request_latency": {"successful": {"mean": 0.5, "median": 0.4, "percentiles": {"p95": 0.8}}},
                 "time_to_first_token_ms": {"successful": {"mean": 100.0, "median": 90.0, "percentiles": {}}},
                 "inter_token_latency_ms": {"successful": {"mean": 10.0}}}} for streams in (1, 4)]}
AIPERF = {"schema_version": "1.3", "benchmark_id": "f43", "input_config": {"loadgen": {"concurrency": 4}},
          "request_throughput": {"unit": "requests/sec", "avg": 2.0},
          "output_token_throughput": {"unit": "tokens/sec", "avg": 40.0},
          "request_latency": {"unit": "ms", "avg": 500.0, "p50": 400.0, "p99": 900.0},
          "time_to_first_token": {"unit": "ms", "avg": 100.0, "p50": 90.0},
          "inter_token_latency": {"unit": "ms", "avg": 10.0}}
SCENARIO = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
            "workload": {"fixed": {"num_requests": 8, "input_tokens": 500, "output_tokens": 20}, "concurrency": 2}}


def written(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize(("data", "tool", "concurrencies"), [
    (VLLM, "vllm bench serve", [4]), (GUIDELLM, "guidellm", [1, 4]), (AIPERF, "aiperf", [4])])
def test_figures_in_base_units(tmp_path: Path, data: Any, tool: str, concurrencies: list[int]) -> None:
    results = read_results(written(tmp_path / "r.json", data))
    assert [r.tool for r in results] == [tool] * len(concurrencies)
    assert [r.concurrency for r in results] == concurrencies
    figures = results[0].figures
    assert figures["throughput.requests_per_s"] == 2.0
    assert figures["throughput.output_tokens_per_s"] == 40.0
    assert figures["latency.ttft_s.mean"] == pytest.approx(0.1)
    assert figures["latency.ttft_s.p50"] == pytest.approx(0.09)
    assert figures["latency.itl_s.mean"] == pytest.approx(0.01)


@pytest.mark.parametrize("data", [GUIDELLM, AIPERF])
def test_request_latency_has_its_own_unit(tmp_path: Path, data: Any) -> None:
    figures = read_results(written(tmp_path / "r.json", data))[0].figures
    assert figures["latency.e2e_s.mean"] == pytest.approx(0.5)
    assert figures["latency.e2e_s.p50"] == pytest.approx(0.4)


@pytest.mark.parametrize(("data", "said"), [
    ("{", "cannot read"), ([1], "a list"), ({"a": 1}, "unknown format"), ({}, "keys none"),
    ({"benchmarks": []}, "no figure"),
    ({"output_throughput": None, "mean_ttft_ms": None}, "no figure")])
def test_other_files_are_refused(tmp_path: Path, data: Any, said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        read_results(written(tmp_path / "other.json", data))
    assert "other.json" in str(caught.value)


def test_a_scenario_is_run_at_the_concurrency_of_the_file(tmp_path: Path) -> None:
    found = compare_results(written(tmp_path / "r.json", GUIDELLM), load_scenario(SCENARIO))
    alone, together = (next(f for f in c.figures if f.name == "throughput.requests_per_s") for c in found.compared)
    assert together.predicted > 1.5 * alone.predicted
    assert alone.error_frac == pytest.approx(alone.predicted / 2.0 - 1.0)
    assert found.text().splitlines()[-1] == found.score()
    assert found.score().startswith("results: median error ")
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    errors = [abs(figure["error_frac"]) for result in data["results"] for figure in result["figures"]]
    assert data["score"] == {"compared_figures": len(errors), "median_error_frac": statistics.median(errors),
                             "worst_error_frac": max(errors)}


def test_total_throughput_counts_prompts(tmp_path: Path) -> None:
    compared, = compare_results(written(tmp_path / "r.json", VLLM), load_scenario(SCENARIO)).compared
    figures = {f.name: f.predicted for f in compared.figures}
    ratio = figures["throughput.total_tokens_per_s"] / figures["throughput.output_tokens_per_s"]
    assert ratio == pytest.approx(520 / 20, rel=0.05)
