"""Which eviction policy a pool has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvsim.errors import Problem

EvictionKind = Literal["lru", "fifo", "lfu", "s3fifo", "belady", "ttl", "pin_sessions", "priority", "cost_aware"]
KINDS: tuple[EvictionKind, ...] = get_args(EvictionKind)


@dataclass(frozen=True, slots=True)
class EvictionConfig:
    """A policy and its parameters; a parameter that the policy does not have is ignored.

    Attributes
    ----------
    kind : str
        The policy.
    ttl_s : float
        "ttl": time [s] after which an unused block is forgotten. "pin_sessions": time [s] for which a block stays
        pinned.
    share_frac : float
        "pin_sessions": largest share of the pool that is pinned.
    small_frac : float
        "s3fifo": share of the cached blocks that newcomers pass through.
    """

    kind: EvictionKind = "lru"
    ttl_s: float = 300.0
    share_frac: float = 0.8
    small_frac: float = 0.1

    def problems(self) -> list[Problem]:
        """What no pool could work with.

        >>> [str(problem) for problem in EvictionConfig("ttl", ttl_s=0.0).problems()]
        ['engine: eviction.ttl_s: got 0.0; accepted: more than 0 s']
        """
        found: list[Problem] = []
        if not self.ttl_s > 0:
            found.append(Problem("engine", "eviction.ttl_s", str(self.ttl_s), "more than 0 s"))
        found += [Problem("engine", f"eviction.{name}", str(value), "from 0 to 1")
                  for name, value in (("share_frac", self.share_frac), ("small_frac", self.small_frac))
                  if not 0 <= value <= 1]
        return found


LRU = EvictionConfig()
"""vLLM's policy."""
