"""Loads that come layer by layer under the computation: the first step waits for what exceeds it."""

from __future__ import annotations

import dataclasses

import pytest

from kvsim.cache.tiers.config import TierConfig
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.steptime.base import LinearStepTime
from kvsim.workload.requests import Row, Workload, requests_from_rows
from tests.engine.strategies import Problem
from tests.engine.test_core import outcome


def play(load_s_per_block: float, mode: str, extra: tuple[Row, ...] = (), **changes: object) -> EngineRun:
    """Prompts 0, 1, 0 of ten blocks each in a pool of thirteen: the third request loads nine blocks from the tier."""
    rows = [Row([(prompt, 40)], 1, 100 + i, arrival_s=50.0 * i) for i, prompt in enumerate((0, 1, 0))]
    tier = TierConfig(100, "eager", load_s_per_block)
    tier = dataclasses.replace(tier, load_mode=mode)  # pyright: ignore[reportArgumentType]
    config = EngineConfig(14, 4, 8, 64, 1000, tiers=(tier,))
    config = dataclasses.replace(config, **changes)  # pyright: ignore[reportArgumentType]
    problem = Problem(Workload(requests_from_rows([*rows, *extra])), config, LinearStepTime(1.0, 0.0, 0.0))
    done = outcome(problem)
    assert done is not None
    return done


@pytest.mark.parametrize(("s_per_block", "first_token_s"), [(0.0, 101.0), (0.1, 101.0), (1 / 9, 101.0), (0.25, 102.25)])
def test_a_load_delays_only_by_what_exceeds_the_step(s_per_block: float, first_token_s: float) -> None:
    done = play(s_per_block, "layerwise")
    assert done.records.external_tokens.tolist() == [0, 0, 36]
    assert done.records.first_token_s[2] == pytest.approx(first_token_s, abs=1e-9)
    assert done.totals.stalled_s == pytest.approx(first_token_s - 101.0, abs=1e-9)
    assert done.totals.tiers[0].blocks_loaded == 9


def test_an_asynchronous_load_comes_before_the_step() -> None:
    assert play(0.1, "async").records.first_token_s[2] == pytest.approx(101.9)
    assert play(0.1, "layerwise").records.first_token_s[2] == pytest.approx(101.0)


def test_everybody_in_the_step_waits_for_the_load() -> None:
    other = Row([(7, 4)], 9, 9, arrival_s=98.0)
    rush = play(0.25, "layerwise", (other,), num_blocks=24)
    calm = play(0.25, "async", (other,), num_blocks=24)
    # Ten blocks of the last prompt fit beside the others here, so nothing is loaded: both modes are equal.
    assert rush.records.finish_s.tolist() == calm.records.finish_s.tolist()
    rush, calm = (play(0.25, mode, (other,), num_blocks=17) for mode in ("layerwise", "async"))
    assert rush.records.external_tokens[2] == calm.records.external_tokens[2] > 0
    assert rush.records.finish_s[3] > calm.records.finish_s[3]
    assert rush.records.first_token_s[2] < calm.records.first_token_s[2]


def test_a_mixture_of_tiers_streams_only_if_all_of_them_do() -> None:
    slow = TierConfig(1000, "eager", 0.25, kind="nvme", load_mode="async")
    near = TierConfig(6, "eager", 0.0, load_mode="layerwise")
    done = play(0.0, "async", tiers=(near, slow))
    assert done.records.first_token_s[2] == pytest.approx(101.0 + 0.25 * done.totals.tiers[1].blocks_loaded)


def test_checkpoints_stream_with_their_blocks() -> None:
    done = play(0.0, "layerwise", num_blocks=22, state_groups=2)
    assert done.records.external_tokens.tolist() == [0, 0, 36]
    assert done.records.first_token_s[2] == 101.0
