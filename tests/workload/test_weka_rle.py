"""The session reader: small files worked out by hand, and the recorded trace against published integers."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import TraceError
from kvsim.workload.ideal import shared_prefix_tokens
from kvsim.workload.sessions import SessionTree
from kvsim.workload.trees import ReplayRules, build_closed_loop, build_open_loop
from tests.workload.helpers import read_sessions, trace


def request(t: float, tokens: int, out: int, runs: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_runs": runs, "api_time": 2.0, **more}


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def read(tmp_path: Path, *lines: Any, **options: Any) -> Any:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return read_sessions(path, **options)


def one(tmp_path: Path, *requests: dict[str, Any], **options: Any) -> SessionTree:
    trees, _ = read(tmp_path, session(*requests), **options)
    return trees[0]


def prompt(tree: SessionTree, i: int) -> list[tuple[int, int]]:
    rows = slice(tree.piece_offsets[i], tree.piece_offsets[i + 1])
    return list(zip(tree.piece_content[rows].tolist(), tree.piece_tokens[rows].tolist(), strict=True))


def shared(tree: SessionTree, outputs: bool = True) -> list[int]:
    w = build_open_loop([tree], [0.0])
    return shared_prefix_tokens(w.requests, range(len(tree)), outputs).tolist()


def test_appending_turn_finds_prompt_tail_and_output(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 130, 20, [[1, 2]]), request(9, 200, 5, [[1, 3]]))
    assert tree.prompt_tokens.tolist() == [130, 200]
    assert shared(tree) == [0, 150]
    assert shared(tree, outputs=False) == [0, 130]


def test_output_can_be_left_out(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 130, 20, [[1, 2]]), request(9, 200, 5, [[1, 3]]), output_in_next_prompt=False)
    assert shared(tree) == [0, 130]


def test_output_longer_than_what_was_appended_is_unique(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 130, 71, [[1, 2]]), request(9, 200, 5, [[1, 3]]))
    assert shared(tree) == [0, 130]


def test_append_that_continues_in_another_run(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 130, 20, [[1, 2]]), request(9, 200, 5, [[1, 2], [50, 1]]))
    assert prompt(tree, 0)[0] == prompt(tree, 1)[0]
    assert shared(tree) == [0, 150]


def test_rewritten_block_ends_what_is_shared(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 200, 20, [[1, 3]]), request(9, 330, 5, [[1, 2], [50, 3]]))
    assert shared(tree) == [0, 128]


def test_runs_that_start_alike_share_their_common_part(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 64 * 1112, 1, [[1, 1112]]), request(9, 64 * 1136, 1, [[1, 1136]]),
               request(19, 64 * 1523 + 64 * 7, 1, [[1, 1523], [1525, 7]]),
               request(29, 64 * 1524, 1, [[1, 1524]]))
    assert shared(tree, outputs=False) == [0, 64 * 1112, 64 * 1136, 64 * 1523]


def test_plain_ids_are_read_like_runs(tmp_path: Path) -> None:
    raw = request(0, 200, 5, [])
    del raw["hash_runs"]
    tree = one(tmp_path, raw | {"hash_ids": [4, 5, 9]}, request(9, 300, 5, [[4, 2], [9, 2]]))
    assert shared(tree, outputs=False) == [0, 200]


def test_gaps_run_from_end_to_start(tmp_path: Path) -> None:
    tree = one(tmp_path, request(0, 64, 5, [[1, 1]]), request(9, 64, 5, [[1, 1]]), request(10, 64, 5, [[1, 1]]))
    assert tree.gap_s.tolist() == [0.0, 7.0, 0.0]
    unknown = request(0, 64, 5, [[1, 1]])
    del unknown["api_time"]
    tree = one(tmp_path, unknown, request(9, 64, 5, [[1, 1]], think_time=3.0))
    assert tree.gap_s.tolist() == [0.0, 3.0]


def test_subagents_join_or_run_in_the_background(tmp_path: Path) -> None:
    def agent(t: float, *inner: dict[str, Any]) -> dict[str, Any]:
        return {"t": t, "type": "subagent", "duration_ms": None, "requests": list(inner)}

    tree = one(tmp_path, request(0, 64, 5, [[1, 1]]),
               agent(5, request(0, 64, 5, [[10, 1]]), request(4, 128, 5, [[10, 2]])),
               agent(6, request(0, 64, 5, [[20, 1]], api_time=50.0)),
               request(20, 128, 5, [[1, 2]]))
    assert tree.stream.tolist() == [0, 1, 2, 1, 0]
    assert tree.start_s.tolist() == [0.0, 5.0, 6.0, 9.0, 20.0]
    waits = [tree.dep_index[a:b].tolist() for a, b in zip(tree.dep_offsets[:-1], tree.dep_offsets[1:], strict=True)]
    assert waits == [[], [0], [0], [1], [0, 3]]
    assert tree.gap_s.tolist() == [0.0, 3.0, 4.0, 2.0, 9.0]


@pytest.mark.parametrize(("bad", "field"), [
    ("{not json", ""),
    ("[1]", ""),
    (session(), "requests"),
    (session(request(0, 64, 5, [[1, 1]]), hash_id_scope="global"), "hash_id_scope"),
    (session(request(0, 64, 5, [[1, 2]])), "hash_runs"),
    (session(request(0, 64, 5, [["a", 1]])), "hash_runs"),
    (session(request(0, 64, 5, [[1]])), "hash_runs"),
    (session({"t": 0, "in": 64, "out": 5, "hash_ids": [[1], 2]}), "hash_ids"),
    (session({"t": 0, "in": 64, "out": 5, "hash_ids": "1"}), "hash_ids"),
    (session({"t": 0, "in": 64, "out": 5, "hash_ids": ["x"]}), "hash_ids"),
    (session({"t": 0, "in": 64, "out": 5, "hash_ids": [1.5]}), "hash_ids"),
    (session(request(-1, 64, 5, [[1, 1]])), "t"),
    (session(request(0, 0, 5, [])), "in"),
    (session({"t": 0, "in": 64, "hash_runs": [[1, 1]]}), "out"),
    ({"id": "s", "requests": []}, "block_size"),
])
def test_bad_row_is_named_and_skipped(tmp_path: Path, bad: Any, field: str) -> None:
    good = session(request(0, 64, 5, [[1, 1]]))
    trees, report = read(tmp_path, good, bad, good)
    assert (len(trees), report.num_rows, report.num_sessions, report.num_requests) == (2, 3, 2, 2)
    assert [(p.where.rsplit(":", 1)[1], p.field) for p in report.bad] == [("2", field)]
    with pytest.raises(TraceError, match="more than 0 bad rows"):
        read(tmp_path, good, bad, max_bad_rows=0)


def test_zero_output_is_raised_and_reported(tmp_path: Path) -> None:
    trees, report = read(tmp_path, session(request(0, 64, 0, [[1, 1]])))
    assert trees[0].output_tokens.tolist() == [1]
    assert report.adjusted["output of 0 tokens raised to 1"] == 1
    assert "raised" in str(report)


def test_unreadable_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        read_sessions(tmp_path / "missing.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1}\n' * 999)[:40])
    with pytest.raises(TraceError):
        read_sessions(tmp_path / "cut.jsonl.gz")


@pytest.fixture(scope="module")
def recorded() -> list[SessionTree]:
    trees, report = read_sessions(trace("kvcache_tester_all710_rle.jsonl.gz"))
    assert (report.num_sessions, report.num_requests, report.bad) == (710, 49_334, [])
    return trees


@pytest.mark.timed
def test_recorded_sessions_load_in_time() -> None:
    path = trace("kvcache_tester_all710_rle.jsonl.gz")
    start = time.process_time()
    read_sessions(path)
    assert time.process_time() - start < 3.0


def test_infinite_cache_finds_the_published_blocks(recorded: list[SessionTree]) -> None:
    r = build_closed_loop(recorded, 710, rules=ReplayRules(start_frac=None)).requests
    found = shared_prefix_tokens(r, range(len(r)), outputs=False)
    assert int((found // 64).sum()) == 90_859_688
    assert int((r.prompt_tokens // 64).sum()) == 94_310_647
    any_tokens = np.minimum(found // 64 * 64, r.prompt_tokens).sum() / r.prompt_tokens.sum()
    assert any_tokens == pytest.approx(0.963159, abs=5e-7)


def test_open_loop_of_100_sessions_finds_the_published_blocks(recorded: list[SessionTree]) -> None:
    def key(tree: SessionTree) -> tuple[bytes, bytes]:
        return tree.prompt_tokens.tobytes(), tree.output_tokens.tobytes()

    first: dict[tuple[bytes, bytes], SessionTree] = {}
    for tree in recorded:
        first.setdefault(key(tree), tree)
    distinct = list(first.values())
    assert len(distinct) == 692
    picked = distinct[:: 692 // 100][:100]
    r = build_open_loop(picked, [60.0 * k for k in range(100)]).requests
    found = shared_prefix_tokens(r, range(len(r)), outputs=False)
    assert (len(r), int((r.prompt_tokens // 64).sum())) == (5_786, 12_287_493)
    assert int((found // 64).sum()) == 11_823_828


def test_original_format_gives_the_same_trees(recorded: list[SessionTree]) -> None:
    sample, _ = read_sessions(trace("weka_original_format_sample.jsonl.gz"))
    by_id = {t.id: t for t in recorded}
    assert len(sample) == 75
    for tree in sample:
        twin = by_id[tree.id]
        assert np.array_equal(tree.piece_content, twin.piece_content)
        assert np.array_equal(tree.piece_tokens, twin.piece_tokens)
        assert np.array_equal(tree.gap_s, twin.gap_s)


def test_recorded_sessions_keep_their_order(recorded: list[SessionTree]) -> None:
    for tree in recorded:
        rows = np.repeat(np.arange(len(tree)), np.diff(tree.dep_offsets))
        assert (tree.dep_index < rows).all()
        assert (np.diff(tree.start_s) >= 0).all()
    assert sum(int(t.stream.max()) for t in recorded) == 63
