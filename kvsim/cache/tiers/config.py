"""What a tier is, and what it did in a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvsim.errors import Problem

TierKind = Literal["dram", "nvme", "pool"]
WritePolicy = Literal["eager", "lazy", "on-eviction", "on-reuse", "none"]
LoadRule = Literal["always", "break-even"]
LoadMode = Literal["async", "layerwise"]


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A tier below the pool, or below another tier, in base units.

    Attributes
    ----------
    num_blocks : int
        Blocks of its pool, one reserved null block included; 0 = the tier is not there.
    write : str
        When a block of the level above is copied here: "eager" (once computed, or once it has arrived above), "lazy"
        (when it nears the head of the free queue above), "on-eviction" (when it is evicted above; what is loaded from
        here leaves the tier), "on-reuse" (at the `reuse_threshold`-th time it is offered) or "none".
    load_s_per_block, store_s_per_block : float
        Time [s] that one block occupies the link from the tier, and the link to it.
    kind : str
        dram, nvme or pool: where its hits are reported.
    load_start_s, store_start_s : float
        Time [s] that every transfer takes besides, whatever its size.
    block_bytes : int
        Size of a block [bytes] over all ranks, for the totals.
    load_rule : "always" or "break-even"
        Whether a hit is loaded although recomputing it at `recompute_s_per_token` [s] would take less time.
    recompute_s_per_token : float
        What the rule compares with [s].
    reuse_threshold : int
        Offers before a block is stored "on-reuse", >= 1.
    min_load_tokens : int
        Hits shorter than this are not loaded [tokens].
    stores_outputs : bool
        Whether blocks with generated tokens are stored (eager and on-reuse writing from the pool).
    multi_group : bool
        Whether it can handle models with constant-state groups; if not, it neither stores nor gives them anything.
    offline_from_s : float
        When it stops answering [s]; transfers under way still arrive.
    step_cost_frac : float
        Share of its transfers' time that the step which starts them takes longer: 0 where copies run beside the
        computation, 1 where it waits for them.
    load_mode : "async" or "layerwise"
        Whether a request computes when its load is over, or at once, layer by layer behind its load: then its first
        step, with everybody in it, ends no sooner than the load. Layerwise only if every tier that gives something is.
    shared : bool
        Whether it is a part of one tier that all replicas of a cluster share (`kvsim.cache.tiers.shared`); only the
        last tier can be. An engine that is alone keeps it for itself.
    network_s_per_block, network_start_s : float
        Time [s] that a block of a shared tier occupies the network of a replica where it is kept by another node, and
        what every transfer from or to other nodes takes besides.
    """

    num_blocks: int
    write: WritePolicy = "eager"
    load_s_per_block: float = 0.0
    store_s_per_block: float = 0.0
    kind: TierKind = "dram"
    load_start_s: float = 0.0
    store_start_s: float = 0.0
    block_bytes: int = 0
    load_rule: LoadRule = "always"
    recompute_s_per_token: float = 0.0
    reuse_threshold: int = 2
    min_load_tokens: int = 0
    stores_outputs: bool = True
    multi_group: bool = True
    offline_from_s: float = math.inf
    step_cost_frac: float = 0.0
    load_mode: LoadMode = "async"
    shared: bool = False
    network_s_per_block: float = 0.0
    network_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TierTotals:
    """What one tier did in a run.

    Attributes
    ----------
    kind : str
        dram, nvme or pool.
    num_blocks : int
        Blocks of its pool, the null block included.
    hit_tokens : int
        Prompt tokens that requests got from here at their first admission.
    blocks_loaded, blocks_stored : int
        Blocks sent up and down, transfers under way at the end included.
    bytes_loaded, bytes_stored : int
        The same in bytes.
    load_busy_s, store_busy_s : float
        Time [s] that the two links were occupied, those transfers included.
    blocks_resident : int
        Blocks that can be found at the end.
    bytes_loaded_remote, bytes_stored_remote : int
        What of that came from, or went to, other nodes.
    network_busy_s : float
        Time [s] that the busier direction of the network was occupied.
    """

    kind: TierKind
    num_blocks: int
    hit_tokens: int
    blocks_loaded: int
    blocks_stored: int
    bytes_loaded: int
    bytes_stored: int
    load_busy_s: float
    store_busy_s: float
    blocks_resident: int
    bytes_loaded_remote: int = 0
    bytes_stored_remote: int = 0
    network_busy_s: float = 0.0


def tier_problems(tiers: Iterable[TierConfig]) -> list[Problem]:
    """What no tier could work with; empty if all is well.

    >>> [str(problem) for problem in tier_problems([TierConfig(10, load_s_per_block=math.inf)])]
    ['engine: tiers.0.load_s_per_block: got inf; accepted: a finite time, 0 or more (no bandwidth, no transfer)']
    """
    times = ("load_s_per_block", "store_s_per_block", "load_start_s", "store_start_s", "recompute_s_per_token",
             "network_s_per_block", "network_start_s")
    tiers = [*tiers]
    counts = {"num_blocks": 0, "block_bytes": 0, "reuse_threshold": 1, "min_load_tokens": 0}
    problems: list[Problem] = []
    for number, tier in enumerate(tiers):
        given: dict[str, float] = {name: getattr(tier, name) for name in (*times, *counts)}
        problems += [Problem("engine", f"tiers.{number}.{name}", str(given[name]), "a finite time, 0 or more",
                             "no bandwidth, no transfer") for name in times if not 0 <= given[name] < math.inf]
        problems += [Problem("engine", f"tiers.{number}.{name}", str(given[name]), f"{least} or more")
                     for name, least in counts.items() if given[name] < least]
        if tier.shared and number < len(tiers) - 1:
            problems.append(Problem("engine", f"tiers.{number}.shared", "true above another tier",
                                    "a shared tier as the last one"))
        if tier.shared and tier.write == "on-eviction":
            problems.append(Problem("engine", f"tiers.{number}.write", "on-eviction in a shared tier",
                                    "another policy: what one replica loads would leave the tier for all"))
    return problems
