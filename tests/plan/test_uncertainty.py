"""Draws of figures, swings, stresses, values of tiers and of long contexts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.billing import hourly_bill
from kvsim.errors import ScenarioError
from kvsim.planning.value import long_context_prices, tier_values
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.uncertainty import (
    DECIDING,
    DrawnStore,
    Ranged,
    decision_flips,
    drawn_value,
    figures,
    flips_text,
    latin_hypercube,
    measured,
    ranged_figures,
    uncertainty,
    uncertainty_text,
)

STORE = default_store()
K3 = load_scenario("k3-b300-study", ["workload.duration_s=300"]).at(4, 0)


@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 9))
def test_a_latin_hypercube_has_one_point_in_every_slice(samples: int, dimensions: int, seed: int) -> None:
    points = latin_hypercube(samples, dimensions, seed)
    assert points.shape == (samples, dimensions)
    for column in points.T:
        assert sorted(np.floor(column * samples).astype(int).tolist()) == list(range(samples))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_draws_stay_in_the_range_and_rise_with_the_share(mode: float, a: float, b: float) -> None:
    figure = Ranged(("gpu", "x", ()), 1 + mode, 1.0, 2.0, "frac", "assumed")
    low, high = (drawn_value(figure, s) for s in sorted((a, b)))
    assert 1.0 <= low <= high <= 2.0 + 1e-12


def test_a_drawn_store_changes_one_figure_and_nothing_else() -> None:
    gpu = STORE.get("gpu", "b300")
    path = ("hbm_bandwidth",)
    drawn = DrawnStore(STORE, {("gpu", gpu.name, path): 1.5}).get("gpu", "b300")
    before, after = dict(figures(gpu)), dict(figures(drawn))
    assert after[path].value == 1.5
    assert {p for p in before if before[p] != after[p]} == {path}
    assert STORE.get("gpu", "b300").hbm_bandwidth.value != 1.5


def test_figures_that_move_nothing_are_left_out() -> None:
    moving = ranged_figures(resolve(K3), STORE)
    assert 0 < len(moving) <= 8
    assert all(r.low < r.high for r in moving)
    assert not any("h200-sxm" in r.name for r in moving)


def test_the_reserve_matters_once_the_pool_is_predicted() -> None:
    predicted = K3.model_copy(update={"engine": K3.engine.model_copy(update={"kv_bytes_per_gpu": None})})
    names = {r.name for r in ranged_figures(resolve(predicted), STORE)}
    assert names != {r.name for r in ranged_figures(resolve(K3), STORE)}


def test_intervals_hold_the_draws_and_the_swings_are_runs_of_their_own() -> None:
    found = uncertainty(K3, 2)
    nominal = measured(simulate(K3))
    for metric, interval in found.intervals.items():
        assert interval.nominal == nominal[metric]
        assert interval.figures_low <= interval.figures_high
        assert interval.seeds_low <= interval.nominal <= interval.seeds_high
    widths = [s.width(DECIDING) for s in found.tornado]
    assert widths == sorted(widths, reverse=True)
    top = found.tornado[0]
    again = measured(simulate(K3, store=DrawnStore(STORE, {top.figure.key: top.figure.high})))
    assert again == top.at_high
    assert (found.trust, found.as_of) == ("same GPU, other model", "2026-09")
    assert "What moves" in uncertainty_text(found)
    assert found.to_dict()["samples"] == 2


def test_stresses_move_the_decision_the_way_they_must() -> None:
    stresses = {s.what: s for s in decision_flips(K3)}
    base = stresses["as it is"]
    assert not base.flips
    rent = hourly_bill(resolve(K3), STORE).usd_per_hour
    assert stresses["rent +40 %"].first_usd == pytest.approx(base.first_usd - 0.4 * rent)
    assert stresses["engine 2x faster"].first_usd > base.first_usd
    assert stresses["hit rate -10 points"].first_usd != base.first_usd
    assert all(s.flips == ((s.first_usd > 0) != (base.first_usd > 0)) for s in stresses.values())
    assert "FLIPS" in flips_text(tuple(stresses.values())) or "No stress" in flips_text(tuple(stresses.values()))


def test_a_tier_is_worth_the_difference_of_paired_runs() -> None:
    with_dram = load_scenario("k3-b300-dram", ["workload.duration_s=600"])
    (value,) = tier_values(with_dram)
    without = with_dram.model_copy(update={"tiers": ()})
    a, b = (simulate(s).cost for s in (with_dram, without))
    gain = (a.contribution_usd_per_node_hour - b.contribution_usd_per_node_hour)
    assert value.usd_per_hour == pytest.approx(gain)
    assert value.usd_per_gb_hour == pytest.approx(gain / 1889)
    assert value.cost_usd_per_hour == pytest.approx(a.usd_per_hour - b.usd_per_hour)
    with pytest.raises(ScenarioError, match="no tier to value"):
        tier_values(without)


def test_fresh_input_gets_dearer_with_context() -> None:
    found = long_context_prices(resolve(K3), 34.0, [0, 100_000, 1_000_000])
    usd = [p.usd_per_mtok for p in found]
    assert usd == sorted(usd)
    assert usd[0] < usd[-1]
    doubled = long_context_prices(resolve(K3), 68.0, [0, 100_000, 1_000_000])
    assert [p.usd_per_mtok for p in doubled] == pytest.approx([2 * u for u in usd])
    assert {p.flat_usd_per_mtok for p in found} == {3.0}


def test_a_linear_model_has_no_kernels_to_draw() -> None:
    linear = Scenario.from_dict({**K3.to_dict(), "engine": {**K3.to_dict()["engine"], "step_time": {
        "kind": "linear", "base_s": 0.01, "per_prefill_token_s": 1e-5, "per_decode_seq_s": 1e-4}}})
    assert not [r for r in ranged_figures(resolve(linear), STORE) if "kernels" in r.name]
