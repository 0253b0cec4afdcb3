"""What the ranges of figures do to the best point of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.batch import doubts as doubts_module
from kvsim.batch import folder as folder_module
from kvsim.batch.doubts import BREAK_EVEN, MONTH, SEAT, Doubts, doubts_of, kept_doubts
from kvsim.batch.findings import HOURS_PER_MONTH, Findings, findings_of
from kvsim.batch.folder import Folder
from kvsim.batch.job import Job, run_case
from kvsim.batch.sweep import SweepOptions, sweep
from kvsim.errors import ScenarioError
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.simulation import simulate
from kvsim.uncertainty import COVERED_FRAC, DrawnStore, drawn_value, latin_hypercube, measured, ranged_figures
from tests.sweep.helpers import INLINE, batch, tiny

PRICES = {"compute": "rental-2026-09", "api": "moonshot-k3"}
DEMAND = {"seats": 100, "active_frac_peak": 0.2}


def money(**changes: Any) -> dict[str, Any]:
    return batch({"grid": {"workload.concurrency": [1, 2]}}, base=tiny(prices=PRICES, demand=DEMAND), replications=2,
                 **changes)


def findings(out: Path | None = None) -> Findings:
    found = findings_of(sweep(money(), out, INLINE))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def drawn() -> tuple[Findings, Doubts]:
    found = findings()
    return found, doubts_of(found.best, 8, INLINE)


def test_span_is_that_of_the_draws_around_the_mean_of_the_seeds(drawn: tuple[Findings, Doubts]) -> None:
    """The same draws, simulated here one by one."""
    found, doubts = drawn
    scenario, store = found.best.scenario, default_store()
    moving = ranged_figures(resolve(scenario), store)
    nominal = measured(simulate(scenario))["contribution [$/node-hour]"]
    values = [measured(simulate(scenario, store=DrawnStore(store, {
        r.key: drawn_value(r, float(u)) for r, u in zip(moving, point, strict=True)})))["contribution [$/node-hour]"]
        for point in latin_hypercube(8, len(moving), scenario.seed)]
    around = [found.per_month.mean + HOURS_PER_MONTH * (value - nominal) for value in values]
    assert doubts.spans[MONTH] == pytest.approx(tuple(np.quantile(around, q) for q in COVERED_FRAC))
    assert (doubts.draws, doubts.figures) == (8, len(moving))


def test_measures_agree(drawn: tuple[Findings, Doubts]) -> None:
    """A rented node's bill has no range, so neither has a seat's; less contribution is a higher break-even."""
    found, doubts = drawn
    assert doubts.spans[SEAT] == pytest.approx((found.usd_per_seat_month, found.usd_per_seat_month))
    bill = found.per_month.mean * found.break_even_frac / (1 - found.break_even_frac)
    for contribution, break_even in zip(doubts.spans[MONTH], reversed(doubts.spans[BREAK_EVEN]), strict=True):
        assert break_even == pytest.approx(bill / (bill + contribution), rel=0.05)
    assert doubts.stresses[0].first_usd == pytest.approx(found.best.rows[0]["cost.contribution_usd_per_node_hour"])


def test_widest_swing_comes_first_and_lies_around_the_mean(drawn: tuple[Findings, Doubts]) -> None:
    found, doubts = drawn
    widths = [swing.width_usd for swing in doubts.swings]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0
    first = doubts.swings[0]
    assert min(first.usd_at_low, first.usd_at_high) <= found.per_month.mean <= max(first.usd_at_low, first.usd_at_high)


def test_pool_and_inline_draw_the_same(drawn: tuple[Findings, Doubts]) -> None:
    found, doubts = drawn
    assert doubts_of(found.best, 8, SweepOptions("process", workers=2)) == doubts


def test_figures_of_a_job_replace_those_of_profiles() -> None:
    data = {k: v for k, v in tiny().items() if k != "name"}
    price = run_case(Job("0", {**data, "prices": PRICES}))["result"]["cost.usd_per_hour"]
    profile = default_store().get("price", PRICES["compute"])
    figure = ["price", profile.name, ["usd_per_gpu_hour", "h200-sxm"], 123.0]
    changed = run_case(Job("0", {**data, "prices": PRICES}, figures=[figure]))["result"]["cost.usd_per_hour"]
    assert (changed, changed != price) == (123.0, True)


def test_kept_in_the_folder_for_the_same_question_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best, folder, asked = findings(tmp_path / "o").best, Folder(tmp_path / "o"), list[int]()
    real: Callable[..., Doubts] = doubts_module.doubts_of

    def counted(*args: Any) -> Doubts:
        asked.append(args[1])
        return real(*args)

    monkeypatch.setattr(doubts_module, "doubts_of", counted)
    first = kept_doubts(best, folder, 3, INLINE)
    assert kept_doubts(best, folder, 3, INLINE) == first
    assert asked == [3]
    kept_doubts(best, folder, 4, INLINE)
    assert asked == [3, 4]


def test_results_of_another_version_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = findings(tmp_path / "o").best
    monkeypatch.setattr(folder_module, "package_version", lambda: "999")
    with pytest.raises(ScenarioError, match="another version"):
        kept_doubts(best, Folder(tmp_path / "o"), 3, INLINE)


def test_draw_that_does_not_fit_is_left_out_and_a_bug_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    best = findings().best
    kinds = iter(["ok", "infeasible"])

    def half(job: Job) -> dict[str, Any]:
        kind = next(kinds, "ok")
        return run_case(job) if kind == "ok" else {"status": "failed", "error": {"kind": kind, "message": "no"}}

    monkeypatch.setattr("kvsim.batch.executors.run_case", half)
    found = doubts_of(best, 3, INLINE)
    assert found.draws == 2
    assert not math.isnan(found.spans[MONTH][0])
    kinds = iter(["ok", "bug"])
    with pytest.raises(ScenarioError, match="a draw of figures failed"):
        doubts_of(best, 3, INLINE)
