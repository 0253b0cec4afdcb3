"""What the tiers below HBM did in a run: hits, bytes each way, how busy their links were."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.types import RunTotals


@dataclass(frozen=True, slots=True)
class TierUse:
    """One tier over the whole run, bytes and rates of one GPU, summed over replicas.

    ``hit_tokens`` are prompt tokens found here first; link utilisations are shares of the run's time, means over
    replicas. ``verdict`` names what keeps the tier from giving more: ``bandwidth`` (a link is busy most of the time),
    ``capacity`` (it is full) or ``none``. Where replicas share the tier, ``bytes_loaded_remote`` and
    ``bytes_stored_remote`` are the parts that came from and went to other nodes, ``network_utilisation_frac`` how busy
    that kept a replica's network in the busier direction.
    """

    kind: str
    capacity_bytes: int
    resident_bytes: int
    hit_tokens: int
    bytes_loaded: int
    bytes_stored: int
    load_link_utilisation_frac: float
    store_link_utilisation_frac: float
    verdict: str
    bytes_loaded_remote: int = 0
    bytes_stored_remote: int = 0
    network_utilisation_frac: float = 0.0


BUSY = 0.8
"""Share of the time from which a link counts as the bottleneck."""
FULL = 0.95
"""Share of the blocks from which a tier counts as full."""


def tier_use(totals: RunTotals, num_replicas: int = 1) -> tuple[TierUse, ...]:
    """Use of every tier, nearest first, from the sums over `num_replicas` engines with tiers.

    Notes
    -----
    The verdict is about the tier alone: a full tier whose hits are already ideal is not short of anything.
    """
    seconds = max(totals.makespan_s * num_replicas, 1e-12)
    found: list[TierUse] = []
    for t in totals.tiers:
        block = t.bytes_stored / t.blocks_stored if t.blocks_stored else 0.0
        load, store, network = (busy_s / seconds for busy_s in (t.load_busy_s, t.store_busy_s, t.network_busy_s))
        full = t.blocks_resident >= FULL * (t.num_blocks - 1)
        verdict = "bandwidth" if max(load, store, network) >= BUSY else "capacity" if full else "none"
        found.append(TierUse(t.kind, round(t.num_blocks * block), round(t.blocks_resident * block), t.hit_tokens,
                             t.bytes_loaded, t.bytes_stored, load, store, verdict, t.bytes_loaded_remote,
                             t.bytes_stored_remote, network))
    return tuple(found)
