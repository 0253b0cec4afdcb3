"""KV throughput in reports, and the choice between loading and computing again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.cli import cli
from kvsim.errors import ScenarioError
from kvsim.load_or_recompute import LENGTHS, load_or_recompute
from kvsim.report.kv_throughput import kv_throughput
from kvsim.scenario import load_scenario
from kvsim.steptime.base import LinearStepTime

TINY = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
        "engine": {"max_model_len": 40_000},
        "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 10}, "concurrency": 2}}


def test_bytes_over_seconds_by_hand() -> None:
    row, = kv_throughput(LinearStepTime(0.01, 1e-4, 0.0), 1000.0, 5e6, 8192, [10_000])
    assert row.kv_bytes == 15e6
    assert row.prefill_s == pytest.approx(1.02)
    assert row.bytes_per_s == pytest.approx(15e6 / 1.02)


def test_a_report_has_it_up_to_its_longest_context() -> None:
    report = kvsim.simulate(TINY)
    assert [k.context_tokens for k in report.kv_throughput] == [2_048, 8_192, 32_768]
    assert report.kv_throughput[0].kv_bytes == 2_048 * 131_072
    shown = report.to_dict()["kv_throughput"]
    assert shown[1].keys() == {"context_tokens", "kv_bytes", "prefill_s", "bytes_per_s"}


def test_constant_state_makes_little_kv_for_long_contexts() -> None:
    """Per second of prefill Kimi K3 makes 20 times less KV than Llama 8B does on one GPU of older make."""
    k3 = {k.context_tokens: k for k in load_or_recompute(load_scenario("k3-b300-dram"), [131_072]).kv_throughput}
    assert k3[131_072].bytes_per_s < 0.3e9
    assert kvsim.simulate(TINY).kv_throughput[-1].bytes_per_s > 1e9


def test_load_times_are_blocks_over_the_link() -> None:
    """Kimi K3: 1,536 tokens a block of 21,233,664 bytes, three blocks for the checkpoint."""
    found = load_or_recompute(load_scenario("k3-b300-dram"), [15_360])
    row = found.rows[0]
    blocks = row.moved_bytes_per_gpu / 21_233_664
    assert blocks == 13
    assert row.load_s["dram"] == pytest.approx(row.moved_bytes_per_gpu / found.link_bytes_per_s["dram"])
    assert row.load_s["dram"] < row.recompute_s / 50


@settings(max_examples=20, deadline=None)
@given(st.floats(1e6, 1e12), st.integers(1, 40_000))
def test_loading_pays_from_the_break_even_on_and_not_below(rate: float, tokens: int) -> None:
    scenario = kvsim.Scenario.from_dict({**TINY, "tiers": [
        {"kind": "dram", "capacity": "1 TB", "read_bandwidth_per_gpu": f"{rate} B/s"}]})
    found = load_or_recompute(scenario, [tokens])
    row, limit = found.rows[0], found.break_even_tokens["dram"]
    if limit is not None and tokens >= limit:
        assert row.load_s["dram"] < row.recompute_s
    elif limit is None:
        assert load_or_recompute(scenario, [40_000]).rows[0].load_s["dram"] >= row.recompute_s


def test_lengths_that_no_request_can_have() -> None:
    with pytest.raises(ScenarioError, match="no such context lengths"):
        load_or_recompute(kvsim.Scenario.from_dict(TINY), [50_000])


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    chart, data = tmp_path / "page.html", tmp_path / "out.json"
    done = CliRunner().invoke(cli, ["load-or-recompute", "k3-b300-dram", "--lengths", "8192,131072",
                                    "--json", str(data), "--chart", str(chart)])
    assert done.exit_code == 0, done.output
    assert "dram: loading is faster from 1,536 tokens on" in done.output
    assert {"rows", "break_even_tokens", "link_bytes_per_s", "kv_throughput"} <= json.loads(data.read_text()).keys()
    assert "Load or recompute" in chart.read_text()


def test_the_usual_lengths_ascend() -> None:
    assert sorted(LENGTHS) == list(LENGTHS)
