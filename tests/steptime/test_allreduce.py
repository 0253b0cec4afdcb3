"""Collective times: measured points, straight lines between them, latency + bytes / bandwidth elsewhere."""

from __future__ import annotations

import pytest

from kvsim.profiles.engine_profile import resolve_base
from kvsim.profiles.store import default_store
from kvsim.steptime.allreduce import Curve, all_reduce_curve, measured_curve

STORE = default_store()
VLLM = STORE.get("engine", "vllm-0.33")


def test_measured_points_are_hit_and_joined() -> None:
    """vLLM on 8 B300 in a graph: 16 KiB 7.8, 128 KiB 9.38, 131,072 KiB 394.62 us."""
    curve = all_reduce_curve(VLLM.links, STORE.get("gpu", "b300"), 8)
    assert curve.seconds(16 * 1024) == pytest.approx(7.8e-6)
    assert curve.seconds(1) == pytest.approx(7.8e-6)
    assert curve.seconds(72 * 1024) == pytest.approx((7.8e-6 + 9.38e-6) / 2)
    assert curve.seconds(131072 * 1024) == pytest.approx(394.62e-6)
    assert 1.9 < curve.seconds(262144 * 1024) / curve.seconds(131072 * 1024) < 2.1


def test_a_larger_message_never_takes_less() -> None:
    """On B200 the table's 2 MiB (20.7 us) lies below its 512 KiB (26.1 us)."""
    curve = all_reduce_curve(VLLM.links, STORE.get("gpu", "b200"), 8)
    times = [curve.seconds(2.0**k) for k in range(10, 30)]
    assert times == sorted(times)
    assert measured_curve([(1, 5), (2, 3), (3, 9)]).times == (5, 5, 9)


def test_one_rank_costs_nothing_and_no_table_means_latency_and_bandwidth() -> None:
    links, gpu = VLLM.links, STORE.get("gpu", "mi355x")
    assert all_reduce_curve(links, gpu, 1).seconds(1e9) == 0
    wire = 2 * 1e9 * 7 / 8 / (gpu.scale_up.bandwidth.base * links.bus_efficiency.base)
    assert all_reduce_curve(links, gpu, 8).seconds(1e9) == pytest.approx(links.latency.base + wire)


def test_the_ideal_machine_still_pays_for_bytes() -> None:
    ideal = resolve_base(STORE.get("engine", "ideal"), lambda name: STORE.get("engine", name))
    assert all_reduce_curve(ideal.links, STORE.get("gpu", "h100"), 8).seconds(450e9) == pytest.approx(1.75)
    assert Curve((0.0, 1.0), (0.0, 0.0)).seconds(5) == 0
