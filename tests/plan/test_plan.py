"""The cheapest plan: against exhaustive search, limits, demand, what is said when nothing serves."""

from __future__ import annotations

from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.planning import PlanOptions, plan
from kvsim.planning.bounds import turns_of, upper_bound
from kvsim.planning.candidates import candidates
from kvsim.planning.changes import changes_text, fleet_title, next_dollar, plain_changes
from kvsim.planning.search import need_of
from kvsim.planning.text import plan_text
from kvsim.planning.trials import Measure, Trial, most_sessions, most_sessions_near, try_sessions
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import Scenario, load_scenario

GRID: dict[str, Any] = {
    "schema": "kvsim/scenario/1", "name": "grid", "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200", "num_gpus": 1},
    "workload": {"fixed": {"num_requests": 60, "input_tokens": 4000, "output_tokens": 60}, "concurrency": 1},
    "slo": {"ttft_s": {"p95": 0.6}, "tpot_s": {"p95": 0.03}},
    "plan": {
        "live_sessions": 40, "max_sessions_per_replica": 12, "kv_dtypes": ["bf16", "fp8"],
        "hardware": [{"gpu": "h200", "num_gpus": 1, "layouts": [{}]},
                     {"gpu": "h100", "num_gpus": 1, "layouts": [{}]},
                     {"gpu": "h200", "num_gpus": 2, "layouts": [{"tp": 2}]}],
    },
    "prices": {"whole_units": False},
}


def grid(**plan_changes: Any) -> Scenario:
    return Scenario.from_dict({**GRID, "plan": {**GRID["plan"], **plan_changes}})


def cheapest_by_hand(scenario: Scenario) -> float:
    """$ per hour of the best of every configuration at every number of sessions, each of them simulated."""
    price = default_store().get("price", scenario.prices.compute)
    best = inf
    assert scenario.plan is not None
    assert scenario.plan.live_sessions is not None
    for candidate in candidates(scenario):
        gpu = resolve(candidate.scenario).gpu.name
        rate = price.usd_per_gpu_hour[gpu].base * candidate.scenario.hardware.num_gpus
        counts = range(1, scenario.plan.max_sessions_per_replica + 1)
        kept = [n for n in counts if try_sessions(candidate.scenario, n).ok]
        best = min([best, *(rate * ceil(scenario.plan.live_sessions / n) for n in kept)])
    return best


def test_as_cheap_as_exhaustive_search() -> None:
    scenario = grid()
    found, everything = plan(scenario), plan(scenario, PlanOptions(exhaustive=True))
    assert found.best.usd_per_hour == pytest.approx(cheapest_by_hand(scenario))
    assert everything.best.name == found.best.name
    assert everything.best.usd_per_hour == found.best.usd_per_hour
    assert found.simulations < everything.simulations
    assert len(everything.options) + len(everything.rejected) == 6
    front = everything.front
    assert {p.label for p in front} <= {o.name for o in everything.options}
    assert [p.interactivity_tokens_per_s for p in front] == sorted(p.interactivity_tokens_per_s for p in front)


def test_the_same_whatever_the_number_of_processes() -> None:
    scenario = grid(live_sessions=8, hardware=None, kv_dtypes=["bf16"])
    assert plan(scenario, PlanOptions(workers=2)).to_dict() == plan(scenario).to_dict()


def test_spares_and_whole_units_are_paid_for() -> None:
    alone = grid(hardware=None, kv_dtypes=["bf16"], live_sessions=8)
    spared = grid(hardware=None, kv_dtypes=["bf16"], live_sessions=8, spares=2)
    a, b = plan(alone).best, plan(spared).best
    assert (b.gpus - a.gpus, b.spares) == (2, 2)
    whole = spared.model_copy(update={"prices": spared.prices.model_copy(update={"whole_units": None})})
    assert plan(whole).best.gpus == 8


