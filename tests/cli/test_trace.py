"""``kvsim trace`` and ``kvsim cache``: published statistics and hit counts, files that are wrong."""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvsim.workload.preset_file import load_preset
from tests.cli.helpers import Shell

REFERENCE = Path(__file__).parent.parent / "cache" / "data" / "trace_reference.csv"
CONVERSATION = "mooncake_fast25_conversation.jsonl.gz"
# requests, input mean / p50 / p90, output mean, infinite hits by blocks and tokens [%]: as published with the traces.
PUBLISHED = {
    CONVERSATION: (12_031, 12_035, 6_909, 27_367, 343, 36.64, 37.36),
    "mooncake_fast25_synthetic.jsonl.gz": (3_993, 15_325, 11_587, 38_611, 149, 63.96, 65.12),
    "kvcache_tester_all710_rle.jsonl.gz": (49_334, 122_379, 103_659, 233_633, 440, 96.34, 96.32),
    "kvcache_tester_openloop100.jsonl.gz": (5_786, 135_946, 113_508, 276_710, 449, 96.23, 96.20),
    "lmcache_agent_bytes256.jsonl.gz": (1_619, 2_476, None, None, None, 89.57, 88.43),
    "azure_llm_2023_code.csv.gz": (8_819, 2_048, 1_469, 5_188, 28, None, None),
    "azure_llm_2023_conv.csv.gz": (19_366, 1_155, 1_020, 2_735, 211, None, None),
}

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
LATER = {"timestamp": 9000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 9]}


def rows(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


@pytest.mark.golden
@pytest.mark.parametrize("name", PUBLISHED)
def test_info_says_what_is_published(kvsim: Shell, traces: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "info.json"
    assert kvsim("trace", "info", str(traces / name), "--json", str(target)).code == 0
    info = json.loads(target.read_text())["traces"][0]
    inputs, outputs = info["input_tokens"], info["output_tokens"]
    percent = [None if info[k] is None else 100 * info[k]
               for k in ("infinite_block_hit_rate", "infinite_token_hit_rate")]
    found = (info["num_requests"], inputs["mean"], inputs["p50"], inputs["p90"], outputs["mean"], *percent)
    for ours, theirs, digits in zip(found, PUBLISHED[name], (0.5, 0.5, 0.5, 0.6, 0.5, 0.0051, 0.0051), strict=True):
        if theirs is not None:
            assert ours == pytest.approx(theirs, abs=digits)


def test_info_takes_every_public_trace(kvsim: Shell, traces: Path) -> None:
    files = [str(p) for p in sorted(traces.iterdir()) if p.suffix == ".gz"]
    done = kvsim("trace", "info", *files)
    assert done.code == 0
    assert [f for f in files if f"{Path(f).name}: " not in done.out] == []


@pytest.mark.golden
@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic", "lmcache_agent_bytes256",
                                  "kvcache_tester_openloop100"])
def test_cache_finds_every_published_integer(kvsim: Shell, traces: Path, tmp_path: Path, name: str) -> None:
    with REFERENCE.open() as file:
        wanted = [w for w in csv.DictReader(file) if w["trace"] == name]
    file = next(p for p in traces.iterdir() if p.name.replace("_fast25", "").startswith(name))
    capacities = sorted({w["capacity_blocks"] for w in wanted}, key=float)
    target = tmp_path / "curves.json"
    done = kvsim("cache", str(file), "--capacity-blocks", ",".join(capacities), "--json", str(target),
                 "--csv", str(tmp_path / "curves.csv"))
    assert done.code == 0
    found = {(r["policy"].replace("belady", "opt"), float(r["capacity_blocks"])): r
             for r in json.loads(target.read_text())["rows"]}
    assert len(wanted) >= 26
    for w in wanted:
        policies = ("lru", "lru_tail", "fifo", "lfu", "opt") if w["policy"] == "any" else (w["policy"],)
        for policy in policies:
            row = found[policy, float(w["capacity_blocks"])]
            assert (row["hit_blocks"], row["plain_hits"]) == (int(w["hit_blocks"]), int(w["plain_hits"]))
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + len(found)


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_cache_draws_its_curves(kvsim: Shell, tmp_path: Path, ending: str) -> None:
    trace, chart = rows(tmp_path / "t&t.jsonl", GOOD, LATER, {**LATER, "timestamp": 9001}), tmp_path / f"c.{ending}"
    done = kvsim("cache", trace, "--policies", "lru,fifo", "--capacity-blocks", "1,4,inf", "--chart", str(chart))
    assert done.code == 0
    text = chart.read_text()
    assert "unlimited cache, 58.0 %" in text  # 512 + 1,024 of 2,648 prompt tokens
    if ending == "svg":
        drawn = ElementTree.fromstring(text)
        lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
        assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]
    else:
        assert text.startswith("<!doctype html>")
        assert text.count("Plotly.newPlot(\"") == 1


