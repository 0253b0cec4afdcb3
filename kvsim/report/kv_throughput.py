"""KV throughput: how fast prefill makes KV cache, by context length; what a link away from it must carry."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.prompts import prefill_s

LENGTHS = (2_048, 8_192, 32_768, 131_072, 524_288, 1_048_576)
"""Context lengths [tokens] that reports show, as far as the engine takes them."""


@dataclass(frozen=True, slots=True)
class KvThroughput:
    """One context length: its KV cache and state, the time of its prefill alone, and one over the other.

    ``kv_bytes`` are those of the whole model, each once [bytes]; ``bytes_per_s`` = ``kv_bytes / prefill_s``.
    """

    context_tokens: int
    kv_bytes: float
    prefill_s: float
    bytes_per_s: float


def kv_throughput(model: StepTimeModel, bytes_per_token: float, state_bytes: float, budget_tokens: int,
                  lengths: Iterable[int]) -> tuple[KvThroughput, ...]:
    """KV throughput at some context lengths.

    Parameters
    ----------
    model : StepTimeModel
        Time of a step.
    bytes_per_token, state_bytes : float
        Growing KV a token and constant state a sequence, whole model [bytes].
    budget_tokens : int
        Most tokens a step computes.
    lengths : iterable of int
        Context lengths [tokens], >= 1.

    Notes
    -----
    Source: Prefill-as-a-Service, https://arxiv.org/abs/2604.15039: KV throughput = KV bytes / prefill time. Models with
    constant state make little KV for much computing, so that moving it is cheap.

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> kv_throughput(LinearStepTime(0.0, 1e-4, 0.0), 1000.0, 0.0, 8192, [20_000])
    (KvThroughput(context_tokens=20000, kv_bytes=20000000.0, prefill_s=2.0, bytes_per_s=10000000.0),)
    """
    found: list[KvThroughput] = []
    for tokens in lengths:
        seconds, num_bytes = prefill_s(model, tokens, budget_tokens), bytes_per_token * tokens + state_bytes
        found.append(KvThroughput(tokens, num_bytes, seconds, num_bytes / seconds if seconds else math.inf))
    return tuple(found)
