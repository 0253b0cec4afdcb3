"""Random problems of the engine tests with drafts added."""

from __future__ import annotations

import random
from dataclasses import replace

from kvsim.engine.pace import Drafting
from kvsim.engine.reference import max_blocks
from tests.engine.strategies import Problem, random_problem

KINDS = ("full", "hybrid", "nocache", "priority", "drafts")


def drafted_problem(seed: int, kind: str = "", most_tokens: int = 7) -> Problem:
    """An engine problem with up to `most_tokens` draft tokens, in a pool that barely holds it or holds it well."""
    rng = random.Random(seed)
    problem = random_problem(seed, kind or rng.choice(KINDS))
    config = problem.config
    tokens = rng.randint(1, most_tokens)
    block = config.block_tokens
    if block < 1 + tokens:
        block = rng.choice([1 + tokens, 8, 16])
    length = rng.choice([1.0, 1.0 + tokens, 1.0 + tokens * rng.random(), round(1.0 + tokens * rng.random(), 2)])
    interval = config.retention_interval_tokens
    config = replace(
        config, block_tokens=block, max_num_batched_tokens=max(config.max_num_batched_tokens, 1 + tokens),
        retention_interval_tokens=interval and rng.choice([block, 3 * block]),
        drafting=Drafting.of(tokens, length, rng.random() < 0.6))
    longest = int((problem.workload.requests.prompt_tokens + problem.workload.requests.output_tokens).max())
    need = max_blocks(config, longest)
    pool = max(2, rng.choice([config.num_blocks, need, need + 1, need + rng.randint(0, need), 3 * need]))
    return replace(problem, config=replace(config, num_blocks=pool))
