"""A cluster at work: dispatch and failures as SimPy processes over co-simulated replicas."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

import simpy

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.limits import Limits
from kvsim.cluster.result import ClusterRun, Spans, result_of
from kvsim.cluster.routers.registry import make_router
from kvsim.cluster.spec import Autoscale, ClusterSpec, Failure, check_failures
from kvsim.engine.reference import check_times, refusal_of
from kvsim.engine.types import FINISHED, EngineConfig, Progress
from kvsim.errors import SimulationError
from kvsim.workload.requests import Workload

Events = Generator[simpy.Event, float, None]


def run(workload: Workload, spec: ClusterSpec, progress: Progress | None = None) -> ClusterRun:
    """Play a workload through several replicas behind a router.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in; lanes are live sessions of the whole cluster.
    spec : ClusterSpec
        The cluster.
    progress : callable, optional
        Called with the share of requests that have ended (0 to 1), at most about 100 times.

    Returns
    -------
    ClusterRun
        The whole run as `kvsim.engine.types.EngineRun`, and each replica's part.

    Raises
    ------
    ScenarioError
        Settings of an engine, or failures, that are impossible.
    SimulationError
        A conservation law was broken: a defect of kvsim.

    Notes
    -----
    One replica gives what the engine alone gives, in every time and hit. A request that is taken from a failed replica
    begins again on another: its records are those of the last try, its arrival that of the first. SimPy's events are
    what happens outside the engines (``totals.counters["simpy_events"]``), a handful for each failure; requests
    that come while nothing else is due are handed on without one.

    Examples
    --------
    >>> from kvsim.cluster.replica import ReplicaSpec
    >>> from kvsim.cluster.routers.registry import RouterSpec
    >>> from kvsim.engine.types import EngineConfig
    >>> from kvsim.steptime.base import LinearStepTime
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> turns = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 10, 0, after=(0,), think_s=2.0)])
    >>> replica = ReplicaSpec(EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.008, 5e-5, 4e-4))
    >>> done = run(Workload(turns), ClusterSpec((replica, replica), RouterSpec("session_affinity")))
    >>> done.run.records.cached_tokens.tolist(), done.replica_of.tolist()
    ([0, 96], [0, 0])
    """
    check_failures(spec)
    return Cluster(workload, spec, progress).run()


def check_tokens(done: ClusterRun) -> None:
    """Raise `SimulationError` unless every token of a finished request was found or computed, its last one excepted."""
    records, totals = done.run.records, done.run.totals
    if records.preemptions.any():
        return
    ended = records.status == FINISHED
    asked = int((records.prompt_tokens + records.output_tokens - 1)[ended].sum())
    made = totals.prompt_tokens_hit + totals.prefill_tokens_computed + totals.decode_tokens
    if asked != made:
        raise SimulationError(f"{asked} tokens were asked for, {made} were found or computed")


def most_tokens(config: EngineConfig) -> int:
    """Longest request (prompt and output) that an engine serves.

    >>> most_tokens(EngineConfig(64, 16, 8, 512, 4096))
    1009
    """
    low, high = 0, config.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if refusal_of(config, middle) else (middle, high)
    return low


class Cluster:
    """The processes of one run."""

    def __init__(self, workload: Workload, spec: ClusterSpec, progress: Progress | None) -> None:
        self.workload, self.spec, self.progress = workload, spec, progress
        self.env = simpy.Environment()
        self.fleet = Fleet(workload, spec.replicas, spec.autoscale.min_replicas if spec.autoscale else None)
        self.router, self.view = make_router(spec.router, self.fleet, spec.seed)
        self.fleet.on_end = self._ended
        self.able: Sequence[int] = self.fleet.up()
        self.most_tokens = [most_tokens(replica.spec.config) for replica in self.fleet.replicas]
        self.least_most_tokens = min(self.most_tokens)
        self.homeless: list[int] = []
        self.limits = Limits(spec.limits, workload) if spec.limits else None
        self.scaler = Scaler(self, spec.autoscale, spec.startups_s) if spec.autoscale is not None else None
        self.num_events = self.num_retries = 0
        self._num_requests = len(workload.requests)

    def run(self) -> ClusterRun:
        """Let everything happen until nothing is left, or the time is up."""
        for failure in self.spec.failures:
            self._plan_next_failure(failure.replica, -math.inf)
            self.env.process(self._fail(failure))
        if self.scaler is not None:
            self.env.process(self.scaler.work())
        self.env.run(self.env.process(self._dispatch()))
        return self._result()

    def _result(self) -> ClusterRun:
        fleet = self.fleet
        left = [row for replica in fleet.replicas for row in replica.open_rows]
        if left and math.isinf(fleet.source.until_s):
            raise SimulationError(f"{len(left)} requests can never be scheduled where they are, "
                                  f"{self.workload.requests.name(left[0])} first")
        counters = {"simpy_events": self.num_events, "replica_calls": fleet.num_calls, "retries": self.num_retries,
                    "homeless_requests": len(self.homeless)}
        limited = self.limits.result() if self.limits is not None else None
        if limited is not None:
            if limited.num_waiting and math.isinf(fleet.source.until_s) and not self.homeless:
                raise SimulationError(f"{limited.num_waiting} requests wait before the router although nothing is left")
            num_rejected = int(limited.rejected.sum())
            counters |= {"rejected_requests": num_rejected,
                         "refused_requests": len(fleet.columns.refusals) - num_rejected}
        found = replace(result_of(fleet, self.spec, counters, self.scaler.paid() if self.scaler else None),
                        limited=limited)
        check_times(found.run.records)
        if not left and not self.num_retries:
            check_tokens(found)
        return found

    def _dispatch(self) -> Events:
        """Hand every request to the replica that the router chooses; an event only where something else comes first."""
        fleet, env = self.fleet, self.env
        while True:
            bound_s = env.peek()
            next_s = fleet.advance(bound_s)
            if math.isinf(next_s):
                return
            if next_s < bound_s:
                self._take(next_s)
                continue
            if fleet.is_done(bound_s) and not self.homeless:
                return
            self.num_events += 1
            yield env.timeout(max(next_s - env.now, 0.0))

    def _take(self, now_s: float) -> None:
        """Requests come; refused ones may bring further ones at once."""
        source, comes = self.fleet.source, self._route if self.limits is None else self._come
        num_refused = -1
        while num_refused < len(self.fleet.columns.refusals):
            num_refused = len(self.fleet.columns.refusals)
            if self.limits is not None:
                self._let_in(now_s)
            for row in source.pop_until(now_s):
                comes(row, now_s)
        if self.limits is not None:
            self._let_in(now_s)

    def _come(self, row: int, now_s: float) -> None:
        """A request comes to the limits before the router."""
        assert self.limits is not None
        answer = self.limits.comes(row, now_s)
        if answer == "in":
            self._route(row, now_s)
        elif answer == "rejected":
            self._refuse(row, self.limits.rejected[row], now_s)

    def _let_in(self, now_s: float) -> None:
        """Requests that have waited before the router go on, if they may; when to look again."""
        assert self.limits is not None
        for row in self.limits.let_in(now_s):
            self._route(row, now_s)
        self.fleet.outside_s = self.limits.next_s()

    def _route(self, row: int, now_s: float) -> None:
        able: Sequence[int] = self.able
        if not able:
            self.homeless.append(row)
            return
        tokens = self.fleet.prompt_tokens[row] + self.fleet.output_tokens[row]
        if tokens > self.least_most_tokens:
            if tokens > max(self.most_tokens):
                largest = self.most_tokens.index(max(self.most_tokens))
                self._refuse(row, refusal_of(self.fleet.replicas[largest].spec.config, tokens), now_s)
                return
            able = [r for r in able if tokens <= self.most_tokens[r]]
            if not able:
                self.homeless.append(row)
                return
        if self.view.age_s:
            self.view.look(now_s)
        r = self.router.choose(row, now_s, able)
        self.view.note(r, 1, now_s)
        self.fleet.hand_over(row, r, now_s)

    def _refuse(self, row: int, reason: str, now_s: float) -> None:
        if self.limits is not None:
            self.limits.ends(row)
        self.fleet.refuse(row, reason, now_s)

    def _ended(self, row: int, r: int, now_s: float) -> None:
        self.view.note(r, -1, now_s)
        self.router.ended(row, r, now_s)
        if self.limits is not None:
            self.limits.ends(row)
            self._let_in(now_s)
        left = self.fleet.source.num_left
        if self.progress and left % max(self._num_requests // 100, 1) == 0:
            self.progress(1.0 - left / self._num_requests)

    def _fail(self, failure: Failure) -> Events:
        """A replica stops; what it had begins again elsewhere. It comes back empty."""
        fleet, env, r = self.fleet, self.env, failure.replica
        self.num_events += 1
        yield env.timeout(failure.at_s)
        left = self.close(r, failure.at_s)
        self.able = fleet.up()
        self.num_retries += len(left)
        for row in left:
            self._route(row, failure.at_s)
        if math.isinf(failure.recover_s):
            return
        self.num_events += 1
        yield env.timeout(max(failure.recover_s - env.now, 0.0))
        fleet.start(r, failure.recover_s)
        self._plan_next_failure(r, failure.recover_s)
        self.open_to(fleet.up(), failure.recover_s)

    def close(self, group: int, at_s: float) -> list[int]:
        """Take a replica down; the requests that it had."""
        left = self.fleet.stop(group, at_s)
        for rank in self.fleet.groups[group]:
            self.router.lost(rank)
            self.view.forget(rank)
        return left

    def open_to(self, able: Sequence[int], now_s: float) -> None:
        """From now on these ranks take requests; those that have waited for one are the first."""
        self.able = able
        waiting, self.homeless = self.homeless, []
        for row in waiting:
            self._route(row, now_s)

    def _plan_next_failure(self, r: int, after_s: float) -> None:
        times_s = [f.at_s for f in self.spec.failures if f.replica == r and f.at_s > after_s]
        self.fleet.plan_stop(r, min(times_s, default=math.inf))


class Scaler:
    """Brings replicas up and takes them down as the load asks.

    Parameters
    ----------
    cluster : Cluster
        Whose replicas they are.
    rule : Autoscale
        When to do what.
    startups_s : sequence of float
        How long each replica takes to start [s], where they differ; else as the rule says.
    """

    def __init__(self, cluster: Cluster, rule: Autoscale, startups_s: Sequence[float] = ()) -> None:
        self.cluster, self.rule, self._startups_s = cluster, rule, startups_s
        self._paid_s: list[list[tuple[float, float]]] = [[] for _ in cluster.fleet.groups]
        for group in range(rule.min_replicas):
            self._paid_s[group].append((0.0, math.inf))
        self.serving = [*range(rule.min_replicas)]
        self.starting: list[int] = []
        self.draining: list[int] = []
        self.low_since_s = math.nan

    def work(self) -> Events:
        """Look at the load again and again."""
        env = self.cluster.env
        while True:
            self.cluster.num_events += 1
            yield env.timeout(self.rule.interval_s)
            self._retire(env.now)
            groups = range(len(self.cluster.fleet.groups))
            in_flight = sum([self.cluster.fleet.num_open(g) for g in groups]) + len(self.cluster.homeless)
            self._adjust(self.rule.wanted(in_flight, len(groups)), env.now)

    def _adjust(self, wanted: int, now_s: float) -> None:
        """Go towards a number of replicas: up at once, down after a while."""
        missing = wanted - len(self.serving) - len(self.starting)
        if missing >= 0:
            self.low_since_s = math.nan
        for _ in range(missing):
            self._add(now_s)
        if missing < 0 and math.isnan(self.low_since_s):
            self.low_since_s = now_s
        if missing < 0 and now_s - self.low_since_s >= self.rule.down_delay_s:
            count = min(-missing, len(self.serving) - self.rule.min_replicas)
            self.serving, drained = self.serving[:len(self.serving) - count], self.serving[len(self.serving) - count:]
            self.draining += drained
            self._open(now_s)
            self._retire(now_s)

    def _add(self, now_s: float) -> None:
        """One more: take back one that was about to go, else start one."""
        if self.draining:
            self.serving.append(self.draining.pop())
            self._open(now_s)
            return
        used = {*self.serving, *self.starting}
        group = next(g for g in range(len(self.cluster.fleet.groups)) if g not in used)
        self.starting.append(group)
        self._paid_s[group].append((now_s, math.inf))
        self.cluster.env.process(self._start(group))

    def _start(self, group: int) -> Events:
        """Load weights, compile, capture graphs; then take requests."""
        env = self.cluster.env
        self.cluster.num_events += 1
        yield env.timeout(self._startups_s[group] if self._startups_s else self.rule.startup_s)
        self.cluster.fleet.start(group, env.now)
        self.starting.remove(group)
        self.serving.append(group)
        self._open(env.now)

    def _retire(self, now_s: float) -> None:
        """Stop those that are to go and have nothing left."""
        for group in [g for g in self.draining if not self.cluster.fleet.num_open(g)]:
            self.draining.remove(group)
            self.cluster.close(group, now_s)
            self._paid_s[group][-1] = (self._paid_s[group][-1][0], now_s)

    def paid(self) -> tuple[Spans, ...]:
        """When each replica was up or starting, and so is paid for."""
        return tuple(tuple(spans) for spans in self._paid_s)

    def _open(self, now_s: float) -> None:
        groups = self.cluster.fleet.groups
        self.cluster.open_to(sorted(r for g in self.serving for r in groups[g]), now_s)
