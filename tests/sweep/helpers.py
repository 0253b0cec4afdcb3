"""Small sweeps that finish at once."""

from __future__ import annotations

from typing import Any

from kvsim.batch.sweep import SweepOptions

INLINE = SweepOptions("inline")


def tiny(**changes: Any) -> dict[str, Any]:
    """A scenario of a few requests."""
    return {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
            "workload": {"fixed": {"num_requests": 6, "input_tokens": 120, "output_tokens": 8}, "concurrency": 2},
            **changes}


def batch(*axes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A sweep of tiny scenarios."""
    return {"name": "t", "base": tiny(), "axes": list(axes), **changes}


def linear(base_s: float) -> dict[str, Any]:
    """A step time that is a constant."""
    return {"kind": "linear", "base_s": base_s, "per_prefill_token_s": 0.0, "per_decode_seq_s": 0.0}
