"""Random workloads that are hard on an engine: tiny pools, shared outputs, equal prompts, ties in time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from kvsim.cache.tiers.config import TierConfig, WritePolicy
from kvsim.engine.types import EngineConfig
from kvsim.steptime.base import LinearStepTime, Piece, StepBatch, StepTimeModel
from kvsim.workload.requests import Row, Workload, requests_from_rows

KINDS = ("full", "full", "hybrid", "hybrid", "nocache", "priority", "drafts")
TIER_KINDS = ("eager", "lazy", "priority tiers", "any tiers")
WRITES: tuple[WritePolicy, ...] = ("eager", "lazy", "on-eviction", "on-reuse", "none")


@dataclass(frozen=True, slots=True)
class ThreePieces:
    """A step time like a roofline's: the maximum of three affine functions of the context."""

    scale_s: float = 1e-3

    def pieces(self, batch: StepBatch) -> tuple[Piece, ...]:
        """Weights and caches read, products made, and a floor for the host."""
        tokens = batch.prefill_tokens + batch.decode_seqs
        return ((self.scale_s * (2.0 + 0.01 * batch.prefill_context_tokens), self.scale_s * 0.013),
                (self.scale_s * (0.3 * tokens + 0.0007 * batch.prefill_pairs), self.scale_s * 0.0011),
                (self.scale_s * (2.5 + 0.05 * (batch.decode_seqs + batch.prefill_chunks)), 0.0))


@dataclass(frozen=True, slots=True)
class Problem:
    """What an engine is asked."""

    workload: Workload
    config: EngineConfig
    step_time: StepTimeModel


def random_problem(seed: int, kind: str = "") -> Problem:
    """A small workload and an engine for it, drawn from a seed.

    >>> random_problem(3).workload.label
    'full-3'
    """
    rng = random.Random(seed)
    kind = kind or rng.choice(KINDS)
    block = rng.choice([1, 2, 4, 8, 16])
    step_s = rng.choice([0.25, 0.01])
    rows = _rows(rng, block, step_s, kind)
    workload, config = _workload(rng, rows, step_s, f"{kind}-{seed}"), _config(rng, rows, block, kind)
    if kind in TIER_KINDS:
        config = replace(config, tiers=_tiers(rng, config, kind, step_s))
    return Problem(workload, config, _step_time(rng, step_s))


def _rows(rng: random.Random, block: int, step_s: float, kind: str) -> list[Row]:
    """Requests; contents are few, so that prompts and outputs are shared, cut and continued in every way."""
    num_contents = rng.choice([1, 3, 6, 40])
    longest = rng.choice([3, 6, 12]) * block
    chained = rng.random() < 0.4
    rows: list[Row] = []
    for i in range(rng.randint(2, rng.choice([8, 16, 16, 50]))):
        session = rng.randrange(4)
        after = _after(rng, rows, session) if chained else ()
        rows.append(Row(
            prompt=_prompt(rng, rows, num_contents, longest, block), output_tokens=_length(rng, longest, block),
            output_content=rng.choice([rng.randrange(num_contents), 100 + i]), after=after, session=session,
            arrival_s=step_s * rng.randrange(20) * rng.choice([0, 1, 1, 3]), id=rng.choice(["", f"r{i % 5}-{i}"]),
            think_s=rng.choice([0.0, step_s, 7 * step_s, rng.random()]),
            priority=rng.randrange(3) if kind.startswith("priority") else 0))
    return rows


def _after(rng: random.Random, rows: list[Row], session: int) -> tuple[int, ...]:
    """Earlier requests of the session to wait for."""
    earlier = [j for j, row in enumerate(rows) if row.session == session]
    return tuple(sorted(rng.sample(earlier, min(len(earlier), rng.choice([0, 1, 1, 2])))))


def _prompt(rng: random.Random, rows: list[Row], num_contents: int, longest: int, block: int) -> list[tuple[int, int]]:
    """A new prompt, a copy, or one that goes on where an earlier request's prompt or output was, or half-way."""
    if not rows or rng.random() < 0.3:
        return [(rng.randrange(num_contents), _length(rng, longest, block)) for _ in range(rng.randint(1, 3))]
    parent = rng.choice(rows)
    prompt = list(parent.prompt)
    if rng.random() < 0.2:
        return prompt
    if rng.random() < 0.6:
        prompt.append((parent.output_content, rng.choice([parent.output_tokens, _length(rng, longest, block)])))
    if rng.random() < 0.3:
        prompt = prompt[:rng.randint(1, len(prompt))]
    if rng.random() < 0.6:
        prompt.append((rng.randrange(num_contents), _length(rng, longest, block)))
    return prompt


