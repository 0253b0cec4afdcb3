"""A small scenario that runs at once, as data and as text."""

from __future__ import annotations

from typing import Any

TEXT = """\
schema: kvsim/scenario/1
name: small
model: llama-3.1-8b
hardware: {gpu: h200, num_gpus: 1}
workload: {fixed: {num_requests: 6, input_tokens: 200, output_tokens: 10}, concurrency: 2}
"""


def small(**changes: Any) -> dict[str, Any]:
    """The scenario as plain data, with changed parts."""
    return {
        "schema": "kvsim/scenario/1", "name": "small", "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200", "num_gpus": 1},
        "workload": {"fixed": {"num_requests": 6, "input_tokens": 200, "output_tokens": 10}, "concurrency": 2},
        **changes,
    }
