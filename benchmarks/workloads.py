"""Workloads that the benchmarks play, built from seeds or from the published traces."""

from __future__ import annotations

import gzip
import json
import os
from itertools import chain
from pathlib import Path

import numpy as np

from kvsim.workload.fixed import Clients, build_fixed
from kvsim.workload.lengths import LogNormal
from kvsim.workload.readers.weka_rle import read_weka_rle
from kvsim.workload.requests import Requests, Row, Workload, requests_from_rows
from kvsim.workload.trees import ReplayRules, build_closed_loop

MOONCAKE = "mooncake_fast25_conversation.jsonl.gz"
WEKA = "kvcache_tester_all710_rle.jsonl.gz"
MOONCAKE_BLOCK_TOKENS = 512


def trace(name: str) -> Path | None:
    """A published trace below KVSIM_TRACES, if it is there."""
    default = Path(__file__).resolve().parents[1] / "../shared/traces"
    path = Path(os.environ.get("KVSIM_TRACES", default)) / name
    return path if path.exists() else None


def fixed(num_requests: int, concurrency: int) -> Workload:
    """4,000 tokens in, 300 out, closed loop."""
    return build_fixed(num_requests, 4000, 300, Clients(concurrency))


def lognormal(num_requests: int, concurrency: int) -> Workload:
    """About 4,000 tokens in and 300 out, log-normal, closed loop."""
    inputs, outputs = LogNormal(4000.0, 1.0, 1.0, 1e5), LogNormal(300.0, 0.8, 1.0, 4e3)
    return build_fixed(num_requests, inputs, outputs, Clients(concurrency))


def long_prompts(num_requests: int, input_tokens: int, concurrency: int) -> Workload:
    """Long prompts that share nothing, 300 tokens out."""
    return build_fixed(num_requests, input_tokens, 300, Clients(concurrency))


def sessions(num_sessions: int, num_turns: int, first_tokens: int) -> Workload:
    """Growing sessions side by side: 2,000 new tokens a turn, 300 out, found again by the next turn."""
    rows: list[Row] = []
    for s in range(num_sessions):
        for t in range(num_turns):
            rows.append(Row([(s, first_tokens + 2300 * t)], 300, output_content=s, session=s, think_s=1.0,
                            after=(len(rows) - 1,) if t else (), arrival_s=0.5 * s))
    return Workload(requests_from_rows(rows))


def shared_outputs(num_requests: int) -> Workload:
    """Equal prompts whose equal outputs are written side by side: every block has many copies."""
    return Workload(requests_from_rows([Row([(i % 4, 2048)], 600, output_content=i % 4, arrival_s=0.02 * i)
                                        for i in range(num_requests)]))


def mooncake(path: Path) -> Workload:
    """The Mooncake conversation trace: block ids are content, outputs are unique, times are kept."""
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    ids: list[list[int]] = [row["hash_ids"] for row in rows]
    counts = np.array([len(blocks) for blocks in ids], np.int64)
    prompt_tokens = np.array([row["input_length"] for row in rows], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    piece_tokens = np.full(int(offsets[-1]), MOONCAKE_BLOCK_TOKENS, np.int64)
    piece_tokens[offsets[1:] - 1] = prompt_tokens - MOONCAKE_BLOCK_TOKENS * (counts - 1)
    zeros, row_numbers = np.zeros(len(rows), np.int64), np.arange(len(rows), dtype=np.int64)
    return Workload(Requests(
        session=row_numbers, arrival_s=np.array([row["timestamp"] / 1000 for row in rows]), think_s=np.zeros(len(rows)),
        dep_offsets=np.zeros(len(rows) + 1, np.int64), dep_index=zeros[:0],
        output_tokens=np.maximum([row["output_length"] for row in rows], 1), priority=zeros, piece_offsets=offsets,
        piece_content=np.fromiter(chain.from_iterable(ids), np.int64), piece_tokens=piece_tokens,
        output_content=row_numbers + 10**9, traffic_class=zeros))


def weka(path: Path, num_lanes: int) -> Workload:
    """All Claude Code sessions, so many live at once, each from its first turn."""
    trees, _ = read_weka_rle(path)
    return build_closed_loop(trees, num_lanes, rules=ReplayRules(start_frac=None))
