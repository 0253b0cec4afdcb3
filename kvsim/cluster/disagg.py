"""Prefill and decode on replicas of their own, with the KV handed over between them.

A request is prefilled on a prefill replica as if it asked for one token, as proxies do it. When that is over, its KV is
pulled by a decode replica, which gives all its tokens, the first one too (vLLM, ``NixlConnector``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvsim.cluster.disagg_engine import DecodeCore
from kvsim.cluster.disagg_links import Links, LinkSpec, Parcel, Pull
from kvsim.cluster.fleet import Fleet
from kvsim.cluster.replica import Feed, ReplicaSpec
from kvsim.cluster.result import ClusterRun, SplitRun, merged_totals, result_of
from kvsim.cluster.routers.registry import RouterSpec, make_router
from kvsim.cluster.run import most_tokens
from kvsim.cluster.spec import ClusterSpec
from kvsim.engine.core_records import Columns, Share
from kvsim.engine.reference import check_times, refusal_of
from kvsim.engine.types import FINISHED, RunRecords
from kvsim.engine.types import Progress as ProgressFunction
from kvsim.errors import SimulationError
from kvsim.workload.requests import Workload


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """Prefill and decode replicas, and what lies between them.

    Attributes
    ----------
    prefill, decode : tuple of ReplicaSpec
        The replicas; decode replicas have no tiers.
    parcel : Parcel
        What is handed over with a request.
    link : LinkSpec
        The network.
    router, decode_router : RouterSpec
        Who chooses a prefill replica for a request as it comes, and a decode replica when its prefill is over.
    local_tokens : int
        Prompts of which a decode replica lacks at most so many tokens are prefilled there [tokens]; it is chosen as the
        request comes if this is above 0.
    seed : int
        Of the routers' dice.
    """

    prefill: tuple[ReplicaSpec, ...]
    decode: tuple[ReplicaSpec, ...]
    parcel: Parcel
    link: LinkSpec = field(default_factory=LinkSpec)
    router: RouterSpec = field(default_factory=RouterSpec)
    decode_router: RouterSpec = field(default_factory=lambda: RouterSpec("least_loaded"))
    local_tokens: int = 0
    seed: int = 0


def run_split(workload: Workload, spec: SplitSpec, progress: ProgressFunction | None = None) -> ClusterRun:
    """Play a workload through prefill and decode replicas.

    Parameters
    ----------
    workload : Workload
        What is asked, and how it is let in.
    spec : SplitSpec
        The replicas and their links.
    progress : callable, optional
        Called with the share of requests that have ended (0 to 1), at most about 100 times.

    Returns
    -------
    ClusterRun
        With `split`. In the records of the whole run, admission and cached tokens are those of the prefill replica,
        the first token and the end those of the decode replica. Totals count every prompt token once.

    Raises
    ------
    ScenarioError
        Settings of an engine that are impossible.
    SimulationError
        A conservation law was broken: a defect of kvsim.

    Notes
    -----
    Prefill replicas let go of a prompt's blocks when its prefill is over. A prompt of one token is never handed over:
    there is nothing to hand over.

    Examples
    --------
    >>> from kvsim.engine.types import EngineConfig
    >>> from kvsim.steptime.base import LinearStepTime
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> turns = requests_from_rows([Row([(0, 100)], 10, 0), Row([(0, 150)], 10, 0, after=(0,), think_s=2.0)])
    >>> replica = ReplicaSpec(EngineConfig(64, 16, 8, 512, 4096), LinearStepTime(0.008, 5e-5, 4e-4))
    >>> done = run_split(Workload(turns), SplitSpec((replica,), (replica,), Parcel(16000.0)))
    >>> done.run.records.cached_tokens.tolist(), done.split.num_blocks, done.split.received[1].num_bytes
    ([0, 96], 11, 176000.0)
    """
    return _Split(workload, spec, progress).run()


class SplitFleet(Fleet):
    """Replicas of which the first ones prefill: they write down for themselves, and give one token a request.

    Parameters
    ----------
    workload : Workload
        What is asked.
    spec : SplitSpec
        The replicas.

    Attributes
    ----------
    num_prefill : int
        The first so many replicas prefill.
    prefill_columns : Columns
        What became of requests there.
    """

    def __init__(self, workload: Workload, spec: SplitSpec) -> None:
        self.num_prefill, self.prefill_columns = len(spec.prefill), Columns(workload.requests)
        self._one_token = [1] * len(workload.requests)
        decode = [replace(one, engine=DecodeCore) for one in spec.decode]
        super().__init__(workload, [*spec.prefill, *decode])

    def share_of(self, r: int, feed: Feed) -> Share:
        """What a replica's engine gets of the requests, and where it writes."""
        share = super().share_of(r, feed)
        if r >= self.num_prefill:
            return share
        return replace(share, columns=self.prefill_columns, output_tokens=self._one_token)


