"""What a configuration can carry at best: bounds that cost no simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
from kvsim.simulation import step_time_of
from kvsim.steptime.base import StepBatch, StepTimeModel, step_s
from kvsim.traffic import build_workload, session_trees
from kvsim.workload.ideal import ideal_cached_tokens
from kvsim.workload.sessions import PRIMER, capped_clock_s
from kvsim.workload.trees import AGENTX

MANY = 64
"""Decoding sequences at which what one more costs is read off the step-time model."""

FEW = 4
"""Live sessions whose requests are looked at for an average turn; each lane plays several of them."""
SLACK = 2.0
"""Factor on the bound of work: the sessions of a window can be lighter than the average."""
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Turns:
    """An average turn of the sessions of a workload.

    ``gap_s`` is the time [s] between turns of one session in which nothing of it is in flight, averaged over its turns;
    ``per_session_hour`` how many turns a live session makes an hour at the recorded speed.
    """

    prompt_tokens: float
    fresh_tokens: float
    output_tokens: float
    gap_s: float
    per_session_hour: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The most sessions that a replica may carry, and why; ``math.inf`` where nothing is known."""

    sessions: float
    why: str = ""


def turns_of(scenario: Scenario) -> Turns | None:
    """The average turn of a scenario's sessions; None for fixed lengths, which have no sessions."""
    if scenario.workload.fixed is not None:
        return None
    few = scenario.at(min(scenario.workload.concurrency or 1, FEW), scenario.seed)
    trees = session_trees(few)
    gaps = np.concatenate([np.minimum(t.gap_s, AGENTX.gap_cap_s) for t in trees])
    requests = build_workload(few).requests
    real = np.flatnonzero(requests.traffic_class < PRIMER)
    prompt = requests.prompt_tokens
    fresh = prompt - ideal_cached_tokens(requests, np.arange(len(requests)))
    life_s = sum(float(capped_clock_s(t, AGENTX.gap_cap_s)[-1]) for t in trees)
    return Turns(float(prompt[real].mean()), float(fresh[real].mean()), float(requests.output_tokens[real].mean()),
                 float(gaps.mean()), sum(map(len, trees)) * SECONDS_PER_HOUR / max(life_s, 1e-9))


def upper_bound(resolved: Resolved, turns: Turns | None) -> Bound:
    """The most live sessions that can keep the scenario's SLO on one replica, whatever its cache.

    Notes
    -----
    Two bounds. A single decoding sequence may be slower than TPOT allows: then it is 0. And the work of a turn with an
    infinite cache, fresh input once and every output token's own share of a step, limits how many turns fit into
    an hour; a session that may be as slow as the SLO allows makes the fewest of them. A limit on a percentile is
    taken as one on the mean, which holds unless latencies beyond the percentile are far out; `SLACK` covers sessions
    that happen to be lighter than the average.
    """
    if turns is None:
        return Bound(math.inf)
    model, slo = step_time_of(resolved), resolved.scenario.slo
    alone_s = step_s(model, StepBatch(0, 0, 0, 0, 1), round(turns.prompt_tokens))
    tpot_s, ttft_s = (max(limits.values(), default=math.inf) for limits in (slo.tpot_s, slo.ttft_s))
    if alone_s > tpot_s:
        return Bound(0.0, f"a single sequence of {turns.prompt_tokens:,.0f} tokens decodes at {alone_s * 1e3:.3g} ms a "
                          f"token, above the {tpot_s * 1e3:.3g} ms allowed")
    cycle_s = turns.gap_s + ttft_s + turns.output_tokens * tpot_s
    work_s = _work_s(model, turns, resolved.limits.max_num_batched_tokens)
    return Bound(max(1.0, SLACK * cycle_s / work_s), f"a turn takes {work_s:.3g} s of the engine at ideal hits, "
                                             f"and a session makes one every {cycle_s:.3g} s at the slowest")


def _work_s(model: StepTimeModel, turns: Turns, budget_tokens: int) -> float:
    """Engine time [s] that one more turn takes at best: its share of full prefill steps and of large decode batches."""
    context = round(turns.prompt_tokens)
    empty = step_s(model, StepBatch(0, 0, 0, 0, MANY), MANY * context)
    chunk = StepBatch(budget_tokens, 1, 0, budget_tokens, MANY)
    prefill_s = (step_s(model, chunk, MANY * context) - empty) / budget_tokens
    decode_s = (empty - step_s(model, StepBatch(0, 0, 0, 0, MANY // 2), MANY // 2 * context)) / (MANY - MANY // 2)
    return max(turns.fresh_tokens * prefill_s + turns.output_tokens * decode_s, 1e-9)
