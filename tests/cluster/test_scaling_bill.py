"""What autoscaling does to the bill: replicas up or starting, all of them, and a perfect autoscaler's."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.billing import cost_of, hourly_bill
from kvsim.cli import cli
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import Spans
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run as run_cluster
from kvsim.cluster.spec import Autoscale, ClusterSpec
from kvsim.deployment import Group, cluster_spec
from kvsim.disaggregation import Role
from kvsim.profiles.store import default_store
from kvsim.report.cost import ScalingCost
from kvsim.report.metrics import Window
from kvsim.report.report import Report, plain
from kvsim.report.scaling import first_replicas, paid_shares
from kvsim.resolve import resolve, resolve_groups
from kvsim.scenario import Scenario
from kvsim.simulation import simulate
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG

STEP: dict[str, Any] = {"kind": "linear", "base_s": 0.008, "per_prefill_token_s": 5e-5, "per_decode_seq_s": 4e-4}
WAVES: dict[str, Any] = {
    "name": "waves", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1}, "replicas": 4,
    "engine": {"num_blocks": 3000, "step_time": STEP}, "router": "least_loaded",
    "autoscale": {"target_in_flight": 6, "down_delay_s": 60, "compile_s": 20},
    "workload": {"fixed": {"num_requests": 1200, "input_tokens": 2000, "output_tokens": 200}, "rate_per_s": 3,
                 "arrivals": {"swing": 1.0, "period_s": 300}, "duration_s": 600}}
LINEAR = LinearStepTime(0.008, 5e-5, 4e-4)
WHOLE = Window(0.0, 10.0)


def run(**changes: Any) -> tuple[Report, ScalingCost]:
    report = simulate({**WAVES, **changes})
    assert report.cost.scaling is not None
    return report, report.cost.scaling


def test_on_demand_pays_for_what_is_up_or_starting() -> None:
    """Shares of a node are linear in GPUs, so that the bill is the mean number times the price of one."""
    report, found = run()
    one = simulate({**WAVES, "replicas": 1, "autoscale": None}).cost.usd_per_hour
    assert found.billing == "on_demand"
    assert report.cost.usd_per_hour == found.on_demand_usd_per_hour == pytest.approx(found.paid_replicas * one)
    assert found.reserved_usd_per_hour == pytest.approx(4 * one)
    assert found.perfect_usd_per_hour == pytest.approx(found.needed_replicas * one)
    assert 1 < found.needed_replicas < found.paid_replicas < 4
    assert report.cluster is not None
    assert found.paid_replicas == pytest.approx(report.cluster.mean_replicas, rel=1e-3)


def test_reserved_pays_for_all() -> None:
    rule = {**WAVES["autoscale"], "billing": "reserved"}
    (report, found), (_, other) = run(autoscale=rule), run()
    assert report.cost.usd_per_hour == found.reserved_usd_per_hour == pytest.approx(
        hourly_bill(resolve(Scenario.from_dict(WAVES)), default_store()).usd_per_hour)
    assert (found.on_demand_usd_per_hour, found.perfect_usd_per_hour) == (
        other.on_demand_usd_per_hour, other.perfect_usd_per_hour)


@pytest.mark.parametrize("prices", [{"compute": "owned-2026-07"}, {"compute": "owned-2026-07", "owned": {}}])
def test_owned_hardware_costs_the_same_when_it_is_idle(prices: dict[str, Any]) -> None:
    report, found = run(prices=prices)
    assert found.billing == "reserved"
    assert report.cost.usd_per_hour == found.reserved_usd_per_hour
    stated, _ = run(prices=prices, autoscale={**WAVES["autoscale"], "billing": "on_demand"})
    assert stated.cost.usd_per_hour == found.on_demand_usd_per_hour < found.reserved_usd_per_hour


def test_a_run_priced_again_equals_the_run_at_those_prices() -> None:
    first, _ = run()
    other = Scenario.from_dict({**WAVES, "prices": {"usd_per_gpu_hour": {"h200": 7.0}}})
    sales = first.cost.sales
    assert sales is not None
    again = cost_of(resolve(other), default_store(), sales, first.cost.prefill_frac)
    assert plain(again) == plain(simulate(other).cost)
    assert again.usd_per_hour == pytest.approx(7.0 * first.cost.scaling.paid_replicas if first.cost.scaling else 0.0)


def test_whole_nodes_are_paid_for_while_one_of_their_replicas_is_up() -> None:
    """Two replicas of 4 GPUs fill a node of 8: one replica costs as much as two."""
    half = {"hardware": {"gpu": "h200", "num_gpus": 4}, "layout": {"tp": 4}, "prices": {"whole_units": True}}
    _, found = run(**half)
    node = hourly_bill(resolve(Scenario.from_dict({**WAVES, **half})), default_store(), 2).usd_per_hour
    assert node < found.on_demand_usd_per_hour < 2 * node
    assert found.on_demand_usd_per_hour > found.paid_replicas / 2 * node


def test_groups_are_billed_by_their_own_prices() -> None:
    """H200 at $1 stay up, B200 at $10 come and go: the bill is that of each by its own time."""
    groups = [{"count": 1, "prices": {"usd_per_gpu_hour": {"h200": 1.0}}},
              {"count": 3, "hardware": {"gpu": "b200"}, "prices": {"usd_per_gpu_hour": {"b200": 10.0}}}]
    _, found = run(replicas=groups)
    assert found.on_demand_usd_per_hour == pytest.approx(1.0 + 10.0 * (found.paid_replicas - 1.0))
    assert found.reserved_usd_per_hour == pytest.approx(31.0)
    assert found.perfect_usd_per_hour == pytest.approx(1.0 + 10.0 * (found.needed_replicas - 1.0))


def test_every_replica_takes_its_own_time_to_start() -> None:
    rows = [Row([(i, 100)], 100, 1000 + i, arrival_s=0.02 * i) for i in range(60)]
    spec = ClusterSpec((ReplicaSpec(CONFIG, LINEAR),) * 3, RouterSpec("least_loaded"),
                       autoscale=Autoscale(1, 4.0, 0.5, 2.0, 9.0), startups_s=(9.0, 1.0, 1.75))
    done = run_cluster(Workload(requests_from_rows(rows)), spec)
    assert [r.up_s[0][0] for r in done.replicas] == [0.0, 1.5, 2.25]
    assert [s[0][0] for s in done.paid_s] == [0.0, 0.5, 0.5]


def test_a_scenario_loads_the_weights_of_each_group() -> None:
    """BF16 weights of 16.06 GB on one GPU, or a copy on each of two: 8 s or 16 s at 2 GB/s, then 20 s and 20 s."""
    scenario = Scenario.from_dict({**WAVES, "replicas": [{}, {"hardware": {"num_gpus": 2}, "layout": {"dp": 2}}]})
    roles = [Role(one, one.engine, LINEAR) for one in resolve_groups(scenario)]
    groups = [Group.of(role, part) for role, part in zip(roles, scenario.groups, strict=True)]
    one_s, found = 16.06e9 / 2e9, cluster_spec(scenario, groups, ["default"]).startups_s
    assert found == pytest.approx((40 + one_s, 40 + 2 * one_s), rel=1e-3)


def test_a_replica_that_has_nothing_left_is_still_up() -> None:
    rows = [Row([(i, 100)], tokens, 1000 + i) for i, tokens in enumerate((10, 500))]
    done = run_cluster(Workload(requests_from_rows(rows)), ClusterSpec((ReplicaSpec(CONFIG, LINEAR),) * 2))
    assert done.replicas[0].timeline.time_s[-1] < 0.5 < done.run.totals.makespan_s
    assert [r.up_s for r in done.replicas] == [((0.0, done.run.totals.makespan_s),)] * 2


spans = st.lists(st.floats(0.0, 12.0), max_size=6, unique=True).map(sorted).map(
    lambda times: tuple(zip(times[::2], times[1::2], strict=False)))


@given(paid_s=st.lists(spans, min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_shares_of_the_time_add_up(paid_s: list[Spans]) -> None:
    shares = paid_shares(paid_s, WHOLE, (2, 1))
    assert sum(part for part, _ in shares) == pytest.approx(1.0)
    for group, members in enumerate((paid_s[:2], paid_s[2:])):
        up_s = sum(max(min(end, 10.0) - begin, 0.0) for one in members for begin, end in one)
        assert sum(part * counts[group] for part, counts in shares) == pytest.approx(up_s / 10.0)


@given(count=st.integers(0, 9), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_first_replicas_are_as_many_as_asked_for(count: int, counts: list[int]) -> None:
    found = first_replicas(count, counts)
    assert sum(found) == min(count, sum(counts))
    assert all(a == b or not any(found[i + 1:]) for i, (a, b) in enumerate(zip(found, counts, strict=True)))


def test_the_command_line_shows_all_three_bills(tmp_path: Any) -> None:
    path = tmp_path / "waves.yaml"
    path.write_text("schema: kvsim/scenario/1\n" + "\n".join(
        f"{name}: {value if isinstance(value, str) else repr(value)}" for name, value in WAVES.items()))
    result = CliRunner().invoke(cli, ["run", str(path), "--set", "autoscale.billing=reserved"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("autoscaling: $"))
    assert "up or starting, not billed; $11.60 for all 4; a perfect autoscaler pays $" in line
