"""Use of the tiers below HBM."""

from __future__ import annotations

import pytest

from kvsim.cache.tiers.config import TierTotals
from kvsim.engine.types import RunTotals
from kvsim.report.transfers import tier_use


def totals(*tiers: TierTotals) -> RunTotals:
    return RunTotals(1, 1, 1, 1, 0, 0, 100.0, 100.0, tiers=tiers)


def test_bytes_and_utilisation() -> None:
    found, = tier_use(totals(TierTotals("dram", 11, 640, 20, 5, 2000, 500, 30.0, 10.0, 4)))
    assert (found.bytes_loaded, found.bytes_stored, found.hit_tokens) == (2000, 500, 640)
    assert (found.resident_bytes, found.capacity_bytes) == (400, 1100)
    assert (found.load_link_utilisation_frac, found.store_link_utilisation_frac) == pytest.approx((0.3, 0.1))
    assert found.verdict == "none"


@pytest.mark.parametrize(("load_busy_s", "resident", "verdict"), [(85.0, 4, "bandwidth"), (1.0, 10, "capacity"),
                                                                 (90.0, 10, "bandwidth")])
def test_verdict(load_busy_s: float, resident: int, verdict: str) -> None:
    found, = tier_use(totals(TierTotals("dram", 11, 1, 1, 1, 100, 100, load_busy_s, 0.0, resident)))
    assert found.verdict == verdict


def test_replicas_and_their_network() -> None:
    found, = tier_use(totals(TierTotals("dram", 11, 640, 20, 5, 2000, 500, 30.0, 10.0, 4, 1500, 250, 180.0)), 2)
    assert (found.bytes_loaded_remote, found.bytes_stored_remote) == (1500, 250)
    assert (found.load_link_utilisation_frac, found.network_utilisation_frac) == pytest.approx((0.15, 0.9))
    assert found.verdict == "bandwidth"


def test_no_tier() -> None:
    assert tier_use(totals()) == ()