class _Prefilled:
    """Requests that wait for one decode replica to pull them."""

    def __init__(self, split: _Split, target: int) -> None:
        self._split, self._target = split, target

    def holds(self, row: int) -> bool:
        """Whether a request was prefilled elsewhere and has not been pulled yet."""
        return row in self._split.handed_s

    def pull(self, row: int, pull: Pull) -> float:
        """Ask for what is lacked of a request; when it arrives [s]."""
        split, source = self._split, self._split.prefill_of[row]
        handed_s = split.handed_s.pop(row)
        began_s = split.fleet.prefill_columns.admitted_s[row] + (pull.at_s - handed_s)
        arrival_s = split.links.send(source, self._target, pull, began_s)
        split.wait_s.append(arrival_s - handed_s)
        return arrival_s


class _Split:
    """One run: requests on their way through prefill and decode replicas."""

    def __init__(self, workload: Workload, spec: SplitSpec, progress: ProgressFunction | None) -> None:
        self.workload, self.spec, self.progress = workload, spec, progress
        self.fleet = fleet = SplitFleet(workload, spec)
        self.links = Links(spec.link, spec.parcel, len(fleet.replicas))
        self.router, self.view = make_router(spec.router, fleet, spec.seed)
        self.decode_router, self.decode_view = make_router(spec.decode_router, fleet, spec.seed + 1)
        num = self._num_requests = len(workload.requests)
        self.prefill_of, self.target_of = [-1] * num, [-1] * num
        self.arrived_s: list[float] = [math.nan] * num
        self.handed_s: dict[int, float] = {}
        self.wait_s: list[float] = []
        self.num_local = 0
        self.most_tokens = [most_tokens(replica.spec.config) for replica in fleet.replicas]
        fleet.tell_source, fleet.on_end = self._tell_source, self._ended
        self.decoders: list[DecodeCore] = []
        for r, replica in enumerate(fleet.replicas[fleet.num_prefill:], fleet.num_prefill):
            assert isinstance(replica.engine, DecodeCore)
            replica.engine.remote = _Prefilled(self, r)
            self.decoders.append(replica.engine)

    def run(self) -> ClusterRun:
        while (next_s := self.fleet.advance(math.inf)) < math.inf:
            self._take(next_s)
        return self._result()

    def _take(self, now_s: float) -> None:
        """Requests come; refused ones may bring further ones at once."""
        source, refusals, num_refused = self.fleet.source, self.fleet.columns.refusals, -1
        while num_refused < len(refusals):
            num_refused = len(refusals)
            for row in source.pop_until(now_s):
                self._route(row, now_s)

    def _route(self, row: int, now_s: float) -> None:
        """A request comes: to a prefill replica, or at once to a decode replica that lacks little of it."""
        fleet, prompt = self.fleet, self.fleet.prompt_tokens[row]
        decode = self._able(range(fleet.num_prefill, len(fleet.replicas)), prompt + fleet.output_tokens[row])
        prefill = self._able(range(fleet.num_prefill), prompt + 1)
        if not decode or not prefill:
            self._refuse(row, now_s)
            return
        if prompt == 1 or self.spec.local_tokens:
            self._choose_target(row, now_s, decode)
            cached, _ = self.decode_view.cached_tokens(row, self.target_of[row])
            if prompt - cached <= max(self.spec.local_tokens, 1):
                self.num_local += 1
                self._hand_to_decode(row, now_s)
                return
        if self.view.age_s:
            self.view.look(now_s)
        r = self.router.choose(row, now_s, prefill)
        self.view.note(r, 1, now_s)
        self.prefill_of[row] = r
        fleet.hand_over(row, r, now_s)

    def _able(self, replicas: range, tokens: int) -> list[int]:
        """Those that can serve a request of so many tokens."""
        return [r for r in replicas if tokens <= self.most_tokens[r]]

    def _choose_target(self, row: int, now_s: float, able: Sequence[int]) -> None:
        """Choose the decode replica of a request."""
        if self.decode_view.age_s:
            self.decode_view.look(now_s)
        self.target_of[row] = self.decode_router.choose(row, now_s, able)

    def _hand_to_decode(self, row: int, now_s: float) -> None:
        """A decode replica gets a request."""
        self.arrived_s[row] = now_s
        self.decode_view.note(self.target_of[row], 1, now_s)
        self.fleet.hand_over(row, self.target_of[row], now_s)

    def _refuse(self, row: int, now_s: float) -> None:
        fleet = self.fleet
        tokens = fleet.prompt_tokens[row] + fleet.output_tokens[row]
        reasons = [refusal_of(replica.spec.config, tokens) for replica in reversed(fleet.replicas)]
        fleet.refuse(row, next(filter(None, reasons)), now_s)

    def _tell_source(self, row: int, now_s: float) -> None:
        """A request whose prefill is over is not over for its client."""
        if self.fleet.replica_of[row] >= self.fleet.num_prefill:
            self.fleet.source.finish(row, now_s)

    def _ended(self, row: int, r: int, now_s: float) -> None:
        fleet = self.fleet
        if r < fleet.num_prefill:
            self.view.note(r, -1, now_s)
            self.router.ended(row, r, now_s)
            self.handed_s[row] = now_s
            if self.target_of[row] < 0:
                tokens = fleet.prompt_tokens[row] + fleet.output_tokens[row]
                self._choose_target(row, now_s, self._able(range(fleet.num_prefill, len(fleet.replicas)), tokens))
            self._hand_to_decode(row, now_s)
            return
        self.decode_view.note(r, -1, now_s)
        self.decode_router.ended(row, r, now_s)
        left = fleet.source.num_left
        if self.progress and left % max(self._num_requests // 100, 1) == 0:
            self.progress(1.0 - left / self._num_requests)

    def _result(self) -> ClusterRun:
        fleet, spec = self.fleet, self.spec
        left = [row for replica in fleet.replicas for row in replica.open_rows]
        if left and math.isinf(fleet.source.until_s):
            raise SimulationError(f"{len(left)} requests can never be scheduled where they are, "
                                  f"{self.workload.requests.name(left[0])} first")
        cluster = ClusterSpec((*spec.prefill, *spec.decode), spec.router, seed=spec.seed)
        counters = {"replica_calls": fleet.num_calls, "retries": 0, "homeless_requests": 0,
                    "handed_over_requests": len(self.wait_s), "simpy_events": 0}
        found = result_of(fleet, cluster, counters)
        split = self._split_run(found.run.records)
        records = joined_records(found.run.records, split, np.array(fleet.source.arrival_s))
        check_times(records)
        if not left:
            check_split(found, split)
        admitted = np.isfinite(records.admitted_s)
        totals = replace(found.run.totals, prompt_tokens_queried=int(records.prompt_tokens[admitted].sum()),
                         prompt_tokens_hit=int(records.cached_tokens[admitted].sum()))
        return replace(found, run=replace(found.run, records=records, totals=totals), split=split)

    def _split_run(self, decode: RunRecords) -> SplitRun:
        """What both kinds of replicas did; `decode` are the records that decode replicas wrote."""
        fleet, links = self.fleet, self.links
        arrived = replace(decode, arrival_s=np.array(self.arrived_s))
        return SplitRun(
            fleet.num_prefill, np.array(self.prefill_of, np.int64),
            fleet.prefill_columns.records(fleet.source.arrival_s), arrived, tuple(links.sent), tuple(links.received),
            len(self.wait_s), self.num_local, links.num_blocks,
            sum([sum(engine.local_tokens.values()) for engine in self.decoders]),
            np.array(self.wait_s, np.float64), links.num_checkpoints)


def joined_records(decode: RunRecords, split: SplitRun, arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]]
                   ) -> RunRecords:
    """Records of requests as their clients see them: started and looked up where they were prefilled."""
    first, prefilled = split.prefill_records, split.prefill_of >= 0
    return replace(
        decode, arrival_s=arrival_s, preemptions=first.preemptions + decode.preemptions,
        admitted_s=np.where(prefilled, first.admitted_s, decode.admitted_s),
        cached_tokens=np.where(prefilled, first.cached_tokens, decode.cached_tokens),
        external_tokens=np.where(prefilled, first.external_tokens, decode.external_tokens))


def check_split(found: ClusterRun, split: SplitRun) -> None:
    """Raise `SimulationError` unless tokens and bytes add up when every request has ended.

    Every token was found, pulled or computed once on each side; what was received is what was sent.
    """
    sent, received = sum(s.num_bytes for s in split.sent), sum(s.num_bytes for s in split.received)
    if not math.isclose(sent, received, rel_tol=1e-12):
        raise SimulationError(f"{sent} bytes were sent, {received} were received")
    decode, first = split.decode_records, split.prefill_records
    if decode.preemptions.any() or first.preemptions.any():
        return
    ended, prefilled = decode.status == FINISHED, first.status == FINISHED
    asked = [int(first.prompt_tokens[prefilled].sum()),
             int((decode.prompt_tokens + decode.output_tokens - 1)[ended].sum())]
    parts = found.replicas[:split.num_prefill], found.replicas[split.num_prefill:]
    made: list[int] = []
    for part in parts:
        totals = merged_totals([r.totals for r in part])
        made.append(totals.prompt_tokens_hit + totals.prefill_tokens_computed + totals.decode_tokens)
    if asked != made:
        raise SimulationError(f"{asked} tokens were asked for by prefill and decode, {made} were found or computed")
