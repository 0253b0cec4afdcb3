"""Links between prefill and decode replicas: what is sent over them, and when it has arrived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Transfer = Literal["whole", "layerwise"]


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The network between the nodes.

    Attributes
    ----------
    bytes_per_s : float
        What one GPU sends or receives [B/s]; inf = no limit.
    latency_s : float
        Time [s] that every transfer takes besides.
    shared : bool
        Whether transfers of one replica wait for each other; if not, each has its GPUs' whole rate.
    transfer : "whole" or "layerwise"
        Whether the KV of a prompt goes when its prefill is over, or each layer's as soon as it is computed.
    """

    bytes_per_s: float = math.inf
    latency_s: float = 0.0
    shared: bool = True
    transfer: Transfer = "whole"


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is handed over with a request, summed over the decode replica's GPUs.

    Attributes
    ----------
    block_bytes : float
        KV of one of the decode side's blocks in all layers [bytes]; what ranks keep twice is sent twice.
    state_bytes : float
        Constant state of one request [bytes].
    prefill_gpus, decode_gpus : int
        GPUs of one replica that send and receive; each has an equal part.
    num_layers : int
        Parts that a layerwise transfer comes in.
    checkpoint_bytes : float
        State of one checkpoint [bytes], which goes too where decode replicas cache prefixes.

    Examples
    --------
    >>> parcel = Parcel(1000.0, 50.0, 8, 8, 10, checkpoint_bytes=40.0)
    >>> parcel.bytes_of(3), parcel.bytes_of(3, 1)
    (3050.0, 3090.0)
    """

    block_bytes: float
    state_bytes: float = 0.0
    prefill_gpus: int = 1
    decode_gpus: int = 1
    num_layers: int = 1
    checkpoint_bytes: float = 0.0

    def bytes_of(self, num_blocks: int, num_checkpoints: int = 0) -> float:
        """Bytes of a request of which `num_blocks` blocks and so many checkpoints are handed over."""
        return num_blocks * self.block_bytes + self.state_bytes + num_checkpoints * self.checkpoint_bytes


class Pull(NamedTuple):
    """What a decode replica lacks of a request: blocks, and a checkpoint (0 or 1); asked for when [s]."""

    num_blocks: int
    num_checkpoints: int
    at_s: float


@dataclass(slots=True)
class Sent:
    """What one replica has sent or received: transfers, bytes over all its GPUs, time [s] its link was in use."""

    transfers: int = 0
    num_bytes: float = 0.0
    busy_s: float = 0.0
    free_s: float = field(default=0.0, repr=False)

    def take(self, num_bytes: float, seconds: float, free_s: float) -> None:
        """Count a transfer; the link is free again at `free_s`."""
        self.transfers += 1
        self.num_bytes += num_bytes
        self.busy_s += seconds
        self.free_s = max(self.free_s, free_s)


class Links:
    """The links of all replicas: each sends and receives one transfer after the other, in the order asked for.

    Parameters
    ----------
    spec : LinkSpec
        The network.
    parcel : Parcel
        What is sent.
    num_replicas : int
        Prefill and decode replicas together.

    Attributes
    ----------
    sent, received : list of Sent
        By replica.
    num_blocks, num_checkpoints : int
        Blocks and checkpoints handed over so far.

    Notes
    -----
    A transfer uses its sender's and its receiver's link at once, from when both are free, at the rate of the slower:
    ``bytes / GPUs / bytes_per_s`` of each side. A layerwise transfer starts as long after its prefill began as the
    receiver took to make room after the prefill's end, and is not over before the last layer has been sent.

    Examples
    --------
    >>> links = Links(LinkSpec(100.0, latency_s=0.5), Parcel(200.0), 3)
    >>> arrivals_s = [links.send(source, 2, Pull(1, 0, at_s=0.0), began_s=0.0) for source in (0, 1)]
    >>> arrivals_s[0], arrivals_s[1], links.received[2].num_bytes
    (2.5, 4.5, 400.0)
    """

    def __init__(self, spec: LinkSpec, parcel: Parcel, num_replicas: int) -> None:
        self.spec, self.parcel = spec, parcel
        self.sent = [Sent() for _ in range(num_replicas)]
        self.received = [Sent() for _ in range(num_replicas)]
        self.num_blocks = self.num_checkpoints = 0

    def send(self, source: int, target: int, pull: Pull, began_s: float) -> float:
        """Send what is pulled, layerwise from `began_s` on [s]; when it has arrived [s]."""
        spec, sent, received, at_s = self.spec, self.sent[source], self.received[target], pull.at_s
        num_bytes = self.parcel.bytes_of(pull.num_blocks, pull.num_checkpoints)
        out_s, in_s = (num_bytes / n / spec.bytes_per_s for n in (self.parcel.prefill_gpus, self.parcel.decode_gpus))
        seconds = max(out_s, in_s)
        start_s = began_s if spec.transfer == "layerwise" else at_s
        if spec.shared:
            start_s = max(start_s, sent.free_s, received.free_s)
        self.num_blocks += pull.num_blocks
        self.num_checkpoints += pull.num_checkpoints
        sent.take(num_bytes, seconds, start_s + seconds)
        received.take(num_bytes, seconds, start_s + seconds)
        return max(start_s + seconds, at_s + seconds / self.parcel.num_layers, at_s) + spec.latency_s
