"""Replicas whose last tier is one for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsim.cache.blocks import PrefixKeys
from kvsim.cache.tiers.config import TierConfig
from kvsim.cache.tiers.shared import SharedTier
from kvsim.cluster.ranks import Lockstep
from kvsim.engine.core_loop import Core
from kvsim.engine.core_tiers import TieredCore
from kvsim.engine.reference import Plain, has_tiers
from kvsim.engine.types import EngineConfig
from kvsim.errors import Problem, ScenarioError


@dataclass(frozen=True, slots=True)
class Member:
    """A replica's part in a shared tier.

    Attributes
    ----------
    tier : SharedTier
        The tier.
    index : int
        Which of its members the replica is.
    keys : PrefixKeys
        What plain engines call content by, so that all of them call it the same.
    """

    tier: SharedTier
    index: int
    keys: PrefixKeys

    def let_in(self, engine: Core | Plain) -> None:
        """A new life of the replica's engine begins."""
        if isinstance(engine, Plain):
            engine.keys = self.keys
        tiers = engine.tiers if isinstance(engine, Plain | TieredCore) else None
        assert tiers is not None
        tiers.join(self.tier.port(self.index))


def members_of(configs: Sequence[EngineConfig], groups: Sequence[Sequence[int]]) -> list[Member | None]:
    """What each replica has to do with the tier that is shared.

    Parameters
    ----------
    configs : sequence of EngineConfig
        The replicas' engines; ranks are replicas of their own.
    groups : sequence of sequence of int
        Those that are on one node.

    Raises
    ------
    ScenarioError
        Replicas that share a tier cut content into different blocks.

    Examples
    --------
    >>> config = EngineConfig(64, 16, 8, 512, 4096, tiers=(TierConfig(9, shared=True),))
    >>> members = members_of([config, EngineConfig(64, 16, 8, 512, 4096), config], [[0], [1], [2]])
    >>> [None if member is None else member.index for member in members]
    [0, None, 1]
    """
    node = {r: n for n, group in enumerate(groups) for r in group}
    last = {r: _last(config) for r, config in enumerate(configs)}
    rows = [r for r, tier in last.items() if tier is not None and tier.shared]
    if not rows:
        return [None] * len(configs)
    shapes = {_shape(configs[r]) for r in rows}
    if len(shapes) > 1:
        raise ScenarioError("these replicas cannot share a tier", [Problem(
            "cluster", "tiers", "replicas whose blocks differ in tokens, bytes or groups",
            "one model, KV format and layout behind a shared tier")])
    first = configs[rows[0]]
    tier = SharedTier([tier for r in rows if (tier := last[r]) is not None], [node[r] for r in rows],
                      first.state_groups)
    keys = PrefixKeys(first.block_tokens)
    return [Member(tier, rows.index(r), keys) if r in rows else None for r in range(len(configs))]


def end_steps(drivers: Iterable[object]) -> None:
    """Nothing more comes: let the steps end that are under way in engines with a shared tier, in order of time."""
    steps = [driver for driver in dict.fromkeys(drivers) if isinstance(driver, Plain | TieredCore | Lockstep)]
    for driver in sorted(steps, key=lambda driver: driver.now_s):
        driver.end_step()


def _last(config: EngineConfig) -> TierConfig | None:
    tiers = [tier for tier in config.tiers if tier.num_blocks] if has_tiers(config) else []
    return tiers[-1] if tiers else None


def _shape(config: EngineConfig) -> tuple[object, ...]:
    """What blocks of one content must have in common."""
    return (config.block_tokens, config.state_groups, config.extra_attention_groups,
            config.tiers[-1].block_bytes, config.tiers[-1].kind)
