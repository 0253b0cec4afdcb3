"""Limits of traffic classes before the router: rates, requests in flight, lines and rejections."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cli import cli
from kvsim.cluster.limits import Allowance, Limit, LimitedRun, TokenBucket
from kvsim.cluster.replica import ReplicaSpec
from kvsim.cluster.result import ClusterRun
from kvsim.cluster.routers.registry import RouterSpec
from kvsim.cluster.run import run as run_cluster
from kvsim.cluster.spec import Autoscale, ClusterSpec, Failure
from kvsim.engine import core
from kvsim.engine.types import FINISHED, REFUSED, UNFINISHED
from kvsim.errors import ScenarioError
from kvsim.report.report import Report
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.cluster.helpers import CONFIG, ENDED, STEP, chats
from tests.cluster.test_scenarios import CHAT

A, B = 0, 1
NAMES = ("a", "b")


def burst(num: int, gap_s: float = 0.0, traffic_class: int = A, output_tokens: int = 40) -> list[Row]:
    return [Row([(i, 100)], output_tokens, 1000 + i, arrival_s=gap_s * i, session=i, traffic_class=traffic_class)
            for i in range(num)]


def play(rows: list[Row], *limits: Limit, num: int = 1, **spec: Any) -> tuple[ClusterRun, LimitedRun]:
    replicas = (ReplicaSpec(CONFIG, STEP),) * num
    done = run_cluster(Workload(requests_from_rows(rows, NAMES)),
                       ClusterSpec(replicas, RouterSpec("least_loaded"), limits=limits, **spec))
    assert done.limited is not None
    return done, done.limited


def let_in_s(done: ClusterRun, limited: LimitedRun) -> np.ndarray[Any, np.dtype[np.float64]]:
    return done.run.records.arrival_s + limited.wait_s


def most_in_any_window(times: list[float], amounts: list[float], rate: float) -> float:
    """Most that any window holds beyond what the rate brings in it."""
    return max(sum(amounts[i:j + 1]) - rate * (times[j] - times[i])
               for i in range(len(times)) for j in range(i, len(times)))


@given(rate=st.floats(0.01, 100.0), burst_tokens=st.floats(1.0, 50.0),
       asked=st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.01, 1.0)), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_bucket_never_gives_more_than_its_rate_and_burst(
        rate: float, burst_tokens: float, asked: list[tuple[float, float]]) -> None:
    bucket, now_s = TokenBucket(Allowance(rate, burst_tokens)), 0.0
    times, amounts = list[float](), list[float]()
    for pause_s, share in asked:
        amount = share * burst_tokens
        now_s = max(now_s + pause_s * burst_tokens / rate / 20, bucket.ready_s(amount))
        assert bucket.ready_s(amount) <= now_s
        bucket.take(amount, now_s)
        times.append(now_s)
        amounts.append(amount)
    assert most_in_any_window(times, amounts, rate) <= burst_tokens * (1 + 1e-9)


@given(rate=st.floats(0.1, 10.0), size=st.floats(1.0, 20.0), amount=st.floats(0.01, 1.0))
@settings(max_examples=50, deadline=None)
def test_a_full_bucket_gives_its_burst_at_once_and_the_next_as_early_as_it_may(
        rate: float, size: float, amount: float) -> None:
    bucket = TokenBucket(Allowance(rate, size))
    bucket.take(size, 5.0)
    assert bucket.ready_s(amount * size) == pytest.approx(5.0 + amount * size / rate)
    assert math.isinf(bucket.ready_s(size * 1.001))


def test_requests_in_flight_are_never_more_than_allowed() -> None:
    done, limited = play(burst(30), Limit("a", max_in_flight=3))
    begins, ends = let_in_s(done, limited), done.run.records.finish_s
    at_once = [int(((begins <= t) & (ends > t)).sum()) for t in begins]
    assert max(at_once) == 3
    assert (done.run.records.status == FINISHED).all()
    assert (np.diff(done.run.records.admitted_s) >= 0).all()


def test_ttft_counts_the_wait() -> None:
    """Ten requests at once, two a second of a bucket of two: the last one waits four seconds."""
    done, limited = play(burst(10), Limit("a", requests=Allowance(2.0, 2.0)))
    np.testing.assert_allclose(limited.wait_s, [0, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4])
    records = done.run.records
    assert (records.arrival_s == 0).all()
    assert (records.first_token_s - records.arrival_s > limited.wait_s).all()
    assert (records.admitted_s >= limited.wait_s).all()
    assert done.run.totals.counters["simpy_events"] == 0


def test_tokens_are_counted_as_asked_for() -> None:
    """100 tokens in, 40 out: of 280 tokens a bucket gives two requests at once, of 280 input tokens also two."""
    rows = burst(4)
    waits = {kind: play(rows, Limit("a", tokens=Allowance(70.0, 280.0), counted=kind))[1].wait_s.tolist()
             for kind in ("total", "input", "output")}
    assert waits["total"] == pytest.approx([0, 0, 2, 4])
    assert waits["input"] == pytest.approx([0, 0, (300 - 280) / 70, (400 - 280) / 70])
    assert waits["output"] == pytest.approx([0, 0, 0, 0])


def test_other_classes_are_not_held_up() -> None:
    rows = [*burst(10), *(replace(row, prompt=[(500 + i, 100)], traffic_class=B) for i, row in enumerate(burst(10)))]
    done, limited = play(rows, Limit("a", max_in_flight=1))
    assert (limited.wait_s[1:10] > 0).all()
    assert not limited.wait_s[10:].any()
    both, whole = play(rows, Limit(None, max_in_flight=1))
    assert int((whole.wait_s > 0).sum()) == 19
    assert both.run.totals.makespan_s > done.run.totals.makespan_s


def test_who_finds_nothing_left_is_rejected() -> None:
    done, limited = play(burst(10, 0.1), Limit("a", requests=Allowance(1.0, 3.0), rejects=True))
    assert np.flatnonzero(~limited.rejected).tolist() == [0, 1, 2]
    assert (done.run.records.status[limited.rejected] == REFUSED).all()
    assert "rate limit of class a" in done.run.records.refusals[5]
    counters = done.run.totals.counters
    assert (counters["rejected_requests"], counters["refused_requests"]) == (7, 0)


def test_a_session_goes_on_after_a_rejection() -> None:
    rows = [Row([(0, 100)], 10, 0), Row([(1, 100)], 400, 1), Row([(0, 150)], 10, 0, after=(0,), think_s=0.01),
            Row([(0, 200)], 10, 0, after=(2,), think_s=60.0)]
    done, limited = play(rows, Limit("a", max_in_flight=1, rejects=True))
    assert limited.rejected.tolist() == [False, True, False, False]
    assert done.run.records.status.tolist() == [FINISHED, REFUSED, FINISHED, FINISHED]


def test_what_no_bucket_holds_is_rejected_by_any_limit() -> None:
    done, limited = play([*burst(2), Row([(9, 900)], 10, 9)], Limit("a", tokens=Allowance(100.0, 500.0)))
    assert limited.rejected.tolist() == [False, False, True]
    assert "at once" in done.run.records.refusals[2]


def test_several_limits_act_together() -> None:
    done, limited = play(burst(12), Limit("a", max_in_flight=4), Limit("a", requests=Allowance(1.0, 100.0)),
                         Limit(None, max_in_flight=6, rejects=True))
    assert int(limited.rejected.sum()) == 6
    begins, ends = let_in_s(done, limited), done.run.records.finish_s
    assert max(int(((begins <= t) & (ends > t)).sum()) for t in begins[~limited.rejected]) == 4


def test_limits_that_never_bind_change_nothing() -> None:
    """One engine behind a router without a queue is that engine."""
    workload = chats(8, 4)
    spec = ClusterSpec((ReplicaSpec(CONFIG, STEP),), limits=(Limit(None, 1e9, Allowance(1e9, 1e9)),))
    found, alone = run_cluster(workload, spec).run.records, core.run(workload, CONFIG, STEP).records
    for name in ENDED:
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), name)


@pytest.mark.parametrize("num", [1, 3])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_every_request_ends_in_one_way(num: int, seed: int) -> None:
    """Finished, refused, rejected or homeless; rates and counts hold in every window; failures change nothing of it."""
    rng = np.random.default_rng(seed)
    rows = [Row([(int(rng.integers(0, 9)), int(rng.integers(1, 500)))], int(rng.integers(1, 60)), 1000 + i,
                arrival_s=float(rng.random() * 4), session=i, traffic_class=int(rng.integers(0, 2))) for i in range(40)]
    rows += [Row([(50, 5000)], 10, 50, traffic_class=A)]
    rows += [replace(row, after=(i,), think_s=float(rng.random()), arrival_s=0.0) for i, row in enumerate(rows[:15])]
    rate = float(rng.choice([2.0, 8.0, 30.0]))
    limits = (Limit("a", float(rng.integers(1, 6)), Allowance(rate, 3.0), rejects=bool(rng.integers(0, 2))),
              Limit("b", tokens=Allowance(2000.0, 700.0), counted="total", rejects=bool(rng.integers(0, 2))),
              Limit(None, float(rng.integers(2, 9)), rejects=bool(rng.integers(0, 2))))
    failures = (Failure(0, 1.5, 2.5),) if seed % 2 else ()
    done, limited = play(rows, *limits, num=num, failures=failures)
    records, counters = done.run.records, done.run.totals.counters
    refused = (records.status == REFUSED) & ~limited.rejected
    assert not (records.status == UNFINISHED).any()
    assert int(refused.sum()) == counters["refused_requests"]
    assert limited.num_waiting == counters["homeless_requests"] == 0
    assert np.isnan(limited.wait_s).tolist() == limited.rejected.tolist()
    classes = np.array([row.traffic_class for row in rows])
    begins, entered = let_in_s(done, limited), ~limited.rejected
    first = begins[entered & (classes == A)] if not limits[0].rejects else records.arrival_s[entered & (classes == A)]
    times = sorted(first.tolist())
    if times:
        assert most_in_any_window(times, [1.0] * len(times), rate) <= 3.0 + 1e-6


def test_limits_and_autoscaling() -> None:
    done, limited = play(burst(60, 0.02), Limit("a", max_in_flight=20), num=3,
                         autoscale=Autoscale(1, 4.0, 0.5, 2.0, 0.5))
    assert (done.run.records.status == FINISHED).all()
    assert (limited.wait_s > 0).any()


def run(limits: Any, **changes: Any) -> Report:
    return simulate({**CHAT, "limits": limits, **changes})


def test_a_run_that_stops_leaves_waiting_requests_unfinished() -> None:
    lengths = {"num_requests": 200, "input_tokens": 500, "output_tokens": 50}
    report = run([{"rate": "1/s", "burst": 1}], workload={"fixed": lengths, "rate_per_s": 5, "duration_s": 30})
    served, came = report.traffic_classes["default"].requests, report.traffic_classes["default"].arrived
    assert served in (30, 31)
    assert report.run.num_unfinished == pytest.approx(came - served, abs=2)
    assert report.traffic_classes["default"].wait_s_p95 > 20


def test_a_report_has_every_class() -> None:
    scenario = load_scenario("llama-mixed-classes", [
        "workload.duration_s=120", "limits=[{class: batch, max_in_flight: 2}, "
        "{class: documents, token_rate: 200000/min, on_limit: reject}]"])
    report = simulate(scenario)
    chat, documents, batch = (report.traffic_classes[name] for name in ("chat", "documents", "batch"))
    assert (chat.rejected, chat.waited, batch.rejected, documents.waited) == (0, 0, 0, 0)
    assert documents.rejected > 0
    assert batch.waited > 0
    assert batch.wait_s_mean < batch.ttft_s_p95
    assert sum(c.requests for c in report.traffic_classes.values()) == report.run.num_requests
    assert sum(c.output_tokens_per_s for c in report.traffic_classes.values()) == pytest.approx(
        report.throughput.output_tokens_per_s)
    assert report.run.counters["rejected_requests"] >= documents.rejected
    assert (report.run.num_refused, report.run.refusals) == (0, ())
    assert {"limits", "traffic_classes"} <= {*report.scenario, *report.to_dict()}


def test_warm_up_requests_are_not_limited() -> None:
    preset = {"preset": "agentx-v1", "concurrency": 4, "duration_s": 300}
    report = run([{"class": "main", "max_in_flight": 1}], workload=preset, model="kimi-k3", layout={"tp": 8},
                 hardware={"gpu": "b300", "num_gpus": 8}, engine={"kv_dtype": "fp8"})
    assert set(report.traffic_classes) <= {"main", "subagent"}
    free = run(None, workload=preset, model="kimi-k3", layout={"tp": 8}, hardware={"gpu": "b300", "num_gpus": 8},
               engine={"kv_dtype": "fp8"})
    assert report.run.measured_from_s == free.run.measured_from_s


@pytest.mark.parametrize(("limits", "match"), [
    ([{"class": "batsh", "rate": "1/s"}], "limits.0.class: got 'batsh'; accepted: chat, documents, batch"),
    ([{"class": "batch"}], "limits.0.*no limit; accepted: max_in_flight, rate, token_rate"),
    ([{"rate": "10 apples"}], "unknown unit"),
    ([{"max_in_flight": 3, "burst": 2}], "burst without rate"),
    ([{"rate": 0}], "limits.0.rate"),
    ([{"clas": "x", "rate": 1}], "limits.0.clas: got an unknown key.*did you mean 'class'"),
])
def test_wrong_limits_are_refused(limits: Any, match: str) -> None:
    with pytest.raises(ScenarioError, match=match):
        simulate({**load_scenario("llama-mixed-classes").to_dict(), "limits": limits})


def test_limits_are_refused_where_they_cannot_be_simulated() -> None:
    with pytest.raises(ScenarioError, match=r"engine.admission: got a gate for sessions with limits"):
        run([{"max_in_flight": 2}], engine={**CHAT["engine"], "admission": {"max_live_sessions": 2}})
    with pytest.raises(ScenarioError, match="limits: got some with disaggregation"):
        simulate(load_scenario("k3-2xb300-1p1d", ["limits=[{max_in_flight: 2}]"]))


def test_limits_are_written_and_read_again() -> None:
    scenario = Scenario.from_dict({**CHAT, "limits": [{"class": "main", "rate": "600/min", "token_rate": "2e6/min"}]})
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    assert scenario.to_dict()["limits"][0]["class"] == "main"
    assert scenario.limits is not None
    assert scenario.limits[0].rate == pytest.approx(10.0)


def test_the_command_line_shows_every_class() -> None:
    result = CliRunner().invoke(cli, ["run", "llama-mixed-classes", "--set", "workload.duration_s=60",
                                      "--set", "limits=[{class: batch, max_in_flight: 2}]"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("batch "))
    assert int(line.split()[3]) > 0
