"""Every format from a small file worked out by hand; the format is found from the content alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import TraceError
from kvsim.workload.readers.read import detect, parse_mapping, read_trace
from kvsim.workload.readers.reading import ReadOptions
from kvsim.workload.readers.report import ReadReport
from kvsim.workload.table import Trace
from kvsim.workload.trace_info import infinite_hits, trace_info


def write(folder: Path, text: str, name: str = "file") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(folder: Path, text: str, **options: Any) -> tuple[Trace, ReadReport]:
    return read_trace(write(folder, text), ReadOptions(**options))


def waits(trace: Trace) -> list[list[int]]:
    return [trace.dep_index[a:b].tolist() for a, b in zip(trace.dep_offsets[:-1], trace.dep_offsets[1:], strict=True)]


def shared(trace: Trace) -> list[int]:
    found = infinite_hits(trace)
    assert found is not None
    return found.tolist()


def test_mooncake(tmp_path: Path) -> None:
    trace, report = read(tmp_path, lines(
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 6, "hash_ids": [0, 1, 9]},
        {"timestamp": 3000, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2]}))
    assert list(report.formats.values()) == ["mooncake"]
    assert trace.time_s.tolist() == [0.0, 3.0, 3.0]
    assert (trace.block_tokens, trace.partial_blocks, trace.knowledge) == (512, True, "blocks")
    assert shared(trace) == [0, 1024, 1100]
    info = trace_info(trace)
    assert (info.num_blocks, info.infinite_hit_blocks) == (9, 5)


def test_repeated_ids_are_no_longer_prefix(tmp_path: Path) -> None:
    def row(*ids: int) -> dict[str, Any]:
        return {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": list(ids)}

    trace, _ = read(tmp_path, lines(row(5, 6, 7, 8), row(5, 6, 5, 6), row(5, 6, 5, 6, 7), row(6, 7)))
    assert shared(trace) == [0, 1024, 2048, 0]


def test_bailian(tmp_path: Path) -> None:
    row = {"output_length": 3, "type": "text", "turn": 1}
    trace, report = read(tmp_path, lines(
        {**row, "chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "hash_ids": [3, 4, 5]},
        {**row, "chat_id": 8, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 40, "hash_ids": [3, 4, 6]},
        {**row, "chat_id": 9, "parent_chat_id": 7, "timestamp": 9.5, "input_length": 60, "hash_ids": [3, 4, 8, 9]},
        {**row, "chat_id": 10, "parent_chat_id": 99, "timestamp": 10.0, "input_length": 16, "hash_ids": [1]},
        {**row, "chat_id": 8, "parent_chat_id": -1, "timestamp": 11.0, "input_length": 16, "hash_ids": [1]}))
    assert list(report.formats.values()) == ["bailian"]
    assert trace.block_tokens == 16
    assert trace.session.tolist() == [0, 1, 0, 2]
    assert waits(trace) == [[], [], [0], []]
    assert trace.gap_s.tolist() == [0.0, 0.0, 8.0, 0.0]
    assert shared(trace) == [0, 32, 32, 0]
    assert report.adjusted["parent_chat_id not in the file, taken as a root"] == 1
    assert [p.field for p in report.bad] == ["chat_id"]


def test_weka_with_times_relative_to_the_marker_or_to_the_session(tmp_path: Path) -> None:
    def session(inner_t: float) -> str:
        inner = {"t": inner_t, "in": 64, "out": 1, "hash_ids": [50], "api_time": 1.0}
        return lines({"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": [
            {"t": 0.0, "in": 128, "out": 5, "hash_ids": [0, 1], "api_time": 2.0},
            {"t": 10.0, "type": "subagent", "requests": [inner, {**inner, "t": inner_t + 4}]},
            {"t": 20.0, "in": 192, "out": 5, "hash_ids": [0, 1, 2], "api_time": 2.0}]})

    for inner_t in (0.5, 10.5):
        trace, report = read(tmp_path, session(inner_t))
        assert list(report.formats.values()) == ["weka"]
        assert trace.time_s.tolist() == [0.0, 10.5, 14.5, 20.0]
        assert trace.clock == "session"
        assert trace.stream.tolist() == [0, 1, 1, 0]
        assert waits(trace) == [[], [0], [1], [0, 2]]


def test_weka_file_that_is_one_document(tmp_path: Path) -> None:
    session = {"id": "s", "block_size": 64, "requests": [{"t": 0.0, "in": 128, "out": 5, "hash_ids": [0, 1]}]}
    trace, report = read(tmp_path, json.dumps(session, indent=2))
    assert (len(trace), list(report.formats.values())) == (1, ["weka"])
    trace, report = read(tmp_path, json.dumps([session, session]))
    assert trace.session_names == ("s", "s#2")
    assert report.adjusted["session name again, numbered"] == 1


def test_weka_request_without_ids_is_new(tmp_path: Path) -> None:
    request = {"t": 0.0, "in": 128, "out": 5}
    trace, report = read(tmp_path, lines({"id": "s", "block_size": 64, "requests": [request, request]}))
    assert shared(trace) == [0, 0]
    assert report.adjusted["request without block ids, its prompt is taken as new"] == 2


def test_run_lines(tmp_path: Path) -> None:
    def row(t: float, session: int, runs: list[list[int]], tokens: int, **more: Any) -> dict[str, Any]:
        return {"t": t, "session": session, "in": tokens, "out": 2, "bs": 64, "runs": runs, **more}

    text = lines(row(0.0, 1, [[1, 2]], 130), row(5.0, 2, [[1, 3]], 200), row(9.0, 1, [[1, 2], [3, 1]], 192),
                 row(9.5, 1, [[70, 1]], 64, agent="x"))
    trace, report = read(tmp_path, text)
    assert list(report.formats.values()) == ["runs"]
    assert shared(trace) == [0, 0, 128, 0]
    assert waits(trace) == [[], [], [0], [2]]
    assert trace.stream.tolist() == [0, 0, 0, 1]
    assert trace.gap_s.tolist() == [0.0, 0.0, 9.0, 0.5]
    assert shared(read(tmp_path, text, ids="global")[0]) == [0, 128, 192, 0]


def test_run_lines_of_apps_follow_one_another(tmp_path: Path) -> None:
    row = {"session": 1, "in": 64, "out": 2, "bs": 64, "runs": [[1, 1]]}
    trace, report = read(tmp_path, lines({**row, "t": 0.0, "app": "a"}, {**row, "t": 7.0, "app": "a"},
                                         {**row, "t": 1.0, "app": "b"}))
    assert trace.time_s.tolist() == [0.0, 7.0, 8.0]
    assert trace.session_names == ("a/1", "b/1")
    assert any("several sessions" in note for note in report.notes)


def test_azure_of_both_years(tmp_path: Path) -> None:
    old = ("TIMESTAMP,ContextTokens,GeneratedTokens\n"
           "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,9,8\n")
    new = old.replace("2023-11-16 18:17:03.9799600", "2024-05-10 00:00:00.009930+00:00").replace(
        "2023-11-16 18:17:04.0319600", "2024-05-10 01:00:00.061930+01:00")
    for text, epoch_s in ((old, 1_700_158_623.97996), (new, 1_715_299_200.00993)):
        trace, report = read(tmp_path, text)
        assert list(report.formats.values()) == ["azure"]
        assert trace.time_s.tolist() == pytest.approx([0.0, 0.052], abs=1e-6)
        assert trace.epoch_s == pytest.approx(epoch_s, abs=1e-5)
        assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([4808, 9], [10, 8])
        assert trace.knowledge == "nothing"


def test_burstgpt_of_both_headers(tmp_path: Path) -> None:
    first = ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
             "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
             "46,ChatGPT,100,0,100,API log\n")
    trace, report = read(tmp_path, first)
    assert list(report.formats.values()) == ["burstgpt"]
    assert (trace.time_s.tolist(), trace.input_tokens.tolist()) == ([0.0, 40.0], [472, 1087])
    assert report.skipped == {"failed request (0 response tokens)": 1}
    second = ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
              "19440110.0,u1,43,GPT-4,906,446,1352,Conversation log\n"
              "19440192.0,u1,8,GPT-4,1779,123,1902,Conversation log\n"
              "19440199.0,,8,GPT-4,20,1,21,API log\n")
    trace, _ = read(tmp_path, second)
    assert (trace.num_sessions, waits(trace), trace.knowledge) == (2, [[], [0], []], "sessions")
    assert shared(trace) == [0, 906, 0]


def test_servegen(tmp_path: Path) -> None:
    table = {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{7: 1.0}"}
    client = {"client": 3, "windows": [[0, 2.0, 1.0, "Gamma", 1.0, 0.5], [600, 4.0, 1.0, "Weibull", 1.0, 0.25],
                                       [1200, 0.0, 0.0, "Gamma", 0.0, 0.0]],
              "dataset": {"0": table, "21600": {"input_tokens": "{}", "output_tokens": "{}"}}}
    trace, report = read(tmp_path, lines(client), seed=1)
    assert list(report.formats.values()) == ["servegen"]
    assert len(trace) == pytest.approx(600 * 6, rel=0.06)
    assert (trace.time_s + 1 < 600).sum() == pytest.approx(1200, rel=0.1)
    assert set(trace.input_tokens.tolist()) == {100, 300}
    assert (trace.input_tokens == 300).mean() == pytest.approx(0.75, abs=0.03)
    again, _ = read(tmp_path, lines(client), seed=1)
    assert again.time_s.tolist() == trace.time_s.tolist()
    part, _ = read(tmp_path, lines(client), seed=1, start_s=600.0, duration_s=100.0)
    assert len(part) == pytest.approx(400, rel=0.15)
    bad = {**client, "windows": [[0, 2.0, 1.0, "Gamma", -1.0, 0.5]]}
    assert [p.field for p in read(tmp_path, lines(client, bad))[1].bad] == ["windows"]


def test_tracelab_rounds(tmp_path: Path) -> None:
    def row(index: int, tokens: int, cached: int, *events: tuple[str, str]) -> dict[str, Any]:
        return {"session_id": "s", "round_index": index, "input_tokens_total": tokens, "prefix_tokens": cached,
                "output_tokens": 10, "timing_events": [
                    {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second}Z"} for kind, second in events]}

    trace, report = read(tmp_path, lines(
        row(0, 1000, 0, ("user_message", "20.151"), ("text", "25.000")),
        row(1, 1500, 900, ("tool_result", "26.000"), ("tool_result", "27.500"), ("text", "30.000")),
        row(2, 700, 400, ("user_message", "40.000"), ("text", "41.000")),
        row(2, 700, 400, ("user_message", "50.000"))))
    assert list(report.formats.values()) == ["tracelab"]
    assert trace.gap_s.tolist() == pytest.approx([0.0, 2.5, 10.0], abs=1e-6)
    assert trace.cached_tokens.tolist() == [0, 900, 400]
    assert shared(trace) == [0, 1000, 400]
    assert [p.field for p in report.bad] == ["round_index"]
    assert trace_info(trace).recorded_token_hit_rate == pytest.approx(1300 / 3200)


def test_tracelab_replay(tmp_path: Path) -> None:
    head = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    trace, report = read(tmp_path, head + "0,117,0,0,2318,200,300\n0,117,1,2518,348,131,154\n1,100,0,0,50,1,0\n")
    assert list(report.formats.values()) == ["tracelab-replay"]
    assert trace.input_tokens.tolist() == [50, 2318, 2866]
    assert trace.time_s.tolist() == pytest.approx([0.0, 0.017, 0.317])
    assert trace.gap_s.tolist() == pytest.approx([0.0, 0.0, 0.3])
    assert shared(trace) == [0, 0, 2318]


def aiperf(start_s: float, tokens: int, **more: Any) -> dict[str, Any]:
    meta = {"x_request_id": f"r{start_s}", "x_correlation_id": "c", "request_start_ns": int(start_s * 1e9),
            "request_end_ns": int((start_s + 2) * 1e9), "benchmark_phase": "profiling", "was_cancelled": False}
    metrics = {"input_sequence_length": {"value": tokens, "unit": "tokens"},
               "output_sequence_length": {"value": 9, "unit": "tokens"}}
    return {"metadata": {**meta, **more}, "metrics": metrics, "error": None}


def test_aiperf_records(tmp_path: Path) -> None:
    cached = aiperf(1_759_813_217.0, 800)
    cached["metrics"]["usage_prompt_cache_read_tokens"] = {"value": 512, "unit": "tokens"}
    failed = {**aiperf(1_759_813_230.0, 5), "error": {"code": 499}}
    trace, report = read(tmp_path, lines(
        aiperf(1_759_813_207.5, 550), cached, aiperf(1_759_813_221.0, 5, benchmark_phase="warmup"), failed,
        aiperf(1_759_813_240.0, 5, was_cancelled=True), aiperf(1_759_813_207.5, 550)))
    assert list(report.formats.values()) == ["aiperf"]
    assert (trace.time_s.tolist(), trace.input_tokens.tolist()) == ([0.0, 9.5], [550, 800])
    assert trace.cached_tokens.tolist() == [-1, 512]
    assert trace.gap_s.tolist() == [0.0, 7.5]
    assert report.skipped == {"phase warmup": 1, "failed request": 1, "cancelled request": 1}
    assert [p.field for p in report.bad] == ["metadata.x_request_id"]


def test_aiperf_raw_records(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 70, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 64}}
    record = {k: v for k, v in aiperf(100.0, 0).items() if k != "metrics"}
    chunks = [{"perf_ns": 1, "packets": [{"name": "data", "value": json.dumps({"choices": []})}]},
              {"perf_ns": 2, "packets": [{"name": "data", "value": json.dumps({"usage": usage})},
                                         {"name": "data", "value": "[DONE]"}]}]
    trace, report = read(tmp_path, lines({**record, "payload": {}, "responses": chunks},
                                         {**record, "payload": {}, "responses": chunks[:1]}))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([70], [8])
    assert trace.cached_tokens.tolist() == [64]
    assert [p.field for p in report.bad] == ["responses"]


def test_request_logs(tmp_path: Path) -> None:
    trace, report = read(tmp_path, lines(
        {"created": 1_700_000_000, "session_id": "a", "usage": {"prompt_tokens": 100, "completion_tokens": 7}},
        {"created": 1_700_000_009, "session_id": "a", "usage": {
            "prompt_tokens": 150, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 96}}},
        {"created": 1_700_000_010, "status_code": 429, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    assert list(report.formats.values()) == ["request-log"]
    assert (trace.input_tokens.tolist(), trace.cached_tokens.tolist()) == ([100, 150], [-1, 96])
    assert (shared(trace), trace.epoch_s) == ([0, 100], 1_700_000_000)
    assert report.skipped == {"failed request": 1}
    trace, _ = read(tmp_path, lines({"timestamp": "2026-01-01T00:00:00Z", "response": {"usage": {
        "input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 95}}}))
    assert (trace.input_tokens.tolist(), trace.cached_tokens.tolist()) == ([100], [95])
    trace, _ = read(tmp_path, lines({"ts": 1.0, "input_tokens": 5, "output_tokens": 1}))
    assert trace.input_tokens.tolist() == [5]


def test_any_columns_through_a_mapping(tmp_path: Path) -> None:
    mapping = parse_mapping("timestamp=When,input_tokens=In,output_tokens=Out,session=User,cached_tokens=Hit")
    text = "When,In,Out,User,Hit,Else\n10.5,100,5,u,,x\n11.5,130,6,u,64,y\n"
    trace, report = read(tmp_path, text, mapping=mapping)
    assert list(report.formats.values()) == ["mapped-csv"]
    assert trace.input_tokens.tolist() == [100, 130]
    assert trace.cached_tokens.tolist() == [-1, 64]
    assert (waits(trace), shared(trace)) == ([[], [0]], [0, 100])
    nested = parse_mapping('{"timestamp": "at", "input_tokens": "n.in", "output_tokens": "n.out"}')
    trace, report = read(tmp_path, lines({"at": "2026-01-01 00:00:00", "n": {"in": 4, "out": 2}}), mapping=nested)
    assert list(report.formats.values()) == ["mapped-json"]
    assert trace.output_tokens.tolist() == [2]
    for bad in ({"timestamp": "t"}, {"timestamp": "t", "input_tokens": "i", "output_tokens": "o", "sesion": "s"}):
        with pytest.raises(TraceError, match="mapping"):
            read(tmp_path, text, mapping=bad)
    for text in ("{", "timestamp", "a=,b=c"):
        with pytest.raises(TraceError, match="mapping"):
            parse_mapping(text)


def test_format_can_be_forced(tmp_path: Path) -> None:
    path = write(tmp_path, "t,in,out\n0,1,1\n")
    with pytest.raises(TraceError, match="no known format"):
        detect(path)
    with pytest.raises(TraceError, match="did you mean 'mooncake'"):
        read_trace(path, ReadOptions(format="moncake"))
    with pytest.raises(TraceError, match="no request"):
        read_trace(path, ReadOptions(format="azure"))


def test_compressed_files_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(lines(row, row).encode()))
    assert len(read_trace(path)[0]) == 2


def test_zstandard(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    packed = zstandard.ZstdCompressor().compress(lines(*[row] * 2000).encode())
    path = tmp_path / "trace.zst"
    path.write_bytes(packed + packed)
    assert len(read_trace(path)[0]) == 4000
    path.write_bytes(packed[:-20])
    with pytest.raises(TraceError):
        read_trace(path)


def test_zstandard_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    path = tmp_path / "trace.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\x00")
    with pytest.raises(TraceError, match=r"kvsim\[traces\]"):
        read_trace(path)
