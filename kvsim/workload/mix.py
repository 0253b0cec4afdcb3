"""Several kinds of traffic side by side in one workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvsim.errors import ScenarioError
from kvsim.workload.columns import Floats, Ints, join_floats, join_ints, offsets_of
from kvsim.workload.requests import Requests, Workload
from kvsim.workload.sessions import CLASS_NAMES, PRIMER, WARMUP

WARMING = (CLASS_NAMES[PRIMER], CLASS_NAMES[WARMUP])
"""Classes behind the named ones: requests of any class that come before its sessions' own."""


@dataclass(frozen=True, slots=True)
class TrafficKind:
    """One kind of traffic of a mix: its name, priority (lower is more urgent) and requests."""

    name: str
    priority: int
    workload: Workload


def mix(kinds: Sequence[TrafficKind], label: str = "") -> Workload:
    """One workload of several.

    Parameters
    ----------
    kinds : sequence of TrafficKind
        At least one. They share neither contents nor sessions, and each keeps its own way of letting requests in.
    label : str
        Name for reports.

    Returns
    -------
    Workload
        Traffic classes are the kinds by name, then primers and warm-up requests of all. Each kind is a pool of its own.
        The idle cap is the longest of all, the window that of the first kind.

    Raises
    ------
    ScenarioError
        No kind at all.

    Examples
    --------
    >>> from kvsim.workload.fixed import Clients, Poisson, build_fixed
    >>> both = mix([TrafficKind("chat", 0, build_fixed(3, 100, 10, Clients(2))),
    ...             TrafficKind("batch", 5, build_fixed(2, 900, 10, Poisson(1.0)))])
    >>> both.requests.traffic_class.tolist(), both.requests.class_names[:2], both.requests.piece_content.tolist()
    ([0, 0, 0, 1, 1], ('chat', 'batch'), [0, 1, 2, 3, 4])
    >>> both.lane_sessions, both.recycle, both.pool.tolist(), both.lane_pool
    (((0,), (1,)), (2,), [0, 0, 0, 1, 1], (0, 0))
    """
    if not kinds:
        raise ScenarioError("a mix needs at least one kind of traffic")
    parts = [k.workload for k in kinds]
    sessions = offsets_of([int(w.requests.session.max(initial=-1)) + 1 for w in parts])
    rows = offsets_of([len(w.requests) for w in parts]).tolist()
    first, pools = sessions.tolist(), list(enumerate(parts))
    return Workload(
        requests=_joined(kinds, first, rows),
        lane_sessions=tuple(tuple(s + first[k] for s in lane) for k, w in pools for lane in w.lane_sessions or ()),
        lane_start_s=join_floats([w.lane_start_s for _, w in pools]), lane_stop_s=_stops(parts),
        recycle=tuple(s + first[k] for k, w in pools for s in w.recycle),
        idle_cap_s=max(w.idle_cap_s for w in parts), warming=join_ints([w.warming + rows[k] for k, w in pools]),
        until_s=parts[0].until_s, measure_from_s=parts[0].measure_from_s, label=label,
        pool=np.repeat(np.arange(len(parts)), np.diff(sessions)),
        lane_pool=tuple(k for k, w in pools for _ in w.lane_sessions or ()),
        max_in_flight=(tuple(w.max_in_flight[0] if w.max_in_flight else float("inf") for w in parts)
                       if any(w.max_in_flight for w in parts) else ()))


def _stops(parts: Sequence[Workload]) -> Floats:
    """Stops of all lanes; none if no lane has one."""
    if not any(len(w.lane_stop_s) for w in parts):
        return np.zeros(0)
    return join_floats([w.lane_stop_s if len(w.lane_stop_s) else np.full(len(w.lane_start_s), np.inf) for w in parts])


def _joined(kinds: Sequence[TrafficKind], session: list[int], row: list[int]) -> Requests:
    """Requests one below the other, ids moved apart."""
    asked = [k.workload.requests for k in kinds]
    content = offsets_of([_num_contents(r) for r in asked]).tolist()
    parts, classes = list(enumerate(asked)), len(kinds)
    named = any(len(r.ids) for r in asked)
    return replace(
        asked[0], session=join_ints([r.session + session[k] for k, r in parts]),
        arrival_s=join_floats([r.arrival_s for r in asked]), think_s=join_floats([r.think_s for r in asked]),
        dep_offsets=offsets_of(join_ints([np.diff(r.dep_offsets) for r in asked])),
        dep_index=join_ints([r.dep_index + row[k] for k, r in parts]),
        output_tokens=join_ints([r.output_tokens for r in asked]),
        priority=join_ints([r.priority + kinds[k].priority for k, r in parts]),
        piece_offsets=offsets_of(join_ints([np.diff(r.piece_offsets) for r in asked])),
        piece_content=join_ints([r.piece_content + content[k] for k, r in parts]),
        piece_tokens=join_ints([r.piece_tokens for r in asked]),
        output_content=join_ints([r.output_content + content[k] for k, r in parts]),
        traffic_class=join_ints([_classes(r, k, classes) for k, r in parts]),
        ids=tuple(f"{k.name}/{k.workload.requests.name(i)}" for k in kinds
                  for i in range(len(k.workload.requests))) if named else (),
        class_names=(*(k.name for k in kinds), *WARMING))


def _classes(requests: Requests, kind: int, num_kinds: int) -> Ints:
    """Classes in the mix: the kind itself, but for its primers and warm-up requests."""
    of_name = {name: num_kinds + k for k, name in enumerate(WARMING)}
    return np.array([of_name.get(name, kind) for name in requests.class_names], np.int64)[requests.traffic_class]


def _num_contents(requests: Requests) -> int:
    return 1 + max(int(requests.piece_content.max(initial=-1)), int(requests.output_content.max(initial=-1)))
