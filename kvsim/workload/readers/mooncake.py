"""Mooncake and Qwen-Bailian: requests with ids of their prefix blocks, incomplete last blocks included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.workload.readers.contents import BlockContents, Run, run_columns, runs_of_ids
from kvsim.workload.readers.reading import Reading, Unique
from kvsim.workload.readers.report import count_of, ints_of, number_of, numbers_of, text_of
from kvsim.workload.readers.source import json_rows
from kvsim.workload.table import Entry, Trace


def read_mooncake(reading: Reading) -> Trace:
    """Read ``timestamp`` [ms], ``input_length``, ``output_length`` [tokens], ``hash_ids`` of 512-token blocks.

    Notes
    -----
    ``len(hash_ids) == ceil(input_length / 512)``; ids are global to the file. Sessions are not recorded: every
    request is a session of its own. Outputs have no ids and are not found again.

    Source: https://github.com/kvcache-ai/Mooncake (Apache-2.0), FAST25-release/traces.
    """
    reader = _Mooncake(reading, BlockContents(reading.builder.fresh, 512))
    reading.each_batch(reader.take_all, reader.take)
    return reading.finish(knowledge="blocks", block_tokens=512, partial_blocks=True)


@dataclass(slots=True)
class _Mooncake:
    """Requests read so far."""

    reading: Reading
    blocks: BlockContents

    def take(self, row: dict[str, Any]) -> None:
        """Add one request."""
        builder, blocks = self.reading.builder, self.blocks
        time_s = number_of(row, "timestamp", -math.inf) / 1e3
        tokens, output = count_of(row, "input_length"), count_of(row, "output_length")
        prompt = blocks.prompt(_ids(self.reading, row, tokens, blocks.block_tokens), tokens)
        builder.add(Entry(time_s, tokens, output, str(len(builder)), prompt, builder.fresh()))

    def take_all(self, rows: list[dict[str, Any]]) -> bool:
        """Add many requests, if all are as the format says."""
        time_ms = numbers_of([row.get("timestamp") for row in rows])
        tokens = ints_of([row.get("input_length") for row in rows])
        output = ints_of([row.get("output_length") for row in rows])
        runs = run_columns([row.get("hash_ids") for row in rows])
        if time_ms is None or tokens is None or output is None or runs is None:
            return False
        builder, block_tokens = self.reading.builder, self.blocks.block_tokens
        unused = runs.num_ids * block_tokens - tokens
        if not ((unused >= 0) & (unused < block_tokens)).all():
            return False
        contents, outputs = self.blocks.whole_prompts(runs)
        lengths = runs.length * block_tokens
        lengths[np.cumsum(runs.num_runs)[runs.num_runs > 0] - 1] -= unused[runs.num_runs > 0]
        first = len(builder)
        builder.extend(time_ms / 1e3, [str(first + k) for k in range(len(rows))], (tokens, output),
                       (runs.num_runs, np.array(contents, np.int64), lengths), np.array(outputs, np.int64))
        return True


def read_bailian(reading: Reading) -> Trace:
    """Read ``chat_id``, ``parent_chat_id`` (-1: none), ``timestamp`` [s], lengths, ``hash_ids`` of 16-token blocks.

    Notes
    -----
    Chats that go back to one root are a session; a chat waits for its parent. Ids name the content of single
    blocks; here, as in a prefix cache, a block is known by its whole prefix. Ends are not recorded, so the gap after
    the parent contains its service time. Chats whose parent is not in the file are roots, and counted.

    Source: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0).
    """
    reader = _Bailian(reading, BlockContents(reading.builder.fresh, 16))
    reading.each(json_rows(reading.path), reader.take)
    return reading.finish(knowledge="blocks", block_tokens=16, partial_blocks=True)


@dataclass(slots=True)
class _Bailian:
    """Chats read so far."""

    reading: Reading
    blocks: BlockContents
    unique: Unique = field(default_factory=lambda: Unique("chat_id"))
    chats: dict[str, tuple[int, str, float]] = field(default_factory=dict[str, tuple[int, str, float]])

    def take(self, row: dict[str, Any]) -> None:
        """Add one chat."""
        builder = self.reading.builder
        chat, parent = text_of(row, "chat_id"), str(row.get("parent_chat_id", -1))
        time_s = float(number_of(row, "timestamp", -math.inf))
        tokens, output = count_of(row, "input_length"), count_of(row, "output_length")
        runs = _ids(self.reading, row, tokens, 16)
        self.unique.check(chat)
        before = self.chats.get(parent)
        if before is None and parent not in ("-1", "None"):
            self.reading.report.adjusted["parent_chat_id not in the file, taken as a root"] += 1
        number, root, parent_s = before or (-1, chat, time_s)
        added = builder.add(Entry(
            time_s, tokens, output, root, self.blocks.prompt(runs, tokens), builder.fresh(),
            after=(number,) if before else (), gap_s=max(time_s - parent_s, 0.0)))
        self.chats[chat] = added, root, time_s


def _ids(reading: Reading, row: dict[str, Any], tokens: int, block_tokens: int) -> Sequence[Run]:
    """Runs of the ids of a row; other numbers of ids than the prompt has blocks are counted."""
    runs = runs_of_ids(row.get("hash_ids"))
    num_ids, num_blocks = sum([n for _, n in runs]), -(-tokens // block_tokens)
    if num_ids > num_blocks:
        reading.report.adjusted["more block ids than the prompt has blocks, the last ones left out"] += 1
    elif num_ids < num_blocks:
        reading.report.adjusted["fewer block ids than the prompt has blocks, the rest taken as new"] += 1
    return runs
