"""From a configuration to a policy at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvsim.cache.eviction.base import Eviction, Facts, Future
from kvsim.cache.eviction.belady import Belady
from kvsim.cache.eviction.config import EvictionConfig, EvictionKind
from kvsim.cache.eviction.cost_aware import CostAware
from kvsim.cache.eviction.fifo import Fifo
from kvsim.cache.eviction.lfu import Lfu
from kvsim.cache.eviction.lru import Lru
from kvsim.cache.eviction.pinning import PinSessions
from kvsim.cache.eviction.priority import ByPriority
from kvsim.cache.eviction.s3fifo import S3Fifo
from kvsim.cache.eviction.ttl import Ttl


def _belady(facts: Facts) -> Eviction:
    return Belady(_known(facts.future))


def _known(future: Future | None) -> Future:
    if future is None:
        raise ValueError("the offline bound needs the future")
    return future


POLICIES: Mapping[EvictionKind, Callable[[Facts, EvictionConfig], Eviction]] = MappingProxyType({
    "lru": lambda facts, config: Lru(),
    "fifo": lambda facts, config: Fifo(),
    "lfu": lambda facts, config: Lfu(),
    "s3fifo": lambda facts, config: S3Fifo(facts, config.small_frac),
    "belady": lambda facts, config: _belady(facts),
    "ttl": lambda facts, config: Ttl(facts, config.ttl_s),
    "pin_sessions": lambda facts, config: PinSessions(facts, config.share_frac, config.ttl_s),
    "priority": lambda facts, config: ByPriority(facts),
    "cost_aware": lambda facts, config: CostAware(facts),
})
"""Policies by name."""


def make_eviction(config: EvictionConfig, facts: Facts) -> Eviction:
    """The policy of a configuration.

    Examples
    --------
    >>> facts = Facts(64, lambda: 0.0, [0], [0], lambda tokens: 0.0)
    >>> type(make_eviction(EvictionConfig("s3fifo"), facts)).__name__
    'S3Fifo'
    """
    return POLICIES[config.kind](facts, config)