@pytest.mark.parametrize(("limits", "why"), [
    ({"inventory": {"h200": 1, "h100": 0}}, "the inventory has"),
    ({"max_power": "1 W"}, "the site carries 0"),
    ({"max_usd_per_hour": 0.5}, r"the budget is \$0.50"),
])
def test_limits(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(InfeasibleError, match=why) as caught:
        plan(grid(**limits, kv_dtypes=["bf16"]))
    assert caught.value.exit_code == 3


def test_a_limit_that_leaves_room_is_kept() -> None:
    free = plan(grid(kv_dtypes=["bf16"])).best
    bound = plan(grid(kv_dtypes=["bf16"], inventory={"h200": 64, "h100": 0})).best
    assert "h100" not in bound.name
    assert bound.usd_per_hour >= free.usd_per_hour
    with pytest.raises(InfeasibleError):
        plan(grid(kv_dtypes=["bf16"]), PlanOptions(max_usd_per_hour=free.usd_per_hour * 0.99))


def test_an_infeasible_slo_names_the_nearest() -> None:
    impossible = grid(kv_dtypes=["bf16"]).model_copy(update={"slo": grid().slo.model_copy(
        update={"ttft_s": {"p95": 1e-4}})})
    with pytest.raises(InfeasibleError, match=r"the nearest is .* feasible if these were allowed: TTFT p95") as caught:
        plan(impossible)
    assert len(caught.value.problems) == 3
    assert all("at 1 session a replica" in p.given for p in caught.value.problems)


def test_a_sequence_that_decodes_too_slowly_alone_needs_no_simulation() -> None:
    k3 = load_scenario("plan-k3", ["slo.tpot_s.p95=0.001"])
    turns = turns_of(k3)
    assert turns is not None
    first = candidates(k3)[0]
    assert upper_bound(resolve(first.scenario), turns).sessions == 0
    assert upper_bound(resolve(candidates(load_scenario("plan-k3"))[0].scenario), turns).sessions > 20


def test_what_does_not_fit_says_so() -> None:
    names = [c for c in candidates(load_scenario("plan-k3")) if "h200" in c.name and c.scenario.hardware.num_gpus == 8]
    assert names
    with pytest.raises(InfeasibleError, match="does not fit"):
        resolve(names[0].scenario)


def test_a_logged_pool_stays_where_it_was_logged() -> None:
    base = load_scenario("k3-b300-study", ["plan={hardware: [{gpu: b300, num_gpus: 8, layouts: [{tp: 8}]}, "
                                           "{gpu: mi355x, num_gpus: 8, layouts: [{tp: 8}]}]}"])
    own, other = candidates(base)
    assert own.scenario.engine.kv_bytes_per_gpu is not None
    assert other.scenario.engine.kv_bytes_per_gpu is None


def test_seats_become_live_sessions() -> None:
    asked = ["demand={seats: 1000, active_frac_peak: 0.2}"]
    scenario = load_scenario("plan-k3", asked)
    turns = turns_of(scenario)
    assert need_of(scenario, None, turns).live_sessions == 200
    assert need_of(scenario, 500, turns).live_sessions == 100
    assert turns is not None
    busy = load_scenario("plan-k3", [*asked, f"demand.turns_per_active_hour={turns.per_session_hour / 2}"])
    assert need_of(busy, None, turns).live_sessions == 100
    growing = load_scenario("plan-k3", [*asked, "demand.growth_per_month=0.1", "demand.months=2"])
    assert need_of(growing, None, turns).live_sessions == 242


def test_a_seat_costs_its_share_of_a_month() -> None:
    scenario = grid(hardware=None, kv_dtypes=["bf16"], live_sessions=None).to_dict()
    seated = Scenario.from_dict({**scenario, "demand": {"seats": 40, "active_frac_peak": 0.2}})
    best = plan(seated).best
    assert best.usd_per_seat_month == pytest.approx(best.usd_per_hour * 730 / 40)
    assert best.seats_per_node == pytest.approx(40 / (best.gpus / 8))
    assert "a seat and month" in plan_text(plan(seated))


def test_what_a_plan_needs() -> None:
    with pytest.raises(ScenarioError, match="needs a demand"):
        plan(grid(live_sessions=None))
    with pytest.raises(ScenarioError, match="needs an SLO"):
        plan(grid().model_copy(update={"slo": type(grid().slo)()}))


def test_bisection_stops_at_the_first_failure() -> None:
    tried: list[int] = []

    def trial(n: int) -> Any:
        tried.append(n)
        return try_sessions(grid().at(n, 0).model_copy(update={"slo": grid().slo.model_copy(
            update={"ttft_s": {"p95": 1e-6}})}), n)

    assert most_sessions([2, 3, 4], trial).kept is None
    assert tried == [2]


def test_the_next_dollar() -> None:
    changes = next_dollar(grid(max_sessions_per_replica=12), 2)
    today, rest = changes[0], {c.what: c for c in changes[1:]}
    more = rest["+1 replica"]
    assert more.sessions.median == pytest.approx(1.5 * today.sessions.median)
    assert more.usd_per_extra_session.median == pytest.approx(
        more.extra_usd_per_hour / more.extra_sessions.median, rel=0.2)
    assert rest["1 x h100 instead"].extra_usd_per_hour < 0
    assert rest["fp8 KV"].extra_usd_per_hour == 0
    ranked = [c.usd_per_extra_session.median for c in changes[1:]]
    assert ranked == sorted(ranked)
    assert changes_text(changes, fleet_title(grid(), 2)).count("\n") == len(changes) + 2
    assert plain_changes(changes)[0]["what"] == "today"


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40, unique=True), st.integers(0, 220), st.integers(0, 260),
       st.floats(0.2, 6))
