"""What a reader has and the pages name: a trace, a log, sessions, an engine's output; all made small."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

MEASURED_S, FEW_SESSIONS = 60.0, 4
LOG = """INFO 11-30 10:00:00 [gpu_worker.py:298] Available KV cache memory: 40.11 GiB
INFO 11-30 10:00:01 [kv_cache_utils.py:1087] GPU KV cache size: 3,085,984 tokens
INFO 11-30 10:00:01 [kv_cache_utils.py:1091] Maximum concurrency for 1,048,576 tokens per request: 2.94x
"""


def mooncake(path: Path, num_requests: int = 80) -> None:
    """Conversations in Mooncake's form: some turns append to an earlier prompt."""
    draw, rows, fresh = random.Random(3), list[dict[str, Any]](), 0
    contexts: list[list[int]] = []
    for i in range(num_requests):
        before = draw.choice(contexts) if contexts and draw.random() < 0.6 else []
        ids = [*before, *range(fresh, fresh + draw.randint(1, 12))]
        fresh += len(ids) - len(before)
        contexts.append(ids)
        rows.append({"timestamp": 900 * i, "input_length": 512 * len(ids) - draw.randint(0, 300),
                     "output_length": draw.randint(20, 400), "hash_ids": ids})
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def bailian(path: Path, num_sessions: int = 12) -> None:
    """Sessions of several turns in Qwen-Bailian's form."""
    draw, rows, chat = random.Random(5), list[dict[str, Any]](), 0
    for session in range(num_sessions):
        parent, ids, at = -1, list[int](), 20.0 * session
        for turn in range(1, draw.randint(3, 7)):
            chat += 1
            ids = [*ids, *(10_000 * session + len(ids) + k for k in range(draw.randint(40, 160)))]
            rows.append({"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": 16 * len(ids),
                         "output_length": draw.randint(50, 400), "type": "text", "turn": turn, "hash_ids": ids})
            parent, at = chat, at + draw.uniform(8.0, 90.0)
    rows.sort(key=lambda row: row["timestamp"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(folder: Path) -> None:
    """Everything that the pages take for given, in the folder in which their blocks run."""
    for name in ("conversation_trace.jsonl.gz", "t.jsonl.gz", "traces/conversation.jsonl.gz"):
        (folder / name).parent.mkdir(exist_ok=True)
        mooncake(folder / name)
    (folder / "sessions").mkdir()
    bailian(folder / "sessions" / "agents.jsonl")
    table = "When,In,Out,User\n" + "".join(f"{5 * i},{900 + 40 * i},{100 + i},u{i % 4}\n" for i in range(40))
    (folder / "log.csv").write_text(table)
    azure = "".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02}.1,{900 + 9 * i},{40 + i}\n" for i in range(90))
    (folder / "other.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + azure)
    requests = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{3.5 * i},{900 + i},{90 + i}\n" for i in range(30))
    (folder / "requests.csv").write_text(requests)
    (folder / "server.log").write_text(LOG)
    shutil.copy(ROOT / "tests" / "data" / "hf_configs" / "qwen3-30b-a3b.json", folder / "config.json")
    for name in ("benchmarks", "tests", "scenarios", "calibrations"):
        (folder / name).mkdir()
    shutil.copytree(ROOT / "benchmarks" / "measured", folder / "benchmarks" / "measured")
    shutil.copytree(ROOT / "tests" / "data", folder / "tests" / "data")


def _shorter_scenario(data: dict[str, Any]) -> None:
    """One minute of traffic, little warm-up, one seed, two points of a study, a plan of one kind of replica."""
    workload = data["workload"]
    if "duration_s" in workload:
        workload["duration_s"] = MEASURED_S
    if "preset" in workload:
        workload |= {"concurrency": min(workload["concurrency"], FEW_SESSIONS), "replay": {"warmup_requests": 1}}
    if "study" in data:
        data["study"] = {"concurrency": [2, FEW_SESSIONS], "replications": 1}
    if "plan" in data:
        data["plan"] |= {"hardware": data["plan"]["hardware"][:1], "live_sessions": FEW_SESSIONS}


def _shorter_sweep(data: dict[str, Any]) -> None:
    """One value a field, the ends of a list, and one minute of traffic."""
    for axis in data["axes"]:
        if "grid" in axis:
            axis["grid"] = {field: values[:1] for field, values in axis["grid"].items()}
        if "list" in axis:
            axis["list"] = [axis["list"][0], axis["list"][-1]]
    data["set"] = {"workload.duration_s": MEASURED_S, "workload.replay": {"warmup_requests": 1}}
    data["replications"] = 2


def shorter_scenarios(root: Path) -> None:
    """The shipped scenarios once more below `root`, with little traffic, so that commands can run as they stand."""
    shorten: dict[str, Callable[[dict[str, Any]], None]] = {"sweep": _shorter_sweep, "scenario": _shorter_scenario}
    (root / "scenarios").mkdir(parents=True)
    mooncake(root / "turns.jsonl.gz")
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        data = yaml.safe_load(path.read_text())
        shorten[data["schema"].split("/")[1]](data)
        if "trace" in data.get("workload", {}):
            data["workload"]["trace"] = str(root / "turns.jsonl.gz")
        (root / "scenarios" / path.name).write_text(yaml.safe_dump(data, sort_keys=False))
