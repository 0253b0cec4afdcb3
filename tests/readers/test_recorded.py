"""The published traces: the statistics that were printed when they were collected, and that they can be played."""

from __future__ import annotations

import gzip
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import ScenarioError
from kvsim.workload.fit import fit
from kvsim.workload.preset_file import load_preset
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.report import ReadReport
from kvsim.workload.replay import session_trees_of
from kvsim.workload.table import Trace, trace_of_trees
from kvsim.workload.trace_info import Info, trace_info
from tests.workload.helpers import read_sessions

pytestmark = pytest.mark.golden


@cache
def recorded(path: Path) -> tuple[Trace, ReadReport]:
    trace, report = read_trace(path)
    assert not report.bad
    assert not report.skipped
    return trace, report


def info_of(folder: Path, name: str) -> Info:
    return trace_info(recorded(folder / name)[0])


# As printed: requests, span [s], input mean p50 p90 p99 max, output mean p50 p90 max [tokens], infinite hits in blocks
# and tokens [%].
STATISTICS = {
    "mooncake_fast25_conversation.jsonl.gz": (
        12_031, 3_537, (12_035, 6_909, 27_367, 85_400, 126_195), (343, 350, 597, 2_000), (36.64, 37.36)),
    "mooncake_fast25_synthetic.jsonl.gz": (
        3_993, 1_022, (15_325, 11_587, 38_611, 66_456, 191_378), (149, 69, 389, 893), (63.96, 65.12)),
    "kvcache_tester_all710_rle.jsonl.gz": (
        49_334, None, (122_379, 103_659, 233_633, 498_519, 894_371), (440, 216, 898, 18_195), (96.34, 96.32)),
    "kvcache_tester_openloop100.jsonl.gz": (
        5_786, 89_580, (135_946, 113_508, 276_710, 450_354, 542_666), (449, 230, 911, 9_183), (96.23, 96.20)),
    "lmcache_agent_bytes256.jsonl.gz": (1_619, None, (2_476,), (), (89.57, 88.43)),
    "azure_llm_2023_code.csv.gz": (8_819, 3_436, (2_048, 1_469, 5_188, 7_436, 7_437), (28, 13, 55, 1_899), None),
    "azure_llm_2023_conv.csv.gz": (19_366, 3_502, (1_155, 1_020, 2_735, 4_142, 14_050), (211, 129, 424, 1_000), None),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_printed_statistics(traces: Path, name: str) -> None:
    requests, span_s, inputs, outputs, hits = STATISTICS[name]
    info = info_of(traces, name)
    assert info.num_requests == requests
    if span_s is not None:
        assert info.span_s == pytest.approx(span_s, abs=0.5)
    i, o = info.input_tokens, info.output_tokens
    # Printed to the token; where a percentile lies between two values, rounding a half may go either way.
    assert [i.mean, i.p50, i.p90, i.p99, i.max][:len(inputs)] == pytest.approx(list(inputs), abs=0.5 + 1e-9)
    assert [o.mean, o.p50, o.p90, o.max][:len(outputs)] == pytest.approx(list(outputs), abs=0.5 + 1e-9)
    if hits is None:
        assert info.infinite_token_hit_rate is None
    else:
        assert info.infinite_block_hit_rate is not None
        assert info.infinite_token_hit_rate is not None
        assert [100 * info.infinite_block_hit_rate, 100 * info.infinite_token_hit_rate] == pytest.approx(
            list(hits), abs=0.005)


def test_printed_arrivals_and_sessions(traces: Path) -> None:
    code, conv = (info_of(traces, f"azure_llm_2023_{name}.csv.gz") for name in ("code", "conv"))
    assert (code.rate_per_s, code.gap_cv) == (pytest.approx(2.57, abs=0.005), pytest.approx(13.2, abs=0.05))
    assert (conv.rate_per_s, conv.gap_cv) == (pytest.approx(5.53, abs=0.005), pytest.approx(1.09, abs=0.005))
    sessions = info_of(traces, "kvcache_tester_all710_rle.jsonl.gz")
    assert sessions.session_span_s is not None
    assert sessions.session_span_s.p50 / 60 == pytest.approx(60, abs=0.5)
    assert sessions.session_span_s.p90 / 60 == pytest.approx(400, abs=0.5)
    assert info_of(traces, "kvcache_tester_openloop100.jsonl.gz").num_subagent_requests == 65
    conversation = recorded(traces / "mooncake_fast25_conversation.jsonl.gz")[0]
    assert len(np.unique(conversation.time_s)) == 1_180
    rounds, replay = (recorded(traces / f"tracelab_{n}")[0] for n in (
        "example_rounds.jsonl.gz", "multi_session_large.csv.gz"))
    assert (len(rounds), len(replay), replay.num_sessions) == (19, 303, 48)
    assert int(rounds.cached_tokens.min()) == 3_456


def test_servegen_has_the_rates_of_its_windows(traces: Path) -> None:
    path = traces / "servegen_deepseek_r1_top15.jsonl.gz"
    trace, report = recorded(path)
    with gzip.open(path, "rt") as file:
        windows = [window for line in file for window in json.loads(line)["windows"]]
    assert report.num_rows == 15
    assert len(trace) == pytest.approx(sum(600 * rate for start_s, rate, *_ in windows if start_s < 3600), rel=0.02)


def test_original_and_run_length_form_give_the_same_rows(traces: Path) -> None:
    sample, whole = (recorded(traces / name)[0] for name in (
        "weka_original_format_sample.jsonl.gz", "kvcache_tester_all710_rle.jsonl.gz"))
    rows = np.isin(whole.session, [whole.session_names.index(n) for n in sample.session_names])
    assert np.array_equal(sample.input_tokens, whole.input_tokens[rows])
    assert np.array_equal(sample.time_s, whole.time_s[rows])


def test_trees_come_back_from_the_common_form(traces: Path) -> None:
    trees, _ = read_sessions(traces / "weka_original_format_sample.jsonl.gz")
    back = session_trees_of(trace_of_trees(trees, 64))
    assert [t.id for t in back] == [t.id for t in trees]
    for tree, twin in zip(trees, back, strict=True):
        for column in ("stream", "kind", "start_s", "gap_s", "dep_offsets", "dep_index", "output_tokens",
                       "piece_offsets", "piece_tokens"):
            assert np.array_equal(getattr(tree, column), getattr(twin, column)), column
        both = np.concatenate([tree.piece_content, tree.output_content])
        assert len(set(zip(both.tolist(), np.concatenate(
            [twin.piece_content, twin.output_content]).tolist(), strict=True))) == len(set(both.tolist()))


@pytest.mark.parametrize("name", ["kvcache_tester_openloop100.jsonl.gz", "tracelab_example_rounds.jsonl.gz",
                                  "tracelab_multi_session_large.csv.gz", "lmcache_agent_bytes256.jsonl.gz",
                                  "azure_llm_2023_code.csv.gz", "mooncake_fast25_synthetic.jsonl.gz"])
def test_every_trace_plays_open_and_closed(traces: Path, name: str) -> None:
    trace, _ = recorded(traces / name)
    opened = trace.to_workload("open", rate_factor=2.0).requests
    assert np.array_equal(opened.arrival_s, trace.time_s / 2)
    assert np.array_equal(opened.prompt_tokens, np.maximum(trace.input_tokens, 1))
    closed = trace.to_workload("closed", concurrency=4)
    assert closed.lane_sessions is not None
    assert len(closed.lane_sessions) == 4
    assert (np.diff(closed.requests.piece_offsets) > 0).all()
    assert closed.requests.output_tokens.min() >= 1


def test_sessions_without_a_common_clock_need_a_rate(traces: Path) -> None:
    trace, _ = recorded(traces / "weka_original_format_sample.jsonl.gz")
    with pytest.raises(ScenarioError, match="no common clock"):
        trace.to_workload("open")
    played = trace.to_workload("open", sessions_per_s=0.1).requests
    assert len(played) == len(trace)
    first = np.unique(played.session, return_index=True)[1]
    assert played.arrival_s[first].tolist() == pytest.approx([10.0 * k for k in range(75)])


def test_fitted_preset_resembles_the_trace(traces: Path, tmp_path: Path) -> None:
    found = fit(recorded(traces / "kvcache_tester_openloop100.jsonl.gz")[0], "openloop")
    rows = {name: (a, b) for name, a, b in found.goodness}
    for quantity, statistic, tolerance in (("turns", 1, 0.1), ("output tokens", 1, 0.1), ("gap [s]", 1, 0.1),
                                           ("first prompt tokens", 1, 0.25), ("new tokens per turn", 1, 0.25),
                                           ("input tokens", 0, 0.25)):
        recorded_value, generated = (values[statistic] for values in rows[quantity])
        assert generated == pytest.approx(recorded_value, rel=tolerance), quantity
    hits = rows["infinite-cache hit rate"]
    assert hits[1][0] == pytest.approx(hits[0][0], abs=0.015)
    path = tmp_path / "preset.yaml"
    path.write_text(found.to_yaml())
    assert load_preset(path) == found.preset
    assert "infinite-cache hit rate" in found.text()
    assert math.isclose(found.to_dict()["preset"]["turns"]["median"], found.preset.turns.median)
