"""Requests of given or log-normal lengths that share nothing: synthetic load for sizing and for theory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import Problem, ScenarioError
from kvsim.rng import streams
from kvsim.workload.lengths import LogNormal, whole_tokens
from kvsim.workload.requests import Floats, Ints, Requests, Workload


@dataclass(frozen=True, slots=True)
class Clients:
    """Closed loop: `concurrency` clients, each asking again `think_s` after its answer ended.

    Attributes
    ----------
    concurrency : int
        Clients, >= 1.
    think_s : float
        Pause [s] before each request, the first one too.
    """

    concurrency: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Poisson:
    """Open loop: independent arrivals at a mean rate.

    Attributes
    ----------
    requests_per_s : float
        Mean rate, > 0.
    """

    requests_per_s: float


def build_fixed(num_requests: int, input_tokens: int | LogNormal, output_tokens: int | LogNormal,
                load: Clients | Poisson, seed: int = 0) -> Workload:
    """A workload of independent requests.

    Parameters
    ----------
    num_requests : int
        Requests, >= 1.
    input_tokens, output_tokens : int or LogNormal
        Lengths [tokens], constant or drawn; rounded, at least 1.
    load : Clients or Poisson
        How requests are let in.
    seed : int
        Seed of lengths and arrivals; arrivals do not change with the lengths.

    Returns
    -------
    Workload
        A session a request; prompts share nothing.

    Raises
    ------
    ScenarioError
        A number out of range.

    Examples
    --------
    >>> w = build_fixed(3, 4000, 300, Clients(2))
    >>> w.requests.prompt_tokens.tolist(), w.lane_sessions, w.recycle
    ([4000, 4000, 4000], ((0,), (1,)), (2,))
    """
    _check(num_requests, load)
    lengths, times = streams(seed, "fixed lengths", "arrivals")
    inputs = _draw(input_tokens, lengths, num_requests)
    outputs = _draw(output_tokens, lengths, num_requests)
    if isinstance(load, Poisson):
        requests = _requests(inputs, outputs, poisson_times_s(times, load.requests_per_s, num_requests))
        return Workload(requests, label="fixed")
    lanes = min(load.concurrency, num_requests)
    return Workload(_requests(inputs, outputs, np.full(num_requests, load.think_s)), label="fixed",
                    lane_sessions=tuple((k,) for k in range(lanes)), lane_start_s=np.zeros(lanes),
                    recycle=tuple(range(lanes, num_requests)))


def poisson_times_s(rng: np.random.Generator, rate_per_s: float, n: int) -> Floats:
    """`n` arrival times [s] of a Poisson process, shape [n].

    >>> times = poisson_times_s(np.random.default_rng(0), 2.0, 10_000)
    >>> bool(1.9 < 10_000 / times[-1] < 2.1)
    True
    """
    return np.cumsum(rng.exponential(1.0 / rate_per_s, n))


def _check(num_requests: int, load: Clients | Poisson) -> None:
    problems: list[Problem] = []
    if num_requests < 1:
        problems.append(Problem("workload", "num_requests", str(num_requests), "a number >= 1"))
    if isinstance(load, Poisson):
        if not 0 < load.requests_per_s < float("inf"):
            problems.append(Problem("workload", "requests_per_s", str(load.requests_per_s), "a number > 0"))
    elif load.concurrency < 1 or load.think_s < 0:
        given = f"{load.concurrency} clients, think time {load.think_s} s"
        problems.append(Problem("workload", "concurrency", given, "clients >= 1 and think time >= 0"))
    if problems:
        raise ScenarioError("this fixed workload cannot be made", problems)


def _draw(length: int | LogNormal, rng: np.random.Generator, n: int) -> Ints:
    values = length.draw(rng, n) if isinstance(length, LogNormal) else np.full(n, float(length))
    return whole_tokens(values)


def _requests(inputs: Ints, outputs: Ints, arrival_s: Floats) -> Requests:
    """One piece of its own content for every prompt; its output continues it."""
    n = len(inputs)
    rows, zeros = np.arange(n), np.zeros(n, np.int64)
    return Requests(
        session=rows, arrival_s=arrival_s, think_s=np.zeros(n), dep_offsets=np.zeros(n + 1, np.int64),
        dep_index=np.zeros(0, np.int64), output_tokens=outputs, priority=zeros, piece_offsets=np.arange(n + 1),
        piece_content=rows, piece_tokens=inputs, output_content=rows, traffic_class=zeros)