def test_a_search_from_a_guess_finds_what_bisection_finds(counts: list[int], edge: int, guess: int,
                                                         steep: float) -> None:
    def trial(n: int) -> Trial:
        ratio = (n / (edge + 0.5)) ** steep
        return Trial(n, (Measure("ttft_s", "p95", ratio, 1.0),), 0, 0, 0, 0, 0)

    asked = sorted(counts)
    found, bisected = most_sessions_near(asked, trial, guess), most_sessions(asked, trial)
    assert found.kept == bisected.kept
    assert (found.broken is None) == (asked[-1] <= edge)
    if found.broken is not None and found.kept is not None:
        assert asked.index(found.broken.sessions) == asked.index(found.kept.sessions) + 1


def test_a_plan_with_advice_says_the_next_dollar_and_an_interval() -> None:
    asked = grid(hardware=None, kv_dtypes=["bf16"], live_sessions=40, spares=1)
    found = plan(asked, PlanOptions(advise=True))
    alone = plan(asked)
    assert found.to_dict()["options"] == alone.to_dict()["options"]
    assert found.simulations > alone.simulations
    assert found.interval is not None
    usd, sessions = found.interval.usd_per_hour, found.interval.sessions_per_replica
    assert usd.low <= usd.median == found.best.usd_per_hour <= usd.high
    assert sessions.low <= sessions.median == found.best.sessions_per_replica <= sessions.high
    today, rest = found.changes[0], {c.what: c for c in found.changes[1:]}
    assert today.usd_per_hour == pytest.approx(found.best.usd_per_hour)
    assert today.sessions.median >= 40
    assert rest["+1 replica"].extra_usd_per_hour == pytest.approx(found.best.usd_per_hour / (found.best.replicas + 1))
    text = plan_text(found)
    assert "The next best dollar" in text
    assert "interval: $" in text
    plain = found.to_dict()
    assert len(plain["changes"]) == len(found.changes)
    assert plain["interval"]["draws"] > 1


def test_changes_of_ones_own_and_what_cannot_be_simulated() -> None:
    asked = grid(hardware=None, kv_dtypes=["bf16"], changes={
        "half the batch": {"engine.max_num_seqs": 2}, "a typo": {"engine.max_num_seq": 2}})
    rest = {c.what: c for c in next_dollar(asked, 1)[1:]}
    assert rest["half the batch"].sessions.median <= 12
    assert rest["half the batch"].extra_usd_per_hour == 0
    assert "max_num_seq" in rest["a typo"].note
    assert "not simulated: " in changes_text([rest["a typo"]], "all")


def test_exhaustive_search_over_k3s_own_grid_confirms_the_winner() -> None:
    """The grid of the worked example for 60 sessions; trials measure one minute instead of twenty."""
    asked = load_scenario("plan-k3", ["workload.duration_s=60", "plan.live_sessions=60"])
    found, everything = plan(asked), plan(asked, PlanOptions(exhaustive=True))
    assert len(everything.options) + len(everything.rejected) == 18
    assert (found.best.name, found.best.usd_per_hour) == (everything.best.name, everything.best.usd_per_hour)
    assert found.simulations < everything.simulations
    assert all("does not fit" in r.why for r in everything.rejected)
