"""What was handed over between prefill and decode replicas, and what their links allow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvsim.cluster.disagg_links import LinkSpec, Parcel, Transfer
from kvsim.cluster.result import ClusterRun
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.prompts import prefill_s


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """Prompts of one length, none of it cached: what a prefill replica computes, makes and can send.

    ``prefill_tokens_per_s`` [tokens/s], ``bytes_per_s`` of KV and state as the decode side's ranks keep them [B/s],
    ``link_frac`` the share of its links that this takes: above 1 the link is the limit.
    """

    context_tokens: int
    prefill_tokens_per_s: float
    bytes_per_s: float
    link_frac: float


@dataclass(frozen=True, slots=True)
class DisaggregationUse:
    """What was handed over in a whole run, warm-up included.

    Attributes
    ----------
    prefill_replicas, decode_replicas : int
        How many there are.
    transfer : "whole" or "layerwise"
        How KV goes.
    handed_over_requests, local_requests : int
        Requests whose KV was transferred, and those that were prefilled where they were decoded.
    transferred_bytes : float
        All that decode replicas received [bytes].
    sent_bytes_per_gpu, received_bytes_per_gpu : tuple of float
        By prefill and by decode replica, of each of its GPUs [bytes].
    transferred_blocks, decode_cached_tokens : int
        Blocks that went, and prompt tokens of handed-over requests that the decode side had already.
    transferred_checkpoints : int
        Checkpoints that went for the decode side's prefix cache, besides each request's state to go on from.
    wait_s_mean, wait_s_p95 : float
        From the end of a prefill to the arrival of its KV [s].
    link_bytes_per_s : float
        What one GPU may send or receive [B/s]; inf = no limit.
    sent_busy_frac, received_busy_frac : float
        Share of the run in which the busiest prefill and decode replica's links were in use.
    busy_bytes_per_s, busy_link_frac : float
        What prefill replicas made for their links while they computed, a replica [B/s], and as a share of its links.
        Cached prompts are sent too, so that hits raise it.
    limits : tuple of LinkLimit
        The link limit of a prefill replica by context length.
    """

    prefill_replicas: int
    decode_replicas: int
    transfer: Transfer
    handed_over_requests: int
    local_requests: int
    transferred_bytes: float
    sent_bytes_per_gpu: tuple[float, ...]
    received_bytes_per_gpu: tuple[float, ...]
    transferred_blocks: int
    decode_cached_tokens: int
    wait_s_mean: float
    wait_s_p95: float
    link_bytes_per_s: float
    sent_busy_frac: float
    received_busy_frac: float
    busy_bytes_per_s: float
    busy_link_frac: float
    limits: tuple[LinkLimit, ...] = ()
    transferred_checkpoints: int = 0

    def text(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.prefill_replicas}P{self.decode_replicas}D, {self.transfer} transfer: "
            f"{self.handed_over_requests} requests handed over, {self.local_requests} prefilled on the decode side; "
            f"{self.transferred_bytes / 1e9:,.1f} GB moved, {self.decode_cached_tokens / 1e6:.2f} Mtok already there"
            + (f", {self.transferred_checkpoints} checkpoints" if self.transferred_checkpoints else ""),
            f"KV arrives {self.wait_s_mean * 1e3:.0f} ms after its prefill (p95 {self.wait_s_p95 * 1e3:.0f} ms); "
            f"busiest links in use {self.sent_busy_frac:.1%} (prefill), {self.received_busy_frac:.1%} (decode)",
            f"link limit: a prefill replica makes {self.busy_bytes_per_s / 1e9:.2f} GB/s while it computes, "
            f"{self.busy_link_frac:.1%} of its links; with nothing cached " + ", ".join(
                f"{one.context_tokens // 1024}k: {one.prefill_tokens_per_s:,.0f} tok/s = {one.link_frac:.2%}"
                for one in self.limits)]
        return "\n".join(lines)


def disaggregation_use(done: ClusterRun, link: LinkSpec, parcel: Parcel,
                       limits: tuple[LinkLimit, ...]) -> DisaggregationUse:
    """What was handed over in a run."""
    split, whole_s = done.split, max(done.run.totals.makespan_s, 1e-12)
    assert split is not None
    num, wait_s = split.num_prefill, split.wait_s
    sent, received = split.sent[:num], split.received[num:]
    busy_s = sum(replica.totals.busy_s for replica in done.replicas[:num])
    made = sum(one.num_bytes for one in sent) / busy_s if busy_s else 0.0
    return DisaggregationUse(
        num, len(received), link.transfer, split.num_handed_over, split.num_local,
        sum(one.num_bytes for one in received),
        tuple(one.num_bytes / parcel.prefill_gpus for one in sent),
        tuple(one.num_bytes / parcel.decode_gpus for one in received),
        split.num_blocks, split.local_tokens, float(wait_s.mean()) if len(wait_s) else math.nan,
        float(np.percentile(wait_s, 95)) if len(wait_s) else math.nan, link.bytes_per_s,
        max(one.busy_s for one in sent) / whole_s, max(one.busy_s for one in received) / whole_s,
        made, made / parcel.prefill_gpus / link.bytes_per_s, limits, split.num_checkpoints)


def link_limits(model: StepTimeModel, budget_tokens: int, parcel_bytes: Iterable[tuple[int, float]],
                link_bytes_per_s: float) -> tuple[LinkLimit, ...]:
    """The link limit of a prefill replica by context length.

    Parameters
    ----------
    model : StepTimeModel
        Its steps.
    budget_tokens : int
        Most tokens that a step computes.
    parcel_bytes : iterable of (int, float)
        Context lengths [tokens] and what is handed over with such a prompt [bytes].
    link_bytes_per_s : float
        All its GPUs' links together [B/s].

    Examples
    --------
    >>> from kvsim.steptime.base import LinearStepTime
    >>> link_limits(LinearStepTime(0.0, 1e-4, 0.0), 8192, [(20_000, 2e7)], 4e7)
    (LinkLimit(context_tokens=20000, prefill_tokens_per_s=10000.0, bytes_per_s=10000000.0, link_frac=0.25),)
    """
    found: list[LinkLimit] = []
    for tokens, num_bytes in parcel_bytes:
        seconds = prefill_s(model, tokens, budget_tokens)
        made = num_bytes / seconds if seconds else math.inf
        found.append(LinkLimit(tokens, tokens / seconds if seconds else math.inf, made, made / link_bytes_per_s))
    return tuple(found)