def test_cache_chart_of_another_form_is_refused_before_the_trace_is_read(
        kvsim: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = kvsim("cache", "no-such-trace", "--chart", str(tmp_path / "c.pdf"))
    assert (done.code, ".svg, .html, .png" in done.err) == (2, True)
    monkeypatch.setattr("kvsim.commands.cache.find_spec", lambda package: None)
    for ending in ("html", "png"):
        done = kvsim("cache", "no-such-trace", "--chart", str(tmp_path / f"c.{ending}"))
        assert done.code == 2
        assert "kvsim[dashboard]" in done.err


@pytest.mark.timed
def test_cache_of_a_whole_trace_takes_seconds(kvsim: Shell, traces: Path) -> None:
    start = time.process_time()
    assert kvsim("cache", str(traces / CONVERSATION), "--capacity-blocks", "300,1000,3000,10000,30000,inf").code == 0
    assert time.process_time() - start < 5.0


def test_cache_with_live_sessions_and_with_a_delay(kvsim: Shell, traces: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    sessions = str(traces / "kvcache_tester_all710_rle.jsonl.gz")
    assert kvsim("cache", sessions, "--lanes", "32", "--policies", "lru", "--capacity-blocks", "50000",
                 "--json", str(target)).code == 0
    assert json.loads(target.read_text())["rows"][0]["block_hit_rate"] == pytest.approx(0.7934, abs=5e-5)
    conversation = str(traces / CONVERSATION)
    for flags, hits in ((("--delay", "60"), 98_067), (("--strict",), 105_700)):
        assert kvsim("cache", conversation, *flags, "--json", str(target)).code == 0
        row = json.loads(target.read_text())["rows"][0]
        assert (row["policy"], row["capacity_blocks"], row["hit_blocks"]) == ("any", "inf", hits)


def test_capacities_in_bytes_are_those_of_the_model(kvsim: Shell, tmp_path: Path) -> None:
    trace, target = rows(tmp_path / "t.jsonl", *[{**GOOD, "timestamp": k} for k in range(3)]), tmp_path / "out.json"
    # Llama-3.1-8B in BF16: 131,072 B a token, 64 MiB a block of 512 tokens.
    done = kvsim("cache", trace, "--model", "llama-3.1-8b", "--capacity-gib", "1,128 MiB", "--policies", "lru",
                 "--json", str(target))
    assert done.code == 0
    assert "64.000 MiB" in done.err
    assert [r["capacity_blocks"] for r in json.loads(target.read_text())["rows"]] == [16, 2]
    assert kvsim("cache", trace, "--model", "llama-3.1-8b", "--gpu", "h200", "--policies", "lru",
                 "--json", str(target)).code == 0
    pool = json.loads(target.read_text())["rows"][0]["capacity_blocks"]
    kvsim("capacity", "--model", "llama-3.1-8b", "--gpu", "h200", "--json", str(target))
    assert pool == pytest.approx(json.loads(target.read_text())["kv_tokens"] / 512, rel=0.001)


def test_convert_and_fit(kvsim: Shell, traces: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source, common, preset = traces / "kvcache_tester_openloop100.jsonl.gz", tmp_path / "c.parquet", tmp_path / "p.yaml"
    assert kvsim("trace", "convert", str(source), "-o", str(common)).out.endswith(f"wrote {common}\n")
    one, two = (kvsim("trace", "info", str(p)) for p in (source, common))
    assert one.out == two.out
    done = kvsim("trace", "fit", str(common), "-o", str(preset), "--name", "ours")
    assert done.code == 0
    assert "infinite-cache hit rate" in done.out
    assert load_preset(preset).name == "ours"


def truncated(folder: Path) -> str:
    packed = gzip.compress("\n".join(json.dumps({**GOOD, "timestamp": k}) for k in range(5000)).encode())
    (folder / "cut.jsonl.gz").write_bytes(packed[:len(packed) // 2])
    return str(folder / "cut.jsonl.gz")


def empty(folder: Path) -> str:
    (folder / "empty.jsonl").touch()
    return str(folder / "empty.jsonl")


def binary(folder: Path) -> str:
    (folder / "b.bin").write_bytes(bytes(range(128, 256)))
    return str(folder / "b.bin")


BROKEN: dict[str, tuple[Callable[[Path], str], str]] = {
    "truncated": (truncated, "ended before the end-of-stream marker"),
    "no bytes": (empty, "an empty file"),
    "unknown columns": (lambda d: rows(d / "x.csv", "a,b,c", "1,2,3"), "CSV columns a, b, c"),
    "not there": (lambda d: str(d / "none.jsonl"), "nothing there"),
    "only bad rows": (lambda d: rows(d / "bad.jsonl", {**GOOD, "input_length": -1}), "no request that can be used"),
    "no text": (binary, "not UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", [("trace", "info"), ("cache",)])
def test_what_cannot_be_read_is_said(kvsim: Shell, tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    make, message = BROKEN[name]
    path = make(tmp_path)
    done = kvsim(*command, path)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert path in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("bad", "said"), [
    ({**GOOD, "timestamp": float("nan")}, "timestamp: got nan"),
    ({**GOOD, "input_length": -5}, "input_length: got -5"),
    ({**GOOD, "output_length": None}, "output_length: got nothing"),
    ("{broken", "'{broken'"),
])
def test_bad_rows_are_counted_and_named(kvsim: Shell, tmp_path: Path, bad: Any, said: str) -> None:
    path = rows(tmp_path / "t.jsonl", GOOD, bad, LATER)
    done = kvsim("trace", "info", path)
    assert done.code == 0
    assert "2 requests" in done.out
    assert "1 bad rows skipped" in done.err
    assert f"{path}:2" in done.err
    assert said in done.err
    refused = kvsim("trace", "info", path, "--max-bad-rows", "0")
    assert refused.code == 2
    assert f"{path}:2" in refused.err


def test_rows_out_of_order_are_sorted_and_counted(kvsim: Shell, tmp_path: Path) -> None:
    done = kvsim("trace", "info", rows(tmp_path / "t.jsonl", LATER, GOOD))
    assert done.code == 0
    assert "1 x row earlier than the row before" in done.err


def test_files_of_a_folder_that_are_no_traces_are_counted(kvsim: Shell, tmp_path: Path) -> None:
    rows(tmp_path / "t.jsonl", GOOD, LATER)
    (tmp_path / "README.md").write_text("# About")
    empty(tmp_path)
    done = kvsim("trace", "info", str(tmp_path))
    assert done.code == 0
    assert "README.md" in done.err
    assert "empty.jsonl" in done.err
    assert "2 requests" in done.out


@pytest.mark.parametrize(("flags", "said"), [
    (("--policies", "lrru"), "did you mean 'lru'?"),
    (("--capacity-blocks", "0"), "numbers of blocks >= 1"),
    (("--capacity-blocks", "nan"), "numbers of blocks >= 1"),
    (("--capacity-blocks", "many"), "not a capacity"),
    (("--capacity-gib", "10"), "need --model"),
    (("--model", "kimi-k3"), "--model needs"),
    (("--model", "kimi-k4", "--capacity-gib", "1"), "did you mean 'kimi-k3'?"),
    (("--delay", "5", "--policies", "lru"), "leave out --policies"),
    (("--delay", "-5",), "-5"),
    (("--strict", "--delay", "5"), "leave out --delay"),
    (("--format", "moncake"), "did you mean 'mooncake'?"),
    (("--mapping", "x"), "timestamp=COLUMN"),
    (("--block-tokens", "16"), "block ids of 512 tokens, not 16"),
])
def test_wrong_flags_are_said(kvsim: Shell, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = kvsim("cache", rows(tmp_path / "t.jsonl", GOOD, LATER), *flags)
    assert done.code == 2
    assert said in done.err


def test_lengths_alone_have_no_hit_rates(kvsim: Shell, tmp_path: Path) -> None:
    log = rows(tmp_path / "log.csv", "When,In,Out", "0,100,10", "1,100,10")
    mapping = ("--mapping", "timestamp=When,input_tokens=In,output_tokens=Out")
    assert kvsim("trace", "info", log, *mapping).code == 0
    done = kvsim("cache", log, *mapping)
    assert done.code == 2
    assert "no two prompts are known to share anything" in done.err
    assert kvsim("trace", "fit", log, *mapping, "-o", str(tmp_path / "p.yaml")).code == 2