def _length(rng: random.Random, longest: int, block: int) -> int:
    """A length [tokens], often a multiple of the block or just beside one."""
    length = rng.randint(1, longest)
    if rng.random() < 0.5:
        length = max(1, length // block * block + rng.choice([0, 0, 0, 1, -1]))
    return length


def _config(rng: random.Random, rows: list[Row], block: int, kind: str) -> EngineConfig:
    """An engine whose pool barely holds the longest request, or several, or all."""
    totals = [sum(n for _, n in row.prompt) + row.output_tokens for row in rows]
    worst = max(totals) if rng.random() < 0.8 else sorted(totals)[len(totals) // 2]
    may_have_states = kind in ("drafts", "nocache", *TIER_KINDS)
    states = rng.randint(1, 3) if kind == "hybrid" or (may_have_states and rng.random() < 0.5) else 0
    drafts = rng.randint(1, 2) if kind == "drafts" or (kind in TIER_KINDS and rng.random() < 0.2) else 0
    need = -(-worst // block) * (1 + drafts) + 2 * states
    pool = rng.choice([need, need + 1, need + rng.randint(0, need), need + rng.randint(0, 3 * need), 12 * need])
    return EngineConfig(
        num_blocks=max(2, pool + rng.choice([0, 1, 1, 1])), block_tokens=block, max_num_seqs=rng.choice([1, 2, 4, 16]),
        max_num_batched_tokens=rng.choice([1, 3, block, 2 * block, 5 * block, 64, 1000]),
        max_model_len=worst if rng.random() < 0.2 else worst + rng.randint(0, 50),
        prefix_caching=kind != "nocache", policy="priority" if kind.startswith("priority") else "fcfs",
        state_groups=states, retention_interval_tokens=rng.choice([0, 0, None, block, 3 * block]),
        extra_attention_groups=drafts)


def _tiers(rng: random.Random, config: EngineConfig, kind: str, step_s: float) -> tuple[TierConfig, ...]:
    """One tier as the connector has it, or up to three with every rule there is."""
    sizes = (1, 2, config.num_blocks // 3, config.num_blocks, 3 * config.num_blocks, 10_000)
    times = (0.0, step_s / 7, step_s, 9 * step_s)
    if kind != "any tiers":
        write: WritePolicy = "lazy" if kind == "lazy" else "eager"
        return (TierConfig(rng.choice(sizes), write, rng.choice(times), rng.choice(times), block_bytes=7),)
    return tuple(_any_tier(rng, config, rng.choice(sizes), step_s, times) for _ in range(rng.randint(1, 3)))


def _any_tier(rng: random.Random, config: EngineConfig, size: int, step_s: float,
              times: tuple[float, ...]) -> TierConfig:
    """A tier with any of the rules there are."""
    return TierConfig(
        size, rng.choice(WRITES), rng.choice(times), rng.choice(times), rng.choice(("dram", "nvme", "pool")),
        rng.choice(times), rng.choice(times), load_rule=rng.choice(("always", "always", "break-even")),
        recompute_s_per_token=rng.choice((step_s, step_s / 20)), reuse_threshold=rng.randint(1, 3),
        min_load_tokens=rng.choice((0, 0, 2 * config.block_tokens)), stores_outputs=rng.random() < 0.7,
        multi_group=rng.random() < 0.9, offline_from_s=rng.choice((float("inf"), float("inf"), 30.5 * step_s)))


def _workload(rng: random.Random, rows: list[Row], step_s: float, label: str) -> Workload:
    """Open, or closed by lanes of sessions; sometimes cut short, warmed up, or with a limit to what is in flight."""
    workload = Workload(
        requests_from_rows(rows), idle_cap_s=rng.choice([math.inf] * 2 + [2 * step_s]), label=label,
        until_s=rng.choice([math.inf] * 4 + [step_s * rng.randint(1, 60)]), ties_by_finish=rng.random() < 0.3,
        warming=np.array(sorted(rng.sample(range(len(rows)), rng.choice([0, 0, 0, 1, 2]))), np.int64),
        max_in_flight=rng.choice([(), (), (), (1.0,), (3.0,)]))
    if rng.random() < 0.6:
        return workload
    sessions = sorted({row.session for row in rows})
    rng.shuffle(sessions)
    lanes = rng.randint(1, min(3, len(sessions)))
    own, recycle = sessions[:lanes], tuple(sessions[lanes:])
    starts, stops = ([step_s * rng.randint(*bounds) for _ in own] for bounds in ((0, 4), (5, 90)))
    return replace(workload, lane_sessions=tuple((s,) for s in own), lane_start_s=np.array(starts, np.float64),
                   lane_stop_s=np.array(stops if rng.random() < 0.2 else [], np.float64), recycle=recycle)


def _step_time(rng: random.Random, step_s: float) -> StepTimeModel:
    """A constant step (arrivals fall on its grid), a linear or a piecewise one."""
    return rng.choice([LinearStepTime(step_s, 0.0, 0.0), LinearStepTime(step_s, step_s / 64, step_s / 16),
                       ThreePieces(step_s)])
